"""A link to a broker bounds what either may send."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from mosquitto import Mosquitto

pytest.importorskip("paho.mqtt.client")

from edgekit_runtime.telemetry import Broker, Handlers, Link

LONG = 30


def stepped(link, until):
    end = time.monotonic() + LONG
    while not until():
        assert time.monotonic() < end
        link.step(0.05)


def test_what_is_above_the_bound_never_comes_and_the_rest_does(tmp_path):
    heard = []
    handlers = Handlers(lambda: None, lambda topic, payload, retained: heard.append(len(payload)))
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()
        listening = Link(Broker.parse(broker.url), "listens", handlers, ("a",), most_bytes=10_000)
        telling = Link(
            Broker.parse(broker.url), "tells", Handlers(lambda: None, lambda *_: None), (), most_bytes=10_000
        )
        stepped(listening, lambda: listening.connected)
        listening.step(0.1)
        stepped(telling, lambda: telling.connected)
        for size in (9_000, 100_000, 8_000):
            assert telling.publish("a", bytes(size))
        stepped(telling, lambda: not telling.unsent)
        stepped(listening, lambda: len(heard) == 2)
        assert heard == [9_000, 8_000]
        telling.close()
        listening.close()


def test_what_the_broker_does_not_take_is_not_sent_and_the_connection_stays():
    """A broker of MQTT 5 that takes packets of 100 bytes, and hangs up on a larger one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        came = bytearray()

        def serve():
            connection, _ = server.accept()
            with connection:
                came.extend(connection.recv(4096))
                connection.sendall(bytes([0x20, 8, 0, 0, 5, 0x27, 0, 0, 0, 100]))
                while data := connection.recv(4096):
                    came.extend(data)

        serving = threading.Thread(target=serve)
        serving.start()
        handlers = Handlers(lambda: None, lambda *_: None)
        link = Link(Broker.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}"), "porch-1", handlers, ())
        stepped(link, lambda: link.connected)
        assert b"\x27" + (64 * 1024).to_bytes(4, "big") in came, "the bound of this end stands in the greeting"
        for _ in range(3):
            assert not link.publish("a", bytes(100))
        assert (link.trouble, link.troubles["too-large"]) == ("too-large", 1)
        assert link.publish("a", bytes(80))
        stepped(link, lambda: bytes(80) in came)
        assert link.connected
        link.close()
        serving.join(LONG)


def test_a_broker_that_hangs_up_on_what_it_forbids_leaves_the_word_and_the_topic():
    """Until another word is the last one."""
    handlers = Handlers(lambda: None, lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(bytes([0x20, 3, 0, 0, 0]))
                packet = connection.recv(4096)  # topic "a": its length is 1
                connection.sendall(bytes([0x40, 3, *packet[5:7], 0x87]))

        serving = threading.Thread(target=serve)
        serving.start()
        link = Link(Broker.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}"), "porch-1", handlers, ())
        stepped(link, lambda: link.connected)
        assert link.publish("a", b"x")
        stepped(link, lambda: not link.connected)
        serving.join(LONG)
        assert link.trouble == "forbidden"
        assert link.said == "porch-1 may not publish a: Not authorized"
    stepped(link, lambda: link.troubles["unreachable"])
    assert (link.trouble, link.said) == ("unreachable", "")
    link.close()

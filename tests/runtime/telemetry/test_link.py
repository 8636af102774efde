"""A link to a broker bounds what either may send."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from mosquitto import Mosquitto

pytest.importorskip("paho.mqtt.client")

from edgekit_runtime.telemetry.link import Broker, Link

LONG = 30


def stepped(link, until):
    end = time.monotonic() + LONG
    while not until():
        assert time.monotonic() < end
        link.step(0.05)


def test_what_is_above_the_bound_never_comes_and_the_rest_does(tmp_path):
    heard = []
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()
        listening = Link(
            Broker.parse(broker.url),
            "listens",
            ("a",),
            message=lambda topic, payload, retained: heard.append(len(payload)),
            most_bytes=10_000,
        )
        telling = Link(Broker.parse(broker.url), "tells", (), most_bytes=10_000)
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
        link = Link(Broker.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}"), "porch-1", ())
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


LIMITS = {
    "an answer that MQTT 5 does not have": ("message_size_limit 200", 5, 1),
    "three connections that end at once, in MQTT 3.1.1": ("max_packet_size 200", 4, 3),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_bound_that_the_broker_did_not_name_is_learnt_and_said_and_smaller_messages_go_through(limit, tmp_path):
    line, version, ended = LIMITS[limit]
    receipts, heard = [], []
    with Mosquitto(tmp_path, line) as broker:
        broker.need_mqtt5()
        link = Link(
            Broker.parse(broker.url),
            "porch-1",
            ("a",),
            message=lambda _, payload, __: heard.append(bytes(payload)),
            most_wait_s=0.1,
        )
        link._version = version
        for _ in range(ended):
            stepped(link, lambda: link.connected and link.subscribed)
            assert link.publish("a", b"small", receipt=receipts.append)
            stepped(link, lambda: receipts and receipts.pop())
            assert link.publish("a", bytes(300), receipt=receipts.append)
            stepped(link, lambda: receipts and not receipts.pop())
        assert (link.trouble, link.troubles["too-large"]) == ("too-large", 1)
        assert link.said == "the broker ends the connection for 317 bytes to a"
        stepped(link, lambda: link.connected and link.subscribed)
        heard.clear()
        assert link.trouble == "too-large"
        assert not link.publish("a", bytes(300))
        assert link.publish("a", b"small again")
        stepped(link, lambda: heard)
        assert heard == [b"small again"]
        assert link.troubles["lost"] == ended - 1
        link._below_until = 0.0  # the pause is over, and the owner has raised the limit
        (tmp_path / f"mosquitto-{broker.port}.conf").write_text(
            (tmp_path / f"mosquitto-{broker.port}.conf").read_text().replace("200", "2000")
        )
        broker.kill()
        broker.start()
        stepped(link, lambda: not link.connected)
        stepped(link, lambda: link.connected)
        assert link.publish("a", bytes(300), receipt=receipts.append)
        stepped(link, lambda: receipts)
        assert (receipts, link.trouble) == ([True], "")
        link.close()


@pytest.mark.parametrize("version", [5, 4])
def test_a_network_that_is_lost_again_and_again_is_no_broker_with_a_bound(version, tmp_path):
    """Where messages of that size came through, and where none was on its way."""
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()
        link = Link(Broker.parse(broker.url), "porch-1", (), most_wait_s=0.1)
        link._version = version
        receipts = []
        for round_ in range(5):
            stepped(link, lambda: link.connected)
            if round_ % 2:
                assert link.publish("a", bytes(300), receipt=receipts.append)
                stepped(link, lambda: receipts and receipts.pop())
            link.publish("a", bytes(300))
            broker.kill()
            stepped(link, lambda: not link.connected)
            broker.start()
        stepped(link, lambda: link.connected)
        assert "too-large" not in link.troubles
        link.close()


def test_a_broker_that_says_packet_too_large_is_quoted():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(bytes([0x20, 3, 0, 0, 0]))
                connection.recv(4096)
                connection.sendall(bytes([0xE0, 2, 0x95, 0]))

        serving = threading.Thread(target=serve)
        serving.start()
        link = Link(Broker.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}"), "porch-1", ())
        stepped(link, lambda: link.connected)
        assert link.publish("ek/m", bytes(900))
        stepped(link, lambda: not link.connected)
        serving.join(LONG)
        assert (link.trouble, link.said) == ("too-large", "the broker ends the connection for 920 bytes to ek/m")
        link.close()


def test_a_broker_that_hangs_up_on_what_it_forbids_leaves_the_word_and_the_topic():
    """Until another word is the last one."""
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
        link = Link(Broker.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}"), "porch-1", ())
        stepped(link, lambda: link.connected)
        assert link.publish("a", b"x")
        stepped(link, lambda: not link.connected)
        serving.join(LONG)
        assert link.trouble == "forbidden"
        assert link.said == "porch-1 may not publish a: Not authorized"
    stepped(link, lambda: link.troubles["unreachable"])
    assert (link.trouble, link.said) == ("unreachable", "")
    link.close()

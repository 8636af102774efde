"""Another end of the broker for tests: hears everything, remembers it, and says what it is told to say."""

from __future__ import annotations

import json
import threading
import time

import paho.mqtt.client as mqtt


class Listener:
    """acknowledge: answer every window with the mark up to which all of its epoch were heard, as an ingestor does."""

    def __init__(self, port: int, *, acknowledge: bool = False, topic: str = "#") -> None:
        self.heard: list[tuple[str, bytes, bool]] = []
        self._acknowledge = acknowledge
        self._changed = threading.Condition()
        self._seqs: dict[str, set[int]] = {}
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        self.client.on_message = self._on_message
        self.client.on_connect = lambda client, *_: client.subscribe(topic, 1)
        self._ready = threading.Event()
        self.client.on_subscribe = lambda *_: self._ready.set()
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self._ready.wait(20)

    def _on_message(self, client, _user, message):
        with self._changed:
            self.heard.append((message.topic, message.payload, message.retain))
            self._changed.notify_all()
        if self._acknowledge and message.topic.endswith(("/m", "/ev")):
            value = json.loads(message.payload)
            seqs = self._seqs.setdefault(value["epoch"], {value["floor"] - 1})
            seqs.add(value["seq"])
            mark = min(seqs)
            while mark + 1 in seqs:
                mark += 1
            self.say(message.topic.rpartition("/")[0] + "/ack", {"epoch": value["epoch"], "hwm": mark})

    def say(self, topic, value, **options):
        payload = value if isinstance(value, (bytes, str)) else json.dumps(value)
        return self.client.publish(topic, payload, **options)

    def wait(self, condition, timeout_s=30.0):
        """Until `condition(self)` holds; asked at every message."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while not condition(self):
                left = until - time.monotonic()
                assert left > 0, self.heard
                self._changed.wait(min(left, 0.2))

    def windows(self):
        with self._changed:
            return [json.loads(payload) for topic, payload, _ in list(self.heard) if topic.endswith("/m")]

    def states(self):
        return [json.loads(payload) for topic, payload, _ in list(self.heard) if topic.endswith("/state")]

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()

"""A self-reconnecting MQTT connection, driven by the thread that owns it.

    link = Link(Broker.parse("mqtts://user:secret@broker:8883"), "porch-1", ("a/b",), message=heard)
    while not done:
        link.step(timeout_s=1.0)

Rules:
- MQTT 5 first; 3.1.1 if the broker refuses the version, hangs up on it or stays silent; what worked is kept;
- a failed connection is retried after a random part of a wait that doubles (full jitter), up to `most_wait_s`. Each
  starts clean: what matters is in the owner's spool or store;
- `step` waits for the network or for `wake`, never longer than asked, except while connecting;
- `trouble` is one word for the last failure, and counted: see ADVICE; `said` is the broker's own reason, if any;
- MQTT 5 bounds a packet both ways: the broker drops what is above `most_bytes`, and nothing above its bound is sent;
- a bound that the broker does not name is learnt: by "Packet too large", by an invalid answer to a message, or by
  _HANG_UPS connections in a row that end right after a message. Such a message is retried after a pause that doubles.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from edgekit_runtime.system.errors import MissingExtraError, TelemetryError

ADVICE = {
    "unreachable": "Check the broker's address, and that it runs",
    "unknown-host": "Check the broker's name",
    "tls": "Check the certificates; SSL_CERT_FILE names the authority",
    "version": "The broker speaks neither MQTT 5 nor 3.1.1: check the port",
    "password": "Check user and password in the broker's URL",
    "refused": "Read the broker's log",
    "no-answer": "Check that this port is an MQTT listener",
    "lost": "It reconnects by itself; if this repeats, look for another client with the same id",
    "taken-over": "Give each board a device id of its own: two share this one",
    "too-large": "Raise the broker's limit for messages to 2 KiB",
    "forbidden": "Let it do so in the broker's access list: `edgekit fleet broker-config` writes one",
    "unconfirmed": "Start `edgekit fleet serve` on this broker, and let the board read its topic `ack`",
    "disk": "Check the spool's folder, its rights and the disk",
}
"""Word of a trouble -> what to do."""

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
FIRST_ANSWER_TIMEOUT_S = 3.0
KEEPALIVE_S = 60
RECEIVE_MAXIMUM = 20
MOST_PACKET_BYTES = 64 * 1024
_PACKET_OVERHEAD = 16  # fixed header, length of the topic, packet id, no properties
_READS = 100
_HANG_UPS = 3
_AT_ONCE_S = 3.0  # after a message went out
_PAUSE_S, _MOST_PAUSE_S = 60.0, 3600.0
_PACKET_TOO_LARGE = 0x95  # MQTT 5's reason code
_GARBLED = 2  # paho's MQTT_ERR_PROTOCOL
_EVENTS = ("on_connect", "on_message", "on_disconnect", "on_subscribe", "on_publish")
_STEADY_S = 30.0  # a connection that lasted this long owes nothing to the failures before it


@dataclass(frozen=True)
class Broker:
    """tls: with the system's certificates (SSL_CERT_FILE names others), hostname checked."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Broker:
        """mqtt://[user[:password]@]host[:1883] or mqtts://...[:8883].

        Raises TelemetryError, without the password in it.
        """
        do = "Write it as mqtt://host:1883 or mqtts://user:password@host:8883"
        if not isinstance(url, str):
            raise TelemetryError(f"{url!r:.40} is not a broker URL", do=do)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise TelemetryError("the broker URL cannot be parsed", do=do) from error
        if parts.scheme not in ("mqtt", "mqtts") or not host or parts.path not in ("", "/") or parts.query:
            raise TelemetryError("not a broker URL", where=url.rsplit("@", 1)[-1], do=do)
        tls = parts.scheme == "mqtts"
        user = unquote(parts.username) if parts.username is not None else None
        password = unquote(parts.password) if parts.password is not None else None
        return cls(host, port or (8883 if tls else 1883), tls, user, password)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


@dataclass(frozen=True)
class _PublishedMessage:
    """size: of its packet. at: when it was handed over."""

    topic: str
    size: int
    at: float
    receipt: Callable[[bool], object] | None


@dataclass(frozen=True)
class Will:
    """The retained message that the broker publishes if we vanish. delay_s: MQTT 5 only."""

    topic: str
    payload: bytes
    delay_s: int = 0


class Link:
    """Callbacks run in the thread that calls `step`.

    message: topic, payload, whether the broker had retained it.
    up: connected.
    will: asked before each connection.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        topics: tuple[str, ...],
        *,
        message: Callable[[str, bytes, bool], None] = lambda _topic, _payload, _retained: None,
        up: Callable[[], None] = lambda: None,
        will: Callable[[], Will | None] = lambda: None,
        most_wait_s: float = 120.0,
        most_bytes: int = MOST_PACKET_BYTES,
        most_at_once: int = RECEIVE_MAXIMUM,
    ) -> None:
        _paho()  # a missing extra is an error at once, in the caller's thread
        self.broker = broker
        self.connected = self.subscribed = False
        self.trouble = self.said = ""
        self.troubles: Counter[str] = Counter()
        self._client_id, self._topics = client_id, topics
        self._message, self._up, self._will = message, up, will
        self._most_wait_s, self._most_bytes, self._most_at_once = most_wait_s, most_bytes, most_at_once
        self._broker_takes: float = math.inf
        self._below: float = math.inf  # what it was seen to take
        self._below_until, self._pause_s = 0.0, _PAUSE_S
        self._suspect, self._hang_ups = 0, 0  # bytes, and how often in a row it was for them
        self._version = 5
        self._settled = self._renewing = False
        self._client: Any = None
        self._attempts = 0
        self._try_at = 0.0
        self._since = 0.0
        self._refused = ""
        self._heard_so_far = 0
        self._handed: list[Any] = []
        self._sent: dict[int, _PublishedMessage] = {}  # message id -> of it, to its receipt
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._watched: Any = None

    @property
    def advice(self) -> str:
        """What the broker said of the trouble, and what to do about it."""
        return ". ".join(part for part in (self.said, ADVICE.get(self.trouble, "")) if part)

    def wake(self) -> None:
        """Make a waiting `step` return. Thread-safe."""
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def step(self, timeout_s: float) -> None:
        """Connect if due, wait for I/O, and handle it."""
        now = time.monotonic()
        if self._renewing:
            self._renewing, self._try_at = False, 0.0
            self._client.disconnect()
            self._client.loop_write()
            self._drop()
        if self._client is None and now >= self._try_at:
            self._connect()
        if self._client is None:
            timeout_s = min(timeout_s, max(0.0, self._try_at - time.monotonic()))
        else:
            timeout_s = min(timeout_s, 1.0)  # keep-alives and answers that do not come are looked after each second
        self._watch()
        ready = self._selector.select(self._pending_or(timeout_s))
        if any(key.fileobj is self._woken for key, _ in ready):
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        self._serve(ready)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        receipt: Callable[[bool], object] | None = None,
    ) -> bool:
        """Hand a message over. False if not connected, buffers are full, or it is too large.

        receipt: called once in the thread that steps, with whether the broker accepted it.
        """
        if not self.connected or self._client is None:
            return False
        if self.is_too_large(topic, payload):
            if self.trouble != "too-large":
                self.trouble = "too-large"
                self.troubles["too-large"] += 1
            return False
        handed = self._client.publish(topic, payload, qos, retain)
        if handed.rc == 0 and qos:
            self._handed = [info for info in self._handed if not info.is_published()]
            self._handed.append(handed)
            self._sent[handed.mid] = _PublishedMessage(topic, _packet_bytes(topic, payload), time.monotonic(), receipt)
        return bool(handed.rc == 0)

    def is_too_large(self, topic: str, payload: bytes) -> bool:
        """Whether it exceeds what the broker is known to accept now."""
        size = _packet_bytes(topic, payload)
        return size > self._broker_takes or (size >= self._below and time.monotonic() < self._below_until)

    @property
    def unsent(self) -> bool:
        """Whether the broker has yet to acknowledge something sent on this connection."""
        return self.connected and not all(info.is_published() for info in self._handed)

    def reconnect(self) -> None:
        """Make a new connection in the next `step`, because the will has changed."""
        self._renewing, self.connected = self._client is not None, False

    def close(self) -> None:
        """Disconnect in order, so the broker forgets the will. Never raises."""
        with contextlib.suppress(Exception):
            if self._client is not None:
                self._client.disconnect()
                self._client.loop_write()
        self._drop()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    # What happens in a step.

    def _connect(self) -> None:
        client = new_client(self.broker, self._client_id, will=self._will(), v5=self._version == 5)
        client.on_socket_register_write = lambda *_: None  # `_serve` writes, many receipts at a time
        for event in _EVENTS:
            setattr(client, event, getattr(self, f"_{event}"))
        self._refused = ""
        options: dict[str, Any] = {}
        if self._version == 5:
            properties = _properties("CONNECT")
            properties.ReceiveMaximum = self._most_at_once
            properties.MaximumPacketSize = self._most_bytes
            options = {"clean_start": True, "properties": properties}
        try:
            client.connect(self.broker.host, self.broker.port, KEEPALIVE_S, **options)
        except (OSError, ValueError) as error:
            import ssl

            unknown = isinstance(error, (socket.gaierror, UnicodeError))
            self._failed("tls" if isinstance(error, ssl.SSLError) else "unknown-host" if unknown else "unreachable")
            return
        self._client, self._since = client, time.monotonic()

    def _on_connect(self, client: Any, _user: Any, _flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.said = str(reason)
            if reason.value == _PACKET_TOO_LARGE:  # the will
                self._refused = "too-large"
            elif "protocol version" in str(reason):
                self._refused = "version"
            else:
                wrong = str(reason) in ("Bad user name or password", "Not authorized")
                self._refused = "password" if wrong else "refused"
            return
        self.connected = self._settled = True
        if time.monotonic() >= self._below_until:
            self.trouble = self.said = ""
        self._broker_takes = getattr(properties, "MaximumPacketSize", math.inf)
        if self._topics:
            client.subscribe([(topic, 1) for topic in self._topics])
        self._up()

    def _on_publish(self, _client: Any, _user: Any, mid: int, reason: Any, _properties: Any) -> None:
        sent = self._sent.pop(mid, None)
        if sent is None:
            return
        if reason.is_failure:
            self._is_forbidden("publish", sent.topic, reason)
        if sent.size >= self._suspect:
            self._hang_ups = 0
        if sent.size >= self._below:  # it takes them by now
            self._below, self._pause_s = math.inf, _PAUSE_S
            if self.trouble == "too-large":
                self.trouble = self.said = ""
        if sent.receipt is not None:
            sent.receipt(not reason.is_failure)

    def _on_subscribe(self, _client: Any, _user: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        self.subscribed = True
        for topic, reason in zip(self._topics, reasons, strict=False):
            if reason.is_failure:
                self._is_forbidden("subscribe to", topic, reason)

    def _is_forbidden(self, what: str, topic: str, reason: Any) -> None:
        self.trouble = "forbidden"
        self.troubles["forbidden"] += 1
        self.said = f"{self._client_id} may not {what} {topic}: {reason}"

    def _on_disconnect(self, _client: Any, _user: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if str(reason) == "Session taken over":
            self._refused = "taken-over"
        elif reason.value == _PACKET_TOO_LARGE:
            self._refused = "too-large"

    def _on_message(self, _client: Any, _user: Any, message: Any) -> None:
        self._heard_so_far += 1
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        self._message(topic, message.payload, bool(message.retain))

    def _watch(self) -> None:
        """Keep the selector on the current socket."""
        current = self._client.socket() if self._client is not None else None
        if current is not self._watched:
            self._unwatch()
        if current is None:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._client.want_write() else 0)
        if self._watched is None:
            self._selector.register(current, events)
            self._watched = current
        elif self._selector.get_key(current).events != events:
            self._selector.modify(current, events)

    def _unwatch(self) -> None:
        if self._watched is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._watched)
            self._watched = None

    def _pending_or(self, timeout_s: float) -> float:
        """The timeout, or 0 if TLS holds decrypted data."""
        pending = getattr(self._watched, "pending", None)
        return 0.0 if pending is not None and pending() else max(0.0, timeout_s)

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        client = self._client
        if client is None:
            return
        garbled, events = False, next((mask for key, mask in ready if key.fileobj is self._watched), 0)
        if events & selectors.EVENT_READ or self._pending_or(1.0) == 0.0:
            for _ in range(_READS):  # paho reads one packet at a time
                heard = self._heard_so_far
                try:
                    garbled = client.loop_read() == _GARBLED
                except Exception:  # noqa: BLE001 - of paho before 2.2, for a packet that it does not know
                    garbled = True
                if garbled:
                    break
                if self._heard_so_far == heard or client.socket() is None or self._refused or self._renewing:
                    break
        if self._renewing:
            return
        if client.socket() is not None and client.want_write():
            client.on_publish = None  # of messages without a receipt; paho makes a reason and properties for each
            with _one_segment(client.socket()):
                client.loop_write()
            client.on_publish = self._on_publish
        client.loop_misc()
        now = time.monotonic()
        # some brokers of 3.1.1 wait for ever for the rest of a greeting that they misread
        patience_s = ANSWER_TIMEOUT_S if self._settled or self._version != 5 else FIRST_ANSWER_TIMEOUT_S
        if client.socket() is None or self._refused or garbled:
            # a broker of 3.1.1 may close on a version it does not know, without a word
            hung_up = "version" if self._version == 5 and not self._settled else "no-answer"
            word = self._refused or ("lost" if self.connected else hung_up)
            if word in ("lost", "too-large"):
                word = self._after_message(word, certain=garbled or word == "too-large")
            self._failed(word)
        elif not self.connected and now - self._since > patience_s:
            self._failed("no-answer")
        elif self.connected and now - self._since > _STEADY_S:
            self._attempts = 0

    def _after_message(self, word: str, *, certain: bool) -> str:
        """Why a connection ended: "too-large" if a message in flight caused it.

        certain: the broker said so, or sent an invalid answer, as mosquitto's `message_size_limit` does.
        """
        since = time.monotonic() - _AT_ONCE_S
        largest = max((one for one in self._sent.values() if one.at >= since), key=lambda one: one.size, default=None)
        if largest is None:
            return word
        before = self._hang_ups if largest.size >= self._suspect else 0
        self._suspect, self._hang_ups = largest.size, _HANG_UPS if certain else before + 1
        if self._hang_ups < _HANG_UPS:
            return word
        self._hang_ups -= 1  # after the pause one is enough
        self._below, self._below_until = largest.size, time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        self.said = f"the broker ends the connection for {largest.size:,} bytes to {largest.topic}"
        return "too-large"

    def _failed(self, word: str) -> None:
        self._drop()
        self.troubles[word] += 1
        another = word in ("version", "no-answer") and not self._settled
        if another and self._version == 5:  # another version is another question, not another try
            self._version, self._try_at = 4, 0.0
            return
        if word != "lost" or self.trouble != "forbidden":  # some brokers hang up on what they forbid
            self.trouble = word
            if not self._refused and word != "too-large":
                self.said = ""
        if not self._settled:
            self._version = 5
        wait = min(self._most_wait_s, 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        self._try_at = time.monotonic() + random.uniform(0.0, wait)

    def _drop(self) -> None:
        client, self._client = self._client, None
        self.connected = self.subscribed = self._renewing = False
        self._handed = []
        lost, self._sent = self._sent, {}
        self._unwatch()
        if client is not None:
            for event in _EVENTS:
                setattr(client, event, None)
            with contextlib.suppress(OSError):
                if client.socket() is not None:
                    client.socket().close()
        for sent in lost.values():
            if sent.receipt is not None:
                sent.receipt(False)


@contextlib.contextmanager
def _one_segment(here: Any) -> Iterator[None]:
    """Send what is written within it together: paho writes packet by packet."""
    for held in (1, 0):
        with contextlib.suppress(AttributeError, OSError):  # not on Linux; closed meanwhile
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)
        if held:
            yield


def _packet_bytes(topic: str, payload: bytes) -> int:
    return len(topic.encode()) + len(payload) + _PACKET_OVERHEAD


def new_client(broker: Broker, client_id: str, *, will: Will | None = None, v5: bool = True) -> Any:
    """paho's client with this broker's user, certificates and bounds, not connected.

    A second client with the same id ends this connection. With a password the id ends with a digest of it, so only
    boards with the same name and password meet.
    """
    mqtt = _paho()
    if broker.password:
        client_id += "." + hashlib.sha256(f"edgekit {broker.user} {broker.password}".encode()).hexdigest()[:12]
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311,
        reconnect_on_failure=False,
        **({} if v5 else {"clean_session": True}),
    )
    client.connect_timeout = CONNECT_TIMEOUT_S
    client.max_inflight_messages_set(RECEIVE_MAXIMUM)
    if broker.user is not None:
        client.username_pw_set(broker.user, broker.password)
    if broker.tls:
        import ssl

        client.tls_set_context(ssl.create_default_context())
    if will is not None:
        properties = _properties("WILLMESSAGE") if v5 else None
        if properties is not None:
            properties.WillDelayInterval = will.delay_s
        client.will_set(will.topic, will.payload, 1, True, properties)
    return client


def _paho() -> Any:
    try:
        import paho.mqtt.client as mqtt
    except ImportError as error:
        raise MissingExtraError("telemetry", "reporting over MQTT") from error
    return mqtt


def _properties(packet: str) -> Any:
    from paho.mqtt import packettypes, properties

    untyped: Any = properties
    return untyped.Properties(getattr(packettypes.PacketTypes, packet))

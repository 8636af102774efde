"""From the broker into the store, and the acknowledgement back: one thread.

Rules:
- nothing is acknowledged before it is committed; what is committed is acknowledged by its contiguous mark, also again;
- up to `most` messages, or what comes in `wait_s`, are one transaction;
- a payload that is refused is counted under one word, and everything else goes on;
- a store that fails loses nothing: nothing is acknowledged, and the boards send it again.

    ingest = Ingest(Broker.parse("mqtt://127.0.0.1"), SqliteStore.open(path))
    ingest.start()
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass

from edgekit.fleet.errors import StoreError
from edgekit.fleet.store import Arrival, Change, Store, parse_state
from edgekit_runtime.errors import WindowError
from edgekit_runtime.telemetry import DEVICE_ID, ROOT, Broker, Handlers, Link, origin, parse_window

__all__ = ["Ingest", "Pace"]

_LOG = logging.getLogger("edgekit.fleet")
_MOST_PACKET_BYTES = 2 << 20
"""Above it the broker drops a message (MQTT 5); what is too large and below is refused and counted here."""


@dataclass(frozen=True)
class Pace:
    """most, wait_s: how many messages, or how long, one transaction collects. chores_s: between looks for silence."""

    most: int = 500
    wait_s: float = 0.05
    chores_s: float = 2.0
    prune_s: float = 300.0
    most_wait_s: float = 15.0


class Ingest:
    """`counts`: messages, windows, refused by word, commits. Read from any thread."""

    def __init__(self, broker: Broker, store: Store, pace: Pace | None = None, name: str = "edgekit-fleet") -> None:
        self._store, self._pace = store, pace or Pace()
        self.refused: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._arrivals: list[Arrival] = []
        self._changes: list[Change] = []
        self._first_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="edgekit-ingest", daemon=True)
        self.link = Link(
            broker,
            name,
            Handlers(lambda: None, self._message),
            (f"{ROOT}/+/m", f"{ROOT}/+/state"),
            most_wait_s=self._pace.most_wait_s,
            most_bytes=_MOST_PACKET_BYTES,
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Commit what has come, and go."""
        self._stopping.set()
        self.link.wake()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _work(self) -> None:
        chores_at = prune_at = time.monotonic() + self._pace.chores_s
        told = ""
        while not self._stopping.is_set():
            try:
                self.link.step(self._pace.wait_s if self._pending else self._pace.chores_s)
                if self.link.trouble not in ("", told):
                    told = self.link.trouble
                    _LOG.warning("the broker %s: %s", self.link.broker, told)
                now = time.monotonic()
                if self._pending and (self._pending >= self._pace.most or now - self._first_at >= self._pace.wait_s):
                    self._commit()
                if now >= chores_at:
                    self._store.look_for_silence(_now_ms())
                    chores_at = now + self._pace.chores_s
                if now >= prune_at:
                    self._store.prune(_now_ms())
                    prune_at = now + self._pace.prune_s
            except StoreError as error:
                self._stumbled("store", error)
            except Exception as error:  # noqa: BLE001 - one message must not end the fleet
                self._stumbled("fault", error)
        try:
            self._commit()
        except StoreError as error:
            self._stumbled("store", error)
        self.link.close()

    @property
    def _pending(self) -> int:
        return len(self._arrivals) + len(self._changes)

    def _stumbled(self, word: str, error: Exception) -> None:
        self._arrivals, self._changes = [], []
        self.counts[word] += 1
        _LOG.error("ingest: %s", error, exc_info=word == "fault")
        self._stopping.wait(0.5)

    def _commit(self) -> None:
        arrivals, changes = self._arrivals, self._changes
        if not arrivals and not changes:
            return
        marks = self._store.commit(arrivals, changes)
        self._arrivals, self._changes = [], []
        self.counts["commits"] += 1
        self.counts["windows"] += len(arrivals)
        for mark in marks:
            ack = json.dumps({"epoch": mark.epoch, "hwm": mark.hwm}, separators=(",", ":")).encode()
            self.link.publish(f"{ROOT}/{mark.device}/ack", ack, qos=0)

    def _message(self, topic: str, payload: bytes, retained: bool) -> None:
        self.counts["messages"] += 1
        if not self._pending:
            self._first_at = time.monotonic()
        device, _, kind = topic.removeprefix(f"{ROOT}/").partition("/")
        if not DEVICE_ID.match(device):
            self._refuse("device", topic)
        elif kind == "m":
            self._window(device, payload)
        elif kind == "state" and payload:
            self._state(device, payload, retained)

    def _window(self, device: str, payload: bytes) -> None:
        now = _now_ms()
        try:
            window = parse_window(payload, device)
        except WindowError as error:
            self._refuse(error.word, f"{device}: {error}")
            known = origin(payload) if error.word in ("version", "shape") else None
            if known is not None:
                self._arrivals.append(Arrival(device, *known, now, b"", None, error.word))
            return
        seal = window.seal
        self._arrivals.append(Arrival(device, seal.epoch, seal.seq, seal.floor, now, payload, window))

    def _state(self, device: str, payload: bytes, retained: bool) -> None:
        try:
            self._changes.append(Change(device, _now_ms(), parse_state(payload), retained))
        except WindowError as error:
            self._refuse(error.word, f"{device}: {error}")

    def _refuse(self, word: str, what: str) -> None:
        self.refused[word] += 1
        if self.refused[word] == 1:
            _LOG.warning("refused (%s, further ones are only counted): %r", word, what[:200])


def _now_ms() -> int:
    return int(time.time() * 1000)

"""The reporting thread: cuts, spools and sends windows, and deletes acknowledged ones.

    about = About("porch-1", "digits", "1", "9f3c..", "raspberry-pi-4")
    reporter = Reporter(meter, about, TelemetryOptions("mqtt://host", "porch-1"))
    reporter.start()
    reporter.close()

Rules:
- no inference calls this, and nothing is raised into the application once `start` has returned;
- memory, with an epoch of its own, replaces a failing disk until memory is empty and the disk works again;
- `state` is published, retained, at every connection, and again when the fleet does not know it; its Will says that the
  board is gone;
- what happens to the board (another bundle, throttling, a failing disk) is an event in the same spool and sequence;
- `close` commits the last window, and gives it a moment to arrive if connected.
"""

from __future__ import annotations

import hashlib
import json
import logging
import numbers
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgekit_runtime.cache.bounded import BoundStats
from edgekit_runtime.policy.options import check_path
from edgekit_runtime.system.board import state_dir
from edgekit_runtime.system.errors import TelemetryError, WindowError
from edgekit_runtime.system.strict_json import load_json
from edgekit_runtime.system.threads import begin
from edgekit_runtime.telemetry.board_state import THROTTLING, Board, clock_is_set
from edgekit_runtime.telemetry.histogram import BINS, CountedWindow, Drift, ShadowWindow
from edgekit_runtime.telemetry.link import ADVICE, CONNECT_TIMEOUT_S, Broker, Link, Will
from edgekit_runtime.telemetry.messages import Flow, encode_event, encode_part, encode_state, parse_ack
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.samples import SampleKeeper
from edgekit_runtime.telemetry.spool import Spool, is_event, is_sample
from edgekit_runtime.telemetry.window import (
    MOST_LABEL,
    About,
    Report,
    Seal,
    System,
    device_id,
    encode,
    is_text,
    sealed_payload,
)

ROOT = "ek/v1"
_LOG = logging.getLogger("edgekit_runtime.telemetry")
_TO_LOG = ("forbidden", "password", "unconfirmed", "taken-over", "too-large")  # what the board's owner has to mend
_RETRY_DISK_WINDOWS = 10
_MOST_WILL_DELAY_S = 30
_BIRTH_AGAIN_S = 10.0
_THROTTLED_NOW = 0xF
_BETWEEN_EVENTS_S = 600.0
_DRIFTING = 0.2
"""PSI, as on the fleet page."""


@dataclass(frozen=True)
class TelemetryOptions:
    """Where a model reports to. Raises TelemetryError, or OptionError for an invalid spool.

    broker: mqtt(s)://[user:password@]host[:port].
    device: this board's id, 3 to 63 of a-z, 0-9 and -; every board needs its own.
    window_s: seconds between two reports, 0.1 to 86,400.
    spool: file that keeps reports until they are confirmed; None for telemetry/DEVICE.db in the state folder.
    most_wait_s: longest pause between two attempts to connect, 0.1 to 86,400 seconds.
    site, group: labels for grouping boards on the fleet page, at most 32 characters each; they are sent.
    samples: the builder's public key, to send low-confidence inputs encrypted (docs/security.md); None for none.
    samples_mb, samples_a_day: MB that may wait on the board; most samples a day.
    """

    broker: str = field(repr=False)  # it may hold a password
    device: str
    window_s: float = 60.0
    spool: str | os.PathLike[str] | None = None
    most_wait_s: float = 120.0
    site: str = ""
    group: str = ""
    samples: str | os.PathLike[str] | None = None
    samples_mb: float = 4.0
    samples_a_day: int = 5

    def __post_init__(self) -> None:
        Broker.parse(self.broker)
        if not self.device:
            name = "a unique name per board"
            do = f"Pass device='porch-1', {name}"
            raise TelemetryError("telemetry needs a device id", do=do, do_cli=f"Pass --device porch-1, {name}")
        try:
            device_id(self.device)
        except WindowError as error:
            raise TelemetryError(error.what, do="Pass something like 'porch-1'") from error
        for what, seconds, usual in (("window", self.window_s, 60), ("pause", self.most_wait_s, 120)):
            if not isinstance(seconds, numbers.Real) or not 0.1 <= seconds <= 86_400:
                do = f"Pass 0.1 to 86400; {usual} is usual"
                raise TelemetryError(f"a {what} of {seconds!r:.40} seconds is out of range", do=do)
        for name in ("site", "group"):
            if not is_text(getattr(self, name), MOST_LABEL):
                do = f"Pass at most {MOST_LABEL} characters, like {name}='berlin'"
                raise TelemetryError(f"{name} is not a valid label", do=do)
        for name, path in (("spool", self.spool), ("samples", self.samples)):
            if path is not None:
                check_path(name, path, "TelemetryOptions")

    @property
    def file(self) -> Path:
        """The spool's path."""
        return state_dir() / "telemetry" / f"{self.device}.db" if self.spool is None else Path(self.spool)


@dataclass(frozen=True)
class TelemetryStats:
    """connected: to the broker, now.
    trouble: word of the last failure, empty while all is well.
    troubles: how often each occurred.
    windows: cut so far.
    sent: handed to the broker, repetitions included.
    waiting: not yet confirmed by the ingestor.
    dropped: given up since the spool was made.
    on_disk: False while memory replaces the disk.
    advice: what the broker said and what to do about the trouble, or empty.
    """

    connected: bool
    trouble: str
    troubles: dict[str, int]
    windows: int
    sent: int
    waiting: int
    dropped: int
    on_disk: bool
    advice: str = ""


Beside = Callable[[System, CountedWindow], "ShadowWindow | None"]


class Reporter:
    """Owned by a Model. `start` once, `close` once.

    beside: called at each cut, for the figures of a shadow; bound: for those of a semantic cache."""

    def __init__(
        self,
        meter: Meter,
        about: About,
        options: TelemetryOptions,
        beside: Beside = lambda system, counted: None,
        bound: Callable[[], BoundStats | None] = lambda: None,
    ) -> None:
        self.samples: SampleKeeper | None = None
        if options.samples is not None:
            self.samples = SampleKeeper(options.samples, options.samples_mb, options.samples_a_day, about)
        self._meter, self._about, self._window_s = meter, about, float(options.window_s)
        self._file, self._beside, self._bound = options.file, beside, bound
        self._board = Board(self._file.parent)
        self._topic = f"{ROOT}/{about.device}"
        self._flow = Flow()
        self._stopping = threading.Event()
        self._give_up_at = 0.0
        self._thread = threading.Thread(target=self._work, name=f"edgekit-telemetry-{about.device}", daemon=True)
        self._spool: Spool | None = None
        self._disk_trouble = ""
        self._retry_at = 0
        self._cut_at = 0.0
        self._windows = self._sent = self._waiting = self._faults = 0
        self._events: list[int] = []  # in the spool, not yet confirmed
        self._said: set[str] = set()
        self._born_at = self._throttled_at = float("-inf")
        self._throttled: int | None = None
        self._drift = Drift(bundled=about.top_scores)
        self._began = (time.time(), time.monotonic())
        self._link = Link(
            Broker.parse(options.broker),
            about.device,
            (f"{self._topic}/ack",),
            message=self._message,
            up=self._up,
            will=self._will,
            most_wait_s=options.most_wait_s,
        )

    def start(self) -> None:
        begin(self._thread)

    def stats(self) -> TelemetryStats:
        spool, link = self._spool, self._link
        troubles = dict(link.troubles)
        if self._disk_trouble:
            troubles["disk"] = troubles.get("disk", 0) + 1
        if self._faults:
            troubles["fault"] = self._faults
        trouble = self._trouble
        return TelemetryStats(
            connected=link.connected,
            trouble=trouble,
            troubles=troubles,
            windows=self._windows,
            sent=self._sent,
            waiting=self._waiting,
            dropped=spool.dropped if spool is not None else 0,
            on_disk=spool is not None and spool.path is not None,
            advice=self._advice(trouble),
        )

    @property
    def _trouble(self) -> str:
        unconfirmed = "unconfirmed" if self._link.connected and self._flow.silent else ""
        return self._link.trouble or ("disk" if self._disk_trouble else unconfirmed)

    def _advice(self, trouble: str) -> str:
        said = self._disk_trouble if trouble == "disk" else self._link.said
        return ". ".join(part for part in (said, ADVICE.get(trouble, "")) if part)

    def close(self, timeout_s: float = 2.0) -> None:
        """Commit the last window and wait for its confirmation. Idempotent, never raises."""
        if not self._stopping.is_set():
            self._give_up_at = time.monotonic() + timeout_s
            self._stopping.set()
            self._link.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s + CONNECT_TIMEOUT_S + 1.0)  # it may be waiting for a connection just now

    # The thread.

    def _work(self) -> None:
        # boards that start together do not report together: each waits for a part of its first window
        share = int.from_bytes(hashlib.sha256(self._about.device.encode()).digest()[:4], "big") / 2.0**32
        self._cut_at = time.monotonic() + self._window_s * share
        self._shielded(self._compare_bundle)
        self._shielded(self._read_reference)
        if self.samples is not None:
            resume = self.samples.resume
            self._shielded(lambda: resume(self._spooled.note("samples")))
        while not self._stopping.is_set():
            self._shielded(self._step)
        self._shielded(self._close_window, self._farewell)
        self._link.close()
        if self._spool is not None:
            self._spool.close()

    def _step(self) -> None:
        """Cut a window if due, send, and wait for the network."""
        now, _ = time.monotonic(), self._spooled
        if now >= self._cut_at:
            self._close_window()
            self._cut_at = max(self._cut_at + self._window_s, now)
            trouble = self._trouble
            if trouble in _TO_LOG and trouble not in self._said:
                self._said.add(trouble)
                _LOG.warning("telemetry of %s: %s (%s)", self._about.device, trouble, self._advice(trouble))
        self._send()
        due = self._flow.due_s(now) if self._link.connected else None
        self._link.step(min(self._cut_at - now, due if due is not None else self._cut_at - now))

    def _shielded(self, *steps: Callable[[], object]) -> None:
        """Log the first unexpected error, and pause for a second after each."""
        try:
            for step in steps:
                step()
        except Exception:  # noqa: BLE001 - the application must never hear of it
            self._faults += 1
            if self._faults == 1:
                _LOG.exception("telemetry of %s failed; inferences are not affected", self._about.device)
            self._stopping.wait(1.0)

    def _farewell(self) -> None:
        """Give spooled windows time to arrive, then publish that the board is off."""
        while time.monotonic() < self._give_up_at and (self._link.connected or not self._link.trouble):
            self._send()
            if self._link.connected and not self._spooled.after(0, 1):
                break
            self._link.step(max(0.0, min(0.2, self._give_up_at - time.monotonic())))
        self._link.publish(f"{self._topic}/state", self._state(on=False), retain=True)
        while self._link.unsent and time.monotonic() < self._give_up_at:
            self._link.step(0.05)

    def _close_window(self) -> None:
        """Commit what was counted since the last window."""
        wall, monotonic = self._began
        self._began = (time.time(), time.monotonic())
        counted, system = self._meter.cut(), self._board.read()
        self._watch_throttling(system.thr)
        if self._drift.add(counted.scores):
            kept = {"sha": self._about.sha, "counts": self._drift.reference}
            self._shielded(lambda: self._spooled.swap_note("scores", json.dumps(kept)))
        beside: dict[str, Any] = {}
        self._shielded(lambda: beside.update(shadow=self._beside(system, counted)))
        self._shielded(lambda: beside.update(semantic=self._bound()))
        report = Report(
            about=self._about,
            boot=self._spooled.boot,
            t0_ms=max(0, int(wall * 1e3)),
            dur_ms=max(1, round((self._began[1] - monotonic) * 1e3)),
            clock_ok=clock_is_set(),
            counted=counted,
            system=system,
            psi=self._drift.psi,
            **beside,
        )
        self._commit(encode(report))
        self._windows += 1
        if self.samples is not None:
            self.samples.drifting = (self._drift.psi or 0.0) > _DRIFTING
            self._shielded(self._spool_samples)

    def _spool_samples(self) -> None:
        assert self.samples is not None
        spool, device = self._spooled, self._about.device
        if spool.path is None:  # memory is for windows
            return
        now_ms, clock_ok = max(0, int(time.time() * 1e3)), clock_is_set()
        body = partial(encode_part, device=device, boot=spool.boot, t0_ms=now_ms, clock_ok=clock_ok)
        for part in self.samples.take(spool.sample_bytes(), body):
            self._commit(part)
        spool.swap_note("samples", self.samples.note)

    def _send(self) -> None:
        if not self._link.connected:
            return
        spool, now = self._spooled, time.monotonic()
        floor = spool.floor
        seqs = self._flow.take(now, floor, spool.last, self._events)
        if not seqs:
            return
        n, size = spool.waiting()
        self._waiting, bodies = n, spool.bodies(seqs)
        for seq in seqs:
            body = bodies.get(seq)
            if body is None:
                continue
            payload = sealed_payload(body, Seal(spool.epoch, seq, floor, spool.dropped, n, size))
            topic = f"{self._topic}/{'ev' if is_event(body) or is_sample(body) else 'm'}"
            if self._link.publish(topic, payload):
                self._sent += 1
            elif not self._link.is_too_large(topic, payload):  # that one waits, and holds up none of the others
                self._flow.begin()
                break

    # Events.

    def _happened(self, kind: str, text: str) -> None:
        """Spool an event."""
        self._commit(self._event(kind, text))
        self._events = self._spooled.events()

    def _event(self, kind: str, text: str) -> bytes:
        now_ms, boot = max(0, int(time.time() * 1e3)), self._spooled.boot
        return encode_event(kind, text, device=self._about.device, boot=boot, t0_ms=now_ms, clock_ok=clock_is_set())

    def _compare_bundle(self) -> None:
        """Report a bundle that differs from the last one in this spool."""
        about = self._about
        name = " ".join(text[:64] for text in (about.model, about.version))
        before = self._spooled.swap_note("ran", json.dumps([about.sha, about.generation, name]))
        self._events = self._spooled.events()
        sha, generation, other = load_json(before) if before is not None else (about.sha, None, "")
        if sha == about.sha:
            return
        back = generation is not None and about.generation is not None and about.generation < generation
        kind = "trial" if about.trial else "rollback" if back else "install"
        self._happened(kind, f"runs {name} instead of {other}")

    def _read_reference(self) -> None:
        """Load the board's own reference for drift, unless the bundle has one."""
        if self._drift.bundled:
            return
        kept = load_json(self._spooled.note("scores") or "{}")
        same = isinstance(kept, dict) and kept.get("sha") == self._about.sha
        counts = kept.get("counts") if same else None
        if isinstance(counts, list) and len(counts) == BINS and all(type(n) is int and n >= 0 for n in counts):
            self._drift = Drift(counts)

    def _watch_throttling(self, bits: int | None) -> None:
        """Report throttling, at most once in ten minutes."""
        now, before = time.monotonic(), self._throttled
        self._throttled = bits
        if bits is None or not bits & _THROTTLED_NOW or (before or 0) & _THROTTLED_NOW:
            return
        if now - self._throttled_at >= _BETWEEN_EVENTS_S:
            self._throttled_at = now
            what = [word for bit, word in enumerate(THROTTLING) if bits >> bit & 1]
            self._happened("throttling", ", ".join(what))

    # The spool: on disk, or in memory while the disk fails.

    @property
    def _spooled(self) -> Spool:
        if self._spool is None:
            try:
                self._spool = Spool.open(self._file)
                self._disk_trouble = ""
            except TelemetryError as error:
                self._to_memory(error)
        assert self._spool is not None
        return self._spool

    def _to_memory(self, error: TelemetryError) -> None:
        if not self._disk_trouble:
            _LOG.warning("telemetry of %s is kept in memory: %s", self._about.device, error)
        self._disk_trouble = str(error)
        self._retry_at = self._windows + _RETRY_DISK_WINDOWS
        if self._spool is not None:
            self._spool.close()
        self._spool = Spool.in_memory()
        self._spool.append(self._event("spool", "its disk fails: reports are kept in memory"))
        self._events = self._spool.events()
        self._flow.forget()

    def _commit(self, body: bytes) -> None:
        spool = self._spooled
        if self._disk_trouble and self._windows >= self._retry_at and not spool.after(0, 1):
            self._retry_at = self._windows + _RETRY_DISK_WINDOWS
            try:
                disk = Spool.open(self._file)
            except TelemetryError:
                pass  # memory stands in for longer
            else:
                self._spooled.close()
                self._spool, self._disk_trouble = disk, ""
                self._events = disk.events()
                self._flow.forget()
                self._link.reconnect()
                self._happened("spool", "reports are kept on its disk again")
        try:
            self._spooled.append(body)
        except TelemetryError as error:
            self._to_memory(error)
            self._spooled.append(body)
            self._link.reconnect()
        if self._events:  # making room moves them
            self._events = self._spooled.events()
        self._waiting += 1

    # What the link calls.

    def _up(self) -> None:
        self._flow.begin()
        self._events = self._spooled.events()
        self._born_at = time.monotonic()
        self._link.publish(f"{self._topic}/state", self._state(on=True), retain=True)

    def _will(self) -> Will:
        delay = min(_MOST_WILL_DELAY_S, int(self._window_s / 2))
        return Will(f"{self._topic}/state", self._state(on=False), delay)

    def _state(self, *, on: bool) -> bytes:
        spool = self._spooled
        return encode_state(spool.epoch, spool.boot, self._about if on else None, self._window_s)

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        """An acknowledgement: everything up to hwm of this epoch is stored. Ignores anything else."""
        ack, spool = parse_ack(payload), self._spooled
        if ack is None or topic != f"{self._topic}/ack" or ack.epoch != spool.epoch:
            return
        mark = ack.hwm
        if mark > spool.last:  # the file is an older copy of itself, put back
            spool.new_epoch()
            self._flow.forget()
            self._link.reconnect()
            return
        now = time.monotonic()
        spool.forget(mark)
        self._flow.confirmed(mark, ack.credit, now)
        self._events = [seq for seq in self._events if seq > mark]
        self._waiting = max(0, spool.last - mark)
        if not ack.known and now - self._born_at >= min(_BIRTH_AGAIN_S, self._window_s):
            self._born_at = now
            self._link.publish(f"{self._topic}/state", self._state(on=True), retain=True)

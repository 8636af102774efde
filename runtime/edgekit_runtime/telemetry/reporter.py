"""The one thread that reports: cuts a window, spools it, sends it, forgets it when the ingestor has stored it.

Rules:
- nothing here is called by an inference, and nothing here is raised into the application once `start` has returned;
- a disk that fails is replaced by memory, with an epoch of its own, and taken back once memory is empty and the disk works;
- `state` is published, retained, at every connection; its Will says that the board is gone;
- `close` cuts the last window, commits it, and gives it a moment to arrive where there is a connection.

    about = About("porch-1", "digits", "1", "9f3c..", "raspberry-pi-4")
    reporter = Reporter(meter, about, TelemetryOptions("mqtt://host", "porch-1"))
    reporter.start()
    reporter.close()
"""

from __future__ import annotations

import hashlib
import json
import logging
import numbers
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from edgekit_runtime.board import state_dir
from edgekit_runtime.errors import TelemetryError, WindowError
from edgekit_runtime.options import check_path
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.telemetry.flow import Flow
from edgekit_runtime.telemetry.link import CONNECT_TIMEOUT_S, Broker, Handlers, Link, Will
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.spool import Spool
from edgekit_runtime.telemetry.system import Board, clock_is_set, hardware
from edgekit_runtime.telemetry.window import About, Report, Seal, device_id, encode, sealed
from edgekit_runtime.threads import begin

__all__ = ["ROOT", "Reporter", "TelemetryOptions", "TelemetryStats"]

ROOT = "ek/v1"
_LOG = logging.getLogger("edgekit_runtime.telemetry")
_RETRY_DISK_WINDOWS = 10
_MOST_ACK_BYTES = 4096
_MOST_WILL_DELAY_S = 30


@dataclass(frozen=True)
class TelemetryOptions:
    """Where a model reports to. Raises TelemetryError, and OptionError for a spool that is no path.

    broker: mqtt(s)://[user:password@]host[:port].
    device: this board's id, 3 to 63 of a-z, 0-9 and -; every board needs its own.
    window_s: seconds between two reports, 0.1 to 86,400.
    spool: file that keeps reports until they are confirmed; None for telemetry/DEVICE.db in the state folder.
    most_wait_s: longest pause between two attempts to connect, seconds.
    """

    broker: str = field(repr=False)  # it may hold a password
    device: str
    window_s: float = 60.0
    spool: str | os.PathLike[str] | None = None
    most_wait_s: float = 120.0

    def __post_init__(self) -> None:
        Broker.parse(self.broker)
        if not self.device:
            name = "a name of its own for each board"
            raise TelemetryError(
                "telemetry needs a device id",
                do=f"Pass device='porch-1', {name}",
                do_cli=f"Pass --device porch-1, {name}",
            )
        try:
            device_id(self.device)
        except WindowError as error:
            raise TelemetryError(error.what, do="Pass something like 'porch-1'") from error
        if not isinstance(self.window_s, numbers.Real) or not 0.1 <= self.window_s <= 86_400:
            raise TelemetryError(
                f"a window of {self.window_s!r:.40} seconds is out of range", do="Pass 0.1 to 86400; 60 is usual"
            )
        if self.spool is not None:
            check_path("spool", self.spool, "TelemetryOptions")

    @property
    def file(self) -> Path:
        """The spool's path."""
        return state_dir() / "telemetry" / f"{self.device}.db" if self.spool is None else Path(self.spool)


@dataclass(frozen=True)
class TelemetryStats:
    """connected: to the broker, now. trouble: the last thing that went wrong, one word, empty while all is well.

    troubles: how often each. windows: cut so far. sent: handed to the broker, again and again where needed. waiting:
    not yet confirmed by the ingestor. dropped: given up since the spool was made. on_disk: False while memory stands in.
    """

    connected: bool
    trouble: str
    troubles: dict[str, int]
    windows: int
    sent: int
    waiting: int
    dropped: int
    on_disk: bool


class Reporter:
    """Owned by a Model. `start` once, `close` once."""

    def __init__(self, meter: Meter, about: About, options: TelemetryOptions) -> None:
        self._meter, self._about, self._window_s = meter, about, float(options.window_s)
        self._file = options.file
        self._board = Board(self._file.parent)
        self._topic = f"{ROOT}/{about.device}"
        self._flow = Flow()
        self._stopping = threading.Event()
        self._give_up_at = 0.0
        self._thread = threading.Thread(target=self._work, name=f"edgekit-telemetry-{about.device}", daemon=True)
        self._spool: Spool | None = None
        self._disk_trouble = ""
        self._retry_at = 0
        self._windows = self._sent = self._waiting = self._faults = 0
        self._began = (time.time(), time.monotonic())
        self._link = Link(
            Broker.parse(options.broker),
            about.device,
            Handlers(self._up, self._message, self._will),
            (f"{self._topic}/ack",),
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
        return TelemetryStats(
            connected=link.connected,
            trouble=link.trouble or ("disk" if self._disk_trouble else ""),
            troubles=troubles,
            windows=self._windows,
            sent=self._sent,
            waiting=self._waiting,
            dropped=spool.dropped if spool is not None else 0,
            on_disk=spool is not None and spool.path is not None,
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """Commit the last window and wait at most `timeout_s` for its confirmation. Idempotent, never raises."""
        if not self._stopping.is_set():
            self._give_up_at = time.monotonic() + timeout_s
            self._stopping.set()
            self._link.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s + CONNECT_TIMEOUT_S + 1.0)  # it may be waiting for a connection just now

    # The thread.

    def _work(self) -> None:
        cut_at = time.monotonic() + self._window_s * _share(self._about.device)
        while not self._stopping.is_set():
            try:
                now, _ = time.monotonic(), self._spooled
                if now >= cut_at:
                    self._cut()
                    cut_at = max(cut_at + self._window_s, now)
                self._send()
                due = self._flow.due_s(now) if self._link.connected else None
                self._link.step(min(cut_at - now, due if due is not None else cut_at - now))
            except Exception:  # noqa: BLE001 - the application must never hear of it
                self._fault()
        try:
            self._cut()
            self._farewell()
        except Exception:  # noqa: BLE001
            self._fault()
        self._link.close()
        if self._spool is not None:
            self._spool.close()

    def _fault(self) -> None:
        """Something nobody thought of: told once in the log, and the next try a second later."""
        self._faults += 1
        if self._faults == 1:
            _LOG.exception("telemetry of %s stumbled; inferences are not affected", self._about.device)
        self._stopping.wait(1.0)

    def _farewell(self) -> None:
        """Let what is spooled arrive, if it can, and say that the board leaves of its own will."""
        while time.monotonic() < self._give_up_at and (self._link.connected or not self._link.trouble):
            self._send()
            if self._link.connected and not self._spooled.after(0, 1):
                break
            self._link.step(max(0.0, min(0.2, self._give_up_at - time.monotonic())))
        self._link.publish(f"{self._topic}/state", self._state(on=False), retain=True)
        while self._link.unsent and time.monotonic() < self._give_up_at:
            self._link.step(0.05)

    def _cut(self) -> None:
        """One window: what was counted since the last one."""
        wall, monotonic = self._began
        self._began = (time.time(), time.monotonic())
        counted = self._meter.cut()
        report = Report(
            about=self._about,
            boot=self._spooled.boot,
            t0_ms=max(0, int(wall * 1e3)),
            dur_ms=max(1, round((self._began[1] - monotonic) * 1e3)),
            clock_ok=clock_is_set(),
            errors=sum(counted.errors.values()),
            over_budget=counted.over_budget,
            latency=counted.answers,
            system=self._board.read(),
        )
        self._commit(encode(report))
        self._windows += 1

    def _send(self) -> None:
        if not self._link.connected:
            return
        spool, now = self._spooled, time.monotonic()
        start, room = self._flow.room(now)
        windows = spool.after(start, room) if room else []
        if not windows:
            return
        n, size = spool.waiting()
        floor, self._waiting = spool.floor, n
        for seq, body in windows:
            payload = sealed(body, Seal(spool.epoch, seq, floor, spool.dropped, n, size))
            if not self._link.publish(f"{self._topic}/m", payload):
                break
            self._flow.sent(seq, now)
            self._sent += 1

    # The spool: on disk, or in memory while the disk fails.

    @property
    def _spooled(self) -> Spool:
        if self._spool is None:
            self._open_spool()
        assert self._spool is not None
        return self._spool

    def _open_spool(self) -> None:
        try:
            self._spool = Spool.open(self._file)
            self._disk_trouble = ""
        except TelemetryError as error:
            self._to_memory(error)

    def _to_memory(self, error: TelemetryError) -> None:
        if not self._disk_trouble:
            _LOG.warning("telemetry of %s is kept in memory: %s", self._about.device, error)
        self._disk_trouble = str(error)
        self._retry_at = self._windows + _RETRY_DISK_WINDOWS
        if self._spool is not None:
            self._spool.close()
        self._spool = Spool.in_memory()
        self._flow.forget()

    def _commit(self, body: bytes) -> None:
        spool = self._spooled
        if self._disk_trouble and self._windows >= self._retry_at and not spool.after(0, 1):
            self._back_to_disk()
        try:
            self._spooled.append(body)
        except TelemetryError as error:
            self._to_memory(error)
            self._spooled.append(body)
            self._link.reconnect()
        self._waiting += 1

    def _back_to_disk(self) -> None:
        self._retry_at = self._windows + _RETRY_DISK_WINDOWS
        try:
            disk = Spool.open(self._file)
        except TelemetryError:
            return
        self._spooled.close()
        self._spool, self._disk_trouble = disk, ""
        self._flow.forget()
        self._link.reconnect()

    # What the link calls.

    def _up(self) -> None:
        self._flow.begin()
        self._link.publish(f"{self._topic}/state", self._state(on=True), retain=True)

    def _will(self) -> Will:
        delay = min(_MOST_WILL_DELAY_S, int(self._window_s / 2))
        return Will(f"{self._topic}/state", self._state(on=False), delay)

    def _state(self, *, on: bool) -> bytes:
        spool, about = self._spooled, self._about
        value: dict[str, object] = {"on": int(on), "epoch": spool.epoch, "boot": spool.boot}
        if on:
            value |= {
                "sw": _software(), "model": about.model[:64], "ver": about.version[:64], "sha": about.sha[:12],
                "profile": about.profile[:64], "hw": hardware(), "sla": about.budget_ms, "win": self._window_s,
            }  # fmt: skip
        return json.dumps(value, separators=(",", ":")).encode()

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        """An acknowledgement: everything up to hwm of this epoch is stored. Anything else is ignored."""
        try:
            value = load_json(payload) if len(payload) <= _MOST_ACK_BYTES else {}
            epoch, mark = value["epoch"], value["hwm"]
        except (ValueError, TypeError, KeyError):
            return
        spool = self._spooled
        if topic != f"{self._topic}/ack" or epoch != spool.epoch or not isinstance(mark, int) or isinstance(mark, bool):
            return
        if mark > spool.last:  # the file is an older copy of itself, put back
            spool.new_epoch()
            self._flow.forget()
            self._link.reconnect()
            return
        spool.forget(mark)
        self._flow.confirmed(mark, time.monotonic())
        self._waiting = max(0, spool.last - mark)


def _share(device: str) -> float:
    """Which part of a window to wait for the first cut: boards that start together do not report together."""
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:4], "big") / 2.0**32


def _software() -> str:
    import importlib.metadata

    try:
        return "edgekit " + importlib.metadata.version("edgekit-deploy")
    except importlib.metadata.PackageNotFoundError:
        return "edgekit"

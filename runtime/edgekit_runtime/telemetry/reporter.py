"""The one thread that reports: cuts a window, spools it, sends it, forgets it when the ingestor has stored it.

    about = About("porch-1", "digits", "1", "9f3c..", "raspberry-pi-4")
    reporter = Reporter(meter, about, TelemetryOptions("mqtt://host", "porch-1"))
    reporter.start()
    reporter.close()

Rules:
- nothing here is called by an inference, and nothing here is raised into the application once `start` has returned;
- a disk that fails is replaced by memory, with an epoch of its own, and taken back once memory is empty and the disk
  works;
- `state` is published, retained, at every connection; its Will says that the board is gone;
- `close` cuts the last window, commits it, and gives it a moment to arrive where there is a connection.
"""

from __future__ import annotations

import hashlib
import json
import logging
import numbers
import os
import platform
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
from edgekit_runtime.telemetry.window import About, Report, Seal, System, device_id, encode, sealed
from edgekit_runtime.threads import begin

__all__ = ["ROOT", "Board", "Reporter", "TelemetryOptions", "TelemetryStats", "clock_is_set", "hardware"]

_NOT_BEFORE_S = 1_735_689_600  # 2025-01-01: no board that runs this can be older
_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
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
    most_wait_s: longest pause between two attempts to connect, 0.1 to 86,400 seconds.
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
        for what, seconds, usual in (("window", self.window_s, 60), ("pause", self.most_wait_s, 120)):
            if not isinstance(seconds, numbers.Real) or not 0.1 <= seconds <= 86_400:
                do = f"Pass 0.1 to 86400; {usual} is usual"
                raise TelemetryError(f"a {what} of {seconds!r:.40} seconds is out of range", do=do)
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
    not yet confirmed by the ingestor. dropped: given up since the spool was made. on_disk: False while memory stands
    in.
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
        # boards that start together do not report together: each waits for a part of its first window
        share = int.from_bytes(hashlib.sha256(self._about.device.encode()).digest()[:4], "big") / 2.0**32
        cut_at = time.monotonic() + self._window_s * share
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
                self._flow.forget()
                self._link.reconnect()
        try:
            self._spooled.append(body)
        except TelemetryError as error:
            self._to_memory(error)
            self._spooled.append(body)
            self._link.reconnect()
        self._waiting += 1

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


class Board:
    """The board itself, as the kernel shows it: busy cores, memory, temperature, throttling, free disk.

    Every figure is a small read of /proc or /sys and is None where there is none (another system, a container, no
    sensor).
    folder: whose file system's free space is told. root: where /proc and /sys are."""

    def __init__(self, folder: Path | None, root: Path = Path("/")) -> None:
        self._folder, self._root = folder, root
        self._busy = self._cpu()

    def read(self) -> System:
        """cpu: since the last read, or since this was made."""
        return System(
            cpu=self._cpu_share(),
            mem=self._memory(),
            temp=self._temperature(),
            thr=self._throttled(),
            disk=self._disk(),
        )

    def _lines(self, path: str) -> list[str]:
        try:
            return (self._root / path.lstrip("/")).read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return []

    def _cpu(self) -> tuple[int, int] | None:
        """(busy, all) jiffies over all cores. Idle and waiting for the disk are not busy."""
        for line in self._lines("/proc/stat"):
            if line.startswith("cpu "):
                times = [int(part) for part in line.split()[1:9]]
                return sum(times) - times[3] - times[4], sum(times)
        return None

    def _cpu_share(self) -> float | None:
        before, self._busy = self._busy, self._cpu()
        if before is None or self._busy is None or self._busy[1] <= before[1]:
            return None
        share = 100.0 * (self._busy[0] - before[0]) / (self._busy[1] - before[1])
        return round(min(100.0, max(0.0, share)), 1)

    def _memory(self) -> float | None:
        found = {}
        for line in self._lines("/proc/meminfo")[:8]:
            name, _, value = line.partition(":")
            found[name] = value.split()[0] if value.split() else ""
        try:
            return round(100.0 * (1.0 - int(found["MemAvailable"]) / int(found["MemTotal"])), 1)
        except (KeyError, ValueError, ZeroDivisionError):
            return None

    def _temperature(self) -> float | None:
        """The hottest of the thermal zones."""
        found = []
        for zone in range(8):
            for line in self._lines(f"/sys/class/thermal/thermal_zone{zone}/temp")[:1]:
                if line.lstrip("-").isdigit() and -100_000 < int(line) < 200_000:
                    found.append(int(line) / 1000.0)
        return round(max(found), 1) if found else None

    def _throttled(self) -> int | None:
        """The Raspberry Pi firmware's bits: 0 for never and not now."""
        try:
            return int(self._lines(_THROTTLED)[0], 16)
        except (IndexError, ValueError):
            return None

    def _disk(self) -> int | None:
        if self._folder is None or not hasattr(os, "statvfs"):
            return None
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return None
        return int(found.f_bavail * found.f_frsize // 2**20)


def clock_is_set(wall_s: float | None = None, root: Path = Path("/")) -> bool:
    """Whether the wall clock is to be believed.

    It is after 2025, and, where systemd keeps it, synchronised since the start.
    """
    now = time.time() if wall_s is None else wall_s
    sync = root / "run/systemd/timesync"
    return now >= _NOT_BEFORE_S and (not sync.is_dir() or (sync / "synchronized").exists())


def hardware(root: Path = Path("/")) -> str:
    """What the board calls itself, or the processor's architecture."""
    try:
        name = (root / "proc/device-tree/model").read_bytes().split(b"\0")[0].decode("utf-8", "replace").strip()
    except OSError:
        name = ""
    return (name or platform.machine())[:64]


def _software() -> str:
    import importlib.metadata

    try:
        return "edgekit " + importlib.metadata.version("edgekit-deploy")
    except importlib.metadata.PackageNotFoundError:
        return "edgekit"

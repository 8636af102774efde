"""The board's load, memory, temperature, free disk, name, and clock status.

    board = Board(Path("/var/lib/edgekit"))
    board.read()                # System(cpu=31.5, mem=44.0, temp=58.4, thr=0, disk=20111)
    hardware()                  # "Raspberry Pi 4 Model B Rev 1.4"

Rule: each figure is a small read of /proc or /sys, and None if absent; nothing here raises.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

from edgekit_runtime.system.board import proc_kilobytes
from edgekit_runtime.telemetry.window import System

_NOT_BEFORE_S = 1_735_689_600  # 2025-01-01: no board that runs this can be older
_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
THROTTLING = ("under-voltage", "frequency capped", "throttled", "soft temperature limit")
"""What the Raspberry Pi firmware's lowest bits mean now; 16 bits higher: since the start.
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled"""


class Board:
    """folder: report the free space of its file system.
    root: where /proc and /sys are.
    """

    def __init__(self, folder: Path | None, root: Path = Path("/")) -> None:
        self._folder, self._root = folder, root
        self._busy = jiffies(root)

    def read(self) -> System:
        """cpu: since the last read, or since this was made."""
        zones = (self._root / f"sys/class/thermal/thermal_zone{zone}/temp" for zone in range(8))
        return System(self._cpu_share(), self._memory(), hottest_c(zones), throttled_bits(self._root), self._disk())

    def _cpu_share(self) -> float | None:
        before, self._busy = self._busy, jiffies(self._root)
        if before is None or self._busy is None or self._busy[1] <= before[1]:
            return None
        share = 100.0 * (self._busy[0] - before[0]) / (self._busy[1] - before[1])
        return round(min(100.0, max(0.0, share)), 1)

    def _memory(self) -> float | None:
        file = self._root / "proc/meminfo"
        free, total = proc_kilobytes("MemAvailable", file), proc_kilobytes("MemTotal", file)
        return round(100.0 * (1.0 - free / total), 1) if free is not None and total else None

    def _disk(self) -> int | None:
        if self._folder is None or not hasattr(os, "statvfs"):
            return None
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return None
        return int(found.f_bavail * found.f_frsize // 2**20)


def read_lines(file: Path) -> list[str]:
    """Lines of a small file of the system; none if it cannot be read."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def jiffies(root: Path) -> tuple[int, int] | None:
    """(busy, all) over all cores since the start; idle and iowait are not busy."""
    for line in read_lines(root / "proc/stat"):
        if line.startswith("cpu "):
            times = [int(part) for part in line.split()[1:9]]
            return sum(times) - times[3] - times[4], sum(times)
    return None


def hottest_c(sensors: Iterable[Path]) -> float | None:
    """The highest plausible temperature of sensors that give thousandths of a degree."""
    lines = (line.strip() for file in sensors for line in read_lines(file)[:1])
    found = [int(line) / 1000.0 for line in lines if line.lstrip("-").isdigit()]
    near = [celsius for celsius in found if -100.0 < celsius < 200.0]
    return round(max(near), 1) if near else None


def throttled_bits(root: Path) -> int | None:
    """The Raspberry Pi firmware's bits: 0 for never and not now."""
    try:
        return int(read_lines(root / _THROTTLED)[0], 16)
    except (IndexError, ValueError):
        return None


def clock_is_set(wall_s: float | None = None, root: Path = Path("/")) -> bool:
    """Whether the wall clock is after 2025 and, if systemd keeps it, synchronised."""
    now = time.time() if wall_s is None else wall_s
    sync = root / "run/systemd/timesync"
    return now >= _NOT_BEFORE_S and (not sync.is_dir() or (sync / "synchronized").exists())


def hardware(root: Path = Path("/")) -> str:
    """The board's model name, or the CPU architecture."""
    try:
        name = (root / "proc/device-tree/model").read_bytes().split(b"\0")[0].decode("utf-8", "replace").strip()
    except OSError:
        name = ""
    return (name or platform.machine())[:64]

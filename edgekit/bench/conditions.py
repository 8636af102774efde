"""The machine under a benchmark, and how it changed while something was timed.

    with MachineObserver() as observed:
        ...                                 # what is timed
    conditions() | {"during": observed.figures()}

Rules:
- every figure is a small read of /proc or /sys (or vcgencmd of a Raspberry Pi, before and after), None if unknown;
- the board's own description identifies it;
- what varies is read before, after, and every half second between;
- throttled means during the run, not since the start of the machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.strict_json import from_json
from edgekit_runtime.telemetry.board_state import THROTTLING, hottest_c, jiffies, read_lines, throttled_bits

if TYPE_CHECKING:
    from edgekit_profiles.facts import BoardFacts

EVERY_S = 0.5
LEAST_S = 0.5
"""Least run that measures other processes: the system counts in hundredths of a second."""
_CPU = "sys/devices/system/cpu"


def conditions(root: Path = Path("/")) -> dict[str, Any]:
    """The conditions of a run, to compare it: processor, load, clock, versions."""
    now, kinds = read(root), ("model name", "Model")
    lines = read_lines(root / "proc/cpuinfo")
    governor = read_lines(root / _CPU / "cpu0/cpufreq/scaling_governor")
    named = [line.split(":", 1)[1].strip() for line in lines if line.split("\t")[0].strip() in kinds]
    return {
        "cpu": named[-1] if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "governor": governor[0].strip() if governor else None,
        "frequency_mhz": now.frequency_mhz,
        "temperature_c": now.temperature_c,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "board": board(root),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def board(root: Path = Path("/")) -> dict[str, Any]:
    """The board's own description: device tree, user land, cores."""
    from edgekit_profiles.facts import read_facts

    facts = read_facts(None if root == Path("/") else root)
    return {
        "model": facts.model,
        "compatible": list(facts.compatible),
        "machine": facts.machine,
        "cores": [asdict(cluster) for cluster in facts.clusters],
    }


def facts_of(record: object) -> BoardFacts | None:
    """The facts in what `board` returned; None for anything else."""
    from edgekit_profiles.facts import BoardFacts

    if not isinstance(record, dict):
        return None
    try:
        found = from_json(BoardFacts, {**record, "clusters": record["cores"]}, "the board", nulls=True)
    except (KeyError, BundleError):
        return None
    return found if found.model or found.compatible or found.clusters else None


@dataclass(frozen=True)
class MachineReading:
    """The machine at one moment.

    at_s: monotonic
    frequency_mhz: mean over the cores
    temperature_c: the hottest sensor
    bits: the Raspberry Pi firmware's throttling bits
    trips: how often the cores have throttled themselves since the start
    busy_s, own_s: processor time of all processes; of this one and its children
    """

    at_s: float
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    bits: int | None = None
    trips: int | None = None
    busy_s: float | None = None
    own_s: float = 0.0


def read(root: Path = Path("/"), *, small: bool = False) -> MachineReading:
    """The machine now. small: read files alone, to not disturb what is timed."""
    frequencies = _numbers(root / _CPU, "cpu[0-9]*/cpufreq/scaling_cur_freq")
    trips = _numbers(root / _CPU, "cpu[0-9]*/thermal_throttle/*_throttle_count")
    heat = hottest_c(_files(root / "sys/class/thermal", "thermal_zone*/temp"))
    heat = hottest_c(_files(root / "sys/class/hwmon", "hwmon*/temp*_input")) if heat is None else heat
    times, busy = os.times(), jiffies(root)
    return MachineReading(
        at_s=monotonic(),
        frequency_mhz=round(sum(frequencies) / len(frequencies) / 1e3) if frequencies else None,
        temperature_c=heat,
        bits=_firmware_bits(root, small),
        trips=sum(trips) if trips else None,
        busy_s=busy[0] / os.sysconf("SC_CLK_TCK") if busy is not None and hasattr(os, "sysconf") else None,
        own_s=times.user + times.system + times.children_user + times.children_system,
    )


def figures(readings: Sequence[MachineReading], cores: int) -> dict[str, Any]:
    """How the machine changed from the first reading to the last; None if unknown.

    others_cpu: share of all cores that other processes took, 0 to 1; None for less than LEAST_S seconds
    """
    first, last = readings[0], readings[-1]
    seconds = max(last.at_s - first.at_s, 1e-9)
    clock = [r.frequency_mhz for r in readings if r.frequency_mhz is not None]
    heat = [r.temperature_c for r in readings if r.temperature_c is not None]
    others = None
    if first.busy_s is not None and last.busy_s is not None and seconds >= LEAST_S:
        used = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
        others = round(min(1.0, max(0.0, used / (seconds * cores))), 2)
    words = throttle_words(readings)
    return {
        "seconds": round(seconds, 2),
        "frequency_mhz": {"min": min(clock), "mean": round(sum(clock) / len(clock)), "max": max(clock)}
        if clock
        else None,
        "temperature_c": {"before": heat[0], "after": heat[-1], "max": max(heat)} if heat else None,
        "others_cpu": others,
        "throttled": None if words is None else bool(words),
        "throttled_by": words or [],
    }


def throttle_words(readings: Sequence[MachineReading]) -> list[str] | None:
    """Why the machine was slowed down between the first reading and the last; None if unknown."""
    first, last = readings[0], readings[-1]
    known = [r.bits for r in readings if r.bits is not None]
    if not known and (first.trips is None or last.trips is None):
        return None
    words = []
    for bit, word in enumerate(THROTTLING):
        came = known and (known[-1] >> 16 + bit) & 1 and not (known[0] >> 16 + bit) & 1
        if came or any((bits >> bit) & 1 for bits in known):
            words.append(word)
    if first.trips is not None and last.trips is not None and last.trips > first.trips:
        words.append("thermal")
    return words


class MachineObserver:
    """Reads the machine before, after, and now and then between."""

    def __init__(self, root: Path = Path("/"), every_s: float = EVERY_S) -> None:
        self._root, self._every_s = root, every_s
        self._readings: list[MachineReading] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="edgekit-bench-conditions", daemon=True)

    def figures(self) -> dict[str, Any]:
        """Call it after the block has ended."""
        return figures(self._readings, os.cpu_count() or 1)

    def __enter__(self) -> MachineObserver:
        self._readings.append(read(self._root))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._readings.append(read(self._root))

    def _look(self) -> None:
        while not self._over.wait(self._every_s):
            self._readings.append(read(self._root, small=True))


def _firmware_bits(root: Path, small: bool) -> int | None:
    """Of a Raspberry Pi, from its file or its command."""
    bits = throttled_bits(root)
    if bits is None and not small and root == Path("/") and (command := shutil.which("vcgencmd")):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
            done = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=2, check=False)
            return int(done.stdout.strip().removeprefix("throttled="), 16)
    return bits


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def _numbers(folder: Path, pattern: str) -> list[int]:
    lines = (line.strip() for file in _files(folder, pattern) for line in read_lines(file)[:1])
    return [int(line) for line in lines if line.lstrip("-").isdigit()]

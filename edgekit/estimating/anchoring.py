"""MobileNetV1 timed on this very board, with every engine that is installed, while the board is watched.

    found = measure_anchors(Path("anchors"), Plan(threads=(4,)))
    found["times"][0]["p50_ms"], found["steady"]            # what an anchor file holds

Rules:
- nothing is needed but the runtime and an engine: the network's files come with the board's package;
- three runs to warm up, then thirty, or as many as three seconds hold and at least five: the best, the median, the 95th
  percentile;
- clock, governor, throttling, temperature and power mode are read before and after; a run during which the board slowed
  down, or changed its mode, or shared its cores, says so, and the workstation then refuses the file;
- what one engine cannot do costs the others nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edgekit.bench.conditions import Observed, conditions
from edgekit_converters.zoo.mobilenet_v1 import ANCHOR_SIDE, anchor_model, anchor_name
from edgekit_profiles import AnchorError
from edgekit_profiles.anchor_file import FORMAT
from edgekit_profiles.anchors import ANCHOR_MODEL
from edgekit_runtime.engines import ENGINES, available, load_engine
from edgekit_runtime.errors import EdgekitError, MissingExtraError

__all__ = ["Plan", "changed", "measure_anchors", "power_mode"]

WARM_UP, RUNS, LEAST_RUNS, ENOUGH_S = 3, 30, 5, 3.0
OTHERS = 0.2
"""The share of the cores that other processes may take."""
HELD = 0.05
"""By how much the clock may vary while it runs."""
_MODES = ("etc/nvpmodel/nvp_status", "var/lib/nvpmodel/status")
"""Where a Jetson keeps the number of its power mode."""


@dataclass(frozen=True)
class Plan:
    """threads: numbers of threads to time, each. profile: the board's name, empty where nobody knows it. root: for tests."""

    threads: tuple[int, ...]
    profile: str = ""
    model: str = ""
    root: Path = Path("/")
    clock: Callable[[], float] = perf_counter


def measure_anchors(folder: Path | None, plan: Plan, told: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """What an anchor file holds. folder: the network's files; None to make them here, where what writes them is installed.

    Raises AnchorError where no engine can be timed.
    """
    engines = available()
    if not engines:
        raise MissingExtraError("litert", "timing MobileNetV1")
    before = _state(plan.root)
    times: list[dict[str, Any]] = []
    failed: list[str] = []
    with Observed(plan.root) as observed:
        for engine in engines:
            for precision in ("float32", "int8"):
                for threads in plan.threads:
                    told(f"{engine} {precision}, {threads} thread{'s' * (threads > 1)}")
                    try:
                        times.append(_timed(folder, (engine, precision, threads), plan.clock))
                    except EdgekitError as error:
                        where = f"{error.where}: " if isinstance(error, AnchorError) and error.where else ""
                        failed.append(f"{engine} {precision}: {where}{error.what}")
                        break
    after = _state(plan.root)
    if not times:
        raise AnchorError(
            f"no engine could be timed: {'; '.join(failed)}",
            do="Pass the folder with the network's files, which is in the board's package: --anchors DIR",
        )
    during = observed.figures()
    clock_ghz = _clock_ghz(during, before)
    reasons = changed(before, after, during)
    return {
        "edgekit_anchor": FORMAT,
        "network": ANCHOR_MODEL,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "board": {"profile": plan.profile or None, "model": plan.model, "machine": _machine()},
        "times": [{**one, "clock_ghz": clock_ghz} for one in times],
        "failed": failed,
        "steady": not reasons,
        "changed": reasons,
        "conditions": {**conditions(plan.root), "before": before, "after": after, "during": during},
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any], during: Mapping[str, Any]) -> list[str]:
    """Why the run is not what the board can do steadily, in words; empty where nothing says so. Pure."""
    found = [f"slowed down: {', '.join(during['throttled_by'])}"] if during.get("throttled") else []
    for name, words in (
        ("governor", "the governor"),
        ("power_mode", "the power mode"),
        ("limit_mhz", "the clock's limit"),
    ):
        if before.get(name) != after.get(name):
            found.append(f"{words} went from {before.get(name)} to {after.get(name)}")
    clock = during.get("frequency_mhz")
    if clock and clock["max"] and (clock["max"] - clock["min"]) / clock["max"] > HELD and not _sleeps(before):
        found.append(f"the clock varied between {clock['min']} and {clock['max']} MHz")
    others = during.get("others_cpu")
    if others is not None and others > OTHERS:
        found.append(f"other processes took {others:.0%} of the cores")
    return found


def power_mode(root: Path = Path("/")) -> str | None:
    """Of a Jetson, its number; None on other boards."""
    for place in _MODES:
        text = _text(root / place)
        if text:
            return text.splitlines()[0].strip()
    return None


def _sleeps(before: Mapping[str, Any]) -> bool:
    """Whether the clock falls by itself when a core has nothing to do, so that a slow reading means nothing."""
    return before.get("governor") in ("ondemand", "schedutil", "interactive", "conservative", "powersave")


def _state(root: Path) -> dict[str, Any]:
    limits = [
        int(t)
        for f in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_max_freq")
        if (t := _text(f)).isdigit()
    ]
    now = conditions(root)
    return {
        "governor": now["governor"],
        "frequency_mhz": now["frequency_mhz"],
        "limit_mhz": max(limits) // 1000 if limits else None,
        "temperature_c": now["temperature_c"],
        "power_mode": power_mode(root),
    }


def _clock_ghz(during: Mapping[str, Any], before: Mapping[str, Any]) -> float | None:
    """What the cores ran at: the most that was seen, since idle cores are in every mean; the limit where none was."""
    seen = (during.get("frequency_mhz") or {}).get("max") or before.get("limit_mhz")
    return round(seen / 1000, 3) if seen else None


def _timed(folder: Path | None, what: tuple[str, str, int], clock: Callable[[], float]) -> dict[str, Any]:
    name, precision, threads = what
    form = ENGINES[name].formats[0]
    data = _model(folder, form, precision)
    with load_engine(form, data, threads=threads, engine=name) as engine:
        item = _item(form, precision)
        for _ in range(WARM_UP):
            engine.run([item])
        seconds: list[float] = []
        start = clock()
        while len(seconds) < RUNS and (len(seconds) < LEAST_RUNS or clock() - start < ENOUGH_S):
            before = clock()
            engine.run([item])
            seconds.append(clock() - before)
        version = engine.info.version
    best, middle, high = (round(float(np.percentile(seconds, q)) * 1e3, 4) for q in (0, 50, 95))
    return {
        "engine": name,
        "engine_version": version,
        "precision": precision,
        "threads": threads,
        "runs": len(seconds),
        "min_ms": best,
        "p50_ms": middle,
        "p95_ms": high,
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _model(folder: Path | None, form: str, precision: str) -> bytes:
    if folder is None:
        return anchor_model(form, precision)
    path = folder / anchor_name(form, precision)
    try:
        return path.read_bytes()
    except OSError as error:
        raise AnchorError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _item(form: str, precision: str) -> np.ndarray[Any, Any]:
    shape = (1, ANCHOR_SIDE, ANCHOR_SIDE, 3) if form == "tflite" else (1, 3, ANCHOR_SIDE, ANCHOR_SIDE)
    random = np.random.default_rng(0)
    if form == "tflite" and precision == "int8":
        return random.integers(-128, 128, shape, dtype=np.int8)
    return (random.random(shape) * 2 - 1).astype(np.float32)


def _machine() -> str:
    """Of this user land: a 32-bit one on a 64-bit kernel is 32-bit."""
    from edgekit_profiles.facts import read_facts

    return read_facts().machine or platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def default_threads(cores: int | None = None) -> tuple[int, ...]:
    """One, and as many as engines are given: no more than four."""
    most = min(4, cores or os.cpu_count() or 1)
    return (most,) if most == 1 else (1, most)

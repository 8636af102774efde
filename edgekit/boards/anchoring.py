"""MobileNetV1 timings: of every engine on a board, and next to an artifact on a workstation.

    found = measure_anchors(Path("anchors"), MeasurePlan(threads=(4,)))
    found["times"][0]["p50_ms"], found["steady"]            # what an anchor file holds
    time_here([("tflite", data, "int8")])[0].ratio          # 1.8: with the board's MobileNetV1, what it will take there

Rules:
- a board needs only the runtime and an engine; one engine's failure does not affect the others;
- three runs to warm up, then thirty, or as many as fit into three seconds and at least five;
- the machine's state is read before and after; the workstation refuses a file of a board that slowed down, changed its
  power mode or shared its cores;
- a workstation times both in turn, one thread each, by the thread's processor time; the least counts;
- rounds continue until the two best of each agree; a machine too busy for that gets no result;
- a workstation times only what was tested: x86-64, LiteRT, float32 and int8.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.bench.conditions import MachineObserver, conditions
from edgekit_converters.zoo.mobilenet_v1 import ANCHOR_SIDE, FORMATS, anchor_model, anchor_name
from edgekit_profiles import AnchorError, CannotEstimateError, HostTimes
from edgekit_profiles.anchors import ANCHOR_MODEL, FORMAT
from edgekit_runtime.engines.registry import ENGINES, Engine, available, load_engine, on_gpu
from edgekit_runtime.system.errors import EdgekitError, MissingExtraError, install_command

WARM_UP, RUNS, LEAST_RUNS, ENOUGH_S = 3, 30, 5, 3.0
OTHERS = 0.2
"""Share of the cores that other processes may take."""
HELD = 0.05
"""By how much the clock may vary while it runs."""
_MODES = ("etc/nvpmodel/nvp_status", "var/lib/nvpmodel/status")
"""Files with the number of a Jetson's power mode."""


@dataclass(frozen=True)
class MeasurePlan:
    """threads: numbers of threads to time
    profile: the board's name, empty if unknown
    root: for tests
    """

    threads: tuple[int, ...]
    profile: str = ""
    model: str = ""
    root: Path = Path("/")
    clock: Callable[[], float] = perf_counter


def measure_anchors(
    folder: Path | None, plan: MeasurePlan, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """The content of an anchor file. Raises AnchorError if no engine can be timed.

    folder: the network's files; None to make them here
    """
    from edgekit_profiles.facts import read_facts

    engines = [name for name in available() if not on_gpu(name) and ENGINES[name].formats[0] in FORMATS]
    if not engines:
        raise MissingExtraError("litert", "timing MobileNetV1")
    before = _machine_state(plan.root)
    times: list[dict[str, Any]] = []
    failed: list[str] = []
    with MachineObserver(plan.root) as observed:
        for engine in engines:
            for precision in ("float32", "int8"):
                for threads in plan.threads:
                    say(f"{engine} {precision}, {threads} thread{'s' * (threads > 1)}")
                    try:
                        times.append(_time_engine(folder, (engine, precision, threads), plan.clock))
                    except EdgekitError as error:
                        where = f"{error.where}: " if isinstance(error, AnchorError) and error.where else ""
                        failed.append(f"{engine} {precision}: {where}{error.what}")
                        break
    after = _machine_state(plan.root)
    if not times:
        raise AnchorError(
            f"timing failed on every engine: {'; '.join(failed)}",
            do="Pass the folder with the network's files, which is in the board's package: --anchors DIR",
        )
    during = observed.figures()
    # The cores' clock: the most that was seen, since idle cores are in every mean; else the limit
    seen = (during.get("frequency_mhz") or {}).get("max") or before.get("limit_mhz")
    clock_ghz = round(seen / 1000, 3) if seen else None
    reasons = unsteady_reasons(before, after, during)
    machine = read_facts().machine or platform.machine()  # a 32-bit user land on a 64-bit kernel is 32-bit
    return {
        "edgekit_anchor": FORMAT,
        "network": ANCHOR_MODEL,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "board": {"profile": plan.profile or None, "model": plan.model, "machine": machine},
        "times": [{**one, "clock_ghz": clock_ghz} for one in times],
        "failed": failed,
        "steady": not reasons,
        "changed": reasons,
        "conditions": {**conditions(plan.root), "before": before, "after": after, "during": during},
    }


def unsteady_reasons(before: Mapping[str, Any], after: Mapping[str, Any], during: Mapping[str, Any]) -> list[str]:
    """Why the run is not what the board can do steadily, in words."""
    found = [f"slowed down: {', '.join(during['throttled_by'])}"] if during.get("throttled") else []
    named = {"governor": "the governor", "power_mode": "the power mode", "limit_mhz": "the clock's limit"}
    for name, words in named.items():
        if before.get(name) != after.get(name):
            found.append(f"{words} went from {before.get(name)} to {after.get(name)}")
    clock = during.get("frequency_mhz")
    # These governors slow down an idle core, so that a slow reading means nothing
    idles = before.get("governor") in ("ondemand", "schedutil", "interactive", "conservative", "powersave")
    if clock and clock["max"] and (clock["max"] - clock["min"]) / clock["max"] > HELD and not idles:
        found.append(f"the clock varied between {clock['min']} and {clock['max']} MHz")
    others = during.get("others_cpu")
    if others is not None and others > OTHERS:
        found.append(f"other processes took {others:.0%} of the cores")
    return found


def power_mode(root: Path = Path("/")) -> str | None:
    """The number of a Jetson's power mode; None on other boards."""
    for place in _MODES:
        text = _text(root / place)
        if text:
            return text.splitlines()[0].strip()
    return None


def _machine_state(root: Path) -> dict[str, Any]:
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


def _time_engine(folder: Path | None, what: tuple[str, str, int], clock: Callable[[], float]) -> dict[str, Any]:
    name, precision, threads = what
    form = ENGINES[name].formats[0]
    if folder is None:
        data = anchor_model(form, precision)
    else:
        path = folder / anchor_name(form, precision)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise AnchorError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    with load_engine(form, data, threads=threads, engine=name) as engine:
        shape = (1, ANCHOR_SIDE, ANCHOR_SIDE, 3) if form == "tflite" else (1, 3, ANCHOR_SIDE, ANCHOR_SIDE)
        random = np.random.default_rng(0)
        item: NDArray[Any] = (random.random(shape) * 2 - 1).astype(np.float32)
        if form == "tflite" and precision == "int8":
            item = random.integers(-128, 128, shape, dtype=np.int8)
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def default_threads(cores: int | None = None) -> tuple[int, ...]:
    """One, and the number of cores up to four."""
    most = min(4, cores or os.cpu_count() or 1)
    return (most,) if most == 1 else (1, most)


ENGINE = "litert"
_PRECISIONS = ("float32", "int8")
_WARM_UP, _LEAST_RUNS, _ROUND_S = 3, 4, 0.08
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 8
_AGREE, _AT_ALL = 1.05, 1.2
"""By how much the two best rounds may differ to be done, and to count after the last round."""

TimedArtifact = tuple[str, bytes, str]
"""format, bytes, precision"""


def can_time_here(format: str, precision: str) -> str:  # noqa: A002
    """Why this machine cannot time such an artifact for boards, or empty."""
    if format != "tflite" or precision not in _PRECISIONS:
        return f"ratios of {precision} {format} files were never tested"
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"ratios were tested on x86-64 only, and this is {platform.machine()}"
    if ENGINE not in available():
        return f"LiteRT is not installed here: {install_command('litert')}"
    return ""


def time_here(artifacts: Sequence[TimedArtifact], clock: Callable[[], float] = time.thread_time) -> list[HostTimes]:
    """The times of each artifact, in order; takes some third of a second each.

    Raises CannotEstimateError for a free input size or a busy machine, EngineError for a file that the engine refuses.
    """
    precisions = sorted({precision for _, _, precision in artifacts})
    references = [("tflite", anchor_model("tflite", precision), precision) for precision in precisions]
    with ExitStack() as stack:
        engines = [
            stack.enter_context(load_engine(form, data, engine=ENGINE)) for form, data, _ in (*references, *artifacts)
        ]
        least = _least_ms([_noise_run(one) for one in engines], clock)
        version = engines[0].info.version
    reference = dict(zip(precisions, least, strict=False))
    machine = f"{platform.node()} ({platform.machine()})"
    return [
        HostTimes(round(ms, 4), round(reference[precision], 4), ENGINE, version, machine)
        for (_, _, precision), ms in zip(artifacts, least[len(references) :], strict=True)
    ]


def _least_ms(runs: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    for run in runs:
        for _ in range(_WARM_UP):
            run()
    rounds: list[list[float]] = [[] for _ in runs]
    for number in range(_MOST_ROUNDS):
        for run, found in zip(runs, rounds, strict=True):
            start, least, count = clock(), float("inf"), 0
            while count < _LEAST_RUNS or clock() - start < _ROUND_S:
                before = clock()
                run()
                least = min(least, clock() - before)
                count += 1
            found.append(least)
        if number + 1 >= _LEAST_ROUNDS and all(_agree(found, _AGREE) for found in rounds):
            break
    if not all(_agree(found, _AT_ALL) for found in rounds):
        raise CannotEstimateError("this machine is too busy for timings", do="Try again when it is idle")
    return [min(found) * 1e3 for found in rounds]


def _agree(found: Sequence[float], within: float) -> bool:
    best, second = sorted(found)[:2]
    return 0.0 < second <= within * best  # a run within one tick of the clock has no time


def _noise_run(engine: Engine) -> Callable[[], object]:
    """Run one item of noise; zeros for whole numbers, which may index a table."""
    random = np.random.default_rng(0)
    inputs: list[NDArray[Any]] = []
    for spec in engine.inputs:
        shape = (1, *spec.shape[1:]) if spec.free_batch else spec.shape
        if any(side < 1 for side in shape):
            what = f"the size of its input '{spec.name}' is free, {list(spec.shape)}"
            raise CannotEstimateError(what, do="Fix it when the model is built: edgekit build --shape")
        if spec.dtype.startswith("float"):
            inputs.append((random.random(shape) * 2 - 1).astype(spec.dtype))
        elif spec.dtype in ("int8", "uint8"):
            inputs.append(random.integers(0, 127, shape).astype(spec.dtype))
        else:
            inputs.append(np.zeros(shape, spec.dtype))
    return lambda: engine.run(inputs)

"""Measure a bundle under a load, and its cold start, as `edgekit bench --json` prints them.

    found = measure(Path("digits.ekb"), BenchSetup(threads=1), Load(requests=500))
    found["p50_ms"], found["stages_ms"]["engine"], found["conditions"]["during"]["throttled"]
    cold_start(Path("digits.ekb"), {"threads": 1}).start_ms         # 420.0, in a process of its own

Rules:
- opening and the first answer are figures of their own;
- the inputs are the bundle's golden ones, in turn;
- figures for comparisons have a spread: the range over up to ten parts of the run without the best and the worst;
- a start counts from the request for its process until the model is ready, Python's start and imports included;
- the first open also tests and tunes the bundle; it is reported by itself, and the start is measured again;
- if no process can be started, as under emulation, a start has no figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.bench.conditions import MachineObserver, conditions
from edgekit.bench.load_generator import Load, LoadOutcome, ask
from edgekit.packaging.model_file import bundle_file
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.bundle.jobs import ask as ask_child
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import Secret, find_secret
from edgekit_runtime.system.board import peak_mb, resident_mb, state_dir
from edgekit_runtime.system.children import python_code
from edgekit_runtime.system.errors import BundleError

PARTS, LEAST_PARTS = 10, 4


@dataclass(frozen=True)
class BenchSetup:
    """Options of `open_bundle`, None for its defaults.
    engines: record every candidate of this machine."""

    engine: str | None = None
    threads: int | None = None
    cache: bool = False
    batching: bool | None = None
    secret: str | None = None
    trust: Sequence[Path] = ()
    allow_unsigned: bool = False
    pin: Literal["primary"] | None = None
    engines: bool = False


def measure(
    path: Path, setup: BenchSetup | None = None, load: Load | None = None, *, progress: Progress = silent
) -> dict[str, Any]:
    """Milliseconds, megabytes (1e6 bytes) or None; percentiles without the first answer.

    path: a bundle, or an install root
    Raises what `open_bundle` raises; errors of single requests are counted.
    """
    setup, load = setup or BenchSetup(), load or Load()
    with bundle_file(path) as file:
        bundle = read_bundle(file, secret=setup.secret or find_secret)
    items = golden_inputs(bundle)
    if load.least_s and bundle.manifest.contract.task == "generation":  # each takes as long as its tokens
        load = replace(load, requests=20)
    names = ("engine", "threads", "cache", "allow_unsigned", "pin")
    given = {name: getattr(setup, name) for name in names} | {"trust": [str(one) for one in setup.trust]}
    cold = cold_start(path, given, bundle.secret, batching=setup.batching)
    before_mb = resident_mb()
    limits, start = ModelLimits(batching=setup.batching), perf_counter()
    with open_bundle(path, secret=bundle.secret, limits=limits, settled=True, **given) as model:
        ready_ms, ready_mb = (perf_counter() - start) * 1e3, resident_mb()
        first = (model if model.contract.state == "none" else model.session()).predict(items[0])
        with MachineObserver() as observed:
            outcome = ask(model, items, load, progress)
        described, counted = model.describe(), model.stats()
    # SHA-256 of the file that answered, which ties the record to an artifact
    own = (e.blob for e in bundle.manifest.artifacts if e.recipe == described["recipe"] and e.role != "batch")
    return {
        "bundle": str(path),
        "model": bundle.manifest.name,
        "contract_digest": bundle.manifest.contract_digest,
        "profile": bundle.manifest.target.profile,
        "bundle_digest": bundle.digest,
        "artifact_sha256": next(own, None),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "engine_version": described["engine"]["version"],
        "threads": described["engine"]["threads"],
        **({"engines": described["tuning"]} if setup.engines else {}),
        **_figures(outcome),
        "first_ms": first.timings["total"],
        "ready_ms": ready_ms,
        "cold_start_ms": cold.start_ms,
        "first_open_ms": cold.first_ms,
        "cold_rss_mb": cold.rss_mb,
        "rss_mb": {"before": before_mb, "ready": ready_mb, "after": resident_mb()},
        "peak_rss_mb": peak_mb(),
        "max_batch": counted.max_batch,
        "load": load_words(load) | {"cache": setup.cache, "batch": "off" if setup.batching is False else "on"},
        "conditions": conditions() | {"during": observed.figures()},
    }


def golden_inputs(bundle: Bundle) -> list[dict[str, NDArray[Any]]]:
    """Golden inputs; a stateful model's frames, in order. Raises BundleError without any."""
    if not bundle.manifest.golden:
        raise BundleError("it has no golden example to time it with", where=str(bundle.path), do="Build it again")
    found: list[dict[str, NDArray[Any]]] = []
    for golden in bundle.manifest.golden:
        items = bundle.golden_items(golden)
        if golden.steps is None:
            found.append(items)
        else:
            found += [{name: frames[step] for name, frames in items.items()} for step in range(golden.steps)]
    return found


def load_words(load: Load) -> dict[str, Any]:
    """The load as in a record; None for what does not apply."""
    is_open = load.rate is not None
    return {
        "loop": "open" if is_open else "closed",
        "concurrency": None if is_open else load.concurrency,
        "rate_per_s": load.rate,
        "arrivals": load.arrivals if is_open else None,
        "duration_s": load.duration_s,
        "budget_ms": load.budget_ms,
    }


def _figures(outcome: LoadOutcome) -> dict[str, Any]:
    """n: answers
    stages_ms: medians over the answers that went through the stage
    spread: figure -> [second lowest, second highest] over parts of the run; empty with too few answers
    """
    latencies = outcome.latencies_ms
    answered = len(latencies)
    requests = answered + outcome.refused + sum(outcome.errors.values())
    stages: dict[str, list[float]] = {}
    for timings in outcome.timings:
        for stage, ms in timings.items():
            if stage != "total":
                stages.setdefault(stage, []).append(ms)
    spread: dict[str, list[float]] = {}
    count = min(PARTS, answered // 10)
    if count >= LEAST_PARTS:
        parts = np.array_split(latencies, count)
        ends = [float(part[-1]) for part in np.array_split(outcome.ended_s, count)]
        seconds = np.diff([0.0, *ends])
        values = {f"p{q}_ms": [float(np.percentile(part, q)) for part in parts] for q in (50, 95, 99)}
        values["throughput_per_s"] = [
            len(p) / took if took > 0 else 0.0 for p, took in zip(parts, seconds, strict=True)
        ]
        spread = {name: [sorted(each)[1], sorted(each)[-2]] for name, each in values.items()}
    return {
        "n": answered,
        "asked": requests,
        "seconds": outcome.seconds,
        "min_ms": float(latencies.min()) if answered else None,
        "p50_ms": _percentile(latencies, 50),
        "p95_ms": _percentile(latencies, 95),
        "p99_ms": _percentile(latencies, 99),
        "max_ms": float(latencies.max()) if answered else None,
        "throughput_per_s": answered / outcome.seconds if outcome.seconds else 0.0,
        "spread": spread,
        "answers": dict(outcome.sources),
        "errors": dict(outcome.errors),
        "budget": {"met": outcome.met, "missed": outcome.missed, "refused": outcome.refused},
        "asked_late_ms": _percentile(outcome.late_ms, 99) if outcome.late_ms is not None else None,
        "stages_ms": {stage: float(np.median(ms)) for stage, ms in stages.items()},
        "stages_p99_ms": {stage: float(np.percentile(ms, 99)) for stage, ms in stages.items()},
    }


def _percentile(values: NDArray[np.float64], q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None


LONGEST_S = 120.0

_CHILD = """
import sys
from edgekit_runtime.bundle.jobs import serve
def work(job, say):
    from time import perf_counter
    from edgekit_runtime import ModelLimits, open_bundle
    options = job["options"]
    if job["key"]:
        from edgekit_runtime.bundle.secrets import Secret
        options["secret"] = Secret.from_pipe(job["key"])
    with open_bundle(job["path"], limits=ModelLimits(batching=job["batching"]), **options):
        try:
            lines = open("/proc/self/status").read().splitlines()
        except OSError:
            lines = []
        kib = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
        return {"ready": perf_counter(), "rss_mb": kib[0] * 1024 / 1e6 if kib else None}
sys.exit(serve(work))
"""


@dataclass(frozen=True)
class ColdStart:
    """start_ms: from the process's request to ready
    first_ms: the same of the first open on this machine, None for a later one
    rss_mb: megabytes, resident when ready
    """

    start_ms: float | None = None
    first_ms: float | None = None
    rss_mb: float | None = None


def cold_start(
    path: Path, options: Mapping[str, Any], secret: Secret | None = None, *, batching: bool | None = None
) -> ColdStart:
    """options: of `open_bundle`. Never raises: opening the bundle here shows its error."""
    job = {
        "path": str(path),
        "options": dict(options),
        "batching": batching,
        "key": secret.to_pipe() if secret is not None else None,
    }
    before = _verdict_files()
    took = _start_once(job)
    if took is None:
        return ColdStart()
    if _verdict_files() == before:
        return ColdStart(took[0], None, took[1])
    _start_once({**job, "options": {**options, "settled": True}})
    again = _start_once(job)
    return ColdStart(again[0] if again else None, took[0], again[1] if again else took[1])


def _start_once(job: dict[str, Any]) -> tuple[float, float | None] | None:
    start = perf_counter()
    try:
        came = ask_child(python_code(_CHILD), job, silence_s=LONGEST_S)
    except OSError:
        return None
    if came.result is None:
        return None
    # The clock counts from the machine's start, in every process.
    return (came.result["ready"] - start) * 1e3, came.result["rss_mb"]


def _verdict_files() -> set[str]:
    """Files of the verdicts that the runtime keeps between opens."""
    return {str(file) for kind in ("selftest", "tuning") for file in (state_dir() / kind).glob("*.json")}

"""One bundle under one load, as `edgekit bench --json` prints it.

    found = measure(Path("digits.ekb"), Setup(threads=1), Load(requests=500))
    found["p50_ms"], found["stages_ms"]["engine"], found["conditions"]["during"]["throttled"]

Rules:
- the bundle is opened as an application opens it; what that takes, and the first answer, are figures of their own;
- the inputs are the golden ones that travel in the bundle, in turn;
- every figure that a comparison may rest on has its spread: its range over up to ten parts of the run, without the best
  and the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.bench.cold import cold_start
from edgekit.bench.conditions import Observed, conditions
from edgekit.bench.load import Load, Outcome, ask
from edgekit.model_file import bundle_file
from edgekit_converters.progress import Progress, silent
from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.board import peak_mb, resident_mb
from edgekit_runtime.bundle import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import find_secret
from edgekit_runtime.errors import BundleError

__all__ = ["Setup", "golden_inputs", "load_words", "measure"]

PARTS, LEAST_PARTS = 10, 4


@dataclass(frozen=True)
class Setup:
    """How the bundle is opened; each field as in `open_bundle`, None for its default."""

    engine: str | None = None
    threads: int | None = None
    cache: bool = False
    batching: bool | None = None
    secret: str | None = None
    trust: Sequence[Path] = ()
    allow_unsigned: bool = False
    pin: Literal["primary"] | None = None


def measure(
    path: Path, setup: Setup | None = None, load: Load | None = None, *, progress: Progress = silent
) -> dict[str, Any]:
    """Milliseconds, megabytes (1e6 bytes); percentiles over the answers after the first one, None without any.

    path: a bundle, or an install root.

    Raises what `open_bundle` raises; errors of single requests are counted.
    """
    setup, load = setup or Setup(), load or Load()
    with bundle_file(path) as file:
        bundle = read_bundle(file, secret=setup.secret or find_secret)
    items = golden_inputs(bundle)
    given: dict[str, Any] = {
        "engine": setup.engine,
        "threads": setup.threads,
        "cache": setup.cache,
        "trust": [str(one) for one in setup.trust],
        "allow_unsigned": setup.allow_unsigned,
        "pin": setup.pin,
    }
    cold = cold_start(path, given, bundle.secret, batching=setup.batching)
    before_mb = resident_mb()
    start = perf_counter()
    with open_bundle(path, secret=bundle.secret, limits=ModelLimits(batching=setup.batching), **given) as model:
        ready_ms, ready_mb = (perf_counter() - start) * 1e3, resident_mb()
        first = (model if model.contract.state == "none" else model.session()).predict(items[0])
        with Observed() as observed:
            outcome = ask(model, items, load, progress)
        described, counted = model.describe(), model.stats()
    return {
        "bundle": str(path),
        "profile": bundle.manifest.target.profile,
        "bundle_digest": bundle.digest,
        "artifact_sha256": _artifact(bundle, described["recipe"]),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "engine_version": described["engine"]["version"],
        "threads": described["engine"]["threads"],
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


def _artifact(bundle: Bundle, recipe: str) -> str | None:
    """SHA-256 of the file that answered: what ties the record to an artifact, whatever bundle it comes in."""
    return next((e.blob for e in bundle.manifest.artifacts if e.recipe == recipe and e.role != "batch"), None)


def golden_inputs(bundle: Bundle) -> list[dict[str, NDArray[Any]]]:
    """The canonical inputs that travel in the bundle, of a model that keeps a state its frames, in order.

    Raises BundleError when there are none.
    """
    if not bundle.manifest.golden:
        raise BundleError("it holds no golden example to time it with", where=str(bundle.path), do="Build it again")
    found: list[dict[str, NDArray[Any]]] = []
    for golden in bundle.manifest.golden:
        items = bundle.golden_items(golden)
        if golden.steps is None:
            found.append(items)
        else:
            found += [{name: frames[step] for name, frames in items.items()} for step in range(golden.steps)]
    return found


def load_words(load: Load) -> dict[str, Any]:
    """What was asked for, as a record tells it; None for what does not apply."""
    is_open = load.rate is not None
    return {
        "loop": "open" if is_open else "closed",
        "concurrency": None if is_open else load.concurrency,
        "rate_per_s": load.rate,
        "arrivals": load.arrivals if is_open else None,
        "duration_s": load.duration_s,
        "budget_ms": load.budget_ms,
    }


def _figures(outcome: Outcome) -> dict[str, Any]:
    """n: answers. stages_ms: medians over the answers that went through the stage."""
    latencies = outcome.latencies_ms
    answered = len(latencies)
    asked = answered + outcome.refused + sum(outcome.errors.values())
    stages: dict[str, list[float]] = {}
    for timings in outcome.timings:
        for stage, ms in timings.items():
            if stage != "total":
                stages.setdefault(stage, []).append(ms)
    return {
        "n": answered,
        "asked": asked,
        "seconds": outcome.seconds,
        "min_ms": float(latencies.min()) if answered else None,
        "p50_ms": _percentile(latencies, 50),
        "p95_ms": _percentile(latencies, 95),
        "p99_ms": _percentile(latencies, 99),
        "max_ms": float(latencies.max()) if answered else None,
        "throughput_per_s": answered / outcome.seconds if outcome.seconds else 0.0,
        "spread": _spread(outcome),
        "answers": dict(outcome.sources),
        "errors": dict(outcome.errors),
        "budget": {"met": outcome.met, "missed": outcome.missed, "refused": outcome.refused},
        "asked_late_ms": _percentile(outcome.late_ms, 99) if outcome.late_ms is not None else None,
        "stages_ms": {stage: float(np.median(ms)) for stage, ms in stages.items()},
        "stages_p99_ms": {stage: float(np.percentile(ms, 99)) for stage, ms in stages.items()},
    }


def _percentile(values: NDArray[np.float64], q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None


def _spread(outcome: Outcome) -> dict[str, list[float]]:
    """Figure -> [low, high] over parts of the run; empty where there are too few answers to cut."""
    count = min(PARTS, len(outcome.latencies_ms) // 10)
    if count < LEAST_PARTS:
        return {}
    parts = np.array_split(outcome.latencies_ms, count)
    ends = [float(part[-1]) for part in np.array_split(outcome.ended_s, count)]
    seconds = np.diff([0.0, *ends])
    per_s = [len(part) / took if took > 0 else 0.0 for part, took in zip(parts, seconds, strict=True)]
    told = {f"p{q}_ms": [float(np.percentile(part, q)) for part in parts] for q in (50, 95, 99)}
    return {name: _inner(values) for name, values in (told | {"throughput_per_s": per_s}).items()}


def _inner(values: Sequence[float]) -> list[float]:
    """[second lowest, second highest]."""
    ordered = sorted(values)
    return [ordered[1], ordered[-2]]

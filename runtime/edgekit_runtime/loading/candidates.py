"""Candidates of a bundle on this board, what was measured of them, and the verdict.

    found = candidates(manifest, available(), TuningOptions(), cores=4)
    found[0]                    # runs if nothing is measured: the bundle's own choice
    verdict.chosen.label        # "tflite-int8 on litert 2.3.0, 1 thread"

Rules:
- the first is the manifest's choice (primary artifact, preferred engine, the board's threads), after a delegate that
  the caller named. An artifact with a delegate's operators (an Edge TPU's) never runs without one;
- threads are the caller's or the bundle's, and 1, half and all of the cores;
- `pin="primary"` is the primary artifact on the first engine with its default kernels: the same answers on every
  machine with this engine. A degraded artifact runs only if its recipe is pinned;
- engines of a GPU come first, with one thread count; they answer only if measured here or asked for by `engine`;
- other kernels than the default come last, first of them `vulkan`. ONNX Runtime's fast 8-bit sums are a candidate only
  on an x86 without VNNI.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.engines.registry import ANY_GPU, ENGINES, EngineSetup, Kernels, on_gpu
from edgekit_runtime.modelfile.check import delegated_operators
from edgekit_runtime.system.board import Cpu
from edgekit_runtime.system.board import cpu as this_cpu
from edgekit_runtime.system.records import record

Pin = Literal["primary"]
MOST = 24
"""Candidates that are tried at most."""
_WORDS = {"plain": "without XNNPACK", "fast": "fast 8-bit sums", "vulkan": "Vulkan"}
How = Literal["measured", "stored", "default"]


@record(frozen=True)
class TuningOptions:
    """What the caller decided; None leaves it to the board.

    delegate: a TFLite library, see `EngineSetup`.
    engine: its name, or "gpu" for any engine of a GPU and no other.
    pin: `primary`, or the recipe of the one artifact that may run; None for the fastest.
    """

    engine: str | None = None
    threads: int | None = None
    delegate: str | None = None
    pin: Pin | str | None = None

    def takes(self, engine: str) -> bool:
        """Whether this engine may answer. A pinned artifact runs on a GPU only if asked."""
        if self.engine is None:
            return self.pin is None or not on_gpu(engine)
        return on_gpu(engine) if self.engine == ANY_GPU else self.engine == engine

    @classmethod
    def needed_by(cls, manifest: Manifest) -> TuningOptions:
        """The delegate of EDGEKIT_DELEGATE for a bundle that only a delegate runs, else nothing."""
        needed = any(delegated_operators(entry.ops) for entry in manifest.artifacts)
        return cls(delegate=os.environ.get("EDGEKIT_DELEGATE") or None) if needed else cls()


@record(frozen=True)
class TuningCandidate:
    """One way of running the model. blob: the SHA-256 of the artifact's bytes."""

    recipe: str
    blob: str
    engine: str
    version: str
    threads: int
    kernels: Kernels = "default"
    delegate: str | None = None

    @property
    def setup(self) -> EngineSetup:
        return EngineSetup(self.threads, self.kernels, self.delegate)

    @property
    def on_gpu(self) -> bool:
        return on_gpu(self.engine, self.kernels)

    @property
    def label(self) -> str:
        threads = f"{self.threads} thread" if self.threads == 1 else f"{self.threads} threads"
        parts = [f"{self.recipe} on {self.engine} {self.version}", "GPU" if self.on_gpu else threads]
        if self.delegate is not None:
            parts.append(f"delegate {self.delegate}")
        if self.kernels != "default":
            parts.append(_WORDS.get(self.kernels, f"{self.kernels} kernels"))
        return ", ".join(parts)


def candidates(
    manifest: Manifest,
    installed: Mapping[str, str],
    wanted: TuningOptions,
    *,
    cores: int,
    cpu: Cpu | None = None,
    vulkan: Collection[str] = (),
) -> tuple[TuningCandidate, ...]:
    """Most promising first; empty if no engine for any artifact is installed.

    cpu: None for this machine's. vulkan: engines whose Vulkan kernels it may have a driver for.
    """
    may_saturate = (cpu or this_cpu()).lacks_vnni
    default = wanted.threads or max(1, min(manifest.target.threads, cores))
    counts = [default]
    if wanted.threads is None:
        counts += [n for n in dict.fromkeys((1, cores, cores // 2)) if 1 <= n <= cores and n != default]
    found: list[tuple[tuple[Any, ...], TuningCandidate]] = []
    for entry in manifest.artifacts:
        answers = entry.role in ("primary", "alternate") or (entry.role == "degraded" and wanted.pin == entry.recipe)
        if not answers or (wanted.pin or entry.role) not in (entry.role, entry.recipe):
            continue
        fitting = [name for name, kind in ENGINES.items() if entry.format in kind.formats and name in installed]
        takes = [name for name in fitting if wanted.takes(name)]  # in order of preference
        for place, name in enumerate(takes[:1] if wanted.pin else takes):
            # the delegate of the caller, and none; an artifact with a delegate's own operators runs with it alone
            chosen = (wanted.delegate,) if wanted.delegate and ENGINES[name].delegates else ()
            for delegate in chosen if delegated_operators(entry.ops) else (*chosen, None):
                fast = may_saturate and "int8" in entry.recipe
                left_out = {"reference", *(() if fast else ("fast",)), *(() if name in vulkan else ("vulkan",))}
                ways: list[Kernels] = [kernels for kernels in ENGINES[name].kernels if kernels not in left_out]
                if wanted.pin or delegate is not None:  # what a delegate leaves over is little
                    ways = ["default"]
                for kernels in ways:
                    for rank, threads in enumerate(counts[:1] if on_gpu(name, kernels) else counts):
                        ours = (kernels != "default", kernels != "vulkan")
                        first = (not on_gpu(name), delegate is None, *ours, entry.role != "primary")
                        one = TuningCandidate(
                            entry.recipe, entry.blob, name, installed[name], threads, kernels, delegate
                        )
                        found.append(((*first, place, rank), one))
    found.sort(key=lambda pair: pair[0])
    return tuple(dict.fromkeys(one for _, one in found))[:MOST]


def untried_candidates(offer: Sequence[TuningCandidate]) -> tuple[TuningCandidate, ...]:
    """Candidates that may run unmeasured: none of a GPU, unless only such were asked for."""
    return tuple(one for one in offer if not one.on_gpu) or tuple(offer)


@record(frozen=True)
class CandidateTrial:
    """One candidate's trial. What was not measured is None.

    p50_ms: median of a run with a golden example.
    memory_mb: private memory that loading and running it added, plus the bundle's artifacts (1e6 bytes).
    ratio: its time divided by that of the fastest, run in turn; p50_ms follows from it.
    refused: the reason against it, as `EdgekitError.as_json` gives it.
    p99_ms: what its runs stayed below, one in a hundred excepted, and one in any case.
    cpu_ms: processor time of a request and of the pause after it, all threads together.
    cosine: least similarity with a golden answer.
    """

    candidate: TuningCandidate
    p50_ms: float | None = None
    runs: int = 0
    load_ms: float | None = None
    first_ms: float | None = None
    memory_mb: float | None = None
    ratio: float | None = None
    refused: dict[str, str] | None = None
    p99_ms: float | None = None
    cpu_ms: float | None = None
    cosine: float | None = None

    @property
    def had_turn(self) -> bool:
        return self.p50_ms is not None or self.refused is not None


@record(frozen=True)
class TuningVerdict:
    """The chosen candidate, and why.

    how: measured now, stored from an earlier opening, or the bundle's default.
    tried: in the order of trial.
    seconds: duration of the measurement.
    kept: whether it is on disk.
    settled: no other may be clearly faster, and the board was not busy; else a later opening measures again.
    openings: how many measured.
    pending: it answers while candidates are measured.
    """

    chosen: TuningCandidate
    how: How
    why: str
    tried: tuple[CandidateTrial, ...] = ()
    seconds: float = 0.0
    kept: bool = False
    settled: bool = True
    openings: int = 1
    pending: bool = False

    def in_order(self) -> tuple[TuningCandidate, ...]:
        """The chosen one, then the others that passed, fastest first, should it not load."""
        passed = sorted(
            (one for one in self.tried if one.p50_ms is not None and one.candidate != self.chosen),
            key=lambda one: one.p50_ms or 0.0,
        )
        return (self.chosen, *(one.candidate for one in passed))

    def describe(self) -> dict[str, Any]:
        """For `Model.describe()`."""
        return {
            "chosen": self.chosen.label,
            "how": self.how,
            "why": self.why,
            "seconds": round(self.seconds, 3),
            "kept": self.kept,
            "pending": self.pending,
            "candidates": [
                {
                    "candidate": one.candidate.label,
                    "engine": one.candidate.engine,
                    "p50_ms": one.p50_ms,
                    "p99_ms": one.p99_ms,
                    "cpu_ms": one.cpu_ms,
                    "runs": one.runs,
                    "cosine": one.cosine,
                    "memory_mb": one.memory_mb,
                    "refused": ": ".join(filter(None, (one.refused["where"], one.refused["what"])))
                    if one.refused
                    else None,
                }
                for one in self.tried
            ],
        }

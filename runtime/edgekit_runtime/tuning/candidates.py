"""What could answer for a bundle on this board: artifact x engine x threads x kernels x delegate, most promising first.

    found = candidates(manifest, available(), Wanted(), cores=4)
    found[0]                # what runs where nothing is measured: the bundle's own choice

Rules:
- the first is what the manifest says: the primary artifact, the preferred engine, the board's threads; a delegate that
  was asked for comes before it;
- an artifact with operators of a delegate (an Edge TPU's) is offered together with a delegate, and never without one;
- threads: what the caller or the bundle says, and 1, half and all of the cores; two can be slower than one;
- `pin="primary"`: the primary artifact alone, on the first engine that runs it, by that engine's own choice of kernels: the
  same answers on every machine that has this engine;
- kernels other than the engine's own choice come last: they win seldom, and then by much;
- ONNX Runtime's fast 8-bit sums are a candidate where they can saturate, an x86 without VNNI, and nowhere else: elsewhere they
  are what the default computes. The trial admits them only where they give the very bits of the exact ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgekit_runtime.board import Cpu
from edgekit_runtime.board import cpu as this_cpu
from edgekit_runtime.bundle import ArtifactEntry, Manifest
from edgekit_runtime.engines import ENGINES, Kernels, Setup
from edgekit_runtime.modelfile.check import delegated

__all__ = ["Candidate", "Pin", "Wanted", "candidates"]

Pin = Literal["primary"]

MOST = 24
"""Candidates that are looked at, at most."""


_WORDS = {"plain": "without XNNPACK", "fast": "fast 8-bit sums"}


@dataclass(frozen=True)
class Wanted:
    """What the caller decided himself; None where the board may. delegate: a library for TFLite artifacts, see `Setup`.

    pin: `primary`, or the recipe of the one artifact that may run; None for whichever is the fastest here.
    """

    engine: str | None = None
    threads: int | None = None
    delegate: str | None = None
    pin: Pin | str | None = None

    @classmethod
    def needed_by(cls, manifest: Manifest) -> Wanted:
        """Nothing, but for a bundle that only a delegate runs the one that EDGEKIT_DELEGATE names."""
        needed = any(delegated(entry.ops) for entry in manifest.artifacts)
        return cls(delegate=os.environ.get("EDGEKIT_DELEGATE") or None) if needed else cls()


@dataclass(frozen=True)
class Candidate:
    """One way of running the model. blob: the SHA-256 of the artifact's bytes, which names it."""

    recipe: str
    blob: str
    engine: str
    version: str
    threads: int
    kernels: Kernels = "default"
    delegate: str | None = None

    @property
    def setup(self) -> Setup:
        return Setup(self.threads, self.kernels, self.delegate)

    @property
    def label(self) -> str:
        threads = f"{self.threads} thread" if self.threads == 1 else f"{self.threads} threads"
        parts = [f"{self.recipe} on {self.engine} {self.version}", threads]
        if self.delegate is not None:
            parts.append(f"delegate {self.delegate}")
        if self.kernels != "default":
            parts.append(_WORDS.get(self.kernels, f"{self.kernels} kernels"))
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "blob": self.blob,
            "engine": self.engine,
            "version": self.version,
            "threads": self.threads,
            "kernels": self.kernels,
            "delegate": self.delegate,
        }


def candidates(
    manifest: Manifest, installed: Mapping[str, str], wanted: Wanted, *, cores: int, cpu: Cpu | None = None
) -> tuple[Candidate, ...]:
    """Most promising first; empty where no engine for any artifact is installed. cpu: None for this machine's."""
    may_saturate = (cpu or this_cpu()).lacks_vnni
    default = wanted.threads or max(1, min(manifest.target.threads, cores))
    counts = [default]
    if wanted.threads is None:
        counts += [n for n in dict.fromkeys((1, cores, cores // 2)) if 1 <= n <= cores and n != default]
    found: list[tuple[tuple[Any, ...], Candidate]] = []
    for entry in manifest.artifacts:
        if entry.role not in ("primary", "alternate") or (wanted.pin or entry.role) not in (entry.role, entry.recipe):
            continue
        for place, name in enumerate(_engines(entry, installed, wanted)):
            for delegate in _delegates(entry, name, wanted):
                fast = may_saturate and "int8" in entry.recipe
                ways: tuple[Kernels, ...] = ("default",) if wanted.pin else _kernels(name, delegate, fast=fast)
                for kernels in ways:
                    for rank, threads in enumerate(counts):
                        order = (delegate is None, kernels != "default", entry.role != "primary", place, rank)
                        one = Candidate(entry.recipe, entry.blob, name, installed[name], threads, kernels, delegate)
                        found.append((order, one))
    found.sort(key=lambda pair: pair[0])
    return tuple(dict.fromkeys(one for _, one in found))[:MOST]


def _engines(entry: ArtifactEntry, installed: Mapping[str, str], wanted: Wanted) -> list[str]:
    """Installed engines that run its format, in order of preference."""
    fitting = [name for name, kind in ENGINES.items() if entry.format in kind.formats and name in installed]
    asked = [name for name in fitting if wanted.engine in (None, name)]
    return asked[:1] if wanted.pin else asked


def _delegates(entry: ArtifactEntry, engine: str, wanted: Wanted) -> tuple[str | None, ...]:
    """The delegate that was asked for, and none; an artifact with a delegate's own operators runs with it alone."""
    asked = (wanted.delegate,) if wanted.delegate and ENGINES[engine].delegates else ()
    return asked if delegated(entry.ops) else (*asked, None)


def _kernels(engine: str, delegate: str | None, *, fast: bool) -> tuple[Kernels, ...]:
    """With a delegate only the engine's own choice: what the delegate leaves over is little."""
    left_out = {"reference"} if fast else {"reference", "fast"}
    offered = [kernels for kernels in ENGINES[engine].kernels if kernels not in left_out]
    return tuple(kernels for kernels in offered if delegate is None or kernels == "default")

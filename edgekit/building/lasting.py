"""What a bundle says of a board's time and memory: the same in every build of the same inputs.

promise_of(50.0, lasting_json(found))                      # Promise(p50_ms=31.2, p99_ms=50.0)
manifest = with_memory(draft, manifest, {"tflite-int8": 64_000_000}, store)

Rules:
- no time of the workstation gets in, the build's report has those;
- figures have six digits, so that a logarithm of another C library makes no other file;
- memory is promised for each artifact and engine: the estimate from the file with HEADROOM, which is the same in every build.
  The trial of `edgekit install` runs here too, in a child; where it takes more than the estimate allows, its figure is promised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgekit.building.kept import key
from edgekit.building.report import estimate_json
from edgekit.packaging import write_bundle
from edgekit_converters.store import kept_json
from edgekit_profiles import Estimate
from edgekit_profiles.wheels import wheels
from edgekit_runtime.bundle import ArtifactEntry, Manifest, Promise, read_bundle
from edgekit_runtime.children import may_start
from edgekit_runtime.children import run as run_child
from edgekit_runtime.engines import ENGINES, available
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install import Proving
from edgekit_runtime.install.prove import prove

if TYPE_CHECKING:
    import subprocess

    from edgekit.packaging.writer import BundleDraft
    from edgekit_converters.store import Store
    from edgekit_runtime.bundle.secrets import Secret

__all__ = ["allowance_mb", "lasting_json", "promise_of", "with_memory"]

_LEAST_P99_MS = 1.0
"""Below that it is the scheduler of the system, not the model, that decides how long the slowest in a hundred takes."""

HEADROOM = 1.25
"""Of a promise of memory: other versions of an engine, and other processors, take a little more."""

LEAST_SPARE = 1.15
"""An estimate that leaves less than this above what was measured is too small."""

STEP_MB = 16
"""Of a promise that rests on a measurement, so that two builds rarely differ in it."""

_ANSWERS, _MOST_S, _LEAST = 20, 2.0, 3

_FIGURES = ("low_ms", "mid_ms", "high_ms")


def lasting_json(found: Estimate | None) -> dict[str, Any] | None:
    """As `--json` prints it, without times of the workstation."""
    told = estimate_json(found)
    if told is None:
        return None
    if told.pop("host", None) is not None:
        raise ValueError("the estimate rests on times of this machine")
    return told | {name: _rounded(told[name]) for name in _FIGURES}


def promise_of(budget_ms: float | None, estimate: Mapping[str, Any] | None) -> Promise | None:
    """What the board is held to. The upper end of an estimate is what nine in ten boards keep at the median; where no budget
    was given it stands for the 99th percentile too, from a millisecond up."""
    high = None if estimate is None else float(estimate["high_ms"])
    p99 = budget_ms if budget_ms is not None else None if high is None else max(high, _LEAST_P99_MS)
    p50 = None if high is None or p99 is None else min(high, p99)
    return None if p99 is None else Promise(p50, p99)


def with_memory(
    draft: BundleDraft,
    manifest: Manifest,
    estimated: Mapping[str, int | None],
    store: Store,
    secret: Secret | None = None,
) -> Manifest:
    """The manifest with what each artifact that may answer takes on each engine that boards install. estimated: recipe -> bytes, from its file."""
    ask = _Measuring(draft, manifest, store, secret)
    on_boards = {wheel.engine for wheel in wheels()}
    entries = []
    for entry in manifest.artifacts:
        if entry.role not in ("primary", "alternate"):
            entries.append(entry)
            continue
        found = {
            name: allowance_mb(estimated.get(entry.recipe), draft.size, ask.peak_mb(entry, name))
            for name, kind in ENGINES.items()
            if entry.format in kind.formats and name in on_boards
        }
        memory = {name: figure for name, figure in found.items() if figure is not None}
        entries.append(replace(entry, memory_mb=memory or None))
    most = max((figure for entry in entries for figure in (entry.memory_mb or {}).values()), default=None)
    promise = manifest.promise if most is None else replace(manifest.promise or Promise(), peak_mb=most)
    return replace(manifest, artifacts=tuple(entries), promise=promise)


def allowance_mb(estimated: int | None, bundle_bytes: int, measured_mb: float | None) -> float | None:
    """MB that a process may take. estimated: bytes, by the model's file, with the process that opens it. A bundle that is open is
    in memory twice for a moment: as it was read, and blob by blob."""
    by_file = 0.0 if estimated is None else HEADROOM * (estimated + 2 * bundle_bytes) / 1e6
    if measured_mb is not None and LEAST_SPARE * measured_mb > by_file:
        return math.ceil(HEADROOM * measured_mb / STEP_MB) * STEP_MB
    return _rounded(by_file) if by_file else None


@dataclass(frozen=True)
class _Peak:
    mb: float | None


@dataclass(frozen=True)
class _Measuring:
    """The trial of an install, of one artifact and engine after the other, remembered by what they are."""

    draft: BundleDraft
    manifest: Manifest
    store: Store
    secret: Secret | None

    def peak_mb(self, entry: ArtifactEntry, engine: str) -> float | None:
        """None where it cannot run here."""
        version = available().get(engine)
        if version is None or not may_start():
            return None
        body = self.manifest.as_json()
        name = key(
            "memory", self.draft.digests, body["contract"], entry.blob, engine, version, self.manifest.target.threads
        )
        return kept_json(self.store, name, _Peak, lambda: _Peak(self._measured(entry, engine))).mb

    def _measured(self, entry: ArtifactEntry, engine: str) -> float | None:
        with TemporaryDirectory(prefix="edgekit-") as folder:
            path = Path(folder) / "bundle.ekb"
            write_bundle(path, self.draft, self.manifest)

            def run(*arguments: Any, env: Mapping[str, str], **others: Any) -> subprocess.CompletedProcess[str]:
                return run_child(*arguments, env={**env, "EDGEKIT_STATE_DIR": folder}, **others)

            how = Proving(_ANSWERS, _MOST_S, _LEAST, recipe=entry.recipe, engine=engine, run=run)
            bundle = read_bundle(path, secret=self.secret)
            with contextlib.suppress(EdgekitError):  # what does not run here is promised by its file alone
                seen = prove("trial", replace(bundle, manifest=replace(bundle.manifest, promise=None)), how).seen
                return seen.peak_mb if seen is not None else None
        return None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")

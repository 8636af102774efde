"""What a bundle promises: latency and memory, the same in every build of the same inputs.

    promise_of(50.0, lasting_json(found))                      # Promise(p50_ms=31.2, p99_ms=50.0)
    manifest = with_memory(draft, manifest, {"tflite-int8": 64_000_000}, store)

Rules:
- a promise holds no time of the workstation, and six digits, so that the logarithm of another C library does not change
  the file;
- memory is promised for each artifact and engine: the estimate from the file with HEADROOM, or what the trial of
  `edgekit install` took here, if that is more than the estimate allows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgekit.building.build_report import measured_json
from edgekit.building.data import key
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.store import StageStore, cached_json
from edgekit_profiles import (
    Estimate,
)
from edgekit_profiles.wheels import wheels
from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest, Promise
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import ENGINES, available
from edgekit_runtime.install import TrialOptions
from edgekit_runtime.install.prove import prove
from edgekit_runtime.system.children import may_start
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError

if TYPE_CHECKING:
    import subprocess

    from edgekit.packaging.writer import BundleDraft
    from edgekit_runtime.bundle.secrets import Secret


_LEAST_P99_MS = 1.0
"""Below this, the system's scheduler and not the model decides the 99th percentile."""
HEADROOM = 1.25
"""Factor on promised memory: other engine versions and processors take a little more."""
STEP_MB = 16
"""A promise of memory is rounded up to this, so that two builds rarely differ."""
_ANSWERS, _MOST_S, _LEAST = 20, 2.0, 3
_FIGURES = ("low_ms", "mid_ms", "high_ms")


def lasting_json(found: Estimate | None) -> dict[str, Any] | None:
    """As `--json` prints it. Raises ValueError if it rests on times of the workstation."""
    record = measured_json(found)
    if record is None:
        return None
    if record.pop("host", None) is not None:
        raise ValueError("the estimate rests on times of this machine")
    return record | {name: _rounded(record[name]) for name in _FIGURES}


def promise_of(budget_ms: float | None, estimate: Mapping[str, Any] | None) -> Promise | None:
    """The latency that the board must keep.

    Nine in ten boards keep an estimate's upper end at the median; without a budget it stands for the 99th percentile
    too, from a millisecond up."""
    high = None if estimate is None else float(estimate["high_ms"])
    p99 = budget_ms if budget_ms is not None else None if high is None else max(high, _LEAST_P99_MS)
    p50 = None if high is None or p99 is None else min(high, p99)
    return None if p99 is None else Promise(p50, p99)


def with_memory(
    draft: BundleDraft,
    manifest: Manifest,
    estimated: Mapping[str, int | None],
    store: StageStore,
    secret: Secret | None = None,
) -> Manifest:
    """Add each artifact's memory on each board engine. estimated: recipe -> bytes."""
    ask = _InstallMeasurement(draft, manifest, store, secret)
    on_boards = {wheel.engine for wheel in wheels()}
    entries = []
    for entry in manifest.artifacts:
        if entry.role == "batch":
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
    """MB that a process may take. estimated: bytes of the model and the process, from its file."""
    # While a bundle is opened it is in memory twice: as it was read, and blob by blob
    by_file = 0.0 if estimated is None else (estimated + 2 * bundle_bytes) / 1e6
    # No threshold between the two: a measurement that varies by its noise would cross it
    return math.ceil(HEADROOM * max(by_file, measured_mb or 0.0) / STEP_MB) * STEP_MB or None


@dataclass(frozen=True)
class _Peak:
    mb: float | None

    def is_possible(self) -> bool:
        return self.mb is None or 0 < self.mb < math.inf


@dataclass(frozen=True)
class _InstallMeasurement:
    """The trial of an install for each artifact and engine, cached."""

    draft: BundleDraft
    manifest: Manifest
    store: StageStore
    secret: Secret | None

    def peak_mb(self, entry: ArtifactEntry, engine: str) -> float | None:
        """None if it cannot run here."""
        version = available().get(engine)
        if version is None or not may_start():
            return None
        body = self.manifest.as_json()
        name = key(
            "memory", self.draft.digests, body["contract"], entry.blob, engine, version, self.manifest.target.threads
        )
        return cached_json(self.store, name, _Peak, lambda: _Peak(self._measured(entry, engine)), _Peak.is_possible).mb

    def _measured(self, entry: ArtifactEntry, engine: str) -> float | None:
        with TemporaryDirectory(prefix="edgekit-") as folder:
            path = Path(folder) / "bundle.ekb"
            write_bundle(path, self.draft, self.manifest)

            def run(*arguments: Any, env: Mapping[str, str], **others: Any) -> subprocess.CompletedProcess[str]:
                return run_child(*arguments, env={**env, "EDGEKIT_STATE_DIR": folder}, **others)

            how = TrialOptions(_ANSWERS, _MOST_S, _LEAST, recipe=entry.recipe, engine=engine, run=run)
            bundle = read_bundle(path, secret=self.secret)
            with contextlib.suppress(EdgekitError):  # the file alone decides if it does not run here
                seen = prove("trial", replace(bundle, manifest=replace(bundle.manifest, promise=None)), how).seen
                return seen.peak_mb if seen is not None else None
        return None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")

"""What a bundle says of a board's time and memory: the same in every build of the same inputs.

promise_of(50.0, lasting_json(found), [12_000_000])        # Promise(p50_ms=31.2, p99_ms=50.0, peak_mb=12.0)

Rules: no time of the workstation gets in, the build's report has those; figures have six digits, so that a logarithm of
another C library makes no other file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.building.report import estimate_json
from edgekit_profiles import Estimate
from edgekit_runtime.bundle import Promise

__all__ = ["lasting_json", "promise_of"]

_LEAST_P99_MS = 1.0
"""Below that it is the scheduler of the system, not the model, that decides how long the slowest in a hundred takes."""

_FIGURES = ("low_ms", "mid_ms", "high_ms")


def lasting_json(found: Estimate | None) -> dict[str, Any] | None:
    """As `--json` prints it, without times of the workstation."""
    told = estimate_json(found)
    if told is None:
        return None
    if told.pop("host", None) is not None:
        raise ValueError("the estimate rests on times of this machine")
    return told | {name: _rounded(told[name]) for name in _FIGURES}


def promise_of(
    budget_ms: float | None, estimate: Mapping[str, Any] | None, memory_bytes: Sequence[int | None]
) -> Promise | None:
    """What the board is held to. The upper end of an estimate is what nine in ten boards keep at the median; where no budget
    was given it stands for the 99th percentile too, from a millisecond up. memory_bytes: of every artifact that may answer; the most counts."""
    high = None if estimate is None else float(estimate["high_ms"])
    p99 = budget_ms if budget_ms is not None else None if high is None else max(high, _LEAST_P99_MS)
    p50 = None if high is None or p99 is None else min(high, p99)
    known = [count for count in memory_bytes if count is not None]
    peak = _rounded(max(known) / 1e6) if known else None
    return None if p99 is None and peak is None else Promise(p50, p99, peak)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")

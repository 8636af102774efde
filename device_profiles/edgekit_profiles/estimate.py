"""How long one inference will take on a board: a range and its grade, never a bare number.

Rules:
- `measured` is a time taken on that board. `anchored` is the roofline's ratio to MobileNetV1 times what MobileNetV1
  was timed at on that board, with the same kernels, precision and threads. `estimated` is the roofline alone.
- The range holds what 90 % of the published latencies held, each grade with its own band (`roofline.toml`).
- What the evidence does not cover is refused with CannotEstimateError, not extrapolated: uncounted operations, a batch,
  more threads than cores, a core without fitted rates.

    estimate(load("raspberry-pi-4"), mobilenet_v1("int8"), "litert").mid_ms     # 24.0: it is the anchor itself
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgekit_profiles.errors import CannotEstimateError
from edgekit_profiles.profile import Anchor, Profile
from edgekit_profiles.roofline import MEASURE, Machine, constants, predict
from edgekit_profiles.workload import Workload, mobilenet_v1

__all__ = ["Estimate", "Grade", "estimate", "measured", "milliseconds"]

Grade = Literal["measured", "anchored", "estimated"]
ANCHOR_MODEL = "mobilenet_v1_1.0_224"
DOMINATED = {
    "pw": "1x1 convolutions",
    "c3": "3x3 convolutions",
    "cx": "other convolutions",
    "dw": "depthwise convolutions",
    "fc": "dense layers",
    "memory": "memory traffic",
    "overhead": "dispatch of operations",
}


@dataclass(frozen=True)
class Estimate:
    """Milliseconds for one item. dominated_by: the largest term in words, None where the time was measured.

    source: what the figure rests on. notes: what a reader must know before believing it.
    """

    low_ms: float
    mid_ms: float
    high_ms: float
    grade: Grade
    dominated_by: str | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    def scaled(self, low: float, mid: float, high: float) -> Estimate:
        return replace(self, low_ms=self.low_ms * low, mid_ms=self.mid_ms * mid, high_ms=self.high_ms * high)


def milliseconds(value: float) -> str:
    """Three digits, however small; whole numbers from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def measured(p50_ms: float, p95_ms: float, *, min_ms: float | None = None, source: str = "") -> Estimate:
    """A time taken on the board: low is the minimum (or p50 where it is not given), mid p50, high p95."""
    low = p50_ms if min_ms is None else min_ms
    if not 0 <= low <= p50_ms <= p95_ms:
        raise ValueError(f"not in order: min {low}, p50 {p50_ms}, p95 {p95_ms}")
    return Estimate(low, p50_ms, p95_ms, "measured", source=source)


def estimate(profile: Profile, workload: Workload, framework: str, *, threads: int | None = None) -> Estimate:
    """The range for one inference of `workload` on `profile` by an engine of the runtime (`litert`, `onnxruntime`, ...).

    threads: default the profile's. Raises CannotEstimateError.
    """
    threads = profile.threads if threads is None else threads
    _check(profile, workload, framework, threads)
    if workload.precision == "dynamic":
        return _dynamic(profile, workload, framework, threads)
    stand_in = constants()["stand_ins"].get(framework)
    if stand_in is not None:
        return _stand_in(estimate(profile, workload, stand_in["engine"], threads=threads), framework, stand_in)
    kernels = constants()["engines"][framework][workload.precision]
    anchor = _anchor(profile, workload.precision, kernels, threads)
    if anchor is None:
        return _roofline(profile, workload, kernels, threads)
    return _anchored(profile, workload, anchor)


def _check(profile: Profile, workload: Workload, framework: str, threads: int) -> None:
    known = {**constants()["engines"], **constants()["stand_ins"]}
    where = profile.name
    if framework not in known:
        raise CannotEstimateError(f"nothing is known of the engine '{framework}'", where=where, do=MEASURE)
    if workload.unknown:
        names = ", ".join(sorted(set(workload.unknown))[:5])
        raise CannotEstimateError(f"the model has work that cannot be counted: {names}", where=where, do=MEASURE)
    if workload.batch != 1:
        raise CannotEstimateError(f"the model takes {workload.batch} items at once", where=where, do=MEASURE)
    if not workload.ops:
        raise CannotEstimateError("the model has no operation that takes time", where=where, do=MEASURE)
    if not 1 <= threads <= profile.core.count:
        do = f"Ask for 1 to {profile.core.count} threads"
        raise CannotEstimateError(f"{threads} threads on {profile.core.count} cores", where=where, do=do)
    if profile.core.type not in constants()["rates"]:
        raise CannotEstimateError(f"no rate was fitted for {profile.core.type} cores", where=where, do=MEASURE)


def _roofline(profile: Profile, workload: Workload, kernels: str, threads: int) -> Estimate:
    terms = _terms(profile, workload, kernels, threads, profile.core.clock_ghz)
    total = sum(terms.values())
    low, high = constants()["bands"]["estimated"]
    source = f"roofline fitted to published latencies of {profile.core.type} and other cores, {kernels} kernels"
    return Estimate(total * low, total, total * high, "estimated", _largest(terms), source)


def _anchored(profile: Profile, workload: Workload, anchor: Anchor) -> Estimate:
    """Both rooflines with the kernels and threads of the anchor; the model's at the profile's clock."""
    precision, kernels, threads = workload.precision, anchor.framework, anchor.threads
    terms = _terms(profile, workload, kernels, threads, profile.core.clock_ghz)
    reference = sum(_terms(profile, mobilenet_v1(precision), kernels, threads, anchor.clock_ghz).values())
    correction = anchor.ms[precision] / reference
    total = sum(terms.values()) * correction
    low, high = _anchor_band(anchor)
    notes = []
    if anchor.grade == "derived":
        notes.append("the board's MobileNetV1 was derived, not measured, so the range is wider")
    if anchor.clock_ghz != profile.core.clock_ghz:
        notes.append(f"scaled from {anchor.clock_ghz} to {profile.core.clock_ghz} GHz")
    bounds = constants()["bands"]["estimated"]
    if not bounds[0] <= correction <= bounds[1]:
        notes.append(
            f"MobileNetV1 takes {correction:.2f} times what the roofline says on this board: "
            "something it does not see, most likely memory, sets the pace"
        )
    source = f"{anchor.grade} MobileNetV1, {anchor.ms[precision]:g} ms with {threads} threads: {anchor.source}"
    return Estimate(total * low, total, total * high, "anchored", _largest(terms), source, tuple(notes))


def _anchor_band(anchor: Anchor) -> tuple[float, float]:
    """The band of anchored estimates; for a derived anchor its own error is added in quadrature of the logarithms."""
    low, high = constants()["bands"]["anchored"]
    if anchor.grade == "published":
        return low, high
    less, more = constants()["bands"]["derived_anchor"]
    return math.exp(-math.hypot(math.log(low), math.log(less))), math.exp(math.hypot(math.log(high), math.log(more)))


def _stand_in(base: Estimate, framework: str, facts: dict[str, Any]) -> Estimate:
    low, high = facts["band"]
    notes = (
        f"no factor could be fitted for {framework}: this is {facts['engine']}'s estimate with a wider range",
        *base.notes,
    )
    return replace(base.scaled(low, 1.0, high), grade="estimated", notes=notes)


def _dynamic(profile: Profile, workload: Workload, framework: str, threads: int) -> Estimate:
    base = estimate(profile, replace(workload, precision="float32"), framework, threads=threads)
    dense = sum(op.macs for op in workload.ops if op.kind == "fc")
    shape = "dense" if 2 * dense > workload.macs else "convolutional"
    low, mid, high = constants()["dynamic"][framework][shape]
    notes = (
        f"dynamic range took {low:g} to {high:g} times float32 on x86-64 for {shape} networks; never timed on a board",
        *base.notes,
    )
    return replace(base.scaled(low, mid, high), grade="estimated", notes=notes)


def _anchor(profile: Profile, precision: str, kernels: str, threads: int) -> Anchor | None:
    """The board's MobileNetV1 with these kernels, precision and threads; published before derived, near clock first."""
    wanted = (ANCHOR_MODEL, kernels, threads)
    same = (anchor for anchor in profile.anchors if (anchor.model, anchor.framework, anchor.threads) == wanted)
    found = [anchor for anchor in same if precision in anchor.ms]
    order = {"published": 0, "derived": 1}
    found.sort(key=lambda anchor: (order[anchor.grade], abs(anchor.clock_ghz - profile.core.clock_ghz)))
    return found[0] if found else None


def _terms(profile: Profile, workload: Workload, kernels: str, threads: int, clock_ghz: float) -> dict[str, float]:
    bandwidth = profile.memory.bandwidth_gbps
    if bandwidth is None:
        raise CannotEstimateError("the profile does not say its memory's bandwidth", where=profile.name, do=MEASURE)
    return predict(Machine(profile.core.type, clock_ghz, bandwidth, threads), workload, workload.precision, kernels)


def _largest(terms: dict[str, float]) -> str:
    return DOMINATED[max(terms, key=lambda kind: terms[kind])]

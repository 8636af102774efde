"""Estimate how long one inference takes on a board: a range and its grade.

    estimate(load("raspberry-pi-4"), mobilenet_v1("int8"), "litert").mid_ms     # 24.0: it is the anchor itself
    estimate(profile, work, "litert", known=EstimateEvidence(host=HostTimes(3.1, 3.9, "litert")))

Rules:
- `measured` is a time taken on that board; `anchored` is that of MobileNetV1 on that board, with the same kernels,
  precision and threads, times a ratio: of both on the workstation together with the roofline's, or the roofline's
  alone; `estimated` is the roofline alone;
- the range holds what 90 % of the published latencies held on boards that the fit had not seen, with a band for each
  way of estimating (`roofline.toml`); an untested case has a wider one and a note;
- products of two computed tensors count as 1x1 convolutions, recurrent layers as dense ones, both untested;
- uncounted operations, a batch, more threads than cores and a core without fitted rates raise CannotEstimateError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgekit_profiles.anchors import HostTimes, anchored_ms, blend, choose_anchor
from edgekit_profiles.errors import CannotEstimateError
from edgekit_profiles.profile import Anchor, Profile
from edgekit_profiles.workload import MEASURE, CoreModel, Workload, constants, mobilenet_v1, op_terms, predict

Grade = Literal["measured", "anchored", "estimated"]
DOMINATED = {
    "pw": "1x1 convolutions",
    "c3": "3x3 convolutions",
    "cx": "other convolutions",
    "dw": "depthwise convolutions",
    "fc": "dense layers",
    "memory": "memory traffic",
    "overhead": "dispatch of operations",
}
Band = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """Milliseconds for one item.

    dominated_by: the largest term in words, None if measured.
    source: what the figure rests on.
    notes: caveats.
    host: the known times on a workstation, used or not.
    busy: measured while others used the processor, from what it takes alone to what it took then; never refused.
    """

    low_ms: float
    mid_ms: float
    high_ms: float
    grade: Grade
    dominated_by: str | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    host: HostTimes | None = None
    busy: bool = False

    def scale(self, low: float, mid: float, high: float) -> Estimate:
        return replace(self, low_ms=self.low_ms * low, mid_ms=self.mid_ms * mid, high_ms=self.high_ms * high)


@dataclass(frozen=True)
class EstimateEvidence:
    """Evidence beyond the profile and the file.

    host: times of the artifact and of MobileNetV1 on the workstation.
    anchors: of anchor files that `edgekit profiles measure` wrote on the board.
    """

    host: HostTimes | None = None
    anchors: tuple[Anchor, ...] = ()


@dataclass(frozen=True)
class _Case:
    """One question, with its checks passed.

    kernels: what the engine runs, by the roofline's name.
    """

    profile: Profile
    workload: Workload
    engine: str
    kernels: str
    threads: int

    def terms(self, workload: Workload, clock_ghz: float) -> dict[str, float]:
        return predict(self.machine(clock_ghz), workload, self.workload.precision, self.kernels)

    def machine(self, clock_ghz: float) -> CoreModel:
        core, bandwidth = self.profile.core, self.profile.memory.bandwidth_gbps
        if bandwidth is None:
            what = "the profile has no memory bandwidth"
            raise CannotEstimateError(what, where=self.profile.name, do=MEASURE)
        return CoreModel(core.type, clock_ghz, bandwidth, self.threads)


def milliseconds(value: float) -> str:
    """Format with three digits; whole numbers from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def measured_estimate(p50_ms: float, p95_ms: float, *, min_ms: float | None = None, source: str = "") -> Estimate:
    """Make an estimate from a measurement: low = minimum or p50, mid = p50, high = p95."""
    low = p50_ms if min_ms is None else min_ms
    if not 0 <= low <= p50_ms <= p95_ms:
        raise ValueError(f"not in order: min {low}, p50 {p50_ms}, p95 {p95_ms}")
    return Estimate(low, p50_ms, p95_ms, "measured", source=source)


def estimate(
    profile: Profile,
    workload: Workload,
    framework: str,
    *,
    threads: int | None = None,
    known: EstimateEvidence | None = None,
) -> Estimate:
    """Estimate the time of one inference of `workload` on `profile`.

    framework: its engine (`litert`, `onnxruntime`, ...).
    threads: default the profile's.

    Raises CannotEstimateError.
    """
    known = known or EstimateEvidence()
    case = _case(profile, workload, framework, threads)
    found = _estimate(case, known)
    if case.workload.precision != workload.precision:
        wider = f"{profile.core.type} cores have no 16-bit arithmetic: {framework} computes in float32"
        found = replace(found, notes=(wider, *found.notes))
    return replace(found, host=known.host)


def has_rates(profile: Profile) -> bool:
    """Whether its cores have known rates; others can only be measured."""
    return profile.core.type in constants()["cores"]


def has_anchor(profile: Profile, workload: Workload, framework: str, given: tuple[Anchor, ...] = ()) -> bool:
    """Whether the board's MobileNetV1 is known for this engine, precision and threads.

    Raises CannotEstimateError.
    """
    case = _case(profile, workload, framework, None)
    return workload.precision != "dynamic" and _own_anchor(case, given) is not None


def layer_terms(profile: Profile, workload: Workload, framework: str, threads: int) -> list[dict[str, float]]:
    """Return the roofline's milliseconds of each operation, by term, unscaled.

    Dynamic range counts as float32. Raises CannotEstimateError.
    """
    if workload.precision == "dynamic":
        workload = replace(workload, precision="float32")
    case = _case(profile, workload, framework, threads)
    return op_terms(case.machine(profile.core.clock_ghz), workload, workload.precision, case.kernels)


def _case(profile: Profile, workload: Workload, framework: str, threads: int | None) -> _Case:
    threads = profile.threads if threads is None else threads
    known = {**constants()["engines"], **constants()["stand_ins"]}
    where = profile.name
    if framework not in known:
        raise CannotEstimateError(f"unknown engine '{framework}'", where=where, do=MEASURE)
    if workload.unknown:
        names = ", ".join(sorted(set(workload.unknown))[:5])
        # An operation such as NonMaxSuppression makes answers of a free size, whatever its inputs' sizes are.
        free = all("known only at run time" in name for name in workload.unknown)
        do = "Fix the sizes of its inputs: edgekit build MODEL --shape NAME=1,3,224,224" if free else MEASURE
        if "NonMaxSuppression" in workload.unknown:
            do = f"Export it without NonMaxSuppression, which edgekit does itself. {MEASURE}"
        raise CannotEstimateError(f"the model has operations that cannot be counted: {names}", where=where, do=do)
    if workload.batch != 1:
        raise CannotEstimateError(f"the model takes {workload.batch} items at once", where=where, do=MEASURE)
    if not workload.ops:
        raise CannotEstimateError("the model has no operation that takes time", where=where, do=MEASURE)
    if not 1 <= threads <= profile.core.count:
        cores = f"{profile.core.count} core{'s' * (profile.core.count > 1)}"
        do = "Ask for 1 thread" if profile.core.count == 1 else f"Ask for 1 to {profile.core.count} threads"
        raise CannotEstimateError(f"{threads} threads on {cores}", where=where, do=do)
    if not has_rates(profile):
        raise CannotEstimateError(f"no rate was fitted for {profile.core.type} cores", where=where, do=MEASURE)
    stand_in = constants()["stand_ins"].get(framework)
    kernels = constants()["engines"][framework if stand_in is None else stand_in["engine"]]
    precision = "float32" if workload.precision == "dynamic" else workload.precision
    if precision not in kernels:
        raise CannotEstimateError(f"nothing was timed of {precision} with {framework}", where=where, do=MEASURE)
    if precision == "float16" and precision not in constants()["cores"][profile.core.type]:
        workload = replace(workload, precision="float32")
    return _Case(profile, workload, framework, kernels[precision], threads)


def _estimate(case: _Case, known: EstimateEvidence) -> Estimate:
    if case.workload.precision == "dynamic":
        # From float32's: what the workstation timed is the dynamic file, and float32's ratio is not known
        workload = case.workload
        base = _estimate(replace(case, workload=replace(workload, precision="float32")), replace(known, host=None))
        shape = "dense" if _mostly_dense(workload) else "convolutional"
        low, mid, high = constants()["dynamic"][case.engine][shape]
        took = f"dynamic range took {low:g} to {high:g} times float32 on x86-64 for {shape} networks"
        notes = (f"{took}; never timed on a board", *base.notes)
        return replace(base.scale(low, mid, high), grade="estimated", notes=notes)
    anchor = _own_anchor(case, known.anchors)
    if anchor is not None:
        return _anchored(case, anchor, known.host)
    stand_in = constants()["stand_ins"].get(case.engine)
    if stand_in is None:
        return _roofline(case)
    like = replace(case, engine=stand_in["engine"])
    rest = tuple(anchor for anchor in known.anchors if anchor.engine == like.engine)
    base = _estimate(like, EstimateEvidence(anchors=rest))
    spatial = any(op.kind in ("c3", "cx", "dw") for op in case.workload.ops)
    shape = "convolutional" if spatial and not _mostly_dense(case.workload) else "dense"
    least, factor, most = stand_in[shape]
    own = base.low_ms / base.mid_ms, base.high_ms / base.mid_ms
    both = _joined(own, (least / factor, most / factor))
    low, high = (factor * joined / one for joined, one in zip(both, own, strict=True))
    times = f"{factor:g} times {like.engine}'s estimate" if factor != 1 else f"{like.engine}'s estimate"
    known_of = "by nine published times of convolutional networks" if shape == "convolutional" else "by judgement"
    notes = (f"{case.engine} has no rates of its own: this is {times} with a wider range, {known_of}", *base.notes)
    return replace(base.scale(low, factor, high), grade="estimated", notes=notes)


def _mostly_dense(workload: Workload) -> bool:
    return 2 * sum(op.macs for op in workload.ops if op.kind == "fc") > workload.macs


def _own_anchor(case: _Case, given: tuple[Anchor, ...]) -> Anchor | None:
    """Return this engine's own anchor; for a stand-in only a measured one."""
    profile, precision = case.profile, case.workload.precision
    if case.engine in constants()["stand_ins"]:
        profile = replace(profile, anchors=())
        given = tuple(anchor for anchor in given if anchor.engine == case.engine)
    return choose_anchor(profile, given, case.engine, case.kernels, precision, case.threads)


def _roofline(case: _Case) -> Estimate:
    terms = case.terms(case.workload, case.profile.core.clock_ghz)
    total, core = sum(terms.values()), case.profile.core.type
    band, notes = _band("estimated"), []
    if case.workload.precision in constants()["cores"][core]["inferred"]:
        band = _joined(band, _band("inferred_rate"))
        notes.append(f"no {case.workload.precision} time of {core} was published: its rate is inferred from float16")
    if constants()["cores"][core].get("boards") == 1:
        low, high = _band("one_board")
        band = min(band[0], low), max(band[1], high)
        notes.append(f"times of {core} were published of one board alone, so the range is wider")
    if (spread := _apart(case.profile)) is not None:
        low, high = spread["estimated"]
        band = min(band[0], low), max(band[1], high)
        notes.append(caution(case.profile))
    band, remarks = _untested(case.workload, band)
    notes += remarks
    source = f"roofline fitted to published latencies of {core} and other cores, {case.kernels} kernels"
    return _ranged(total, band, "estimated", _largest(terms), (source, notes))


def _anchored(case: _Case, anchor: Anchor, host: HostTimes | None) -> Estimate:
    """Scale the anchor's time by the ratio of the two rooflines."""
    precision, clock = case.workload.precision, case.profile.core.clock_ghz
    reference = mobilenet_v1(precision)
    terms, anchor_terms = case.terms(case.workload, clock), case.terms(reference, anchor.clock_ghz)
    total = anchored_ms(terms, anchor_terms, anchor.ms[precision])
    how, band, notes = "the roofline's ratio to it", _band("carried"), []
    engines = constants()["engines"]
    # whether what ran on the workstation is what will run on the board
    same = host is not None and case.engine in engines and engines.get(host.engine, {}).get(precision) == case.kernels
    if host is not None and (same or host.engine == case.engine):
        scaled = sum(case.terms(reference, clock).values()) / sum(anchor_terms.values())
        total = blend(total, host.ratio * scaled * anchor.ms[precision])
        tested = case.engine in constants()["engines"]
        band = _band("blended") if tested else band
        ratio = f"{host.ratio:.3g} times its time on this workstation ({host.engine}, one thread)"
        how = f"{ratio}, and the roofline's ratio"
    if case.engine not in constants()["engines"]:
        notes.append(f"ratios to MobileNetV1 were never tested for {case.engine}")
    if anchor.grade == "derived":
        spread = _apart(case.profile)
        band = _joined(band, _band("derived_anchor") if spread is None else spread["boards"])
        notes.append("the board's MobileNetV1 was derived, not measured, so the range is wider")
        notes += [] if spread is None else [caution(case.profile)]
    if anchor.clock_ghz != clock:
        notes.append(f"scaled from {anchor.clock_ghz:g} to {clock:g} GHz")
    error, (low, high) = anchor.ms[precision] / sum(anchor_terms.values()), _band("estimated")
    if not low <= error <= high:
        notes.append(
            f"MobileNetV1 takes {error:.2f} times what the roofline says on this board: "
            "something that the roofline leaves out, most likely memory, limits it"
        )
    band, remarks = _untested(case.workload, band)
    notes += remarks
    by = f" by {anchor.engine} {anchor.engine_version}" if anchor.engine else ""
    threads = "1 thread" if anchor.threads == 1 else f"{anchor.threads} threads"
    source = f"{anchor.grade} MobileNetV1, {anchor.ms[precision]:g} ms{by} with {threads}: {anchor.source}; {how}"
    return _ranged(total, band, "anchored", _largest(terms), (source, notes))


def _apart(profile: Profile) -> dict[str, Any] | None:
    """Return the spread of a processor whose boards differ beyond the bands, or None."""
    found: dict[str, dict[str, Any]] = constants()["apart"]
    return next((one for name, one in found.items() if name in profile.soc.lower()), None)


def caution(profile: Profile) -> str:
    """Return the note for a processor with widely spread published times, or ""."""
    spread = _apart(profile)
    if spread is None:
        return ""
    low, high = spread["boards"]
    return (
        f"estimates err most for {profile.soc}: the {spread['times']} published times of its boards are apart by x "
        f"{low:.2g} to {high:.2g} in the median, so the range is wider; `edgekit profiles measure` on your board "
        "settles it"
    )


def _untested(workload: Workload, band: Band) -> tuple[Band, list[str]]:
    """Widen the band, with notes, for untested sizes, attention and recurrent layers."""
    notes = []
    kinds = {
        "products of two computed tensors, as in attention": workload.computed_macs,
        "of recurrent layers": workload.recurrent_macs,
    }
    for kind, macs in kinds.items():
        if macs:
            share = 100 * macs / workload.macs
            are = f"{share:.2g} % of its multiply-accumulates are {kind}"
            notes.append(f"{are}; no network with any was tested, so the range is wider")
            band = _joined(band, _band("untested_size"))
    least, most = constants()["tested"]["macs"]
    beyond = constants()["tested"]["beyond"]
    if least / beyond <= workload.macs <= most * beyond:
        return band, notes
    than = f"smaller than {least / 1e6:.0f}" if workload.macs < least else f"larger than {most / 1e6:,.0f}"
    size = f"{workload.macs / 1e6:,.3g} million multiply-accumulates"
    note = f"it has {size}; none {than} was tested, so the range is wider"
    return _joined(band, _band("untested_size")), [*notes, note]


def _band(name: str) -> Band:
    low, high = constants()["bands"][name]
    return low, high


def _joined(band: Band, other: Band) -> Band:
    """Combine two independent errors: logarithms added in quadrature."""
    low = math.exp(-math.hypot(math.log(band[0]), math.log(other[0])))
    return low, math.exp(math.hypot(math.log(band[1]), math.log(other[1])))


def _ranged(ms: float, band: Band, grade: Grade, dominated_by: str, reasons: tuple[str, list[str]]) -> Estimate:
    source, notes = reasons
    return Estimate(ms * band[0], ms, ms * band[1], grade, dominated_by, source, tuple(notes))


def _largest(terms: dict[str, float]) -> str:
    return DOMINATED[max(terms, key=lambda kind: terms[kind])]

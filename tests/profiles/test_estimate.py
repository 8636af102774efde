"""A range and its grade for what the evidence covers, a refusal for the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_profiles import (
    CannotEstimateError,
    Estimate,
    Op,
    Profile,
    Workload,
    estimate,
    load,
    measured,
    mobilenet_v1,
)
from edgekit_profiles.roofline import Machine, constants, predict

PI4, PI5 = load("raspberry-pi-4"), load("raspberry-pi-5")


def bare(profile: Profile) -> Profile:
    return replace(profile, anchors=())


def test_mobilenet_v1_has_the_published_size():
    work = mobilenet_v1("int8")
    assert round(work.macs / 1e6) == 569
    assert round(work.weights / 1e6, 2) == 4.21
    assert round(sum(op.activation_elements for op in work.ops) / 1e6, 1) == 10.2
    assert len(work.ops) == 29


# What the fit itself predicts for MobileNetV1 with XNNPACK, before its constants were rounded for the table.
FIT = {
    ("cortex-a72", 1.5, 12.8, "float32"): (112.271, 47.074),
    ("cortex-a72", 1.5, 12.8, "int8"): (68.145, 25.059),
    ("cortex-a76", 2.4, 17.1, "float32"): (33.252, 17.309),
    ("cortex-a76", 2.4, 17.1, "int8"): (13.364, 6.121),
    ("cortex-a57", 1.479, 25.6, "int8"): (62.877, 22.391),
}


@pytest.mark.parametrize("case", FIT)
def test_the_roofline_is_the_fit(case: tuple[str, float, float, str]):
    core, clock, bandwidth, precision = case
    for threads, expected in zip((1, 4), FIT[case], strict=True):
        terms = predict(Machine(core, clock, bandwidth, threads), mobilenet_v1(precision), precision, "xnnpack")
        assert sum(terms.values()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("precision", "ms"), [("float32", 77), ("int8", 24)])
def test_the_anchor_itself_is_given_back_with_its_band(precision: str, ms: float):
    got = estimate(PI4, mobilenet_v1(precision), "litert")
    assert got.grade == "anchored"
    assert got.mid_ms == pytest.approx(ms)
    assert (got.low_ms / ms, got.high_ms / ms) == (pytest.approx(0.77), pytest.approx(1.76))
    assert "XNNPACK README" in got.source


def test_the_memory_bound_float_of_raspberry_pi_4_is_corrected_and_said():
    alone, anchored = (estimate(board, mobilenet_v1("float32"), "litert") for board in (bare(PI4), PI4))
    assert alone.mid_ms < 50 < anchored.mid_ms
    assert any("most likely memory" in note for note in anchored.notes)


def test_a_derived_anchor_widens_the_range_and_says_so():
    got = estimate(PI5, mobilenet_v1("int8"), "litert")
    assert got.grade == "anchored"
    assert got.low_ms / got.mid_ms < 0.77
    assert got.high_ms / got.mid_ms > 1.76
    assert any("derived, not measured" in note for note in got.notes)


def test_without_an_anchor_the_roofline_stands_alone_with_its_band():
    got = estimate(bare(PI4), mobilenet_v1("int8"), "litert")
    assert got.grade == "estimated"
    assert (got.low_ms / got.mid_ms, got.high_ms / got.mid_ms) == (pytest.approx(0.64), pytest.approx(1.5))
    assert got.dominated_by == "1x1 convolutions"


def test_an_anchor_holds_for_its_own_threads_and_kernels_only():
    assert estimate(PI4, mobilenet_v1("int8"), "litert", threads=1).grade == "estimated"
    assert estimate(PI4, mobilenet_v1("int8"), "tflite-runtime").grade == "estimated"
    assert estimate(PI4, mobilenet_v1("float32"), "tflite-runtime").grade == "anchored"


def test_a_faster_clock_than_the_anchors_is_scaled_and_said():
    faster = replace(PI4, core=replace(PI4.core, clock_ghz=1.8))
    got = estimate(faster, mobilenet_v1("int8"), "litert")
    assert 24 / 1.2 < got.mid_ms < 24
    assert "scaled from 1.5 to 1.8 GHz" in got.notes


def test_onnx_runtime_has_no_factor_of_its_own_and_says_so():
    tflite, onnx = (estimate(PI4, mobilenet_v1("int8"), engine) for engine in ("litert", "onnxruntime"))
    assert onnx.grade == "estimated"
    assert onnx.mid_ms == tflite.mid_ms
    assert onnx.low_ms < tflite.low_ms
    assert onnx.high_ms > 2 * tflite.high_ms
    assert "no factor could be fitted for onnxruntime" in onnx.notes[0]


def test_dynamic_range_is_slower_than_float_on_convolutions_and_faster_on_dense_layers():
    dense = Workload("dynamic", (Op("fc", 10**7, 5000, 10**7),))
    for work, slower in ((mobilenet_v1("dynamic"), True), (dense, False)):
        dynamic, plain = estimate(PI4, work, "litert"), estimate(PI4, replace(work, precision="float32"), "litert")
        assert (dynamic.mid_ms > plain.mid_ms) is slower
        assert dynamic.grade == "estimated"
        assert "never timed on a board" in dynamic.notes[0]
    onnx, plain = (estimate(PI4, mobilenet_v1(precision), "onnxruntime") for precision in ("dynamic", "float32"))
    assert onnx.mid_ms > 4 * plain.mid_ms


def op(kind: str, macs: int = 10**6) -> Op:
    return Op(kind, macs, 10**4, 10**4)  # type: ignore[arg-type]


REFUSED = {
    "operations that cannot be counted": (Workload("int8", (op("pw"),), ("LSTM",)), {}, "cannot be counted: LSTM"),
    "a batch": (Workload("int8", (op("pw"),), batch=4), {}, "takes 4 items at once"),
    "nothing": (Workload("int8", ()), {}, "no operation that takes time"),
    "an unknown kind": (Workload("int8", (op("attention"),)), {}, "kind 'attention'"),
    "more threads than cores": (mobilenet_v1("int8"), {"threads": 5}, "5 threads on 4 cores"),
    "no threads": (mobilenet_v1("int8"), {"threads": 0}, "0 threads on 4 cores"),
    "an unknown engine": (mobilenet_v1("int8"), {"framework": "ncnn"}, "engine 'ncnn'"),
}


@pytest.mark.parametrize(("work", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_evidence_does_not_cover_is_refused(work: Workload, options: dict[str, object], message: str):
    with pytest.raises(CannotEstimateError) as caught:
        estimate(PI4, work, **{"framework": "litert", **options})  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.do


BOARDS = {
    "a core that was never fitted": (load("x86-64"), "float32", "no rate was fitted for x86-64 cores"),
    "a precision that was never fitted": (
        replace(bare(PI4), core=replace(PI4.core, type="cortex-a55")), "float32", "no float32 rate"),
    "a memory of unknown speed": (
        replace(PI4, memory=replace(PI4.memory, bandwidth_gbps=None)), "int8", "memory's bandwidth"),
}  # fmt: skip


@pytest.mark.parametrize(("profile", "precision", "message"), BOARDS.values(), ids=BOARDS)
def test_boards_without_figures_are_refused(profile: Profile, precision: str, message: str):
    with pytest.raises(CannotEstimateError, match=message):
        estimate(profile, mobilenet_v1(precision), "litert")  # type: ignore[arg-type]


def test_a_measured_time_is_its_own_range():
    assert measured(5.0, 6.5, min_ms=4.5, source="here") == Estimate(4.5, 5.0, 6.5, "measured", None, "here")
    assert measured(5.0, 6.5).low_ms == 5.0
    with pytest.raises(ValueError, match="not in order"):
        measured(6.0, 5.0)


def test_every_engine_with_a_dynamic_factor_is_one_that_can_be_estimated():
    table = constants()
    assert set(table["dynamic"]) == {*table["engines"], *table["stand_ins"]}
    for shapes in table["dynamic"].values():
        assert all(low <= mid <= high for low, mid, high in shapes.values())


kinds = st.sampled_from(["pw", "c3", "cx", "dw", "fc", "ew"])
sizes = st.integers(1, 10**9)
ops = st.lists(st.builds(Op, kinds, sizes, sizes, sizes), min_size=1, max_size=20).map(
    lambda found: tuple(replace(item, macs=0) if item.kind == "ew" else item for item in found)
)
precisions = st.sampled_from(["float32", "int8", "dynamic"])
engines = st.sampled_from(["litert", "tflite-runtime", "onnxruntime"])
boards = st.sampled_from(["raspberry-pi-4", "raspberry-pi-5", "jetson-nano"]).map(load)


@given(boards, ops, precisions, engines, st.integers(1, 4))
def test_a_range_is_in_order_and_more_work_never_takes_less(profile, work, precision, engine, threads):
    less = estimate(profile, Workload(precision, work), engine, threads=threads)
    more = estimate(profile, Workload(precision, (*work, op("pw"))), engine, threads=threads)
    assert 0 < less.low_ms <= less.mid_ms <= less.high_ms < math.inf
    assert less.dominated_by
    assert less.source
    if precision != "dynamic":
        assert more.mid_ms > less.mid_ms

"""A range and its grade for what the evidence covers, a refusal for the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_profiles import (
    Anchor,
    CannotEstimateError,
    Estimate,
    EstimateEvidence,
    HostTimes,
    Op,
    Profile,
    Workload,
    caution,
    layer_terms,
    load,
    measured_estimate,
    mobilenet_v1,
)
from edgekit_profiles.anchors import ANCHOR_MODEL
from edgekit_profiles.estimate import estimate
from edgekit_profiles.workload import CoreModel, constants, op_terms, predict

PI4, PI5 = load("raspberry-pi-4"), load("raspberry-pi-5")


def bare(profile: Profile) -> Profile:
    return replace(profile, anchors=())


def test_mobilenet_v1_has_the_published_size():
    work = mobilenet_v1("int8")
    assert round(work.macs / 1e6) == 569
    assert round(work.weights / 1e6, 2) == 4.21
    assert round(sum(op.activation_elements for op in work.ops) / 1e6, 1) == 10.2
    assert len(work.ops) == 29


def bands(name: str) -> tuple[float, float]:
    low, high = constants()["bands"][name]
    return low, high


def factors(got: Estimate) -> tuple[float, float]:
    return got.low_ms / got.mid_ms, got.high_ms / got.mid_ms


def test_the_roofline_is_its_formula():
    """Worked out by hand from the constants, for one operation of each of two kinds."""
    table = constants()
    core, kernels = table["cores"]["cortex-a72"], table["frameworks"]["xnnpack"]
    work = Workload("int8", (Op("dw", 9_000_000, 2_000_000, 1000), Op("ew", 0, 500_000, 0)))
    terms = predict(CoreModel("cortex-a72", 1.5, 12.8, 4), work, "int8", "xnnpack")
    speed = core["int8"] * table["speeds"]["plain"]["int8"]["dw"] * kernels["int8"]["dw"]
    parallel = 4 ** table["machine"]["thread_exponent"]["int8"]
    assert terms["dw"] == pytest.approx(1e3 * 9_000_000 / (speed * 1.5e9 * parallel))
    assert terms["memory"] == pytest.approx(1e3 * 2_501_000 / (12.8e9 * core["bandwidth_efficiency"]))
    assert terms["overhead"] == pytest.approx(2e-3 * core["overhead_us"] * kernels["overhead"] / 1.5)
    assert set(terms) == {"dw", "memory", "overhead"}


def test_layers_add_up_to_the_whole():
    machine = CoreModel("cortex-a76", 2.4, 17.1, 4)
    whole = predict(machine, mobilenet_v1("int8"), "int8", "xnnpack")
    layers = op_terms(machine, mobilenet_v1("int8"), "int8", "xnnpack")
    assert len(layers) == 29
    assert sum(sum(layer.values()) for layer in layers) == pytest.approx(sum(whole.values()))


@pytest.mark.parametrize(("precision", "ms"), [("float32", 77), ("int8", 24)])
def test_the_anchor_itself_is_given_back_with_its_band(precision: str, ms: float):
    got = estimate(PI4, mobilenet_v1(precision), "litert")
    assert got.grade == "anchored"
    assert got.mid_ms == pytest.approx(ms)
    assert factors(got) == pytest.approx(bands("carried"))
    assert "XNNPACK README" in got.source


def test_a_ratio_measured_on_the_workstation_narrows_the_range_and_is_named():
    work = replace(mobilenet_v1("int8"), ops=mobilenet_v1("int8").ops[:-1])
    alone = estimate(PI4, work, "litert")
    both = estimate(PI4, work, "litert", known=EstimateEvidence(host=HostTimes(2.0, 4.0, "litert")))
    assert both.grade == alone.grade == "anchored"
    assert both.mid_ms == pytest.approx((0.5 * 24) ** 0.75 * alone.mid_ms**0.25)
    assert factors(both) == pytest.approx(bands("blended"))
    assert math.log(bands("blended")[1] / bands("blended")[0]) < math.log(bands("carried")[1] / bands("carried")[0])
    assert "0.5 times its time on this workstation" in both.source
    assert "workstation" not in alone.source
    assert both.host == HostTimes(2.0, 4.0, "litert")


def test_a_ratio_of_other_kernels_is_not_used():
    host = EstimateEvidence(host=HostTimes(2.0, 4.0, "litert"))
    for engine, precision in (("tflite-runtime", "int8"), ("onnxruntime", "float32")):
        work = mobilenet_v1(precision)
        assert replace(estimate(PI4, work, engine, known=host), host=None) == estimate(PI4, work, engine)
    assert "0.5 times" in estimate(PI4, mobilenet_v1("float32"), "tflite-runtime", known=host).source


def anchor(engine: str, **given: object) -> Anchor:
    kernels = "xnnpack" if engine == "litert" else engine
    anchor = Anchor(
        kernels, ANCHOR_MODEL, 4, 1.5, {"float32": 70.0, "int8": 20.0}, "measured", "our board", engine, "2.3.0"
    )
    return replace(anchor, **given)  # type: ignore[arg-type]


def test_an_anchor_measured_on_the_board_goes_before_a_published_one_for_its_engine_alone():
    known = EstimateEvidence(anchors=(anchor("litert"),))
    got = estimate(PI4, mobilenet_v1("int8"), "litert", known=known)
    assert (got.grade, got.mid_ms) == ("anchored", pytest.approx(20.0))
    assert "by litert 2.3.0" in got.source
    assert estimate(PI4, mobilenet_v1("float32"), "tflite-runtime", known=known).mid_ms == pytest.approx(77.0)


def test_an_anchor_of_onnx_runtime_makes_its_estimate_anchored_and_says_what_was_never_tested():
    got = estimate(PI4, mobilenet_v1("int8"), "onnxruntime", known=EstimateEvidence(anchors=(anchor("onnxruntime"),)))
    assert (got.grade, got.mid_ms) == ("anchored", pytest.approx(20.0))
    assert "never tested for onnxruntime" in got.notes[0]
    assert estimate(PI4, mobilenet_v1("int8"), "onnxruntime").grade == "estimated"


def test_an_anchor_file_of_litert_also_serves_what_litert_stands_in_for():
    alone, told = (
        estimate(PI4, mobilenet_v1("int8"), "onnxruntime", known=known)
        for known in (EstimateEvidence(), EstimateEvidence(anchors=(anchor("litert"),)))
    )
    assert told.grade == alone.grade == "estimated"
    assert told.mid_ms == pytest.approx(2.22 * 20.0)


def test_the_memory_bound_float_of_raspberry_pi_4_is_corrected_and_said():
    alone, anchored = (estimate(board, mobilenet_v1("float32"), "litert") for board in (bare(PI4), PI4))
    assert alone.mid_ms < 60 < anchored.mid_ms
    assert factors(alone) == pytest.approx(bands("estimated"))
    slow = replace(PI4, anchors=(replace(PI4.anchors[0], ms={"float32": 150.0}),))
    assert any("most likely memory" in note for note in estimate(slow, mobilenet_v1("float32"), "litert").notes)


def test_a_derived_anchor_widens_the_range_and_says_so():
    got = estimate(PI5, mobilenet_v1("int8"), "litert")
    assert got.grade == "anchored"
    assert got.low_ms / got.mid_ms < bands("carried")[0]
    assert got.high_ms / got.mid_ms > bands("carried")[1]
    assert any("derived, not measured" in note for note in got.notes)


def test_without_an_anchor_the_roofline_stands_alone_with_its_band():
    got = estimate(bare(PI4), mobilenet_v1("int8"), "litert")
    assert got.grade == "estimated"
    assert factors(got) == pytest.approx(bands("estimated"))
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


def test_onnx_runtime_has_litert_s_estimate_times_its_factor_for_convolutions_and_says_so():
    tflite, onnx = (estimate(PI4, mobilenet_v1("int8"), engine) for engine in ("litert", "onnxruntime"))
    assert onnx.grade == "estimated"
    assert onnx.mid_ms == pytest.approx(2.22 * tflite.mid_ms)
    assert onnx.high_ms / onnx.low_ms > tflite.high_ms / tflite.low_ms
    assert onnx.notes[0].startswith("onnxruntime has no rates of its own: this is 2.22 times litert's estimate")


def test_no_time_of_a_network_without_convolutions_was_published_so_its_factor_is_one_and_its_range_wider():
    for op in (Op("fc", 10**8, 10**5, 10**8), Op("pw", 10**8, 10**6, 10**6)):
        work = Workload("float32", (op,))
        tflite, onnx = (estimate(PI4, work, engine) for engine in ("litert", "onnxruntime"))
        assert onnx.mid_ms == tflite.mid_ms
        assert onnx.low_ms < tflite.low_ms / 1.3
        assert onnx.high_ms > 1.5 * tflite.high_ms
        assert "by judgement" in onnx.notes[0]


def test_a_stand_ins_range_joins_both_errors_as_any_two_that_know_nothing_of_each_other():
    tflite, onnx = (estimate(PI4, mobilenet_v1("int8"), engine) for engine in ("litert", "onnxruntime"))
    least, factor, most = constants()["stand_ins"]["onnxruntime"]["convolutional"]
    for own, other, both in (
        (tflite.low_ms / tflite.mid_ms, least / factor, onnx.low_ms / onnx.mid_ms),
        (tflite.high_ms / tflite.mid_ms, most / factor, onnx.high_ms / onnx.mid_ms),
    ):
        assert abs(math.log(both)) == pytest.approx(math.hypot(math.log(own), math.log(other)))
        assert abs(math.log(other)) < abs(math.log(both)) < abs(math.log(own) + math.log(other))


@pytest.mark.parametrize("engine", ["litert", "onnxruntime"])
def test_attention_is_estimated_in_a_wider_range_that_says_why(engine):
    ops = (Op("pw", 10**8, 10**6, 10**6), Op("pw", 10**8, 10**6, 0, computed=True))
    plain = estimate(PI4, Workload("float32", (ops[0], replace(ops[1], computed=False))), engine)
    attention = estimate(PI4, Workload("float32", ops), engine)
    assert attention.mid_ms == plain.mid_ms
    assert attention.low_ms < plain.low_ms
    assert attention.high_ms > plain.high_ms
    assert any(
        note.startswith("50 % of its multiply-accumulates are products of two computed") for note in attention.notes
    )


def test_dynamic_range_is_slower_than_float_on_convolutions_and_faster_on_dense_layers():
    """A network that is dense by half counts as a convolutional one."""
    dense = Workload("dynamic", (Op("fc", 10**7, 5000, 10**7),))
    half = Workload("dynamic", (Op("fc", 10**7, 5000, 10**7), Op("pw", 10**7, 5000, 10**4)))
    for work, slower in ((mobilenet_v1("dynamic"), True), (half, True), (dense, False)):
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
    "an unknown engine": (mobilenet_v1("int8"), {"framework": "mnn"}, "engine 'mnn'"),
}


def test_a_free_size_is_refused_with_the_option_that_fixes_it():
    with pytest.raises(CannotEstimateError) as caught:
        estimate(PI4, Workload("int8", (op("pw"),), ("Conv of a shape known only at run time",)), "litert")
    assert "--shape" in caught.value.do


def test_a_size_that_an_operation_leaves_free_is_not_said_to_be_fixed_by_an_option():
    unknown = ("NonMaxSuppression", "Gather of a shape known only at run time")
    with pytest.raises(CannotEstimateError, match="NonMaxSuppression") as caught:
        estimate(PI4, Workload("int8", (op("pw"),), unknown), "litert")
    assert "--shape" not in caught.value.do
    assert caught.value.do.startswith("Export it without NonMaxSuppression, which edgekit does itself. Measure it on")


@pytest.mark.parametrize(("work", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_evidence_does_not_cover_is_refused(work: Workload, options: dict[str, object], message: str):
    with pytest.raises(CannotEstimateError) as caught:
        estimate(PI4, work, **{"framework": "litert", **options})  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.do


BOARDS = {
    "a core that was never fitted": (load("x86-64"), "float32", "no rate was fitted for x86-64 cores"),
    "ARMv6": (replace(bare(PI4), core=replace(PI4.core, type="arm1176")), "int8", "no rate was fitted for arm1176"),
    "a memory of unknown speed": (
        replace(PI4, memory=replace(PI4.memory, bandwidth_gbps=None)), "int8", "memory bandwidth"),
}  # fmt: skip


@pytest.mark.parametrize(("profile", "precision", "message"), BOARDS.values(), ids=BOARDS)
def test_boards_without_figures_are_refused(profile: Profile, precision: str, message: str):
    with pytest.raises(CannotEstimateError, match=message):
        estimate(profile, mobilenet_v1(precision), "litert")  # type: ignore[arg-type]


def test_a_rate_that_was_inferred_has_a_wider_range_and_says_so():
    board = replace(bare(PI4), core=replace(PI4.core, type="cortex-a55"))
    plain, inferred = (estimate(board, mobilenet_v1(precision), "litert") for precision in ("int8", "float32"))
    assert inferred.high_ms / inferred.mid_ms > plain.high_ms / plain.mid_ms
    assert "inferred from float16" in inferred.notes[0]
    assert plain.notes == ()


def test_a_network_far_smaller_than_any_that_was_tested_has_a_wider_range_and_says_so():
    tiny = Workload("int8", (Op("fc", 10_000, 300, 10_000),))
    known = EstimateEvidence(host=HostTimes(0.005, 4.0, "litert"))
    for board, name in ((PI4, "blended"), (bare(PI4), "estimated")):
        got = estimate(board, tiny, "litert", known=known)
        assert factors(got)[1] > bands(name)[1] * 1.3
        assert any("0.01 million multiply-accumulates" in note for note in got.notes)


def test_up_to_a_known_factor_beyond_what_was_tested_the_range_stays():
    least, most = constants()["tested"]["macs"]
    beyond = constants()["tested"]["beyond"]
    for macs, wider in (
        (math.ceil(least / beyond), False),
        (math.ceil(least / beyond) - 1, True),
        (most * beyond, False),
        (most * beyond + 1, True),
    ):
        notes = estimate(PI4, Workload("int8", (Op("fc", int(macs), 300, 10_000),)), "litert").notes
        assert any("was tested, so the range is wider" in note for note in notes) == wider, macs


def test_layers_of_a_dynamic_network_are_those_of_float():
    floats, dynamic = (layer_terms(PI4, mobilenet_v1(precision), "litert", 4) for precision in ("float32", "dynamic"))
    assert floats == dynamic
    assert len(floats) == 29


def test_a_measured_time_is_its_own_range():
    assert measured_estimate(5.0, 6.5, min_ms=4.5, source="here") == Estimate(4.5, 5.0, 6.5, "measured", None, "here")
    assert measured_estimate(5.0, 6.5).low_ms == 5.0
    assert measured_estimate(5.0, 5.0, min_ms=0.0) == Estimate(0.0, 5.0, 5.0, "measured")
    with pytest.raises(ValueError, match="not in order"):
        measured_estimate(6.0, 5.0)


def test_ncnn_has_an_estimate_in_16_bits_and_on_older_cores_that_of_32():
    pi_5, work = load("raspberry-pi-5"), mobilenet_v1("float16")
    assert estimate(pi_5, work, "ncnn").mid_ms < 0.7 * estimate(pi_5, mobilenet_v1("float32"), "ncnn").mid_ms
    older = estimate(PI4, work, "ncnn")
    assert older.notes[0] == "cortex-a72 cores have no 16-bit arithmetic: ncnn computes in float32"
    assert older.mid_ms == estimate(PI4, mobilenet_v1("float32"), "ncnn").mid_ms
    with pytest.raises(CannotEstimateError, match="nothing was timed of float16 with litert"):
        estimate(pi_5, work, "litert")


def test_every_engine_with_a_dynamic_factor_is_one_that_can_be_estimated():
    table = constants()
    assert set(table["dynamic"]) == {*table["engines"], *table["stand_ins"]} - {"ncnn"}  # which has no such recipe
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


def test_boards_that_were_published_far_apart_have_a_wider_range_and_it_is_said():
    work = mobilenet_v1("int8")
    board = replace(load("rock-5b"), anchors=())
    other = replace(board, soc="another")
    wide, usual = estimate(board, work, "litert"), estimate(other, work, "litert")
    assert wide.mid_ms == usual.mid_ms
    assert (wide.high_ms / wide.mid_ms, usual.high_ms / usual.mid_ms) == (pytest.approx(2.731), pytest.approx(1.916))
    assert any(
        note.startswith("estimates err most for Rockchip RK3588: the 172 published times") for note in wide.notes
    )
    assert caution(board) in wide.notes
    assert not any("err most" in note for note in usual.notes)
    assert caution(other) == ""


def test_a_derived_anchor_of_such_a_board_is_no_surer_than_its_boards_are_alike():
    work = mobilenet_v1("int8")
    for name in ("rock-5b", "orange-pi-5"):
        board = load(name)
        found, usual = estimate(board, work, "litert"), estimate(replace(board, soc="another"), work, "litert")
        assert found.grade == usual.grade == "anchored"
        assert found.high_ms > usual.high_ms
        assert any("err most" in note for note in found.notes)
        measured_there = replace(board, anchors=tuple(replace(one, grade="measured") for one in board.anchors))
        assert not any("err most" in note for note in estimate(measured_there, work, "litert").notes)

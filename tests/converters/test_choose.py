"""Every candidate is chosen or refused once, with a reason; what is chosen keeps every limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_converters.choose import NOISE, Candidate, Choice, ChoiceLimits, choose
from edgekit_converters.fidelity.result import Decisions, FewLevels, Fidelity, OutputDrift, Score, Share
from edgekit_profiles import Estimate, RuntimeSupport, installable, load, measured_estimate

BOTH = (
    RuntimeSupport("litert", "tflite", True, "2.3.0", "fits"),
    RuntimeSupport("tflite-runtime", "tflite", False, None, "no wheel"),
    RuntimeSupport("onnxruntime", "onnx", True, "1.31.1", "fits"),
)


def fidelity(drop: float | None = 0.0, **more: object) -> Fidelity:
    known = {
        "items": 200, "metric": None if drop is None else "top1", "original": 0.9, "artifact": 0.9, "drop": drop,
        "ci95": None, "agreement": 1.0, "cosine": 0.999, "sqnr_db": 30.0, "quantized_macs": 1.0,
        "quantized_weights": 1.0, "engine": "litert",
    }  # fmt: skip
    return Fidelity(**{**known, **more})  # type: ignore[arg-type]


def estimated(low: float, mid: float, high: float, grade: str = "estimated") -> Estimate:
    return Estimate(low, mid, high, grade)  # type: ignore[arg-type]


def candidate(recipe: str, estimate: Estimate | None, size: int = 100, **more: object) -> Candidate:
    kind, precision = recipe.split("-")[:2]
    precision = {"f32": "float32"}.get(precision, precision)
    known = {"fidelity": fidelity(), **more}
    return Candidate(recipe, kind, precision, size, estimate=estimate, **known)  # type: ignore[arg-type]


def codes(choice: Choice) -> dict[str, str]:
    return {refusal.recipe: refusal.code for refusal in choice.refused}


def reason(choice: Choice, recipe: str) -> str:
    return next(refusal.reason for refusal in choice.refused if refusal.recipe == recipe)


def test_a_board_without_a_runtime_refuses_everything_with_its_python_as_the_reason():
    candidates = [candidate("tflite-int8", None), candidate("onnx-f32", None, failed="not tried")]
    choice = choose("jetson-nano", candidates, ChoiceLimits(), installable(load("jetson-nano")))
    assert choice.chosen is None
    assert codes(choice) == {"tflite-int8": "runtime-unavailable", "onnx-f32": "runtime-unavailable"}
    assert all("Python 3.6 is supported by no current wheel" in refusal.reason for refusal in choice.refused)


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_refused_for_times_of_a_busy_machine(busy):
    """Those of INT8 are ten times the float's: the machine's others came in between."""
    slow, fast = (replace(estimated(*ms, "measured"), busy=busy) for ms in ((300, 393, 430), (20, 25, 30)))
    candidates = [candidate("tflite-int8", slow, 100), candidate("tflite-f32", fast, 400)]
    choice = choose("b", candidates, ChoiceLimits(), BOTH)
    assert codes(choice).get("tflite-int8") == (None if busy else "slower")
    assert choice.chosen.recipe == ("tflite-int8" if busy else "tflite-f32")
    in_time = choose("b", candidates[:1], ChoiceLimits(budget_ms=100), BOTH)
    assert codes(in_time) == ({} if busy else {"tflite-int8": "budget"})
    noted = choose("b", [candidate("tflite-int8", replace(slow, notes=("it was busy",)))], ChoiceLimits(), BOTH)
    assert ("it was busy" in noted.notes) is busy


def test_a_format_without_any_engine_is_refused():
    choice = choose("b", [candidate("tensorrt-int8", estimated(1, 2, 3))], ChoiceLimits(), BOTH)
    assert codes(choice) == {"tensorrt-int8": "runtime-unavailable"}


def test_a_failed_conversion_says_what_failed():
    choice = choose(
        "b", [candidate("tflite-int8", None, failed="operation LSTM has no int8 form")], ChoiceLimits(), BOTH
    )
    assert codes(choice) == {"tflite-int8": "conversion-failed"}
    assert reason(choice, "tflite-int8") == "operation LSTM has no int8 form"


@pytest.mark.parametrize("drop", [0.95 - 0.90, 1.0 - 0.95, 0.05, -0.02])
def test_a_drop_equal_to_the_limit_passes_despite_float_noise(drop):
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=fidelity(drop))
    assert choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH).chosen is item


def test_a_larger_drop_is_refused_with_the_drop_the_limit_and_the_interval():
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=fidelity(0.0725, ci95=(0.031, 0.114)))
    choice = choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH)
    assert codes(choice) == {"tflite-int8": "drop"}
    assert reason(choice, "tflite-int8") == (
        "top1 drops by 7.25 points (95 % interval 3.1 to 11.4) on 200 items, more than the 5 allowed"
    )


def test_without_labels_the_limit_applies_to_the_disagreement():
    items = [
        candidate("tflite-int8", estimated(1, 2, 3), fidelity=fidelity(None, agreement=0.94)),
        candidate("tflite-f32", estimated(4, 5, 6), fidelity=fidelity(None, agreement=0.95)),
    ]
    choice = choose("b", items, ChoiceLimits(max_drop=0.05), BOTH)
    assert choice.chosen is items[1]
    assert "6 % of 200 items get another answer" in reason(choice, "tflite-int8")


def test_a_drop_that_was_never_measured_does_not_keep_a_limit():
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=None)
    assert codes(choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH)) == {"tflite-int8": "drop"}
    assert choose("b", [item], ChoiceLimits(), BOTH).chosen is item


def test_a_task_without_metric_or_classes_is_held_to_its_cosine():
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=fidelity(None, agreement=None))
    assert choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH).chosen is item
    far = candidate("tflite-int8", estimated(1, 2, 3), fidelity=replace(item.fidelity, cosine=0.93))
    choice = choose("b", [far], ChoiceLimits(max_drop=0.05), BOTH)
    assert "cosine with the original's is 0.9300" in reason(choice, "tflite-int8")


def drifted(name="out", **changes):
    known = {"agreement": None, "agreement_top5": None, "agreement_sure": None, "cosine": 1.0,
        "cosine_ci95": (1.0, 1.0),
             "sqnr_db": 20.0, "sqnr_ci95": None, "worst": 1.0}  # fmt: skip
    return OutputDrift(name, **(known | changes))


OUTPUTS = {
    "number": (drifted(kind="numbers", spread_error=0.08),
        "the error of 'out' is 8 % of what the original's answers vary by"),
    "probability": (drifted(kind="probabilities", spread_error=0.3), "the error of 'out' is 9 % of the variance"),
    "offset": (drifted(spread_error=0.5),
        "its answers have, without what is the same for every item, a cosine of about 0.8944"),
    "levels": (drifted(few_levels=FewLevels(2, 0.0, 0.6, (4, 21))),
        "in channels 4 to 21 of 'out' 2 of 256 levels are left"),
    "channel": (drifted(worst_channel_db=0.0), "in their worst channels a cosine of about 0.7071"),
    "classes": (drifted(kind="classes", agreement=Share(0.9, (0.8, 1.0), 200)), "10 % of 200 items get another answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_without_labels_the_limit_is_held_against_the_output_that_lost_most(name):
    output, words = OUTPUTS[name]
    found = replace(fidelity(None, agreement=None), cosine=0.9999, outputs=(drifted("other", cosine=0.999), output))
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=replace(found, outputs=(output,)))
    choice = choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH)
    assert words in reason(choice, "tflite-int8")
    both = candidate("tflite-int8", estimated(1, 2, 3), fidelity=found)
    assert "'out'" in reason(choose("b", [both], ChoiceLimits(max_drop=0.05), BOTH), "tflite-int8")


def test_a_loss_above_the_limit_is_never_written_as_equal_to_it():
    found = replace(fidelity(None, agreement=None), cosine=1 - 4e-6)
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=found)
    words = reason(choose("b", [item], ChoiceLimits(max_drop=0.0), BOTH), "tflite-int8")
    assert words.startswith(
        "its answers' cosine with the original's is 0.999996 on 200 items: 0.0004 % short of 1, more than the 0 %"
    )
    close = replace(fidelity(None, agreement=None), cosine=1 - 0.010004)
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=close)
    assert "1.0004 % short" in reason(choose("b", [item], ChoiceLimits(max_drop=0.01), BOTH), "tflite-int8")


def test_a_metric_of_one_output_does_not_hide_what_another_lost():
    outputs = (drifted("kind", kind="classes", agreement=Share(1.0, (0.9, 1.0), 200)),
               drifted("price", kind="numbers", spread_error=0.4))  # fmt: skip
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=replace(fidelity(0.0), outputs=outputs))
    choice = choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH)
    assert choice.chosen is item
    assert any("top1 is of one output, and the error of 'price' is 40 %" in note for note in choice.notes)


def test_an_error_may_grow_by_a_share_of_the_originals():
    worse = replace(
        fidelity(0.2, ci95=(0.1, 0.3)),
        metric="mae", original=4.0, artifact=4.2,
        scores=(Score("mae", 4.0, 4.2, 0.2, (0.1, 0.3), higher_is_better=False),),
    )  # fmt: skip
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=worse)
    assert choose("b", [item], ChoiceLimits(max_drop=0.06), BOTH).chosen is item
    refused = reason(choose("b", [item], ChoiceLimits(max_drop=0.02), BOTH), "tflite-int8")
    assert refused.startswith("mae grows by 5 % of the original's (95 % interval 2.5 to 7.5)")
    assert refused.endswith("more than the 2 % allowed")


def test_an_interval_beyond_the_limit_is_noted():
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=fidelity(0.0, items=20, ci95=(-0.1, 0.1)))
    assert any("20 items are too few" in note for note in choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH).notes)


def test_the_high_end_of_the_range_must_keep_the_budget():
    item = candidate("tflite-int8", estimated(60, 80, 120, "anchored"))
    choice = choose("b", [item], ChoiceLimits(budget_ms=100), BOTH)
    assert codes(choice) == {"tflite-int8": "budget"}
    assert reason(choice, "tflite-int8") == "it may take 60 to 120 ms, anchored, above the budget of 100 ms"
    assert "edgekit compress --budget-ms" in choice.refused[0].do
    assert choose("b", [item], ChoiceLimits(budget_ms=120), BOTH).chosen is item


def test_a_budget_is_not_promised_without_an_estimate():
    item = candidate("tflite-int8", None)
    assert codes(choose("b", [item], ChoiceLimits(budget_ms=100), BOTH)) == {"tflite-int8": "budget"}
    assert choose("b", [item], ChoiceLimits(), BOTH).chosen is item


SLOWER = {
    "measured slower": (measured_estimate(9, 10), measured_estimate(6, 7), True),
    "measured as fast, but for noise": (measured_estimate(6.1, 7), measured_estimate(6, 7), False),
    "measured slower by the middle, ranges overlapping": (measured_estimate(6.5, 8), measured_estimate(6, 7), False),
    "measured faster": (measured_estimate(6, 7), measured_estimate(9, 10), False),
    "estimated slower, ranges apart": (estimated(17, 18, 20), estimated(4, 8, 16), True),
    "estimated slower by the middle, ranges overlapping": (estimated(3, 9, 20), estimated(4, 8, 16), False),
    "estimated equal": (estimated(3, 8, 20), estimated(4, 8, 16), False),
    "an anchored and an estimated one, overlapping": (estimated(3, 9, 20), estimated(4, 8, 16, "anchored"), False),
    "an anchored and an estimated one, apart": (estimated(17, 18, 20), estimated(4, 8, 16, "anchored"), True),
    "one measured, ranges touching": (measured_estimate(9, 10), estimated(4, 8, 16), False),
    "one measured, ranges apart": (measured_estimate(20, 22), estimated(4, 8, 16), True),
    "nothing known of float": (estimated(3, 9, 20), None, False),
}


@pytest.mark.parametrize(("quantized", "original", "refused"), SLOWER.values(), ids=SLOWER)
@pytest.mark.parametrize("precision", ["int8", "dynamic"])
def test_a_quantized_artifact_that_is_surely_slower_than_float_is_never_shipped(
    precision, quantized, original, refused
):
    items = [candidate(f"tflite-{precision}", quantized), candidate("tflite-f32", original)]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert (codes(choice).get(f"tflite-{precision}") == "slower") is refused


@pytest.mark.parametrize("precision", ["int8", "dynamic"])
def test_what_may_be_slower_than_float_travels_as_an_alternate_for_the_board_to_try(precision):
    doubtful = candidate(f"tflite-{precision}", estimated(35, 120, 215))
    plain, other = candidate("tflite-f32", estimated(46, 57, 70)), candidate("onnx-f32", estimated(48, 60, 72))
    choice = choose("b", [doubtful, plain, other], ChoiceLimits(alternates=1), BOTH)
    assert choice.chosen is plain
    assert choice.alternates == (doubtful,)
    said = (
        "it may be slower than tflite-f32 in the same runtime: 35 to 215 ms, estimated, against 46 to 70 ms, "
        "estimated; the ranges overlap, so only the board can decide"
    )
    assert f"tflite-{precision}: {said}" in choice.notes
    none_kept = choose("b", [doubtful, plain, other], ChoiceLimits(), BOTH)
    assert none_kept.chosen is plain
    assert (codes(none_kept)[doubtful.recipe], reason(none_kept, doubtful.recipe)) == ("not-preferred", said)


def test_what_may_be_slower_is_chosen_where_float_may_not_be_shipped():
    doubtful = candidate("tflite-int8", estimated(20, 60, 90))
    plain = candidate("tflite-f32", estimated(30, 50, 110))
    choice = choose("b", [doubtful, plain], ChoiceLimits(budget_ms=100, alternates=1), BOTH)
    assert choice.chosen is doubtful
    assert codes(choice) == {"tflite-f32": "budget"}


def test_of_two_measured_ranges_that_overlap_the_lower_middle_is_chosen_and_neither_is_called_slower():
    items = [candidate("tflite-int8", measured_estimate(6.5, 8)), candidate("tflite-f32", measured_estimate(6, 7))]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert choice.chosen is items[1]
    assert reason(choice, "tflite-int8") == (
        "it may be slower than tflite-f32 in the same runtime: 6.5 to 8 ms, measured, against 6 to 7 ms, measured; "
        "the ranges overlap"
    )


def test_a_rule_is_the_reason_without_the_figures_of_a_recipe_and_a_board():
    limits = ChoiceLimits(budget_ms=10, alternates=0)
    found = {}
    for board, scale in (("slow", 1.0), ("slower", 1.5)):
        items = [
            candidate("tflite-int8", estimated(2 * scale, 3 * scale, 4 * scale)),
            candidate("tflite-f32", estimated(11 * scale, 12 * scale, 13 * scale)),
            candidate("onnx-int8-qdq", estimated(12 * scale, 13 * scale, 14 * scale)),
            candidate("onnx-f32", estimated(4.5 * scale, 5 * scale, 6 * scale)),
        ]
        found[board] = choose(board, items, limits, BOTH).refused
    assert [one.rule for one in found["slow"]] == [one.rule for one in found["slower"]]
    rules = {one.rule: one.code for one in found["slow"]}
    assert rules == {
        "it may take longer than the budget of 10 ms": "budget",
        "acceptable, but tflite-int8 is faster, and the ranges do not overlap": "not-preferred",
    }
    assert not {one.reason for one in found["slow"]} & {one.reason for one in found["slower"]}


def test_float_of_another_runtime_makes_nothing_slower():
    items = [candidate("onnx-int8-qdq", estimated(3, 9, 20)), candidate("tflite-f32", estimated(4, 8, 16))]
    assert choose("b", items, ChoiceLimits(), BOTH).chosen is items[0]


def test_the_slower_reason_prints_both_ranges():
    items = [candidate("tflite-int8", measured_estimate(59, 61)), candidate("tflite-f32", measured_estimate(6.9, 7))]
    assert reason(choose("b", items, ChoiceLimits(), BOTH), "tflite-int8") == (
        "it is slower than tflite-f32 in the same runtime: 59 to 61 ms, measured, against 6.9 to 7 ms, measured"
    )


PREFERRED = {
    "int8 first where ranges overlap": (
        [("tflite-f32", estimated(10, 18, 33)), ("tflite-int8", estimated(12, 18, 35))], "tflite-int8"),
    "the faster where they do not": (
        [("tflite-f32", estimated(1, 2, 3)), ("onnx-int8-qdq", estimated(12, 18, 35))], "tflite-f32"),
    "TFLite before ONNX where nothing was measured": (
        [("onnx-int8-qdq", estimated(3, 5, 9)), ("tflite-int8", estimated(4, 6, 9))], "tflite-int8"),
    "the lower measured middle, whatever the format": (
        [("onnx-int8-qdq", measured_estimate(5, 9)), ("tflite-int8", measured_estimate(6, 9))], "onnx-int8-qdq"),
    "the lower middle of one format": (
        [("tflite-int8-mixed", estimated(3, 6, 9)), ("tflite-int8", estimated(3, 5, 9))], "tflite-int8"),
    "int8 without any estimate": ([("tflite-f32", None), ("tflite-int8", None)], "tflite-int8"),
}  # fmt: skip


@pytest.mark.parametrize(("given_items", "expected"), PREFERRED.values(), ids=PREFERRED)
def test_preference(given_items, expected):
    items = [candidate(recipe, estimate) for recipe, estimate in given_items]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert choice.chosen is not None
    assert choice.chosen.recipe == expected
    assert set(codes(choice).values()) == {"not-preferred"}
    assert expected in choice.refused[0].reason


def test_of_equals_the_smaller_is_chosen():
    items = [candidate("tflite-int8", estimated(3, 5, 9), 100), candidate("tflite-int8-mixed", estimated(3, 5, 9), 90)]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert choice.chosen is items[1]
    assert "smaller" in reason(choice, "tflite-int8")


@pytest.mark.parametrize("recipe", ["tflite-int8", "tflite-f32"])
def test_what_has_no_estimate_says_why_and_an_estimate_says_itself_that_it_is_one(recipe):
    (note,) = choose("b", [candidate(recipe, None, why_no_estimate="no such board")], ChoiceLimits(), BOTH).notes
    assert note == f"{recipe} has no latency estimate: no such board"
    for found in (estimated(1, 2, 3), measured_estimate(2, 3)):
        assert not choose("b", [candidate(recipe, found)], ChoiceLimits(), BOTH).notes


MEMORY = {
    "half of the board, exactly": (512 * 2**20, 1024, True),
    "a byte more": (512 * 2**20 + 1, 1024, False),
    "not known": (None, 512, True),
    "a board whose memory is not known": (2**40, None, True),
}


@pytest.mark.parametrize(("memory", "ram", "fits"), MEMORY.values(), ids=MEMORY)
def test_what_needs_more_memory_than_the_board_leaves_is_refused(memory, ram, fits):
    item = candidate("tflite-int8", estimated(1, 2, 3), memory_bytes=memory)
    choice = choose("b", [item], ChoiceLimits(ram_mb=ram), BOTH)
    assert (choice.chosen is item) is fits
    if not fits:
        assert codes(choice) == {"tflite-int8": "memory"}
        assert "of b's 1024 MiB it may take 512" in reason(choice, "tflite-int8")


def test_the_runner_up_of_another_engine_is_kept_as_an_alternate():
    items = [
        candidate("tflite-int8", estimated(4, 6, 9)),
        candidate("tflite-f32", estimated(8, 12, 20)),
        candidate("onnx-int8-qdq", estimated(3, 7, 9)),
    ]
    choice = choose("b", items, ChoiceLimits(alternates=1), BOTH)
    assert choice.chosen is items[0]
    assert choice.alternates == (items[2],)
    assert codes(choice) == {"tflite-f32": "not-preferred"}


def test_what_is_slower_beyond_doubt_is_no_alternate():
    items = [candidate("tflite-int8", measured_estimate(3, 4)), candidate("tflite-f32", measured_estimate(8, 9))]
    choice = choose("b", items, ChoiceLimits(alternates=2), BOTH)
    assert choice.alternates == ()
    assert codes(choice) == {"tflite-f32": "not-preferred"}


def test_two_candidates_of_one_recipe_are_the_callers_bug():
    with pytest.raises(ValueError, match="same recipe"):
        choose("b", [candidate("tflite-int8", None)] * 2, ChoiceLimits(), BOTH)


def test_no_candidates_choose_nothing():
    assert choose("b", [], ChoiceLimits(), BOTH) == Choice(None, ())


RECIPES = ["tflite-int8", "tflite-int8-mixed", "tflite-dynamic", "tflite-f32", "onnx-int8-qdq", "onnx-f32"]
times = st.floats(0.1, 500, allow_nan=False)
estimates = st.none() | st.builds(
    lambda three, grade: Estimate(*sorted(three), grade),  # type: ignore[arg-type]
    st.tuples(times, times, times),
    st.sampled_from(["measured", "anchored", "estimated"]),
)
fractions = st.floats(0, 1, allow_nan=False)
fidelities = st.none() | st.builds(
    lambda drop, agreement, interval: fidelity(drop, agreement=agreement, ci95=interval),
    st.none() | st.floats(-1, 1, allow_nan=False),
    st.none() | fractions,
    st.none() | st.tuples(fractions, fractions),
)


@st.composite
def situations(draw):
    recipes = draw(st.lists(st.sampled_from(RECIPES), unique=True))
    candidates = [
        replace(
            candidate(recipe, draw(estimates), draw(st.integers(1, 3)), fidelity=draw(fidelities)),
            failed=draw(st.none() | st.just("it failed")),
            memory_bytes=draw(st.none() | st.integers(0, 2**30)),
        )
        for recipe in recipes
    ]
    ram_mb = draw(st.none() | st.integers(1, 2048))
    limits = ChoiceLimits(draw(st.none() | fractions), draw(st.none() | times), ram_mb, draw(st.integers(0, 2)))
    support = [replace(verdict, ok=draw(st.booleans())) for verdict in BOTH]
    return candidates, limits, support


@given(situations())
def test_chosen_and_refused_are_all_the_candidates_once_each(situation):
    candidates, limits, support = situation
    choice = choose("b", candidates, limits, support)
    named = [refusal.recipe for refusal in choice.refused] + [kept.recipe for kept in choice.alternates]
    named += [choice.chosen.recipe] if choice.chosen else []
    assert sorted(named) == sorted(item.recipe for item in candidates)
    assert all(refusal.reason for refusal in choice.refused)


@given(situations())
def test_what_is_kept_keeps_every_limit(situation):
    candidates, limits, support = situation
    choice = choose("b", candidates, limits, support)
    for kept in filter(None, (choice.chosen, *choice.alternates)):
        assert_within(kept, limits, support)


def assert_within(chosen, limits, support):
    assert chosen.failed is None
    if limits.ram_mb is not None and chosen.memory_bytes is not None:
        assert 2 * chosen.memory_bytes <= limits.ram_mb * 2**20
    assert any(verdict.ok for verdict in support if verdict.format == chosen.format)
    if limits.budget_ms is not None:
        assert chosen.estimate is not None
        assert chosen.estimate.high_ms <= limits.budget_ms
    if limits.max_drop is not None:
        assert chosen.fidelity is not None
        if chosen.fidelity.metric is not None:
            assert chosen.fidelity.drop <= limits.max_drop + NOISE
        elif chosen.fidelity.agreement is not None:
            assert 1 - chosen.fidelity.agreement <= limits.max_drop + NOISE


@given(situations())
def test_something_is_chosen_whenever_something_is_acceptable(situation):
    choice = choose("b", *situation)
    if "not-preferred" in codes(choice).values():
        assert choice.chosen is not None
    for item in situation[0]:
        alone = choose("b", [item], *situation[1:])
        if alone.chosen is None:
            # next to a smaller float file INT8 is refused for its size first
            assert codes(choice)[item.recipe] in (codes(alone)[item.recipe], "not-int8")
        elif item.precision == "float32":
            assert choice.chosen is not None


@given(situations())
def test_alternates_are_no_more_than_asked_for_and_change_nothing_else(situation):
    candidates, limits, support = situation
    with_them = choose("b", candidates, limits, support)
    without = choose("b", candidates, replace(limits, alternates=0), support)
    assert len(with_them.alternates) <= limits.alternates
    assert with_them.chosen == without.chosen
    assert with_them.notes[: len(without.notes)] == without.notes  # what is left are doubts about the alternates
    assert all(any(note.startswith(f"{kept.recipe}: it may be slower") for kept in with_them.alternates)
               for note in with_them.notes[len(without.notes) :])  # fmt: skip
    assert not without.alternates
    moved = {refusal.recipe for refusal in without.refused} - {refusal.recipe for refusal in with_them.refused}
    assert moved == {kept.recipe for kept in with_them.alternates}
    assert all(codes(without)[recipe] == "not-preferred" for recipe in moved)


@given(situations())
def test_an_alternate_may_turn_out_as_fast_as_the_chosen_one(situation):
    choice = choose("b", *situation)
    for kept in choice.alternates:
        if kept.estimate is not None and choice.chosen.estimate is not None:
            assert kept.estimate.low_ms <= choice.chosen.estimate.high_ms


@given(situations(), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_the_order_of_the_candidates_changes_nothing(situation, random):
    candidates, limits, support = situation
    shuffled = random.sample(candidates, len(candidates))
    first, second = choose("b", candidates, limits, support), choose("b", shuffled, limits, support)
    assert first.chosen == second.chosen
    assert set(first.refused) == set(second.refused)
    assert first.notes == second.notes
    assert first.alternates == second.alternates


def test_where_no_latency_is_known_no_ranges_are_spoken_of():
    items = [candidate("tflite-int8", None), candidate("onnx-f32", None)]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert (
        reason(choice, "onnx-f32")
        == "acceptable, but tflite-int8 is INT8, which comes first; no latency is known of either"
    )


def test_int8_that_is_larger_than_float_is_refused_unless_a_latency_is_known():
    sizes = {"tflite-int8-mixed": 203, "tflite-f32": 198, "onnx-int8": 157, "onnx-f32": 141}
    unknown = [candidate(recipe, None, size) for recipe, size in sizes.items()]
    choice = choose("b", unknown, ChoiceLimits(), BOTH)
    assert choice.chosen is not None
    assert choice.chosen.recipe == "tflite-f32"
    assert codes(choice)["tflite-int8-mixed"] == codes(choice)["onnx-int8"] == "not-int8"
    assert reason(choice, "tflite-int8-mixed") == (
        "its file is larger than that of tflite-f32 (203 against 198 bytes), and it is not known to be faster"
    )
    smaller = [candidate(recipe, None, size - 100 * recipe.startswith("onnx-int8")) for recipe, size in sizes.items()]
    assert choose("b", smaller, ChoiceLimits(), BOTH).chosen == smaller[2]
    known = [candidate(recipe, estimated(1, 2, 3), size) for recipe, size in sizes.items()]
    assert choose("b", known, ChoiceLimits(), BOTH).chosen == known[0]


@pytest.mark.parametrize("share", [0.0, 0.004, 0.006])
@pytest.mark.parametrize("uncounted", [(), ("WHILE",)])
@pytest.mark.parametrize("time", [None, estimated(1, 2, 3)])
def test_int8_in_name_only_is_never_chosen(share, uncounted, time):
    found = replace(fidelity(None), quantized_macs=share, uncounted=uncounted)
    items = [candidate("onnx-int8-qdq", time, 100, fidelity=found), candidate("onnx-f32", estimated(2, 4, 6), 200)]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    if share > 0.005 or uncounted:
        assert choice.chosen is items[0]
        return
    assert choice.chosen is items[1]
    assert codes(choice) == {"onnx-int8-qdq": "not-int8"}
    assert reason(choice, "onnx-int8-qdq").startswith("it is INT8 in name only: 0")
    alone = choose("b", items[:1], ChoiceLimits(), BOTH)
    assert alone.chosen is None


def test_two_ranges_that_touch_only_a_third_are_told_apart_as_what_they_are():
    """The wide one is first by its middle, and overlaps both; of the two others one is certainly faster."""
    wide = candidate("onnx-int8-qdq", estimate=Estimate(6.0, 20.0, 84.0, "estimated"))
    fast = candidate("tflite-int8", estimate=Estimate(20.0, 24.0, 30.0, "anchored"))
    slow = candidate("tflite-f32", estimate=Estimate(55.0, 67.0, 83.0, "anchored"))
    choice = choose("raspberry-pi-4", [wide, fast, slow], ChoiceLimits(), BOTH)
    assert choice.chosen is fast
    assert "is faster, and the ranges do not overlap" in reason(choice, "tflite-f32")


def test_ranges_that_are_said_not_to_overlap_do_not():
    """A slow artifact overlaps the chosen one and not the fastest, which INT8 comes before."""
    items = [
        candidate("tflite-f32", estimated(0.04, 0.09, 0.16)),
        candidate("onnx-int8-qdq", estimated(0.15, 0.41, 1.03)),
        candidate("onnx-f32", estimated(0.18, 0.46, 1.21)),
    ]
    choice = choose("b", items, ChoiceLimits(), BOTH)
    assert choice.chosen is items[1]
    assert reason(choice, "onnx-f32") == (
        "acceptable, but tflite-f32 is faster, and the ranges do not overlap (0.04 to 0.16 ms, estimated, against "
        "0.18 to 1.21 ms, estimated)"
    )
    assert "is INT8, which comes first where the ranges overlap" in reason(choice, "tflite-f32")


def test_int8_is_not_said_to_overlap_what_was_timed_apart_on_a_busy_machine():
    int8, f32 = (replace(estimated(*ms, "measured"), busy=True) for ms in ((14, 15, 15.3), (5.6, 6, 6.4)))
    choice = choose("b", [candidate("tflite-int8", int8), candidate("onnx-f32", f32)], ChoiceLimits(), BOTH)
    assert "is INT8, which comes first where times do not decide (14 to 15.3 ms" in reason(choice, "onnx-f32")


BOXES = Decisions(original=40, artifact=38, kept=36, agreement=0.9, ci95=(0.8, 0.97))


def test_a_detector_without_labels_is_held_to_its_decisions():
    found = replace(fidelity(None, agreement=0.9), outputs=(drifted(worst_channel_db=0.0),), decisions=BOXES)
    assert found.loss == pytest.approx(0.1)
    assert found.loss_ci95 == pytest.approx((0.03, 0.2))
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=found)
    assert reason(choose("b", [item], ChoiceLimits(max_drop=0.05), BOTH), "tflite-int8").startswith(
        "it keeps 36 of the original's 40 boxes and adds 2 on 200 items (95 % interval 3 to 20): "
        "10 % of decisions differ"
    )
    unsure = choose("b", [item], ChoiceLimits(max_drop=0.15), BOTH)
    assert unsure.chosen is item
    assert any("too few to be sure" in note for note in unsure.notes)


def test_an_output_with_few_levels_left_keeps_no_limit_whatever_decisions_say():
    coarse = drifted(few_levels=FewLevels(2, 0.0, 0.6, (4, 21)))
    found = replace(fidelity(None, agreement=1.0), outputs=(coarse,), decisions=replace(BOXES, kept=40, agreement=1.0))
    assert found.loss == 1.0
    item = candidate("tflite-int8", estimated(1, 2, 3), fidelity=found)
    assert codes(choose("b", [item], ChoiceLimits(max_drop=0.5), BOTH)) == {"tflite-int8": "drop"}
    labelled = replace(fidelity(0.0), outputs=(coarse,))
    assert labelled.loss == 0.0  # a metric on labels is what the person asked for

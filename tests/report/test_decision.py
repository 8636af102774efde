"""The report's first sentence: a pure function of what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported import FIDELITY, report

from edgekit.report import words
from edgekit.report.decision import FEW_LABELS, FEWEST, VOID, Evidence, decide, evidence_of, sentences_of
from edgekit.report.html import html

GOOD = Evidence("tflite-int8", items=500, loss=0.002, interval=(-0.004, 0.008), limit=0.01)

CASES = {
    "the whole interval keeps the limit": (GOOD, "Ship it"),
    "the interval ends at the limit": (replace(GOOD, interval=(-0.004, 0.01)), "Ship it"),
    # the upper end is 4 points above the loss and there is room for 2: four times the items, of which 100 are there
    "the interval reaches beyond": (
        replace(GOOD, items=100, loss=0.01, interval=(-0.03, 0.05), limit=0.03),
        "Ship it after 300 more labelled items",
    ),
    "judged by half of the items": (
        replace(GOOD, items=100, loss=0.01, interval=(-0.03, 0.05), limit=0.03, halved=True),
        "Ship it after 600 more labelled items",
    ),
    "without labels": (
        replace(GOOD, items=100, loss=0.01, interval=(-0.03, 0.05), limit=0.03, labelled=False),
        "Ship it after 300 more items",
    ),
    "two digits say enough": (
        replace(GOOD, items=977, loss=0.01, interval=(-0.03, 0.05), limit=0.02),
        "Ship it after 15,000 more labelled items",
    ),
    "one item is an item": (
        replace(GOOD, items=100, loss=0.0, interval=(-0.01, 0.01002), limit=0.01),
        "Ship it after 1 more labelled item",
    ),
    "chosen and judged by the same few": (
        replace(GOOD, items=FEWEST - 5, reused=True),
        "Give 5 more labelled items first",
    ),
    # 2 points of reach, which half of the limit, a half point, is a quarter of: sixteen times the items
    "the loss is the limit itself": (
        replace(GOOD, loss=0.01, interval=(-0.01, 0.03)),
        "Ship it after 7,500 more labelled items",
    ),
    "a limit that nothing can prove": (replace(GOOD, loss=0.0, interval=(-0.01, 0.01), limit=0.0), "Do not ship"),
    "nothing was acceptable": (Evidence(None, limit=0.01, refused="it is slower"), "Do not ship"),
    "made-up inputs": (replace(GOOD, made_up=True), "Do not ship"),
    "the original was asked wrongly": (replace(GOOD, void="labels are off by one"), "Do not ship"),
    "an answer that is not finite": (replace(GOOD, not_finite=1), "Do not ship"),
    "no limit": (replace(GOOD, limit=None), "Do not ship"),
    "no interval, items enough": (replace(GOOD, interval=None), "Ship it"),
    "a distance of few items, however narrow its interval": (
        replace(GOOD, items=FEWEST - 4, labelled=False, distance="1 - cosine"),
        "Give 4 more items first",
    ),
    "a distance of a task that is known": (replace(GOOD, labelled=False, distance="1 - cosine"), "Ship it"),
    "a raw task without a metric": (replace(GOOD, labelled=False, raw=True, distance="1 - cosine"), "Not decided"),
    "a raw task with a metric": (replace(GOOD, raw=True), "Ship it"),
    "floats were rounded, on few items": (replace(GOOD, items=3, interval=(-0.1, 0.13), rounded=True), "Ship it"),
    "no interval, few items": (
        replace(GOOD, interval=None, items=FEWEST - 4, labelled=False),
        "Give 4 more items first",
    ),
}


@pytest.mark.parametrize(("known", "headline"), CASES.values(), ids=CASES)
def test_fields_decide(known: Evidence, headline: str) -> None:
    assert decide(known).headline == headline


shares = st.floats(0, 0.5)


@given(st.integers(1, 100_000), shares, shares, shares)
def test_so_many_more_items_would_settle_it(items: int, loss: float, room: float, reach: float) -> None:
    known = Evidence("a", items=items, loss=loss, interval=(loss - reach, loss + reach), limit=loss + room)
    found = decide(known)
    if found.items is None:
        return
    narrowed = reach * (items / (items + found.items)) ** 0.5
    assert narrowed <= max(room, known.limit / 2) + 1e-6


def board(**changes: Any) -> dict[str, Any]:
    return {**report()["bundles"][0], **changes}


LIMITS = {"max_drop": 0.01, "budget_ms": None}


def test_the_page_begins_with_it() -> None:
    page = html(report(limits=LIMITS))
    first = page.index("Ship it: tflite-int8 loses 0.2 points of top-1 accuracy on 500 items, at most 0.8 points with")
    assert page.index("<h1>") < first < page.index("sha256 ")


def test_boards_that_differ_have_a_sentence_each() -> None:
    none = board(profile="tiny", recipe=None, fidelity=None)
    sentences = [sentence for _, sentence in sentences_of(report(bundles=[board(), none], limits=LIMITS))]
    assert sentences[0].startswith("Ship it (raspberry-pi-4): ")
    assert sentences[1] == ("Do not ship (tiny): every candidate was refused, most because it may take 52 to 120 ms.")
    for code in ("missing-extra", "runtime-unavailable"):
        untried = {"recipe": "x", "code": code, "reason": "it does not install"}
        one = board(profile="tiny", recipe=None, fidelity=None, refused=[untried] * 5 + none["refused"])
        ((_, sentence),) = sentences_of(report(bundles=[one], limits=LIMITS))
        assert "most because it may take 52 to 120 ms" in sentence
    alike = [sentence for _, sentence in sentences_of(report(bundles=[board(), board(profile="b")], limits=LIMITS))]
    assert len(alike) == 1
    assert alike[0].startswith("Ship it: ")


@pytest.mark.parametrize("code", sorted(VOID))
def test_what_makes_a_comparison_void_is_told_in_its_place(code: str) -> None:
    finding = {"code": code, "level": "warning", "what": "it was asked wrongly", "do": ""}
    found = evidence_of(report(limits=LIMITS, data=[finding]), board())
    assert decide(found).why == "it was asked wrongly"


def drifted(**changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("metric", "original", "artifact", "drop", "ci95", "loss_ci95"))
    return {**FIDELITY, **nothing, **changes}


def test_of_few_labelled_items_the_answers_decide_and_accuracy_asks_for_labels() -> None:
    alike = {"name": "probs", "agreement": {"value": 0.95, "items": 20, "ci95": [0.76, 0.99]}}
    few = {**FIDELITY, "items": 20, "agreement": 0.95, "outputs": [alike]}
    limits = {"max_drop": 0.25, "budget_ms": None}
    ((_, sentence),) = sentences_of(report(bundles=[board(fidelity=few)], limits=limits))
    assert sentence == (
        "Ship it: tflite-int8 loses 5 % of agreement with your model's answers on 20 items, at most 24 % with 95 % "
        "certainty, within the limit of 25 %; accuracy needs 100 labels or more, not 20."
    )
    ((decision, sentence),) = sentences_of(report(bundles=[board(fidelity=few)], limits=LIMITS))
    assert not decision.labelled  # more items help without labels, too
    assert sentence.endswith("above the limit of 1 %; accuracy needs 100 labels or more, not 20.")
    many = {**few, "items": FEW_LABELS}
    assert evidence_of(report(limits=LIMITS), board(fidelity=many)).of == "top-1 accuracy"


def test_of_few_labelled_boxes_their_own_interval_counts() -> None:
    boxes = {"original": 30, "artifact": 30, "kept": 27, "agreement": 0.9, "ci95": [0.8, 0.95], "scores": None}
    few = {**FIDELITY, "metric": "map", "items": 12, "agreement": 0.9, "decisions": boxes, "outputs": []}
    found = evidence_of(report(limits=LIMITS), board(fidelity=few))
    assert (found.interval, found.distance, found.few_labels) == (pytest.approx((0.05, 0.2)), "", 12)


def test_an_interval_below_nothing_is_not_called_at_most_minus() -> None:
    gained = decide(replace(GOOD, loss=-0.004, interval=(-0.007, -0.001)))
    assert gained.why == (
        "tflite-int8 loses no top-1 accuracy that 500 items show, with 95 % certainty, within the limit of 1 point"
    )


def test_without_labels_the_output_that_decides_has_the_interval() -> None:
    outputs = [
        {"name": "a", "loss": 0.001, "measure": "cosine", "cosine_ci95": [0.9985, 0.9995]},
        {"name": "b", "loss": 0.03, "measure": "agreement", "agreement": {"value": 0.97, "ci95": [0.95, 0.98]}},
    ]
    found = evidence_of(report(limits=LIMITS), board(fidelity=drifted(loss=0.03, outputs=outputs)))
    assert found.interval == pytest.approx((0.02, 0.05))
    assert not found.labelled
    spread = evidence_of(
        report(limits=LIMITS),
        board(fidelity=drifted(loss=0.03, outputs=[{"name": "a", "loss": 0.03, "measure": "spread"}])),
    )
    assert spread.interval is None


RAW = {**report()["model"], "task": "raw"}


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("cosine", "(1 - cosine)"),
        ("channel", "(1 - cosine of the worst channels)"),
        ("spread", "(error over what the answers vary by)"),
        ("agreement", None),
    ],
)
def test_a_distance_is_called_one_and_no_agreement(measure: str, said: str | None) -> None:
    output = {"name": "a", "loss": 0.0216, "measure": measure, "agreement": {"ci95": [0.97, 0.99]}}
    output |= {"loss_ci95": [0.019, 0.024]}
    fidelity = drifted(agreement=None, loss=0.0216, loss_ci95=[0.019, 0.024], outputs=[output])
    found = decide(evidence_of(report(limits={"max_drop": 0.05}, model=RAW), board(fidelity=fidelity)))
    assert found.headline == "Not decided"
    if said is None:
        assert "of agreement with your model's answers" in found.why
    else:
        assert f"is 2.16 % away from your model's answers {said} on 500 items" in found.why
        assert "at most 2.4 % with 95 % certainty" in found.why
        assert "agreement" not in found.why


def test_the_scores_of_boxes_stand_beside_them() -> None:
    boxes = {"original": 40, "artifact": 40, "kept": 40, "agreement": 1.0, "ci95": [0.99, 1.0], "scores": [0.52, 0.44]}
    fidelity = drifted(agreement=1.0, loss=0.0, loss_ci95=[0.0, 0.01], decisions=boxes, outputs=[])
    page = html(report(limits=LIMITS, bundles=[board(fidelity=fidelity)]))
    assert page.count("the scores of the kept boxes fall from 0.52 to 0.44 on average") == 2


def test_an_error_grows_in_per_cent_of_the_originals() -> None:
    fidelity = FIDELITY | {
        "metric": "mae", "original": 4.0, "artifact": 4.1, "drop": 0.1, "ci95": [0.0, 0.2], "loss": 0.025,
        "loss_ci95": [0.0, 0.05],
    }  # fmt: skip
    found = evidence_of(report(limits={"max_drop": 0.1}), board(fidelity=fidelity))
    assert decide(found).why == (
        "mean absolute error of tflite-int8 grows by 2.5 % on 500 items, at most 5 % with 95 % certainty, within the "
        "limit of 10 %"
    )


def test_a_refusal_is_one_row_whatever_the_number_of_recipes_and_boards() -> None:
    def refused(recipe: str, ms: str) -> dict[str, str]:
        rule = "it may take longer than the budget of 50 ms"
        return {"recipe": recipe, "code": "budget", "reason": f"it may take {ms}", "rule": rule, "do": ""}

    boards = [
        board(profile=name, refused=[refused("tflite-f32", f"{ms} ms"), refused("onnx-f32", f"{ms + 1} ms")])
        for name, ms in (("one", 60), ("two", 70))
    ]
    page = html(report(bundles=boards))
    assert page.count("it may take longer than the budget of 50 ms<small>budget</small>") == 1
    assert '<span class="whole">tflite-f32,</span> <span class="whole">onnx-f32</span>' in page
    assert '<span class="whole">one,</span> <span class="whole">two</span>' in page
    assert "two, onnx-f32: it may take 71 ms" in page


def test_no_share_of_answers_is_spoken_of_where_an_output_has_no_levels_left() -> None:
    """Its best class stays: 100 % agree, and its scores say nothing any more."""
    said = "'probs' 2 of 256 levels are left; the original uses many between 0 and 1"
    output = {"name": "probs", "measure": "levels", "loss": 1.0, "agreement": {"value": 1.0, "ci95": [0.9, 1.0]}}
    found = {**FIDELITY, "metric": None, "agreement": 1.0, "loss": 1.0, "loss_ci95": None, "warnings": [said]}
    bundle = {"profile": "pi", "recipe": "tflite-int8", "fidelity": {**found, "outputs": [output]}}
    for limit in (None, 0.05, 1.0):
        known = evidence_of({"limits": {"max_drop": limit}, "bundles": [bundle]}, bundle)
        decision = decide(known)
        assert (decision.headline, decision.why) == ("Do not ship", f"in tflite-int8 {said}")


@pytest.mark.parametrize("name", ["StatefulPartitionedCall:0", "PartitionedCall:0", "StatefulPartitionedCall_1:0"])
def test_what_tensorflow_calls_the_output_is_called_the_output(name: str) -> None:
    assert words.layer(name) == "the output"
    assert words.brief(f"TFLite has no int8 kernel for WHILE in '{name}', ADD in 'a/b'") == (
        "TFLite has no int8 kernel for WHILE in the output, ADD in 'a/b'"
    )

"""Average precision: cases worked out by hand, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.fidelity.detection import (
    COCO,
    Boxes,
    DecisionCount,
    decision_noise,
    iou,
    mean_average_precision,
)
from edgekit_converters.fidelity.metrics import named_metric, task_metrics
from edgekit_converters.fidelity.repair_bench import output_noise
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_runtime.contract.spec import Contract, DetectionSpec, ImageSpec, InputContract, OutputContract


def boxes(*rows):
    """Rows x1 y1 x2 y2 score class."""
    table = np.array(rows, float).reshape(-1, 6)
    return Boxes(table[:, :4], table[:, 4], table[:, 5])


def truth(*rows):
    return np.array(rows, float).reshape(-1, 5)


ONE = truth((0, 0, 10, 10, 0))


def test_iou_is_area_over_area():
    a, b = np.array([[0, 0, 10, 10]]), np.array([[5, 0, 15, 10], [0, 0, 10, 10], [20, 20, 30, 30], [3, 3, 3, 3]])
    assert iou(a, b)[0] == pytest.approx([50 / 150, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (boxes((0, 0, 10, 10, 0.9, 0)), ONE, 1.0),
        (boxes(), ONE, 0.0),
        (boxes((0, 0, 10, 10, 0.9, 1)), ONE, 0.0),  # right place, wrong class
        (
            boxes((0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.5, 0)),
            ONE,
            1.0,
        ),  # a false alarm below the hit costs nothing
        (boxes((0, 0, 10, 10, 0.5, 0), (50, 50, 60, 60, 0.9, 0)), ONE, 0.5),  # above it, precision is 1/2 everywhere
        (boxes((0, 0, 10, 10, 0.9, 0), (0, 0, 10, 10, 0.8, 0)), ONE, 1.0),  # a second box on one truth is a false alarm
        (boxes((0, 0, 10, 10, 0.9, 0)), truth((0, 0, 10, 10, 0), (50, 50, 60, 60, 0)), 51 / 101),
        (boxes((0, 0, 10, 10, 0.9, 0)), truth((0, 0, 10, 10, 0), (0, 0, 0, 0, -1)), 1.0),  # filling
        (boxes((0, 0, 10, 10, 0.9, 0)), truth((0, 0, 10, 10, 0), (5, 5, 9, 9, 1)), 0.5),  # the mean over classes
    ],
)
def test_average_precision_at_one_half_by_hand(found, wanted, expected):
    assert mean_average_precision([found], [wanted], [0.5]) == pytest.approx(expected)


def test_a_box_that_overlaps_by_0_7_counts_up_to_that_threshold():
    loose = boxes((0, 0, 10, 7.2, 0.9, 0))
    assert mean_average_precision([loose], [ONE]) == pytest.approx(5 / 10)  # 0.5, 0.55, 0.6, 0.65, 0.7
    assert len(COCO) == 10


def test_scores_are_ranked_over_all_images():
    found = [boxes((0, 0, 10, 10, 0.3, 0)), boxes((50, 50, 60, 60, 0.9, 0))]
    assert mean_average_precision(found, [ONE, truth()], [0.5]) == pytest.approx(0.5)


def test_nothing_to_find_is_no_number():
    assert np.isnan(mean_average_precision([boxes()], [truth()]))


SCENES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=5, unique=True
)


@given(st.lists(SCENES, min_size=1, max_size=4))
def test_what_is_found_exactly_is_worth_one_and_order_within_an_image_does_not_matter(scenes):
    wanted = [np.array([(20 * x, 20 * y, 20 * x + 9, 20 * y + 9, c) for x, y, c in scene], float) for scene in scenes]
    found = [Boxes(rows[:, :4], np.linspace(0.9, 0.2, len(rows)), rows[:, 4]) for rows in wanted]
    assert mean_average_precision(found, wanted) == pytest.approx(1.0)
    turned = [Boxes(b.boxes[::-1], b.scores[::-1], b.classes[::-1]) for b in found]
    assert mean_average_precision(turned, wanted) == pytest.approx(1.0)
    worse = [Boxes(b.boxes + 4, b.scores, b.classes) for b in found]
    assert mean_average_precision(worse, wanted) < 1.0


def contract(*outputs):
    named = tuple(OutputContract(name, shape, "float32") for name, shape in outputs)
    return Contract("detection", (InputContract("x", (4,), "float32"),), named)


ANSWERS = {
    "rows": (contract(("out", (2, 6))), {"out": np.array([[0, 0, 10, 10, 0.9, 0], [50, 50, 60, 60, 0.1, 1]])}),
    "three outputs": (
        contract(("boxes", (2, 4)), ("classes", (2,)), ("scores", (2,))),
        {
            "boxes": np.array([[0, 0, 10, 10], [50, 50, 60, 60]]),
            "classes": np.array([0, 1]),
            "scores": np.array([0.9, 0.1]),
        },
    ),
    "a score a class": (
        contract(("boxes", (2, 4)), ("scores", (2, 2))),
        {"boxes": np.array([[0, 0, 10, 10], [50, 50, 60, 60]]), "scores": np.array([[0.9, 0.0], [0.0, 0.1]])},
    ),
}


@pytest.mark.parametrize("layout", ANSWERS)
def test_the_usual_layouts_of_a_detectors_outputs_are_known(layout):
    made, answer = ANSWERS[layout]
    metric = named_metric("map", made)
    kept = [metric.keep(answer, ONE)] * 5
    lost = [metric.keep(None, ONE)] * 5
    score = metric.compare(kept, lost)
    assert (score.original, score.artifact, score.drop, score.ci95) == (1.0, 0.0, 1.0, (1.0, 1.0))


def test_labels_that_are_no_boxes_are_refused():
    with pytest.raises(MetricError, match=r"map50 needs labels \[M, 5\]"):
        named_metric("map50", ANSWERS["rows"][0]).keep(None, 3)


def test_a_contract_that_says_where_the_boxes_are_is_what_counts():
    """Of a YOLO's [4 + C, N], in fractions: labels are in pixels of the network's picture, 64 x 32."""
    image = ImageSpec(32, 64, (0.0,), (1.0,), "gray")
    said = Contract(
        "detection",
        (InputContract("x", (32, 64, 1), "float32", image),),
        (OutputContract("y", (6, 3), "float32"),),
        detection=DetectionSpec("y", "box scores", "cxcywh", (1.0, 1.0), candidates="last"),
    )
    sure, copy, other = (0.25, 0.5, 0.25, 0.5, 0.9, 0), (0.26, 0.5, 0.25, 0.5, 0.8, 0), (0.75, 0.5, 0.25, 0.5, 0, 0.1)
    answer = {"y": np.array([sure, copy, other], np.float32).T}
    labels = np.array([[8, 8, 24, 24, 0], [40, 8, 56, 24, 1]], np.float32)
    (metric,) = task_metrics(said, [labels], None)
    assert metric == named_metric("map", said)
    score = metric.compare([metric.keep(answer, labels)] * 3, [metric.keep(None, labels)] * 3)
    assert score.original == pytest.approx(1.0)  # the second is below the contract's threshold, and counts all the same
    assert score.artifact == 0.0


YOLO = Contract(
    "detection",
    (InputContract("x", (320, 320, 3), "float32", ImageSpec(320, 320, (0.0,), (255.0,), "rgb")),),
    (OutputContract("y", (6, 4), "float32"),),
    detection=DetectionSpec("y", "box scores", "cxcywh", (320.0, 320.0), candidates="last"),
)
CAT, DOG = (100, 100, 80, 80, 0.9, 0.0), (250, 250, 40, 40, 0.0, 0.6)
NOTHING = (0, 0, 0, 0, 0, 0)


def yolo(*rows):
    return {"y": np.array([*rows, *[NOTHING] * (4 - len(rows))], np.float32).T}


DECISIONS = {
    "the same": (yolo(CAT, DOG), (2, 2, 2)),
    "moved by a few pixels": (yolo((104, 98, 80, 80, 0.8, 0), DOG), (2, 2, 2)),
    "moved too far": (yolo((150, 100, 80, 80, 0.9, 0), DOG), (2, 2, 1)),
    "another class": (yolo((100, 100, 80, 80, 0, 0.9), DOG), (2, 2, 1)),
    "below the contract's threshold": (yolo((100, 100, 80, 80, 0.2, 0), DOG), (2, 1, 1)),
    "one more": (yolo(CAT, DOG, (30, 30, 20, 20, 0.5, 0)), (2, 3, 2)),
    "a copy that suppression removes": (yolo(CAT, (101, 100, 80, 80, 0.8, 0), DOG), (2, 2, 2)),
    "dead": (yolo(), (2, 0, 0)),
    "not finite": (None, (2, 0, 0)),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_decisions_are_boxes_after_the_contracts_own_decoding(case):
    answer, expected = DECISIONS[case]
    count = DecisionCount(YOLO)
    count.add(yolo(CAT, DOG), answer)
    found = count.found()
    assert (found.original, found.artifact, found.kept) == expected
    assert found.agreement == found.kept / max(found.original, found.artifact)
    assert found.ci95[0] <= found.agreement <= found.ci95[1]


def test_one_box_of_the_artifact_keeps_one_of_the_original():
    apart = replace(YOLO, detection=replace(YOLO.detection, iou_threshold=1.0))
    count = DecisionCount(apart)
    count.add(yolo(CAT, (101, 100, 80, 80, 0.8, 0)), yolo(CAT))
    assert count.found().kept == 1


def test_few_boxes_that_are_all_kept_are_no_certainty():
    count = DecisionCount(YOLO)
    for _ in range(10):
        count.add(yolo(CAT), yolo(CAT))
    assert count.found().ci95[0] < 0.75


def test_scores_that_fall_are_seen_where_every_box_is_kept():
    count = DecisionCount(YOLO)
    count.add(yolo(CAT, DOG), yolo((100, 100, 80, 80, 0.5, 0), DOG))
    found = count.found()
    assert found.agreement == 1.0
    assert found.scores == pytest.approx((0.75, 0.55))
    nothing = DecisionCount(YOLO)
    nothing.add(yolo(CAT), yolo())
    assert nothing.found().scores is None


def test_without_a_box_there_is_no_decision_and_a_box_out_of_nothing_is_wrong():
    count = DecisionCount(YOLO)
    count.add(yolo(), yolo())
    assert count.found() is None
    count.add(yolo(), yolo(CAT))
    assert count.found().agreement == 0.0


BOXES_NOISE = {
    "the same": (yolo(CAT, DOG), 0.0),
    "scores that fell": (yolo((100, 100, 80, 80, 0.6, 0), DOG), 0.09 / 1.17),
    "a box that is lost": (yolo(CAT), 0.36 / 1.17),
    "a box out of nothing": (yolo(CAT, DOG, (30, 30, 20, 20, 0.5, 0)), 0.25 / 1.17),
    "scores that decide nothing": (yolo(CAT, DOG, (30, 30, 20, 20, 0.1, 0)), 0.0),
    "dead": (yolo(), 1.0),
}


@pytest.mark.parametrize("case", BOXES_NOISE)
def test_the_noise_of_boxes_is_where_a_detector_decides(case):
    answer, expected = BOXES_NOISE[case]
    assert decision_noise(YOLO, [yolo(CAT, DOG)] * 2, [answer] * 2) == pytest.approx(expected, abs=1e-6)


def test_scores_that_fall_where_boxes_are_cost_more_than_scores_that_flicker_where_none_are():
    """Eight items of which two have boxes: mean noise would take the ranges that cut the scores off."""
    places = np.random.default_rng(0).uniform(20, 300, (8, 4, 12))

    def items(sure, unsure):
        scores = np.full((8, 2, 12), unsure)
        scores[:2, 0, :2] = sure
        return [{"y": item} for item in np.concatenate([places, scores], axis=1)]

    originals, cut_off, flicker = items(0.8, 0.001), items(0.2, 0.001), items(0.8, 0.1)
    batches = [[[item["y"][None]] for item in found] for found in (originals, cut_off, flicker)]
    assert output_noise(batches[0], batches[1]) < output_noise(batches[0], batches[2])
    assert decision_noise(YOLO, originals, cut_off) > decision_noise(YOLO, originals, flicker)


def test_items_without_boxes_say_nothing_of_noise():
    assert decision_noise(YOLO, [yolo()] * 9, [yolo(CAT)] * 9) is None

"""A detector's raw outputs become boxes in the caller's own picture, whatever their layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgekit_runtime.contract.detect import boxes, class_count, nonsense
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import Contract, DetectionSpec, ImageSpec, InputContract, OutputContract
from edgekit_runtime.system.errors import ContractError

WIDTH, HEIGHT = 64, 48
IMAGE = InputContract("x", (HEIGHT, WIDTH, 3), "float32", ImageSpec(HEIGHT, WIDTH, (0.0,) * 3, (1.0,) * 3))
# Two things and a copy of the first one: corners in network pixels, scores of two classes.
CORNERS = np.array([[8, 4, 24, 20], [9, 4, 25, 20], [40, 10, 60, 40]], np.float32)
SCORES = np.array([[0.9, 0.1], [0.8, 0.3], [0.2, 0.7]], np.float32)
FOUND = [("cat", 0.9, (8, 4, 24, 20)), ("dog", 0.7, (40, 10, 60, 40))]
WHOLE = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32)


def contract(spec, outputs, labels=("cat", "dog")):
    named = tuple(OutputContract(name, value.shape, "float32") for name, value in outputs.items())
    return Contract("detection", (IMAGE,), named, labels, detection=spec)


def logit(p):
    return np.log(p / (1 - p))


def in_format(name, corners=CORNERS):
    left, top, right, bottom = corners.T
    return np.stack(
        {
            "xyxy": [left, top, right, bottom],
            "yxyx": [top, left, bottom, right],
            "xywh": [left, top, right - left, bottom - top],
            "cxcywh": [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top],
        }[name],
        axis=1,
    ).astype(np.float32)


CXCYWH = in_format("cxcywh")
YOLOV8 = np.concatenate([CXCYWH, SCORES], axis=1).T
OBJECTNESS = np.concatenate([CXCYWH, np.full((3, 1), 0.9), SCORES / 0.9], axis=1).astype(np.float32)
# The decided boxes of a network that ends in a suppression: 1 for cats where 0 is nothing, and rows that are not
# filled.
KEPT = np.array([0, 2])
FILLED = np.concatenate([CORNERS[KEPT], np.zeros((2, 4))]).astype(np.float32)
NOTHING_FIRST = np.concatenate([np.full((3, 1), 0.05), SCORES], axis=1).astype(np.float32)
SUMS_TO_ONE = np.concatenate([SCORES, 1 - SCORES.sum(1, keepdims=True) + 1e-9], axis=1)

LAYOUTS = {
    "yolov8 [4 + C, N]": (
        DetectionSpec("y", "box scores", "cxcywh", (WIDTH, HEIGHT), candidates="last"),
        {"y": YOLOV8},
    ),
    "yolov8 with an axis of 1": (
        DetectionSpec("y", "box scores", "cxcywh", (WIDTH, HEIGHT), candidates="last"),
        {"y": YOLOV8[None]},
    ),
    "a grid [h, w, 4 + C]": (
        DetectionSpec("y", "box scores", "cxcywh", (WIDTH, HEIGHT)),
        {"y": YOLOV8.T.reshape(3, 1, 6)},
    ),
    "yolov5 with objectness": (
        DetectionSpec("y", "box objectness scores", "cxcywh", (WIDTH, HEIGHT)),
        {"y": OBJECTNESS},
    ),
    "yolov5 logits": (
        DetectionSpec("y", "box objectness scores", "cxcywh", (WIDTH, HEIGHT), activation="sigmoid"),
        {"y": np.concatenate([CXCYWH, logit(OBJECTNESS[:, 4:5]), logit(np.minimum(OBJECTNESS[:, 5:], 1 - 1e-7))], 1)},
    ),
    "ssd after its own suppression": (
        DetectionSpec(
            "boxes", "box", "yxyx", (1, 1), scores="scores", classes="classes", count="count", suppressed=True
        ),
        {
            "boxes": in_format("yxyx", FILLED) / WHOLE[[1, 0, 3, 2]],
            "classes": np.array([0, 1, 0, 0], np.float32),
            "scores": np.array([0.9, 0.7, 0.95, 0.95], np.float32),
            "count": np.array([2], np.float32),
        },
    ),
    "ssd whose classes begin with the background": (
        DetectionSpec(
            "boxes", "box", "yxyx", (1, 1), scores="scores", classes="classes", background="first", suppressed=True
        ),
        {
            "boxes": in_format("yxyx", FILLED) / WHOLE[[1, 0, 3, 2]],
            "classes": np.array([1, 2, 0, 0], np.float32),
            "scores": np.array([0.9, 0.7, 0.95, 0.95], np.float32),
        },
    ),
    "boxes and scores apart": (
        DetectionSpec("boxes", "box", "xyxy", (WIDTH, HEIGHT), scores="scores"),
        {"boxes": CORNERS, "scores": SCORES},
    ),
    "boxes and scores apart, both turned": (
        DetectionSpec("boxes", "box", "xyxy", (WIDTH, HEIGHT), scores="scores", candidates="last"),
        {"boxes": CORNERS.T, "scores": SCORES.T},
    ),
    "scores with a background first": (
        DetectionSpec("boxes", "box", "xyxy", (WIDTH, HEIGHT), scores="scores", background="first"),
        {"boxes": CORNERS, "scores": NOTHING_FIRST},
    ),
    "detr: softmax, background last": (
        DetectionSpec(
            "boxes", "box", "cxcywh", (1, 1), scores="logits", activation="softmax", background="last",
            iou_threshold=0.8,
        ),
        {"boxes": CXCYWH / WHOLE, "logits": np.log(np.maximum(SUMS_TO_ONE, 1e-12)) + 3},
    ),
    "rows x1 y1 x2 y2 score class": (
        DetectionSpec("y", "box score class", "xyxy", (WIDTH, HEIGHT), suppressed=True),
        {"y": np.concatenate([CORNERS[KEPT], [[0.9, 0], [0.7, 1]]], axis=1)},
    ),
    "pixels of another picture": (
        DetectionSpec("y", "box scores", "cxcywh", (640, 480), candidates="last"),
        {"y": np.concatenate([CXCYWH * 10, SCORES], axis=1).T},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_boxes(layout):
    spec, outputs = LAYOUTS[layout]
    found = boxes(outputs, contract(spec, outputs), None)
    assert [(box.label, box.index) for box in found] == [("cat", 0), ("dog", 1)]
    for box, (_, score, corners) in zip(found, FOUND, strict=True):
        assert box.score == pytest.approx(score, abs=1e-3)
        assert (box.left, box.top, box.right, box.bottom) == pytest.approx(corners, abs=1e-3)
    assert nonsense(contract(spec, outputs)) is None


@pytest.mark.parametrize("name", ["xyxy", "yxyx", "xywh", "cxcywh"])
def test_every_format_of_a_box_means_the_same_corners(name):
    spec = DetectionSpec("boxes", "box", name, (WIDTH, HEIGHT), scores="scores")
    outputs = {"boxes": in_format(name), "scores": SCORES}
    found = boxes(outputs, contract(spec, outputs), None)
    corners = np.array([(box.left, box.top, box.right, box.bottom) for box in found])
    np.testing.assert_allclose(corners, [box[2] for box in FOUND], atol=1e-3)


APART = DetectionSpec("boxes", "box", "xyxy", (WIDTH, HEIGHT), scores="scores")


def ask(corners, scores, spec=APART, geometry=None, **options):
    outputs = {"boxes": np.asarray(corners, np.float32), "scores": np.asarray(scores, np.float32)}
    return boxes(outputs, contract(spec, outputs), geometry, **options)


def test_boxes_come_back_in_pixels_of_the_callers_picture_and_inside_it():
    letterboxed = Geometry(640, 240, left=0.0, top=-120.0, scale_x=10.0, scale_y=10.0)
    (box,) = ask([[32, 6, 70, 30]], [[0.1, 0.9]], geometry=letterboxed)
    assert (box.left, box.top, box.right, box.bottom) == (320, 0, 640, 180)


def test_a_box_in_the_padding_is_left_out():
    letterboxed = Geometry(640, 240, left=0.0, top=-120.0, scale_x=10.0, scale_y=10.0)
    assert ask([[10, 0, 20, 12]], [[0.9, 0.0]], geometry=letterboxed) == []


def test_boxes_of_two_classes_suppress_each_other_only_where_the_contract_says_so():
    corners, scores = [[0, 0, 20, 20], [0, 0, 20, 21]], [[0.9, 0.0], [0.0, 0.8]]
    assert len(ask(corners, scores)) == 2
    assert [box.label for box in ask(corners, scores, replace(APART, class_aware=False))] == ["cat"]


def test_the_threshold_is_the_contracts_unless_the_caller_says_otherwise():
    assert len(ask(CORNERS, SCORES, score_threshold=0.85)) == 1
    assert ask(CORNERS, SCORES, replace(APART, score_threshold=0.95)) == []
    assert len(ask(CORNERS, SCORES, replace(APART, max_boxes=1))) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_no_box(bad):
    corners = CORNERS.copy()
    corners[0, 2] = bad
    assert [box.label for box in ask(corners[[0, 2]], SCORES[[0, 2]])] == ["dog"]
    scores = SCORES.copy()
    scores[0, 0] = np.nan
    assert [box.label for box in ask(CORNERS[[0, 2]], scores[[0, 2]])] == ["dog"]


def test_nothing_found_is_an_empty_list():
    assert ask(CORNERS, SCORES * 0) == []
    assert ask(np.zeros((0, 4)), np.zeros((0, 2))) == []


def test_a_detector_of_one_thing_needs_no_classes():
    outputs = {"boxes": CORNERS, "scores": np.array([0.9, 0.1, 0.7], np.float32)}
    found = boxes(outputs, contract(APART, outputs, labels=("face",)), None)
    assert [box.label for box in found] == ["face", "face"]


def test_without_labels_the_index_is_the_name():
    outputs = {"boxes": CORNERS, "scores": SCORES}
    assert [box.label for box in boxes(outputs, contract(APART, outputs, None), None)] == ["0", "1"]


def test_boxes_are_for_detectors():
    with pytest.raises(ContractError, match="this model's task is raw"):
        boxes({}, Contract("raw", (), ()), None)


NONSENSE = {
    "no such output": (replace(APART, boxes="bexes"), "boxes", "has no output 'bexes'"),
    "rows too narrow": (DetectionSpec("boxes", "box scores", "xyxy", (1, 1)), "row", "takes at least 5 numbers"),
    "rows too wide": (DetectionSpec("scores", "box", "xyxy", (1, 1), scores="scores"), "row", "takes 4 numbers"),
    "no scores": (replace(APART, scores=None), "scores", "is missing"),
    "another number of scores": (replace(APART, scores="other"), "scores", "no score for each of the 3 boxes"),
    "another number of classes": (replace(APART, scores="one", classes="other"), "classes", "no class for each"),
    "a box of no size": (replace(APART, span=(0.0, 1.0)), "unit", "is not a size"),
    "a percentage": (replace(APART, score_threshold=25.0), "score_threshold", "25 is not from 0 to 1"),
    "no box at all": (replace(APART, max_boxes=0), "max_boxes", "less than one box"),
    "softmax of one": (replace(APART, scores="one", classes="one", activation="softmax"), "activation",
        "softmax is over"),
    "labels for the background": (replace(APART, background="first"), "labels", "2 labels, and the outputs have 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", NONSENSE)
def test_what_contradicts_the_outputs_is_named(case):
    spec, key, what = NONSENSE[case]
    outputs = {"boxes": CORNERS, "scores": SCORES, "other": np.zeros((5, 2)), "one": np.zeros(3)}
    found = nonsense(contract(spec, outputs))
    assert found is not None
    assert (found.key, what in found.what) == (key, True), found


def test_a_picture_is_needed():
    outputs = {"boxes": CORNERS, "scores": SCORES}
    blind = replace(contract(APART, outputs), inputs=(InputContract("x", (4,), "float32"),))
    assert nonsense(blind).what == "boxes need a picture, and no input is one"


def test_classes_are_counted_where_the_outputs_say_how_many():
    counted = {layout: class_count(contract(*LAYOUTS[layout])) for layout in LAYOUTS}
    assert set(counted.values()) == {2, None}
    assert [layout for layout, n in counted.items() if n is None] == [
        "ssd after its own suppression",
        "ssd whose classes begin with the background",
        "rows x1 y1 x2 y2 score class",
    ]

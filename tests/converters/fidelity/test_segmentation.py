"""Masks of class indexes: counts that can be done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.fidelity.metrics import VOID, channel_axis, is_map, named_metric, task_metrics
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract

INPUT = (InputContract("x", (4,), "float32"),)


def contract(*shape):
    return Contract("raw", INPUT, (OutputContract("mask", shape, "float32"),))


def answer(classes, shape, first=False):
    """Scores whose best class is `classes` everywhere."""
    scores = np.eye(shape[0] if first else shape[-1], dtype=np.float32)[np.asarray(classes)]
    return {"mask": np.moveaxis(scores, -1, 0) if first else scores}


TRUTH = np.array([[0, 0, 1], [1, 2, 2]])
FOUND = np.array([[0, 1, 1], [1, 2, 0]])  # 4 of 6; IoU 1/3, 2/3, 1/2


@pytest.mark.parametrize(("shape", "first"), [((2, 3, 4), False), ((4, 2, 3), True)], ids=["channels last", "first"])
@pytest.mark.parametrize(("name", "value"), [("miou", (1 / 3 + 2 / 3 + 1 / 2) / 3), ("pixel-accuracy", 4 / 6)])
def test_a_mask_is_scored_by_the_best_channel_of_each_pixel(name, value, shape, first):
    metric = named_metric(name, contract(*shape))
    right, wrong = (metric.keep(answer(found, shape, first), TRUTH) for found in (TRUTH, FOUND))
    score = metric.compare([right] * 30, [wrong] * 30)
    assert (score.metric, score.original, score.artifact) == (name, 1.0, pytest.approx(value))
    assert score.drop == pytest.approx(1 - value)
    assert score.ci95 == (pytest.approx(1 - value), pytest.approx(1 - value))


def test_pixels_without_a_class_are_not_counted():
    metric = named_metric("pixel-accuracy", contract(2, 3, 4))
    kept = metric.keep(answer(FOUND, (2, 3, 4)), np.where(FOUND == TRUTH, TRUTH, VOID))
    assert metric.compare([kept], [kept]).artifact == 1.0


@pytest.mark.parametrize(("classes", "counted"), [(255, 1), (256, 2)])
def test_255_is_no_class_unless_there_are_so_many(classes, counted):
    metric = named_metric("pixel-accuracy", contract(1, 2, classes))
    mask = np.array([[0, VOID]])
    right, labelled, _ = metric.keep(answer(np.array([[0, 0]]), (1, 2, classes)), mask)
    assert (right.sum(), labelled.sum()) == (1, counted)


def test_a_row_of_pixels_is_a_map_and_a_single_pixel_is_none():
    assert is_map(OutputContract("mask", (1, 9, 4), "float32"))
    assert not is_map(OutputContract("mask", (1, 1, 4), "float32"))


def test_an_axis_of_one_holds_no_classes():
    assert channel_axis((6, 5, 1)) == 0


def test_an_answer_that_is_not_finite_is_right_nowhere():
    metric = named_metric("miou", contract(2, 3, 4))
    assert metric.compare([metric.keep(answer(TRUTH, (2, 3, 4)), TRUTH)], [metric.keep(None, TRUTH)]).artifact == 0.0


def test_masks_are_measured_without_being_asked_for_and_other_whole_numbers_are_not():
    masks = [metric.name for metric in task_metrics(contract(2, 3, 4), [TRUTH], None)]
    assert masks == ["miou", "pixel-accuracy"]
    assert task_metrics(contract(2, 3, 4), [3], None) == ()
    assert task_metrics(contract(2, 3, 4), [np.zeros((5, 5), np.int64)], None) == ()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (TRUTH.astype(np.float32), r"miou needs masks of class indexes of the size of the output 'mask' \[2, 3, 4\]"),
        (np.zeros((9, 9), np.int64), r"a label is int64 \[9, 9\]"),
        (TRUTH + 3, "5 is not a class of the output 'mask': they run from 0 to 3"),
        (TRUTH + 2, "4 is not a class of the output 'mask': they run from 0 to 3"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_shapes(mask, said):
    with pytest.raises(MetricError, match=said):
        named_metric("miou", contract(2, 3, 4)).keep(answer(TRUTH, (2, 3, 4)), mask)


def test_the_way_out_that_is_told_leads_out():
    with pytest.raises(MetricError, match=r"--metric miou or pixel-accuracy, with masks of class indexes"):
        named_metric("top1", contract(2, 3, 4))
    with pytest.raises(MetricError, match=r"your own, module:function"):
        named_metric("top1", contract(1))
    with pytest.raises(MetricError, match=r"'mask' answers \[7\]"):
        named_metric("miou", contract(7))

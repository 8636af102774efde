"""Task metrics: score the original and an artifact on the same labels.

    metric = named_metric("f1", contract)
    score = metric.compare([metric.keep(answer, label), ...], [...])      # Score(metric="f1", drop=0.012, ci95=(...))

Rules:
- a drop is positive if the artifact is worse, also if the metric is an error;
- an answer that is not finite is as wrong as an answer can be;
- masks: a pixel's class is the channel with the greatest score; pixels labelled 255 do not count;
- metrics of masks add up pixels over the whole set, and their intervals resample items, not pixels.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import and_
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Label
from edgekit_converters.fidelity.intervals import (
    best_class,
    best_classes,
    mean_interval,
    paired_interval,
    resampled_score,
)
from edgekit_converters.fidelity.result import Score
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_runtime.contract.spec import Contract, OutputContract

VOID = 255
"""The label of a pixel that belongs to no class, as in Pascal VOC and Cityscapes."""

_RESAMPLES = 1000

Counts = NDArray[np.int64]
"""[3, C]: pixels of each class that are right, labelled so, answered so."""


def is_map(output: OutputContract) -> bool:
    """Whether an output may hold a score a class for each of many pixels."""
    floating = np.issubdtype(np.dtype(output.dtype), np.floating)
    sides = [side for side in output.shape if side > 1]
    return bool(floating) and len(output.shape) in (3, 4) and len(sides) >= 2 and channel_axis(output.shape) is not None


def channel_axis(shape: Sequence[int], mask: Sequence[int] | None = None) -> int | None:
    """The axis of the classes: the shorter end, or the one that a mask's shape lacks, or None."""
    ends = [axis for axis in (len(shape) - 1, 0 if len(shape) == 3 else 1) if shape[axis] > 1]
    if mask is None:
        return min(ends, key=lambda axis: shape[axis], default=None)
    wanted = _without_ones(mask)
    return next((axis for axis in ends if _without_ones([*shape[:axis], *shape[axis + 1 :]]) == wanted), None)


def pixel_metric(name: str, contract: Contract) -> _PixelMetric:
    """name: miou or pixel-accuracy.

    Raises MetricError unless the first output has a score a class for each pixel.
    """
    output = contract.outputs[0]
    if not is_map(output):
        answers = f"'{output.name}' answers {list(output.shape)}"
        what = f"{name} is for models that answer a score a class for every pixel, and {answers}"
        raise MetricError(what, do="Choose another --metric")
    return _PixelMetric(name, _mean_iou if name == "miou" else _pixel_accuracy, output.name, tuple(output.shape))


def _mean_iou(counts: Counts) -> float:
    """The mean over classes of right / (labelled + answered - right)."""
    right, labelled, answered = counts
    union = labelled + answered - right
    occurs = union > 0
    return float((right[occurs] / union[occurs]).mean()) if occurs.any() else math.nan


def _pixel_accuracy(counts: Counts) -> float:
    """The share of labelled pixels that are right."""
    right, labelled, _ = counts.sum(axis=1)
    return float(right / labelled) if labelled else math.nan


@dataclass(frozen=True)
class _PixelMetric:
    """output: its name. shape: without the batch axis."""

    name: str
    of_counts: Callable[[Counts], float]
    output: str
    shape: tuple[int, ...]

    def keep(self, answer: Mapping[str, NDArray[Any]] | None, label: Label) -> Counts:
        """Counts of an item; of a non-finite answer nothing is right. Raises MetricError."""
        mask = np.asarray(label)
        axis = channel_axis(self.shape, mask.shape)
        if axis is None or mask.dtype.kind not in "iub":
            sides = list(self.shape)
            raise MetricError(
                f"{self.name} needs masks of class indexes of the size of the output '{self.output}' {sides}, and a "
                f"label is {mask.dtype} {list(mask.shape)}",
                do="Give whole numbers, one a pixel, or a function of your own: --metric module:function",
            )
        truth, classes = mask.reshape(-1).astype(np.int64), self.shape[axis]
        counted = truth != VOID if classes <= VOID else np.ones(truth.size, bool)
        truth = truth[counted]
        if truth.size and not (truth.min() >= 0 and truth.max() < classes):
            wrong = int(truth.max() if truth.max() >= classes else truth.min())
            raise MetricError(
                f"{wrong} is not a class of the output '{self.output}': they run from 0 to {classes - 1}",
                do=f"Label pixels that belong to no class {VOID}",
            )
        labelled = np.bincount(truth, minlength=classes)
        if answer is None:
            return np.array([np.zeros(classes, np.int64), labelled, np.zeros(classes, np.int64)])
        found = np.argmax(np.asarray(answer[self.output]).reshape(self.shape), axis=axis).reshape(-1)[counted]
        right = np.bincount(truth[found == truth], minlength=classes)
        return np.array([right, labelled, np.bincount(found, minlength=classes)])

    def compare(self, original: Sequence[Counts], artifact: Sequence[Counts]) -> Score:
        def measure(counts: NDArray[np.int64]) -> float:
            return self.of_counts(counts.sum(axis=0))

        return resampled_score(self.name, measure, np.stack(original), np.stack(artifact), _RESAMPLES)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [side for side in shape if side != 1]


Outputs = Mapping[str, NDArray[Any]]

_NAMES = ("top1", "top5", "f1", "mae", "map", "map50", "miou", "pixel-accuracy")
_FOR_CLASSES = ("top1", "top5", "f1")
_FOR_PIXELS = ("miou", "pixel-accuracy")


class Metric(Protocol):
    """One number for a model on a labelled set.

    keep: what is remembered of an item, from its answer by output name (None: not finite) and its label.
    compare: scores what was kept, in the same order for both models.

    Both raise MetricError for labels that do not fit.
    """

    @property
    def name(self) -> str: ...
    def keep(self, answer: Outputs | None, label: Label) -> Any: ...
    def compare(self, original: Sequence[Any], artifact: Sequence[Any]) -> Score: ...


@dataclass(frozen=True)
class TopK:
    """Share of items whose label is among the k best classes of `output`."""

    output: str
    k: int = 1

    @property
    def name(self) -> str:
        return f"top{self.k}"

    def keep(self, answer: Outputs | None, label: Label) -> bool:
        if answer is None:
            return False
        if self.k == 1:
            return best_class(answer[self.output]) == int(label)
        return int(label) in best_classes(answer[self.output], self.k)

    def compare(self, original: Sequence[bool], artifact: Sequence[bool]) -> Score:
        before, after, items = sum(original), sum(artifact), len(original)
        both = sum(map(and_, original, artifact))
        interval = paired_interval(before - both, after - both, items)
        # A drop of the counts: 18/20 - 17/20 is 1/20, the nearest float to 0.05
        return Score(self.name, before / items, after / items, (before - after) / items, interval)


@dataclass(frozen=True)
class MacroF1:
    """`macro_f1` of the best class of `output`, with a bootstrap interval."""

    output: str
    name: str = "f1"

    def keep(self, answer: Outputs | None, label: Label) -> tuple[int, int]:
        return int(label), -1 if answer is None else best_class(answer[self.output])

    def compare(self, original: Sequence[tuple[int, int]], artifact: Sequence[tuple[int, int]]) -> Score:
        def measure(rows: NDArray[np.int64]) -> float:
            return macro_f1(rows[:, 0], rows[:, 1])

        resamples = _RESAMPLES if len(original) < 20_000 else 300
        return resampled_score(self.name, measure, np.array(original), np.array(artifact), resamples)


@dataclass(frozen=True)
class MeanAbsoluteError:
    """Mean over items of the mean over values of |answer - label|, of `output`.

    A non-finite answer counts as the label farthest from its own, or as the largest error of the set if that is more.
    """

    output: str
    name: str = "mae"

    def keep(self, answer: Outputs | None, label: Label) -> tuple[float, float, float]:
        """(error, least, greatest value of the label); the error is NaN if not finite."""
        truth = np.asarray(label, np.float64).reshape(-1)
        if answer is None:
            return math.nan, float(truth.min()), float(truth.max())
        value = np.asarray(answer[self.output], np.float64).reshape(-1)
        if value.size != truth.size:
            raise MetricError(
                f"mae compares {truth.size} values a label with the {value.size} of the output '{self.output}'",
                do="Give labels of the output's shape; for masks of class indexes, --metric miou; or your own "
                "module:function",
            )
        return float(np.abs(value - truth).mean()), float(truth.min()), float(truth.max())

    def compare(
        self, original: Sequence[tuple[float, float, float]], artifact: Sequence[tuple[float, float, float]]
    ) -> Score:
        first, second = np.array(original), np.array(artifact)
        low, high = first[:, 1].min(), first[:, 2].max()
        farthest = np.maximum(first[:, 2] - low, high - first[:, 1])
        largest = np.nanmax(np.concatenate([first[:, 0], second[:, 0]]))
        errors = [np.where(np.isnan(e), np.maximum(farthest, largest), e) for e in (first[:, 0], second[:, 0])]
        drop = errors[1] - errors[0]
        before, after = (float(e.mean()) for e in errors)
        return Score(self.name, before, after, float(drop.mean()), mean_interval(drop), higher_is_better=False)


def macro_f1(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Mean over the classes in either of 2 TP / (2 TP + FP + FN); predicted -1 is not a class."""
    size = int(max(truth.max(), predicted.max())) + 1
    right = np.bincount(truth[truth == predicted], minlength=size)
    seen = np.bincount(truth, minlength=size) + np.bincount(predicted[predicted >= 0], minlength=size)
    occurs = seen > 0
    return float((2 * right[occurs] / seen[occurs]).mean())


def named_metric(name: str, contract: Contract, joined: Callable[[Outputs], Outputs] | None = None) -> Metric:
    """The metric of that name: one of `_NAMES`, or `module:function`.

    joined: makes the outputs that a function was written for.

    Raises MetricError if unknown or not for this task.
    """
    from edgekit_converters.fidelity.detection import MeanAveragePrecision
    from edgekit_converters.fidelity.metric_function import open_metric_function

    output = contract.outputs[0].name
    if ":" in name:
        return open_metric_function(name, joined)
    if name not in _NAMES:
        near = difflib.get_close_matches(name.lower(), _NAMES, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise MetricError(f"there is no metric '{name}'", do=f"{hint}Metrics: {', '.join(_NAMES)}, or module:function")
    if (name in _FOR_CLASSES) != (contract.task == "classification"):
        wanted = "a classifier" if name in _FOR_CLASSES else "models that predict numbers, boxes or masks"
        raise MetricError(f"{name} is for {wanted}, and this model's task is {contract.task}", do=_instead(contract))
    if name in _FOR_PIXELS:
        return pixel_metric(name, contract)
    if name == "mae":
        return MeanAbsoluteError(output)
    if name == "f1":
        return MacroF1(output)
    if name in ("map", "map50"):
        return MeanAveragePrecision.of(contract, name)
    return TopK(output, int(name[3:]))


def task_metrics(contract: Contract, labels: Sequence[Label] | None, wanted: Metric | None) -> tuple[Metric, ...]:
    """The metrics, the deciding one first: `wanted`, or what task and labels suggest.

    - classification: top1, top5 (of more than five classes) and f1;
    - labels [M, 5] of a detector whose contract says where its boxes are: map;
    - floats of the first output's size: mae;
    - whole numbers, one for each pixel of an output with classes of pixels: miou and pixel-accuracy.

    Raises MetricError if a metric is wanted and nothing is labelled.
    """
    if labels is None:
        if wanted is not None:
            raise MetricError(
                f"{wanted.name} needs labels, and the evaluation set has none", do="Give a labelled --evaluation set"
            )
        return ()
    from edgekit_converters.fidelity.detection import MeanAveragePrecision

    own: tuple[Metric, ...] = ()
    first, label = contract.outputs[0], np.asarray(labels[0])
    is_mask = label.dtype.kind in "iub" and label.ndim >= 2 and channel_axis(first.shape, label.shape) is not None
    if contract.task == "classification":
        own = (TopK(first.name), *([TopK(first.name, 5)] if math.prod(first.shape) > 5 else []), MacroF1(first.name))
    elif contract.detection is not None and label.ndim == 2 and label.shape[1] == 5:
        own = (MeanAveragePrecision.of(contract, "map"),)
    elif label.dtype.kind == "f" and label.size == math.prod(first.shape):
        own = (MeanAbsoluteError(first.name),)
    elif is_map(first) and is_mask:
        own = (pixel_metric("miou", contract), pixel_metric("pixel-accuracy", contract))
    if wanted is None:
        return own
    return (wanted, *(metric for metric in own if metric.name != wanted.name))


def rehearse(metrics: Sequence[Metric], answers: Sequence[Outputs], labels: Sequence[Label], where: str) -> None:
    """Score the original with each metric. Raises MetricError for labels that do not fit."""
    try:
        for metric in metrics:
            for answer, label in zip(answers, labels, strict=True):
                metric.keep(answer, label)
    except MetricError as error:
        raise MetricError(error.what, where=error.where or where, do=error.do) from error


def _instead(contract: Contract) -> str:
    """Advice for a metric that is not for this task."""
    first = contract.outputs[0]
    if is_map(first):
        return "A class a pixel is measured by --metric miou or pixel-accuracy, with masks of class indexes as labels"
    if contract.task != "classification" and math.prod(first.shape) == max(first.shape, default=0) > 1:
        return 'Write task = "classification" in the contract file, or choose another --metric'
    fitting = ", ".join(_FOR_CLASSES) if contract.task == "classification" else "mae"
    return f"Choose another --metric: {fitting}, or a function of your own, module:function"

"""A class for every pixel: how much of the labelled masks a model finds.

metric = MeanIoU.of(contract)                                  # an output [H, W, C] or [C, H, W], labels [H, W] of class indexes
score = metric.compare([metric.keep(answer, mask), ...], [...])         # Score(metric="miou", drop=0.004, ...)

Rules:
- a pixel's class is the channel with the greatest score; pixels labelled 255 belong to no class and are not counted;
- both metrics are of the whole set: pixels are added up over all items, so that an item without a class cannot decide
  that class. The intervals draw items, not pixels: pixels of one picture are no independent trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Label
from edgekit_converters.errors import MetricError
from edgekit_converters.fidelity.intervals import resampled_interval
from edgekit_converters.fidelity.result import Score
from edgekit_runtime.contract.spec import Contract, OutputContract

__all__ = ["VOID", "MeanIoU", "PixelAccuracy", "channel_axis", "is_map", "pixel_metric"]

VOID = 255
"""The label of a pixel that belongs to no class, as Pascal VOC and Cityscapes write it."""

_RESAMPLES = 1000

Counts = NDArray[np.int64]
"""[3, C]: of each class the pixels that are right, that are labelled so, that are answered so."""


def is_map(output: OutputContract) -> bool:
    """Whether an output may hold a score a class for each of many pixels."""
    floating = np.issubdtype(np.dtype(output.dtype), np.floating)
    sides = [side for side in output.shape if side > 1]
    return bool(floating) and len(output.shape) in (3, 4) and len(sides) >= 2 and channel_axis(output.shape) is not None


def channel_axis(shape: Sequence[int], mask: Sequence[int] | None = None) -> int | None:
    """Which axis holds the classes: the one without which the shape is the mask's, or the shorter end. None for neither."""
    ends = [axis for axis in (len(shape) - 1, 0 if len(shape) == 3 else 1) if shape[axis] > 1]
    if mask is None:
        return min(ends, key=lambda axis: shape[axis], default=None)
    wanted = _without_ones(mask)
    return next((axis for axis in ends if _without_ones([*shape[:axis], *shape[axis + 1 :]]) == wanted), None)


def pixel_metric(name: str, contract: Contract) -> _PixelMetric:
    """name: miou or pixel-accuracy. Raises MetricError where the first output has no classes of pixels."""
    output = contract.outputs[0]
    if not is_map(output):
        raise MetricError(
            f"{name} is for models that answer a score a class for every pixel, and '{output.name}' answers {list(output.shape)}",
            do="Choose another --metric",
        )
    return (MeanIoU if name == "miou" else PixelAccuracy)(output.name, tuple(output.shape))


@dataclass(frozen=True)
class _PixelMetric:
    """output: its name. shape: without the batch axis."""

    output: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        raise NotImplementedError

    def of_counts(self, counts: Counts) -> float:
        raise NotImplementedError

    def keep(self, answer: Mapping[str, NDArray[Any]] | None, label: Label) -> Counts:
        """Counts of an item; an answer that is not finite is right nowhere. Raises MetricError where the mask does not fit."""
        mask = np.asarray(label)
        axis = channel_axis(self.shape, mask.shape)
        if axis is None or mask.dtype.kind not in "iub":
            sides = list(self.shape)
            raise MetricError(
                f"{self.name} needs masks of class indexes of the size of the output '{self.output}' {sides}, and a label is "
                f"{mask.dtype} {list(mask.shape)}",
                do="Give whole numbers, one a pixel, or a function of your own: --metric module:function",
            )
        truth, classes = mask.reshape(-1).astype(np.int64), self.shape[axis]
        counted = truth != VOID if classes <= VOID else np.ones(truth.size, bool)
        truth = truth[counted]
        if truth.size and not (truth.min() >= 0 and truth.max() < classes):
            wrong = int(truth.max() if truth.max() >= classes else truth.min())
            raise MetricError(
                f"{wrong} is no class of the output '{self.output}': they run from 0 to {classes - 1}",
                do=f"Label pixels that belong to no class {VOID}",
            )
        labelled = np.bincount(truth, minlength=classes)
        if answer is None:
            return np.array([np.zeros(classes, np.int64), labelled, np.zeros(classes, np.int64)])
        found = np.argmax(np.asarray(answer[self.output]).reshape(self.shape), axis=axis).reshape(-1)[counted]
        right = np.bincount(truth[found == truth], minlength=classes)
        return np.array([right, labelled, np.bincount(found, minlength=classes)])

    def compare(self, original: Sequence[Counts], artifact: Sequence[Counts]) -> Score:
        first, second = np.stack(original), np.stack(artifact)

        def drop(at: NDArray[np.int64]) -> float:
            return self.of_counts(first[at].sum(axis=0)) - self.of_counts(second[at].sum(axis=0))

        before, after = (self.of_counts(counts.sum(axis=0)) for counts in (first, second))
        low, high = resampled_interval(drop, len(first), _RESAMPLES)
        loss = before - after
        return Score(self.name, before, after, loss, (loss, loss) if math.isnan(low) else (low, high))


@dataclass(frozen=True)
class MeanIoU(_PixelMetric):
    """The mean over the classes that are labelled or answered of right / (labelled + answered - right)."""

    @property
    def name(self) -> str:
        return "miou"

    def of_counts(self, counts: Counts) -> float:
        right, labelled, answered = counts
        union = labelled + answered - right
        occurs = union > 0
        return float((right[occurs] / union[occurs]).mean()) if occurs.any() else math.nan


@dataclass(frozen=True)
class PixelAccuracy(_PixelMetric):
    """The share of labelled pixels that are right."""

    @property
    def name(self) -> str:
        return "pixel-accuracy"

    def of_counts(self, counts: Counts) -> float:
        right, labelled, _ = counts.sum(axis=1)
        return float(right / labelled) if labelled else math.nan


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [side for side in shape if side != 1]

"""Boxes of two detectors.
Mean average precision against labels, and without labels how many boxes are the same.

Mean average precision is that of the COCO evaluation.

For one class and one threshold t of intersection over union (IoU): the detections of all images, the surest first, are
each a hit if their image has a truth of that class, not taken by a surer detection, with IoU >= t (of several the one
with the greatest IoU is taken). After k detections, recall = hits / truths and precision = hits / k; precision at
recall r is the greatest at any recall >= r. Average precision is its mean over r = 0, 0.01, ..., 1; the metric is the
mean over the classes that occur in the truth, then over the thresholds: 0.5, 0.55, ..., 0.95 for `map`, 0.5 alone for
`map50`. At most 100 detections an image and class count. Crowds and area ranges are not known here.

    mean_average_precision([Boxes(boxes, scores, classes)], [truth])      # truth: [M, 5], x1 y1 x2 y2 class

Without labels the original's boxes are the truth: those over the contract's threshold after its decoding and
suppression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Label
from edgekit_converters.fidelity.intervals import resampled_interval, share_interval
from edgekit_converters.fidelity.result import Decisions, Score
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.contract.spec import Contract

COCO = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The thresholds of IoU that COCO's AP is a mean over."""

_RECALLS = np.linspace(0, 1, 101)
_MOST = 100
_LEAST_SCORE = 0.001  # precision is a mean over all recalls, so boxes that an answer would not show count too
_RESAMPLES = 200
_SAME_BOX = 0.5
"""IoU from which on two boxes of one class are one decision."""


_NEARLY = 0.5
"""Of the contract's threshold: boxes from there on count in `decision_noise`, so that it is smooth and has enough of
them.
"""
_FEW_BOXES = 4
"""Fewer boxes than this say nothing of noise."""


@dataclass(frozen=True)
class Boxes:
    """One image's detections.

    boxes: [M, 4], corners x1 y1 x2 y2 in any unit; scores: [M]; classes: [M], whole numbers.
    """

    boxes: NDArray[Any]
    scores: NDArray[Any]
    classes: NDArray[Any]


@dataclass(frozen=True)
class _ClassMatches:
    """One class of one image.
    hits: bool [thresholds, detections], the surest first, as `scores` are."""

    scores: NDArray[np.float64]
    hits: NDArray[np.bool_]
    truths: int


@dataclass(frozen=True)
class MeanAveragePrecision:
    """`map` or `map50` of a model that answers boxes.
    Labels are [M, 5] rows x1 y1 x2 y2 class, class -1 for filling.

    contract: of a detector that says where its boxes are; labels are then in pixels of the network's picture. Else
    outputs: one name for one output [M, 6] (x1, y1, x2, y2, score, class), or the names of (boxes [M, 4], scores [M],
    classes [M]), or of (boxes, scores [M, classes]).
    """

    name: str
    outputs: tuple[str, ...]
    thresholds: tuple[float, ...]
    contract: Contract | None = None

    @classmethod
    def of(cls, contract: Contract, name: str) -> MeanAveragePrecision:
        """Raises MetricError where the outputs are not one of the layouts."""
        thresholds = COCO if name == "map" else (0.5,)
        if contract.detection is not None:
            return cls(name, (), thresholds, contract)
        first = contract.outputs[0]
        if len(contract.outputs) == 1 and len(first.shape) == 2 and first.shape[1] == 6:
            return cls(name, (first.name,), thresholds)
        boxes = [o.name for o in contract.outputs if len(o.shape) == 2 and o.shape[1] == 4]
        scores = [o.name for o in contract.outputs if "score" in o.name.lower() or "conf" in o.name.lower()]
        classes = [o.name for o in contract.outputs if "class" in o.name.lower() or "label" in o.name.lower()]
        if len(boxes) == len(scores) == 1 and len(classes) <= 1:
            return cls(name, (boxes[0], scores[0], *classes), thresholds)
        shown = ", ".join(f"{o.name} {list(o.shape)}" for o in contract.outputs)
        raise MetricError(
            f"{name} does not know where the boxes are: the outputs are {shown}",
            do='Write task = "detection" and [detection] in the contract file, or give --metric module:function that '
            "decodes "
            "them and calls mean_average_precision",
        )

    def keep(self, answer: Mapping[str, NDArray[Any]] | None, label: Label) -> dict[int, _ClassMatches]:
        truth = np.asarray(label, np.float64)
        if truth.size == 0:
            truth = np.zeros((0, 5))
        if truth.ndim != 2 or truth.shape[1] != 5:
            raise MetricError(
                f"{self.name} needs labels [M, 5] and one is {list(truth.shape)}", do="Rows are x1 y1 x2 y2 class"
            )
        if answer is None:
            found = Boxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0))
        elif self.contract is not None:
            kept = candidates(answer, self.contract, _LEAST_SCORE)
            found = Boxes(kept.corners, kept.scores, kept.classes)
        else:
            values = [np.asarray(answer[name], np.float64) for name in self.outputs]
            if len(values) == 1:
                found = Boxes(values[0][:, :4], values[0][:, 4], values[0][:, 5])
            elif len(values) == 3:
                found = Boxes(values[0], values[1].reshape(-1), values[2].reshape(-1))
            else:
                scores = values[1].reshape(len(values[0]), -1)
                found = Boxes(values[0], scores.max(axis=1), scores.argmax(axis=1))
        return _match(found, truth, self.thresholds)

    def compare(
        self, original: Sequence[dict[int, _ClassMatches]], artifact: Sequence[dict[int, _ClassMatches]]
    ) -> Score:
        def drop(at: NDArray[np.int64]) -> float:
            return _precision([original[i] for i in at]) - _precision([artifact[i] for i in at])

        before, after = _precision(original), _precision(artifact)
        interval = resampled_interval(drop, len(original), _RESAMPLES)
        return Score(self.name, before, after, before - after, interval)


class DecisionCount:
    """Counts the boxes of an original and of an artifact, item by item.

    contract: of a detector that says where boxes are.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._items: list[tuple[int, int, int]] = []
        self._scores: list[tuple[float, float]] = []

    def add(self, original: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]] | None) -> None:
        """answer: None where it is not finite, which is no box at all."""
        wanted = candidates(original, self._contract)
        if answer is None:
            self._items.append((len(wanted.scores), 0, 0))
            return
        found = candidates(answer, self._contract)
        overlaps = iou(found.corners, wanted.corners) * (found.classes[:, None] == wanted.classes[None, :])
        taken = _taken(overlaps, _SAME_BOX)
        kept = [(float(wanted.scores[one]), float(found.scores[at])) for at, one in enumerate(taken) if one is not None]
        self._items.append((len(wanted.scores), len(found.scores), len(kept)))
        self._scores += kept

    def found(self) -> Decisions | None:
        """None where neither gives a box, so that nothing can be compared."""
        items = np.array(self._items).reshape(-1, 3)
        original, artifact, kept = (int(count) for count in items.sum(axis=0))
        larger = max(original, artifact)
        if not larger:
            return None

        def agreement(at: NDArray[np.int64]) -> float:
            first, other, both = items[at].sum(axis=0)
            return float(both / max(first, other)) if max(first, other) else float("nan")

        # Boxes of one item are lost together, so items are resampled; few boxes are never a sure thing, so Wilson's
        # holds too.
        by_item, by_box = resampled_interval(agreement, len(items)), share_interval(kept, larger)
        low, high = min(by_item[0], by_box[0]), max(by_item[1], by_box[1])
        means = np.array(self._scores).reshape(-1, 2).sum(axis=0) / max(kept, 1)
        scores = (float(means[0]), float(means[1])) if kept else None
        return Decisions(original, artifact, kept, kept / larger, (low, high), scores)


def decision_noise(
    contract: Contract, originals: Sequence[Mapping[str, NDArray[Any]]], answers: Sequence[Mapping[str, NDArray[Any]]]
) -> float | None:
    """Noise over signal power in the scores of a detector's boxes.
    Lost and false boxes count whole.

    A box in another place counts by the part that does not overlap. Values far below the threshold decide nothing,
    however much they vary. None where the originals give too few boxes.
    """
    assert contract.detection is not None
    threshold = _NEARLY * contract.detection.score_threshold
    boxes, signal, noise = 0, 0.0, 0.0
    for original, answer in zip(originals, answers, strict=True):
        wanted, found = (candidates(outputs, contract, threshold) for outputs in (original, answer))
        boxes += len(wanted.scores)
        power, missed = np.square(wanted.scores), np.ones(len(wanted.scores), bool)
        signal += float(power.sum())
        overlaps = iou(found.corners, wanted.corners) * (found.classes[:, None] == wanted.classes[None, :])
        for score, row in zip(found.scores, overlaps, strict=True):
            free = np.where(missed, row, 0.0)
            best = int(free.argmax()) if len(free) else -1
            if best < 0 or free[best] < _SAME_BOX:
                noise += float(score) ** 2
                continue
            missed[best] = False
            noise += float((score - wanted.scores[best]) ** 2 + power[best] * (1 - free[best]) ** 2)
        noise += float(power[missed].sum())
    return noise / signal if boxes >= _FEW_BOXES else None


def mean_average_precision(
    found: Sequence[Boxes], truth: Sequence[NDArray[Any]], thresholds: Sequence[float] = COCO
) -> float:
    """0..1, one entry an image in both.

    truth: [M, 5] rows x1 y1 x2 y2 class; a class below 0 is filling.

    Raises ValueError for lists of different lengths; NaN where no image has any truth.
    """
    return _precision(
        [
            _match(boxes, np.asarray(rows, np.float64).reshape(-1, 5), thresholds)
            for boxes, rows in zip(found, truth, strict=True)
        ]
    )


def iou(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """[A, B]: area of the intersection over area of the union of two lists of corner boxes.

    [A, 4] and [B, 4]; 0 for two empty ones.
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = np.clip(high - low, 0, None).prod(axis=2)
    area_a, area_b = ((box[:, 2:] - box[:, :2]).clip(0).prod(axis=1) for box in (a, b))
    union = area_a[:, None] + area_b[None, :] - inter
    share: NDArray[np.float64] = np.divide(inter, union, out=np.zeros_like(inter, np.float64), where=union > 0)
    return share


def _match(found: Boxes, truth: NDArray[np.float64], thresholds: Sequence[float]) -> dict[int, _ClassMatches]:
    """class -> which of its detections hit, for classes found or labelled in this image."""
    truth = truth[truth[:, 4] >= 0]
    matched = {}
    for kind in sorted({*truth[:, 4].astype(int), *np.asarray(found.classes).astype(int)}):
        wanted = truth[truth[:, 4] == kind, :4]
        mine = np.flatnonzero(np.asarray(found.classes).astype(int) == kind)
        order = mine[np.argsort(-np.asarray(found.scores, np.float64)[mine], kind="stable")][:_MOST]
        overlaps = iou(np.asarray(found.boxes, np.float64)[order], wanted)
        hits = np.array(
            [[one is not None for one in _taken(overlaps, threshold)] for threshold in thresholds], bool
        ).reshape(len(thresholds), len(order))
        matched[int(kind)] = _ClassMatches(np.asarray(found.scores, np.float64)[order], hits, len(wanted))
    return matched


def _taken(overlaps: NDArray[np.float64], threshold: float) -> list[int | None]:
    """Each detection in turn takes the truth it overlaps most of those that are left.
    Which one, None for none."""
    left = np.ones(overlaps.shape[1], bool)
    taken: list[int | None] = []
    for row in overlaps:
        free = np.where(left, row, -1.0)
        best = int(free.argmax()) if len(free) else -1
        taken.append(best if best >= 0 and free[best] >= threshold else None)
        if taken[-1] is not None:
            left[best] = False
    return taken


def _precision(images: Sequence[dict[int, _ClassMatches]]) -> float:
    classes: dict[int, list[_ClassMatches]] = {}
    for image in images:
        for kind, matched in image.items():
            classes.setdefault(kind, []).append(matched)
    averages = [_average(rows) for rows in classes.values() if any(row.truths for row in rows)]
    return float(np.mean(averages)) if averages else float("nan")


def _average(rows: Sequence[_ClassMatches]) -> float:
    """Average precision of one class, the mean over thresholds."""
    truths = sum(row.truths for row in rows)
    scores = np.concatenate([row.scores for row in rows])
    if not len(scores):
        return 0.0
    hits = np.concatenate([row.hits for row in rows], axis=1)[:, np.argsort(-scores, kind="stable")]
    caught = hits.cumsum(axis=1)
    precision = caught / np.arange(1, hits.shape[1] + 1)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    averages = []
    for row, upper in zip(caught / truths, envelope, strict=True):
        at = np.searchsorted(row, _RECALLS - 1e-12)  # so that 7 / 10 reaches a recall of 0.7
        averages.append(np.where(at < len(upper), upper[np.minimum(at, len(upper) - 1)], 0.0).mean())
    return float(np.mean(averages))

"""Compare the boxes of two detectors: mean average precision, and how many are the same.

    mean_average_precision([Boxes(boxes, scores, classes)], [truth])      # truth: [M, 5], x1 y1 x2 y2 class

Mean average precision is COCO's, without crowds and area ranges. For one class and threshold t of intersection over
union (IoU), the detections of all images, surest first, each hit if their image has a truth of that class with
IoU >= t that is not yet taken (the one with the greatest IoU is taken). Precision at recall r is the greatest at any
recall >= r; average precision is its mean over r = 0, 0.01, ..., 1; the metric is the mean over the labelled classes,
then over the thresholds: 0.5, 0.55, ..., 0.95 for `map`, 0.5 for `map50`.

Without labels the original's boxes, after the contract's decoding, threshold and suppression, are the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Label
from edgekit_converters.fidelity.intervals import resampled_interval, resampled_score, share_interval
from edgekit_converters.fidelity.result import Decisions, Score
from edgekit_converters.recipe.conversion_errors import MetricError
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.contract.spec import Contract

COCO = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The IoU thresholds that COCO's AP is a mean over."""

_RECALLS = np.linspace(0, 1, 101)
_MOST = 100
_LEAST_SCORE = 0.001  # precision is a mean over all recalls, so boxes that an answer would not show count too
_RESAMPLES = 200
_SAME_BOX = 0.5
"""Two boxes of one class with at least this IoU are one decision."""

_NEARLY = 0.5
"""Boxes over this share of the contract's threshold count in `decision_noise`, to make it smooth."""
_FEW_BOXES = 4
"""`decision_noise` needs at least as many boxes."""


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
    """One class of one image. hits: bool [thresholds, detections], surest first, as `scores`."""

    scores: NDArray[np.float64]
    hits: NDArray[np.bool_]
    truths: int


@dataclass(frozen=True)
class MeanAveragePrecision:
    """`map` or `map50` of a detector; labels: [M, 5] rows x1 y1 x2 y2 class, -1 for filling.

    outputs: one [M, 6] (x1, y1, x2, y2, score, class); or (boxes [M, 4], scores [M], classes [M]); or (boxes,
        scores [M, classes]); empty with a contract.
    contract: one that says where boxes are; labels are then in pixels of the network's picture.
    """

    name: str
    outputs: tuple[str, ...]
    thresholds: tuple[float, ...]
    contract: Contract | None = None

    @classmethod
    def of(cls, contract: Contract, name: str) -> MeanAveragePrecision:
        """Raises MetricError if the outputs have none of the layouts."""
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
            "decodes them and calls mean_average_precision",
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
        before, after = (np.array(items, object) for items in (original, artifact))
        return resampled_score(self.name, _precision, before, after, _RESAMPLES)


class DecisionCount:
    """Counts the boxes of an original and of an artifact, item by item."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._items: list[tuple[int, int, int]] = []
        self._scores: list[tuple[float, float]] = []

    def add(self, original: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]] | None) -> None:
        """answer: None if not finite, which counts as no box."""
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
        """None if neither gives a box."""
        items = np.array(self._items).reshape(-1, 3)
        original, artifact, kept = (int(count) for count in items.sum(axis=0))
        larger = max(original, artifact)
        if not larger:
            return None

        def agreement(at: NDArray[np.int64]) -> float:
            first, other, both = items[at].sum(axis=0)
            return float(both / max(first, other)) if max(first, other) else float("nan")

        # Boxes of one item are lost together, so items are resampled; Wilson's interval covers few boxes.
        by_item, by_box = resampled_interval(agreement, len(items)), share_interval(kept, larger)
        low, high = min(by_item[0], by_box[0]), max(by_item[1], by_box[1])
        means = np.array(self._scores).reshape(-1, 2).sum(axis=0) / max(kept, 1)
        scores = (float(means[0]), float(means[1])) if kept else None
        return Decisions(original, artifact, kept, kept / larger, (low, high), scores)


def decision_noise(
    contract: Contract, originals: Sequence[Mapping[str, NDArray[Any]]], answers: Sequence[Mapping[str, NDArray[Any]]]
) -> float | None:
    """Noise over signal power in the scores of a detector's boxes; None with too few boxes.

    Lost and false boxes count whole, a moved box by the part that does not overlap.
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
    """0..1, one entry an image in both; NaN if no image has any truth.

    truth: [M, 5] rows x1 y1 x2 y2 class; a class below 0 is filling.

    Raises ValueError for lists of different lengths.
    """
    rows = [np.asarray(one, np.float64).reshape(-1, 5) for one in truth]
    return _precision([_match(boxes, of, thresholds) for boxes, of in zip(found, rows, strict=True)])


def iou(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """[A, B] intersection over union of corner boxes [A, 4] and [B, 4]; 0 for two empty boxes."""
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
        taken = [[one is not None for one in _taken(overlaps, threshold)] for threshold in thresholds]
        hits = np.array(taken, bool).reshape(len(thresholds), len(order))
        matched[int(kind)] = _ClassMatches(np.asarray(found.scores, np.float64)[order], hits, len(wanted))
    return matched


def _taken(overlaps: NDArray[np.float64], threshold: float) -> list[int | None]:
    """The truth that each detection takes in turn: the free one of most overlap, or None."""
    left = np.ones(overlaps.shape[1], bool)
    taken: list[int | None] = []
    for row in overlaps:
        free = np.where(left, row, -1.0)
        best = int(free.argmax()) if len(free) else -1
        taken.append(best if best >= 0 and free[best] >= threshold else None)
        if taken[-1] is not None:
            left[best] = False
    return taken


def _precision(images: Iterable[dict[int, _ClassMatches]]) -> float:
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

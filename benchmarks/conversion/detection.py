"""The detector's boxes: targets and loss for training, boxes out of its raw output, and mean average precision.

    map50 = mean_average_precision([boxes(raw) for raw in outputs], truths)

A box is [left, top, right, bottom, class, score] in pixels. The metric is that of Everingham et al., "The PASCAL Visual
Object Classes Challenge" (2010), with every point of the curve: at IoU 0.5, boxes by falling score, each true box found
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE, CELLS, CLASSES = 96, 12, 10
_Boxes = NDArray[np.float32]


def encoded(truths: Sequence[_Boxes]) -> NDArray[np.float32]:
    """[N, cells, 4 + classes]: x, y, width, height and one-hot class.

    In the cell of each box's centre; zeros elsewhere.
    """
    step = SIDE / CELLS
    target = np.zeros((len(truths), CELLS, CELLS, 4 + CLASSES), np.float32)
    for cells, truth in zip(target, truths, strict=True):
        for left, top, right, bottom, kind, *_ in truth:
            x, y = (left + right) / 2, (top + bottom) / 2
            cell = cells[min(int(y / step), CELLS - 1), min(int(x / step), CELLS - 1)]
            cell[:] = 0
            cell[:4] = x, y, right - left, bottom - top
            cell[4 + int(kind)] = 1
    return target.reshape(len(truths), CELLS * CELLS, 4 + CLASSES)


def loss(target: Any, answer: Any) -> Any:
    """Focal loss (Lin et al., 2017) of the scores, and the absolute error of the boxes where there is one."""
    from keras import ops

    wanted, score = target[..., 4:], ops.clip(answer[..., 4:], 1e-6, 1 - 1e-6)
    right = wanted * score + (1 - wanted) * (1 - score)
    focal = -ops.sum((0.25 + 0.5 * wanted) * (1 - right) ** 2 * ops.log(right), axis=(1, 2))
    there = ops.max(wanted, axis=-1)
    distance = ops.sum(there * ops.sum(ops.abs(target[..., :4] - answer[..., :4]), axis=-1), axis=1)
    return ops.mean(focal + distance / (SIDE / CELLS))


def boxes(raw: NDArray[np.float32], least: float = 0.05, overlap: float = 0.45) -> _Boxes:
    """[N, 6] out of [cells, 4 + classes]: over `least`, by falling score, without those that overlap a better one."""
    scores = raw[:, 4:]
    kind, best = scores.argmax(1), scores.max(1)
    x, y, width, height = raw[:, :4].T
    rows = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2, kind, best], 1)[best > least]
    rows = rows[np.argsort(-rows[:, 5], kind="stable")]
    kept: list[NDArray[np.float32]] = []
    for row in rows:
        if all(_iou(row[None], other[None])[0, 0] < overlap for other in kept):
            kept.append(row)
    return np.array(kept, np.float32).reshape(-1, 6)


def mean_average_precision(found: Sequence[_Boxes], truths: Sequence[_Boxes], iou: float = 0.5) -> float:
    """0..1, the mean over the classes that occur in `truths`."""
    kinds = sorted({int(kind) for truth in truths for kind in truth[:, 4]})
    return float(np.mean([_average_precision(found, truths, kind, iou) for kind in kinds]))


def map50(outputs: dict[str, NDArray[Any]], labels: Any) -> float:
    """`--metric detection:map50`. labels: rows [left, top, right, bottom, class], class -1 where a scene has fewer."""
    (raw,) = outputs.values()
    truths = [np.asarray(rows, np.float32)[np.asarray(rows)[:, 4] >= 0] for rows in labels]
    found = [_known_boxes(rows.tobytes(), rows.shape) for rows in np.nan_to_num(raw).astype(np.float32)]
    return mean_average_precision(found, truths)


@lru_cache(10_000)
def _known_boxes(raw: bytes, shape: tuple[int, ...]) -> _Boxes:
    """The metric sees the same scenes again and again: its interval is made of resampled ones."""
    return boxes(np.frombuffer(raw, np.float32).reshape(shape))


def says_the_same(found: _Boxes, wanted: _Boxes, sure: float = 0.5, iou: float = 0.5) -> bool:
    """Whether two sets say the same: their boxes over `sure` pair off, of one class and overlapping by `iou`."""
    one, other = (boxes_[boxes_[:, 5] > sure] if len(boxes_) else boxes_ for boxes_ in (found, wanted))
    if len(one) != len(other):
        return False
    free = list(range(len(other)))
    for row in one:
        match = next((i for i in free if other[i, 4] == row[4] and _iou(row[None], other[i][None])[0, 0] > iou), None)
        if match is None:
            return False
        free.remove(match)
    return True


def _average_precision(found: Sequence[_Boxes], truths: Sequence[_Boxes], kind: int, iou: float) -> float:
    claims = [(row[5], image, row) for image, rows in enumerate(found) for row in rows if row[4] == kind]
    claims.sort(key=lambda claim: -claim[0])
    wanted = [truth[truth[:, 4] == kind] for truth in truths]
    taken = [np.zeros(len(rows), bool) for rows in wanted]
    hits = np.zeros(len(claims))
    for index, (_, image, row) in enumerate(claims):
        if len(wanted[image]):
            overlaps = _iou(row[None], wanted[image])[0]
            best = int(overlaps.argmax())
            if overlaps[best] >= iou and not taken[image][best]:
                taken[image][best] = hits[index] = True
    right = np.cumsum(hits)
    recall = right / max(1, sum(map(len, wanted)))
    precision = np.maximum.accumulate((right / np.arange(1, len(claims) + 1))[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision)) if len(claims) else 0.0


def _iou(one: _Boxes, other: _Boxes) -> NDArray[np.float64]:
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:4], other[None, :, 2:4])
    shared = np.prod(np.clip(high - low, 0, None), -1)
    area = [np.prod(np.clip(rows[:, 2:4] - rows[:, :2], 0, None), -1) for rows in (one, other)]
    return np.asarray(shared / np.maximum(area[0][:, None] + area[1][None] - shared, 1e-9))

"""Non-maximum suppression: of boxes that mean the same thing, the surest stays.

    kept = suppress(boxes, scores, classes, iou_threshold=0.45, most=100)       # indexes, the surest first

Greedy: in order of score, ties to the lower index, a box stays unless one that stayed before (of its own class, with
`classes`) overlaps it by more than the threshold; overlap is intersection over union (IoU). Candidates are taken in blocks:
each block is first held against what stayed before, all at once, and only then against itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["overlaps", "suppress"]

_BLOCK = 128


def suppress(
    boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any] | None, iou_threshold: float, most: int
) -> NDArray[np.intp]:
    """boxes: [N, 4] corners left, top, right, bottom; scores: [N]; classes: [N], None where any box may suppress any other.

    The indexes of at most `most` boxes, the surest first.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    kept = np.empty(0, np.intp)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(kept):
            block = block[~_covered(boxes, classes, block, kept, iou_threshold).any(axis=1)]
        kept = np.concatenate([kept, _among_themselves(boxes, classes, block, iou_threshold)])
        if len(kept) >= most:
            break
    return kept[:most]


def overlaps(a: NDArray[Any], b: NDArray[Any], iou_threshold: float) -> NDArray[np.bool_]:
    """[A, B]: whether the IoU of corner boxes [A, 4] and [B, 4] is more than the threshold; never for empty boxes."""
    common = _sides(np.minimum(a[:, None, 2], b[None, :, 2]), np.maximum(a[:, None, 0], b[None, :, 0]))
    common *= _sides(np.minimum(a[:, None, 3], b[None, :, 3]), np.maximum(a[:, None, 1], b[None, :, 1]))
    union = _area(a)[:, None] + _area(b)[None, :] - common
    result: NDArray[np.bool_] = common > iou_threshold * union
    return result


def _among_themselves(
    boxes: NDArray[Any], classes: NDArray[Any] | None, block: NDArray[np.intp], iou_threshold: float
) -> NDArray[np.intp]:
    """What stays of a block, in its order."""
    covered = _covered(boxes, classes, block, block, iou_threshold)
    gone = np.zeros(len(block), bool)
    for i in np.flatnonzero(np.triu(covered, 1).any(axis=1)).tolist():
        if not gone[i]:
            gone[i + 1 :] |= covered[i, i + 1 :]
    left: NDArray[np.intp] = block[~gone]
    return left


def _covered(
    boxes: NDArray[Any],
    classes: NDArray[Any] | None,
    block: NDArray[np.intp],
    others: NDArray[np.intp],
    iou_threshold: float,
) -> NDArray[np.bool_]:
    """[block, others]: whether they mean the same thing."""
    covered = overlaps(boxes[block], boxes[others], iou_threshold)
    if classes is None:
        return covered
    result: NDArray[np.bool_] = covered & (classes[block][:, None] == classes[others][None, :])
    return result


def _sides(far: NDArray[Any], near: NDArray[Any]) -> NDArray[Any]:
    length: NDArray[Any] = np.clip(far - near, 0, None)
    return length


def _area(boxes: NDArray[Any]) -> NDArray[Any]:
    area: NDArray[Any] = _sides(boxes[:, 2], boxes[:, 0]) * _sides(boxes[:, 3], boxes[:, 1])
    return area

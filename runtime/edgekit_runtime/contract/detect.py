"""Raw outputs of a detector -> boxes in the caller's own picture.

    found = boxes(answer.outputs, contract, geometry)       # [Box("cat", 15, 0.91, left=40.5, top=12.0, ...), ...]

    rows of candidates -> scores and classes -> threshold -> corners in network pixels -> suppression -> the caller's pixels

Rules:
- what an output means stands in the contract (`DetectionSpec`), nothing is guessed from a shape;
- scores are probabilities when they are compared with the threshold; of a candidate the best class counts;
- a candidate with a number that is not finite is none; a box is clipped to the picture, and one outside it is left out;
- the surest box comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.kinds import network_size
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.contract.suppress import suppress
from edgekit_runtime.contract.tasks import DetectionSpec
from edgekit_runtime.errors import ContractError

__all__ = ["Box", "Candidates", "boxes", "candidates"]

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Box:
    """One thing found. label: its class by name, or its index as text where the bundle has no labels. score: 0 to 1.

    left, top, right, bottom: in pixels of the caller's picture, upright, from its upper left corner; not rounded.
    """

    label: str
    index: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Candidates:
    """What a network found, the surest first. corners: [N, 4] left, top, right, bottom in network pixels; scores: [N]
    probabilities; classes: [N] indexes without the background."""

    corners: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]


def boxes(
    outputs: Outputs, contract: Contract, geometry: Geometry | None, score_threshold: float | None = None
) -> list[Box]:
    """The boxes of an answer, at most `max_boxes`.

    geometry: where the network's picture lies in the caller's; None: the network's own pixels are what is wanted.
    score_threshold: another than the contract's, 0 to 1. Raises ContractError when the model is no detector.
    """
    if contract.task != "detection" or contract.detection is None:
        raise ContractError(f"boxes are for detectors; this model's task is {contract.task}", do="Read answer.outputs")
    found = candidates(outputs, contract, score_threshold)
    width, height = network_size(contract.inputs)
    placed = geometry or Geometry(width, height)
    corners = placed.to_caller(found.corners)
    corners[:, 0::2] = corners[:, 0::2].clip(0, placed.width)
    corners[:, 1::2] = corners[:, 1::2].clip(0, placed.height)
    seen = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
    labels = contract.labels
    return [
        Box(labels[index] if labels and index < len(labels) else str(index), index, score, *corner)
        for index, score, corner in zip(
            found.classes[seen].tolist(), found.scores[seen].tolist(), corners[seen].tolist(), strict=True
        )
    ]


def candidates(outputs: Outputs, contract: Contract, score_threshold: float | None = None) -> Candidates:
    """What is left after threshold and suppression, in network pixels."""
    spec = contract.detection
    assert spec is not None
    threshold = spec.score_threshold if score_threshold is None else score_threshold
    rows = _rows(outputs[spec.boxes], spec)
    if spec.count is not None:
        rows = rows[: max(0, int(np.asarray(outputs[spec.count]).reshape(-1)[0]))]
    scores, classes_of = _scores(rows, outputs, spec)
    above = np.flatnonzero(scores >= threshold)  # not so where a score is NaN
    classes = classes_of(above)
    if (classes < 0).any():
        above, classes = above[classes >= 0], classes[classes >= 0]
    scores = scores[above].astype(np.float64)
    corners = _corners(rows[above, :4].astype(np.float64), spec, network_size(contract.inputs))
    finite = np.isfinite(corners).all(axis=1)
    if not finite.all():
        corners, scores, classes = corners[finite], scores[finite], classes[finite]
    if spec.suppressed:
        kept = np.argsort(-scores, kind="stable")[: spec.max_boxes]
    else:
        kept = suppress(corners, scores, classes if spec.class_aware else None, spec.iou_threshold, spec.max_boxes)
    return Candidates(corners[kept], scores[kept], classes[kept])


def _rows(value: NDArray[Any], spec: DetectionSpec) -> NDArray[Any]:
    """[N, values of one candidate], whatever stands around them: [1, N, D], a grid [h, w, D], or [D, N]."""
    if spec.candidates == "first":
        return value.reshape(-1, value.shape[-1])
    while value.ndim > 2 and value.shape[0] == 1:
        value = value[0]
    return value.reshape(value.shape[0], -1).T


def _scores(
    rows: NDArray[Any], outputs: Outputs, spec: DetectionSpec
) -> tuple[NDArray[Any], Callable[[NDArray[np.intp]], NDArray[np.int64]]]:
    """Probabilities [N], and what gives the class indexes of some candidates, -1 for the background."""
    shift = int(spec.background == "first")
    if spec.row == "box score class":
        return _activated(rows[:, 4], spec), lambda at: _whole(rows[at, 5], shift)
    if spec.row == "box":
        assert spec.scores is not None
        values = np.asarray(outputs[spec.scores])
        if spec.classes is not None:
            stated = np.asarray(outputs[spec.classes]).reshape(-1)
            return _activated(values.reshape(-1)[: len(rows)], spec), lambda at: _whole(stated[at], shift)
        # One number a box is the score of the only class.
        single = values.size * 4 == np.asarray(outputs[spec.boxes]).size
        table = (values.reshape(-1, 1) if single else _rows(values, spec))[: len(rows)]
    else:
        table = rows[:, 5:] if spec.row == "box objectness scores" else rows[:, 4:]
    real = table[:, {"none": slice(None), "first": slice(1, None), "last": slice(None, -1)}[spec.background]]
    best = real.max(axis=1)  # which of them it is, is worked out for the few that matter
    if spec.activation == "softmax":
        top = table.max(axis=1)
        best = np.exp(best - top) / np.exp(table - top[:, None]).sum(axis=1)
    else:
        best = _activated(best, spec)
    if spec.row == "box objectness scores":
        best = best * _activated(rows[:, 4], spec)
    return best, lambda at: real[at].argmax(axis=1).astype(np.int64)


def _activated(values: NDArray[Any], spec: DetectionSpec) -> NDArray[Any]:
    """Probabilities of values that each stand for themselves. Sigmoid rises, so the best class is the same before it."""
    if spec.activation != "sigmoid":
        return values
    result: NDArray[Any] = 0.5 * (1.0 + np.tanh(0.5 * values))  # 1 / (1 + exp(-x)), and never overflows
    return result


def _whole(values: NDArray[Any], shift: int) -> NDArray[np.int64]:
    """Class indexes that a network answers as numbers of any kind; -1 for what is none."""
    real = np.nan_to_num(np.asarray(values, np.float64), nan=-1.0, posinf=-1.0, neginf=-1.0)
    return np.maximum(np.rint(real).astype(np.int64) - shift, -1)


def _corners(rows: NDArray[np.float64], spec: DetectionSpec, size: tuple[int, int]) -> NDArray[np.float64]:
    """[N, 4] in the network's own numbers -> left, top, right, bottom in network pixels."""
    a, b, c, d = rows.T
    if spec.format == "xyxy":
        corners = np.stack([a, b, c, d], axis=1)
    elif spec.format == "yxyx":
        corners = np.stack([b, a, d, c], axis=1)
    elif spec.format == "xywh":
        corners = np.stack([a, b, a + c, b + d], axis=1)
    else:
        corners = np.stack([a - c / 2, b - d / 2, a + c / 2, b + d / 2], axis=1)
    (width, height), (span_x, span_y) = size, spec.span
    corners *= (width / span_x, height / span_y, width / span_x, height / span_y)
    return corners

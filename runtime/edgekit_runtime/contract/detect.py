"""Detection: raw outputs -> boxes in the caller's own picture.

    found = boxes(answer.outputs, contract, geometry)       # [Box("cat", 15, 0.91, left=40.5, top=12.0, ...), ...]
    wrong = nonsense(contract)          # None, or Nonsense("row", "the output 'y' has 3 numbers ...", "Write ...")

Rows of candidates -> scores and classes -> threshold -> corners in network pixels -> suppression -> the caller's pixels

Rules:
- the contract (`DetectionSpec`) says what an output means; nothing is guessed from a shape;
- the threshold applies to probabilities, and to a candidate's best class;
- a candidate with a number that is not finite is dropped; a box is clipped to the picture, or dropped outside it;
- boxes come best first; of boxes that overlap by more than the threshold (IoU) the best stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.kinds import network_size, pictures
from edgekit_runtime.contract.spec import Contract, DetectionSpec, OutputContract
from edgekit_runtime.system.errors import ContractError
from edgekit_runtime.system.records import record

_BLOCK = 128
Outputs = Mapping[str, NDArray[Any]]
_LAYOUTS = "Scores are [N, classes], laid out as the boxes are, or [N] together with an output of classes"
_COLUMNS = {"box": 4, "box scores": 5, "box objectness scores": 6, "box score class": 6}


@record(frozen=True)
class Box:
    """One detected object.

    label: its class by name, or its index as text without labels.
    score: 0 to 1.
    left, top, right, bottom: pixels of the caller's picture, upright, from its upper left corner; not rounded."""

    label: str
    index: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


@record(frozen=True)
class Candidates:
    """What a network found, best first.

    corners: [N, 4] left, top, right, bottom in network pixels.
    scores: [N] probabilities.
    classes: [N] indexes without the background."""

    corners: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]


def boxes(
    outputs: Outputs, contract: Contract, geometry: Geometry | None, score_threshold: float | None = None
) -> list[Box]:
    """The boxes of an answer, at most `max_boxes`.
    Raises ContractError unless the model is a detector.

    geometry: where the network's picture lies in the caller's; None for network pixels.
    score_threshold: replaces the contract's, 0 to 1."""
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
    rows = rows_of(outputs[spec.boxes], spec)
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


def rows_of(value: NDArray[Any], spec: DetectionSpec) -> NDArray[Any]:
    """Candidates as [N, values], from [1, N, D], a grid [h, w, D], or [D, N]."""
    if spec.candidates == "first":
        return value.reshape(-1, value.shape[-1])
    while value.ndim > 2 and value.shape[0] == 1:
        value = value[0]
    return value.reshape(value.shape[0], -1).T


def _scores(
    rows: NDArray[Any], outputs: Outputs, spec: DetectionSpec
) -> tuple[NDArray[Any], Callable[[NDArray[np.intp]], NDArray[np.int64]]]:
    """Probabilities [N], and a function that gives class indexes, -1 for the background."""
    shift = int(spec.background == "first")
    if spec.row == "box score class":
        return _probabilities(rows[:, 4], spec), lambda at: _as_integers(rows[at, 5], shift)
    if spec.row == "box":
        assert spec.scores is not None
        values = np.asarray(outputs[spec.scores])
        if spec.classes is not None:
            stated = np.asarray(outputs[spec.classes]).reshape(-1)
            return _probabilities(values.reshape(-1)[: len(rows)], spec), lambda at: _as_integers(stated[at], shift)
        # One number a box is the score of the only class.
        single = values.size * 4 == np.asarray(outputs[spec.boxes]).size
        table = (values.reshape(-1, 1) if single else rows_of(values, spec))[: len(rows)]
    else:
        table = rows[:, 5:] if spec.row == "box objectness scores" else rows[:, 4:]
    real = table[:, {"none": slice(None), "first": slice(1, None), "last": slice(None, -1)}[spec.background]]
    best = real.max(axis=1)  # which of them it is, is worked out for the few that matter
    if spec.activation == "softmax":
        top = table.max(axis=1)
        best = np.exp(best - top) / np.exp(table - top[:, None]).sum(axis=1)
    else:
        best = _probabilities(best, spec)
    if spec.row == "box objectness scores":
        best = best * _probabilities(rows[:, 4], spec)
    return best, lambda at: real[at].argmax(axis=1).astype(np.int64)


def _probabilities(values: NDArray[Any], spec: DetectionSpec) -> NDArray[Any]:
    """Probabilities of single values. Sigmoid rises, so the best class is the same before it."""
    if spec.activation != "sigmoid":
        return values
    result: NDArray[Any] = 0.5 * (1.0 + np.tanh(0.5 * values))  # 1 / (1 + exp(-x)), and never overflows
    return result


def _as_integers(values: NDArray[Any], shift: int) -> NDArray[np.int64]:
    """Class indexes from numbers of any kind; -1 if not an index."""
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


def suppress(
    boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any] | None, iou_threshold: float, most: int
) -> NDArray[np.intp]:
    """Indexes of at most `most` boxes, best first, without those that overlap a better one.
    Greedy in order of score, ties to the lower index. Candidates are taken in blocks, each compared with what stayed
    before and then with itself.

    boxes: [N, 4] corners left, top, right, bottom.
    scores: [N].
    classes: [N]; None if any box may suppress any other."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    kept = np.empty(0, np.intp)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(kept):
            block = block[~_same_object(boxes, classes, block, kept, iou_threshold).any(axis=1)]
        kept = np.concatenate([kept, _suppress_within(boxes, classes, block, iou_threshold)])
        if len(kept) >= most:
            break
    return kept[:most]


def overlaps(a: NDArray[Any], b: NDArray[Any], iou_threshold: float) -> NDArray[np.bool_]:
    """[A, B]: whether the IoU of [A, 4] and [B, 4] corners exceeds the threshold; not if empty."""
    common = _sides(np.minimum(a[:, None, 2], b[None, :, 2]), np.maximum(a[:, None, 0], b[None, :, 0]))
    common *= _sides(np.minimum(a[:, None, 3], b[None, :, 3]), np.maximum(a[:, None, 1], b[None, :, 1]))
    union = _area(a)[:, None] + _area(b)[None, :] - common
    result: NDArray[np.bool_] = common > iou_threshold * union
    return result


def _suppress_within(
    boxes: NDArray[Any], classes: NDArray[Any] | None, block: NDArray[np.intp], iou_threshold: float
) -> NDArray[np.intp]:
    """What stays of a block, in its order."""
    covered = _same_object(boxes, classes, block, block, iou_threshold)
    gone = np.zeros(len(block), bool)
    for i in np.flatnonzero(np.triu(covered, 1).any(axis=1)).tolist():
        if not gone[i]:
            gone[i + 1 :] |= covered[i, i + 1 :]
    left: NDArray[np.intp] = block[~gone]
    return left


def _same_object(
    boxes: NDArray[Any],
    classes: NDArray[Any] | None,
    block: NDArray[np.intp],
    others: NDArray[np.intp],
    iou_threshold: float,
) -> NDArray[np.bool_]:
    """[block, others]: whether they overlap as one object."""
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


@record(frozen=True)
class Nonsense:
    """key: the field that is wrong. what: the problem. do: the remedy."""

    key: str
    what: str
    do: str


def nonsense(contract: Contract) -> Nonsense | None:
    """The first thing in `contract.detection` or `contract.embedding` that contradicts the rest."""
    return next(_contradictions(contract), None)


def class_count(contract: Contract) -> int | None:
    """Classes that a detector distinguishes, without the background.
    None if its outputs do not say."""
    spec = contract.detection
    if spec is None or spec.row == "box score class" or spec.classes is not None:
        return None
    by_name = {output.name: output for output in contract.outputs}
    if spec.row == "box":
        columns = _score_columns(by_name[spec.scores], by_name[spec.boxes], spec) if spec.scores is not None else 0
    else:
        columns = _columns(by_name[spec.boxes], spec) - (4 if spec.row == "box scores" else 5)
    return columns - int(spec.background != "none")


def _contradictions(contract: Contract) -> Iterator[Nonsense]:
    names = [output.name for output in contract.outputs]
    listed = f"Its outputs: {', '.join(names)}"
    if contract.task == "embedding" and contract.embedding is not None and contract.embedding.output not in names:
        yield Nonsense("output", f"the model has no output '{contract.embedding.output}'", listed)
    spec = contract.detection
    if contract.task != "detection" or spec is None:
        return
    if not pictures(contract.inputs):
        yield Nonsense("", "boxes need a picture, and no input is one", 'Write [input] with kind = "image"')
    for key in ("boxes", "scores", "classes", "count"):
        name = getattr(spec, key)
        if name is not None and name not in names:
            yield Nonsense(key, f"the model has no output '{name}'", listed)
    if not all(math.isfinite(side) and side > 0 for side in spec.span):
        yield Nonsense("unit", f"{spec.span} is not a size", 'Write "pixels", "fraction", or [width, height]')
    for key in ("score_threshold", "iou_threshold"):
        value = getattr(spec, key)
        if not 0 <= value <= 1:
            yield Nonsense(key, f"{value:g} is not from 0 to 1", f"Write {key} = 0.5 or so")
    if spec.max_boxes < 1:
        yield Nonsense("max_boxes", f"{spec.max_boxes} is less than one box", "Write max_boxes = 100 or so")
    yield from _parts(contract, spec)


def _parts(contract: Contract, spec: DetectionSpec) -> Iterator[Nonsense]:
    """Rows, scores and classes against the outputs' shapes. All names exist."""
    by_name = {output.name: output for output in contract.outputs}
    boxes = by_name[spec.boxes]
    columns, wanted = _columns(boxes, spec), _COLUMNS[spec.row]
    if columns != wanted if spec.row in ("box", "box score class") else columns < wanted:
        at_least = "" if spec.row in ("box", "box score class") else "at least "
        do = 'Choose another row, or candidates = "first" or "last": the axis along which the candidates lie'
        yield Nonsense("row", f"'{spec.row}' takes {at_least}{wanted} numbers, and {_label(boxes)} has {columns}", do)
    if spec.row != "box":
        for key in ("scores", "classes"):
            if getattr(spec, key) is not None:
                yield Nonsense(key, f"is already in the rows: row = '{spec.row}'", 'Remove it, or row = "box"')
    elif spec.scores is None:
        yield Nonsense("scores", "is missing: boxes need scores", "Name the output that holds the scores")
    else:
        scores, count = by_name[spec.scores], _candidate_count(boxes, spec)
        given = math.prod(scores.shape) if spec.classes is not None else count * _score_columns(scores, boxes, spec)
        if given != math.prod(scores.shape) or (spec.classes is not None and given != count):
            yield Nonsense(
                "scores",
                f"{_label(scores)} has no score for each of the {count} boxes of {_label(boxes)}",
                _LAYOUTS,
            )
        if spec.classes is not None and math.prod(by_name[spec.classes].shape) != count:
            what = f"{_label(by_name[spec.classes])} has no class for each of the {count} boxes"
            yield Nonsense("classes", what, "Name the output that holds one class a box, or leave it out")
    if spec.activation == "softmax" and (spec.classes is not None or spec.row == "box score class"):
        yield Nonsense("activation", "softmax is over the scores of all classes, and there is one", 'Write "sigmoid"')
    classes = class_count(contract)
    if classes is not None and classes < 1:
        yield Nonsense("background", "no other class is left", 'Write background = "none"')
    labels = contract.labels
    if labels is not None and classes is not None and len(labels) != classes:
        what = f"{len(labels)} labels, and the outputs have {classes} classes"
        yield Nonsense("labels", what, "Write one label a class, without the background")


def _columns(output: OutputContract, spec: DetectionSpec) -> int:
    """Numbers of one candidate."""
    if not output.shape:
        return 0
    if spec.candidates == "first":
        return output.shape[-1]
    shape = output.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return shape[0]


def _score_columns(scores: OutputContract, boxes: OutputContract, spec: DetectionSpec) -> int:
    """Classes with a score of their own; one number a box is the score of the only class."""
    return 1 if math.prod(scores.shape) == _candidate_count(boxes, spec) else _columns(scores, spec)


def _candidate_count(output: OutputContract, spec: DetectionSpec) -> int:
    return math.prod(output.shape) // max(1, _columns(output, spec))


def _label(output: OutputContract) -> str:
    return f"'{output.name}' {list(output.shape)}"

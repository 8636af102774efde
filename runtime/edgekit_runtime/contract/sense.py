"""Does what a contract says of detection or embedding make sense for its outputs?

    found = nonsense(contract)          # None, or Nonsense("row", "the output 'y' has 3 numbers ...", "Write ...")

Pure: the build names the key of the contract file with it, a board the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract, OutputContract
from edgekit_runtime.contract.tasks import DetectionSpec

__all__ = ["Nonsense", "class_count", "nonsense"]

_LAYOUTS = "Scores are [N, classes], laid out as the boxes are, or [N] beside an output of classes"
_COLUMNS = {"box": 4, "box scores": 5, "box objectness scores": 6, "box score class": 6}


@dataclass(frozen=True)
class Nonsense:
    """key: the field that is wrong; what is wrong with it; do: the remedy."""

    key: str
    what: str
    do: str


def nonsense(contract: Contract) -> Nonsense | None:
    """The first thing in `contract.detection` or `contract.embedding` that contradicts the rest."""
    return next(_all(contract), None)


def class_count(contract: Contract) -> int | None:
    """How many classes a detector tells apart, without the background; None where its outputs do not say."""
    spec = contract.detection
    if spec is None or spec.row == "box score class" or spec.classes is not None:
        return None
    by_name = {output.name: output for output in contract.outputs}
    if spec.row == "box":
        columns = _score_columns(by_name[spec.scores], by_name[spec.boxes], spec) if spec.scores is not None else 0
    else:
        columns = _columns(by_name[spec.boxes], spec) - (4 if spec.row == "box scores" else 5)
    return columns - int(spec.background != "none")


def _all(contract: Contract) -> Iterator[Nonsense]:
    names = [output.name for output in contract.outputs]
    listed = f"Its outputs: {', '.join(names)}"
    if contract.task == "embedding" and contract.embedding is not None and contract.embedding.output not in names:
        yield Nonsense("output", f"the model has no output '{contract.embedding.output}'", listed)
    spec = contract.detection
    if contract.task != "detection" or spec is None:
        return
    if not pictures(contract.inputs):
        yield Nonsense("", "boxes are of a picture, and no input is one", 'Write [input] with kind = "image"')
    for key in ("boxes", "scores", "classes", "count"):
        name = getattr(spec, key)
        if name is not None and name not in names:
            yield Nonsense(key, f"the model has no output '{name}'", listed)
    yield from _numbers(spec)
    yield from _parts(contract, spec)


def _numbers(spec: DetectionSpec) -> Iterator[Nonsense]:
    if not all(math.isfinite(side) and side > 0 for side in spec.span):
        yield Nonsense("unit", f"{spec.span} is no size", 'Write "pixels", "fraction", or [width, height]')
    for key in ("score_threshold", "iou_threshold"):
        value = getattr(spec, key)
        if not 0 <= value <= 1:
            yield Nonsense(key, f"{value:g} is not from 0 to 1", f"Write {key} = 0.5 or so")
    if spec.max_boxes < 1:
        yield Nonsense("max_boxes", f"{spec.max_boxes} is less than one box", "Write max_boxes = 100 or so")


def _parts(contract: Contract, spec: DetectionSpec) -> Iterator[Nonsense]:
    """Rows, scores and classes against the outputs' shapes. Names exist by now."""
    by_name = {output.name: output for output in contract.outputs}
    boxes = by_name[spec.boxes]
    columns, wanted = _columns(boxes, spec), _COLUMNS[spec.row]
    if columns != wanted if spec.row in ("box", "box score class") else columns < wanted:
        at_least = "" if spec.row in ("box", "box score class") else "at least "
        do = 'Choose another row, or candidates = "first" or "last": the axis along which the candidates lie'
        yield Nonsense("row", f"'{spec.row}' takes {at_least}{wanted} numbers, and {_shown(boxes)} has {columns}", do)
    if spec.row != "box":
        for key in ("scores", "classes"):
            if getattr(spec, key) is not None:
                yield Nonsense(key, f"stands in the rows already: row = '{spec.row}'", 'Remove it, or row = "box"')
    elif spec.scores is None:
        yield Nonsense("scores", "is missing: nothing says how sure a box is", "Name the output that holds the scores")
    else:
        scores, count = by_name[spec.scores], _rows(boxes, spec)
        given = math.prod(scores.shape) if spec.classes is not None else count * _score_columns(scores, boxes, spec)
        if given != math.prod(scores.shape) or (spec.classes is not None and given != count):
            yield Nonsense(
                "scores", f"{_shown(scores)} has no score for each of the {count} boxes of {_shown(boxes)}", _LAYOUTS
            )
        if spec.classes is not None and math.prod(by_name[spec.classes].shape) != count:
            what = f"{_shown(by_name[spec.classes])} has no class for each of the {count} boxes"
            yield Nonsense("classes", what, "Name the output that holds one class a box, or leave it out")
    if spec.activation == "softmax" and (spec.classes is not None or spec.row == "box score class"):
        yield Nonsense("activation", "softmax is over the scores of all classes, and there is one", 'Write "sigmoid"')
    classes = class_count(contract)
    if classes is not None and classes < 1:
        yield Nonsense("background", "no class is left beside it", 'Write background = "none"')
    labels = contract.labels
    if labels is not None and classes is not None and len(labels) != classes:
        what = f"{len(labels)} labels, and the outputs tell {classes} classes apart"
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
    """Classes that have a score of their own; one number a box is the score of the only class."""
    return 1 if math.prod(scores.shape) == _rows(boxes, spec) else _columns(scores, spec)


def _rows(output: OutputContract, spec: DetectionSpec) -> int:
    return math.prod(output.shape) // max(1, _columns(output, spec))


def _shown(output: OutputContract) -> str:
    return f"'{output.name}' {list(output.shape)}"

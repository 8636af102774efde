"""`[detection]` and `[embedding]` tables -> what a contract says of boxes and vectors.

Rules:
- `format` and `unit` have no default: four numbers do not say whether they are corners or a centre, pixels or fractions;
- which axis the candidates lie along is asked for where a shape leaves it open;
- what contradicts the model's outputs is refused with the key that says it.
"""

from __future__ import annotations

import math
from typing import Any, get_args

from edgekit_converters.contract_file.document import Table
from edgekit_converters.errors import ContractFileError
from edgekit_runtime.contract.detect import nonsense
from edgekit_runtime.contract.spec import (
    Activation,
    Background,
    BoxFormat,
    Candidates,
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    OutputContract,
    Row,
)

__all__ = ["DETECTION_KEYS", "EMBEDDING_KEYS", "check_tasks", "detection_spec", "embedding_spec"]

DETECTION_KEYS = (
    "boxes",
    "row",
    "format",
    "unit",
    "scores",
    "classes",
    "count",
    "candidates",
    "activation",
    "background",
    "suppressed",
    "score_threshold",
    "iou_threshold",
    "max_boxes",
    "class_aware",
)
EMBEDDING_KEYS = ("output", "normalize")


def detection_spec(document: Table, outputs: tuple[OutputContract, ...], size: tuple[int, int]) -> DetectionSpec:
    """size: (width, height) of the picture that the boxes are of; a model without one is refused by `check_tasks`."""
    table = document.table("detection")
    if table is None:
        raise document.refuse("detection", "is missing: nothing says where the boxes are", "Write [detection]")
    table.only(DETECTION_KEYS)
    boxes = table.text("boxes") or _only(table, "boxes", outputs)
    row: Any = table.choice("row", get_args(Row), "box scores" if len(outputs) == 1 else "box")
    defaults = DetectionSpec(boxes, row, "xyxy", (1.0, 1.0))
    named = table.choice("format", get_args(BoxFormat), None)
    if named is None:
        shapes = "corners x1 y1 x2 y2 (xyxy), y1 x1 y2 x2 (yxyx), corner and size (xywh), or centre and size (cxcywh)"
        raise table.refuse("format", "is missing", f"Say what a box's four numbers are: {shapes}")
    choices: Any = {
        "candidates": table.choice("candidates", get_args(Candidates), None) or _axis(table, boxes, row, outputs),
        "activation": table.choice("activation", get_args(Activation), defaults.activation),
        "background": table.choice("background", get_args(Background), defaults.background),
    }
    format_: Any = named
    return DetectionSpec(
        boxes=boxes,
        row=row,
        format=format_,
        span=_span(table, size),
        scores=table.text("scores"),
        classes=table.text("classes"),
        count=table.text("count"),
        suppressed=table.truth("suppressed", defaults.suppressed),
        score_threshold=table.number("score_threshold", defaults.score_threshold),
        iou_threshold=table.number("iou_threshold", defaults.iou_threshold),
        max_boxes=table.whole("max_boxes", defaults.max_boxes),
        class_aware=table.truth("class_aware", defaults.class_aware),
        **choices,
    )


def embedding_spec(document: Table, outputs: tuple[OutputContract, ...]) -> EmbeddingSpec:
    """The table may be left out where the model has one output."""
    table = document.table("embedding") or Table(document.file, "[embedding]", {})
    table.only(EMBEDDING_KEYS)
    output = table.text("output") or _only(table, "output", outputs)
    return EmbeddingSpec(output, table.truth("normalize", False))


def check_tasks(document: Table, contract: Contract) -> None:
    """Raises ContractFileError for the first thing said of boxes or vectors that contradicts the model."""
    for key in ("detection", "embedding"):
        if key in document and contract.task != key:
            do = f'Write task = "{key}", or remove the table'
            raise document.refuse(key, f"has no meaning for a model whose task is {contract.task}", do)
    found = nonsense(contract)
    if found is None:
        return
    title = f"[{contract.task}]"
    table = (
        document if found.key in ("labels", "") else document.table(contract.task) or Table(document.file, title, {})
    )
    raise table.refuse(found.key or "task", found.what, found.do)


def _only(table: Table, key: str, outputs: tuple[OutputContract, ...]) -> str:
    if len(outputs) == 1:
        return outputs[0].name
    names = ", ".join(output.name for output in outputs)
    raise table.refuse(key, f"is missing, and the model has {len(outputs)} outputs", f"Name one of them: {names}")


def _axis(table: Table, boxes: str, row: Row, outputs: tuple[OutputContract, ...]) -> Candidates:
    """`first`, as most have it, unless the shape says `last` or nothing at all."""
    shape = [n for n in next((o.shape for o in outputs if o.name == boxes), ()) if n != 1]
    if len(shape) != 2 or (shape[0] >= shape[1] and row != "box"):
        return "first"
    if row == "box":
        return "last" if shape[0] == 4 and shape[1] != 4 else "first"
    rows, columns = f"{shape[0]} numbers of {shape[1]}", f"{shape[1]} numbers of {shape[0]}"
    raise table.refuse(
        "candidates",
        f"is missing: '{boxes}' {shape} could be {rows} candidates or {columns}",
        f'Write candidates = "last" for {rows}, candidates = "first" for {columns}',
    )


def _span(table: Table, size: tuple[int, int]) -> tuple[float, float]:
    unit = table.values.get("unit")
    if unit == "fraction":
        return 1.0, 1.0
    if unit == "pixels":
        return float(size[0]), float(size[1])
    if isinstance(unit, list):
        sides = [float(side) for side in unit if isinstance(side, (int, float)) and not isinstance(side, bool)]
        if len(sides) == len(unit) == 2 and all(math.isfinite(side) and side > 0 for side in sides):
            return sides[0], sides[1]
    raise _no_unit(table)


def _no_unit(table: Table) -> ContractFileError:
    what = "is missing" if "unit" not in table else f"{table.values['unit']!r} is no size of a picture"
    return table.refuse(
        "unit",
        what,
        'Say what boxes are measured in: "pixels" of the network\'s picture, "fraction" of it, or [640, 480] where a box as '
        "large as the picture has these numbers",
    )

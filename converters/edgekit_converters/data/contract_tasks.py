"""A contract file as one table, and its tables `[detection]`, `[embedding]` and `[state]`.

    document = read_document(Path("model.contract.toml"))           # a mistake names the file, the key and the remedy
    document.text("task", "raw", ("classification", "raw"))

    [state]
    carried = { h0 = "hn" }           # input = output; instead of what was recognised by the names
    initial = { h0 = 0.5 }        # a number throughout, or a list of all values in C order; zeros if left out
    hop = 512                         # of recordings: samples between the beginnings of two frames

Rules:
- `format` and `unit` have no default: four numbers do not say whether they are corners or a centre, pixels or
  fractions. The axis of the candidates is required only where a shape leaves it open;
- what contradicts the model's outputs is refused, naming the key;
- a pair of state tensors has one dtype and shape; besides the states an input and an output are left; a model that
  keeps its state inside has neither pairs nor initial values to name.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from edgekit_converters.recipe.conversion_errors import ContractFileError
from edgekit_converters.sources.source_model import SourceModel
from edgekit_profiles.schema import Table, parse_toml
from edgekit_runtime.contract.detect import nonsense
from edgekit_runtime.contract.spec import (
    Activation,
    Background,
    BoxFormat,
    Candidates,
    CarriedState,
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    OutputContract,
    Row,
    TensorSpec,
)

DETECTION_KEYS = (
    *("boxes", "row", "format", "unit", "scores", "classes", "count", "candidates", "activation", "background"),
    *("suppressed", "score_threshold", "iou_threshold", "max_boxes", "class_aware"),
)
EMBEDDING_KEYS = ("output", "normalize")


def detection_spec(document: Table, outputs: tuple[OutputContract, ...], size: tuple[int, int]) -> DetectionSpec:
    """The `[detection]` table.
    size: (width, height) of the picture that the boxes are of; `check_tasks` refuses a model without a picture."""
    table = document.optional_table("detection")
    if table is None:
        document.stop("detection", "is missing: nothing says where the boxes are", "Write [detection]")
    table.done(DETECTION_KEYS)
    boxes = table.text("boxes", "") or _only(table, "boxes", outputs)
    row: Any = table.text("row", "box scores" if len(outputs) == 1 else "box", get_args(Row))
    defaults = DetectionSpec(boxes, row, "xyxy", (1.0, 1.0))
    named: Any = table.text("format", "", get_args(BoxFormat))
    if not named:
        shapes = "corners x1 y1 x2 y2 (xyxy), y1 x1 y2 x2 (yxyx), corner and size (xywh), or centre and size (cxcywh)"
        table.wrong("format", "is missing", f"Say what a box's four numbers are: {shapes}")
    choices: Any = {
        "candidates": table.text("candidates", "", get_args(Candidates)) or _axis(table, boxes, row, outputs),
        "activation": table.text("activation", defaults.activation, get_args(Activation)),
        "background": table.text("background", defaults.background, get_args(Background)),
    }
    return DetectionSpec(
        boxes=boxes,
        row=row,
        format=named or defaults.format,
        span=_span(table, size),
        scores=table.text("scores", "") or None,
        classes=table.text("classes", "") or None,
        count=table.text("count", "") or None,
        suppressed=table.flag("suppressed", defaults.suppressed),
        score_threshold=table.real("score_threshold", defaults.score_threshold),
        iou_threshold=table.real("iou_threshold", defaults.iou_threshold),
        max_boxes=table.optional_integer("max_boxes") or defaults.max_boxes,
        class_aware=table.flag("class_aware", defaults.class_aware),
        **choices,
    )


def embedding_spec(document: Table, outputs: tuple[OutputContract, ...]) -> EmbeddingSpec:
    """The table may be left out where the model has one output."""
    table = document.table("embedding", {})
    table.done(EMBEDDING_KEYS)
    output = table.text("output", "") or _only(table, "output", outputs)
    return EmbeddingSpec(output, table.flag("normalize", False))


def check_tasks(document: Table, contract: Contract) -> None:
    """Note every statement about boxes or vectors that contradicts the model."""
    for key in ("detection", "embedding"):
        if document.has(key) and contract.task != key:
            do = f'Write task = "{key}", or remove the table'
            document.wrong(key, f"has no meaning for a model whose task is {contract.task}", do)
    found = nonsense(contract)
    if found is None:
        return
    table = document if found.key in ("labels", "") else document.table(contract.task, {})
    table.wrong(found.key or "task", found.what, found.do)


def _only(table: Table, key: str, outputs: tuple[OutputContract, ...]) -> str:
    if len(outputs) == 1:
        return outputs[0].name
    names = ", ".join(output.name for output in outputs)
    table.wrong(key, f"is missing, and the model has {len(outputs)} outputs", f"Name one of them: {names}")
    return ""


def _axis(table: Table, boxes: str, row: Row, outputs: tuple[OutputContract, ...]) -> Candidates:
    """`first`, as most models have it, unless the shape says `last` or says nothing."""
    shape = [n for n in next((o.shape for o in outputs if o.name == boxes), ()) if n != 1]
    if len(shape) != 2 or (shape[0] >= shape[1] and row != "box"):
        return "first"
    if row == "box":
        return "last" if shape[0] == 4 and shape[1] != 4 else "first"
    rows, columns = f"{shape[0]} numbers of {shape[1]}", f"{shape[1]} numbers of {shape[0]}"
    do = f'Write candidates = "last" for {rows}, candidates = "first" for {columns}'
    table.wrong("candidates", f"is missing: '{boxes}' {shape} could be {rows} candidates or {columns}", do)
    return "first"


def _span(table: Table, size: tuple[int, int]) -> tuple[float, float]:
    unit = table.data.get("unit")
    if unit == "fraction":
        return 1.0, 1.0
    if unit == "pixels":
        return float(size[0]), float(size[1])
    if isinstance(unit, list):
        sides = [float(side) for side in unit if isinstance(side, (int, float)) and not isinstance(side, bool)]
        if len(sides) == len(unit) == 2 and all(math.isfinite(side) and side > 0 for side in sides):
            return sides[0], sides[1]
    what = f"{unit!r} is not a picture size" if table.has("unit") else "is missing"
    do = (
        'Say what boxes are measured in: "pixels" of the network\'s picture, "fraction" of it, or [640, 480] where a '
        "box as large as the picture has these numbers"
    )
    table.wrong("unit", what, do)
    return 1.0, 1.0


StateKeys = dict[str, Any]
"""`state`, `carried` and `hop` of a Contract."""


def carried_by_names(source: SourceModel) -> StateKeys:
    """What the model itself shows."""
    pairs = tuple(CarriedState(name, output) for name, output in source.state_pairs)
    return {"state": source.state, "carried": pairs or None}


def read_state(document: Table, source: SourceModel) -> StateKeys:
    """What the model and the contract file say. Raises ContractFileError."""
    found = carried_by_names(source)
    table = document.optional_table("state")
    if table is None:
        return found
    table.done(("carried", "initial", "hop"))
    if source.state == "internal":
        for key in ("carried", "initial"):
            if table.has(key):
                table.stop(key, "has no meaning for a model that keeps its state inside", "Remove it")
    named = table.optional_table("carried")
    if named is not None:
        pairs = tuple(_pair(named, source, name) for name in named.data)
        found = {"state": "explicit" if pairs else "none", "carried": pairs or None}
    if found["state"] == "none":
        for key in ("initial", "hop"):
            if table.has(key):
                table.stop(key, "has no meaning for a model without state", "Remove it, or name carried = { ... }")
    if found["carried"] is not None:
        initial = table.optional_table("initial")
        pairs = found["carried"]
        if initial is not None:
            initial.done([pair.input for pair in pairs])
            shapes = {spec.name: spec.shape[1:] for spec in source.inputs}
            pairs = tuple(replace(pair, initial=_values(initial, pair.input, shapes[pair.input])) for pair in pairs)
            found["carried"] = pairs
        inputs, outputs = [pair.input for pair in pairs], [pair.output for pair in pairs]
        twice = next((name for name in outputs if outputs.count(name) > 1), None)
        if twice is not None:
            table.stop("carried", f"'{twice}' is carried twice", "Name each output once")
        if len(inputs) == len(source.inputs) or len(outputs) == len(source.outputs):
            table.stop("carried", "nothing goes in, or nothing comes out, besides the state", "Carry fewer")
    return {**found, "hop": table.optional_integer("hop")}


def _pair(named: Table, source: SourceModel, name: str) -> CarriedState:
    value = named.data[name]
    into = next((spec for spec in source.inputs if spec.name == name), None)
    if into is None:
        named.stop(name, f"the model has no input '{name}'", f"Its inputs: {_names(source.inputs)}")
    out = next((spec for spec in source.outputs if spec.name == value), None)
    if out is None:
        named.stop(name, f"the model has no output '{value}'", f"Its outputs: {_names(source.outputs)}")
    if (into.dtype, into.shape[1:]) != (out.dtype, out.shape[1:]):
        what = f"'{name}' is {into.dtype} {list(into.shape[1:])} and '{value}' is {out.dtype} {list(out.shape[1:])}"
        named.stop(name, what, "A state comes out as it went in")
    return CarriedState(name, str(value))


def _values(initial: Table, name: str, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    value, count = initial.data.get(name), math.prod(shape)
    if value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if len(listed) not in (1, count):
        initial.stop(name, f"has {len(listed)} values, and the state has {count}", "Write one number, or all")
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            initial.stop(name, f"{number} is not a finite number", f"Write {name} = 0.5, or a list of numbers")
    return tuple(float(number) for number in listed)


def _names(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(spec.name for spec in specs)


def _mistake(file: str, path: str, key: str, what: str, do: str) -> ContractFileError:
    place = " ".join(part for part in (f"[{path}]" if path else "", key) if part)
    return ContractFileError(f"{place}: {what}", where=file, do=do)


def read_document(file: Path) -> Table:
    """The file as one table. Raises ContractFileError when it is missing, not UTF-8 or not TOML."""
    try:
        data = parse_toml(read_text(file, "the contract file"))
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, and integers of thousands of digits
        raise ContractFileError(f"not valid TOML: {error}", where=str(file), do="Mend the line; see toml.io") from error
    return Table(data, str(file), mistake=_mistake)


def read_stated(text: str, model: Path) -> Table:
    """What the model file itself says (`Description.stated`), as one table."""
    return Table(parse_toml(text), str(model), mistake=_mistake)


def read_text(file: Path, what: str) -> str:
    """UTF-8 text, with or without a byte order mark."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        do = "Save it again as UTF-8"
        raise ContractFileError(f"{what} is not UTF-8 (byte {error.start})", where=str(file), do=do) from error
    except FileNotFoundError as error:
        raise ContractFileError(f"{what} does not exist", where=str(file), do="Check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise ContractFileError(f"{what} cannot be read: {reason}", where=str(file)) from error

"""Class names, size and task from an ONNX file's metadata, as Ultralytics writes them.

    said = read_metadata(model)
    said.picture                            # (640, 640) height and width of `imgsz`, or None
    text, why = stated_contract(said, inputs, outputs)

Rules:
- the values are untrusted texts: only dictionaries and lists of names and small numbers are read, never code;
- what does not fit the model's own inputs and outputs is not used, with the reason;
- pixels are divided by 255 and pictures letterboxed (a classifier's centre is cut out) if `stride` or `task` says that
  Ultralytics wrote the file; `classes` or `names` alone are labels of a classifier and no more.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit_converters.sources.source_model import is_label, toml_text
from edgekit_runtime.contract.spec import TensorSpec

_LONGEST = 1 << 18
_MOST_NAMES = 20_000
_LARGEST_SIDE = 16_384
_MOST_SUPPRESSED = 300
"""Rows that Ultralytics answers after a suppression of its own; more are candidates."""
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_REST = re.compile(r"[\s\d,:]{0,262144}")
_TASKS = ("detect", "classify", "segment", "pose", "obb")


@dataclass(frozen=True)
class Metadata:
    """names: of the classes, in index order.
    picture: (height, width).
    task: as Ultralytics calls it.
    ultralytics: whether its keys are there.
    why: what is wrong with an unreadable value."""

    names: tuple[str, ...] = ()
    picture: tuple[int, int] | None = None
    task: str = ""
    ultralytics: bool = False
    why: str = ""


def read_metadata(model: Any) -> Metadata:
    """Of an onnx.ModelProto. An unreadable value counts as absent."""
    said = {entry.key: entry.value for entry in model.metadata_props}
    key = next((key for key in ("names", "classes") if key in said), "")
    names = _names(said[key]) if key else ()
    text = said.get("imgsz", "")
    value = _literal(text if text.strip()[:1] in ("[", "(") else f"[{text}]")
    sides = value if isinstance(value, (list, tuple)) and all(type(side) is int for side in value) else ()
    picture = (sides[0], sides[-1]) if len(sides) in (1, 2) and all(0 < n <= _LARGEST_SIDE for n in sides) else None
    task = said.get("task", "")
    return Metadata(
        names=names or (),
        picture=picture,
        task=task if task in _TASKS else "",
        ultralytics=key == "names" and (task in _TASKS or "stride" in said),
        why=f"its metadata '{key}' is no list of class names" if names is None else "",
    )


def _literal(text: str) -> Any:
    """A dictionary or list of texts and numbers, without others inside; None for anything else."""
    text = text.strip()
    if len(text) > _LONGEST or text[:1] + text[-1:] not in ("{}", "[]", "()"):
        return None
    rest = _TEXT.sub("", text[1:-1])
    if not _REST.fullmatch(rest) or max(map(len, re.findall(r"\d+", rest)), default=0) > 9:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _names(text: str) -> tuple[str, ...] | None:
    """None for what is not a table of names."""
    value = _literal(text)
    if value is None and 0 < len(text) <= _LONGEST and not re.search(r"[][{}()]", text):
        value = [name.strip() for name in re.split(r"[,\n]", text.strip())]
    if isinstance(value, dict):
        if sorted(map(str, value)) != sorted(map(str, range(len(value)))):
            return None
        value = [value[index] if index in value else value[str(index)] for index in range(len(value))]
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= _MOST_NAMES or not all(map(is_label, value)):
        return None
    return tuple(name.strip() for name in value)


def stated_contract(said: Metadata, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[str, str]:
    """(a contract file's text, ""), or ("", why not); two empty texts if nothing was said."""
    if said.why or not (said.names or said.ultralytics):
        return "", said.why
    classes = math.prod(outputs[0].shape[1:]) if len(outputs) == 1 else 0
    if not said.ultralytics:
        if classes != len(said.names) or classes < 2:
            return "", f"its metadata names {len(said.names)} classes, which no single output has"
        return toml_text({"task": "classification", "labels": list(said.names)}), ""
    picture = _image(said, inputs)
    if picture is None:
        return "", "its metadata is that of a detector or classifier of pictures, and its inputs are no single picture"
    if said.task == "classify":
        if classes != len(said.names) or classes < 2:
            return "", f"its metadata names {len(said.names)} classes, which no single output has"
        return toml_text({"task": "classification", "labels": list(said.names), "input": picture}), ""
    head = detection_head(said.task, len(said.names), outputs) if said.task in ("detect", "") else None
    if head is None:
        if said.task in ("detect", ""):
            shapes = ", ".join(f"'{spec.name}' {list(spec.shape[1:])}" for spec in outputs)
            return "", f"its metadata names {len(said.names)} classes, and no output has boxes of so many: {shapes}"
        return toml_text({"task": "raw", "input": picture}), ""
    return toml_text({"task": "detection", "labels": list(said.names), "input": picture, "detection": head}), ""


def _image(said: Metadata, inputs: Sequence[TensorSpec]) -> dict[str, Any] | None:
    if len(inputs) != 1 or inputs[0].layout is None:
        return None
    (spec,) = inputs
    if (spec.shape[3] if spec.layout == "NHWC" else spec.shape[1]) not in (1, 3):
        return None
    resize = "center-crop" if said.task == "classify" else "letterbox"
    scale = {} if np.dtype(spec.dtype).kind in "iu" else {"mean": 0, "std": 255}
    return {"kind": "image", "resize": resize, **scale}


def detection_head(task: str, classes: int, outputs: Sequence[TensorSpec]) -> Mapping[str, Any] | None:
    """The one output of a YOLO model, as the keys of `[detection]`, or None.
    [4 + C, N] (YOLOv8 and later), [N, 5 + C] (YOLOv5) or [N, 6] after a suppression of its own."""
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or not classes:
        return None
    rows, columns = outputs[0].shape[1:]
    if columns == 6 and rows <= _MOST_SUPPRESSED and rows != 4 + classes:
        row = {"row": "box score class", "candidates": "first", "format": "xyxy", "suppressed": True}
        return {"boxes": outputs[0].name, "unit": "pixels", **row}
    found = {"boxes": outputs[0].name, "unit": "pixels", "format": "cxcywh"}
    if rows == 4 + classes and columns != rows:
        return {**found, "row": "box scores", "candidates": "last"}
    if columns == 4 + classes:
        return {**found, "row": "box scores", "candidates": "first"}
    if columns == 5 + classes and not task:  # YOLOv5 wrote no task
        return {**found, "row": "box objectness scores", "candidates": "first"}
    return None

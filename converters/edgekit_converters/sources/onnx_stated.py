"""What an ONNX file states of its answers: a classifier's labels, and Ultralytics' metadata.

    found = scores_alone(model)             # in place
    found.labels, found.removed             # ("setosa", "versicolor", "virginica"), ("output_label",)
    text, why = stated_contract(read_metadata(model), inputs, outputs)

Rules:
- a ZipMap, which makes a list of dictionaries of a table of scores, is removed; its output keeps its name;
- an output `label` or `output_label` of one number or text an item is removed if one table of scores is left and it is
  the class with the best of them, on random inputs here and on every real item later (`LabelCheck`); an outlier's label
  never is, and that of a support vector machine need not be;
- a Scaler becomes a Sub and a Mul, which every engine has and 8 bits can do;
- metadata is untrusted text: only dictionaries and lists of names and small numbers are read, never code; what does not
  fit the model's own inputs and outputs is not used, with the reason;
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
from numpy.typing import NDArray

from edgekit_converters.formats import onnx_file
from edgekit_converters.sources.float_onnx import OPSET
from edgekit_converters.sources.source_model import is_label, toml_text
from edgekit_runtime.contract.spec import TensorSpec

_LABELS = ("label", "output_label")
_LABEL_TYPES = frozenset({6, 7, 8})  # int32, int64 and string in TensorProto.DataType
_LABEL_LISTS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class Scores:
    """A classifier's scores, once ZipMap and the label output are gone.
    labels: of the classes, in index order; empty if absent or counted from 0.
    removed: outputs that are gone.
    zipped: outputs that were lists of dictionaries.
    values: what the removed label chooses from, in index order; empty if it counts from 0.
    whole: the model that still has the label, or None."""

    labels: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    zipped: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    whole: Any = None


def merge_opsets(model: Any) -> None:
    """Keep the newest version of each domain, in place: skl2onnx may list one twice.
    A model with operators of other domains alone, such as onnxmltools' XGBoost models, gets OPSET for the standard
    ones."""
    newest: dict[str, Any] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain not in newest or newest[domain].version < entry.version:
            newest[domain] = entry
    if len(newest) < len(model.opset_import):
        onnx_file.replace_values(model.opset_import, newest.values())
    if "" not in newest and all(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        model.opset_import.add(domain="", version=OPSET)


def scores_alone(model: Any, *, keep_label: bool = False) -> Scores:
    """Remove ZipMap, and the label output unless it is to be kept, in place."""
    graph = model.graph
    labels, zipped = tuple[str, ...](), []
    for node in [node for node in graph.node if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"]:
        if _unzip(model, node):
            zipped.append(node.output[0])
            labels = labels or _labels_in(node)
    tables = [value for value in graph.output if _is(value, frozenset({1, 11}), (2,))]
    found = [value for value in graph.output if value.name in _LABELS and _is(value, _LABEL_TYPES, (1, 2))]
    whole, values = None, tuple[str, ...]()
    if keep_label or len(tables) != 1 or len(graph.output) != 1 + len(found):
        found = []
    if found:
        whole, values = onnx_file.copy_model(model), _labels_behind(graph, found[0].name)
        labels = labels or values
        onnx_file.replace_values(graph.output, [value for value in graph.output if value.name not in _LABELS])
    if found or zipped:
        _drop_unneeded(graph)
    counted = labels == tuple(map(str, range(len(labels))))
    return Scores(() if counted else labels, tuple(value.name for value in found), tuple(zipped), values, whole)


class LabelCheck:
    """Checks that the removed label is the class with the best score.
    data: the model that still has it.
    scores: of that model."""

    def __init__(self, data: bytes, scores: Scores) -> None:
        import onnxruntime

        from edgekit_runtime.engines.onnxruntime import session_options

        self.name = scores.removed[0]
        self._values = np.array(scores.values)
        self._session = onnxruntime.InferenceSession(data, session_options(onnxruntime, 0), ["CPUExecutionProvider"])
        self._kinds = {value.name: _HALVES.get(value.type) for value in self._session.get_inputs()}

    def holds(self, inputs: Mapping[str, NDArray[Any]], scores: NDArray[Any], *, at_once: bool) -> bool:
        """Compare on these inputs, by the file's names; among equal scores any label is right."""
        if scores.ndim != 2 or scores.shape[1] < 2:
            return False
        feed = {name: values.astype(self._kinds[name] or values.dtype) for name, values in inputs.items()}
        count = len(scores)
        parts = [feed] if at_once else [{n: v[i : i + 1] for n, v in feed.items()} for i in range(count)]
        found = np.concatenate([np.reshape(self._session.run([self.name], part)[0], -1) for part in parts])
        classes = np.arange(scores.shape[1]).astype(str) if self._values.size == 0 else self._values
        if len(found) != count or len(classes) != scores.shape[1]:
            return False
        best = scores == scores.max(axis=1, keepdims=True)
        return bool((best & (found.astype(str)[:, None] == classes[None, :])).any(axis=1).all())


_HALVES = {"tensor(float16)": np.float16, "tensor(double)": np.float64}


def standardise(model: Any) -> None:
    """Replace a Scaler of float32 inputs by (x - offset) * scale, in place."""
    graph = model.graph
    floats = {value.name for value in graph.input if value.type.tensor_type.elem_type == 1}
    changed: list[Any] = []
    taken = onnx_file.value_names(model)
    for node in graph.node:
        if node.op_type != "Scaler" or node.domain != "ai.onnx.ml" or node.input[0] not in floats:
            changed.append(node)
            continue
        parts = [np.asarray(onnx_file.attribute(node, name, []), np.float32) for name in ("offset", "scale")]
        if not len(parts[0]) == len(parts[1]) > 0:
            changed.append(node)
            continue
        names = ("offset", "scale", "centred")
        offset, scale, centred = (onnx_file.free_name(f"{node.output[0]}/{name}", taken) for name in names)
        graph.initializer.extend([onnx_file.new_constant(offset, parts[0]), onnx_file.new_constant(scale, parts[1])])
        changed.append(onnx_file.new_node("Sub", [node.input[0], offset], [centred]))
        changed.append(onnx_file.new_node("Mul", [centred, scale], [node.output[0]]))
    if len(changed) > len(graph.node):
        onnx_file.replace_values(graph.node, changed)


def stated_classes(scores: Scores, outputs: Sequence[TensorSpec]) -> str:
    """Return the labels as a contract file's text, "" if they do not fit the one output."""
    classes = math.prod(outputs[0].shape[1:]) if len(outputs) == 1 else 0
    if classes < 2 or len(scores.labels) != classes or not all(map(is_label, scores.labels)):
        return ""
    return toml_text({"task": "classification", "labels": list(scores.labels)})


def _unzip(model: Any, node: Any) -> bool:
    """Remove a ZipMap whose output is the graph's; return whether that was possible."""
    graph, (table,), (name,) = model.graph, node.input, node.output
    ends = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    users = [other for other in graph.node if other is not node and name in onnx_file.reads(other)]
    if users or table in ends or name not in ends:
        return False
    from onnx import TensorProto, helper

    stated = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, len(_labels_in(node)) or None])
    outputs = [stated if value.name == name else onnx_file.copy_model(value) for value in graph.output]
    del graph.output[:]  # `rename` would move what has the name out of the way
    onnx_file.replace_values(graph.node, [other for other in graph.node if name not in other.output])
    onnx_file.rename(model, {table: name})
    graph.output.extend(outputs)
    return True


def _labels_in(node: Any) -> tuple[str, ...]:
    for name in _LABEL_LISTS:
        if values := onnx_file.attribute(node, name, ()):
            return tuple(_as_text(value) for value in values)
    return ()


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _labels_behind(graph: Any, name: str) -> tuple[str, ...]:
    """Return the names that a label output chooses from."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in onnx_file.makers_behind(graph, [name]):
        if names := _labels_in(node):
            return names
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in weights:
            return tuple(_as_text(value) for value in onnx_file.array(weights[node.input[0]]).reshape(-1).tolist())
    return ()


def _drop_unneeded(graph: Any) -> None:
    ends = [value.name for value in graph.output]
    needed = {name for node in onnx_file.makers_behind(graph, ends) for name in node.output}
    onnx_file.replace_values(graph.node, [node for node in graph.node if needed.intersection(node.output)])
    onnx_file.drop_unread(graph)
    made = needed.union(ends, (name for node in graph.node for name in node.input))
    onnx_file.replace_values(graph.value_info, [value for value in graph.value_info if value.name in made])


def _is(value: Any, kinds: frozenset[int], ranks: tuple[int, ...]) -> bool:
    kind = value.type.tensor_type
    return value.type.WhichOneof("value") == "tensor_type" and kind.elem_type in kinds and len(kind.shape.dim) in ranks


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
    """What an ONNX file's metadata says.
    names: of the classes, in index order.
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
    """Read an onnx.ModelProto's metadata; an unreadable value counts as absent."""
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
        why=f"its metadata '{key}' is not a list of class names" if names is None else "",
    )


def _literal(text: str) -> Any:
    """Parse a flat dictionary or list of texts and numbers; None for anything else."""
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
    """Parse class names; None if the text is not a list of names."""
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
    """Return (a contract file's text, "") or ("", why not); ("", "") without metadata."""
    if said.why or not (said.names or said.ultralytics):
        return "", said.why
    classes = math.prod(outputs[0].shape[1:]) if len(outputs) == 1 else 0
    if not said.ultralytics:
        if classes != len(said.names) or classes < 2:
            return "", f"its metadata names {len(said.names)} classes, which no single output has"
        return toml_text({"task": "classification", "labels": list(said.names)}), ""
    picture = _image(said, inputs)
    if picture is None:
        return "", "its metadata describes a detector or classifier, and the model does not take a single picture"
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
    """Describe a YOLO model's one output by the keys of `[detection]`; None for others.
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

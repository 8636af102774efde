"""A scikit-learn, LightGBM or XGBoost classifier in ONNX: its scores alone, in one tensor.

    found = scores_alone(model)             # in place
    found.labels, found.removed             # ("setosa", "versicolor", "virginica"), ("output_label",)

Rules:
- a ZipMap, which makes a list of dictionaries of a table of scores, is removed; its output keeps its name;
- an output `label` or `output_label` of one number or text an item is removed if one table of scores is left and it is
  the class with the best of them, on random inputs here and on every real item later (`LabelCheck`); an outlier's label
  never is, and that of a support vector machine need not be;
- a Scaler becomes a Sub and a Mul, which every engine has and 8 bits can do;
- what only served removed outputs goes too; all else stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
_NAMES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class Scores:
    """labels: of the classes, in index order; empty if absent or counted from 0.
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
    """Keep one version a domain, the newest, in place: skl2onnx may name one twice.
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
    """Take ZipMap away, in place, and the label output unless it is to be kept."""
    graph = model.graph
    labels, zipped = tuple[str, ...](), []
    for node in [node for node in graph.node if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"]:
        if _unzip(model, node):
            zipped.append(node.output[0])
            labels = labels or _names(node)
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
    """Whether the removed label is the class with the best score.
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
        """inputs: by the file's names. Of classes with equal scores any may be the label."""
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
    """Scaler of float32 inputs -> (x - offset) * scale, in place."""
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
    """A classifier's labels as a contract file's text, "" if they do not fit its one output."""
    classes = math.prod(outputs[0].shape[1:]) if len(outputs) == 1 else 0
    if classes < 2 or len(scores.labels) != classes or not all(map(is_label, scores.labels)):
        return ""
    return toml_text({"task": "classification", "labels": list(scores.labels)})


def _unzip(model: Any, node: Any) -> bool:
    """Whether the node's output was the graph's, and is now the table that the node read."""
    graph, (table,), (name,) = model.graph, node.input, node.output
    ends = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    users = [other for other in graph.node if other is not node and name in onnx_file.reads(other)]
    if users or table in ends or name not in ends:
        return False
    from onnx import TensorProto, helper

    stated = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, len(_names(node)) or None])
    outputs = [stated if value.name == name else onnx_file.copy_model(value) for value in graph.output]
    del graph.output[:]  # `rename` would move what has the name out of the way
    onnx_file.replace_values(graph.node, [other for other in graph.node if name not in other.output])
    onnx_file.rename(model, {table: name})
    graph.output.extend(outputs)
    return True


def _names(node: Any) -> tuple[str, ...]:
    for name in _NAMES:
        if values := onnx_file.attribute(node, name, ()):
            return tuple(_text(value) for value in values)
    return ()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _labels_behind(graph: Any, name: str) -> tuple[str, ...]:
    """The names that a label output chooses from, anywhere behind it."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in _behind(graph, [name]):
        if names := _names(node):
            return names
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in weights:
            return tuple(_text(value) for value in onnx_file.array(weights[node.input[0]]).reshape(-1).tolist())
    return ()


def _behind(graph: Any, names: list[str]) -> Iterator[Any]:
    """The nodes that make these values, the nearest first."""
    makers = {name: node for node in graph.node for name in node.output if name}
    pending, seen = list(names), set[str]()
    while pending:
        name = pending.pop(0)
        if name in seen or name not in makers:
            continue
        seen.update(makers[name].output)
        yield makers[name]
        pending += onnx_file.reads(makers[name])


def _drop_unneeded(graph: Any) -> None:
    needed = {name for node in _behind(graph, [value.name for value in graph.output]) for name in node.output}
    onnx_file.replace_values(graph.node, [node for node in graph.node if needed.intersection(node.output)])
    used = {name for node in graph.node for name in onnx_file.reads(node)} | {value.name for value in graph.output}
    onnx_file.replace_values(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in used])
    made = used | {name for node in graph.node for name in node.output}
    onnx_file.replace_values(graph.value_info, [value for value in graph.value_info if value.name in made])


def _is(value: Any, kinds: frozenset[int], ranks: tuple[int, ...]) -> bool:
    kind = value.type.tensor_type
    return value.type.WhichOneof("value") == "tensor_type" and kind.elem_type in kinds and len(kind.shape.dim) in ranks

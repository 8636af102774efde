"""Float ONNX from TensorFlow through tf2onnx: named as the contract, expanded, and proved.

    adopt(model, source, {"image:0": "image"}, batch=-1)
    data, problem = prove_export(model, source, batch=-1)
    data = to_onnx(source, source.call)

Rules:
- inputs and outputs keep the contract's names and order; picture inputs are NCHW, so that ONNX Runtime's convolutions
  need no transposes (the metadata says which);
- the batch stays free, and is 1 only if the graph does not work otherwise;
- operators that tf2onnx leaves as they are get a form in ONNX's own, in float32 (`expand`); without one ONNX Runtime
  refuses them, and `unknown` finds the name in its message;
- the result must agree with the original.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgekit_converters.formats import onnx_file
from edgekit_converters.recipe.conversion_errors import ConversionError, one_line
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.float_onnx import order, proved, renumber
from edgekit_converters.sources.shapes import graph_names
from edgekit_converters.sources.source_model import SourceModel


def adopt(model: Any, source: SourceModel, names: Mapping[str, str], batch: int) -> None:
    """Name and shape the graph as the contract does, in place. batch: 1, or -1 if free."""
    import onnx

    expand(model)
    model.ir_version = min(model.ir_version, float_onnx.MAX_IR)
    model.producer_name, model.producer_version, model.doc_string, model.graph.doc_string = "edgekit", "", "", ""
    model.graph.name = "network"  # a layer's or a file's name would change the bytes of one and the same model
    onnx_file.rename(model, dict(names))
    as_nchw = [spec.name for spec in source.inputs if spec.layout == "NHWC"]
    if as_nchw:
        onnx.helper.set_model_props(model, {float_onnx.NCHW_KEY: ",".join(as_nchw)})
    inputs, outputs = (
        [dataclasses.replace(spec, shape=(batch, *spec.shape[1:])) for spec in specs]
        for specs in (source.inputs, source.outputs)
    )
    for place, spec in enumerate(inputs):
        if spec.layout == "NHWC":
            inputs[place] = dataclasses.replace(spec, shape=(batch, spec.shape[3], *spec.shape[1:3]))
    float_onnx.set_batch(model, inputs, outputs)


def prove_export(model: Any, source: SourceModel, batch: int) -> tuple[bytes | None, str]:
    """Return the graph's bytes, or None and the reason if its answers differ."""

    def finish(candidate: Any) -> None:
        order(candidate)
        renumber(candidate)

    return proved(model, source, finish, channels_first=True)


def export_error(source: SourceModel, problem: str) -> ConversionError:
    """Return the error of a failed export. problem: its message."""
    operator = unknown(problem)
    what = f"{operator} has no form in ONNX that edgekit knows" if operator else f"the ONNX export failed: {problem}"
    do = "Choose a TFLite recipe: tflite-int8, tflite-dynamic, tflite-f32"
    return ConversionError(what, where=str(source.path), do=do)


def to_onnx(source: SourceModel, call: Callable[..., list[Any]]) -> bytes:
    """Export a source that TensorFlow traces. call: its network on TensorFlow tensors.
    Raises ConversionError if tf2onnx cannot express the model, or what it wrote gives other answers."""
    free = all(spec.free_batch for spec in source.inputs)
    problem = ""
    for batch in (-1, 1) if free else (1,):
        try:
            model = _export(source, call, batch)
        except Exception as error:  # noqa: BLE001 - tf2onnx raises ValueError, RuntimeError, KeyError, ...
            problem = one_line(error)
            continue
        data, problem = prove_export(model, source, batch)
        if data is not None:
            return data
    raise export_error(source, problem)


def _export(source: SourceModel, call: Callable[..., list[Any]], batch: int) -> Any:
    tf = import_tensorflow()
    import tf2onnx

    ins, outs = graph_names(source.inputs), graph_names(source.outputs)
    signature = [
        tf.TensorSpec([None if batch == -1 else batch, *spec.shape[1:]], spec.dtype, name=name)
        for spec, name in zip(source.inputs, ins, strict=True)
    ]
    pictures = [name for spec, name in zip(source.inputs, ins, strict=True) if spec.layout == "NHWC"]
    with quiet():
        function = tf.function(lambda *x: [tf.identity(y, name=n) for y, n in zip(call(*x), outs, strict=True)])
        traced = function.get_concrete_function(*signature)
        # As `from_function`, which takes for inputs what the network holds as plain tensors, as `Normalization` does
        given = [x.name for x in traced.inputs if x.op.type == "Placeholder" and x.dtype != tf.resource]
        answers = [tensor.name for tensor in traced.outputs]
        frozen = tf2onnx.tf_loader.from_function(traced, given, answers)
        model, _ = tf2onnx.convert.from_graph_def(
            frozen, input_names=given, output_names=answers, opset=float_onnx.OPSET, inputs_as_nchw=pictures or None,
            tensors_to_rename=dict(zip(given, ins, strict=True)),
        )  # fmt: skip
    present = {value.name.removesuffix(":0"): value.name for value in model.graph.input}  # tf2onnx may append ':0'
    names = {present[name]: spec.name for name, spec in zip(ins, source.inputs, strict=True)}
    names |= {value.name: spec.name for value, spec in zip(model.graph.output, source.outputs, strict=True)}
    adopt(model, source, names, batch)
    return model


class _NodeWriter:
    """Writes the nodes that replace one node; equal constants are shared."""

    def __init__(self, node: Any, constants: dict[float, str], taken: set[str]) -> None:
        self.node, self._constants, self._taken = node, constants, taken
        self.nodes: list[Any] = []

    def __call__(self, op: str, *inputs: str | float, to: str = "") -> str:
        """Add a node and return its output. to: the output's name, "" for a new one."""
        output = to or onnx_file.free_name(f"{self.node.output[0]}/expanded_{len(self.nodes)}", self._taken)
        for value in inputs:
            if isinstance(value, float) and value not in self._constants:
                self._constants[value] = onnx_file.free_name(f"edgekit/constant_{value!r}", self._taken)
        names = [self._constants[value] if isinstance(value, float) else value for value in inputs]
        self.nodes.append(onnx_file.new_node(op, names, [output], f"{self.node.name or output}/{len(self.nodes)}"))
        return output


def expand(model: Any) -> None:
    """Rewrite operators such as Erfc with standard ones, in place, inner graphs included."""
    taken = onnx_file.value_names(model)
    for graph in reversed(list(onnx_file.subgraphs(model.graph))):  # the inner ones first: an edit copies nodes
        constants: dict[float, str] = {}
        nodes: list[Any] = []
        for node in graph.node:
            write = _WRITERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if write is None:
                nodes.append(node)
                continue
            writer = _NodeWriter(node, constants, taken)
            write(writer, node)
            nodes.extend(writer.nodes)
        if constants:
            arrays = ((name, np.asarray(value, np.float32)) for value, name in constants.items())
            graph.initializer.extend(onnx_file.new_constant(name, array) for name, array in arrays)
        if len(nodes) != len(graph.node) or constants:
            onnx_file.replace_values(graph.node, nodes)
            onnx_file.name_nodes(model)


def unknown(problem: str) -> str:
    """Return the operator that ONNX Runtime's message calls unknown, or ""."""
    found = re.search(r"No Op registered for (?:TFL_)?(\w+)", problem)
    return found.group(1) if found else ""


def _gelu(write: _NodeWriter, node: Any) -> None:
    """x / 2 (1 + erf(x / sqrt 2)), or its tanh approximation if the node asks for it."""
    (x,) = node.input
    if any(attribute.name == "approximate" and attribute.i for attribute in node.attribute):
        cube = write("Mul", write("Mul", x, x), x)
        inner = write("Add", x, write("Mul", cube, 0.044715))
        half = write("Tanh", write("Mul", inner, (2.0 / np.pi) ** 0.5))
    else:
        half = write("Erf", write("Mul", x, 0.5**0.5))
    write("Mul", write("Mul", x, 0.5), write("Add", half, 1.0), to=node.output[0])


def _nothing_where(which: int, op: str) -> Callable[[_NodeWriter, Any], None]:
    """Product or quotient that is 0 wherever that input is 0: 0 log 0 and 0 / 0 are 0."""

    def written(write: _NodeWriter, node: Any) -> None:
        x, y = node.input
        other = write("Log", y) if op == "Log" else y
        value = write("Div" if op == "Div" else "Mul", x, other)
        write("Where", write("Equal", node.input[which], 0.0), 0.0, value, to=node.output[0])

    return written


_WRITERS: dict[str, Callable[[_NodeWriter, Any], object]] = {
    "Erfc": lambda write, node: write("Sub", 1.0, write("Erf", node.input[0]), to=node.output[0]),
    "Expm1": lambda write, node: write("Sub", write("Exp", node.input[0]), 1.0, to=node.output[0]),
    "Log1p": lambda write, node: write("Log", write("Add", node.input[0], 1.0), to=node.output[0]),
    "TFL_GELU": _gelu,
    "Xlogy": _nothing_where(0, "Log"),
    "Xdivy": _nothing_where(0, "Div"),
    "MulNoNan": _nothing_where(1, "Mul"),
}

"""A TFLite file's inputs and outputs made float32; inside it stays the same.

    model = tflite_edit.read(data)
    cast_sides(model)
    data = tflite_edit.write(model)

Rules:
- QUANTIZE stands before each quantized input and DEQUANTIZE behind each quantized output; no other operator changes;
- a new end is called as the old one with its operator behind, and signatures name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats.tflite_file import QUANTIZED, schema

Constant = Sequence[float] | NDArray[Any]


def cast_sides(model: Any) -> None:
    """Cast the quantized inputs and outputs of the main subgraph to float32, in place."""
    graph = model.subgraphs[0]
    for place, index in enumerate(graph.inputs):
        if (kind := _quantized(graph.tensors[index])) is not None:
            put_before(model, place, "QUANTIZE", 2 if kind == "INT16" else 1)
    for place, index in enumerate(graph.outputs):
        if (kind := _quantized(graph.tensors[index])) is not None:
            put_behind(model, place, "DEQUANTIZE", {"UINT8": 1, "INT8": 2, "INT16": 3}[kind])


def put_before(
    model: Any, place: int, op: str, version: int = 1, constants: Sequence[Constant] = (), **options: Any
) -> None:
    """Let an operator make the input at that place of a new float32 input of the same shape.

    constants: what else it reads.
    options: fields of the operator's options."""
    graph = model.subgraphs[0]
    old = int(graph.inputs[place])
    new = _new_tensor(graph, old, op)
    graph.operators = [_operator(model, op, version, [new, *constants], [old], options), *graph.operators]
    graph.inputs = [new if at == place else int(index) for at, index in enumerate(graph.inputs)]
    tfl.move_ends(model, 0, {old: new})


def put_behind(model: Any, place: int, op: str, version: int = 1, **options: Any) -> None:
    """Let an operator make a new float32 output of the output at that place."""
    graph = model.subgraphs[0]
    old = int(graph.outputs[place])
    new = append(model, op, [old], version=version, **options)
    graph.outputs = [new if at == place else int(index) for at, index in enumerate(graph.outputs)]
    tfl.move_ends(model, 0, {old: new})


def append(
    model: Any,
    op: str,
    inputs: Sequence[int | Constant],
    shape: Sequence[int] | None = None,
    dtype: str = "FLOAT32",
    version: int = 1,
    **options: Any,
) -> int:
    """Add an operator behind all others and return the tensor that it makes.

    inputs: tensors, and constants of int32 or float32.
    shape: of the new tensor; None for that of the first input.
    options: fields of the operator's options."""
    graph = model.subgraphs[0]
    first = inputs[0]
    assert isinstance(first, int)
    new = _new_tensor(graph, first, op, shape, dtype)
    graph.operators = [*graph.operators, _operator(model, op, version, inputs, [new], options)]
    return new


def _operator(
    model: Any, op: str, version: int, inputs: Sequence[int | Constant], outputs: list[int], options: dict[str, Any]
) -> Any:
    graph, ends = model.subgraphs[0], []
    for one in inputs:
        if not isinstance(one, int):
            values = np.asarray(one)
            values = values.astype(np.int32 if values.dtype.kind == "i" else np.float32)
            index = _new_tensor(graph, outputs[0], f"{op}/constant", values.shape, values.dtype.name.upper())
            graph.tensors[index].buffer = tfl.add_constant(model, values)
            one = index
        ends.append(one)
    made = tfl.new_operator(model, op, version, ends[0], outputs[0])
    made.inputs, made.outputs = ends, outputs
    name = op.title().replace("_", "") + "Options"
    if (kind := getattr(schema(), f"{name}T", None)) is not None:
        made.builtinOptionsType, made.builtinOptions = getattr(schema().BuiltinOptions, name), kind()
        vars(made.builtinOptions).update(options)
    return made


def _new_tensor(graph: Any, like: int, suffix: str, shape: Sequence[int] | None = None, dtype: str = "FLOAT32") -> int:
    made = tfl.copied(graph.tensors[like], f"/{suffix}")
    made.type = getattr(schema().TensorType, dtype)
    if shape is not None:
        made.shape, made.shapeSignature = np.array(shape, np.int32), None
    return tfl.add_tensor(graph, made)


def _quantized(tensor: Any) -> str | None:
    """Its type if it stands for real numbers."""
    scales = tensor.quantization.scale if tensor.quantization is not None else None
    kind = tfl.type_of(tensor)
    return kind if kind in QUANTIZED and scales is not None and len(scales) > 0 else None

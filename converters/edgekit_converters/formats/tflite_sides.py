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
    model: Any, place: int, op: str, version: int = 1, constants: Sequence[NDArray[Any]] = (), **options: Any
) -> None:
    """Let an operator make the input at that place of a new float32 input of the same shape.

    constants: what else it reads.
    options: fields of the operator."""
    graph = model.subgraphs[0]
    old = int(graph.inputs[place])
    new = _float_twin(graph, old, op)
    made = tfl.new_operator(model, op, version, new, old)
    for values in constants:
        tensor = tfl.copied(graph.tensors[old], f"/{op}/constant")
        tensor.type = getattr(schema().TensorType, values.dtype.name.upper())
        tensor.shape, tensor.shapeSignature = np.array(values.shape, np.int32), None
        tensor.buffer = tfl.add_constant(model, values)
        made.inputs.append(tfl.add_tensor(graph, tensor))
    vars(made).update(options)
    graph.operators = [made, *graph.operators]
    graph.inputs = [new if at == place else int(index) for at, index in enumerate(graph.inputs)]
    tfl.move_ends(model, 0, {old: new})


def put_behind(model: Any, place: int, op: str, version: int = 1, **options: Any) -> None:
    """Let an operator make a new float32 output of the output at that place."""
    graph = model.subgraphs[0]
    old = int(graph.outputs[place])
    new = _float_twin(graph, old, op)
    made = tfl.new_operator(model, op, version, old, new)
    vars(made).update(options)
    graph.operators = [*graph.operators, made]
    graph.outputs = [new if at == place else int(index) for at, index in enumerate(graph.outputs)]
    tfl.move_ends(model, 0, {old: new})


def _float_twin(graph: Any, index: int, op: str) -> int:
    made = tfl.copied(graph.tensors[index], f"/{op}")
    made.type = schema().TensorType.FLOAT32
    return tfl.add_tensor(graph, made)


def _quantized(tensor: Any) -> str | None:
    """Its type if it stands for real numbers."""
    scales = tensor.quantization.scale if tensor.quantization is not None else None
    kind = tfl.type_of(tensor)
    return kind if kind in QUANTIZED and scales is not None and len(scales) > 0 else None

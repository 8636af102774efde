"""`tflite-f16`: constants in 16-bit floats, half the size; the engine widens them once, when it is made.

Rules:
- each constant goes through a DEQUANTIZE of its own, as TensorFlow's converter writes it; the widened tensor keeps the
  constant's name, so that it is found where the float file has it;
- a constant that does not fit (beyond 65,504) stays in 32 bits, and so does a single number: half precision turns the 1e-7
  that guards a division into zero;
- the bodies of loops stay as they are: with constants widened there tflite-runtime 2.14 loaded an LSTM and answered wrongly;
- the float file's arithmetic stays: activations are float32.

    data = float16(float_tflite)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit_converters.formats import tflite_edit as tfl

__all__ = ["float16"]

_LARGEST = float(np.finfo(np.float16).max)
# They read buffers by themselves, or want their arguments as they stand in the file.
_LEFT = frozenset({"WHILE", "IF", "CALL", "CALL_ONCE", "VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "DEQUANTIZE"})


def float16(data: bytes, float_layers: frozenset[str] = frozenset()) -> bytes:
    """float_layers: names of layers (of their first output) whose constants stay in 32 bits."""
    model = tfl.read(data)
    _narrow(model, model.subgraphs[0], float_layers)
    tfl.compact(model)
    return tfl.write(model)


def _narrow(model: Any, graph: Any, float_layers: frozenset[str]) -> None:
    schema = tfl.schema()
    widened: list[Any] = []
    buffers: dict[int, int] = {}
    for index in _candidates(model, graph, float_layers):
        tensor = graph.tensors[index]
        values = tfl.constant(model, tensor)
        if values.size < 2 or not np.all(np.abs(values) <= _LARGEST):
            continue
        if tensor.buffer not in buffers:
            buffers[tensor.buffer] = tfl.add_constant(model, values.astype(np.float16))
        half = schema.TensorT()
        half.shape, half.shapeSignature, half.hasRank = tensor.shape, tensor.shapeSignature, tensor.hasRank
        half.type, half.name = schema.TensorType.FLOAT16, tensor.name + b"/float16"
        half.buffer = buffers[tensor.buffer]
        graph.tensors.append(half)
        tensor.buffer = 0
        operator = schema.OperatorT()
        operator.opcodeIndex = tfl.code(model, "DEQUANTIZE", 3)
        operator.inputs, operator.outputs = [len(graph.tensors) - 1], [index]
        widened.append(operator)
    graph.operators = widened + list(graph.operators)


def _candidates(model: Any, graph: Any, float_layers: frozenset[str]) -> list[int]:
    """Float constants that ordinary operators read, in the order in which they are read first."""
    found: dict[int, None] = {}
    left = {int(index) for index in graph.outputs}
    for operator in graph.operators:
        skip = tfl.op_of(model, operator) in _LEFT or tfl.layer_of(graph, operator) in float_layers
        for index in (int(index) for index in operator.inputs if index >= 0):
            tensor = graph.tensors[index]
            if tfl.type_of(tensor) == "FLOAT32" and tfl.is_constant(model, tensor):
                if skip:
                    left.add(index)
                else:
                    found[index] = None
    return [index for index in found if index not in left]

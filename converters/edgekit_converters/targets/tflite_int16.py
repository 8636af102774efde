"""What TensorFlow's quantizer leaves undone in a file with 16-bit activations and 8-bit weights.

Rules, each one a condition of the engines' kernels:
- the zero-point of every 16-bit tensor is 0; the quantizer rounds half of them to -1;
- biases have 64 bits: a bias in steps of a 16-bit activation times an 8-bit weight does not fit into 32;
- operators carry the version in which those kernels came, so that tflite-runtime 2.14 loads them too.

    finish_int16(model)         # a ModelT, in place
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit_converters.formats import tflite_edit as tfl

__all__ = ["finish_int16"]

_BIAS = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
_VERSION = {"CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7}


def finish_int16(model: Any) -> None:
    """Change the file in place."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tfl.type_of(tensor) == "INT16" and tensor.quantization is not None:
                _centre(model, tensor)
        for operator in graph.operators:
            op = tfl.op_of(model, operator)
            if op in _BIAS and tfl.type_of(graph.tensors[operator.outputs[0]]) == "INT16":
                _widen_bias(model, graph, operator, op)


def _centre(model: Any, tensor: Any) -> None:
    zero = tensor.quantization.zeroPoint
    if zero is None or not np.any(zero):
        return
    if tfl.is_constant(model, tensor):
        values = tfl.constant(model, tensor).astype(np.int32) - int(zero[0])
        tensor.buffer = tfl.add_constant(model, np.clip(values, -32768, 32767).astype(np.int16))
    tensor.quantization.zeroPoint = np.zeros_like(zero)


def _widen_bias(model: Any, graph: Any, operator: Any, op: str) -> None:
    if hasattr(operator.builtinOptions, "quantizedBiasType"):
        operator.builtinOptions.quantizedBiasType = tfl.schema().TensorType.INT64
    if op in _VERSION:
        operator.opcodeIndex = tfl.code(model, op, _VERSION[op])
    place = _BIAS[op]
    if place >= len(operator.inputs) or operator.inputs[place] < 0:
        return
    bias = graph.tensors[operator.inputs[place]]
    if tfl.type_of(bias) == "INT32":
        bias.buffer = tfl.add_constant(model, tfl.constant(model, bias).astype(np.int64))
        bias.type = tfl.schema().TensorType.INT64

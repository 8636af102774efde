"""`tflite-dynamic`: kernels in 8 bits, everything else in float; the engine quantizes activations as it goes.

Rules:
- convolutions per channel, dense layers per tensor: per channel a dense layer becomes FULLY_CONNECTED version 12, which no
  tflite-runtime loads, or, where the file says an older version, loads and answers wrongly;
- a table of embeddings is stored in 8 bits and what is looked up is dequantized;
- transposed convolutions stay in float: tflite-runtime 2.14 has no kernel for 8-bit weights beside float activations;
- small kernels stay in float: they weigh little and cost accuracy (fewer than 1,024 numbers, as TensorFlow's converter does).

    data = dynamic(float_tflite, float_layers=frozenset())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit as tfl

__all__ = ["dynamic"]

_SMALLEST = 1024


@dataclass(frozen=True)
class _Kernel:
    """place: where the operator keeps its kernel. axis: of its output channels, None for one scale for all of it.

    version: of the operator with 8-bit weights and float activations.
    """

    place: int
    axis: int | None
    version: int


_KERNELS = {
    "CONV_2D": _Kernel(1, 0, 5),
    "DEPTHWISE_CONV_2D": _Kernel(1, 3, 6),
    "FULLY_CONNECTED": _Kernel(1, None, 9),
}


def dynamic(data: bytes, float_layers: frozenset[str] = frozenset()) -> bytes:
    """float_layers: names of layers (of their first output) whose kernels stay in float."""
    model = tfl.read(data)
    for graph in model.subgraphs:
        writer = _Writer(model, graph, {})
        for operator in list(graph.operators):
            if tfl.layer_of(graph, operator) not in float_layers:
                writer.quantize(operator)
    tfl.compact(model)
    return tfl.write(model)


@dataclass
class _Writer:
    """Quantizes the kernels of one subgraph. A kernel that several operators share is written once a form.

    done: (tensor, axis) -> the tensor that holds it in 8 bits.
    """

    model: Any
    graph: Any
    done: dict[tuple[int, int | None], int]

    def quantize(self, operator: Any) -> None:
        op = tfl.op_of(self.model, operator)
        if op == "GATHER":
            self._gather(operator)
            return
        kernel = _KERNELS.get(op)
        if kernel is None or not self._takes(op, operator, kernel):
            return
        index = int(operator.inputs[kernel.place])
        tfl.set_input(operator, kernel.place, self._eight_bits(index, kernel.axis))
        operator.opcodeIndex = tfl.code(self.model, op, kernel.version)
        if op == "FULLY_CONNECTED":
            operator.builtinOptions.asymmetricQuantizeInputs = True

    def _takes(self, op: str, operator: Any, kernel: _Kernel) -> bool:
        source, weights = (self.graph.tensors[operator.inputs[place]] for place in (0, kernel.place))
        if tfl.type_of(source) != "FLOAT32" or not self._heavy(weights):
            return False
        # No engine has a kernel for grouped convolutions with 8-bit weights and float activations.
        return op != "CONV_2D" or int(source.shape[3]) == int(weights.shape[3])

    def _heavy(self, tensor: Any) -> bool:
        return (
            tfl.type_of(tensor) == "FLOAT32"
            and tfl.is_constant(self.model, tensor)
            and int(np.prod(tensor.shape)) >= _SMALLEST
        )

    def _gather(self, operator: Any) -> None:
        """Looks up in 8 bits, then dequantizes what was found into the tensor that was there before."""
        if not self._heavy(self.graph.tensors[operator.inputs[0]]):
            return
        schema = tfl.schema()
        tfl.set_input(operator, 0, self._eight_bits(int(operator.inputs[0]), None))
        operator.opcodeIndex = tfl.code(self.model, "GATHER", 2)
        table, found = self.graph.tensors[operator.inputs[0]], int(operator.outputs[0])
        small = _copy(schema, self.graph.tensors[found], "/int8")
        small.type, small.quantization = table.type, table.quantization
        self.graph.tensors.append(small)
        operator.outputs = [len(self.graph.tensors) - 1]
        back = schema.OperatorT()
        back.opcodeIndex = tfl.code(self.model, "DEQUANTIZE", 2)
        back.inputs, back.outputs = list(operator.outputs), [found]
        self.graph.operators.insert(self.graph.operators.index(operator) + 1, back)

    def _eight_bits(self, index: int, axis: int | None) -> int:
        if (index, axis) not in self.done:
            schema, tensor = tfl.schema(), self.graph.tensors[index]
            values, scales = symmetric(tfl.constant(self.model, tensor), axis)
            # The float tensor is dropped unless something else reads it, so its name is free.
            small = _copy(schema, tensor, "")
            small.type, small.buffer = schema.TensorType.INT8, tfl.add_constant(self.model, values)
            small.quantization = schema.QuantizationParametersT()
            small.quantization.scale = scales
            small.quantization.zeroPoint = np.zeros(len(scales), np.int64)
            small.quantization.quantizedDimension = axis or 0
            self.graph.tensors.append(small)
            self.done[index, axis] = len(self.graph.tensors) - 1
        return self.done[index, axis]


def symmetric(values: NDArray[Any], axis: int | None) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 of -127..127 and the scale of each index of `axis`, or the one scale of all: the largest magnitude / 127."""
    others = tuple(i for i in range(values.ndim) if i != axis)
    largest = np.abs(values).max(axis=others if axis is not None else None, keepdims=True)
    scales = np.where(largest > 0, largest / 127.0, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scales), -127, 127).astype(np.int8), scales.reshape(-1)


def _copy(schema: Any, tensor: Any, suffix: str) -> Any:
    made = schema.TensorT()
    made.shape, made.shapeSignature, made.hasRank = tensor.shape, tensor.shapeSignature, tensor.hasRank
    made.type, made.name = tensor.type, tensor.name + suffix.encode()
    return made

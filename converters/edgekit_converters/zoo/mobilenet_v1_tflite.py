"""MobileNetV1 as a .tflite file, written with the schema's own classes: no converter, no TensorFlow.

data = write(layers(), int8=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from edgekit_converters.zoo.mobilenet_v1_layers import Layer

__all__ = ["write"]

# (scale, zero-point): pictures in -1..1, what ReLU6 leaves, scores, and probabilities as every runtime wants them.
_IMAGE, _RELU6, _SCORES, _PROBABILITIES = (2 / 255, -1), (6 / 255, -128), (0.25, 0), (1 / 256, -128)
# Operation versions for float32 and int8: the first ones that can do it.
_VERSIONS = {
    "CONV_2D": (1, 3), "DEPTHWISE_CONV_2D": (1, 3), "MEAN": (1, 2), "FULLY_CONNECTED": (1, 4), "SOFTMAX": (1, 2),
}  # fmt: skip


def write(layers: Sequence[Layer], int8: bool) -> bytes:
    """Input `image` [1, 224, 224, 3], output `probabilities` [1, 1000]. Raises MissingExtraError without LiteRT."""
    try:
        from edgekit_converters.formats.tflite_edit import schema

        graph = _Graph(schema(), int8)
    except ImportError as error:
        raise MissingExtraError("litert", "MobileNetV1 as a .tflite file") from error
    *convolutions, dense = layers
    side, channels = convolutions[0].side, convolutions[0].weight.shape[3]
    here, scale = graph.activation("image", (1, side, side, channels), _IMAGE), _IMAGE[0]
    first = here
    for layer in convolutions:
        here, scale = graph.convolution(layer, here, scale), _RELU6[0]
    width = len(convolutions[-1].bias)
    pooled = graph.activation("pooled", (1, width), _RELU6)
    graph.operator("MEAN", [here, graph.constant("axes", np.array([1, 2], np.int32))], pooled, "ReducerOptions", {})
    scores = graph.activation("scores", (1, len(dense.bias)), _SCORES)
    weights = graph.weights(dense, scale)
    graph.operator("FULLY_CONNECTED", [pooled, *weights], scores, "FullyConnectedOptions", {})
    last = graph.activation("probabilities", (1, len(dense.bias)), _PROBABILITIES)
    graph.operator("SOFTMAX", [scores], last, "SoftmaxOptions", {"beta": 1.0})
    return graph.file(first, last)


@dataclass
class _Graph:
    """What was written so far. schema: the module of flatbuffer classes."""

    schema: Any
    int8: bool
    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    codes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffers.append(self.schema.BufferT())  # the one that is always empty

    def activation(self, name: str, shape: tuple[int, ...], quantization: tuple[float, int]) -> int:
        tensor = self._tensor(name, shape, "INT8" if self.int8 else "FLOAT32")
        if self.int8:
            self._quantize(tensor, np.array([quantization[0]], np.float32), quantization[1])
        return len(self.tensors) - 1

    def constant(
        self, name: str, values: NDArray[Any], scales: NDArray[np.float32] | None = None, axis: int = 0
    ) -> int:
        kinds = {"float32": "FLOAT32", "int8": "INT8", "int32": "INT32"}
        tensor = self._tensor(name, values.shape, kinds[values.dtype.name])
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)
        tensor.buffer = len(self.buffers)
        self.buffers.append(buffer)
        if scales is not None:
            self._quantize(tensor, scales, 0, axis)
        return len(self.tensors) - 1

    def weights(self, layer: Layer, input_scale: float) -> list[int]:
        """[kernel, bias]. An int8 dense layer has one scale for the whole kernel, as older runtimes want it."""
        names = f"{layer.name}/weight", f"{layer.name}/bias"
        if not self.int8:
            return [self.constant(names[0], layer.weight), self.constant(names[1], layer.bias)]
        axis = 3 if layer.kind == "depthwise" else 0
        scales = layer.scales
        weight, bias = layer.quantized(input_scale)
        if layer.kind == "dense":
            scales = np.asarray([np.abs(layer.weight).max() / 127], np.float32)
            weight = np.rint(layer.weight / scales[0]).astype(np.int8)
            bias = np.rint(layer.bias / (scales[0] * input_scale)).astype(np.int32)
        return [
            self.constant(names[0], weight, scales, axis),
            self.constant(names[1], bias, np.asarray(scales * input_scale, np.float32)),
        ]

    def convolution(self, layer: Layer, source: int, input_scale: float) -> int:
        side = layer.side // layer.stride
        kernel_and_bias = self.weights(layer, input_scale)
        made = self.activation(layer.name, (1, side, side, len(layer.bias)), _RELU6)
        options: dict[str, Any] = {
            "padding": self.schema.Padding.SAME,
            "strideW": layer.stride,
            "strideH": layer.stride,
            "fusedActivationFunction": self.schema.ActivationFunctionType.RELU6,
        }
        name, kind = "CONV_2D", "Conv2DOptions"
        if layer.kind == "depthwise":
            name, kind, options["depthMultiplier"] = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", 1
        self.operator(name, [source, *kernel_and_bias], made, kind, options)
        return made

    def operator(self, name: str, inputs: list[int], output: int, options: str, values: dict[str, Any]) -> None:
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code(name)
        operator.inputs, operator.outputs = inputs, [output]
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
        operator.builtinOptions = getattr(self.schema, f"{options}T")()
        for key, value in values.items():
            setattr(operator.builtinOptions, key, value)
        self.operators.append(operator)

    def file(self, first: int, last: int) -> bytes:
        from edgekit_converters.formats.tflite_edit import write as pack

        graph = self.schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = b"main", self.tensors, self.operators
        graph.inputs, graph.outputs = [first], [last]
        model = self.schema.ModelT()
        model.version, model.description = 3, b"MobileNetV1 1.0 224, seeded weights"
        model.operatorCodes, model.subgraphs, model.buffers = self.codes, [graph], self.buffers
        return pack(model)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name.encode(), list(shape), getattr(self.schema.TensorType, dtype)
        tensor.buffer = 0
        self.tensors.append(tensor)
        return tensor

    def _quantize(self, tensor: Any, scales: NDArray[np.float32], zero_point: int, axis: int = 0) -> None:
        tensor.quantization = self.schema.QuantizationParametersT()
        tensor.quantization.scale = [float(scale) for scale in scales]
        tensor.quantization.zeroPoint = [zero_point] * len(scales)
        tensor.quantization.quantizedDimension = axis

    def _code(self, name: str) -> int:
        number = getattr(self.schema.BuiltinOperator, name)
        for index, code in enumerate(self.codes):
            if code.builtinCode == number:
                return index
        code = self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = number
        code.version = _VERSIONS[name][self.int8]
        self.codes.append(code)
        return len(self.codes) - 1

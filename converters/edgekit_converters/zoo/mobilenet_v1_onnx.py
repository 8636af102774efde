"""MobileNetV1 as an .onnx file: float32, or with QuantizeLinear and DequantizeLinear around every product.

data = write(layers(), int8=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx import new_constant, new_node
from edgekit_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from edgekit_converters.zoo.mobilenet_v1_layers import Layer

__all__ = ["write"]

# Old enough for Debian's ONNX Runtime, new enough for a scale for each channel.
_OPSET, _IR = 13, 8
# As `onnx-int8-qdq`: activations in uint8 with a zero-point, weights in int8 around 0.
_IMAGE, _RELU6, _SCORES = (2 / 255, 127), (6 / 255, 0), (0.25, 128)


def write(layers: Sequence[Layer], int8: bool) -> bytes:
    """Input `image` float32 [1, 3, 224, 224], output `probabilities` float32 [1, 1000]. Raises MissingExtraError."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("convert", "MobileNetV1 as an .onnx file") from error
    graph = _Graph(int8)
    *convolutions, dense = layers
    side, channels = convolutions[0].side, convolutions[0].weight.shape[3]
    here, scale = graph.quantized("image", _IMAGE), _IMAGE[0]
    for layer in convolutions:
        here, scale = graph.convolution(layer, here, scale), _RELU6[0]
    here = graph.quantized(graph.node("GlobalAveragePool", [here], "averaged"), _RELU6)
    here = graph.node("Flatten", [here], "pooled")
    weights = graph.weights(dense, scale)
    here = graph.quantized(graph.node("Gemm", [here, *weights], "scores", transB=1), _SCORES)
    graph.node("Softmax", [here], "probabilities", axis=1)
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    made = onnx.helper.make_graph(
        graph.nodes,
        "mobilenet_v1",
        [value("image", kind, [1, channels, side, side])],
        [value("probabilities", kind, [1, len(dense.bias)])],
        graph.constants,
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR)
    return bytes(model.SerializeToString(deterministic=True))


@dataclass
class _Graph:
    int8: bool
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(new_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(new_constant(name, np.ascontiguousarray(values)))
        return name

    def quantized(self, name: str, quantization: tuple[float, int]) -> str:
        """The tensor through uint8, or itself in float32."""
        if not self.int8:
            return name
        scale = self.constant(f"{name}/scale", np.array(quantization[0], np.float32))
        zero = self.constant(f"{name}/zero", np.array(quantization[1], np.uint8))
        stored = self.node("QuantizeLinear", [name, scale, zero], f"{name}/stored")
        return self.node("DequantizeLinear", [stored, scale, zero], f"{name}/real")

    def weights(self, layer: Layer, input_scale: float) -> list[str]:
        names = f"{layer.name}/weight", f"{layer.name}/bias"
        if not self.int8:
            return [self.constant(names[0], _turned(layer, layer.weight)), self.constant(names[1], layer.bias)]
        weight, bias = layer.quantized(input_scale)
        scales = layer.scales
        return [
            self._stored(names[0], _turned(layer, weight), scales),
            self._stored(names[1], bias, np.asarray(scales * input_scale, np.float32)),
        ]

    def _stored(self, name: str, values: NDArray[Any], scales: NDArray[np.float32]) -> str:
        stored = self.constant(f"{name}/stored", values)
        scale = self.constant(f"{name}/scale", scales)
        zero = self.constant(f"{name}/zero", np.zeros(len(scales), values.dtype))
        return self.node("DequantizeLinear", [stored, scale, zero], name, axis=0)

    def convolution(self, layer: Layer, source: str, input_scale: float) -> str:
        kernel = layer.weight.shape[1]
        before = (
            kernel // 2 if layer.stride == 1 else 0
        )  # TensorFlow's SAME of an even side, as the .tflite file has it
        pads = [before, before, kernel // 2, kernel // 2]
        made = self.node(
            "Conv",
            [source, *self.weights(layer, input_scale)],
            f"{layer.name}/sum",
            strides=[layer.stride] * 2,
            pads=pads,
            kernel_shape=[kernel] * 2,
            group=layer.weight.shape[3] if layer.kind == "depthwise" else 1,
        )
        if self.int8:  # 0 to 6 is what the 8 bits hold, so that rounding to them is the activation, too
            return self.quantized(made, _RELU6)
        return self.node("Clip", [made, self._bound("zero", 0.0), self._bound("six", 6.0)], layer.name)

    def _bound(self, name: str, value: float) -> str:
        if all(constant.name != name for constant in self.constants):
            self.constant(name, np.array(value, np.float32))
        return name


def _turned(layer: Layer, weight: NDArray[Any]) -> NDArray[Any]:
    """As ONNX keeps it: [out, in, height, width], depthwise [out, 1, height, width]."""
    if layer.kind == "dense":
        return weight
    return weight.transpose(3, 0, 1, 2) if layer.kind == "depthwise" else weight.transpose(0, 3, 1, 2)

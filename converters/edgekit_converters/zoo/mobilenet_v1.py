"""MobileNetV1 1.0 at 224x224 with seeded weights: the network that anchors time.

    files = anchor_files(Path("anchors"))              # {"mobilenet_v1-int8.tflite": Path(...), ...}, written once
    data = anchor_model("tflite", "int8")              # the same bytes on every machine

Rules:
- the network is the paper's (Howard et al., 2017), 569 million multiply-accumulates, batch normalisation folded in; its
  answers mean nothing, and its time does not depend on the weights;
- the files are written tensor by tensor, without a converter, in a second, in operation versions that every runtime of
  `wheels.toml` has;
- float32, and int8 from end to end with a scale for each output channel, as in `tflite-int8` and `onnx-int8-qdq`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit
from edgekit_converters.formats.grid import symmetric
from edgekit_converters.formats.onnx_file import new_constant, new_node
from edgekit_converters.formats.tflite_file import schema
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime.system.errors import MissingExtraError
from edgekit_runtime.system.files import write_cache

ANCHOR_SIDE = 224
_SEED = 1704_04861
"""The paper's number on arXiv."""
_CLASSES = 1000
_PLAN = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]


@dataclass(frozen=True)
class MobilenetLayer:
    """A layer with its float weights.

    weight: float32 [out, height, width, in], depthwise [1, height, width, out], dense [out, in].
    bias: float32 [out].
    side: of the input.
    """

    name: str
    kind: Literal["conv", "depthwise", "dense"]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: int
    side: int

    @property
    def channels_axis(self) -> int:
        return 3 if self.kind == "depthwise" else 0

    def quantized(self, input_scale: float, axis: int | None) -> list[tuple[NDArray[Any], NDArray[np.float32]]]:
        """Weights in int8 and the bias in int32, each with a scale for an index, or one."""
        weight, scales = symmetric(self.weight, axis)
        scales = scales.reshape(-1)
        products = np.asarray(scales * input_scale, np.float32)
        return [(weight, scales), (np.rint(self.bias / products).astype(np.int32), products)]


def layers() -> list[MobilenetLayer]:
    """Stem, thirteen pairs of depthwise and 1x1, and the dense layer."""
    random = np.random.Generator(np.random.PCG64(_SEED))

    def weight(*shape: int, fan_in: int) -> NDArray[np.float32]:
        # Uniform, from the raw stream: the methods that shape it otherwise may change with NumPy's version.
        drawn = random.random(shape) * 2 - 1
        return np.asarray(drawn * np.sqrt(6 / fan_in), np.float32)

    def bias(count: int) -> NDArray[np.float32]:
        return np.asarray(random.random(count) * 0.2 - 0.1, np.float32)

    side, channels = ANCHOR_SIDE, 32
    found = [MobilenetLayer("stem", "conv", weight(32, 3, 3, 3, fan_in=27), bias(32), 2, side)]
    side //= 2
    for number, (width, stride) in enumerate(_PLAN, start=1):
        kernel = weight(1, 3, 3, channels, fan_in=9)
        found.append(MobilenetLayer(f"depthwise_{number}", "depthwise", kernel, bias(channels), stride, side))
        side //= stride
        kernel = weight(width, 1, 1, channels, fan_in=channels)
        found.append(MobilenetLayer(f"pointwise_{number}", "conv", kernel, bias(width), 1, side))
        channels = width
    kernel = weight(_CLASSES, channels, fan_in=channels)
    return [*found, MobilenetLayer("classifier", "dense", kernel, bias(_CLASSES), 1, 1)]


FORMATS = ("tflite", "onnx")
PRECISIONS = ("float32", "int8")


def anchor_name(format: str, precision: str) -> str:  # noqa: A002
    """The file's name on a board: `mobilenet_v1-int8.tflite`."""
    return f"mobilenet_v1-{precision}.{format}"


@cache
def anchor_model(format: str, precision: str) -> bytes:  # noqa: A002
    """The file. format: `tflite` or `onnx`; precision: `float32` or `int8`.

    Raises MissingExtraError if the format's library (LiteRT's schema, onnx) is not installed.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"an anchor is float32 or int8, not {precision}")
    if format == "tflite":
        return write_tflite(layers(), precision == "int8")
    if format == "onnx":
        return write_onnx(layers(), precision == "int8")
    raise ValueError(f"an anchor is tflite or onnx, not {format}")


def anchor_files(folder: Path, formats: Sequence[str] = ("tflite",)) -> dict[str, Path]:
    """The files of both precisions in `folder`, by name, written if missing; 21 MB a format.

    Raises ConversionError if the folder cannot be written, and as `anchor_model`.
    """
    found = {}
    for form in formats:
        for precision in PRECISIONS:
            path = folder / anchor_name(form, precision)
            if not path.exists():
                data = anchor_model(form, precision)
                try:
                    write_cache(path, [data])
                except OSError as error:
                    raise ConversionError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
            found[path.name] = path
    return found


# Old enough for Debian's ONNX Runtime, new enough for a scale for each channel.
_OPSET, _IR = 13, 8
# As `onnx-int8-qdq`: activations in uint8 with a zero-point, weights in int8 around 0.
_ONNX_IMAGE, _ONNX_RELU6, _ONNX_SCORES = (2 / 255, 127), (6 / 255, 0), (0.25, 128)


def write_onnx(layers: Sequence[MobilenetLayer], int8: bool) -> bytes:
    """Input `image` float32 [1, 3, 224, 224], output `probabilities` float32 [1, 1000].

    Raises MissingExtraError.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("convert", "MobileNetV1 as an .onnx file") from error
    graph = _OnnxGraph(int8)
    *convolutions, dense = layers
    side, channels = convolutions[0].side, convolutions[0].weight.shape[3]
    here, scale = graph.quantized("image", _ONNX_IMAGE), _ONNX_IMAGE[0]
    for layer in convolutions:
        here, scale = graph.convolution(layer, here, scale), _ONNX_RELU6[0]
    here = graph.quantized(graph.node("GlobalAveragePool", [here], "averaged"), _ONNX_RELU6)
    here = graph.node("Flatten", [here], "pooled")
    weights = graph.weights(dense, scale)
    here = graph.quantized(graph.node("Gemm", [here, *weights], "scores", transB=1), _ONNX_SCORES)
    graph.node("Softmax", [here], "probabilities", axis=1)
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    ends = [value("image", kind, [1, channels, side, side])], [value("probabilities", kind, [1, len(dense.bias)])]
    made = onnx.helper.make_graph(graph.nodes, "mobilenet_v1", *ends, graph.constants)
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR)
    return bytes(model.SerializeToString(deterministic=True))


@dataclass
class _OnnxGraph:
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

    def weights(self, layer: MobilenetLayer, input_scale: float) -> list[str]:
        names = f"{layer.name}/weight", f"{layer.name}/bias"
        if not self.int8:
            return [self.constant(names[0], _transposed(layer, layer.weight)), self.constant(names[1], layer.bias)]
        (weight, scales), bias = layer.quantized(input_scale, layer.channels_axis)
        return [self._stored(names[0], _transposed(layer, weight), scales), self._stored(names[1], *bias)]

    def _stored(self, name: str, values: NDArray[Any], scales: NDArray[np.float32]) -> str:
        stored = self.constant(f"{name}/stored", values)
        scale = self.constant(f"{name}/scale", scales)
        zero = self.constant(f"{name}/zero", np.zeros(len(scales), values.dtype))
        return self.node("DequantizeLinear", [stored, scale, zero], name, axis=0)

    def convolution(self, layer: MobilenetLayer, source: str, input_scale: float) -> str:
        kernel = layer.weight.shape[1]
        before = kernel // 2 if layer.stride == 1 else 0  # TensorFlow's SAME of an even side
        group = layer.weight.shape[3] if layer.kind == "depthwise" else 1
        pads, sides = [before, before, kernel // 2, kernel // 2], [kernel] * 2
        inputs = [source, *self.weights(layer, input_scale)]
        made = self.node(
            "Conv", inputs, f"{layer.name}/sum", strides=[layer.stride] * 2, pads=pads, kernel_shape=sides, group=group
        )
        if self.int8:  # 0 to 6 is what the 8 bits hold, so that rounding to them is the activation, too
            return self.quantized(made, _ONNX_RELU6)
        return self.node("Clip", [made, self._bound("zero", 0.0), self._bound("six", 6.0)], layer.name)

    def _bound(self, name: str, value: float) -> str:
        if all(constant.name != name for constant in self.constants):
            self.constant(name, np.array(value, np.float32))
        return name


def _transposed(layer: MobilenetLayer, weight: NDArray[Any]) -> NDArray[Any]:
    """In ONNX's axes: [out, in, height, width], depthwise [out, 1, height, width]."""
    if layer.kind == "dense":
        return weight
    return weight.transpose(3, 0, 1, 2) if layer.kind == "depthwise" else weight.transpose(0, 3, 1, 2)


# (scale, zero-point): pictures in -1..1, what ReLU6 leaves, scores, and probabilities as every runtime wants them.
_IMAGE, _RELU6, _SCORES, _PROBABILITIES = (2 / 255, -1), (6 / 255, -128), (0.25, 0), (1 / 256, -128)
# Operation versions for float32 and int8: the first ones that can do it.
_VERSIONS = {
    "CONV_2D": (1, 3), "DEPTHWISE_CONV_2D": (1, 3), "MEAN": (1, 2), "FULLY_CONNECTED": (1, 4), "SOFTMAX": (1, 2),
}  # fmt: skip


def write_tflite(layers: Sequence[MobilenetLayer], int8: bool) -> bytes:
    """Input `image` [1, 224, 224, 3], output `probabilities` [1, 1000].

    Raises MissingExtraError without LiteRT.
    """
    try:
        graph = _TfliteGraph(int8)
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


class _TfliteGraph:
    """What was written so far."""

    def __init__(self, int8: bool) -> None:
        self.int8, self.schema = int8, schema()
        self.graph, self.model = self.schema.SubGraphT(), self.schema.ModelT()
        self.graph.name, self.graph.tensors, self.graph.operators = b"main", [], []
        self.model.version, self.model.description = 3, b"MobileNetV1 1.0 224, seeded weights"
        self.model.operatorCodes, self.model.subgraphs = [], [self.graph]
        self.model.buffers = [self.schema.BufferT()]  # the one that is always empty

    def activation(self, name: str, shape: tuple[int, ...], quantization: tuple[float, int]) -> int:
        tensor = self._tensor(name, shape, "INT8" if self.int8 else "FLOAT32")
        if self.int8:
            scale, zero = quantization
            tensor.quantization = tflite_edit.quantization(np.array([scale], np.float32))
            tensor.quantization.zeroPoint[:] = zero
        return tflite_edit.add_tensor(self.graph, tensor)

    def constant(
        self, name: str, values: NDArray[Any], scales: NDArray[np.float32] | None = None, axis: int = 0
    ) -> int:
        tensor = self._tensor(name, values.shape, values.dtype.name.upper())
        tensor.buffer = tflite_edit.add_constant(self.model, values)
        if scales is not None:
            tensor.quantization = tflite_edit.quantization(scales, axis)
        return tflite_edit.add_tensor(self.graph, tensor)

    def weights(self, layer: MobilenetLayer, input_scale: float) -> list[int]:
        """[kernel, bias]; an int8 dense layer has one scale for its kernel, for older runtimes."""
        names = f"{layer.name}/weight", f"{layer.name}/bias"
        if not self.int8:
            return [self.constant(names[0], layer.weight), self.constant(names[1], layer.bias)]
        weight, bias = layer.quantized(input_scale, None if layer.kind == "dense" else layer.channels_axis)
        return [self.constant(names[0], *weight, layer.channels_axis), self.constant(names[1], *bias)]

    def convolution(self, layer: MobilenetLayer, source: int, input_scale: float) -> int:
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
        operator.opcodeIndex = tflite_edit.code(self.model, name, _VERSIONS[name][self.int8])
        operator.inputs, operator.outputs = inputs, [output]
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
        operator.builtinOptions = getattr(self.schema, f"{options}T")()
        for key, value in values.items():
            setattr(operator.builtinOptions, key, value)
        self.graph.operators.append(operator)

    def file(self, first: int, last: int) -> bytes:
        self.graph.inputs, self.graph.outputs = [first], [last]
        return tflite_edit.write(self.model)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name.encode(), list(shape), getattr(self.schema.TensorType, dtype)
        return tensor

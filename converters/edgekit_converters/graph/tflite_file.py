"""The flatbuffer of a .tflite file: its main subgraph as plain values, and its constants as arrays that can be rewritten.

file = read(data)
stored(data, file.tensors[3])           # the array as it stands in the file
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.graph.graph import Window
from edgekit_converters.graph.reading import Affine

__all__ = ["DTYPES", "QUANTIZED", "File", "Operator", "Tensor", "overwrite", "parted", "read", "stored"]

FLOATS = frozenset({"FLOAT32", "FLOAT16", "BFLOAT16", "FLOAT64"})
QUANTIZED = frozenset({"INT8", "UINT8", "INT16"})
DTYPES: dict[str, Any] = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}


@dataclass(frozen=True)
class Tensor:
    """name: unique. constant: its values stand in the file. affine: how its integers stand for floats."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    constant: bool
    affine: Affine | None

    @property
    def once_float(self) -> bool:
        return self.dtype in FLOATS or (self.dtype in QUANTIZED and self.affine is not None)


@dataclass(frozen=True)
class Operator:
    """transposed: of a matrix product, whether its second operand is. window, fused: as in `Layer`."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    transposed: bool = False
    window: Window | None = None
    fused: str | None = None


@dataclass(frozen=True)
class File:
    """The main subgraph. aliases: tensor -> the constant that it equals. folded: tensors known before anything runs."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: Mapping[int, int]
    folded: frozenset[int]


def read(data: bytes) -> File:
    """Raises ConversionError when the bytes are no TFLite model."""
    if data[4:8] != b"TFL3":
        raise ConversionError("these bytes are not a TFLite model")
    from ai_edge_litert import schema_py_generated as schema

    try:
        model = schema.Model.GetRootAs(data, 0)
        main = model.Subgraphs(0)
        tensors = _tensors(schema, model, main)
        operators = tuple(_operators(schema, model, main, tensors))
        inputs = tuple(int(main.Inputs(index)) for index in range(main.InputsLength()))
        outputs = tuple(int(main.Outputs(index)) for index in range(main.OutputsLength()))
    except (struct.error, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ConversionError(f"the TFLite model cannot be read: {error}") from error
    folded = {index for index, tensor in enumerate(tensors) if tensor.constant}
    aliases: dict[int, int] = {}
    for operator in operators:
        if operator.inputs and operator.op != "CALL_ONCE" and all(i < 0 or i in folded for i in operator.inputs):
            folded.update(operator.outputs)
            if operator.op in ("DEQUANTIZE", "DENSIFY") and tensors[operator.inputs[0]].constant:
                aliases[operator.outputs[0]] = operator.inputs[0]
    return File(tensors, operators, inputs, outputs, aliases, frozenset(folded))


def _tensors(schema: Any, model: Any, main: Any) -> tuple[Tensor, ...]:
    types = _named(schema.TensorType)
    tensors: list[Tensor] = []
    taken: set[str] = set()
    for index in range(main.TensorsLength()):
        tensor = main.Tensors(index)
        name = (tensor.Name() or b"").decode("utf-8", "replace")
        name = name if name and name not in taken else f"{name}#{index}"
        taken.add(name)
        buffer = model.Buffers(tensor.Buffer())
        shape = tuple(int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength()))
        constant = tensor.Buffer() > 0 and (buffer.DataLength() > 0 or buffer.Size() > 1)
        dtype = types.get(tensor.Type(), "?")
        tensors.append(Tensor(name, dtype, shape, int(tensor.Buffer()), constant, _affine(tensor.Quantization())))
    return tuple(tensors)


def _affine(quantization: Any) -> Affine | None:
    if quantization is None or quantization.ScaleLength() == 0:
        return None
    zero = quantization.ZeroPointAsNumpy() if quantization.ZeroPointLength() else np.zeros(1)
    axis = int(quantization.QuantizedDimension())
    return Affine(np.asarray(quantization.ScaleAsNumpy(), np.float32), np.asarray(zero, np.int64), axis)


def _operators(schema: Any, model: Any, main: Any, tensors: tuple[Tensor, ...]) -> Iterator[Operator]:
    names = _named(schema.BuiltinOperator)
    activations = {value: name.lower() for value, name in _named(schema.ActivationFunctionType).items() if value}
    kinds = _named(schema.BuiltinOptions)
    for index in range(main.OperatorsLength()):
        operator = main.Operators(index)
        code = model.OperatorCodes(operator.OpcodeIndex())
        name = names.get(max(code.DeprecatedBuiltinCode(), code.BuiltinCode()), "?")
        custom = code.CustomCode()
        options = _options(schema, operator, kinds.get(operator.BuiltinOptionsType(), ""))
        inputs = tuple(int(operator.Inputs(place)) for place in range(operator.InputsLength()))
        outputs = tuple(int(operator.Outputs(place)) for place in range(operator.OutputsLength()))
        yield Operator(
            custom.decode("utf-8", "replace") if custom else name,
            inputs,
            outputs,
            bool(options.AdjY()) if name == "BATCH_MATMUL" and options is not None else False,
            _window(name, options, tensors, inputs),
            activations.get(options.FusedActivationFunction()) if hasattr(options, "FusedActivationFunction") else None,
        )


def _named(constants: Any) -> dict[int, str]:
    return {value: name for name, value in vars(constants).items() if isinstance(value, int)}


def _options(schema: Any, operator: Any, kind: str) -> Any:
    table = operator.BuiltinOptions()
    if table is None or not hasattr(schema, kind):
        return None
    options = getattr(schema, kind)()
    options.Init(table.Bytes, table.Pos)
    return options


def _window(name: str, options: Any, tensors: tuple[Tensor, ...], inputs: tuple[int, ...]) -> Window | None:
    if name not in ("CONV_2D", "DEPTHWISE_CONV_2D") or options is None:
        return None
    source, kernel = tensors[inputs[0]].shape, tensors[inputs[1]].shape
    if len(source) != 4 or len(kernel) != 4:
        return None
    strides = (int(options.StrideH()), int(options.StrideW()))
    dilations = (int(options.DilationHFactor()), int(options.DilationWFactor()))
    # SAME: as many outputs as ceil(input / stride); an odd row or column of zeros goes to the end.
    pads = [(0, 0), (0, 0)]
    if options.Padding() == 0:
        for axis in (0, 1):
            reach = (kernel[1 + axis] - 1) * dilations[axis] + 1
            outputs = -(-source[1 + axis] // strides[axis])
            whole = max((outputs - 1) * strides[axis] + reach - source[1 + axis], 0)
            pads[axis] = (whole // 2, whole - whole // 2)
    groups = source[3] if name == "DEPTHWISE_CONV_2D" else source[3] // max(kernel[3], 1)
    around = (pads[0][0], pads[1][0], pads[0][1], pads[1][1])
    return Window((kernel[1], kernel[2]), strides, dilations, around, groups, channels_last=True)


def _bytes(data: bytes | bytearray, buffer: int) -> NDArray[np.uint8]:
    """A view of a buffer; of a bytearray it can be written. Files over 2 GB keep buffers behind the flatbuffer."""
    from ai_edge_litert import schema_py_generated as schema

    table = schema.Model.GetRootAs(data, 0).Buffers(buffer)
    if table.Size() > 1:
        return np.frombuffer(data, np.uint8, table.Size(), table.Offset())
    found: NDArray[np.uint8] = table.DataAsNumpy()
    return found


def stored(data: bytes | bytearray, tensor: Tensor) -> NDArray[Any]:
    """A constant as it stands in the file, mostly a view of it. Raises KeyError for a type without an array's."""
    raw = _bytes(data, tensor.buffer)
    if tensor.dtype == "INT4":  # two in a byte, the first in the low half
        halves = np.stack([raw << 4, raw & 0xF0], axis=-1).view(np.int8) >> 4
        return np.asarray(halves.reshape(-1)[: int(np.prod(tensor.shape))].reshape(tensor.shape))
    if tensor.dtype == "BFLOAT16":
        return np.asarray((raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape))
    if tensor.dtype not in DTYPES:
        raise KeyError(tensor.name)
    return np.asarray(raw.view(DTYPES[tensor.dtype]).reshape(tensor.shape))


def overwrite(data: bytearray, tensor: Tensor, values: NDArray[Any]) -> None:
    """Puts floats or the file's own integers in the constant's place. Raises ValueError for another shape."""
    if values.shape != tensor.shape:
        raise ValueError(f"'{tensor.name}' has shape {tensor.shape}, not {values.shape}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"'{tensor.name}' is {tensor.dtype}, which is not written")
    dtype = np.dtype(DTYPES[tensor.dtype])
    if tensor.affine is not None and dtype.kind in "iu" and values.dtype.kind == "f":
        values = tensor.affine.to_integer(values, dtype)
    _bytes(data, tensor.buffer)[:] = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)


def parted(data: bytes) -> bytes:
    """The same model with a buffer for each constant, so that writing one leaves the others."""
    import flatbuffers  # type: ignore[import-untyped]
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(data, 0)
    taken: set[int] = set()
    for tensor in (tensor for subgraph in model.subgraphs for tensor in subgraph.tensors):
        buffer = model.buffers[tensor.buffer]
        if buffer.data is None or len(buffer.data) == 0:
            continue
        if tensor.buffer in taken:
            copy = schema.BufferT()
            copy.data = buffer.data
            model.buffers.append(copy)
            tensor.buffer = len(model.buffers) - 1
        taken.add(tensor.buffer)
    builder = flatbuffers.Builder(len(data) + 1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())

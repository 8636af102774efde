"""A .tflite file as plain values: subgraphs, tensors, operators, signatures, constants.

    file = read(data)
    stored_values(data, file.main.tensors[3])          # the array as the file has it

Rules:
- tensors keep the file's names; one without a name, or with that of an earlier one of its subgraph, gets `#index`
  behind it;
- a custom operator has its own name, and a built-in one that the installed schema does not know its number;
- an index that names no tensor makes the file damaged; an input that is left out is -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.grid import AffineGrid
from edgekit_converters.recipe.conversion_errors import ConversionError

FLOATS = frozenset({"FLOAT32", "FLOAT16", "BFLOAT16", "FLOAT64"})
QUANTIZED = frozenset({"INT8", "UINT8", "INT16"})
DTYPES: dict[str, Any] = {
    **{name: np.dtype(name.lower()) for name in ("FLOAT32", "FLOAT16", "FLOAT64", "INT8", "UINT8")},
    **{name: np.dtype(name.lower()) for name in ("INT16", "INT32", "INT64", "BOOL")},
}
_CLAIM = b"min_runtime_version"


@dataclass(frozen=True)
class Tensor:
    """One tensor of a subgraph.
    name: unique in its subgraph.
    label: the name in the file, which may be empty or another's too.
    signature: `shape` with -1 for axes that are only known at run time, empty if the file has none.
    nbytes: of its values in the file.
    affine: what its integers stand for.
    variable: whether it keeps its values between two runs."""

    name: str
    label: str
    dtype: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    buffer: int
    nbytes: int
    affine: AffineGrid | None
    variable: bool

    @property
    def constant(self) -> bool:
        return self.buffer > 0 and self.nbytes > 0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def fixed(self) -> bool:
        """Whether all axes but the first are known before a run."""
        return all(side >= 0 for side in self.signature[1:])

    @property
    def once_float(self) -> bool:
        return self.dtype in FLOATS or (self.dtype in QUANTIZED and self.affine is not None)


@dataclass(frozen=True)
class Operator:
    """One operator.
    strides, dilations: of a 2-D convolution, (vertical, horizontal).
    same: whether its zeros make as many outputs as inputs a stride.
    transposed: of a matrix product, whether its second operand is.
    fused: the activation that the operator itself carries out, in lower case.
    loop: of a WHILE, the subgraphs of its condition and its body."""

    op: str
    version: int
    custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    same: bool = False
    transposed: bool = False
    fused: str | None = None
    loop: tuple[int, int] | None = None


@dataclass(frozen=True)
class Subgraph:
    """inputs, outputs: indexes of tensors."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @cached_property
    def folded(self) -> frozenset[int]:
        """Tensors known before a run: constants, and what depends on constants alone."""
        found = {index for index, tensor in enumerate(self.tensors) if tensor.constant}
        for operator in self.operators:
            if operator.inputs and operator.op != "CALL_ONCE" and all(i < 0 or i in found for i in operator.inputs):
                found.update(operator.outputs)
        return frozenset(found)

    @cached_property
    def aliases(self) -> Mapping[int, int]:
        """Tensor -> the constant that it is, dequantized or unpacked."""
        return {
            operator.outputs[0]: operator.inputs[0]
            for operator in self.operators
            if operator.op in ("DEQUANTIZE", "DENSIFY")
            and any(index in self.folded and self.tensors[index].constant for index in operator.inputs[:1])
        }


@dataclass(frozen=True)
class Signature:
    """names: index of a tensor -> its name for callers."""

    key: str
    subgraph: int
    names: Mapping[int, str]


@dataclass(frozen=True)
class TfliteFile:
    """claimed: the `min_runtime_version` in its metadata."""

    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]
    claimed: str | None

    @property
    def main(self) -> Subgraph:
        return self.subgraphs[0]


def schema() -> Any:
    """Import the flatbuffer classes, which come with LiteRT."""
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


@cache
def names(enum: str) -> dict[int, str]:
    """Return value -> name of an enum such as TensorType or BuiltinOperator."""
    return {value: name for name, value in vars(getattr(schema(), enum)).items() if isinstance(value, int)}


def read_model(data: bytes) -> Any:
    """Read a file into the schema's `ModelT`. Raises ConversionError for other bytes."""
    if data[4:8] != b"TFL3":
        raise ConversionError("these bytes are not a TFLite model")
    kind = schema().ModelT  # outside: a package that is missing is not the file's fault
    try:
        return kind.InitFromPackedBuf(data, 0)
    except Exception as error:  # struct.error, IndexError, ValueError, ... from generated code
        raise ConversionError(f"the TFLite model cannot be read: {error}") from error


def read(data: bytes) -> TfliteFile:
    """Parse a .tflite file. Raises ConversionError for other bytes."""
    model = read_model(data)
    try:
        codes = []  # name, version, and whether it is not a built-in operator
        for entry in model.operatorCodes or ():
            # Codes up to 127 stand in the older field, all of them in the newer; the larger is right either way.
            number = max(entry.deprecatedBuiltinCode, entry.builtinCode)
            name = names("BuiltinOperator").get(number, f"operator {number}")
            codes.append((_text(entry.customCode) or name, entry.version, bool(entry.customCode) or name == "CUSTOM"))
        subgraphs = [_subgraph(model, graph, codes) for graph in model.subgraphs or ()]
        if not subgraphs:
            raise ValueError("it has no subgraph")
        signatures = []
        for entry in model.signatureDefs or ():
            called = {int(end.tensorIndex): _text(end.name) for end in (*(entry.inputs or ()), *(entry.outputs or ()))}
            signatures.append(Signature(_text(entry.signatureKey), int(entry.subgraphIndex), called))
        return TfliteFile(tuple(subgraphs), tuple(signatures), _claimed(model))
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise ConversionError(f"the TFLite model cannot be read: {error}") from error


def stored_values(data: bytes | bytearray, tensor: Tensor) -> NDArray[Any]:
    """Return a constant as stored, mostly a view. Raises KeyError for unknown types."""
    raw = raw_bytes(data, tensor)
    if tensor.dtype == "INT4":  # two in a byte, the first in the low half
        halves = np.stack([raw << 4, raw & 0xF0], axis=-1).view(np.int8) >> 4
        return np.asarray(halves.reshape(-1)[: tensor.elements].reshape(tensor.shape))
    if tensor.dtype == "BFLOAT16":
        return np.asarray((raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape))
    if tensor.dtype not in DTYPES:
        raise KeyError(tensor.name)
    return np.asarray(raw.view(DTYPES[tensor.dtype]).reshape(tensor.shape))


def overwrite(data: bytearray, tensor: Tensor, values: NDArray[Any]) -> None:
    """Overwrite a constant with floats or the file's integers. Raises ValueError."""
    if values.shape != tensor.shape:
        raise ValueError(f"'{tensor.name}' has shape {tensor.shape}, not {values.shape}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"'{tensor.name}' is {tensor.dtype}, which is not written")
    dtype = np.dtype(DTYPES[tensor.dtype])
    if tensor.affine is not None and dtype.kind in "iu" and values.dtype.kind == "f":
        values = tensor.affine.to_integer(values, dtype)
    raw_bytes(data, tensor)[:] = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)


def raw_bytes(data: bytes | bytearray, tensor: Tensor) -> NDArray[np.uint8]:
    """Return a view of a constant, writable for a bytearray.
    Files over 2 GB keep buffers behind the flatbuffer."""
    table = schema().Model.GetRootAs(data, 0).Buffers(tensor.buffer)
    if table.Size() > 1:
        return np.frombuffer(data, np.uint8, table.Size(), table.Offset())
    found: NDArray[np.uint8] = table.DataAsNumpy()
    return found


def _subgraph(model: Any, graph: Any, codes: list[tuple[str, int, bool]]) -> Subgraph:
    tensors: list[Tensor] = []
    taken: set[str] = set()
    for index, tensor in enumerate(graph.tensors or ()):
        label, buffer, affine = _text(tensor.name), model.buffers[tensor.buffer], None
        quantization = tensor.quantization
        if quantization is not None and _ints(quantization.scale):
            scale, zero = np.asarray(quantization.scale, np.float32), _ints(quantization.zeroPoint) or (0,)
            affine = AffineGrid(scale, np.array(zero, np.int64), int(quantization.quantizedDimension))
        tensors.append(
            Tensor(
                name=label if label and label not in taken else f"{label}#{index}",
                label=label,
                dtype=names("TensorType").get(tensor.type, "?"),
                shape=_ints(tensor.shape),
                signature=_ints(tensor.shapeSignature),
                buffer=int(tensor.buffer),
                nbytes=int(buffer.size if buffer.size > 1 else 0 if buffer.data is None else len(buffer.data)),
                affine=affine,
                variable=bool(tensor.isVariable),
            )
        )
        taken.add(tensors[-1].name)
    operators = tuple(_operator(operator, *codes[operator.opcodeIndex]) for operator in graph.operators or ())
    inputs, outputs = _ints(graph.inputs), _ints(graph.outputs)
    optional = {index for operator in operators for index in operator.inputs if index != -1}
    for index in (*inputs, *outputs, *optional, *(index for operator in operators for index in operator.outputs)):
        if not 0 <= index < len(tensors):
            raise ValueError(f"there is no tensor {index}")
    return Subgraph(tuple(tensors), operators, inputs, outputs)


def _operator(operator: Any, op: str, version: int, custom: bool) -> Operator:
    options = operator.builtinOptions
    sliding = op in ("CONV_2D", "DEPTHWISE_CONV_2D") and options is not None
    fused = getattr(options, "fusedActivationFunction", 0)
    return Operator(
        op,
        version,
        custom,
        _ints(operator.inputs),
        _ints(operator.outputs),
        strides=(options.strideH, options.strideW) if sliding else (1, 1),
        dilations=(options.dilationHFactor, options.dilationWFactor) if sliding else (1, 1),
        same=sliding and options.padding == 0,
        transposed=op == "BATCH_MATMUL" and options is not None and options.adjY,
        fused=names("ActivationFunctionType").get(fused, "").lower() or None if fused else None,
        loop=(options.condSubgraphIndex, options.bodySubgraphIndex) if op == "WHILE" and options else None,
    )


def _claimed(model: Any) -> str | None:
    for entry in model.metadata or ():
        if entry.name == _CLAIM:
            values = model.buffers[entry.buffer].data
            text = b"" if values is None else bytes(values)
            return text.rstrip(b"\0").decode("ascii", "replace") or None
    return None


def _ints(array: Any) -> tuple[int, ...]:
    """Return a vector's numbers, () if absent."""
    return () if array is None else tuple(np.asarray(array).tolist())


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")

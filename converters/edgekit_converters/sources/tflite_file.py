"""A .tflite file as an original: what is refused in it, and its edits.

Rules: a float model (what is already quantized has lost what a comparison needs) without a state inside, except where the
file is to be packed as it is; built-in operators only; float16 weights become float32, so that every recipe finds the same kind of file.

    file = read(Path("net.tflite"))
    file.inputs                     # [(name, tensor index)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError, SourceError, one_line
from edgekit_converters.formats import tflite
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.sources.shapes import check_finite
from edgekit_runtime.errors import MissingExtraError
from edgekit_runtime.modelfile.check import DELEGATED

__all__ = ["TfliteFile", "read", "with_shapes"]

_AS_IS = "or pack the file as it is, with nothing measured: --recipe tflite-as-is"
_MADE_FROM = f"Pass the float model that it was made from: the Keras, SavedModel, ONNX or float .tflite file; {_AS_IS}"
_STATEFUL = frozenset(["VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "CALL_ONCE"])
_WEIGHTED = frozenset(
    ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "CONV_3D", "BATCH_MATMUL", "PRELU"]
)
_NARROW = frozenset(["INT8", "UINT8", "INT4", "INT2", "INT16"])


@dataclass(frozen=True)
class TfliteFile:
    """data: the float32 file. names: tensor's name -> the signature's, where the file has a signature. shapes: of inputs,
    by tensor, -1 where the file leaves an axis free. halved: how many weights were float16. stateful: operators that keep a
    state inside.
    """

    data: bytes
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    halved: int
    stateful: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def read(path: Path, *, as_is: bool = False) -> TfliteFile:
    """as_is: quantized files and those with a state inside are read too, and nothing in them is changed. Raises SourceError
    with the reason for whatever is refused."""
    data = path.read_bytes()
    try:
        file = tflite.read(data)
        names = _signature_names(path, file)
        inputs = [file.main.tensors[index] for index in file.main.inputs]
        shapes = {tensor.label: tensor.signature or tensor.shape for tensor in inputs}
        operators = _operators(file)
        stateful = _stateful(file, operators)
        if not as_is:
            _check_original(path, file, stateful)
        _check_operators(path, operators, as_is=as_is)
        data, halved = (data, 0) if as_is else _widened(data, file)
        file = tflite.read(data) if halved else file
        weights = _weights(file)
        check_finite(_constants(data, file), where=str(path), may_be_infinite=lambda name: name not in weights)
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading a .tflite model", where=str(path)) from error
    except (ConversionError, IndexError, ValueError, MemoryError) as error:
        _refuse(path, "this is not a TFLite model, or it is damaged", "Convert or download it again", error)
    return TfliteFile(
        data, names, shapes, halved, stateful, tuple(sorted(n.removeprefix("CUSTOM ") for n in operators))
    )


def with_shapes(data: bytes, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The same file with other input shapes, by tensor name, and every shape in it that follows. Raises ValueError where
    the graph does not take them.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    # A delegate would keep the shapes inside its part of the graph to itself.
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=plain)
    for detail in interpreter.get_input_details():
        if detail["name"] in shapes:
            interpreter.resize_tensor_input(detail["index"], list(shapes[detail["name"]]), strict=True)
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        raise ValueError(one_line(error)) from error
    model = tfl.read(data)
    found = {detail["index"]: detail["shape"] for detail in interpreter.get_tensor_details()}
    for index, tensor in enumerate(model.subgraphs[0].tensors):
        if index in found and not tfl.is_constant(model, tensor):
            tensor.shape = np.asarray(found[index], np.int32)
            tensor.shapeSignature = None
    return tfl.write(model)


def _operators(file: tflite.TfliteFile) -> frozenset[str]:
    """Built-in ones by name, others with what they are in front."""
    found = {operator for graph in file.subgraphs for operator in graph.operators}
    flex = {one.op for one in found if one.custom and one.op.startswith("Flex")}
    custom = {one.op for one in found if one.custom} - flex
    builtin = {one.op for one in found if not one.custom}
    return frozenset(builtin | {f"CUSTOM {op}" for op in custom} | {f"SELECT-TF {op[4:]}" for op in flex})


def _stateful(file: tflite.TfliteFile, operators: frozenset[str]) -> tuple[str, ...]:
    """What keeps a state inside, in words."""
    variable = any(tensor.variable for graph in file.subgraphs for tensor in graph.tensors)
    return tuple(sorted(operators & _STATEFUL)) or (("a variable tensor",) if variable else ())


def _check_original(path: Path, file: tflite.TfliteFile, stateful: Sequence[str]) -> None:
    tensors = [tensor for graph in file.subgraphs for tensor in graph.tensors]
    quantized = next((tensor for tensor in tensors if tensor.dtype in _NARROW and tensor.affine is not None), None)
    also = f"; it also keeps a state inside ({', '.join(stateful)})" if stateful else ""
    if quantized is not None:
        _refuse(
            path,
            f"it is already quantized ('{quantized.label}' is {quantized.dtype.lower()}), and what that lost cannot be "
            f"measured or undone{also}",
            _MADE_FROM,
        )
    if stateful:
        _refuse(
            path,
            f"it keeps a state inside ({', '.join(stateful)}), and no recipe converts that",
            f"Convert it again with its state as an input and the new state as an output; {_AS_IS}",
        )


def _check_operators(path: Path, operators: frozenset[str], *, as_is: bool) -> None:
    """as_is: operators of a known delegate may be in it; the delegate must be there to run the file."""
    delegated = {f"CUSTOM {name}" for name in DELEGATED} if as_is else set()
    custom = sorted(name for name in operators - delegated if name.startswith(("CUSTOM ", "SELECT-TF ")))
    if custom:
        _refuse(
            path,
            f"it has operators that boards' runtimes do not carry: {', '.join(custom[:5])}",
            "Convert it again with built-in operators only, or pass the model that it was made from",
        )


def _widened(data: bytes, file: tflite.TfliteFile) -> tuple[bytes, int]:
    """float16 weights that a DEQUANTIZE reads as float32 weights, and how many."""
    if not any(tensor.dtype == "FLOAT16" and tensor.constant for graph in file.subgraphs for tensor in graph.tensors):
        return data, 0
    model, widened = tfl.read(data), 0
    for graph in model.subgraphs:
        kept = []
        for operator in graph.operators or []:
            tensor = graph.tensors[operator.inputs[0]] if tfl.op_of(model, operator) == "DEQUANTIZE" else None
            if tensor is None or tfl.type_of(tensor) != "FLOAT16" or not tfl.is_constant(model, tensor):
                kept.append(operator)
                continue
            values = tfl.constant(model, tensor).astype(np.float32)
            graph.tensors[operator.outputs[0]].buffer = tfl.add_constant(model, values)
            widened += 1
        graph.operators = kept
    return tfl.write(model) if widened else data, widened


def _signature_names(path: Path, file: tflite.TfliteFile) -> dict[str, str]:
    if len(file.signatures) > 1:
        keys = ", ".join(signature.key for signature in file.signatures)
        _refuse(path, f"it has {len(file.signatures)} signatures: {keys}", "Convert it again with one of them")
    return {
        file.subgraphs[signature.subgraph].tensors[index].label: name
        for signature in file.signatures
        for index, name in signature.names.items()
    }


def _constants(data: bytes, file: tflite.TfliteFile) -> Iterator[tuple[str, NDArray[Any]]]:
    for graph in file.subgraphs:
        for tensor in graph.tensors:
            if tensor.constant and tensor.dtype in ("FLOAT32", "FLOAT16", "FLOAT64"):
                yield tensor.label, tflite.raw_bytes(data, tensor).view(tflite.DTYPES[tensor.dtype])


def _weights(file: tflite.TfliteFile) -> frozenset[str]:
    return frozenset(
        graph.tensors[index].label
        for graph in file.subgraphs
        for operator in graph.operators
        if operator.op in _WEIGHTED
        for index in operator.inputs
        if index >= 0
    )


def _refuse(path: Path, what: str, do: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause

"""A .tflite file's flatbuffer: what it holds, what is refused in it, and its edits.

Rules: a float model (what is already quantized has lost what a comparison needs) without a state inside, except where the
file is to be packed as it is; built-in operators only; float16 weights become float32, so that every recipe finds the same kind of file.

    file = read(Path("net.tflite"))
    file.inputs                     # [(name, tensor index)]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError, one_line
from edgekit_converters.sources.finite import check_finite
from edgekit_runtime.errors import MissingExtraError
from edgekit_runtime.modelfile.facts import DELEGATED

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
    try:
        from ai_edge_litert import schema_py_generated as schema
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading a .tflite model", where=str(path)) from error
    data = path.read_bytes()
    if data[4:8] != b"TFL3":
        _refuse(path, "this is not a TFLite model, or it is damaged", "Convert or download it again")
    try:
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
        main = model.subgraphs[0]
        operators = [_operator_names(schema, model, graph) for graph in model.subgraphs]
        names = _signature_names(path, model)
        shapes = {_text(main.tensors[i].name): _shape(main.tensors[i]) for i in main.inputs}
        stateful = _stateful(model, operators)
        if not as_is:
            _check_original(path, schema, model, stateful)
        _check_operators(path, operators, as_is=as_is)
    except (struct.error, IndexError, ValueError, TypeError, AttributeError, KeyError, MemoryError) as error:
        _refuse(path, "this is not a TFLite model, or it is damaged", "Convert or download it again", error)
    widened = [] if as_is else list(zip(model.subgraphs, operators, strict=True))
    halved = sum(_widen(schema, model, graph, kinds) for graph, kinds in widened)
    check_finite(_constants(schema, model), where=str(path), may_be_infinite=_not_weights(model, operators))
    used = sorted({name.removeprefix("CUSTOM ") for kinds in operators for name in kinds})
    return TfliteFile(_packed(model) if halved else data, names, shapes, halved, stateful, tuple(used))


def with_shapes(data: bytes, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The same file with other input shapes, by tensor name, and every shape in it that follows. Raises ValueError where
    the graph does not take them.
    """
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
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
    main = model.subgraphs[0]
    found = {detail["index"]: detail["shape"] for detail in interpreter.get_tensor_details()}
    for index, tensor in enumerate(main.tensors):
        if index in found and not _is_constant(model, tensor):
            tensor.shape = np.asarray(found[index], np.int32)
            tensor.shapeSignature = None
    return _packed(model)


def _stateful(model: Any, operators: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What keeps a state inside, in words."""
    used = {name for kinds in operators for name in kinds}
    variable = any(tensor.isVariable for graph in model.subgraphs for tensor in graph.tensors)
    return tuple(sorted(used & _STATEFUL)) or (("a variable tensor",) if variable else ())


def _check_original(path: Path, schema: Any, model: Any, stateful: Sequence[str]) -> None:
    types = _names(schema.TensorType)
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    quantized = next((t for t in tensors if types[t.type] in _NARROW and _has_scale(t)), None)
    also = f"; it also keeps a state inside ({', '.join(stateful)})" if stateful else ""
    if quantized is not None:
        _refuse(
            path,
            f"it is already quantized ('{_text(quantized.name)}' is {types[quantized.type].lower()}), and what that lost "
            f"cannot be measured or undone{also}",
            _MADE_FROM,
        )
    if stateful:
        _refuse(
            path,
            f"it keeps a state inside ({', '.join(stateful)}), and no recipe converts that",
            f"Convert it again with its state as an input and the new state as an output; {_AS_IS}",
        )


def _check_operators(path: Path, operators: Sequence[Sequence[str]], *, as_is: bool) -> None:
    """as_is: operators of a known delegate may be in it; the delegate must be there to run the file."""
    used = {name for kinds in operators for name in kinds}
    if as_is:
        used -= {f"CUSTOM {name}" for name in DELEGATED}
    custom = sorted(name for name in used if name.startswith(("CUSTOM ", "SELECT-TF ")))
    if custom:
        _refuse(
            path,
            f"it has operators that boards' runtimes do not carry: {', '.join(custom[:5])}",
            "Convert it again with built-in operators only, or pass the model that it was made from",
        )


def _widen(schema: Any, model: Any, graph: Any, kinds: Sequence[str]) -> int:
    """float16 weights that a DEQUANTIZE reads become float32 weights; how many. In place."""
    types = _names(schema.TensorType)
    kept, widened = [], 0
    for operator, kind in zip(graph.operators or [], kinds, strict=True):
        tensor = graph.tensors[operator.inputs[0]] if kind == "DEQUANTIZE" else None
        if tensor is None or types[tensor.type] != "FLOAT16" or not _is_constant(model, tensor):
            kept.append(operator)
            continue
        half = np.frombuffer(bytes(model.buffers[tensor.buffer].data), np.float16)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(half.astype(np.float32).tobytes(), np.uint8)
        graph.tensors[operator.outputs[0]].buffer = len(model.buffers)
        model.buffers.append(buffer)
        widened += 1
    graph.operators = kept
    return widened


def _signature_names(path: Path, model: Any) -> dict[str, str]:
    signatures = model.signatureDefs or []
    if len(signatures) > 1:
        keys = ", ".join(_text(signature.signatureKey) for signature in signatures)
        _refuse(path, f"it has {len(signatures)} signatures: {keys}", "Convert it again with one of them")
    if not signatures:
        return {}
    graph = model.subgraphs[signatures[0].subgraphIndex]
    both = (*(signatures[0].inputs or []), *(signatures[0].outputs or []))
    return {_text(graph.tensors[item.tensorIndex].name): _text(item.name) for item in both}


def _operator_names(schema: Any, model: Any, graph: Any) -> list[str]:
    names = _names(schema.BuiltinOperator)
    found = []
    for operator in graph.operators or []:
        code = model.operatorCodes[operator.opcodeIndex]
        name = names[max(code.deprecatedBuiltinCode, code.builtinCode)]
        if name == "CUSTOM":
            custom = _text(code.customCode)
            name = f"SELECT-TF {custom[4:]}" if custom.startswith("Flex") else f"CUSTOM {custom}"
        found.append(name)
    return found


def _constants(schema: Any, model: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    types = _names(schema.TensorType)
    dtypes = {"FLOAT32": np.float32, "FLOAT16": np.float16, "FLOAT64": np.float64}
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            dtype = dtypes.get(types[tensor.type])
            if dtype is not None and _is_constant(model, tensor):
                yield _text(tensor.name), np.frombuffer(bytes(model.buffers[tensor.buffer].data), dtype)


def _not_weights(model: Any, operators: Sequence[Sequence[str]]) -> Any:
    weights = {
        _text(graph.tensors[index].name)
        for graph, kinds in zip(model.subgraphs, operators, strict=True)
        for operator, kind in zip(graph.operators or [], kinds, strict=False)
        if kind in _WEIGHTED
        for index in operator.inputs
        if index >= 0
    }
    return lambda name: name not in weights


def _packed(model: Any) -> bytes:
    import flatbuffers  # type: ignore[import-untyped]

    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _shape(tensor: Any) -> tuple[int, ...]:
    signature = tensor.shapeSignature
    sizes = tensor.shape if signature is None or len(signature) == 0 else signature
    return tuple(int(size) for size in (sizes if sizes is not None else ()))


def _is_constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


def _has_scale(tensor: Any) -> bool:
    return (
        tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale) > 0
    )


def _names(enum: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _refuse(path: Path, what: str, do: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause

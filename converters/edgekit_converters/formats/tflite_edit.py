"""A .tflite file as objects that can be edited.

    model = read(data)  # a `ModelT`
    model.subgraphs[0].operators[0].opcodeIndex = code(model, "CONV_2D", version=5)
    data = write(model)

Rules: reading and writing leaves everything else as it was; a tensor's name outlives every edit, because float and
quantized files are aligned by name; an operator gets a new version without changing that of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.tflite_file import DTYPES, names, read_model, schema

read = read_model


def write(model: Any) -> bytes:
    """Write the file; the same model gives the same bytes."""
    import flatbuffers  # type: ignore[import-untyped,unused-ignore]

    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def op_of(model: Any, operator: Any) -> str:
    """Return an operator's name: CONV_2D, ..., or a custom operator's own."""
    entry = model.operatorCodes[operator.opcodeIndex]
    if entry.customCode:
        return str(bytes(entry.customCode).decode("utf-8", "replace"))
    # Codes up to 127 stand in the older field, all of them in the newer; the larger is right either way.
    return names("BuiltinOperator").get(max(entry.builtinCode, entry.deprecatedBuiltinCode), "?")


def type_of(tensor: Any) -> str:
    """Return a tensor's type: FLOAT32, INT8, ..."""
    return names("TensorType").get(tensor.type, "?")


def name_of(tensor: Any) -> str:
    return bytes(tensor.name or b"").decode("utf-8", "replace")


def operators(model: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield (subgraph, operator, its name) of the whole file."""
    for graph in model.subgraphs:
        for operator in graph.operators or ():
            yield graph, operator, op_of(model, operator)


def layer_of(graph: Any, operator: Any) -> str:
    """Return the name of the operator's first output, or ""."""
    return name_of(graph.tensors[operator.outputs[0]]) if len(operator.outputs) else ""


def set_input(operator: Any, place: int, tensor: int) -> None:
    """Let an operator read another tensor. (An array from a file is read-only.)"""
    operator.inputs = [tensor if i == place else int(index) for i, index in enumerate(operator.inputs)]


def is_constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return tensor.buffer > 0 and data is not None and len(data) > 0


def constant(model: Any, tensor: Any) -> NDArray[Any]:
    """Return a constant's values in the file's layout."""
    values = np.asarray(model.buffers[tensor.buffer].data, np.uint8).view(DTYPES[type_of(tensor)])
    shape = () if tensor.shape is None else tuple(int(side) for side in tensor.shape)
    return np.asarray(values.reshape(shape))


def add_constant(model: Any, values: NDArray[Any]) -> int:
    """Add a buffer with these values and return its index."""
    buffer = schema().BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    model.buffers.append(buffer)
    return len(model.buffers) - 1


def add_tensor(graph: Any, tensor: Any) -> int:
    """Append a tensor and return its index."""
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def copied(tensor: Any, suffix: str = "") -> Any:
    """Make a tensor of the same type and shape, without values or quantization."""
    made = schema().TensorT()
    made.shape, made.shapeSignature, made.hasRank = tensor.shape, tensor.shapeSignature, tensor.hasRank
    made.type, made.name = tensor.type, tensor.name + suffix.encode() if suffix else tensor.name
    return made


def quantization(scales: NDArray[np.float32], axis: int = 0) -> Any:
    """Make symmetric quantization: one scale, or one per index of the axis."""
    made = schema().QuantizationParametersT()
    made.scale, made.zeroPoint, made.quantizedDimension = scales, np.zeros(len(scales), np.int64), axis
    return made


def new_operator(model: Any, op: str, version: int, source: int, target: int) -> Any:
    """Make an operator that reads one tensor and makes one."""
    made = schema().OperatorT()
    made.opcodeIndex, made.inputs, made.outputs = code(model, op, version), [source], [target]
    return made


def code(model: Any, op: str, version: int) -> int:
    """Return the index of an operator code, added if missing.
    A name that the schema lacks is a custom operator's."""
    number = getattr(schema().BuiltinOperator, op, schema().BuiltinOperator.CUSTOM)
    custom = op.encode() if number == schema().BuiltinOperator.CUSTOM else None
    for index, entry in enumerate(model.operatorCodes):
        known = (max(entry.builtinCode, entry.deprecatedBuiltinCode), entry.customCode, entry.version)
        if known == (number, custom, version):
            return index
    entry = schema().OperatorCodeT()
    entry.builtinCode, entry.customCode, entry.version = number, custom, version
    entry.deprecatedBuiltinCode = min(number, schema().BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
    model.operatorCodes.append(entry)
    return len(model.operatorCodes) - 1


def swap(graph: Any, tensors: Mapping[int, int]) -> None:
    """Replace tensors of a subgraph in place, old index -> new."""
    for operator in graph.operators:
        for field in ("inputs", "outputs", "intermediates"):
            indexes = getattr(operator, field)
            if indexes is not None:
                setattr(operator, field, [tensors.get(int(index), int(index)) for index in indexes])
    graph.inputs = [tensors.get(int(index), int(index)) for index in graph.inputs]
    graph.outputs = [tensors.get(int(index), int(index)) for index in graph.outputs]


def move_ends(model: Any, position: int, moved: Mapping[int, int]) -> None:
    """Let the signatures of that subgraph name other tensors, old index -> new."""
    for signature in model.signatureDefs or ():
        if signature.subgraphIndex == position:
            for end in (*(signature.inputs or ()), *(signature.outputs or ())):
                end.tensorIndex = moved.get(int(end.tensorIndex), int(end.tensorIndex))


def compact(model: Any) -> None:
    """Drop tensors, buffers and operator codes that nothing names, in place."""
    for position, graph in enumerate(model.subgraphs):
        used = {int(index) for index in (*graph.inputs, *graph.outputs)}
        for operator in graph.operators:
            for indexes in (operator.inputs, operator.outputs, operator.intermediates):
                used |= {int(index) for index in (indexes if indexes is not None else ())}
        kept = [index for index in range(len(graph.tensors)) if index in used]
        moved = {old: new for new, old in enumerate(kept)}
        graph.tensors = [graph.tensors[index] for index in kept]
        swap(graph, moved)
        move_ends(model, position, moved)
    used = {0} | {int(tensor.buffer) for graph in model.subgraphs for tensor in graph.tensors}
    used |= {int(entry.buffer) for entry in model.metadata or ()}
    used |= {int(index) for index in (model.metadataBuffer if model.metadataBuffer is not None else ())}
    moved = {old: new for new, old in enumerate(sorted(used))}
    model.buffers = [model.buffers[index] for index in sorted(used)]
    for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
        tensor.buffer = moved[int(tensor.buffer)]
    for entry in model.metadata or ():
        entry.buffer = moved[int(entry.buffer)]
    if model.metadataBuffer is not None:
        model.metadataBuffer = [moved[int(index)] for index in model.metadataBuffer]
    every = [operator for graph in model.subgraphs for operator in graph.operators]
    codes = sorted({int(operator.opcodeIndex) for operator in every})
    model.operatorCodes = [model.operatorCodes[index] for index in codes]
    for operator in every:
        operator.opcodeIndex = codes.index(int(operator.opcodeIndex))


def split_buffers(data: bytes) -> bytes:
    """Give each constant its own buffer, so that writing one leaves the others."""
    model = read(data)
    taken: set[int] = set()
    for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
        values = model.buffers[tensor.buffer].data
        if values is None or len(values) == 0:
            continue
        if tensor.buffer in taken:
            tensor.buffer = add_constant(model, values)
        taken.add(tensor.buffer)
    return write(model)

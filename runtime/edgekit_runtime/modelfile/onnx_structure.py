"""The structure of an .onnx file: what ONNX Runtime would follow, open or allocate.

    facts = check(data, MAX_TENSOR_BYTES)

Rules, besides those of `protobuf`:
- operators come from `DOMAINS`, except those that run other files' code (EPContext); functions, training and ORT format
  are refused;
- what a constant asks an operator to make (ConstantOfShape, Expand), and a declared shape, stays within one tensor's
  limit; what a kernel divides by is at least 1;
- a constant's data are in this file, as long as shape and type say; a tensor that names another place, by path,
  address or unknown key, is refused (CVE-2022-25882, -2024-27318, -2025-51480);
- a singular field occurs once, because readers differ in what they make of a second one;
- graphs and types nest no deeper than `MAX_DEPTH`; all messages together have a bounded number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgekit_runtime.modelfile.check import ModelFacts, bytes_of, refusal
from edgekit_runtime.modelfile.protobuf import BYTES, VARINT, Field, count_varints, fields, signed, varints

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})
"""com.microsoft: what ONNX Runtime's quantizer and optimizer write (QLinearAdd, FusedConv)."""
MAX_OPSET, MAX_IR = 1000, 100
_LOADS_FILES = frozenset({"com.microsoft:EPContext", "com.microsoft:PyOp"})
_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
_WINDOWS = (*_CONVOLUTIONS, "MaxPool", "AveragePool", "LpPool")
_POSITIVE = {
    "strides": _WINDOWS,
    "dilations": _WINDOWS,
    "kernel_shape": _WINDOWS,
    "group": _CONVOLUTIONS,
    "blocksize": ("SpaceToDepth", "DepthToSpace"),
    "num_outputs": ("Split",),
    "num_groups": ("GroupNormalization",),
    "block_size": ("MatMulNBits",),
}
"""Attributes that kernels divide by."""
_MAKES = {"ConstantOfShape": 0, "Expand": 1}
"""Operators whose output is as large as a constant input says."""
MAX_DEPTH = 16
_STRINGS = 8
_TYPES_OF_BITS = {
    2: (25, 26),
    4: (21, 22, 23),
    8: (2, 3, 9, 17, 18, 19, 20, 24),
    16: (4, 5, 10, 16),
    32: (1, 6, 12),
    64: (7, 11, 13, 14),
    128: (15,),
}
_BITS = {kind: bits for bits, kinds in _TYPES_OF_BITS.items() for kind in kinds}
"""TensorProto.DataType -> bits an element; strings (8) are of no fixed size."""
_TYPED = {1: (4, 1), 14: (4, 2), 11: (10, 1), 15: (10, 2), 7: (7, 1), 12: (11, 1), 13: (11, 1)}
"""Data type -> the field of its values if they are not raw bytes, and entries per element; else int32_data (5)."""
_WIDTHS = {4: 4, 10: 8, 5: 0, 7: 0, 11: 0}
"""Field of typed data -> bytes of a value; 0 for varints."""
MAX_PARTS = 300_000
"""Nodes, tensors, values and attributes; MobileNetV2 as QDQ has 2,500."""


class _Message(NamedTuple):
    """what: for an error. fields: number -> name, kind, and whether it may occur more than once."""

    what: str
    fields: dict[int, tuple[str, str, bool]]


def _message(what: str, text: str) -> _Message:
    """From `number:name:kind`; a star behind the kind: any number of times.
    int: a varint, ints: one or packed, part: start and end of a message, field: as it was read."""
    words = [word.split(":") for word in text.split()]
    return _Message(what, {int(number): (name, kind.rstrip("*"), kind[-1] == "*") for number, name, kind in words})


_MODEL = _message("the model", "1:ir:int 7:graph:part 8:opsets:part* 20:training:field* 25:functions:field*")
_OPSET = _message("an opset", "1:domain:text 2:version:int")
_GRAPH = _message(
    "a graph", "1:nodes:part* 5:constants:part* 11:values:part* 12:values:part* 13:values:part* 15:sparse:part*"
)
_NODE = _message("a node", "1:inputs:text* 2:outputs:text* 3:name:field 4:op:text 5:attributes:part* 7:domain:text")
_ATTRIBUTE = _message(
    "an attribute",
    "1:name:text 2:f:field 3:i:ints 4:s:field 5:tensor:part 6:graph:part 8:ints:ints* 10:tensors:part* "
    "11:graphs:part* 20:type:field 21:reference:field 22:sparse:part 23:sparses:part*",
)
_TENSOR = _message(
    "a constant",
    "1:dims:ints* 2:type:int 3:segments:field* 4:typed:field* 5:typed:field* 6:typed:field* 7:typed:field* 8:name:text "
    "9:raw:part 10:typed:field* 11:typed:field* 13:places:part* 14:location:field",
)
_PLACE = _message("a place", "1:key:text 2:value:text")
_SPARSE = _message("a sparse constant", "1:values:part 2:indices:part 3:dims:ints*")
_VALUE = _message("a value", "1:name:text 2:type:part")
_TYPE = _message("a type", "1:tensor:part 4:sequence:part 5:map:part 7:opaque:part 8:sparse:part 9:optional:part")
_ELEMENT = _message("a type", "1:type:part")
_DECLARED = _message("a type", "1:element:int 2:shape:part")
_SHAPE = _message("a shape", "1:sides:part*")
_SIDE = _message("a side", "1:value:int")


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError, which says what is wrong and with which part."""
    if data[4:8] == b"ORTM":
        raise refusal("it is in ONNX Runtime's own format, which is not supported")
    return _OnnxWalk(data, max_tensor_bytes).model()


class _OnnxWalk:
    """bytes: of all constants that were checked.
    largest: bytes of the largest value whose shape is declared."""

    def __init__(self, data: bytes, max_tensor_bytes: int) -> None:
        self._data, self._most = data, max_tensor_bytes
        self._ops: set[str] = set()
        self._operators = self._graphs = self._tensors = self._bytes = self._largest = self._parts = 0

    def model(self) -> ModelFacts:
        model = self._read((0, len(self._data)), _MODEL)
        if model["training"]:
            raise refusal("it carries training, which a board does not do")
        if model["functions"]:
            raise refusal("it defines functions of its own, which are not supported")
        opsets: dict[str, int] = {}
        for part in model["opsets"]:
            opset = self._read(part, _OPSET)
            domain, version = opset.get("domain", ""), opset.get("version", 0)
            if not 1 <= version <= MAX_OPSET:
                raise refusal(f"it asks for opset {version} of '{domain or 'ai.onnx'}'")
            if opsets.setdefault("" if domain == "ai.onnx" else domain, version) != version:
                raise refusal(f"it asks for two opsets of '{domain or 'ai.onnx'}'")
        ir = model.get("ir", 0)
        if "graph" not in model or not 1 <= ir <= MAX_IR:
            raise refusal("this is not an ONNX model" if "graph" not in model else f"its IR version is {ir}")
        if not opsets:
            raise refusal("it names no version of any operator set")
        self._graph(model["graph"], 0, {})
        if not self._operators:
            raise refusal("it computes nothing")
        opset_version, ops = opsets.get("", next(iter(opsets.values()))), tuple(sorted(self._ops))
        counts = (self._operators, self._graphs, self._tensors, self._bytes, self._largest)
        return ModelFacts("onnx", f"IR {ir}, opset {opset_version}", ops, *counts)

    def _graph(self, part: tuple[int, int], depth: int, outer: dict[str, tuple[int, ...]]) -> None:
        """outer: name -> numbers of a small constant, of the graphs around it."""
        if depth > MAX_DEPTH:
            raise refusal(f"its graphs are nested deeper than {MAX_DEPTH}")
        self._graphs += 1
        graph, numbers = self._read(part, _GRAPH), dict(outer)
        for constant in graph["constants"]:
            name, found = self._constant(constant)
            if found is not None:
                numbers[name] = found
        for constant in graph["sparse"]:
            self._sparse(constant)
        for node in graph["nodes"]:
            self._node(node, depth, numbers)
        for declared in graph["values"]:
            value = self._read(declared, _VALUE)
            if "type" in value:
                self._type(value["type"], value.get("name", ""), 0)
        self._tensors += len(graph["constants"]) + len(graph["values"])

    def _node(self, part: tuple[int, int], depth: int, numbers: dict[str, tuple[int, ...]]) -> None:
        node = self._read(part, _NODE)
        op, domain, inputs = node.get("op", ""), node.get("domain", ""), node["inputs"]
        if domain not in DOMAINS:
            raise refusal(f"it uses {domain}:{op}, from a library that the bundle does not contain")
        name = f"{domain or 'ai.onnx'}:{op}"
        if not op or name in _LOADS_FILES:
            raise refusal(f"it uses {name}, which runs what the file does not contain")
        self._ops.add(name)
        self._operators += 1
        for attribute in node["attributes"]:
            constant = self._attribute(attribute, op, depth, numbers)
            if constant is not None and op == "Constant" and node["outputs"]:
                numbers[node["outputs"][0]] = constant
        place = _MAKES.get(op)
        if place is not None and place < len(inputs) and inputs[place] in numbers:
            wanted = numbers[inputs[place]]
            bytes_of(tuple(max(side, 0) for side in wanted), 8, f"what {name} makes", self._most)

    def _attribute(
        self, part: tuple[int, int], op: str, depth: int, numbers: dict[str, tuple[int, ...]]
    ) -> tuple[int, ...] | None:
        """Its whole numbers, if it is the value of a constant."""
        found = self._read(part, _ATTRIBUTE)
        name, ints = found.get("name", ""), found.get("i", []) + found["ints"]
        constant: tuple[int, ...] | None = None
        for tensor in _one_or_more(found, "tensor"):
            constant = self._constant(tensor)[1]
        for graph in _one_or_more(found, "graph"):
            self._graph(graph, depth + 1, numbers)
        for sparse in _one_or_more(found, "sparse"):
            self._sparse(sparse)
        if ints and op in _POSITIVE.get(name, ()) and min(ints) < 1:
            raise refusal(f"{op} has {name} {ints}, which would be divided by")
        return tuple(ints) if name in ("value_int", "value_ints") else constant

    def _constant(self, part: tuple[int, int]) -> tuple[str, tuple[int, ...] | None]:
        """Its name, and its numbers if it is small and of int64. It must be whole and in this file."""
        tensor = self._read(part, _TENSOR)
        name, kind, shape = tensor.get("name", ""), tensor.get("type", 0), tuple(tensor["dims"])
        for place in tensor["places"]:
            entry = self._read(place, _PLACE)
            where = f"{entry.get('key', '')} {entry.get('value', '')!r:.80}"
            raise refusal(f"the weights '{name}' are stored elsewhere ({where}), which a bundle does not have")
        if "location" in tensor and tensor["location"][2] != 0:
            raise refusal(f"the weights '{name}' are said to be in another file, which a bundle does not have")
        if tensor["segments"]:
            raise refusal(f"the constant '{name}' is one segment of several")
        what = f"the constant '{name}'"
        if kind not in _BITS and kind != _STRINGS:
            raise refusal(f"{what} is of element type {kind}, which ONNX does not have")
        self._bytes += bytes_of(shape, _BITS.get(kind, 0), what)
        count, raw = math.prod(shape), tensor.get("raw", (0, 0))
        if raw[1] > raw[0] and kind != _STRINGS:
            if raw[1] - raw[0] != (count * _BITS[kind] + 7) // 8:
                raise refusal(f"{what} has {raw[1] - raw[0]:,} bytes of data, not those of its shape {list(shape)}")
        else:
            field, each = (6, 1) if kind == _STRINGS else _TYPED.get(kind, (5, 1))
            found = sum([self._entries(one) for one in tensor["typed"] if one[0] == field])
            wanted = -(-count * _BITS[kind] // 8) if _BITS.get(kind, 8) < 8 else count * each
            if found != wanted:
                raise refusal(f"{what} has {found:,} elements, and its shape {list(shape)} asks for {wanted:,}")
        return name, self._numbers(raw, tensor["typed"]) if kind == 7 and count <= 16 else None

    def _entries(self, part: Field) -> int:
        """How many values a field of typed data holds: one, or many packed together."""
        number, kind, value, end = part
        if number == 6 or kind != BYTES:
            return 1
        width = _WIDTHS[number]
        return (end - value) // width if width else count_varints(self._data, value, end)

    def _numbers(self, raw: tuple[int, int], typed: Sequence[Field]) -> tuple[int, ...]:
        """The values of a small int64 constant, which may be a shape."""
        piece = self._data[slice(*raw)]
        found = [int.from_bytes(piece[n : n + 8], "little", signed=True) for n in range(0, len(piece), 8)]
        for number, wire, value, end in typed:
            if number == 7:
                found += varints(self._data, value, end) if wire == BYTES else [signed(value)]
        return tuple(found)

    def _sparse(self, part: tuple[int, int]) -> None:
        sparse = self._read(part, _SPARSE)
        for name in ("values", "indices"):
            if name in sparse:
                self._constant(sparse[name])
        bytes_of(tuple(sparse["dims"]), 64, "a sparse constant", self._most)

    def _type(self, part: tuple[int, int], name: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise refusal(f"the type of '{name}' is nested deeper than {MAX_DEPTH}")
        found = self._read(part, _TYPE)
        for kind in ("sequence", "optional"):
            inner = self._read(found[kind], _ELEMENT) if kind in found else {}
            if "type" in inner:
                self._type(inner["type"], name, depth + 1)
        for kind in ("tensor", "sparse"):
            if kind not in found:
                continue
            declared = self._read(found[kind], _DECLARED)
            element = declared.get("element", 0)
            if element not in _BITS and element != _STRINGS:
                raise refusal(f"'{name}' is of element type {element}, which ONNX does not have")
            shape = self._read(declared["shape"], _SHAPE)["sides"] if "shape" in declared else ()
            sides = [signed(side["value"]) for side in [self._read(one, _SIDE) for one in shape] if "value" in side]
            known = tuple([side for side in sides if side != -1])  # some exporters' word for a free side
            size = bytes_of(known, _BITS.get(element, 0), f"'{name}'", self._most)
            self._largest = max(self._largest, size if "shape" in declared else 0)

    def _read(self, part: tuple[int, int], message: _Message) -> dict[str, Any]:
        """The fields of a message by name, a list of those that may be repeated.
        Raises ModelFileError."""
        values: dict[str, Any] = {name: [] for name, _, many in message.fields.values() if many}
        found = fields(self._data, *part)
        self._parts += len(found)
        if self._parts > MAX_PARTS * 8:
            raise refusal(f"it has more than {MAX_PARTS * 8:,} parts")
        seen: set[int] = set()
        for field in found:
            number, wire, value, end = field
            if number not in message.fields:
                continue
            name, kind, many = message.fields[number]
            if number in seen and not many:
                raise refusal(f"{message.what} has field {number} twice")
            seen.add(number)
            read: Any = field
            if kind == "int":
                if wire != VARINT:
                    continue
                read = value
            elif kind == "ints" and wire == VARINT:
                read = [signed(value)]
            elif kind != "field":
                if wire != BYTES:
                    raise refusal(f"the protobuf is damaged: {name} of {message.what} at byte {end} is a number")
                read = value, end
                if kind == "text":
                    read = self._data[value:end].decode("utf-8", "replace")
                elif kind == "ints":
                    read = varints(self._data, value, end)
            if many and kind == "ints":
                values[name] += read
            elif many:
                values[name].append(read)
            else:
                values[name] = read
        return values


def _one_or_more(found: dict[str, Any], name: str) -> list[Any]:
    """Those of the field `name`, and of the list of such beside it."""
    return [*([found[name]] if name in found else []), *found[f"{name}s"]]

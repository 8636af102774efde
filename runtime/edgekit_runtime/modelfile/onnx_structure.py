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
from collections.abc import Iterable
from typing import NamedTuple

from edgekit_runtime.modelfile.check import ModelFacts, bytes_of, refusal
from edgekit_runtime.modelfile.protobuf import BYTES, EIGHT, FOUR, VARINT, Field, count_varints, fields, signed, varints

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})
"""com.microsoft: what ONNX Runtime's quantizer and optimizer write (QLinearAdd, FusedConv)."""
MAX_OPSET, MAX_IR = 1000, 100
_LOADS_FILES = frozenset({"com.microsoft:EPContext", "com.microsoft:PyOp"})
_ONCE_MODEL, _ONCE_ATTRIBUTE = frozenset({1, 7}), frozenset({1, 2, 3, 4, 5, 6, 20, 21, 22})
_ONCE_NODE = frozenset({3, 4, 7})
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
STRINGS = 8
_TYPES_OF_BITS = {
    2: (25, 26),
    4: (21, 22, 23),
    8: (2, 3, 9, 17, 18, 19, 20, 24),
    16: (4, 5, 10, 16),
    32: (1, 6, 12),
    64: (7, 11, 13, 14),
    128: (15,),
}
BITS = {kind: bits for bits, kinds in _TYPES_OF_BITS.items() for kind in kinds}
"""TensorProto.DataType -> bits an element; strings (8) are of no fixed size."""
_ONCE = frozenset({2, 8, 9, 14})
_TYPED = {1: (4, 1), 14: (4, 2), 11: (10, 1), 15: (10, 2), 7: (7, 1), 12: (11, 1), 13: (11, 1)}
"""Data type -> the field of its values if they are not raw bytes, and entries per element; else int32_data (5)."""
_WIDTHS = {4: FOUR, 10: EIGHT, 5: VARINT, 7: VARINT, 11: VARINT}
MAX_PARTS = 300_000
"""Nodes, tensors, values and attributes; MobileNetV2 as QDQ has 2,500."""


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError, which says what is wrong and with which part."""
    if data[4:8] == b"ORTM":
        raise refusal("it is a model in ONNX Runtime's own format, which is not looked into")
    return _OnnxWalk(data, max_tensor_bytes).model()


class _OnnxWalk:
    def __init__(self, data: bytes, max_tensor_bytes: int) -> None:
        self._most = max_tensor_bytes
        self._messages = Messages(data)
        self._constants, self._types = Constants(self._messages, self._most), Types(self._messages, self._most)
        self._ops: set[str] = set()
        self._operators = self._graphs = self._tensors = 0

    def model(self) -> ModelFacts:
        parts = self._messages.fields(0, len(self._messages.data), _ONCE_MODEL, "the model")
        ir, graph = 0, None
        opsets: dict[str, int] = {}
        for number, kind, value, end in parts:
            if number == 1 and kind == VARINT:
                ir = value
            elif number == 7:
                graph = self._messages.span(kind, value, end, "the graph")
            elif number == 8:
                domain, version = self._opset(*self._messages.span(kind, value, end, "an opset"))
                if opsets.setdefault(domain, version) != version:
                    raise refusal(f"it asks for two opsets of '{domain or 'ai.onnx'}'")
            elif number == 20:
                raise refusal("it carries training, which a board does not do")
            elif number == 25:
                raise refusal("it defines functions of its own, which are not looked into")
        if graph is None or not 1 <= ir <= MAX_IR:
            raise refusal("this is not an ONNX model" if graph is None else f"its IR version is {ir}")
        if not opsets:
            raise refusal("it says of no operator set which version it asks for")
        self._graph(*graph, 0, {})
        if not self._operators:
            raise refusal("it computes nothing")
        opset, ops = opsets.get("", next(iter(opsets.values()))), tuple(sorted(self._ops))
        counts, sizes = (self._operators, self._graphs, self._tensors), (self._constants.bytes, self._types.largest)
        return ModelFacts("onnx", f"IR {ir}, opset {opset}", ops, *counts, *sizes)

    def _graph(self, start: int, stop: int, depth: int, outer: dict[str, tuple[int, ...]]) -> None:
        if depth > MAX_DEPTH:
            raise refusal(f"its graphs lie more than {MAX_DEPTH} deep in one another")
        self._graphs += 1
        parts = self._messages.fields(start, stop, (), "a graph")
        numbers = dict(outer)
        for number, kind, value, end in parts:
            if number == 5:
                tensor = self._constants.tensor(*self._messages.span(kind, value, end, "a constant"))
                self._tensors += 1
                if tensor.numbers is not None:
                    numbers[tensor.name] = tensor.numbers
            elif number == 15:
                self._constants.sparse(*self._messages.span(kind, value, end, "a sparse constant"))
        for number, kind, value, end in parts:
            if number == 1:
                self._node(*self._messages.span(kind, value, end, "a node"), depth, numbers)
            elif number in (11, 12, 13):
                self._tensors += 1
                self._types.value(*self._messages.span(kind, value, end, "a value"))

    def _node(self, start: int, stop: int, depth: int, numbers: dict[str, tuple[int, ...]]) -> None:
        inputs: list[str] = []
        outputs: list[str] = []
        op = domain = ""
        attributes: list[tuple[int, int]] = []
        for number, kind, value, end in self._messages.fields(start, stop, _ONCE_NODE, "a node"):
            if number == 1:
                inputs.append(self._messages.text(kind, value, end))
            elif number == 2:
                outputs.append(self._messages.text(kind, value, end))
            elif number == 4:
                op = self._messages.text(kind, value, end)
            elif number == 7:
                domain = self._messages.text(kind, value, end)
            elif number == 5:
                attributes.append(self._messages.span(kind, value, end, "an attribute"))
        if domain not in DOMAINS:
            raise refusal(f"it uses {domain}:{op}, and would need a library that is no part of the bundle")
        name = f"{domain or 'ai.onnx'}:{op}"
        if not op or name in _LOADS_FILES:
            raise refusal(f"it uses {name}, which runs what is no part of the file")
        self._ops.add(name)
        self._operators += 1
        for attribute in attributes:
            constant = self._attribute(*attribute, op, depth, numbers)
            if constant is not None and op == "Constant" and outputs:
                numbers[outputs[0]] = constant
        place = _MAKES.get(op)
        if place is not None and place < len(inputs) and inputs[place] in numbers:
            wanted = numbers[inputs[place]]
            bytes_of(tuple(max(side, 0) for side in wanted), 8, f"what {name} makes", self._most)

    def _attribute(
        self, start: int, stop: int, op: str, depth: int, numbers: dict[str, tuple[int, ...]]
    ) -> tuple[int, ...] | None:
        """Its whole numbers, if it is the value of a constant."""
        name, ints = "", []
        constant: tuple[int, ...] | None = None
        for number, kind, value, end in self._messages.fields(start, stop, _ONCE_ATTRIBUTE, "an attribute"):
            if number == 1:
                name = self._messages.text(kind, value, end)
            elif number in (3, 8):
                ints += self._messages.integers(kind, value, end, "ints")
            elif number in (5, 10):
                constant = self._constants.tensor(*self._messages.span(kind, value, end, "a constant")).numbers
            elif number in (6, 11):
                self._graph(*self._messages.span(kind, value, end, "a graph"), depth + 1, numbers)
            elif number in (22, 23):
                self._constants.sparse(*self._messages.span(kind, value, end, "a sparse constant"))
        if ints and op in _POSITIVE.get(name, ()) and min(ints) < 1:
            raise refusal(f"{op} has {name} {ints}, which would be divided by")
        return tuple(ints) if name in ("value_int", "value_ints") else constant

    def _opset(self, start: int, stop: int) -> tuple[str, int]:
        domain, version = "", 0
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 2}), "an opset"):
            if number == 1:
                domain = self._messages.text(kind, value, end)
            elif number == 2 and kind == VARINT:
                version = value
        if not 1 <= version <= MAX_OPSET:
            raise refusal(f"it asks for opset {version} of '{domain or 'ai.onnx'}'")
        return ("" if domain == "ai.onnx" else domain), version


class SmallConstant(NamedTuple):
    """numbers: the values of a small int64 constant."""

    name: str
    numbers: tuple[int, ...] | None


class Constants:
    """Constants (TensorProto), each whole and in this file. bytes: of all that were checked."""

    def __init__(self, messages: Messages, most: int) -> None:
        self._messages, self._most = messages, most
        self.bytes = 0

    def tensor(self, start: int, stop: int) -> SmallConstant:
        name, kind_of, shape = "", 0, []
        raw: int | None = None
        typed: dict[int, list[Field]] = {}
        for part in self._messages.fields(start, stop, _ONCE, "a constant"):
            number, kind, value, end = part
            if number == 1:
                shape += self._messages.integers(kind, value, end, "dims")
            elif number == 2 and kind == VARINT:
                kind_of = value
            elif number == 8:
                name = self._messages.text(kind, value, end)
            elif number == 9:
                raw_start, raw_end = self._messages.span(kind, value, end, "raw data")
                raw = raw_end - raw_start
                typed.setdefault(9, []).append(part)
            elif number in (4, 5, 6, 7, 10, 11):
                typed.setdefault(number, []).append(part)
            elif number == 13:
                places = self._messages.fields(*self._messages.span(kind, value, end, "a place"), (), "a place")
                entry = {key: self._messages.text(wire, at, to) for key, wire, at, to in places}
                where = f"{entry.get(1, '')} {entry.get(2, '')!r:.80}"
                raise refusal(f"the weights '{name}' stand elsewhere ({where}), which a bundle does not have")
            elif number == 14 and value != 0:
                raise refusal(f"the weights '{name}' are said to stand in another file, which a bundle does not have")
            elif number == 3:
                raise refusal(f"the constant '{name}' is one piece of several")
        what = f"the constant '{name}'"
        if kind_of not in BITS and kind_of != STRINGS:
            raise refusal(f"{what} is of element type {kind_of}, which ONNX does not have")
        sides = tuple(shape)
        size = bytes_of(sides, BITS.get(kind_of, 0), what)
        self._check_data(what, kind_of, sides, raw, typed)
        self.bytes += size
        return SmallConstant(name, self._numbers(kind_of, sides, typed))

    def _check_data(
        self, what: str, kind: int, shape: tuple[int, ...], raw: int | None, typed: dict[int, list[Field]]
    ) -> None:
        count = math.prod(shape)
        if raw is not None and raw and kind != STRINGS:
            if raw != (count * BITS[kind] + 7) // 8:
                raise refusal(f"{what} has {raw:,} bytes of data, and its shape {list(shape)} asks for others")
            return
        number, each = (6, 1) if kind == STRINGS else _TYPED.get(kind, (5, 1))
        found = sum(self._entries(part) for part in typed.get(number, ()))
        wanted = -(-count * BITS[kind] // 8) if BITS.get(kind, 8) < 8 else count * each
        if found != wanted:
            raise refusal(f"{what} has {found:,} elements, and its shape {list(shape)} asks for {wanted:,}")

    def _entries(self, part: Field) -> int:
        """How many values a field of typed data holds: one, or many packed together."""
        number, kind, value, end = part
        if number == 6 or kind != BYTES:
            return 1
        width = _WIDTHS[number]
        if width == VARINT:
            return count_varints(self._messages.data, value, end)
        return (end - value) // (4 if width == FOUR else 8)

    def _numbers(self, kind: int, shape: tuple[int, ...], typed: dict[int, list[Field]]) -> tuple[int, ...] | None:
        """The values of a small int64 constant, which may be a shape."""
        if kind != 7 or math.prod(shape) > 16:
            return None
        found: list[int] = []
        for _, wire, value, end in typed.get(9, ()):
            if wire == BYTES:
                piece = self._messages.data[value:end]
                found += [int.from_bytes(piece[n : n + 8], "little", signed=True) for n in range(0, len(piece), 8)]
        for _, wire, value, end in typed.get(7, ()):
            found += varints(self._messages.data, value, end) if wire == BYTES else [signed(value)]
        return tuple(found)

    def sparse(self, start: int, stop: int) -> None:
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 2}), "a sparse constant"):
            if number in (1, 2):
                self.tensor(*self._messages.span(kind, value, end, "a constant"))
            elif number == 3:
                sides = [signed(value)] if kind == VARINT else varints(self._messages.data, value, end)
                bytes_of(tuple(sides), 64, "a sparse constant", self._most)


class Types:
    """Declared types of computed values (ValueInfoProto).

    largest: bytes of the largest value whose shape is declared."""

    def __init__(self, messages: Messages, most: int) -> None:
        self._messages, self._most = messages, most
        self.largest = 0

    def value(self, start: int, stop: int) -> None:
        name = ""
        types: list[tuple[int, int]] = []
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 2}), "a value"):
            if number == 1:
                name = self._messages.text(kind, value, end)
            elif number == 2:
                types.append(self._messages.span(kind, value, end, "a type"))
        for one in types:
            self._type(*one, name, 0)

    def _type(self, start: int, stop: int, name: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise refusal(f"the type of '{name}' lies more than {MAX_DEPTH} deep in itself")
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 4, 5, 7, 8, 9}), "a type"):
            if number not in (1, 4, 5, 7, 8, 9):
                continue
            span = self._messages.span(kind, value, end, "a type")
            if number in (1, 8):
                self._declared(*span, name)
            elif number in (4, 9):
                for _, inner, at, to in self._messages.fields(*span, frozenset({1}), "a type"):
                    self._type(*self._messages.span(inner, at, to, "a type"), name, depth + 1)

    def _declared(self, start: int, stop: int, name: str) -> None:
        element, shape = 0, None
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 2}), "a type"):
            if number == 1 and kind == VARINT:
                element = value
            elif number == 2:
                shape = self._messages.span(kind, value, end, "a shape")
        if element not in BITS and element != STRINGS:
            raise refusal(f"'{name}' is of element type {element}, which ONNX does not have")
        if shape is None:
            return
        sides = []
        for number, kind, value, end in self._messages.fields(*shape, (), "a shape"):
            if number != 1:
                continue
            span = self._messages.span(kind, value, end, "a side")
            for inner, wire, side, _ in self._messages.fields(*span, (), "a side"):
                if inner == 1 and wire == VARINT and signed(side) != -1:  # -1: some exporters' word for a free side
                    sides.append(signed(side))
        size = bytes_of(tuple(sides), BITS.get(element, 0), f"'{name}'", self._most)
        self.largest = max(self.largest, size)


class Messages:
    """Messages one after another: their fields, texts and spans. data: the whole file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._parts = 0

    def fields(self, start: int, stop: int, once: Iterable[int], what: str) -> list[Field]:
        """A message's fields. Raises ModelFileError if one of `once` occurs twice."""
        found = fields(self.data, start, stop)
        self._parts += len(found)
        if self._parts > MAX_PARTS * 8:
            raise refusal(f"it has more than {MAX_PARTS * 8:,} parts")
        if once and len(found) > 1:
            seen: set[int] = set()
            for number, *_ in found:
                if number in once:
                    if number in seen:
                        raise refusal(f"{what} says field {number} twice")
                    seen.add(number)
        return found

    def text(self, kind: int, value: int, end: int) -> str:
        start, stop = self.span(kind, value, end, "a name")
        return self.data[start:stop].decode("utf-8", "replace")

    def integers(self, kind: int, value: int, end: int, what: str) -> list[int]:
        """A repeated field of whole numbers: one of them, or several packed."""
        return [signed(value)] if kind == VARINT else varints(self.data, *self.span(kind, value, end, what))

    def span(self, kind: int, value: int, end: int, what: str) -> tuple[int, int]:
        if kind != BYTES:
            raise refusal(f"the protobuf is damaged: {what} at byte {end} is a number")
        return value, end

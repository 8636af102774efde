"""What an .onnx file declares of the values that it computes: their element types, and how large they may become.

    types = Types(messages, MAX_TENSOR_BYTES)
    types.value(start, stop)                # a ValueInfoProto
    types.largest                           # bytes

Rules: an element type is one that ONNX has; a shape that is declared stays within what one tensor may have; types lie in one
another no deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

from edgekit_runtime.modelfile.facts import bytes_of, refused
from edgekit_runtime.modelfile.onnx_messages import Messages
from edgekit_runtime.modelfile.protobuf import VARINT, signed

__all__ = ["BITS", "MAX_DEPTH", "STRINGS", "Types"]

MAX_DEPTH = 16
STRINGS = 8
BITS = {
    1: 32,
    2: 8,
    3: 8,
    4: 16,
    5: 16,
    6: 32,
    7: 64,
    9: 8,
    10: 16,
    11: 64,
    12: 32,
    13: 64,
    14: 64,
    15: 128,
    16: 16,
    17: 8,
    18: 8,
    19: 8,
    20: 8,
    21: 4,
    22: 4,
    23: 4,
    24: 8,
    25: 2,
    26: 2,
}
"""TensorProto.DataType -> bits an element; strings (8) are of no fixed size."""


class Types:
    """largest: bytes of the largest value whose shape is declared."""

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
            raise refused(f"the type of '{name}' lies more than {MAX_DEPTH} deep in itself")
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
            raise refused(f"'{name}' is of element type {element}, which ONNX does not have")
        if shape is None:
            return
        sides = []
        for number, kind, value, end in self._messages.fields(*shape, frozenset(), "a shape"):
            if number != 1:
                continue
            for inner, wire, side, _ in self._messages.fields(
                *self._messages.span(kind, value, end, "a side"), frozenset(), "a side"
            ):
                if inner == 1 and wire == VARINT and signed(side) != -1:  # -1: some exporters' word for a free side
                    sides.append(signed(side))
        size = bytes_of(tuple(sides), BITS.get(element, 0), f"'{name}'", self._most)
        self.largest = max(self.largest, size)

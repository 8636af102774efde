"""The constants of an .onnx file: that their data stand in it, whole, and nowhere else.

    constants = Constants(messages, MAX_TENSOR_BYTES)
    name, numbers = constants.tensor(start, stop)       # a TensorProto; numbers of a small one, which may be a shape
    constants.bytes                                     # of all so far

Rules: a tensor that says where else its data are is refused whatever it says, be it a path out of the folder, an absolute one, an
address in memory or an unknown key (CVE-2022-25882, -2024-27318, -2025-51480); its data are as long as its shape and type say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from edgekit_runtime.modelfile.facts import bytes_of, refused
from edgekit_runtime.modelfile.onnx_messages import Messages
from edgekit_runtime.modelfile.onnx_types import BITS, STRINGS
from edgekit_runtime.modelfile.protobuf import BYTES, EIGHT, FOUR, VARINT, Field, count_varints, signed, varints

__all__ = ["Constant", "Constants"]

_ONCE = frozenset({2, 8, 9, 14})
_TYPED = {1: (4, 1), 14: (4, 2), 11: (10, 1), 15: (10, 2), 7: (7, 1), 12: (11, 1), 13: (11, 1)}
"""Data type -> the field its values stand in where they are no raw bytes, and how many entries make an element; int32_data (5)
for all others."""
_WIDTHS = {4: FOUR, 10: EIGHT, 5: VARINT, 7: VARINT, 11: VARINT}


class Constant(NamedTuple):
    """numbers: its values, of a small one of int64."""

    name: str
    numbers: tuple[int, ...] | None


class Constants:
    """bytes: of all constants that were looked at."""

    def __init__(self, messages: Messages, most: int) -> None:
        self._messages, self._most = messages, most
        self.bytes = 0

    def tensor(self, start: int, stop: int) -> Constant:
        name, kind_of, shape = "", 0, []
        raw: int | None = None
        typed: dict[int, list[Field]] = {}
        for part in self._messages.fields(start, stop, _ONCE, "a constant"):
            number, kind, value, end = part
            if number == 1:
                shape += (
                    [signed(value)]
                    if kind == VARINT
                    else varints(self._messages.data, *self._messages.span(kind, value, end, "dims"))
                )
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
                self._external(*self._messages.span(kind, value, end, "a place"), name)
            elif number == 14 and value != 0:
                raise refused(f"the weights '{name}' are said to stand in another file, which a bundle does not have")
            elif number == 3:
                raise refused(f"the constant '{name}' is one piece of several")
        what = f"the constant '{name}'"
        if kind_of not in BITS and kind_of != STRINGS:
            raise refused(f"{what} is of element type {kind_of}, which ONNX does not have")
        sides = tuple(shape)
        size = bytes_of(sides, BITS.get(kind_of, 0), what)
        self._check_data(what, kind_of, sides, raw, typed)
        self.bytes += size
        return Constant(name, self._numbers(kind_of, sides, typed))

    def _check_data(
        self, what: str, kind: int, shape: tuple[int, ...], raw: int | None, typed: dict[int, list[Field]]
    ) -> None:
        count = math.prod(shape)
        if raw is not None and raw and kind != STRINGS:
            if raw != (count * BITS[kind] + 7) // 8:
                raise refused(f"{what} has {raw:,} bytes of data, and its shape {list(shape)} asks for others")
            return
        number, each = (6, 1) if kind == STRINGS else _TYPED.get(kind, (5, 1))
        found = sum(self._entries(part) for part in typed.get(number, ()))
        wanted = -(-count * BITS[kind] // 8) if BITS.get(kind, 8) < 8 else count * each
        if found != wanted:
            raise refused(f"{what} has {found:,} elements, and its shape {list(shape)} asks for {wanted:,}")

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

    def _external(self, start: int, stop: int, name: str) -> None:
        entry = {}
        for number, kind, value, end in self._messages.fields(start, stop, frozenset(), "a place"):
            entry[number] = self._messages.text(kind, value, end)
        key, where = entry.get(1, ""), entry.get(2, "")
        raise refused(f"the weights '{name}' stand elsewhere ({key} {where!r:.80}), which a bundle does not have")

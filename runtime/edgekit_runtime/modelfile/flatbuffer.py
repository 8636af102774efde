"""A FlatBuffer as plain values, with every offset checked before it is followed.

    root = read(data, b"TFL3", "Model", TABLES, UNIONS)
    root[slot]                      # a number, a span, a list of tables, None if the file leaves it out

Rules of the format (https://flatbuffers.dev/internals/), as its own verifiers have them:
- a table, its vtable, every field, vector and string lies inside the file, aligned to its size;
- a string ends with a NUL that its length does not count;
- shared parts are counted each time, up to `MAX_VISITS`: a thousand references to one table cost an interpreter a
  thousand tables;
- the member of a union must be known. The schema has no circle among its tables, which bounds the depth, and no vector
  of strings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edgekit_runtime.modelfile.check import refusal
from edgekit_runtime.system.errors import ModelFileError

MAX_VISITS = 200_000
"""Tables, vectors and strings that one file may have; MobileNetV2 has 1,500."""

Table = list[Any]
Schema = Mapping[str, str]
Unions = Mapping[str, Sequence[str]]

_SCALARS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
_SCALARS |= {"f32": "f", "f64": "d"}
_U32, _I32, _U16X2 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<HH")
_SCALAR, _STRING, _VECTOR, _TABLE, _TABLES, _UNION = range(6)


class VectorSpan(NamedTuple):
    """A vector of scalars, or a string. start: byte in the file. length: elements."""

    start: int
    length: int


_span: Callable[[tuple[int, int]], VectorSpan] = partial(tuple.__new__, VectorSpan)
"""As `VectorSpan._make`, without a call in Python: a file has a thousand of them."""


class _Field(NamedTuple):
    """kind: one of the numbers above.
    size: bytes of a scalar, or of an element of a vector.
    detail: its Struct, table or union."""

    slot: int
    name: str
    kind: int
    size: int
    detail: Any


def read(data: bytes, identifier: bytes, root: str, schema: Schema, unions: Unions) -> Table:
    """The root table as a list by slot, with everything below it. Raises ModelFileError."""
    if data[4:8] != identifier or len(data) < 12:
        raise refusal(f"it does not begin as a {identifier.decode('ascii')} file")
    return _TableReader(data, schema, unions).table(_U32.unpack_from(data, 0)[0], root)


class _TableReader:
    """One call for each table: a network has a thousand."""

    def __init__(self, data: bytes, schema: Schema, unions: Unions) -> None:
        self._data, self._size = data, len(data)
        self._schema, self._unions = schema, unions
        self._fields: dict[str, list[_Field | None]] = {}
        self._forms: dict[tuple[str, int], tuple[int, int, list[tuple[_Field, int]]]] = {}
        self._visits = 0

    def table(self, start: int, name: str) -> Table:
        """start: not checked yet."""
        data, end = self._data, self._size
        self._visits += 1
        if self._visits > MAX_VISITS:
            raise self._endless()
        if start & 3 or start + 4 > end:
            raise refusal(f"the offset of a {name} table is out of bounds or misaligned: byte {start}")
        vtable = start - _I32.unpack_from(data, start)[0]
        form = self._forms.get((name, vtable))
        if form is None:
            form = self._forms[name, vtable] = self._form(vtable, name)
        slots, size, present = form
        if start + size > end:
            raise refusal(f"a {name} table at byte {start} runs past the end of the file")
        values: Table = [None] * slots
        for (slot, field, kind, width, detail), offset in present:
            at = start + offset
            if kind == _SCALAR:
                if at % width:
                    raise refusal(f"{name}.{field} is misaligned at byte {at}")
                values[slot] = detail.unpack_from(data, at)[0]
                continue
            if kind == _UNION:
                member, members = values[slot - 1], self._unions[detail]
                if not member:  # readers go by the type, and read nothing
                    continue
                if member >= len(members):
                    what = f"{name}.{field} is of a kind that this edgekit does not know ({member})"
                    raise refusal(what, "Upgrade edgekit-deploy, or build the bundle again")
                detail = members[member]
            if at & 3:
                raise refusal(f"an offset is misaligned at byte {at}")
            target = at + _U32.unpack_from(data, at)[0]
            if kind in (_TABLE, _UNION):
                values[slot] = self.table(target, detail)
                continue
            self._visits += 1
            if target & 3 or target + 4 > end:
                raise refusal(f"the offset of {name}.{field} is out of bounds or misaligned: byte {target}")
            begin, count = target + 4, _U32.unpack_from(data, target)[0]
            if count * width > end - begin:
                raise refusal(f"{name}.{field} claims {count:,} elements, more than the file has room for")
            if kind == _VECTOR:
                if count and begin % width:
                    raise refusal(f"{name}.{field} is misaligned at byte {begin}")
                values[slot] = _span((begin, count))
            elif kind == _STRING:
                if begin + count >= end or data[begin + count]:
                    raise refusal(f"{name}.{field} at byte {target} does not end with a NUL")
                values[slot] = _span((begin, count))
            else:
                self._visits += count
                if self._visits > MAX_VISITS:
                    raise self._endless()
                offsets = enumerate(struct.unpack_from(f"<{count}I", data, begin))
                values[slot] = [self.table(begin + 4 * place + offset, detail) for place, offset in offsets]
        return values

    def _endless(self) -> ModelFileError:
        return refusal(f"it has more than {MAX_VISITS:,} parts, or repeats some without end")

    def _form(self, vtable: int, name: str) -> tuple[int, int, list[tuple[_Field, int]]]:
        """A vtable as this table's: number of slots, size of the table, present fields."""
        fields = self._fields.get(name)
        if fields is None:
            fields = self._fields[name] = _fields(self._schema[name])
        if vtable < 4 or vtable & 1 or vtable + 4 > self._size:
            raise refusal(f"the vtable of a {name} is out of bounds: byte {vtable}")
        length, size = _U16X2.unpack_from(self._data, vtable)
        if length < 4 or length & 1 or size < 4 or vtable + length > self._size:
            raise refusal(f"the vtable of a {name} at byte {vtable} is damaged")
        offsets = struct.unpack_from(f"<{length // 2 - 2}H", self._data, vtable + 4)
        present = []
        for field, offset in zip(fields, offsets, strict=False):  # a newer schema has more, an older one fewer
            if field is None or offset == 0:
                continue
            if offset < 4 or offset + (field.size if field.kind == _SCALAR else 4) > size:
                raise refusal(f"{name}.{field.name} lies outside its table")
            present.append((field, offset))
        return len(fields), size, present


def _fields(text: str) -> list[_Field | None]:
    """From `Name:kind Name:kind`; None for a slot without a kind, which is not read."""
    return [_field(slot, *word.split(":")) if ":" in word else None for slot, word in enumerate(text.split())]


def _field(slot: int, name: str, kind: str) -> _Field:
    inner = kind[1:-1]
    if kind in _SCALARS:
        scalar = struct.Struct("<" + _SCALARS[kind])
        return _Field(slot, name, _SCALAR, scalar.size, scalar)
    if kind == "str":
        return _Field(slot, name, _STRING, 1, None)
    if kind[0] == "<":
        return _Field(slot, name, _UNION, 4, inner)
    if kind[0] != "[":
        return _Field(slot, name, _TABLE, 4, kind)
    if inner in _SCALARS:
        return _Field(slot, name, _VECTOR, struct.calcsize("<" + _SCALARS[inner]), None)
    return _Field(slot, name, _TABLES, 4, inner)

"""A FlatBuffer as plain values, with every offset checked before it is followed.

    root = read(data, b"TFL3", "Model", TABLES, UNIONS)
    root[slot]                      # a number, a span, a list of tables, None if the file leaves it out

Rules of the format (https://flatbuffers.dev/internals/), as its own verifiers have them:
- a table, its vtable, every field, vector and string lies inside the file, aligned to its size;
- a string ends with a NUL that its length does not count;
- shared parts are counted each time, up to `MAX_VISITS`: a thousand references to one table cost an interpreter a
  thousand tables;
- the member of a union must be known. The schema has no circle among its tables, which bounds the depth.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edgekit_runtime.modelfile.check import refusal

MAX_VISITS = 200_000
"""Tables, vectors and strings that one file may have; MobileNetV2 has 1,500."""

Table = list[Any]
Schema = Mapping[str, str]
Unions = Mapping[str, Sequence[str]]

_SCALARS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
_SCALARS |= {"f32": "f", "f64": "d"}
_U32, _I32, _U16X2 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<HH")
_SCALAR, _STRING, _VECTOR, _STRINGS, _TABLE, _TABLES, _UNION = range(7)


class VectorSpan(NamedTuple):
    """A vector of scalars, or a string. start: byte in the file. length: elements."""

    start: int
    length: int


class _Field(NamedTuple):
    """kind: one of the numbers above.
    size: bytes of a scalar or of a vector's element.
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
    def __init__(self, data: bytes, schema: Schema, unions: Unions) -> None:
        self._data, self._size = data, len(data)
        self._schema, self._unions = schema, unions
        self._fields: dict[str, list[_Field | None]] = {}
        self._forms: dict[tuple[str, int], tuple[int, int, list[tuple[_Field, int]]]] = {}
        self._visits = 0

    def table(self, start: int, name: str) -> Table:
        """start: not checked yet."""
        self._count()
        if start & 3 or start + 4 > self._size:
            raise refusal(f"a {name} table at byte {start} lies outside the file, or askew in it")
        vtable = start - _I32.unpack_from(self._data, start)[0]
        form = self._forms.get((name, vtable))
        if form is None:
            form = self._forms[name, vtable] = self._form(vtable, name)
        slots, size, present = form
        if start + size > self._size:
            raise refusal(f"a {name} table at byte {start} runs over the end of the file")
        values: Table = [None] * slots
        for field, offset in present:
            kind, at = field.kind, start + offset
            if kind == _SCALAR:
                if at % field.size:
                    raise refusal(f"{name}.{field.name} lies askew at byte {at}")
                values[field.slot] = field.detail.unpack_from(self._data, at)[0]
            elif kind == _VECTOR:
                begin = self._target(at)
                count = self._length(begin, field, name)
                if count and (begin + 4) % field.size:
                    raise refusal(f"{name}.{field.name} lies askew at byte {begin + 4}")
                values[field.slot] = VectorSpan(begin + 4, count)
            elif kind == _TABLE:
                values[field.slot] = self.table(self._target(at), field.detail)
            elif kind == _TABLES:
                values[field.slot] = [self.table(target, field.detail) for target in self._targets(at, field, name)]
            elif kind == _STRING:
                values[field.slot] = self._string(self._target(at), field, name)
            elif kind == _STRINGS:
                found = [self._string(target, field, name) for target in self._targets(at, field, name)]
                values[field.slot] = found
            else:
                values[field.slot] = self._union(at, field, values[field.slot - 1], name)
        return values

    def _form(self, vtable: int, name: str) -> tuple[int, int, list[tuple[_Field, int]]]:
        """A vtable as this table's: number of slots, size of the table, present fields."""
        fields = self._fields.get(name)
        if fields is None:
            fields = self._fields[name] = _fields(self._schema[name])
        if vtable < 4 or vtable & 1 or vtable + 4 > self._size:
            raise refusal(f"the vtable of a {name} at byte {vtable} lies outside the file")
        length, size = _U16X2.unpack_from(self._data, vtable)
        if length < 4 or length & 1 or size < 4 or vtable + length > self._size:
            raise refusal(f"the vtable of a {name} at byte {vtable} is damaged")
        offsets = struct.unpack_from(f"<{length // 2 - 2}H", self._data, vtable + 4)
        present = []
        for field, offset in zip(fields, offsets, strict=False):  # a newer schema has more, an older one fewer
            if field is None or offset == 0:
                continue
            if offset < 4 or offset + (field.size if field.kind == _SCALAR else 4) > size:
                raise refusal(f"{name}.{field.name} lies outside of its table")
            present.append((field, offset))
        return len(fields), size, present

    def _target(self, at: int) -> int:
        """Where an offset leads."""
        if at & 3:
            raise refusal(f"an offset lies askew at byte {at}")
        target: int = at + _U32.unpack_from(self._data, at)[0]
        return target

    def _length(self, start: int, field: _Field, name: str) -> int:
        self._count()
        if start & 3 or start + 4 > self._size:
            raise refusal(f"{name}.{field.name} at byte {start} lies outside the file, or askew in it")
        count: int = _U32.unpack_from(self._data, start)[0]
        if count * field.size > self._size - start - 4:
            raise refusal(f"{name}.{field.name} claims {count:,} elements, more than the file has room for")
        return count

    def _string(self, start: int, field: _Field, name: str) -> VectorSpan:
        count = self._length(start, field, name)
        end = start + 4 + count
        if end >= self._size or self._data[end]:
            raise refusal(f"{name}.{field.name} at byte {start} does not end with a NUL")
        return VectorSpan(start + 4, count)

    def _targets(self, at: int, field: _Field, name: str) -> list[int]:
        start = self._target(at)
        if start & 3 or start + 4 > self._size:
            raise refusal(f"{name}.{field.name} at byte {start} lies outside the file, or askew in it")
        self._count()
        count = _U32.unpack_from(self._data, start)[0]
        if count * 4 > self._size - start - 4:
            raise refusal(f"{name}.{field.name} claims {count:,} entries, more than the file has room for")
        self._count(count)
        offsets = struct.unpack_from(f"<{count}I", self._data, start + 4)
        return [start + 4 + 4 * place + offset for place, offset in enumerate(offsets)]

    def _union(self, at: int, field: _Field, member: int | None, name: str) -> Table | None:
        if not member:  # readers go by the type, and read nothing
            return None
        members = self._unions[field.detail]
        if member >= len(members):
            what = f"{name}.{field.name} is of a kind that this edgekit does not know ({member})"
            raise refusal(what, "Upgrade edgekit-deploy, or build the bundle again")
        return self.table(self._target(at), members[member])

    def _count(self, more: int = 1) -> None:
        self._visits += more
        if self._visits > MAX_VISITS:
            raise refusal(f"it has more than {MAX_VISITS:,} parts, or repeats some without end")


def _fields(text: str) -> list[_Field | None]:
    """From `Name:kind Name:kind`."""
    found: list[_Field | None] = []
    for slot, word in enumerate(text.split()):
        name, _, kind = word.partition(":")
        found.append(_field(slot, name, kind) if kind else None)
    return found


def _field(slot: int, name: str, kind: str) -> _Field:
    if kind in _SCALARS:
        scalar = struct.Struct("<" + _SCALARS[kind])
        return _Field(slot, name, _SCALAR, scalar.size, scalar)
    if kind == "str":
        return _Field(slot, name, _STRING, 1, None)
    inner = kind[1:-1]
    if kind[0] == "<":
        return _Field(slot, name, _UNION, 4, inner)
    if kind[0] != "[":
        return _Field(slot, name, _TABLE, 4, kind)
    if inner in _SCALARS:
        return _Field(slot, name, _VECTOR, struct.calcsize("<" + _SCALARS[inner]), None)
    return _Field(slot, name, _STRINGS, 1, None) if inner == "str" else _Field(slot, name, _TABLES, 4, inner)

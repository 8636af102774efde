"""Where the parts of a .tflite file lie, so that a test can put a hostile number exactly there.

    file = Tflite(data); file.put("<i", file.shape_at("image"), 0)      # the batch becomes 0

Follows the FlatBuffers binary format (flatbuffers.dev, "Internals") and TensorFlow Lite's schema.fbs: Model = {version,
operator_codes, subgraphs, description, buffers}, SubGraph = {tensors, inputs, outputs, operators}, Tensor = {shape,
type, buffer, name}, Operator = {opcode_index, inputs, outputs}, OperatorCode = {deprecated_builtin_code, custom_code,
version, builtin_code}, Buffer = {data}.
"""

from __future__ import annotations

import struct


class Tflite:
    """data: the file, changed by `put`."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def bytes(self) -> bytes:
        return bytes(self.data)

    def get(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self.data, at)[0])

    def put(self, form: str, at: int, value: int) -> Tflite:
        struct.pack_into(form, self.data, at, value)
        return self

    def model(self) -> int:
        return self.follow(0)

    def follow(self, at: int) -> int:
        return at + self.get("<I", at)

    def field(self, table: int, number: int) -> int:
        """Where a table's field lies. Raises LookupError where it is absent."""
        vtable = table - self.get("<i", table)
        entry = 4 + 2 * number
        offset = self.get("<H", vtable + entry) if entry < self.get("<H", vtable) else 0
        if offset == 0:
            raise LookupError(number)
        return table + offset

    def vector(self, table: int, number: int) -> int:
        """Where a vector's length lies; its elements follow."""
        return self.follow(self.field(table, number))

    def each(self, vector: int) -> list[int]:
        """Where the tables of a vector of tables lie."""
        return [self.follow(vector + 4 + 4 * i) for i in range(self.get("<I", vector))]

    def text(self, table: int, number: int) -> str:
        at = self.vector(table, number)
        return self.data[at + 4 : at + 4 + self.get("<I", at)].decode()

    def subgraph(self) -> int:
        return self.each(self.vector(self.model(), 2))[0]

    def tensors(self) -> list[int]:
        return self.each(self.vector(self.subgraph(), 0))

    def tensor(self, name: str) -> int:
        return next(table for table in self.tensors() if self.text(table, 3) == name)

    def shape_at(self, name: str) -> int:
        """Of the first side."""
        return self.vector(self.tensor(name), 0) + 4

    def operators(self) -> list[int]:
        return self.each(self.vector(self.subgraph(), 3))

    def codes(self) -> list[int]:
        return self.each(self.vector(self.model(), 1))

    def buffers(self) -> list[int]:
        return self.each(self.vector(self.model(), 4))

"""The wire format of protobuf: a message as a list of its fields, each inside the message.

    for number, kind, value, end in fields(data, start, stop): ...

Kind 0: value is the varint, unsigned; kinds 1, 2 and 5: data[value:end] are the bytes (8, as said, 4).

Rules (https://protobuf.dev/programming-guides/encoding/):
- a field ends inside its message; a varint has at most 10 bytes, a key at most 5; field 0 and groups do not occur;
- nothing is copied and nothing recurses: the caller bounds how deep messages nest.
"""

from __future__ import annotations

from edgekit_runtime.modelfile.check import refusal

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
Field = tuple[int, int, int, int]


def fields(data: bytes, start: int, stop: int) -> list[Field]:
    """The fields of data[start:stop], in order. Raises ModelFileError."""
    found: list[Field] = []
    at = start
    try:
        while at < stop:
            key = data[at]
            at += 1
            if key > 127:
                key, at = _varint(data, at - 1, 5)
            number, kind = key >> 3, key & 7
            if kind == BYTES:
                value = data[at]
                at += 1
                if value > 127:
                    value, at = _varint(data, at - 1, 10)
                begin, at = at, at + value
                found.append((number, kind, begin, at))
            elif kind == VARINT:
                value = data[at]
                at += 1
                if value > 127:
                    value, at = _varint(data, at - 1, 10)
                found.append((number, kind, value, at))
            elif kind in (EIGHT, FOUR):
                begin, at = at, at + (8 if kind == EIGHT else 4)
                found.append((number, kind, begin, at))
            else:
                raise refusal(f"the protobuf has a field of kind {kind} at byte {at - 1}, which ONNX never writes")
            if number == 0 or at > stop:
                begin = begin if kind else at
                raise refusal(f"the protobuf is damaged: a field at byte {begin} runs out of its message")
    except IndexError:
        raise refusal("the protobuf is damaged: it ends inside a field") from None
    return found


def _varint(data: bytes, at: int, most: int) -> tuple[int, int]:
    value = 0
    for place in range(most):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise refusal(f"the protobuf is damaged: the number at byte {at} does not end")


def signed(value: int) -> int:
    """A varint as int64, as protobuf writes negative numbers."""
    return value - (1 << 64) if value >> 63 else value


def varints(data: bytes, start: int, stop: int) -> list[int]:
    """Packed varints as int64. Raises ModelFileError."""
    found = []
    at = start
    try:
        while at < stop:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1, 10)
            found.append(signed(value))
    except IndexError:
        at = stop + 1
    if at > stop:
        raise refusal("the protobuf is damaged: it ends inside a number")
    return found


def count_varints(data: bytes, start: int, stop: int) -> int:
    """How many packed varints: as many as there are bytes that end one."""
    piece = data[start:stop]
    return len(piece) - len(piece.translate(None, bytes(range(128))))

"""Named arrays as bytes, and back: what the disk tier stores of an answer. No pickle, and nothing in it is executed.

    data = pack({"probs": array})
    unpack(data)["probs"]               # a read-only view into `data`

Layout, little-endian: b"EKA1", u16 header length, header (JSON: [[name, dtype, shape], ...], or null for no answer at all),
padding, the arrays' bytes, each from a multiple of 16, and xxh3-64 of everything before it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash

__all__ = ["PackError", "pack", "unpack"]

_MAGIC = b"EKA1"
_HEAD = struct.Struct("<4sH")
_KINDS = "biufcUS"
_ALIGNED = 16
_SUM_BYTES = 8


class PackError(ValueError):
    """Bytes that `pack` did not write, or that changed since; outputs that have no such form."""


def pack(outputs: Any) -> bytes:
    """outputs: a mapping of name to array of numbers or text, or None. Raises PackError for anything else."""
    parts, table = [], None
    if outputs is not None:
        if not isinstance(outputs, Mapping):
            raise PackError(f"a {type(outputs).__name__} is no answer")
        table = []
        for name, array in outputs.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in _KINDS:
                raise PackError(f"'{name}' is no array of numbers or text")
            table.append([name, array.dtype.str, array.shape])
            parts.append(array.tobytes())
    header = json.dumps(table, separators=(",", ":")).encode()
    if len(header) >= 2**16:
        raise PackError("the names and shapes take more than 64 KiB")
    data = bytearray(_HEAD.pack(_MAGIC, len(header)) + header)
    for part in parts:
        data += bytes(-len(data) % _ALIGNED)
        data += part
    return bytes(data) + xxhash.xxh3_64_digest(data)


def unpack(data: bytes) -> Any:
    """What was packed; its arrays are read-only. Raises PackError where a single bit differs from what was written."""
    if len(data) < _HEAD.size + _SUM_BYTES or xxhash.xxh3_64_digest(data[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
        raise PackError("the checksum does not hold")
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise PackError("another format")
    try:
        table = json.loads(data[_HEAD.size : _HEAD.size + length])
        return None if table is None else MappingProxyType(_arrays(data, table, _HEAD.size + length))
    except (ValueError, TypeError, RecursionError) as error:
        raise PackError(f"the header makes no sense: {error}") from error


def _arrays(data: bytes, table: list[tuple[str, str, list[int]]], at: int) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for name, dtype, shape in table:
        kind = np.dtype(dtype)
        if kind.kind not in _KINDS or min(shape, default=0) < 0:
            raise PackError("no array of numbers or text")
        at += -at % _ALIGNED
        size = kind.itemsize * math.prod(shape)
        arrays[name] = np.ndarray(tuple(shape), kind, data[at : at + size])
        at += size
    return arrays

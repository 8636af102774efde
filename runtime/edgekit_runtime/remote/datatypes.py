"""The protocol's datatypes as NumPy arrays.
To and from little-endian bytes, to and from JSON lists.

    datatype_of(pixels.dtype)                              # "UINT8"
    from_bytes(view, "FP32", (1, 4), "input 'x'")          # a view where alignment allows, else a copy

Rules:
- nothing is trusted: sizes, types and ranges are checked before NumPy sees a value;
- arrays that come out are read-only and in C order;
- BYTES is refused: no model here takes strings. FP16 has no JSON form, NaN and infinity have none either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.errors import WireError, shorten

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {(dtype.kind, dtype.itemsize): name for name, dtype in DATATYPES.items()}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}

MAX_DIMS = 16
_MAX_BYTES = 2**40
"""Far above any body that is read; keeps the arithmetic on shapes within what NumPy can hold."""


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name. Raises WireError for a dtype that it has no name for."""
    name = _NAMES.get((dtype.kind, dtype.itemsize))
    if name is None:
        raise WireError(f"dtype {dtype} has no datatype in the protocol", do=f"Datatypes: {', '.join(DATATYPES)}")
    return name


def dtype_of(datatype: object, where: str) -> np.dtype[Any]:
    """Raises WireError for a datatype that is unknown, or known and not carried."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        what = (
            "datatype BYTES is not supported"
            if datatype == "BYTES"
            else f"there is no datatype {shorten(repr(datatype), 40)}"
        )
        raise WireError(what, where=where, do=f"Datatypes: {', '.join(DATATYPES)}")
    return dtype


def to_bytes(array: NDArray[Any]) -> memoryview:
    """The array's values in C order, little-endian; no copy where it is that already."""
    dtype = DATATYPES[datatype_of(array.dtype)]
    ready = np.ascontiguousarray(array, dtype)
    return ready.reshape(-1).view(np.uint8).data


def from_bytes(data: memoryview, datatype: object, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """data: exactly the tensor's bytes. Raises WireError when they are too many or too few."""
    dtype = dtype_of(datatype, where)
    wanted = count_of(shape, dtype, where) * dtype.itemsize
    if len(data) != wanted:
        raise WireError(f"{datatype} {list(shape)} takes {wanted} bytes, {len(data)} were sent", where=where)
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise WireError("a BOOL is one byte, 0 or 1", where=where)
    array = np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)
    if not array.flags.aligned:
        array = array.copy()
    return _sealed(array, shape)


def to_json(array: NDArray[Any], where: str) -> list[Any]:
    """A flat list. Raises WireError for values that JSON has no word for."""
    if array.dtype.kind == "f":
        if array.dtype.itemsize == 2:
            raise WireError("FP16 has no JSON form", where=where, do="Send it as binary, or as FP32")
        if not np.isfinite(array).all():
            raise WireError("NaN and infinity have no JSON form", where=where, do="Ask for binary data")
    values: list[Any] = array.reshape(-1).tolist()
    return values


def from_json(data: object, datatype: object, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """data: a flat list, or lists nested as the shape says.
    Raises WireError when it is neither or does not fit."""
    dtype = dtype_of(datatype, where)
    if datatype == "FP16":
        raise WireError("FP16 has no JSON form", where=where, do="Send it as binary, or as FP32")
    count = count_of(shape, dtype, where)
    flat = _flat(data, shape, where)
    if len(flat) != count:
        raise WireError(f"shape {list(shape)} takes {count} values, {len(flat)} were sent", where=where)
    if not set(map(type, flat)) <= _JSON_TYPES[dtype.kind]:
        raise WireError(f"a value in the data is no {datatype}", where=where)
    if dtype.kind in "ui" and flat:
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            raise WireError(f"a value in the data is out of {datatype}'s range", where=where)
    return _sealed(_floats(flat, dtype, where) if dtype.kind == "f" else np.array(flat, dtype), shape)


def count_of(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> int:
    """How many values; also refuses shapes that no array can have."""
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize > _MAX_BYTES:
        raise WireError(f"shape {list(shape)} is too large", where=where)
    return math.prod(shape)


def _flat(data: object, shape: tuple[int, ...], where: str) -> Sequence[Any]:
    if not isinstance(data, list):
        raise WireError("the data is no list", where=where)
    if len(shape) < 2 or not any(isinstance(v, list) for v in data):
        return data
    level: list[Any] = data
    for axis, length in enumerate(shape[1:], 1):
        if not all(isinstance(v, list) and len(v) == length for v in level):
            raise WireError(f"the nested data does not follow the shape at axis {axis}", where=where)
        level = list(chain.from_iterable(level))
    return level


def _floats(flat: Sequence[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError as error:
        raise WireError("a value in the data is too large", where=where) from error
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    if np.isinf(array).any():  # 1e999 is JSON
        raise WireError("a value in the data is too large", where=where)
    return array


def _sealed(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array = array.reshape(shape)
    array.flags.writeable = False
    return array

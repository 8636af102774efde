"""Tensors and operators of a .tflite file as they were read, and what holds for a tensor's scales and strings.

    tensor.shape, integers(data, span), slot("Tensor", "Shape")

Rules: there are as many scales as the axis that they stand for has sides, all of them numbers, with one zero point or as many;
strings lie inside their buffer, one behind another, as many as the shape says.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from edgekit_runtime.modelfile import tflite_schema as schema
from edgekit_runtime.modelfile.facts import bytes_of, refused
from edgekit_runtime.modelfile.flatbuffer import Span, Table

__all__ = ["BITS", "Node", "Tensor", "check_quantization", "check_strings", "integers", "slot", "slots"]

BITS = {
    "FLOAT32": 32,
    "FLOAT16": 16,
    "INT32": 32,
    "UINT8": 8,
    "INT64": 64,
    "BOOL": 8,
    "INT16": 16,
    "COMPLEX64": 64,
    "INT8": 8,
    "FLOAT64": 64,
    "COMPLEX128": 128,
    "UINT64": 64,
    "UINT32": 32,
    "UINT16": 16,
    "INT4": 4,
    "BFLOAT16": 16,
    "INT2": 2,
    "UINT4": 4,
    "FLOAT8_E4M3FN": 8,
    "FLOAT8_E5M2": 8,
}
"""A tensor type's bits an element; types without are of no fixed size (STRING, RESOURCE, VARIANT)."""


def slot(table: str, name: str) -> int:
    """Where a table keeps a field. KeyError for a name that the schema does not have."""
    names = [word.partition(":")[0] for word in schema.TABLES[table].split()]
    try:
        return names.index(name)
    except ValueError:
        raise KeyError(f"{table}.{name}") from None


def slots(table: str) -> dict[str, int]:
    return {word.partition(":")[0]: place for place, word in enumerate(schema.TABLES[table].split())}


def integers(data: bytes, span: Span | None) -> tuple[int, ...]:
    """A vector of i32."""
    return () if span is None else struct.unpack_from(f"<{span.length}i", data, span.start)


class Tensor(NamedTuple):
    """type: a name of `tflite_schema.TENSOR_TYPES`. data: where its constant stands, None for none. table: as it was read."""

    type: str
    shape: tuple[int, ...]
    data: Span | None
    variable: bool
    table: Table


class Node(NamedTuple):
    """An operator. options: the name of its table of options and that table."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: tuple[str, Table] | None


_TENSOR, _QUANTIZATION = slots("Tensor"), slots("QuantizationParameters")


def check_quantization(data: bytes, tensor: Tensor, what: str) -> None:
    table = tensor.table[_TENSOR["Quantization"]]
    scales, zeros = table[_QUANTIZATION["Scale"]], table[_QUANTIZATION["ZeroPoint"]]
    count = scales.length if scales else 0
    if not count:
        return
    if zeros is not None and zeros.length not in (1, count):
        raise refused(f"{what} has {count} scales and {zeros.length} zero points")
    if count > 1:
        axis = table[_QUANTIZATION["QuantizedDimension"]] or 0
        if not 0 <= axis < len(tensor.shape) or tensor.shape[axis] != count:
            raise refused(f"{what} has {count} scales along axis {axis} of {list(tensor.shape)}")
    if count == 1:
        (value,) = struct.unpack_from("<f", data, scales.start)
        finite = value - value == 0
    else:
        finite = bool(np.isfinite(np.frombuffer(data, "<f4", count, scales.start)).all())
    if not finite:
        raise refused(f"{what} has a scale that is no number")


def check_strings(data: bytes, tensor: Tensor, what: str) -> None:
    """The buffer holds how many there are, then where each begins and the last ends."""
    span = tensor.data
    assert span is not None
    if span.length >= 4:
        (count,) = struct.unpack_from("<i", data, span.start)
        wanted = bytes_of(tensor.shape, 8, what)
        if 0 <= count == wanted and 4 * (count + 2) <= span.length:
            bounds = integers(data, Span(span.start + 4, count + 1))
            if bounds[0] == 4 * (count + 2) and bounds[-1] <= span.length and list(bounds) == sorted(bounds):
                return
    raise refused(f"the strings of {what} do not lie inside its buffer")

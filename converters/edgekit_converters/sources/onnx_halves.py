"""float16 in an ONNX graph becomes float32: a board's CPU computes in float32, and every recipe starts from that.

Rules: all of it or nothing: weights, constants in nodes, what casts and generators are told to make, inputs and outputs, in
inner graphs too; the widened graph must answer as the file does, as far as float16 can tell.

    stored = widen(model)                   # b"" for a graph without float16, which stays as it is
    differs(before.run(x), after.run(x))    # "", or what is wrong in words
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx import array, new_constant, subgraphs, tensors

__all__ = ["differs", "widen"]

_TYPED = ("to", "dtype")  # attributes that name an element type: Cast, EyeLike, RandomNormal, SequenceEmpty, ...
_PRECISION = 2e-2
"""Of the largest magnitude: float16 keeps 11 bits, and a deep network adds up what each operator rounds."""


def widen(model: Any) -> bytes:
    """In place; what the model was before, in bytes, and nothing where there was no float16 to widen."""
    from onnx import TensorProto

    half, graphs = TensorProto.FLOAT16, list(subgraphs(model.graph))
    halves = [tensor for tensor in tensors(model) if tensor.data_type == half]
    types = [(holder, name) for graph in graphs for holder, name in _types(graph) if getattr(holder, name) == half]
    if not halves and not types:
        return b""
    before = bytes(model.SerializeToString())
    for tensor in halves:
        tensor.CopyFrom(new_constant(tensor.name, array(tensor).astype(np.float32)))
    for holder, name in types:
        setattr(holder, name, TensorProto.FLOAT)
    for graph in graphs:
        del graph.value_info[:]  # what lies in between follows
    return before


def differs(before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> str:
    """What is wrong with the second answers, in words; "" where they are the first's as far as float16 can tell.

    An answer that is too large for float16 says nothing, and neither does an integer one: a tie may fall otherwise.
    """
    for index, (want, got) in enumerate(zip(before, after, strict=True)):
        if want.shape != got.shape:
            return f"output {index} is {list(got.shape)} and not {list(want.shape)}"
        if want.dtype.kind != "f" or not np.isfinite(want).all():
            continue
        error = np.abs(want.astype(np.float64) - got.astype(np.float64)).max(initial=0.0)
        if not error <= _PRECISION * max(1.0, float(np.abs(want).max(initial=0.0))):
            return f"output {index} is {error:.3g} off"
    return ""


def _types(graph: Any) -> Iterator[tuple[Any, str]]:
    """Where an element type stands, and the field's name."""
    for value in (*graph.input, *graph.output):
        yield from ((kind, "elem_type") for kind in _kinds(value.type))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPED and attribute.type == attribute.INT:
                yield attribute, "i"


def _kinds(kind: Any) -> Iterator[Any]:
    """The tensor types in a type: of itself, or of a sequence's or an optional's elements."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which)
    elif which in ("sequence_type", "optional_type"):
        yield from _kinds(getattr(kind, which).elem_type)

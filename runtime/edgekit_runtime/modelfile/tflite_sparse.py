"""A sparse constant of a .tflite file: whether its levels lead to each other and to its values.

check_sparsity(data, tensor, "tensor 3 of graph 0")

A constant is stored level by level (https://arxiv.org/abs/1703.09542 describes the form, `SparsityParameters` in TFLite's
schema names it): a dense level has every index, a compressed one has segments, which say where in its indices each node of
the level above begins. Unpacking follows them without looking (CVE-2022-23560), so here
- the order of traversal names every side and every block once, and a block divides its side;
- segments begin at 0, do not fall, end with the number of indices, and there is one for each node above;
- indices lie within the side; as many values are stored as the last level has nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.modelfile.facts import refused
from edgekit_runtime.modelfile.flatbuffer import Table
from edgekit_runtime.modelfile.tflite_tensors import BITS, Tensor, integers, slot

__all__ = ["check_sparsity"]

_DTYPES: dict[str, Any] = {"Int32Vector": "<i4", "Uint16Vector": "<u2", "Uint8Vector": "u1"}
_KINDS = ("NONE", "Int32Vector", "Uint16Vector", "Uint8Vector")


def check_sparsity(data: bytes, tensor: Tensor, what: str) -> None:
    """Raises ModelFileError."""
    table = tensor.table[slot("Tensor", "Sparsity")]
    order = integers(data, table[slot("SparsityParameters", "TraversalOrder")])
    blocks = integers(data, table[slot("SparsityParameters", "BlockMap")])
    levels: list[Table] = table[slot("SparsityParameters", "DimMetadata")] or []
    rank = len(tensor.shape)
    if tensor.data is None or tensor.type not in BITS:
        raise refused(f"{what} is sparse and has no values")
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise refused(f"the levels of the sparse {what} are not those of its {rank} sides and {len(blocks)} blocks")
    sides = _sides(tensor, blocks, levels, what)
    nodes = 1
    for level, side in zip(levels, (sides[place] for place in order), strict=True):
        nodes = _nodes(data, level, side, nodes, what)
    stored = tensor.data.length * 8 // BITS[tensor.type]
    if nodes != stored:
        raise refused(f"the sparse {what} has {stored:,} values for {nodes:,} places")


def _sides(tensor: Tensor, blocks: tuple[int, ...], levels: list[Table], what: str) -> list[int]:
    """How long each level may be: the sides in blocks, then the blocks."""
    sides = list(tensor.shape)
    for place, axis in enumerate(blocks):
        size = levels[len(tensor.shape) + place][slot("DimensionMetadata", "DenseSize")] or 0
        if not 0 <= axis < len(tensor.shape) or size < 1 or sides[axis] % size:
            raise refused(f"block {place} of the sparse {what} does not divide a side of it")
        sides[axis] //= size
        sides.append(size)
    return sides


def _nodes(data: bytes, level: Table, side: int, above: int, what: str) -> int:
    if (level[slot("DimensionMetadata", "Format")] or 0) == 0:
        if (level[slot("DimensionMetadata", "DenseSize")] or 0) != side:
            raise refused(f"a dense level of the sparse {what} is not as long as its side, {side}")
        return above * side
    segments = _vector(data, level, "ArraySegments", what)
    indices = _vector(data, level, "ArrayIndices", what)
    if len(segments) != above + 1 or segments[0] != 0 or segments[-1] != len(indices) or (np.diff(segments) < 0).any():
        raise refused(f"the segments of the sparse {what} do not lead to its indices")
    if len(indices) and not (indices.min() >= 0 and indices.max() < side):
        raise refused(f"an index of the sparse {what} lies outside its side of {side}")
    return len(indices)


def _vector(data: bytes, level: Table, name: str, what: str) -> NDArray[np.int64]:
    kind = _KINDS[level[slot("DimensionMetadata", f"{name}Type")] or 0]
    table = level[slot("DimensionMetadata", name)]
    span = None if table is None or kind == "NONE" else table[slot(kind, "Values")]
    if span is None or not span.length:
        if name == "ArrayIndices" and kind != "NONE":
            return np.zeros(0, np.int64)
        raise refused(f"a level of the sparse {what} has no {name}")
    return np.frombuffer(data, _DTYPES[kind], span.length, span.start).astype(np.int64)

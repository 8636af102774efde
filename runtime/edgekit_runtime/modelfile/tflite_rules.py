"""What the scales, strings, sparse levels and options of a .tflite file must satisfy.

    check_node(data, node, tensors, "operator 3 (CONV_2D) of graph 0")

Rules, none stricter than a kernel's arithmetic needs (advisories: tensorflow/tensorflow/security/advisory):
- a stride, a block, a number of parts and a side of a weight that a kernel divides by is at least 1;
- an input that a kernel reads unchecked is there;
- there are as many scales as their axis has sides, all finite, with one zero point or as many;
- strings lie inside their buffer, one after another, as many as the shape says;
- the levels of a sparse constant lead to each other and to its values.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.modelfile import tflite_schema as schema
from edgekit_runtime.modelfile.check import bytes_of, refusal
from edgekit_runtime.modelfile.flatbuffer import Table, VectorSpan

_TYPES_OF_BITS = {
    2: "INT2",
    4: "INT4 UINT4",
    8: "BOOL INT8 UINT8 FLOAT8_E4M3FN FLOAT8_E5M2",
    16: "INT16 UINT16 FLOAT16 BFLOAT16",
    32: "INT32 UINT32 FLOAT32",
    64: "INT64 UINT64 FLOAT64 COMPLEX64",
    128: "COMPLEX128",
}
BITS = {name: bits for bits, names in _TYPES_OF_BITS.items() for name in names.split()}
"""A tensor type's bits an element; STRING, RESOURCE and VARIANT have no fixed size."""


def slot(table: str, name: str) -> int:
    """Where a table keeps a field. Raises KeyError for a name that the schema does not have."""
    return slots(table)[name]


def slots(table: str) -> dict[str, int]:
    return {word.partition(":")[0]: place for place, word in enumerate(schema.TABLES[table].split())}


def integers(data: bytes, span: VectorSpan | None) -> tuple[int, ...]:
    """A vector of i32."""
    return () if span is None else struct.unpack_from(f"<{span.length}i", data, span.start)


class CheckedTensor(NamedTuple):
    """type: a name of `tflite_schema.TENSOR_TYPES`.
    data: where its constant is, None without one.
    table: as it was read."""

    type: str
    shape: tuple[int, ...]
    data: VectorSpan | None
    variable: bool
    table: Table


class OperatorNode(NamedTuple):
    """An operator. options: the name of its table of options and that table."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: tuple[str, Table] | None


_TENSOR, _QUANTIZATION = slots("Tensor"), slots("QuantizationParameters")


def check_quantization(data: bytes, tensor: CheckedTensor, what: str) -> None:
    table = tensor.table[_TENSOR["Quantization"]]
    scales, zeros = table[_QUANTIZATION["Scale"]], table[_QUANTIZATION["ZeroPoint"]]
    count = scales.length if scales else 0
    if not count:
        return
    if zeros is not None and zeros.length not in (1, count):
        raise refusal(f"{what} has {count} scales and {zeros.length} zero points")
    if count > 1:
        axis = table[_QUANTIZATION["QuantizedDimension"]] or 0
        if not 0 <= axis < len(tensor.shape) or tensor.shape[axis] != count:
            raise refusal(f"{what} has {count} scales along axis {axis} of {list(tensor.shape)}")
    if count == 1:
        (value,) = struct.unpack_from("<f", data, scales.start)
        finite = value - value == 0
    else:
        finite = bool(np.isfinite(np.frombuffer(data, "<f4", count, scales.start)).all())
    if not finite:
        raise refusal(f"{what} has a scale that is not finite")


def check_strings(data: bytes, tensor: CheckedTensor, what: str) -> None:
    """The buffer holds the count, then where each string begins and the last ends."""
    span = tensor.data
    assert span is not None
    if span.length >= 4:
        (count,) = struct.unpack_from("<i", data, span.start)
        wanted = bytes_of(tensor.shape, 8, what)
        if 0 <= count == wanted and 4 * (count + 2) <= span.length:
            bounds = integers(data, VectorSpan(span.start + 4, count + 1))
            if bounds[0] == 4 * (count + 2) and bounds[-1] <= span.length and list(bounds) == sorted(bounds):
                return
    raise refusal(f"the strings of {what} lie outside its buffer")


_POSITIVE = {
    "Conv2DOptions": "StrideW StrideH DilationWFactor DilationHFactor",  # CVE-2021-29585, -29594
    "Conv3DOptions": "StrideD StrideW StrideH DilationDFactor DilationWFactor DilationHFactor",
    "DepthwiseConv2DOptions": "StrideW StrideH DilationWFactor DilationHFactor",  # CVE-2022-21741
    "TransposeConvOptions": "StrideW StrideH",  # CVE-2021-29588
    "Pool2DOptions": "StrideW StrideH FilterWidth FilterHeight",  # CVE-2021-29586, -37684
    "SpaceToDepthOptions": "BlockSize",  # CVE-2021-29587
    "DepthToSpaceOptions": "BlockSize",  # CVE-2021-29595
    "SplitOptions": "NumSplits",  # CVE-2021-29599
    "SplitVOptions": "NumSplits",
    "SVDFOptions": "Rank",  # CVE-2021-29598
}
_ABSENT = {"DilationWFactor": 1, "DilationHFactor": 1, "DilationDFactor": 1}
"""Default of a field that is left out; 0 otherwise."""
_NEEDS = {
    2: "CONV_2D DEPTHWISE_CONV_2D CONV_3D FULLY_CONNECTED BATCH_MATMUL ADD SUB MUL DIV MAXIMUM MINIMUM PAD TILE "
    "TRANSPOSE GATHER GATHER_ND EMBEDDING_LOOKUP SPLIT RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    3: "TRANSPOSE_CONV SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND HASHTABLE_LOOKUP PADV2 SLICE SPLIT_V SVDF",
    4: "STRIDED_SLICE",
}
_REQUIRED = {name: count for count, names in _NEEDS.items() for name in names.split()}
"""How many of the first inputs must be there (CVE-2020-15209, -15211); of other operators the first."""
_FULL = {
    "CONV_2D": (0, 1, 2),  # CVE-2021-29594; a bias: CVE-2022-23557
    "DEPTHWISE_CONV_2D": (0, 1, 2),
    "CONV_3D": (0, 1, 2),
    "TRANSPOSE_CONV": (1, 2),
    "FULLY_CONNECTED": (1, 2),  # CVE-2021-37680
    "EMBEDDING_LOOKUP": (1,),  # CVE-2021-29596
    "HASHTABLE_LOOKUP": (2,),  # CVE-2021-29604
    "GATHER_ND": (0,),  # CVE-2021-29589
    "SPACE_TO_BATCH_ND": (1,),  # CVE-2021-29597
    "BATCH_TO_SPACE_ND": (1,),  # CVE-2021-29593
    "AVERAGE_POOL_2D": (0,),
    "MAX_POOL_2D": (0,),
    "L2_POOL_2D": (0,),
    "SVDF": (0, 1, 2),
}
"""Inputs with no side of 0."""
_BLOCKS = {"SPACE_TO_BATCH_ND": 1, "BATCH_TO_SPACE_ND": 1}
"""Inputs whose constant values are divided by."""
_PLACES = {table: [(name, slot(table, name)) for name in names.split()] for table, names in _POSITIVE.items()}
_NO_OUTPUT = frozenset({"ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE_IMPORT", "WHILE", "IF", "CALL", "STABLEHLO_WHILE"})


def check_node(data: bytes, node: OperatorNode, tensors: list[CheckedTensor], what: str) -> None:
    """Raises ModelFileError."""
    inputs = node.inputs
    needed = _REQUIRED.get(node.op, 1 if inputs else 0)
    if len(inputs) < needed or -1 in inputs[:needed]:
        raise refusal(f"{what} lacks one of its first {needed} inputs")
    if node.options is not None and node.options[0] in _PLACES:
        name, table = node.options
        for option, place in _PLACES[name]:
            value = table[place]
            if (_ABSENT.get(option, 0) if value is None else value) < 1:
                raise refusal(f"{what} has a {option} of {value or 0}, which would be divided by")
    for place in _FULL.get(node.op, ()):
        if place < len(inputs) and inputs[place] >= 0 and 0 in tensors[inputs[place]].shape:
            raise refusal(f"{what} has an input without elements: {list(tensors[inputs[place]].shape)}")
    if node.op in _BLOCKS:
        tensor = tensors[inputs[_BLOCKS[node.op]]]
        if tensor.data is not None and tensor.type == "INT32" and min(values(data, tensor), default=1) < 1:
            raise refusal(f"{what} has a block of {min(values(data, tensor))}, which would be divided by")
    if not node.outputs and node.op not in _NO_OUTPUT:
        raise refusal(f"{what} has no output")


def values(data: bytes, tensor: CheckedTensor) -> tuple[int, ...]:
    """A constant of INT32."""
    span = tensor.data
    return () if span is None else integers(data, span._replace(length=span.length // 4))


_DTYPES: dict[str, Any] = {"Int32Vector": "<i4", "Uint16Vector": "<u2", "Uint8Vector": "u1"}
_KINDS = ("NONE", "Int32Vector", "Uint16Vector", "Uint8Vector")


def check_sparsity(data: bytes, tensor: CheckedTensor, what: str) -> None:
    """Raises ModelFileError unless a sparse constant's levels lead to its values.
    A dense level (https://arxiv.org/abs/1703.09542) has every index; a compressed one has segments, which say where in
    its indices each node of the level above begins. Unpacking follows them unchecked (CVE-2022-23560), so here
    - the order of traversal names every side and every block once, and a block divides its side;
    - segments begin at 0, do not fall, end with the number of indices, and there is one for each node above;
    - indices lie within the side; as many values are stored as the last level has nodes."""
    table = tensor.table[slot("Tensor", "Sparsity")]
    order = integers(data, table[slot("SparsityParameters", "TraversalOrder")])
    blocks = integers(data, table[slot("SparsityParameters", "BlockMap")])
    levels: list[Table] = table[slot("SparsityParameters", "DimMetadata")] or []
    rank = len(tensor.shape)
    if tensor.data is None or tensor.type not in BITS:
        raise refusal(f"{what} is sparse and has no values")
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise refusal(f"the levels of the sparse {what} are not those of its {rank} sides and {len(blocks)} blocks")
    sides = list(tensor.shape)  # how long each level may be: the sides in blocks, then the blocks
    for place, axis in enumerate(blocks):
        size = levels[rank + place][slot("DimensionMetadata", "DenseSize")] or 0
        if not 0 <= axis < rank or size < 1 or sides[axis] % size:
            raise refusal(f"block {place} of the sparse {what} does not divide a side of it")
        sides[axis] //= size
        sides.append(size)
    nodes = 1
    for level, side in zip(levels, (sides[place] for place in order), strict=True):
        nodes = _nodes(data, level, side, nodes, what)
    stored = tensor.data.length * 8 // BITS[tensor.type]
    if nodes != stored:
        raise refusal(f"the sparse {what} has {stored:,} values for {nodes:,} places")


def _nodes(data: bytes, level: Table, side: int, above: int, what: str) -> int:
    if (level[slot("DimensionMetadata", "Format")] or 0) == 0:
        if (level[slot("DimensionMetadata", "DenseSize")] or 0) != side:
            raise refusal(f"a dense level of the sparse {what} is not as long as its side, {side}")
        return above * side
    segments = _vector(data, level, "ArraySegments", what)
    indices = _vector(data, level, "ArrayIndices", what)
    if len(segments) != above + 1 or segments[0] != 0 or segments[-1] != len(indices) or (np.diff(segments) < 0).any():
        raise refusal(f"the segments of the sparse {what} do not lead to its indices")
    if len(indices) and not (indices.min() >= 0 and indices.max() < side):
        raise refusal(f"an index of the sparse {what} lies outside its side of {side}")
    return len(indices)


def _vector(data: bytes, level: Table, name: str, what: str) -> NDArray[np.int64]:
    kind = _KINDS[level[slot("DimensionMetadata", f"{name}Type")] or 0]
    table = level[slot("DimensionMetadata", name)]
    span = None if table is None or kind == "NONE" else table[slot(kind, "Values")]
    if span is None or not span.length:
        if name == "ArrayIndices" and kind != "NONE":
            return np.zeros(0, np.int64)
        raise refusal(f"a level of the sparse {what} has no {name}")
    return np.frombuffer(data, _DTYPES[kind], span.length, span.start).astype(np.int64)

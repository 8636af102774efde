"""What single TFLite operators take for granted, and published files made kernels fall over.

check_node(data, node, tensors, "operator 3 (CONV_2D) of graph 0")

Each rule is one that its kernel's arithmetic needs: a stride, a block or a number of parts that it divides by, a side of a
weight that it divides by, an input that it reads without asking whether there is one. The advisories are those of
tensorflow/tensorflow/security/advisory. Nothing here asks for more than a kernel does.
"""

from __future__ import annotations

from edgekit_runtime.modelfile import tflite_schema as schema
from edgekit_runtime.modelfile.facts import refused
from edgekit_runtime.modelfile.tflite_tensors import Node, Tensor, integers

__all__ = ["check_node"]

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
"""What a field that is left out stands for; 0 otherwise."""
_REQUIRED = {
    "CONV_2D": 2,
    "DEPTHWISE_CONV_2D": 2,
    "FULLY_CONNECTED": 2,
    "TRANSPOSE_CONV": 3,
    "CONV_3D": 2,
    "BATCH_MATMUL": 2,
    "ADD": 2,
    "SUB": 2,
    "MUL": 2,
    "DIV": 2,
    "GATHER": 2,
    "GATHER_ND": 2,
    "EMBEDDING_LOOKUP": 2,
    "HASHTABLE_LOOKUP": 3,
    "PAD": 2,
    "PADV2": 3,
    "TILE": 2,
    "TRANSPOSE": 2,
    "STRIDED_SLICE": 4,
    "SLICE": 3,
    "SPLIT": 2,
    "SPLIT_V": 3,
    "RESIZE_BILINEAR": 2,
    "RESIZE_NEAREST_NEIGHBOR": 2,
    "SPACE_TO_BATCH_ND": 3,
    "BATCH_TO_SPACE_ND": 3,
    "MAXIMUM": 2,
    "MINIMUM": 2,
    "SVDF": 3,
}
"""How many inputs, from the first, must be there (CVE-2020-15209, -15211). Every operator needs the first that it has."""
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
_PLACES = {
    table: [
        (name, [word.partition(":")[0] for word in schema.TABLES[table].split()].index(name)) for name in names.split()
    ]
    for table, names in _POSITIVE.items()
}


def check_node(data: bytes, node: Node, tensors: list[Tensor], what: str) -> None:
    """Raises ModelFileError."""
    inputs = node.inputs
    needed = _REQUIRED.get(node.op, 1 if inputs else 0)
    if len(inputs) < needed or -1 in inputs[:needed]:
        raise refused(f"{what} lacks one of its first {needed} inputs")
    if node.options is not None and node.options[0] in _PLACES:
        name, table = node.options
        for option, place in _PLACES[name]:
            value = table[place]
            if (_ABSENT.get(option, 0) if value is None else value) < 1:
                raise refused(f"{what} has a {option} of {value or 0}, which would be divided by")
    for place in _FULL.get(node.op, ()):
        if place < len(inputs) and inputs[place] >= 0 and 0 in tensors[inputs[place]].shape:
            raise refused(f"{what} has an input without elements: {list(tensors[inputs[place]].shape)}")
    if node.op in _BLOCKS:
        tensor = tensors[inputs[_BLOCKS[node.op]]]
        if tensor.data is not None and tensor.type == "INT32" and min(values(data, tensor), default=1) < 1:
            raise refused(f"{what} has a block of {min(values(data, tensor))}, which would be divided by")
    if not node.outputs and node.op not in _NO_OUTPUT:
        raise refused(f"{what} has no output")


_NO_OUTPUT = frozenset({"ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE_IMPORT", "WHILE", "IF", "CALL", "STABLEHLO_WHILE"})


def values(data: bytes, tensor: Tensor) -> tuple[int, ...]:
    """A constant of INT32."""
    span = tensor.data
    return () if span is None else integers(data, span._replace(length=span.length // 4))

"""What a TensorFlow graph runs for its answers, and which operators of it are arithmetic.

Rules:
- only what the named values reach counts: their inputs, and every function that those operators call, at any depth;
- an operator is taken because it stands in the list, never because it is missing from another one.

    nodes = reached(graph_def, ["StatefulPartitionedCall:0"])
    foreign = beyond_arithmetic(nodes)                  # ["WriteFile"]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["ARITHMETIC", "beyond_arithmetic", "prune", "reached", "writes_state"]

ARITHMETIC = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Any ArgMax ArgMin Asin Asinh Atan Atan2
    Atanh AvgPool AvgPool3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpace BatchToSpaceND BiasAdd BiasAddV1 Bincount
    Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastTo Bucketize Cast Ceil CheckNumerics ClipByValue
    CombinedNonMaxSuppression Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj Conv2D Conv2DBackpropInput Conv3D
    Conv3DBackpropInputV2 Cos Cosh CropAndResize Cross Cumprod Cumsum CumulativeLogsumexp DenseBincount DepthToSpace
    DepthwiseConv2dNative Diag DiagPart Div DivNoNan DynamicPartition DynamicStitch Einsum Elu Equal Erf Erfc Exp ExpandDims
    Expm1 ExtractImagePatches FFT FFT2D FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel
    Fill Floor FloorDiv FloorMod FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 Gather GatherNd GatherV2 Greater
    GreaterEqual IFFT IFFT2D IRFFT IRFFT2D Imag InTopKV2 Invert InvertPermutation IsFinite IsInf IsNan L2Loss LRN
    LSTMBlockCell LeakyRelu LeftShift Less LessEqual Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    LowerBound MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixDiagV2 MatrixDiagV3 MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 Max MaxPool MaxPool3D MaxPoolV2
    MaxPoolWithArgmax Maximum Mean Min Minimum MirrorPad Mod Mul MulNoNan Multinomial Neg NonMaxSuppression
    NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 NotEqual OneHot OnesLike Pack Pad PadV2
    ParallelDynamicStitch Pow Prod RFFT RFFT2D RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt Range Rank
    Real RealDiv Reciprocal Relu Relu6 Reshape ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor ReverseSequence
    ReverseV2 RightShift Rint Roll Round Rsqrt ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Select
    SelectV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToBatch SpaceToBatchND
    SpaceToDepth SparseToDense Split SplitV Sqrt Square SquaredDifference Squeeze StatelessMultinomial StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2 StridedSlice Sub Sum Tan Tanh TensorScatterAdd
    TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopK TopKV2 Transpose TruncateDiv
    TruncateMod Unique UniqueWithCounts Unpack UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
    UpperBound Where Xdivy Xlogy ZerosLike

    EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem
    TensorListLength TensorListPushBack TensorListPopBack TensorListReserve TensorListResize TensorListScatterV2
    TensorListSetItem TensorListSplit TensorListStack TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3
    TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3 TensorArrayV3 TensorArrayWriteV3

    Assert Const EnsureShape Enter Exit Identity IdentityN If LoopCond Merge NextIteration NoOp PartitionedCall Placeholder
    PlaceholderV2 PlaceholderWithDefault PreventGradient StatefulPartitionedCall StatelessIf StatelessWhile StopGradient
    Switch While

    ReadVariableOp ResourceGather ResourceGatherNd VarHandleOp VarIsInitializedOp Variable VariableV2
    """.split()  # noqa: SIM905
)
"""Numbers in, numbers out: what TFLite's converter or tf2onnx can turn into a board's operators; then lists, flow, weights."""

_WRITES = (
    "Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
    "ResourceScatterAdd", "ResourceScatterUpdate", "ResourceScatterNdUpdate", "ResourceStridedSliceAssign", "ScatterUpdate",
)  # fmt: skip


def reached(graph_def: Any, values: Iterable[str]) -> list[Any]:
    """Nodes that compute the named values or nodes, control inputs and called functions included."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    top = {node.name: node for node in graph_def.node}
    nodes = _behind(top, values)
    called, waiting = set[str](), list(_called(nodes))
    while waiting:
        name = waiting.pop()
        if name in called or name not in functions:
            continue
        called.add(name)
        inside = list(
            functions[name].node_def
        )  # a function runs its stateful operators, whether it returns them or not
        nodes += inside
        waiting += _called(inside)
    return nodes


def prune(graph_def: Any, values: Iterable[str]) -> Any:
    """The graph with what the values reach, and nothing else."""
    pruned = type(graph_def)()
    pruned.versions.CopyFrom(graph_def.versions)
    top = _behind({node.name: node for node in graph_def.node}, values)
    pruned.node.extend(top)
    nodes = reached(graph_def, [node.name for node in top])
    wanted = set(_called(nodes))
    pruned.library.function.extend(f for f in graph_def.library.function if f.signature.name in wanted)
    return pruned


def beyond_arithmetic(nodes: Iterable[Any]) -> list[str]:
    """Operators that are not in the list, by name."""
    return sorted({node.op for node in nodes} - ARITHMETIC)


def writes_state(nodes: Iterable[Any]) -> bool:
    """True when one of them writes to a variable."""
    return any(node.op in _WRITES for node in nodes)


def _behind(by_name: dict[str, Any], values: Iterable[str]) -> list[Any]:
    found: dict[str, Any] = {}
    waiting = [_node(value) for value in values]
    while waiting:
        name = waiting.pop()
        if name in found or name not in by_name:
            continue
        found[name] = by_name[name]
        waiting += [_node(value) for value in by_name[name].input]
    return [node for name, node in by_name.items() if name in found]  # in the file's order


def _node(value: str) -> str:
    return value.removeprefix("^").partition(":")[0]


def _called(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        for attribute in node.attr.values():
            kind = attribute.WhichOneof("value")
            if kind == "func":
                yield attribute.func.name
            elif kind == "list":
                yield from (function.name for function in attribute.list.func)

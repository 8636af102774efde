"""Keras models and SavedModels as sources that TensorFlow traces, and what their graphs run.

    source = describe_traced(network, Origin(path, "keras", sha256), inputs, outputs)
    nodes = reachable_nodes(graph_def, ["StatefulPartitionedCall:0"])
    foreign = beyond_arithmetic(nodes)                  # ["WriteFile"]

Rules:
- inference mode; free axes other than the batch were pinned before; a run on zeros describes the outputs;
- a network that writes to a variable while it answers keeps a state inside, and is refused;
- only what the named values reach counts: their inputs, and every function that those operators call, at any depth;
- an operator must be in the list, else it is foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError, one_line
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_converters.sources.shapes import measured_outputs
from edgekit_converters.sources.source_model import Note, SourceModel
from edgekit_runtime.contract.spec import TensorSpec

ARITHMETIC = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Any ArgMax ArgMin Asin Asinh Atan
    Atan2 Atanh AvgPool AvgPool3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpace BatchToSpaceND BiasAdd BiasAddV1
    Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastTo Bucketize Cast Ceil CheckNumerics
    ClipByValue CombinedNonMaxSuppression Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj Conv2D
    Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 Cos Cosh CropAndResize Cross Cumprod Cumsum CumulativeLogsumexp
    DenseBincount DepthToSpace DepthwiseConv2dNative Diag DiagPart Div DivNoNan DynamicPartition DynamicStitch Einsum
    Elu Equal Erf Erfc Exp ExpandDims Expm1 ExtractImagePatches FFT FFT2D FakeQuantWithMinMaxArgs
    FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel Fill Floor FloorDiv FloorMod FusedBatchNorm
    FusedBatchNormV2 FusedBatchNormV3 Gather GatherNd GatherV2 Greater GreaterEqual IFFT IFFT2D IRFFT IRFFT2D Imag
    InTopKV2 Invert InvertPermutation IsFinite IsInf IsNan L2Loss LRN LSTMBlockCell LeakyRelu LeftShift Less LessEqual
    Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart
    MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
    MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 Max MaxPool MaxPool3D MaxPoolV2 MaxPoolWithArgmax
    Maximum Mean Min Minimum MirrorPad Mod Mul MulNoNan Multinomial Neg NonMaxSuppression NonMaxSuppressionV2
    NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 NotEqual OneHot OnesLike Pack Pad PadV2
    ParallelDynamicStitch Pow Prod RFFT RFFT2D RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt Range
    Rank Real RealDiv Reciprocal Relu Relu6 Reshape ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor
    ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd
    SegmentSum Select SelectV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToBatch
    SpaceToBatchND SpaceToDepth SparseToDense Split SplitV Sqrt Square SquaredDifference Squeeze StatelessMultinomial
    StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2 StridedSlice Sub Sum
    Tan Tanh TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopK TopKV2
    Transpose TruncateDiv TruncateMod Unique UniqueWithCounts Unpack UnsortedSegmentMax UnsortedSegmentMin
    UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlogy ZerosLike

    EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem
    TensorListLength TensorListPushBack TensorListPopBack TensorListReserve TensorListResize TensorListScatterV2
    TensorListSetItem TensorListSplit TensorListStack TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3
    TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3 TensorArrayV3 TensorArrayWriteV3

    Assert Const EnsureShape Enter Exit Identity IdentityN If LoopCond Merge NextIteration NoOp PartitionedCall
    Placeholder PlaceholderV2 PlaceholderWithDefault PreventGradient StatefulPartitionedCall StatelessIf StatelessWhile
    StopGradient Switch While

    ReadVariableOp ResourceGather ResourceGatherNd VarHandleOp VarIsInitializedOp Variable VariableV2
    """.split()  # noqa: SIM905
)
"""What TFLite's converter or tf2onnx can turn into a board's operators; then lists, flow, weights."""

_WRITES = (
    "Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
    "ResourceScatterAdd", "ResourceScatterUpdate", "ResourceScatterNdUpdate", "ResourceStridedSliceAssign",
    "ScatterUpdate",
)  # fmt: skip


def reachable_nodes(graph_def: Any, values: Iterable[str]) -> list[Any]:
    """Nodes that compute the given names or nodes, with control inputs and called functions."""
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
    nodes = reachable_nodes(graph_def, [node.name for node in top])
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


@dataclass(frozen=True)
class TracedNetwork:
    """function: flat tensors in the order of the inputs -> a flat list in that of the outputs.
    variables: TensorFlow's, and whatever else the function reads (tables).
    tools: distributions that read the file, besides TensorFlow."""

    function: Callable[..., list[Any]]
    variables: Sequence[Any] = ()
    tools: tuple[str, ...] = ()
    holds: Any = None  # TensorFlow frees what nothing refers to


@dataclass(frozen=True)
class Origin:
    """Where a network came from."""

    path: Path
    format: str
    sha256: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedSource(SourceModel):
    """A source that TensorFlow can trace: Keras 3, tf_keras, a SavedModel."""

    network: TracedNetwork = field(repr=False)

    @property
    def variables(self) -> Sequence[Any]:
        """The TensorFlow variables and other tracked resources (tables) that `call` reads."""
        return self.network.variables

    @property
    def tools(self) -> tuple[str, ...]:
        """Distributions that read the file, besides TensorFlow: `keras`, `tf-keras`."""
        return self.network.tools

    def call(self, *inputs: Any) -> list[Any]:
        """The network on TensorFlow tensors, for inference. Both are in the contract's order."""
        return self.network.function(*inputs)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, on a batch of any size; a batch that is fixed is run once an item."""

        def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
            return [np.array(output) for output in self._concrete(*map(_tensor, arrays))]

        return self.answered(inputs, run, at_once=self.free_batch)

    @cached_property
    def _concrete(self) -> Any:
        return _traced(self.network, self.inputs)

    @cached_property
    def _onnx(self) -> bytes:
        from edgekit_converters.sources.exported import to_onnx

        return to_onnx(self, self.call)


def describe_traced(
    network: TracedNetwork, origin: Origin, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> TracedSource:
    """Trace it, run it once, and describe it. Raises SourceError if it cannot run.
    outputs: names."""
    where = str(origin.path)
    with quiet():
        try:
            concrete = _traced(network, inputs)
        except Exception as error:
            what = f"TensorFlow cannot run it with these shapes: {one_line(error)}"
            raise SourceError(what, where=where, do="Check --shape, or save the model again") from error
    graph = concrete.graph.as_graph_def()
    if writes_state(reachable_nodes(graph, [node.name for node in graph.node])):
        raise state_error([variable.name.removesuffix(":0") for variable in concrete.graph.variables], where)

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            with quiet():
                return [np.array(output) for output in concrete(*(_tensor(array) for array in arrays))]
        except Exception as error:
            raise SourceError(f"the model does not run: {one_line(error)}", where=where, do="Save it again") from error

    specs = measured_outputs([(name, name) for name in outputs], run, inputs, where=where)
    source = TracedSource(
        path=origin.path,
        format=origin.format,
        sha256=origin.sha256,
        inputs=tuple(inputs),
        outputs=specs,
        notes=origin.notes,
        network=network,
    )
    source.__dict__["_concrete"] = concrete  # traced once; the class is frozen, its cache is not
    return source


def _traced(network: TracedNetwork, inputs: Sequence[TensorSpec]) -> Any:
    tf = import_tensorflow()
    signature = [
        tf.TensorSpec([None, *spec.shape[1:]] if spec.free_batch else spec.shape, spec.dtype) for spec in inputs
    ]
    return tf.function(network.function, input_signature=signature).get_concrete_function()


def state_error(variables: Sequence[str], where: str) -> SourceError:
    """The error for a network that writes to a variable while it answers.
    variables: the names that it reads or writes."""
    names = f"a variable (of {', '.join(variables[:3])}{', ...' if len(variables) > 3 else ''})" if variables else "one"
    do = "Give it its state as an input and return the new one as an output (for a recurrent layer: stateful=False)"
    return SourceError(f"the model keeps a state inside: answering writes to {names}", where=where, do=do)


def _tensor(array: NDArray[Any]) -> Any:
    return import_tensorflow().constant(array)

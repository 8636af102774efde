"""A graph in any format: its layers, its head, and parts of unlike ranges in one output.

    head(graph)                         # {"logits", "softmax"}: what comes after the last product
    [join] = joins(graph, ranges)       # boxes up to 322 and scores up to 0.6 in one output
    join.layers, join.least, join.most

The head matters because a range that cuts off the largest values costs little inside of a network, where the next layer
sums over many; at its end it makes the answers alike of which the network is surest.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from numpy.typing import NDArray

from edgekit_converters.formats.grid import Grid
from edgekit_converters.formats.workload import Kind, read_workload
from edgekit_converters.recipe.conversion_errors import ConversionError


@dataclass(frozen=True)
class KernelWindow:
    """How a convolution slides over its input. Pairs are (vertical, horizontal).
    A sequence is a picture one high.
    pads: zeros put around the input: top, left, bottom, right.
    channels_last: whether its input and output are NHWC."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, ...]
    groups: int
    channels_last: bool


@dataclass(frozen=True)
class Layer:
    """One operator.
    name: of the first tensor that it makes, in plans, reports and caches.
    op: as the format calls it.
    inputs: activations that it reads, without constants.
    weight, bias: names of constants.
    weight_axis: the axis of `weight` that runs over output channels.
    macs: multiply-accumulates for a batch of 1.
    window: of a 1-D or 2-D convolution.
    fused: the activation that the operator itself carries out, in lower case: relu, relu6, tanh..."""

    name: str
    op: str
    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weight: str | None = None
    bias: str | None = None
    weight_axis: int | None = None
    macs: int = 0
    window: KernelWindow | None = None
    fused: str | None = None


class WatchedGraph(Protocol):
    """A graph that runs and shows its tensors."""

    def run(self, inputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph; return watched tensors by name, float32.
        inputs: in the file's order, batch of 1, with the file's own dtypes."""
        ...


class Graph(Protocol):
    """A float or quantized model file.
    inputs, outputs: tensor names in the engine's order.
    layers: in the order of execution.
    tensors: float activations in that order, inputs first; in a quantized file those that once were float."""

    @property
    def format(self) -> Literal["tflite", "onnx", "ncnn"]: ...
    @property
    def data(self) -> bytes: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def tensors(self) -> tuple[str, ...]: ...
    @property
    def grids(self) -> Mapping[str, Grid]:
        """Grids of the quantized tensors, by the float graph's names."""
        ...

    def constant(self, name: str) -> NDArray[Any]:
        """Return a weight or bias in the file's layout, dequantized. Raises KeyError."""
        ...

    def with_constants(self, values: Mapping[str, NDArray[Any]]) -> Graph:
        """Return a copy with new values of the same shapes. Raises ValueError, KeyError."""
        ...

    def watch(self, tensors: Sequence[str] | None = None) -> AbstractContextManager[WatchedGraph]:
        """Run with these tensors visible, by the float graph's names; None for all."""
        ...


def same_pads(
    sides: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], *, upper: bool = True
) -> tuple[int, ...]:
    """Return the padding for ceil(side / stride) outputs.
    An odd row or column goes to the end (upper) or the beginning."""
    small, large = [], []
    for side, width, stride, dilation in zip(sides, kernel, strides, dilations, strict=True):
        whole = max((-(-side // stride) - 1) * stride + (width - 1) * dilation + 1 - side, 0)
        small.append(whole // 2)
        large.append(whole - whole // 2)
    return (*small, *large) if upper else (*large, *small)


def macs_by_tensor(format: str, data: bytes) -> dict[str, int]:  # noqa: A002
    """Return MACs by first output tensor; empty if the shapes cannot be inferred."""
    try:
        macs: Counter[str] = Counter()
        for op in read_workload(format, data, "float32").ops:
            macs[op.name] += op.macs
        return {name: count for name, count in macs.items() if count}
    except ConversionError:
        return {}


FEW_LEVELS = 4
"""Of 256: what has no more distinct values than this says next to nothing."""

UNLIKE = 8.0
"""Ranges that differ by this factor are unlike: under one scale the smaller is left 32 of 256 levels or fewer."""

_PRODUCTS = frozenset({"conv", "depthwise", "dense", "recurrent"})


def head(graph: Graph) -> frozenset[str]:
    """Return all tensors between the last products and the outputs."""
    made = {tensor: layer for layer in graph.layers for tensor in layer.outputs}
    found: set[str] = set()
    left = list(graph.outputs)
    while left:
        tensor = left.pop()
        if tensor in found:
            continue
        found.add(tensor)
        layer = made.get(tensor)
        if layer is not None and layer.kind not in _PRODUCTS:
            left.extend(layer.inputs)
    return frozenset(found)


@dataclass(frozen=True)
class Join:
    """Parts of unlike ranges joined to one output, such as boxes in pixels and scores.
    layers: all that copies the parts into the output: in float, each part keeps a scale of its own.
    part: the tensor with the smallest range.
    least, most: the largest magnitude of the smallest and of the largest part."""

    output: str
    layers: frozenset[str]
    part: str
    least: float
    most: float

    @property
    def levels(self) -> float:
        """Of 256 levels, those that a shared scale leaves the smallest part."""
        return 256 * self.least / self.most


def joins(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> tuple[Join, ...]:
    """Find joins at outputs. ranges: of tensors; parts without one, or always 0, are ignored."""
    made = {tensor: layer for layer in graph.layers for tensor in layer.outputs}
    found = []
    for output in graph.outputs:
        copied, parts, left = set[str](), set[str](), [output]
        joined = False
        while left:
            tensor = left.pop()
            layer = made.get(tensor)
            if layer is None or layer.kind not in ("move", "concat"):
                parts.add(tensor)
            elif layer.name not in copied:
                copied.add(layer.name)
                joined = joined or layer.kind == "concat"
                left.extend(layer.inputs)
        reach = {part: max(map(abs, ranges[part])) for part in sorted(parts) if part in ranges}
        reach = {part: most for part, most in reach.items() if most > 0}
        if joined and reach and max(reach.values()) >= UNLIKE * min(reach.values()):
            part = min(reach, key=lambda name: reach[name])
            found.append(Join(output, frozenset(copied), part, reach[part], max(reach.values())))
    return tuple(found)


GRAPHS: dict[str, str] = {
    "tflite": "edgekit_converters.formats.tflite_graph:TfliteGraph",
    "onnx": "edgekit_converters.formats.onnx_graph:OnnxGraph",
    "ncnn": "edgekit_converters.formats.ncnn_graph:NcnnGraph",
}
"""Format -> `module:class`, called with the file's bytes."""


def open_graph(format: str, data: bytes) -> Graph:  # noqa: A002
    """Open a model file as a graph. Raises ConversionError for other bytes."""
    return cast(Graph, pkgutil.resolve_name(GRAPHS[format])(data))

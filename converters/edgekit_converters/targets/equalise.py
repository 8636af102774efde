"""Channels of one tensor brought to like ranges, where that changes nothing in float.
Cross-layer equalisation.

A tensor has one scale in 8 bits, so that a channel whose values are a hundredth of its neighbour's has two steps left.
If channel c of a layer's output is divided by s and every layer that reads it multiplies its weights for c by s, the
network computes the same (Nagel et al., Data-free quantization, 2019). The ranges here are those of the activations,
which is what one scale a tensor hurts; weights have a scale for each channel anyway.

    same = equalise_channels(graph, peaks)

Rules: only between layers with weights, through what passes channels on as they are: ReLU, which is the same at every
scale, sums, whose operands then share one s, and pools; a ReLU6, a sigmoid, a reshape or an output of the graph leaves
a tensor as it is; s is bounded, so that no weight becomes so small that its own grid loses it.

A layer with weights seen as a matrix product, whatever the file's layout.
Output = weights @ patch + bias.

    matrix = as_matrix(graph, layer)
    weights = matrix.weights(graph.constant(layer.weight))     # float64 [groups, outputs, n]
    patches = matrix.patches(activations, limit=128, random=rng)   # float32 [groups, rows, n]

Rules: the n columns run over the kernel's height, its width, then its input channels, in both; a depthwise convolution
is one group a channel; what has no such form (recurrent layers, transposed convolutions, products of two activations)
is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.graph import Graph, KernelWindow, Layer

T = TypeVar("T", int, str)

# Where a kernel of four axes keeps (output channels, height, width, input channels of a group).
_OHWI, _HWO, _OIHW = (0, 1, 2, 3), (3, 1, 2, 0), (0, 2, 3, 1)


@dataclass(frozen=True)
class Matrix:
    """A layer's weight as matrices.
    shape: of the weight in the file.
    groups: whose outputs see separate inputs.
    outputs: of one group.
    columns: n.
    """

    layer: Layer
    shape: tuple[int, ...]
    groups: int
    outputs: int
    columns: int
    axes: tuple[int, ...]

    def weights(self, constant: NDArray[Any]) -> NDArray[np.float64]:
        return constant.transpose(self.axes).reshape(self.groups, self.outputs, self.columns).astype(np.float64)

    def constant(self, weights: NDArray[np.float64]) -> NDArray[np.float32]:
        """The inverse of `weights`."""
        shape = [self.shape[axis] for axis in self.axes]
        return np.ascontiguousarray(weights.reshape(shape).transpose(np.argsort(self.axes)), np.float32)

    def patches(self, values: NDArray[Any], limit: int, random: np.random.Generator) -> NDArray[np.float32] | None:
        """Return what the kernel sees at up to `limit` random places.
        None for activations of another form."""
        window = self.layer.window
        if window is None:
            if values.ndim == 0 or values.shape[-1] != self.columns:
                return None
            rows = values.reshape(-1, self.columns)
            return np.asarray(rows[_draw_indexes(len(rows), limit, random)], np.float32)[None]
        if values.ndim == 3:  # a sequence is a picture one high
            values = values[:, None] if window.channels_last else values[:, :, None]
        if values.ndim != 4:
            return None
        picture = values if window.channels_last else values.transpose(0, 2, 3, 1)
        depth = self.columns // (window.kernel[0] * window.kernel[1])
        if picture.shape[-1] != depth * self.groups:
            return None
        seen = _windows(picture, window, limit, random)  # [rows, height * width, channels]
        rows, places, _ = seen.shape
        grouped = seen.reshape(rows, places, self.groups, depth).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(grouped.reshape(self.groups, rows, self.columns), np.float32)


def as_matrix(graph: Graph, layer: Layer) -> Matrix | None:
    if layer.weight is None or layer.weight_axis is None or not layer.inputs:
        return None
    if layer.kind not in ("conv", "depthwise", "dense") or (layer.kind != "dense" and layer.window is None):
        return None
    shape = graph.constant(layer.weight).shape
    axes = _axes(shape, layer)
    groups = layer.window.groups if layer.window is not None else 1
    if axes is None or 0 in shape:
        return None
    channels = shape[axes[0]]
    if groups < 1 or channels % groups:
        return None
    return Matrix(layer, shape, groups, channels // groups, int(np.prod(shape)) // channels, axes)


def _axes(shape: tuple[int, ...], layer: Layer) -> tuple[int, ...] | None:
    window, axis = layer.window, layer.weight_axis
    if window is None:
        if layer.op.upper() == "MATMUL" and axis == 0:  # the weight stands on the left: its columns meet no rows
            return None
        return ((0, 1) if axis == 0 else (1, 0)) if len(shape) == 2 else None
    if len(shape) == 4 and window.channels_last:
        return _OHWI if axis == 0 else _HWO if axis == 3 and shape[0] == 1 else None
    if len(shape) == 4 and axis == 0:
        return _OIHW
    return (0, 2, 1) if len(shape) == 3 and axis == 0 and not window.channels_last else None


def _windows(picture: NDArray[Any], window: KernelWindow, limit: int, random: np.random.Generator) -> NDArray[Any]:
    batch, height, width, channels = picture.shape
    top, left, bottom, right = window.pads
    spans = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(window.kernel, window.dilations, strict=True)]
    down = max((height + top + bottom - spans[0]) // window.strides[0] + 1, 0)
    across = max((width + left + right - spans[1]) // window.strides[1] + 1, 0)
    drawn = _draw_indexes(batch * down * across, limit, random)
    sample, place = np.divmod(drawn, max(down * across, 1))
    first_row = place // max(across, 1) * window.strides[0] - top
    first_column = place % max(across, 1) * window.strides[1] - left
    seen = np.zeros((len(drawn), window.kernel[0] * window.kernel[1], channels), np.float32)
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            row, column = first_row + i * window.dilations[0], first_column + j * window.dilations[1]
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            seen[inside, i * window.kernel[1] + j] = picture[sample[inside], row[inside], column[inside]]
    return seen


def _draw_indexes(count: int, limit: int, random: np.random.Generator) -> NDArray[np.int64]:
    if count <= limit:
        return np.arange(count)
    return np.sort(random.choice(count, limit, replace=False))


BOUND = 16.0
"""s lies within 1 / BOUND .. 1."""
STRENGTH = 0.5
"""s = (range of the channel / largest range) ** STRENGTH: halfway, as weights behind the tensor pay for what it gains.
"""

_SAME = frozenset({"RELU", "MAXPOOL", "MAX_POOL_2D", "AVERAGEPOOL", "AVERAGE_POOL_2D"})
_SUMS = frozenset({"ADD", "SUM"})
_LINEAR = (None, "relu")


def equalise_channels(graph: Graph, peaks: Mapping[str, NDArray[Any]]) -> Graph:
    """Equalise channels of neighbouring layers.
    peaks: the largest absolute value of each channel, by tensor; one that is not in it stays as it is."""
    found = _Tensors(graph)
    values: dict[str, NDArray[Any]] = {}
    for group in found.groups():
        seen = [peaks.get(name) for name in group]
        sizes = {None if entry is None else len(entry) for entry in seen}
        if len(sizes) == 1 and sizes != {None} and found.outputs_of(group) == sizes:
            most = np.max([entry for entry in seen if entry is not None], axis=0)
            _scale(graph, found, group, channel_factors(most), values)
    return graph.with_constants({name: np.asarray(value, np.float32) for name, value in values.items()})


def channel_factors(peaks: NDArray[Any]) -> NDArray[np.float64]:
    """Return s of each channel of a tensor, from its largest absolute value."""
    share = peaks.astype(np.float64) / max(float(peaks.max()), 1e-30)
    return np.where(peaks > 0, np.clip(share**STRENGTH, 1 / BOUND, 1.0), 1.0)


class Groups(Generic[T]):
    """Things that are joined into groups, and those whose group stays as it is."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}
        self._fixed: set[T] = set()

    def root(self, thing: T) -> T:
        """Return the first thing of its group, in their order."""
        while (parent := self._parents.get(thing, thing)) != thing:
            thing = parent
        return thing

    def join(self, one: T, other: T) -> None:
        first, second = sorted((self.root(one), self.root(other)))
        self._parents[second] = first

    def fix(self, things: Iterable[T]) -> None:
        self._fixed.update(things)

    def free_groups(self, things: Iterable[T]) -> dict[T, list[T]]:
        """Group these things by their root, without groups that stay as they are."""
        fixed = set(map(self.root, self._fixed))
        groups: dict[T, list[T]] = {}
        for thing in things:
            groups.setdefault(self.root(thing), []).append(thing)
        return {root: group for root, group in groups.items() if root not in fixed}


class _Tensors:
    """Which tensors must share their factors, and which stay as they are."""

    def __init__(self, graph: Graph) -> None:
        uses = Counter(name for layer in graph.layers for name in (layer.weight, layer.bias) if name is not None)
        self.matrices = {
            layer.name: matrix
            for layer in graph.layers
            if uses[layer.weight or ""] == 1 and uses[layer.bias or ""] <= 1 and len(layer.outputs) == 1
            if (matrix := as_matrix(graph, layer)) is not None
        }
        self._joined = Groups[str]()
        self._joined.fix((*graph.inputs, *graph.outputs))
        self.makers = {name: layer for layer in graph.layers for name in layer.outputs}
        self.layers = graph.layers
        for layer in graph.layers:
            op = layer.op.upper()
            if layer.name in self.matrices and layer.fused in _LINEAR:
                self._joined.fix(layer.inputs[1:])
            elif layer.name in self.matrices:  # its inputs can be scaled, what it makes cannot
                self._joined.fix((*layer.outputs, *layer.inputs[1:]))
            elif (op in _SAME and layer.fused in _LINEAR) or self._is_sum(layer, op):
                for name in (*layer.inputs, *layer.outputs):
                    self._joined.join(name, layer.outputs[0])
            else:
                self._joined.fix((*layer.inputs, *layer.outputs))

    def groups(self) -> list[list[str]]:
        """Return the tensors that can be scaled, grouped by shared factors.
        In the graph's order."""
        return list(self._joined.free_groups(self.makers).values())

    def outputs_of(self, group: list[str]) -> set[int]:
        """Return the channel counts of layers with weights in this group."""
        made = [self.matrices[self.makers[name].name] for name in group if self.makers[name].name in self.matrices]
        return {matrix.groups * matrix.outputs for matrix in made}

    def _is_sum(self, layer: Layer, op: str) -> bool:
        if op not in _SUMS or layer.fused not in _LINEAR:
            return False
        if len(layer.inputs) > 1:
            return True
        maker = self.makers.get(layer.inputs[0]) if layer.inputs else None  # a bias that is added by a layer of its own
        return maker is not None and maker.name in self.matrices and maker.op.upper() == "MATMUL" and bool(maker.bias)


def _scale(
    graph: Graph, found: _Tensors, group: list[str], factors: NDArray[np.float64], values: dict[str, NDArray[Any]]
) -> None:
    def current(name: str) -> NDArray[np.float64]:
        return np.asarray(values.get(name, graph.constant(name)), np.float64)

    for layer in found.layers:
        matrix = found.matrices.get(layer.name)
        if matrix is None or layer.weight is None:
            continue
        if layer.outputs[0] in group:
            weights = matrix.weights(current(layer.weight)) / factors.reshape(matrix.groups, matrix.outputs, 1)
            values[layer.weight] = matrix.constant(weights).astype(np.float64)
            if layer.bias is not None:
                values[layer.bias] = current(layer.bias) / factors.reshape(current(layer.bias).shape)
        if layer.inputs[0] in group:
            channels = factors.reshape(matrix.groups, -1)  # the factor of the input channel behind each column
            by_column = np.tile(channels, (1, matrix.columns // channels.shape[1]))[:, None, :]
            weights = matrix.weights(current(layer.weight)) * by_column
            values[layer.weight] = matrix.constant(weights).astype(np.float64)

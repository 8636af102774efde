"""A layer with weights seen as a matrix product, whatever the file's layout.
Output = weights @ patch + bias.

    matrix = as_matrix(graph, layer)
    weights = matrix.weights(graph.constant(layer.weight))     # float64 [groups, outputs, n]
    patches = matrix.patches(activations, limit=128, random=rng)   # float32 [groups, rows, n]

Rules: the n columns run over the kernel's height, its width, then its input channels, in both; a depthwise convolution
is one group a channel; what has no such form (recurrent layers, transposed convolutions, products of two activations)
is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.graph.graph import Graph, KernelWindow, Layer

# Where a kernel of four axes keeps (output channels, height, width, input channels of a group).
_OHWI, _HWO, _OIHW = (0, 1, 2, 3), (3, 1, 2, 0), (0, 2, 3, 1)


@dataclass(frozen=True)
class Matrix:
    """shape: of the weight in the file.
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
        """What the kernel sees at no more than `limit` places drawn at random.
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

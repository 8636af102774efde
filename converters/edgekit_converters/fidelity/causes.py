"""A quantized file against its float file, and causes of damage in its rounded weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.intervals import decibels
from edgekit_converters.fidelity.layers import LayerError
from edgekit_converters.formats.graph import Graph, Layer

DAMAGE_DB = 30.0
"""A tensor with a better signal to noise ratio is not damaged: 8 bits over the full range give 40 to 50 dB."""

ACCUMULATED_DB = 20.0
"""An output below this is damaged even if no single layer is."""

FALL_DB = 3.0
"""A layer that loses less than this against its worst input did not cause the damage."""

HALF_DB = 3.0
"""Half of the noise."""


@dataclass(frozen=True)
class Cause:
    """One explanation of damage.

    layer: name of the layer that shows it, "" for the whole file.
    code: short and stable.
    evidence: the figures in `what`.
    loss_db: what the layer lost against its inputs (`LayerError.harm_db`).
    float_layers: layers that remove the cause when kept in float; empty if that does not help.
    """

    layer: str
    code: str
    what: str
    evidence: dict[str, Any]
    remedy: str
    loss_db: float = 0.0
    float_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class IsolatedLayer:
    """Signal to noise ratio of one layer's kernel on the same items, dB.

    kernel_db: with only its own kernel rounded.
    artifact_db: in the quantized file.
    where: at its output or at the model's, whichever has the greater part of the kernel in its noise.
    """

    kernel_db: float
    artifact_db: float
    where: str = "here"

    @property
    def to_blame(self) -> bool:
        """Whether the kernel alone makes half of the noise or more."""
        return self.kernel_db <= self.artifact_db + HALF_DB


@dataclass(frozen=True)
class Case:
    """One quantized file against its float file; mappings are empty if not known.

    errors: of `layer_errors`.
    weights_only: the same for the float file with rounded weights.
    input_ranges: input -> (low, high) that the float file was fed.
    input_cuts: input -> dB left when it is clipped to its grid; only inputs that lose something.
    calibrated: tensor -> (low, high) that calibration saw.
    kernels: of damaged layers.
    pieces: parts of the engine's fast path, None if not known; outside: operators that are not in it.
    """

    float_graph: Graph
    quantized: Graph
    errors: tuple[LayerError, ...]
    weights_only: tuple[LayerError, ...] = ()
    input_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    input_cuts: Mapping[str, float] = field(default_factory=dict)
    calibrated: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kernels: Mapping[str, IsolatedLayer] = field(default_factory=dict)
    pieces: int | None = None
    outside: tuple[str, ...] = ()

    @cached_property
    def by_layer(self) -> Mapping[str, LayerError]:
        return {error.layer: error for error in self.errors}

    @cached_property
    def by_weights(self) -> Mapping[str, LayerError]:
        return {error.layer: error for error in self.weights_only}

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.float_graph.layers}

    @cached_property
    def producers(self) -> Mapping[str, Layer]:
        """Tensor -> the layer that makes it."""
        return {output: layer for layer in self.float_graph.layers for output in layer.outputs}

    @cached_property
    def damaged(self) -> tuple[tuple[Layer, LayerError], ...]:
        """Layers whose output is bad and worse than their inputs, the greatest loss first."""
        found = [
            (self.layers[error.layer], error)
            for error in self.errors
            if error.sqnr_db is not None and error.sqnr_db < DAMAGE_DB and error.harm_db >= FALL_DB
        ]
        return tuple(sorted(found, key=lambda pair: -pair[1].harm_db))

    def with_readers(self, error: LayerError) -> tuple[str, ...]:
        """The layer and those that read its output: an 8-bit reader keeps the value rounded."""
        made = {*self.layers[error.layer].outputs, error.tensor}
        return (error.layer, *(other.name for other in self.float_graph.layers if made & {*other.inputs}))

    def input_errors(self, layer: Layer) -> list[LayerError]:
        """Errors of the layers that make its inputs, if known."""
        makers = [self.producers[name] for name in layer.inputs if name in self.producers]
        return [self.by_layer[maker.name] for maker in makers if maker.name in self.by_layer]

    def upstream(self, layer: Layer) -> tuple[str, ...]:
        """The layer and up to six steps before it, without those that have weights."""
        found: dict[str, None] = {layer.name: None}
        edge = [layer]
        for _ in range(6):
            makers = [self.producers[name] for node in edge for name in node.inputs if name in self.producers]
            edge = [maker for maker in makers if maker.weight is None and maker.name not in found]
            found.update(dict.fromkeys(maker.name for maker in edge))
        return tuple(found)


_SPREAD = 16.0
_APART = 64.0  # a quarter of the 256 steps
_POOR_DB = 20.0
_DEAD = 1e-4  # of the largest channel: a smaller one adds nothing
_SHIFT = 0.3


def rounded_weights(float_graph: Graph, quantized: Graph) -> Graph | None:
    """The float graph with the quantized file's weights; None if no weight differs."""
    found = {layer.weight: _weights(float_graph, quantized, layer) for layer in float_graph.layers if layer.weight}
    values = {name: pair[1].astype(np.float32) for name, pair in found.items() if pair is not None}
    return float_graph.with_constants(values) if values else None


def with_its_kernel(float_graph: Graph, quantized: Graph, layer: Layer) -> Graph | None:
    """The float graph with one layer's quantized kernel and corrected bias; None if equal."""
    pair = _weights(float_graph, quantized, layer)
    if pair is None or layer.weight is None:
        return None
    values = {layer.weight: pair[1].astype(np.float32)}
    other = _same_layer(quantized, layer)
    if layer.bias is not None and other is not None and other.bias is not None:
        first, second = float_graph.constant(layer.bias), quantized.constant(other.bias)
        if first.shape == second.shape and second.dtype.kind == "f":
            values[layer.bias] = second.astype(np.float32)
    return float_graph.with_constants(values)


def channel_spread(case: Case) -> Iterator[Cause]:
    """One scale for output channels of very different size: the small ones vanish."""
    for layer, error in case.damaged:
        pair = _weights(case.float_graph, case.quantized, layer)
        if pair is None or layer.weight_axis is None:
            continue
        rows, rounded = (_rows(values, layer.weight_axis) for values in pair)
        reach = np.abs(rows).max(axis=1)
        used = reach > _DEAD * reach.max()
        if used.sum() < 2:
            continue
        spread = float(reach[used].max() / reach[used].min())
        poor = int(sum(_db(a, b) < _POOR_DB for a, b in zip(rows[used], rounded[used], strict=True)))
        if spread < _SPREAD or poor * 20 < used.sum():
            continue
        yield Cause(
            layer.name,
            "channel-spread",
            f"the ranges of its {len(reach)} output channels are up to {spread:.0f}x apart under one scale, and "
            f"{poor} of them keep less than 20 dB of their weights",
            {"spread": spread, "channels": len(reach), "poor": poor},
            "Quantize its weights per channel, equalise neighbouring layers, or keep it in float",
            error.harm_db,
            (layer.name,),
        )


def weight_resolution(case: Case) -> Iterator[Cause]:
    """Rounding the layer's own kernel, and nothing else, makes half of its noise or more."""
    for layer, error in case.damaged:
        alone, tried = case.by_weights.get(layer.name), case.kernels.get(layer.name)
        pair = _weights(case.float_graph, case.quantized, layer)
        if pair is None or tried is None or not tried.to_blame:
            continue
        weight_db, shift = _db(*pair), alone.shift if alone is not None else 0.0
        constant = f"; {100 * shift:.0f} % of what all weights do here is one constant a channel"
        shown = constant if shift >= _SHIFT else ""
        apart = 1.0  # of a dense layer: its largest weight over the largest of the input with the smallest
        if pair[0].ndim == 2 and layer.weight_axis is not None:
            reach = np.abs(_rows(pair[0], layer.weight_axis)).max(axis=0)
            apart = float(reach.max() / reach[reach > 0].min()) if reach.any() else 1.0
        why = (
            f"the largest weights of its inputs are up to {apart:.0f}x apart under the scale of an output, so that "
            "small ones, which may carry large inputs, keep few steps"
            if apart >= _APART
            else "what it answers is small beside the products it sums"
        )
        yield Cause(
            layer.name,
            "weight-resolution",
            f"rounding its kernel alone, with all else in float, leaves {tried.kernel_db:.0f} dB {tried.where}, "
            f"where all of 8 bits leave {tried.artifact_db:.0f}, though the weights themselves keep "
            f"{weight_db:.0f} dB: {why}{shown}",
            {
                "kernel_only_sqnr_db": tried.kernel_db,
                "sqnr_db": tried.artifact_db,
                "weight_sqnr_db": weight_db,
                "inputs_apart": apart,
                "shift": shift,
            },
            "Keep it in float (an early layer costs little), or round its weights with its inputs in sight, its bias "
            "corrected for what is left",
            error.harm_db,
            (layer.name,),
        )


def amplification(case: Case) -> Iterator[Cause]:
    """A layer that amplifies the rounding of its inputs, because its sums cancel."""
    for layer, error in case.damaged:
        grid = error.grid_sqnr_db
        if layer.weight is None or error.inputs_sqnr_db is None or error.sqnr_db is None:
            continue
        tried = case.kernels.get(layer.name)
        if (grid is not None and grid < error.sqnr_db + HALF_DB) or (tried is not None and tried.to_blame):
            continue
        makers = [case.producers[name].name for name in layer.inputs if name in case.producers]
        yield Cause(
            layer.name,
            "noise-amplification",
            f"its inputs come with {error.inputs_sqnr_db:.0f} dB and leave it with {error.sqnr_db:.0f}: its sums are "
            "small beside the products in them, so that the rounding of its inputs weighs more than the inputs",
            {"inputs_sqnr_db": error.inputs_sqnr_db, "sqnr_db": error.sqnr_db},
            "Let its inputs have 16 bits, or keep it and what makes its inputs in float",
            error.harm_db,
            (layer.name, *makers),
        )


def _weights(
    float_graph: Graph, quantized: Graph, layer: Layer
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """(float weights, the quantized file's); None without weights, or if they are not quantized."""
    if layer.weight is None:
        return None
    other = _same_layer(quantized, layer)
    for name in (layer.weight, other.weight if other is not None else None):
        if name is None:
            continue
        try:
            first, second = float_graph.constant(layer.weight), quantized.constant(name)
        except KeyError:
            continue
        if first.shape == second.shape and not np.array_equal(first, second):
            return np.asarray(first, np.float64), np.asarray(second, np.float64)
    return None


def _same_layer(quantized: Graph, layer: Layer) -> Layer | None:
    """The same layer in the quantized graph, by its output, or by its weights if fused."""
    names = (layer.weight, f"{layer.name}/{layer.weight}")
    made = (found for found in quantized.layers if layer.outputs[0] in found.outputs)
    alike = (found for found in quantized.layers if found.weight is not None and found.weight in names)
    return next(made, None) or next(alike, None)


def _rows(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """[output channels, the rest]."""
    moved = np.moveaxis(np.asarray(values, np.float64), axis, 0)
    return moved.reshape(len(moved), -1)


def _db(original: NDArray[np.float64], rounded: NDArray[np.float64]) -> float:
    found = decibels(float((original**2).sum()), float(((original - rounded) ** 2).sum()))
    return math.inf if found is None else found

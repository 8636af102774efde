"""Compare a float graph and its quantized one layer by layer.

    errors = layer_errors(open_graph("tflite", float_data), open_graph("tflite", artifact.data), feeds)
    worst = sorted(errors, key=lambda error: error.own_sqnr_db or math.inf)[:5]
    histograms = layer_histograms(float_graph, quantized, feeds, worst)     # both graphs' values, in the same bins

Rules:
- both run on the same samples, aligned by tensor name; a tensor that only one of them has is left out;
- noise that a layer adds is separated from what came through its inputs, as far as powers show;
- whether a tensor is quantized, and on which grid, is read from the file;
- the cost of a tensor's own grid is measured: its float values are clipped and rounded by themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.ranges import ActivationHistogram
from edgekit_converters.fidelity.intervals import decibels
from edgekit_converters.formats.graph import Graph, Layer, WatchedGraph
from edgekit_converters.formats.grid import Grid
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress, silent

Feed = Sequence[NDArray[Any]]
"""One sample as the float file takes it: arrays in its order, batch of 1."""

_TAIL = 0.00005  # of the values at each end
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class LayerError:
    """One layer's first output, float against quantized, over all samples.

    tensor: its output, or that of the activation that quantizers fuse into it.
    sqnr_db: 10 log10(sum x^2 / sum (x - y)^2), None if nothing differs.
    inputs_sqnr_db: the worst of its inputs', None if exact or not known.
    own_sqnr_db: with only the noise that the layer itself added, None if none.
    macs, values: for one item.
    quantized: whether the file has its values in integers.
    scale, grid_low, grid_high: step and ends of their grid, None for a float layer.
    middle_low, middle_high: 99.99 % of the float values lie between.
    float_rms: root mean square of the float values.
    integers: whether every float value is a whole number.
    shift: share of the noise, 0..1, that is one constant a channel over all samples, which a bias can correct.
    depth: place in the float graph, 0..1.
    cut_sqnr_db: of the float values clipped to the grid, None if nothing is clipped; rounded_sqnr_db: also rounded.
    """

    layer: str
    tensor: str
    op: str
    kind: str
    sqnr_db: float | None
    inputs_sqnr_db: float | None
    own_sqnr_db: float | None
    macs: int
    quantized: bool
    scale: float | None
    float_low: float
    float_high: float
    middle_low: float
    middle_high: float
    float_rms: float
    quantized_low: float
    quantized_high: float
    integers: bool
    values: int
    shift: float = 0.0
    depth: float = 0.0
    grid_low: float | None = None
    grid_high: float | None = None
    cut_sqnr_db: float | None = None
    rounded_sqnr_db: float | None = None

    @property
    def fall_db(self) -> float:
        """How much worse the output is than the worst input (60 dB if exact); 0 if exact."""
        if self.sqnr_db is None:
            return 0.0
        return (60.0 if self.inputs_sqnr_db is None else self.inputs_sqnr_db) - self.sqnr_db

    @property
    def harm_db(self) -> float:
        """The part of a fall in dB that matters, between 40 dB (unharmed) and 0 dB (lost)."""
        return 0.0 if self.sqnr_db is None else min(40.0, self.fall_db + self.sqnr_db) - max(0.0, self.sqnr_db)

    @property
    def grid_sqnr_db(self) -> float | None:
        """Cost of the grid by itself: measured, or rms^2 over step^2 / 12; None for a float layer."""
        if self.rounded_sqnr_db is not None:
            return self.rounded_sqnr_db
        if self.scale is None or self.float_rms == 0:
            return None
        return 10 * math.log10(12 * (self.float_rms / self.scale) ** 2)


@dataclass
class Pair:
    """One tensor in both graphs, while samples stream by.

    channel: its axis of channels.
    grid: of the quantized one; cut, rounded: noise of the float values put on it.
    """

    channel: int = -1
    grid: Grid | None = None
    cut: float = 0.0
    rounded: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    quantized_low: float = math.inf
    quantized_high: float = -math.inf
    values: int = 0
    items: int = 0
    offsets: NDArray[np.float64] | None = None
    integers: bool = True
    histogram: ActivationHistogram = field(default_factory=ActivationHistogram)

    def add(self, original: NDArray[Any], answer: NDArray[Any]) -> None:
        x, y = (np.asarray(values, np.float64).reshape(-1) for values in (original, answer))
        if x.size == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            noise = x - y
            signal, lost = float(x @ x), float(noise @ noise)
        if not math.isfinite(signal + lost):
            # an infinity, as attention masks have, counts as float32's largest, whose square a float64 holds
            x, y = (np.nan_to_num(values, posinf=_LARGEST, neginf=-_LARGEST) for values in (x, y))
            noise = x - y
            signal, lost = float(x @ x), float(noise @ noise)
        self.signal += signal
        self.noise += lost
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        self.quantized_low = min(self.quantized_low, float(y.min()))
        self.quantized_high = max(self.quantized_high, float(y.max()))
        self.values = x.size
        self.items += 1
        self.integers = self.integers and bool((x == np.rint(x)).all())
        self.histogram.add(x.astype(np.float32))
        if original.ndim > 1:  # without a second axis there is no channel
            axis = self.channel % original.ndim
            others = tuple(i for i in range(original.ndim) if i != axis)
            sums = -noise.reshape(original.shape).sum(axis=others)
            if self.offsets is None or self.offsets.shape == sums.shape:
                self.offsets = sums if self.offsets is None else self.offsets + sums
        if self.grid is not None:
            rounded = x - self.grid.rounded(x)
            self.rounded += float(rounded @ rounded)
            if self.low < self.grid.low or self.high > self.grid.high:
                cut = x - np.clip(x, self.grid.low, self.grid.high)
                self.cut += float(cut @ cut)

    @property
    def shift(self) -> float:
        """n mean^2 of each channel's noise over its power; 0 for one value a channel."""
        if self.offsets is None or self.noise == 0:
            return 0.0
        values = self.values * self.items / len(self.offsets)
        return float((self.offsets**2).sum() / values / self.noise) if values > 1 else 0.0


def layer_errors(
    float_graph: Graph, quantized: Graph, feeds: Iterable[Feed], limit: int = 16, progress: Progress = silent
) -> tuple[LayerError, ...]:
    """Errors of each layer that both graphs have, in the order of execution.

    feeds: as the float file takes them; the first `limit` are run.

    Raises CalibrationError without feeds, ConversionError if an engine fails on one.
    """
    seen = {layer.outputs[0] for layer in float_graph.layers} | set(float_graph.inputs)
    common = [name for name in quantized.tensors if name in seen and name in set(float_graph.tensors)]
    channel = -1 if float_graph.format == "tflite" else 1
    grids = quantized.grids
    pairs = {name: Pair(channel, grids.get(name)) for name in common}
    count = 0
    with float_graph.watch(common) as original, quantized.watch(common) as answer:
        for feed in itertools.islice(feeds, limit):
            run_both(pairs, original, answer, feed)
            count += 1
            progress("comparing layers", count, limit)
    if not count:
        raise CalibrationError("there is no sample to run the layers on", do="Give --calibration at least one example")
    places = {layer.name: place / max(1, len(float_graph.layers) - 1) for place, layer in enumerate(float_graph.layers)}
    spans = _spans(float_graph, {name for name, pair in pairs.items() if pair.values > 0})
    return tuple(replace(_error(span, pairs), depth=places[span.layer.name]) for span in spans)


def run_both(pairs: Mapping[str, Pair], original: WatchedGraph, answer: WatchedGraph, feed: Feed) -> None:
    """Run one sample through both graphs and add every tensor to its pair."""
    first, second = original.run(feed), answer.run(feed)
    for name, pair in pairs.items():
        if name in first and name in second and first[name].size == second[name].size:
            pair.add(first[name], second[name])


@dataclass(frozen=True)
class _Span:
    """A layer with what quantizers fuse into it.

    measured: the tensor where its error is measured.
    inputs: the nearest tensors before it that both graphs have.
    """

    layer: Layer
    measured: str
    inputs: tuple[str, ...]


def _spans(graph: Graph, seen: Collection[str]) -> list[_Span]:
    """Layers whose output, or that of an activation fused into them, both graphs have."""
    makers = {output: layer for layer in graph.layers for output in layer.outputs}
    readers: dict[str, list[Layer]] = {}
    for layer in graph.layers:
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    spans: list[_Span] = []
    fused: set[str] = set()
    for layer in graph.layers:
        measured = layer.outputs[0]
        if layer.weight is not None and measured not in seen:
            while measured not in seen and len(following := readers.get(measured, [])) == 1 and not following[0].weight:
                fused.add(following[0].name)
                measured = following[0].outputs[0]
        if measured in seen and layer.name not in fused:
            spans.append(_Span(layer, measured, tuple(_before(layer, makers, seen))))
    return spans


def _before(layer: Layer, makers: Mapping[str, Layer], seen: Collection[str], steps: int = 4) -> Iterator[str]:
    """The nearest tensors before a layer that both graphs have."""
    for name in layer.inputs:
        if name in seen:
            yield name
        elif name in makers and steps:
            yield from _before(makers[name], makers, seen, steps - 1)


def _error(span: _Span, pairs: Mapping[str, Pair]) -> LayerError:
    layer, pair, own = span.layer, pairs[span.measured], _own_noise(span, pairs)
    grid = pair.grid
    before = [decibels(pairs[name].signal, pairs[name].noise) for name in span.inputs]
    low, high = pair.histogram.quantiles((_TAIL, 1 - _TAIL))
    return LayerError(
        layer=layer.name,
        tensor=span.measured,
        op=layer.op,
        kind=layer.kind,
        sqnr_db=decibels(pair.signal, pair.noise),
        inputs_sqnr_db=min((db for db in before if db is not None), default=None),
        own_sqnr_db=None if own is None else decibels(pair.signal, own),
        macs=layer.macs,
        quantized=grid is not None,
        scale=None if grid is None else grid.step,
        float_low=pair.low,
        float_high=pair.high,
        middle_low=low,
        middle_high=high,
        float_rms=math.sqrt(pair.signal / (pair.values * pair.items)),
        quantized_low=pair.quantized_low,
        quantized_high=pair.quantized_high,
        integers=pair.integers,
        values=pair.values,
        shift=pair.shift,
        grid_low=None if grid is None else grid.low,
        grid_high=None if grid is None else grid.high,
        cut_sqnr_db=None if grid is None else decibels(pair.signal, pair.cut),
        rounded_sqnr_db=None if grid is None else decibels(pair.signal, pair.rounded),
    )


def _own_noise(span: _Span, pairs: Mapping[str, Pair]) -> float | None:
    """Noise power beyond what the layer passes on from its inputs; None if there is none.

    A sum, difference or concatenation passes noise on as it is; others keep noise over signal, summed over inputs.
    """
    layer, pair = span.layer, pairs[span.measured]
    inputs = [pairs[name] for name in span.inputs]
    if layer.kind == "concat" or layer.op.upper() in ("ADD", "SUB", "SUM", "ADD_N"):
        passed = sum(entry.noise for entry in inputs)
    else:
        passed = pair.signal * sum(entry.noise / entry.signal for entry in inputs if entry.signal > 0)
    own = pair.noise - passed
    return own if own > 0 else None


@dataclass(frozen=True)
class LayerHistogram:
    """Values of a layer in both graphs.

    edges: bins + 1 ascending values.
    original, quantized: counts of each bin over all samples.
    """

    layer: str
    edges: tuple[float, ...]
    original: tuple[int, ...]
    quantized: tuple[int, ...]


def worst(errors: Sequence[LayerError], count: int = 5) -> list[LayerError]:
    """The layers that add most noise for their signal, worst first; ties: the larger first."""
    damaged = [error for error in errors if error.own_sqnr_db is not None]
    return sorted(damaged, key=lambda error: (error.own_sqnr_db or 0.0, -error.values))[:count]


def layer_histograms(
    float_graph: Graph,
    quantized: Graph,
    feeds: Iterable[Feed],
    errors: Sequence[LayerError],
    *,
    bins: int = 64,
    limit: int = 16,
) -> tuple[LayerHistogram, ...]:
    """One histogram for each of `errors` over the first `limit` feeds, over both graphs' range."""
    edges = {}
    for error in errors:
        low, high = min(error.float_low, error.quantized_low), max(error.float_high, error.quantized_high)
        if high <= low:
            high = low + (abs(low) or 1.0)
        edges[error.tensor] = np.linspace(low, math.nextafter(high, math.inf), bins + 1)
    layers = {error.tensor: error.layer for error in errors}
    counts = {name: np.zeros((2, bins), np.int64) for name in edges}
    with float_graph.watch(list(edges)) as original, quantized.watch(list(edges)) as answer:
        for feed in itertools.islice(feeds, limit):
            for row, values in enumerate((original.run(feed), answer.run(feed))):
                for name in edges:
                    counts[name][row] += np.histogram(values[name], edges[name])[0]
    return tuple(
        LayerHistogram(layers[name], tuple(map(float, edges[name])), *(tuple(map(int, row)) for row in counts[name]))
        for name in edges
    )

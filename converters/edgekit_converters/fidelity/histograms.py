"""Values of the worst layers, float against quantized, counted in the same bins: what a person looks at.

histograms = layer_histograms(float_graph, quantized, feeds, worst(errors, 5))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgekit_converters.fidelity.layers import Feed, LayerError
from edgekit_converters.graph import Graph

__all__ = ["LayerHistogram", "layer_histograms", "worst"]


@dataclass(frozen=True)
class LayerHistogram:
    """edges: bins + 1 ascending values; original, quantized: counts of each bin over all samples."""

    layer: str
    edges: tuple[float, ...]
    original: tuple[int, ...]
    quantized: tuple[int, ...]


def worst(errors: Sequence[LayerError], count: int = 5) -> list[LayerError]:
    """The layers that add most noise for their signal, worst first; of layers alike, the one with more values."""
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
    """One histogram for each of `errors`, over the first `limit` feeds. The bins span the range of both graphs."""
    edges = {error.tensor: _edges(error, bins) for error in errors}
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


def _edges(error: LayerError, bins: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    low, high = min(error.float_low, error.quantized_low), max(error.float_high, error.quantized_high)
    if high <= low:
        high = low + (abs(low) or 1.0)
    return np.linspace(low, math.nextafter(high, math.inf), bins + 1)

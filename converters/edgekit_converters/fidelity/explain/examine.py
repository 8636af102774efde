"""Everything that the rules look at, measured in one pass over a few samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from edgekit_converters.fidelity.explain.case import Case
from edgekit_converters.fidelity.explain.fast_path import fast_path
from edgekit_converters.fidelity.explain.weights import rounded_weights
from edgekit_converters.fidelity.layers import Feed, layer_errors
from edgekit_converters.graph import Graph
from edgekit_converters.progress import Progress, silent

__all__ = ["examine"]

_FEW = 4  # samples that are enough for what rounding the weights costs


def examine(
    float_graph: Graph, quantized: Graph, feeds: Iterable[Feed], limit: int = 16, progress: Progress = silent
) -> Case:
    """The case of `quantized` against `float_graph`; feeds as `layer_errors` takes them, and its errors."""
    ranges: dict[str, tuple[float, float]] = {}

    def watched() -> Iterator[Feed]:
        for feed in feeds:
            for name, array in zip(float_graph.inputs, feed, strict=True):
                low, high = ranges.get(name, (np.inf, -np.inf))
                ranges[name] = (min(low, float(array.min())), max(high, float(array.max())))
            if len(kept) < _FEW:
                kept.append(feed)
            yield feed

    kept: list[Feed] = []
    errors = layer_errors(float_graph, quantized, watched(), limit, progress)
    rounded = rounded_weights(float_graph, quantized)
    alone = layer_errors(float_graph, rounded, kept, _FEW, progress) if rounded is not None else ()
    pieces, outside = fast_path(quantized.format, quantized.data)
    return Case(float_graph, quantized, errors, alone, ranges, pieces, outside)

"""Steps carried out on a float graph, in their order.

    refined = apply(graph, ("equalise", "round"), statistics, feeds)

Rules: steps see the float graph and calibration data, never a quantized model; "round" corrects biases as well, for its
covariance counts on it; constants that two layers share stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.statistics import Statistics
from edgekit_converters.graph import Graph, Layer
from edgekit_converters.progress import Progress, silent
from edgekit_converters.refine.bias import corrected
from edgekit_converters.refine.moments import Moments, observe
from edgekit_converters.refine.rounding import compensated, nearest
from edgekit_converters.targets.artifact import Step

__all__ = ["Feeds", "apply", "restored"]

Feeds = Callable[[], Iterable[Sequence[NDArray[Any]]]]
"""Calibration inputs in the file's order, from the start at each call."""


def apply(
    graph: Graph, steps: Sequence[Step], statistics: Statistics, feeds: Feeds, progress: Progress = silent
) -> Graph:
    """A graph with other constants. statistics: of `graph`, as calibration saw it."""
    for step in steps:
        if step == "equalise":
            from edgekit_converters.refine.equalise import equalised

            graph = equalised(graph, _peaks(statistics))
        elif step == "round" or "round" not in steps:
            moments = observe(graph, feeds(), statistics.samples, progress)
            graph = rounded(graph, moments, compensate=step == "round", progress=progress)
    return graph


def rounded(graph: Graph, moments: Mapping[str, Moments], *, compensate: bool, progress: Progress = silent) -> Graph:
    """Weights rounded with compensation and biases corrected, or only biases, for weights rounded to the nearest."""
    shared = _shared(graph)
    values: dict[str, NDArray[Any]] = {}
    for done, layer in enumerate(graph.layers):
        progress("rounding weights", done, len(graph.layers))
        found = moments.get(layer.name)
        if found is None or layer.weight is None or layer.weight in shared:
            continue
        values.update(_layer(graph, layer, found, _own_bias(graph, layer, shared), compensate))
    return graph.with_constants(values)


def restored(refined: Graph, exact: Graph, layers: Collection[str]) -> Graph:
    """`refined`, with weights and biases of those layers as they are in `exact`."""
    names = {
        name
        for layer in exact.layers
        if layer.name in layers
        for name in (layer.weight, layer.bias)
        if name is not None
    }
    return refined.with_constants({name: exact.constant(name) for name in names}) if names else refined


def _layer(graph: Graph, layer: Layer, moments: Moments, bias: str | None, compensate: bool) -> dict[str, NDArray[Any]]:
    assert layer.weight is not None
    weights = moments.matrix.weights(graph.constant(layer.weight))
    second = moments.second if bias is None else moments.covariance
    values: dict[str, NDArray[Any]] = {}
    if compensate and second is not None:
        chosen = compensated(weights, second, moments.rows)
        values[layer.weight] = moments.matrix.constant(chosen)
    else:
        chosen = nearest(weights)
    if bias is not None:
        values[bias] = corrected(graph.constant(bias), weights, chosen, moments.mean)
    return values


def _own_bias(graph: Graph, layer: Layer, shared: Collection[str]) -> str | None:
    """The bias, if it is this layer's alone and has one number an output channel."""
    if layer.bias is None or layer.bias in shared or layer.weight is None or layer.weight_axis is None:
        return None
    channels = graph.constant(layer.weight).shape[layer.weight_axis]
    return layer.bias if graph.constant(layer.bias).size == channels else None


def _peaks(statistics: Statistics) -> dict[str, NDArray[Any]]:
    """The largest absolute value of each channel, for tensors that have channels."""
    channels = {name: tensor.channels for name, tensor in statistics.tensors.items()}
    return {
        name: np.maximum(np.abs(found.low), np.abs(found.high)) for name, found in channels.items() if found is not None
    }


def _shared(graph: Graph) -> frozenset[str]:
    """Constants that more than one layer reads."""
    uses = Counter(name for layer in graph.layers for name in (layer.weight, layer.bias) if name is not None)
    return frozenset(name for name, count in uses.items() if count > 1)

"""Everything that the rules look at, measured in one pass over a few samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.explain.case import Alone, Case
from edgekit_converters.fidelity.explain.fast_path import fast_path
from edgekit_converters.fidelity.explain.weights import rounded_weights, with_its_kernel
from edgekit_converters.fidelity.layers import Feed, Pair, layer_errors
from edgekit_converters.fidelity.statistics import decibels
from edgekit_converters.graph import Graph
from edgekit_converters.progress import Progress, silent

__all__ = ["examine"]

Seen = Mapping[str, NDArray[Any]]
_FEW = 4  # samples that are enough for what rounding the weights costs, in a large model
_LARGE = 1 << 20  # bytes of a model of which only a few samples are run again and again
_EXACT_DB = 200.0
_TRIED = 8  # damaged layers whose kernel is rounded by itself


def examine(
    float_graph: Graph,
    quantized: Graph,
    feeds: Iterable[Feed],
    limit: int = 16,
    progress: Progress = silent,
    calibrated: Mapping[str, tuple[float, float]] | None = None,
) -> Case:
    """The case of `quantized` against `float_graph`; feeds as `layer_errors` takes them, and its errors. calibrated: the
    ranges that calibration saw, by tensor, where the feeds are others than it had."""
    ranges: dict[str, tuple[float, float]] = {}

    def watched() -> Iterator[Feed]:
        for feed in feeds:
            for name, array in zip(float_graph.inputs, feed, strict=True):
                low, high = ranges.get(name, (np.inf, -np.inf))
                ranges[name] = (min(low, float(array.min())), max(high, float(array.max())))
                if name in grids:
                    inputs.setdefault(name, Pair()).add(array, np.clip(array, grids[name].low, grids[name].high))
            if len(kept) < (_FEW if len(float_graph.data) > _LARGE else limit):
                kept.append(feed)
            yield feed

    kept: list[Feed] = []
    grids, inputs = quantized.grids, dict[str, Pair]()
    errors = layer_errors(float_graph, quantized, watched(), limit, progress)
    rounded = rounded_weights(float_graph, quantized)
    alone = layer_errors(float_graph, rounded, kept, len(kept), progress) if rounded is not None else ()
    pieces, outside = fast_path(quantized.format, quantized.data)
    cuts = {name: left for name, pair in inputs.items() if (left := decibels(pair.signal, pair.noise)) is not None}
    case = Case(float_graph, quantized, errors, alone, ranges, cuts, calibrated or {}, pieces=pieces, outside=outside)
    return replace(case, kernels=_kernels(case, kept))


def _kernels(case: Case, feeds: Sequence[Feed]) -> dict[str, Alone]:
    """What is left where damaged layers have their own kernel alone rounded: an experiment a layer."""
    damaged = [(layer, error.tensor) for layer, error in case.damaged if layer.weight is not None][:_TRIED]
    if not damaged:
        return {}
    ends = [name for name in case.float_graph.outputs if name in case.quantized.tensors]
    tensors = [*dict.fromkeys([*(tensor for _, tensor in damaged), *ends])]
    expected, answers = _seen(case.float_graph, tensors, feeds), _seen(case.quantized, tensors, feeds)
    found: dict[str, Alone] = {}
    for layer, tensor in damaged:
        graph = with_its_kernel(case.float_graph, case.quantized, layer)
        if graph is None:
            continue
        tried = _seen(graph, [tensor, *ends], feeds)
        at = [("here", [tensor]), *([("at the end", ends)] if ends else [])]
        alone = [Alone(_left(expected, tried, names), _left(expected, answers, names), where) for where, names in at]
        found[layer.name] = min(alone, key=lambda one: one.kernel_db - one.artifact_db)
    return found


def _seen(graph: Graph, tensors: Sequence[str], feeds: Sequence[Feed]) -> list[Seen]:
    with graph.watch(tensors) as watched:
        return [watched.run(feed) for feed in feeds]


def _left(before: Sequence[Seen], after: Sequence[Seen], tensors: Sequence[str]) -> float:
    """dB, of the tensor that has least left; as good as exact where nothing differs."""
    left = [_EXACT_DB]
    for tensor in tensors:
        pair = Pair()
        for first, second in zip(before, after, strict=True):
            if tensor in first and tensor in second and first[tensor].size == second[tensor].size:
                pair.add(first[tensor], second[tensor])
        found = decibels(pair.signal, pair.noise)
        left.append(_EXACT_DB if found is None else found)
    return min(left)

"""Refine a float graph's weights for 8 bits: equalise, or round and correct biases.

    refined = apply(graph, ("equalise", "round"), statistics, feeds)

Column by column each weight is rounded, and its error is handed to the columns that are still open, in proportion to
how well they can make up for it (optimal brain surgeon, Hassibi and Stork 1993; the Cholesky form of Frantar et al.,
GPTQ, 2023). The bias, stored in 32 bits, takes back the shift of inputs whose mean is not 0 (Nagel et al., 2019).

Rules:
- steps see the float graph and calibration data, never a quantized model; constants that layers share stay;
- calibration data are read in one pass, at most SAMPLES samples and a bounded number of places of each; a layer with
  more than COLUMNS columns keeps only its mean; values that are not finite are left out;
- a channel's scale is its largest absolute weight / 127, and that weight stays, so that a quantizer which divides by
  the same number finds these very integers; grids are symmetric, integers within -127..127;
- a channel is changed only if that lowers its output's error on the calibration data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.statistics import Statistics
from edgekit_converters.formats.graph import Graph, Layer
from edgekit_converters.recipe.artifact import Step
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.targets.equalise import Matrix, as_matrix


def correct_bias(
    bias: NDArray[Any], weights: NDArray[np.float64], rounded: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return the bias that cancels the mean rounding error of each output channel.

    weights, rounded: [groups, outputs, n].
    mean: of the inputs, [groups, n].
    """
    shift = ((weights - rounded) @ mean[:, :, None])[..., 0]
    return np.asarray(bias.astype(np.float64) + shift.reshape(bias.shape), np.float32)


SAMPLES = 64
ROWS = 128
"""Patches of a layer drawn from one sample."""
GROUP_ROWS = 32
"""The same for layers of several groups, as depthwise convolutions."""
BATCH = 512
"""Rows that are collected for one matrix product."""
COLUMNS = 2304
"""3 x 3 x 256. The second moment of more takes a second and 100 MB a layer."""


@dataclass(frozen=True)
class Moments:
    """First and second moments of a layer's inputs.
    rows: patches seen.
    mean: float64 [groups, n].
    second: E[x x^T], float64 [groups, n, n], None for wide layers.
    """

    matrix: Matrix
    rows: int
    mean: NDArray[np.float64]
    second: NDArray[np.float64] | None

    @property
    def covariance(self) -> NDArray[np.float64] | None:
        if self.second is None:
            return None
        return self.second - self.mean[:, :, None] * self.mean[:, None, :]


class _Sums:
    """Sums over patches, collected into batches for matrix products."""

    def __init__(self, matrix: Matrix) -> None:
        groups, columns = matrix.groups, matrix.columns
        self.matrix = matrix
        self.rows = 0
        self._first = np.zeros((groups, columns))
        self._second = np.zeros((groups, columns, columns)) if columns <= COLUMNS else None
        self._waiting: list[NDArray[np.float32]] = []

    def patches(self, values: NDArray[Any], random: np.random.Generator) -> NDArray[np.float32] | None:
        limit = ROWS if self.matrix.groups == 1 else GROUP_ROWS
        return self.matrix.patches(values, limit, random)

    def add(self, patches: NDArray[np.float32]) -> None:
        self._waiting.append(patches)
        if sum(part.shape[1] for part in self._waiting) >= max(BATCH, self.matrix.columns):
            self._settle()

    def moments(self) -> Moments | None:
        self._settle()
        if not self.rows:
            return None
        second = None if self._second is None else self._second / self.rows
        return Moments(self.matrix, self.rows, self._first / self.rows, second)

    def _settle(self) -> None:
        if not self._waiting:
            return
        patches = np.concatenate(self._waiting, axis=1)
        self._waiting.clear()
        total = patches.sum(axis=1)  # of few rows: float32 is enough
        if not np.isfinite(total).all():
            return
        self.rows += patches.shape[1]
        self._first += total
        if self._second is not None:
            self._second += patches.transpose(0, 2, 1) @ patches


def observe(
    graph: Graph, feeds: Iterable[Sequence[NDArray[Any]]], count: int, progress: Progress = silent
) -> dict[str, Moments]:
    """Collect moments by layer name.

    feeds: inputs in the file's order, `count` of them; at most SAMPLES, evenly spread, are run.
    """
    sums = {layer.name: _Sums(matrix) for layer in graph.layers if (matrix := as_matrix(graph, layer)) is not None}
    wanted = list(dict.fromkeys(entry.matrix.layer.inputs[0] for entry in sums.values()))
    total = min(SAMPLES, count)
    chosen = {place * count // total for place in range(total)}
    random = np.random.default_rng(0)
    if not wanted:
        return {}
    with graph.watch(wanted) as watched:
        spread = (arrays for i, arrays in enumerate(islice(feeds, count)) if i in chosen)
        for done, arrays in enumerate(spread, start=1):
            seen = watched.run(arrays)
            for entry in sums.values():
                values = seen.get(entry.matrix.layer.inputs[0])
                patches = None if values is None else entry.patches(values, random)
                if patches is not None:
                    entry.add(patches)
            progress("adjusting weights", done, total)
    found = {name: entry.moments() for name, entry in sums.items()}
    return {name: moments for name, moments in found.items() if moments is not None}


LEVELS = 127
DAMPING = 0.01
"""Share of the mean diagonal that is added to it, as in GPTQ."""
BLOCK = 64
"""Columns whose errors are handed on together: a matrix product in place of many sums."""

Array = NDArray[np.float64]


def steps_of(weights: Array) -> Array:
    """Return each channel's quantization step, [groups, outputs, 1]; 1 for all zeros."""
    largest = np.abs(weights).max(axis=-1, keepdims=True)
    return np.where(largest > 0, largest, LEVELS) / LEVELS


def nearest(weights: Array) -> Array:
    """Round every weight to the nearest point of its channel's grid."""
    steps = steps_of(weights)
    rounded: Array = np.round(weights / steps) * steps
    return rounded


def output_error(weights: Array, rounded: Array, second: Array) -> Array:
    """Return the mean square error of each channel's output: [groups, outputs]."""
    error = rounded - weights
    found: Array = ((error @ second) * error).sum(axis=-1)
    return found


def compensate_rounding(weights: Array, second: Array, rows: int) -> Array:
    """Round weights with compensation; no channel gets worse than with `nearest`.

    weights: float64 [groups, outputs, n].
    second: the inputs' covariance or second moment, [groups, n, n], of `rows` rows.
    """
    plain = nearest(weights)
    if not np.isfinite(second).all():
        return plain
    try:
        # Made invertible, and drawn towards its diagonal, the more the fewer rows there are
        columns = second.shape[-1]
        diagonal = np.einsum("gii->gi", second)
        steady: Array = second * (rows / (rows + columns))
        added = diagonal * (columns / (rows + columns)) + DAMPING * diagonal.mean(axis=-1, keepdims=True) + 1e-12
        steady[:, np.arange(columns), np.arange(columns)] += added
        order = np.argsort(-np.einsum("gii->gi", steady), axis=-1)  # the columns that matter most come first
        places = np.arange(len(weights))[:, None]
        sorted_second = steady[places[:, :, None], order[:, :, None], order[:, None, :]]
        upper = np.linalg.cholesky(np.linalg.inv(sorted_second)).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        return plain
    steps = steps_of(weights)
    start = np.take_along_axis(weights / steps, order[:, None, :], axis=-1)
    integers = _rounded_in_turn(np.ascontiguousarray(start.transpose(2, 0, 1)), upper).transpose(1, 2, 0)
    found = np.empty_like(weights)
    np.put_along_axis(found, np.broadcast_to(order[:, None, :], weights.shape), integers, axis=-1)
    found *= steps
    better = output_error(weights, found, second) < output_error(weights, plain, second)
    chosen: Array = np.where(better[..., None], found, plain)
    return chosen


def _rounded_in_turn(start: Array, upper: Array) -> Array:
    """Round column by column: integers [n, groups, outputs]; the largest weight stays.

    start: weights in steps, [n, groups, outputs].
    upper: [groups, n, n].
    """
    columns = len(start)
    fixed, sign = np.abs(start).argmax(axis=0), np.sign(np.take_along_axis(start, np.abs(start).argmax(0)[None], 0)[0])
    open_weights, integers = start.copy(), np.empty_like(start)
    for first in range(0, columns, BLOCK):
        last = min(first + BLOCK, columns)
        errors = np.empty((last - first, *start.shape[1:]))
        for column in range(first, last):
            value = np.clip(np.round(open_weights[column]), -LEVELS, LEVELS)
            value = np.where(fixed == column, sign * LEVELS, value)
            integers[column] = value
            error = (open_weights[column] - value) / upper[:, column, column, None]
            errors[column - first] = error
            pull = upper[:, column, column + 1 : last].T[:, :, None]
            open_weights[column + 1 : last] -= pull * error
        if last < columns:
            pulls = upper[:, first:last, last:].transpose(0, 2, 1) @ errors.transpose(1, 0, 2)
            open_weights[last:] -= pulls.transpose(1, 0, 2)
    return integers


Feeds = Callable[[], Iterable[Sequence[NDArray[Any]]]]
"""Calibration inputs in the file's order, from the start at each call."""


def apply(
    graph: Graph, steps: Sequence[Step], statistics: Statistics, feeds: Feeds, progress: Progress = silent
) -> Graph:
    """Apply the steps to the graph's constants. statistics: of `graph`."""
    for step in steps:
        if step == "equalise":
            from edgekit_converters.targets.equalise import equalise_channels

            channels = {name: tensor.channels for name, tensor in statistics.tensors.items()}
            largest = {name: np.abs(one).max(axis=0) for name, one in channels.items() if one is not None}
            graph = equalise_channels(graph, largest)
        else:
            graph = round_weights(graph, observe(graph, feeds(), statistics.samples, progress), progress)
    return graph


def round_weights(graph: Graph, moments: Mapping[str, Moments], progress: Progress) -> Graph:
    """Round weights with compensation and correct biases; of a wide layer only the bias."""
    # Constants that more than one layer reads
    uses = Counter(name for layer in graph.layers for name in (layer.weight, layer.bias) if name is not None)
    shared = frozenset(name for name, count in uses.items() if count > 1)
    values: dict[str, NDArray[Any]] = {}
    for done, layer in enumerate(graph.layers):
        progress("rounding weights", done, len(graph.layers))
        found = moments.get(layer.name)
        if found is None or layer.weight is None or layer.weight in shared:
            continue
        bias = _own_bias(graph, layer, shared)
        weights = found.matrix.weights(graph.constant(layer.weight))
        second = found.second if bias is None else found.covariance
        if second is not None:
            chosen = compensate_rounding(weights, second, found.rows)
            values[layer.weight] = found.matrix.constant(chosen)
        else:
            chosen = nearest(weights)
        if bias is not None:
            values[bias] = correct_bias(graph.constant(bias), weights, chosen, found.mean)
    return graph.with_constants(values)


def restore_layers(refined: Graph, exact: Graph, layers: Collection[str]) -> Graph:
    """Return `refined` with those layers' weights and biases taken from `exact`."""
    kept = [name for layer in exact.layers if layer.name in layers for name in (layer.weight, layer.bias)]
    values = {name: exact.constant(name) for name in kept if name is not None}
    return refined.with_constants(values) if values else refined


def _own_bias(graph: Graph, layer: Layer, shared: Collection[str]) -> str | None:
    """Return the bias if no other layer shares it and it has one number per channel."""
    if layer.bias is None or layer.bias in shared or layer.weight is None or layer.weight_axis is None:
        return None
    channels = graph.constant(layer.weight).shape[layer.weight_axis]
    return layer.bias if graph.constant(layer.bias).size == channels else None

"""Which way each weight is rounded onto its channel's int8 grid, so that the layer's output suffers least.

Rounding every weight to the nearest integer is best only if the inputs of a layer were independent. They are not:
neighbouring pixels and channels move together, and then one weight's error can undo another's. Column by column, each
weight is rounded and its error is handed to the columns that are still open, in proportion to how well they can make up
for it (optimal brain surgeon, Hassibi and Stork 1993; with the Cholesky form of Frantar et al., GPTQ, 2023). What matters
of the inputs is their covariance where the layer has a bias, which takes up the mean.

    integers = nearest(weights)
    better = compensated(weights, second)

Rules: a channel's scale is its largest absolute weight / 127, and that weight stays where it is, so that a quantizer which
divides by the same number finds these very integers; a channel is changed only where that lowers its output's error on
the calibration data; grids are symmetric, integers within -127..127.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVELS", "compensated", "nearest", "output_error", "steps_of"]

LEVELS = 127
DAMPING = 0.01
"""Share of the mean diagonal that is added to it: what GPTQ uses."""
BLOCK = 64
"""Columns whose errors are handed on together: a matrix product in place of many sums."""

Array = NDArray[np.float64]


def steps_of(weights: Array) -> Array:
    """The quantizer's step of each channel: [groups, outputs, 1] for weights [groups, outputs, n]; 1 where all is 0."""
    largest = np.abs(weights).max(axis=-1, keepdims=True)
    return np.where(largest > 0, largest, LEVELS) / LEVELS


def nearest(weights: Array) -> Array:
    """Every weight at the nearest point of its channel's grid."""
    steps = steps_of(weights)
    rounded: Array = np.round(weights / steps) * steps
    return rounded


def output_error(weights: Array, rounded: Array, second: Array) -> Array:
    """Mean square error of each channel's output: [groups, outputs]."""
    error = rounded - weights
    found: Array = ((error @ second) * error).sum(axis=-1)
    return found


def compensated(weights: Array, second: Array, rows: int) -> Array:
    """weights: float64 [groups, outputs, n]. second: the inputs' covariance or second moment, [groups, n, n], found from
    that many rows. The same shape as the weights, on the grid, no channel with more output error than `nearest` gives.
    """
    plain = nearest(weights)
    if not np.isfinite(second).all():
        return plain
    try:
        found = _fed_back(weights, _steadied(second, rows))
    except np.linalg.LinAlgError:
        return plain
    better = output_error(weights, found, second) < output_error(weights, plain, second)
    chosen: Array = np.where(better[..., None], found, plain)
    return chosen


def _steadied(second: Array, rows: int) -> Array:
    """Made invertible, and drawn towards its diagonal where rows are few: what few rows show together may be chance."""
    columns = second.shape[-1]
    diagonal = np.einsum("gii->gi", second)
    steady: Array = second * (rows / (rows + columns))
    added = diagonal * (columns / (rows + columns)) + DAMPING * diagonal.mean(axis=-1, keepdims=True) + 1e-12
    steady[:, np.arange(columns), np.arange(columns)] += added
    return steady


def _fed_back(weights: Array, second: Array) -> Array:
    groups = len(weights)
    order = np.argsort(-np.einsum("gii->gi", second), axis=-1)  # the columns that matter most have most to hand on to
    rows = np.arange(groups)[:, None]
    sorted_second = second[rows[:, :, None], order[:, :, None], order[:, None, :]]
    upper = np.linalg.cholesky(np.linalg.inv(sorted_second)).transpose(0, 2, 1)
    steps = steps_of(weights)
    start = np.take_along_axis(weights / steps, order[:, None, :], axis=-1)
    integers = _rounded_in_turn(np.ascontiguousarray(start.transpose(2, 0, 1)), upper).transpose(1, 2, 0)
    restored = np.empty_like(weights)
    np.put_along_axis(restored, np.broadcast_to(order[:, None, :], weights.shape), integers, axis=-1)
    return restored * steps


def _rounded_in_turn(start: Array, upper: Array) -> Array:
    """start: weights in steps, [n, groups, outputs]; upper: [groups, n, n]. Integers, the largest weight at its place."""
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

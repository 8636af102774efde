"""Causes that lie in the weights: what rounding them costs, read off the two files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.explain.case import Case, Cause
from edgekit_converters.fidelity.statistics import decibels
from edgekit_converters.graph import Layer

__all__ = ["channel_spread", "weight_resolution"]

_SPREAD = 16.0
_POOR_DB = 20.0
_COARSE_DB = 33.0


def channel_spread(case: Case) -> Iterator[Cause]:
    """One scale for all output channels, and channels of very different size: the small ones vanish."""
    for layer, error in case.damaged:
        pair = _weights(case, layer)
        if pair is None or layer.weight_axis is None:
            continue
        rows, rounded = (_rows(values, layer.weight_axis) for values in pair)
        reach = np.abs(rows).max(axis=1)
        used = reach > 0
        if used.sum() < 2:
            continue
        spread = float(reach[used].max() / reach[used].min())
        poor = int(sum(_db(a, b) < _POOR_DB for a, b in zip(rows[used], rounded[used], strict=True)))
        if spread < _SPREAD or poor * 20 < used.sum():
            continue
        yield Cause(
            layer.name,
            "channel-spread",
            f"the ranges of its {len(reach)} output channels are up to {spread:.0f}x apart under one scale, and {poor} of "
            "them keep less than 20 dB of their weights",
            {"spread": spread, "channels": len(reach), "poor": poor},
            "Quantize its weights per channel, equalise neighbouring layers, or keep it in float",
            error.harm_db,
            (layer.name,),
        )


def weight_resolution(case: Case) -> Iterator[Cause]:
    """8 bits are too few for weights of which most are small beside the largest of their channel."""
    for layer, error in case.damaged:
        pair = _weights(case, layer)
        if pair is None:
            continue
        weight_db = _db(*pair)
        own = error.own_sqnr_db
        if weight_db > _COARSE_DB or (own is not None and own < weight_db - 12):
            continue
        rows = _rows(pair[0], layer.weight_axis or 0)
        crest = float(np.median(np.abs(rows).max(axis=1) / np.maximum(np.sqrt((rows**2).mean(axis=1)), 1e-30)))
        shown = "" if own is None else f"; the layer itself adds noise at {own:.0f} dB"
        yield Cause(
            layer.name,
            "weight-resolution",
            f"rounding its weights leaves {weight_db:.0f} dB of them, because the largest of a channel is {crest:.1f}x its "
            f"typical weight{shown}",
            {"weight_sqnr_db": weight_db, "crest": crest, "own_sqnr_db": own if own is not None else weight_db},
            "Keep it in float (an early layer costs little), or round its weights with their inputs in sight",
            error.harm_db,
            (layer.name,),
        )


def _weights(case: Case, layer: Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """(float, as the quantized file has it), None where there are none or they are not quantized."""
    if layer.weight is None:
        return None
    other = next((found for found in case.quantized.layers if layer.outputs[0] in found.outputs), None)
    for name in (layer.weight, other.weight if other is not None else None):
        if name is None:
            continue
        try:
            first, second = case.float_graph.constant(layer.weight), case.quantized.constant(name)
        except KeyError:
            continue
        if first.shape == second.shape and not np.array_equal(first, second):
            return np.asarray(first, np.float64), np.asarray(second, np.float64)
    return None


def _rows(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """[output channels, the rest]."""
    moved = np.moveaxis(np.asarray(values, np.float64), axis, 0)
    return moved.reshape(len(moved), -1)


def _db(original: NDArray[np.float64], rounded: NDArray[np.float64]) -> float:
    found = decibels(float((original**2).sum()), float(((original - rounded) ** 2).sum()))
    return math.inf if found is None else found

"""A streaming histogram whose bins are floating-point numbers cut to seven bits of mantissa.

    histogram = Histogram()
    for values in stream:
        histogram.add(values)               # finite float32, any shape
    low, high = histogram.quantiles((0.0001, 0.9999))

Rules:
- there are 128 bins to a power of two, so a bin is at most 1/128 of its values wide, whatever their scale;
- the bins cover the 16 powers of two below the largest magnitude; what is smaller counts as zero. When a larger value
  comes, the smallest bins go to zero: nothing is ever spread or guessed;
- so the counts depend on the values alone, not on their order or how they were cut into chunks, and merging is adding;
- the size is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "Bins", "Histogram"]

_PER_OCTAVE = 128
_OCTAVES = 16
BINS = _PER_OCTAVE * _OCTAVES
"""Bins for each sign."""

_CODES = 1 << 15  # magnitudes there are in the upper half of a float32
_CHUNK = 1 << 18  # values counted at once: 2 MiB of indexes


class Histogram:
    """counts: int64 [2, BINS], positive then negative, from the smallest magnitude. zeros: values that count as zero.

    top: the octave (exponent as float32 stores it) of the largest bins.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros((2, BINS), np.int64)
        self.zeros = 0
        self.top = _OCTAVES - 1

    def add(self, values: NDArray[np.float32]) -> None:
        """values: finite. Raises ValueError for NaN or infinity."""
        flat = np.ascontiguousarray(values, "<f4").reshape(-1)
        codes = flat.view(np.uint16)[1::2]  # sign, exponent and seven bits of mantissa
        for start in range(0, codes.size, _CHUNK):
            part = codes[start : start + _CHUNK]
            self._add_counts(np.bincount(part), part.size)

    def merge(self, other: Histogram) -> None:
        """Take in what another one counted; `other` stays as it is."""
        self._raise_top(other.top)
        shift = (self.top - other.top) * _PER_OCTAVE
        kept = other.counts[:, shift:] if shift < BINS else other.counts[:, :0]
        self.counts[:, : kept.shape[1]] += kept
        self.zeros += other.zeros + int(other.counts.sum() - kept.sum())

    @property
    def total(self) -> int:
        return self.zeros + int(self.counts.sum())

    def bins(self) -> Bins:
        """The occupied bins in ascending order of their values."""
        first = (self.top - _OCTAVES + 1) * _PER_OCTAVE
        edges = (np.arange(first, first + BINS + 1, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
        edges[-1] = min(edges[-1], float(np.finfo(np.float32).max))
        positive, negative = (np.flatnonzero(counts) for counts in self.counts)
        negative = negative[::-1]
        zero = np.zeros(1 if self.zeros else 0)
        return Bins(
            np.concatenate([-edges[negative + 1], zero, edges[positive]]),
            np.concatenate([-edges[negative], zero, edges[positive + 1]]),
            np.concatenate([self.counts[1, negative], [self.zeros] * zero.size, self.counts[0, positive]]).astype(
                float
            ),
        )

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """The values below which these shares (0..1) of all lie; values are taken to be even within a bin."""
        return self.bins().quantiles(shares)

    def _add_counts(self, counted: NDArray[np.int64], size: int) -> None:
        sides = counted[:_CODES], counted[_CODES:]
        largest = max(int(np.flatnonzero(side)[-1]) if side.any() else 0 for side in sides)
        octave = largest // _PER_OCTAVE
        if octave == 255:
            raise ValueError("NaN or infinity among the values")
        self._raise_top(octave)
        first = (self.top - _OCTAVES + 1) * _PER_OCTAVE
        placed = 0
        for counts, side in zip(self.counts, sides, strict=True):
            kept = side[max(first, 1) : first + BINS]
            skipped = max(first, 1) - first
            counts[skipped : skipped + kept.size] += kept
            placed += int(kept.sum())
        self.zeros += size - placed

    def _raise_top(self, octave: int) -> None:
        shift = (octave - self.top) * _PER_OCTAVE
        if shift <= 0:
            return
        self.zeros += int(self.counts[:, :shift].sum())
        moved = np.zeros_like(self.counts)
        moved[:, : max(BINS - shift, 0)] = self.counts[:, shift:]
        self.counts = moved
        self.top = octave


@dataclass(frozen=True)
class Bins:
    """Ascending bins: float64 [N] each. A bin of no width (zero) holds its value exactly."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    counts: NDArray[np.float64]

    @cached_property
    def _below(self) -> NDArray[np.float64]:
        """Values below the first bin, the second..., and all."""
        return np.concatenate([[0.0], np.cumsum(self.counts)])

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Raises ValueError when nothing was counted."""
        if self.counts.size == 0:
            raise ValueError("an empty histogram has no quantiles")
        found = []
        for share in shares:
            wanted = share * self._below[-1]
            at = min(int(np.searchsorted(self._below, wanted, side="left")), self.counts.size)
            at = max(at - 1, 0)
            within = (wanted - self._below[at]) / self.counts[at]
            found.append(float(self.lower[at] + (self.upper[at] - self.lower[at]) * min(max(within, 0.0), 1.0)))
        return tuple(found)

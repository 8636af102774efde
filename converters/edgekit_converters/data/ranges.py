"""A histogram of a tensor's values, and the range that a method chooses from it.

    histogram = ActivationHistogram()
    histogram.add(values)
    chosen_range("mse", low, high, histogram.bins())    # (-0.31, 5.2)

Rules:
- of an array that is larger than SAMPLE a histogram counts as many values: `TensorStatistics` keeps the exact ends;
- a histogram has 128 bins to a power of two, over the 16 powers below the largest magnitude; smaller values count as
  zero. When a larger value comes, the smallest bins go to zero, so that merging is adding;
- a range contains zero, because zero must be exact (padding, silence), and never exceeds the values that were seen;
- a range is finite and never empty: that of zeros alone is 0..1, so that no scale is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgekit_converters.recipe.artifact import RangeMethod

_PER_OCTAVE = 128
_OCTAVES = 16
BINS = _PER_OCTAVE * _OCTAVES
"""Bins for each sign."""

_CODES = 1 << 15  # magnitudes there are in the upper half of a float32
SAMPLE = 65_521
"""Values of one array that are counted, evenly spread. A prime: their distance fits no number of channels."""


class ActivationHistogram:
    """counts: int64 [2, BINS], positive then negative, from the smallest magnitude.
    zeros: values that count as zero.
    top: the octave (exponent as float32 stores it) of the largest bins."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros((2, BINS), np.int64)
        self.zeros = 0
        self.top = _OCTAVES - 1

    def add(self, values: NDArray[np.float32]) -> None:
        """values: finite. Raises ValueError for NaN or infinity."""
        flat = np.ascontiguousarray(values, "<f4").reshape(-1)
        codes = flat.view(np.uint16)[1::2]  # sign, exponent and seven bits of mantissa
        if codes.size > SAMPLE:
            codes = codes[np.arange(SAMPLE) * codes.size // SAMPLE]
        octave = int((codes & (_CODES - 1)).max(initial=0)) // _PER_OCTAVE
        if octave == 255:
            raise ValueError("NaN or infinity among the values")
        self._raise_top(octave)
        first = (self.top - _OCTAVES + 1) * _PER_OCTAVE
        sides = np.bincount(codes, minlength=2 * _CODES).reshape(2, _CODES)
        kept = sides[:, max(first, 1) : first + BINS]
        self.counts[:, BINS - kept.shape[1] :] += kept
        self.zeros += codes.size - int(kept.sum())

    def merge(self, other: ActivationHistogram) -> None:
        """Add another one's counts; `other` stays as it is."""
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
        lower = np.concatenate([-edges[negative + 1], zero, edges[positive]])
        upper = np.concatenate([-edges[negative], zero, edges[positive + 1]])
        counts = np.concatenate([self.counts[1, negative], [self.zeros] * zero.size, self.counts[0, positive]])
        return Bins(lower, upper, counts.astype(float))

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """The values below which these shares (0..1) of all lie."""
        return self.bins().quantiles(shares)

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


METHODS: tuple[RangeMethod, ...] = ("minmax", "percentile", "entropy", "mse")
PERCENTILE = 99.99
"""The share of values, in per cent, that stays below the upper end and above the lower one."""

_STEPS = 255.0
_LEAST_WIDTH = 2.0**-40  # a narrower range has a scale that engines cannot multiply with
_LINEAR = 2048
_LEVELS = 128
_OCTAVES_TRIED = 7.0
_UNSEEN = 0.5  # values that Q is taken to have where only clipped ones are

Float = NDArray[np.float64]


def chosen_range(method: RangeMethod, low: float, high: float, bins: Bins) -> tuple[float, float]:
    """low, high: the smallest and largest value that was seen."""
    if not low < high or bins.counts.size == 0:
        return usable(low, high)
    if method == "percentile":
        tail = 1 - PERCENTILE / 100
        first, last = bins.quantiles((tail, 1 - tail))
    elif method == "entropy":
        reach = _entropy_reach(max(-low, high), bins, one_sided=low >= 0 or high <= 0)
        first, last = -reach, reach
    elif method == "mse":
        first, last = _least_error(low, high, bins)
    else:
        first, last = low, high
    return usable(max(first, low), min(last, high))


def usable(low: float, high: float) -> tuple[float, float]:
    """The range extended to zero and to a width that a scale can be made of."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return 0.0, 1.0
    if high - low < _LEAST_WIDTH:
        return (low, low + _LEAST_WIDTH) if high > -low else (high - _LEAST_WIDTH, high)
    return low, high


@dataclass(frozen=True)
class _Moments:
    """Sums over bins of counts, counts * value and counts * value squared below each edge."""

    edges: Float
    sums: Float  # [3, edges]

    @classmethod
    def of(cls, bins: Bins) -> _Moments:
        middle = (bins.lower + bins.upper) / 2
        counts = np.where(middle == 0, 0.0, bins.counts)
        spread = (bins.upper - bins.lower) ** 2 / 12
        sums = np.cumsum(np.stack([counts, counts * middle, counts * (middle**2 + spread)]), axis=1)
        return cls(bins.upper, np.concatenate([np.zeros((3, 1)), sums], axis=1))

    def below(self, values: Float) -> Float:
        """[3, values.size]: of the bins that end at or below each value."""
        return np.asarray(self.sums[:, np.searchsorted(self.edges, values, side="right")])


def _least_error(low: float, high: float, bins: Bins) -> tuple[float, float]:
    """The ends between which 256 levels make the least expected squared error.
    Inside the range a value is off by step^2 / 12 on average; one nearer to zero than half a step becomes zero; one
    outside is off by its distance to the end."""
    moments = _Moments.of(bins)
    ratios = 2.0 ** np.linspace(-_OCTAVES_TRIED, 0.0, 57)
    ends = np.array([0.0]) if low >= 0 else low * ratios, np.array([0.0]) if high <= 0 else high * ratios
    for nearer in (2.0 ** np.linspace(-0.125, 0.125, 17), None):
        # summed squared error for every pair of ends: [lows, highs]
        lows, highs = ends
        all_sums = moments.sums[:, -1:]
        under, over = moments.below(lows), all_sums - moments.below(highs)
        clipped_low = under[2] - 2 * lows * under[1] + lows**2 * under[0]
        clipped_high = over[2] - 2 * highs * over[1] + highs**2 * over[0]
        step = np.maximum(highs[None, :] - lows[:, None], 1e-300) / _STEPS
        near = moments.below((step / 2).ravel()) - moments.below((-step / 2).ravel())
        near = near.reshape(3, *step.shape)
        inside = np.maximum(all_sums[0, 0] - under[0][:, None] - over[0][None, :] - near[0], 0.0)
        errors: Float = clipped_low[:, None] + clipped_high[None, :] + near[2] + inside * step**2 / 12
        first, last = np.unravel_index(int(errors.argmin()), errors.shape)
        best = float(ends[0][first]), float(ends[1][last])
        if nearer is not None:
            ends = np.maximum(np.unique(best[0] * nearer), low), np.minimum(np.unique(best[1] * nearer), high)
    return best


def _entropy_reach(largest: float, bins: Bins, *, one_sided: bool) -> float:
    """The magnitude whose clipping loses the least information, by Kullback-Leibler divergence.
    The magnitudes without zeros are laid on 2,048 even bins. For each candidate end, P is the counts before it, with
    those beyond added to its last bin; Q is P without these, put into as many levels as the integers have and spread
    evenly over the occupied bins again."""
    counts = _linear(bins, largest)
    levels = 2 * _LEVELS if one_sided else _LEVELS
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    occupied = np.concatenate([[0.0], np.cumsum(counts > 0)])
    logs = np.concatenate([[0.0], np.cumsum(_xlogx(counts))])
    if mass[-1] <= 0:
        return largest
    ends = np.arange(levels, _LINEAR + 1, 8)
    edges = (np.arange(levels + 1)[None, :] * ends[:, None]) // levels
    within, seats = np.diff(mass[edges], axis=1), np.diff(occupied[edges], axis=1)
    last, beyond = counts[ends - 1], mass[-1] - mass[ends]
    seats[:, -1] += (last <= 0) & (beyond > 0)  # what was clipped takes a place of its own
    within[:, -1] = np.where((within[:, -1] <= 0) & (beyond > 0), _UNSEEN, within[:, -1])
    density = np.log(np.where(within > 0, within / np.maximum(seats, 1), 1.0))
    # sum(P log P) - sum(P log Q), with P = counts / all of them and Q = density / what is inside
    total = mass[-1]
    p_log_p = logs[ends] - _xlogx(last) + _xlogx(last + beyond) - total * np.log(total)
    p_log_q = (within * density).sum(axis=1) + beyond * density[:, -1] - total * np.log(np.maximum(mass[ends], 1e-300))
    best = int((p_log_p - p_log_q).argmin())
    return largest * float(ends[best]) / _LINEAR


def _xlogx(values: Float) -> Float:
    return np.asarray(values * np.log(np.where(values > 0, values, 1.0)))


def _linear(bins: Bins, largest: float) -> Float:
    """Counts of magnitudes on even bins from 0 to `largest`; zeros are left out."""
    edges = np.linspace(0.0, largest, _LINEAR + 1)
    counts: Float = np.zeros(_LINEAR)
    for lower, upper, held in (
        (bins.lower, bins.upper, np.where(bins.lower >= 0, bins.counts, 0.0)),
        (-bins.upper[::-1], -bins.lower[::-1], np.where(bins.upper <= 0, bins.counts, 0.0)[::-1]),
    ):
        some = (held > 0) & (upper > lower)
        if not some.any():
            continue
        lower, upper, held = lower[some], np.minimum(upper[some], largest), held[some]
        below = np.cumsum(held) - held
        # The share of all values that lie below an edge: flat between bins, even within one.
        known = np.stack([lower, np.maximum(upper, lower)], axis=1).ravel()
        passed = np.stack([below, below + held], axis=1).ravel()
        counts += np.diff(np.interp(edges, known, passed, left=0.0))
    return counts

"""Confidence intervals of everything that a comparison measures: 95 %, two-sided, the same figures at every run.

paired_interval(lost=9, gained=4, items=1000)        # (-0.0024, 0.0123), a drop of a share
share_interval(hits=97, items=100)                   # (0.9155, 0.9897), a share by itself
mean_interval(errors)                                # a mean of numbers
resampled_interval(drop, items=500)                  # anything else: the bootstrap, seeded
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Z95", "mean_interval", "paired_interval", "ratio_interval_db", "resampled_interval", "share_interval"]

Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""

Interval = tuple[float, float]


def paired_interval(lost: int, gained: int, items: int, z: float = Z95) -> Interval:
    """Interval of (lost - gained) / items, the drop of a paired proportion, within [-1, 1].

    lost: items that only the original got right; gained: that only the artifact did. The adjusted Wald interval of
    Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in Medicine 24
    (2005), 729-740: half an item is added to each of the four cells, so N = n + 2 and, with b and c the two counts + 1/2,

        (b - c) / N  +-  z sqrt(b + c - (b - c)^2 / N) / N

    Unlike the plain Wald interval it does not shrink to nothing where the two models never differ: 0 of 20 is +- 8.9
    points. Raises ValueError where the counts do not fit.
    """
    if items < 1 or lost < 0 or gained < 0 or lost + gained > items:
        raise ValueError(f"lost={lost} and gained={gained} do not fit {items} items")
    total = items + 2
    difference = lost - gained
    spread = z * math.sqrt(lost + gained + 1 - difference * difference / total)
    return max(-1.0, (difference - spread) / total), min(1.0, (difference + spread) / total)


def share_interval(hits: int, items: int, z: float = Z95) -> Interval:
    """Interval of hits / items, within [0, 1]: the score interval of E. B. Wilson, "Probable inference, the law of
    succession, and statistical inference", JASA 22 (1927), 209-212. With p = hits / items,

        (p + z^2 / 2n  +-  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    100 of 100 is 0.963 to 1, never exactly 1 to 1. Raises ValueError where the counts do not fit.
    """
    if items < 1 or not 0 <= hits <= items:
        raise ValueError(f"{hits} hits do not fit {items} items")
    share, square = hits / items, z * z / items
    spread = z * math.sqrt(share * (1 - share) / items + square / (4 * items))
    low, high = ((share + square / 2 + sign * spread) / (1 + square) for sign in (-1, 1))
    return (0.0 if hits == 0 else max(0.0, low)), (1.0 if hits == items else min(1.0, high))


def mean_interval(values: NDArray[np.float64] | Sequence[float]) -> Interval:
    """mean +- t s / sqrt(n), s the sample's standard deviation, t Student's 97.5 % point for n - 1 degrees of freedom.

    One value says nothing of its spread: its interval is the value itself.
    """
    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, mean
    spread = _student(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return mean - spread, mean + spread


def ratio_interval_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> Interval:
    """Interval of 10 log10(sum signal / sum noise) over items, by the delta method; both sums must be positive.

    The logarithm of a ratio of two means m and k varies as the mean of x / m - y / k does; `mean_interval` has the rest.
    """
    low, high = mean_interval(signal / signal.mean() - noise / noise.mean())
    middle = 10 * math.log10(float(signal.sum()) / float(noise.sum()))
    step = 10 / math.log(10)
    return middle + step * low, middle + step * high


def resampled_interval(
    statistic: Callable[[NDArray[np.int64]], float], items: int, resamples: int = 1000, seed: int = 0
) -> Interval:
    """The percentile bootstrap: the 2.5 % and 97.5 % points of statistic(indexes drawn with replacement).

    The same indexes go to both models inside `statistic`, which makes the interval of a drop a paired one. Resamples that
    the statistic is not defined on (NaN) are left out. B. Efron, "Bootstrap methods", Annals of Statistics 7 (1979), 1-26.
    """
    generator = np.random.default_rng(seed)
    values = np.array([statistic(generator.integers(0, items, items)) for _ in range(resamples)])
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def _student(degrees: int) -> float:
    """97.5 % point of Student's t: exact for 1 and 2, else the expansion in 1/degrees (Abramowitz and Stegun 26.7.5)."""
    if degrees <= 2:
        return (12.706204736, 4.302652730)[degrees - 1]
    z = Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees ** (power + 1) for power, term in enumerate(terms))

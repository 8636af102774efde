"""A latency histogram with base-2 exponential buckets: small, exact to 1.1 %, and merged by adding.

Bucket i holds values in (2^(i/32), 2^((i+1)/32)] (scale 5 of the OpenTelemetry exponential histogram), so neighbouring
bounds differ by 2.19 % and a bucket's midpoint is at most 1.1 % from any value in it. Zero has a bucket of its own.

    h = Histogram(); h.record(3.2); h.record(4.1)
    h.quantile(0.5)         # 3.2, within 1.1 %
    h.merge(other)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["SCALE", "Histogram"]

SCALE = 5
_BUCKETS_PER_OCTAVE = 1 << SCALE
_BASE = 2.0 ** (1.0 / _BUCKETS_PER_OCTAVE)
_SMALLEST = 1e-6


class Histogram:
    """Values are non-negative (milliseconds, here). Not thread-safe: the meter's lock guards it."""

    __slots__ = ("buckets", "count", "maximum", "total", "zeros")

    def __init__(self, buckets: Mapping[int, int] | None = None) -> None:
        self.buckets: dict[int, int] = dict(buckets or {})
        self.count = sum(self.buckets.values())
        self.zeros = 0
        self.total = 0.0
        self.maximum = 0.0

    def record(self, value: float) -> None:
        """Count one value. Below 1e-6 it counts as zero."""
        self.count += 1
        self.total += value
        self.maximum = max(self.maximum, value)
        if value < _SMALLEST:
            self.zeros += 1
            return
        index = math.ceil(math.log2(value) * _BUCKETS_PER_OCTAVE) - 1
        buckets = self.buckets
        buckets[index] = buckets.get(index, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts to this one: the same as having recorded both streams here."""
        for index, n in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + n
        self.count += other.count
        self.zeros += other.zeros
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def quantile(self, q: float) -> float | None:
        """The value at rank ceil(q * count), within 1.1 %; None when nothing was recorded.

        A bucket answers with 2ab / (a + b) of its bounds a, b, which has the least worst-case relative error.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile lies in [0, 1], not {q}")
        if self.count == 0:
            return None
        rank = max(1, math.ceil(q * self.count))
        if rank <= self.zeros:
            return 0.0
        seen = self.zeros
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if seen >= rank:
                lower: float = 2.0 ** (index / _BUCKETS_PER_OCTAVE)
                return min(2.0 * lower * _BASE / (1.0 + _BASE), self.maximum) if self.maximum else lower
        return self.maximum

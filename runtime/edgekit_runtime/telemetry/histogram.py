"""Histograms of timings that merge by adding, the stages of an answer, and drift of scores.

    h = Histogram(); h.record(3.2); h.record(4.1)
    h.quantile(0.5)         # 3.2, within 1.1 %
    h.wire()                # [5, 53, [1, -10, 1]]: scale, index of the first bucket, counts; -10 is ten empty buckets
    record_table([h, other], np.array([[4.1, 0.2], [5.0, 0.3]]))      # a column each, in a few array passes
    list(tables([("device", 4.2, True, {"decode": 0.4, "adapt": 0.1, "engine": 3.6}, None)]))
    # [("device", ("prepare", "infer"), array([[4.2, 0.5, 3.6]]))]
    drift = Drift(bundled=[2, 0, 1, ...])   # the bundle's own; without one the first REFERENCE samples become it
    drift.add([0, 0, 3, 1, 0, 0, 2, 5, 20, 90]); drift.psi      # None until LEAST samples came since the last one

Rules:
- bucket i at scale s holds values in (2^(i/2^s), 2^((i+1)/2^s)], as in the OpenTelemetry exponential histogram; zero
  has its own. At scale 5 a midpoint is at most 1.1 % from any value in its bucket; one scale less doubles that;
- a stage is what a person can act on, and STAGE_OF maps the parts of `Answer.timings` to it. An answer counts in the
  stages that it went through;
- drift is the population stability index of a classifier's top scores in BINS of equal width from 0 to 1; above 0.2 it
  is usually called one, below LEAST samples it would be noise. No class and no score leaves the board, only the index;
- its reference is the bundle's, if that has LEAST samples in BINS; else of the board's first answers with the bundle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SCALE = 5
_SMALLEST = 1e-6
_LARGEST = 2.0**64  # what from_wire takes
_LARGEST_INDEX = 64  # octaves either side of 1 that a histogram from outside may span: 2^-64 to 2^64
_MOST_COUNT = (1 << 53) - 1
Recorded = tuple[str, float, "bool | None", "dict[str, float] | None", "tuple[int, int, float | None] | None"]
"""source, total milliseconds, whether the budget was met, timings, (clipped values, values, top score)."""
Table = tuple[str, tuple[str, ...], NDArray[np.float64]]
"""source, stages, and milliseconds [answers, 1 + stages]: the total, then the stages."""
STAGES: Final = ("prepare", "queue", "infer", "finish", "network", "host")
"""In the order of a request. network: to a host and back; host: what the host itself took."""
STAGE_OF: Final[Mapping[str, str]] = {
    "identify": "prepare",
    "lookup": "prepare",
    "decode": "prepare",
    "similar": "prepare",
    "adapt": "prepare",
    "queue": "queue",
    "joined": "queue",  # waited for an identical request
    "engine": "infer",
    "finish": "finish",
    "network": "network",
    "host_failed": "network",
    "host": "host",
}


class Histogram:
    """Values are non-negative (milliseconds, here). Not thread-safe: the meter's lock guards it."""

    __slots__ = ("_per_octave", "buckets", "count", "maximum", "scale", "total", "zeros")

    def __init__(self, buckets: Mapping[int, int] | None = None, scale: int = SCALE) -> None:
        self.scale = scale
        self._per_octave = 2.0**scale
        self.buckets: dict[int, int] = dict(buckets) if buckets else {}
        self.count = sum(self.buckets.values()) if buckets else 0
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
        index = math.ceil(math.log2(value) * self._per_octave) - 1
        buckets = self.buckets
        buckets[index] = buckets.get(index, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts, at the smaller of both scales.

        If `from_wire` could not read the sum, nothing is added.
        """
        if self.count + other.count > _MOST_COUNT:
            return
        if other.scale < self.scale:
            self.downscale(other.scale)
        shift = other.scale - self.scale
        for index, n in other.buckets.items():
            self.buckets[index >> shift] = self.buckets.get(index >> shift, 0) + n
        self.count += other.count
        self.zeros += other.zeros
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def downscale(self, scale: int) -> None:
        """Join buckets until they are those of a smaller scale."""
        shift = self.scale - scale
        if shift < 0:
            raise ValueError(f"scale {scale} is finer than {self.scale}: counts cannot be split")
        joined: dict[int, int] = {}
        for index, n in self.buckets.items():
            joined[index >> shift] = joined.get(index >> shift, 0) + n
        self.scale, self._per_octave, self.buckets = scale, 2.0**scale, joined

    def quantile(self, q: float) -> float | None:
        """The value at rank ceil(q * count), within 1.1 % at scale 5; None if empty.

        A bucket answers with 2ab / (a + b) of its bounds, which has the least worst-case relative error.
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
                lower, upper = 2.0 ** (index / self._per_octave), 2.0 ** ((index + 1) / self._per_octave)
                middle: float = 2.0 * lower * upper / (lower + upper)
                return min(middle, self.maximum) if self.maximum else middle
        return self.maximum

    def wire(self) -> list[Any]:
        """[scale, index of the first bucket, counts], and the number of zeros if any.

        A negative count -k stands for k empty buckets, so a slow outlier costs a few bytes and no precision.
        """
        if not self.buckets:
            return [self.scale, 0, []] if not self.zeros else [self.scale, 0, [], self.zeros]
        first = previous = min(self.buckets)
        counts: list[int] = []
        for index in sorted(self.buckets):
            gap = index - previous - 1
            if gap > 0:
                counts.append(-gap if gap > 1 else 0)
            counts.append(self.buckets[index])
            previous = index
        value: list[Any] = [self.scale, first, counts]
        return [*value, self.zeros] if self.zeros else value

    def at_most(self, octave: int) -> int:
        """How many values were at most 2^octave: exact, because a power of two is a bucket's bound."""
        end = octave << self.scale
        return self.zeros + sum(n for index, n in self.buckets.items() if index < end)

    @classmethod
    def from_wire(cls, value: object) -> Histogram:
        """What `wire` made, without `maximum` and `total`. Raises ValueError for anything else."""
        if not isinstance(value, list) or len(value) not in (3, 4):
            raise ValueError("a histogram is [scale, offset, counts]")
        scale, index, counts = value[0], value[1], value[2]
        if not _integer(scale) or not 0 <= scale <= SCALE:
            raise ValueError(f"a histogram's scale lies in 0..{SCALE}")
        span = _LARGEST_INDEX << scale
        if not _integer(index) or abs(index) > span:
            raise ValueError("a histogram's offset is out of range")
        if not isinstance(counts, list) or len(counts) > 2 * span:
            raise ValueError("a histogram has too many buckets")
        zeros = value[3] if len(value) == 4 else 0
        if not _integer(zeros) or not 0 <= zeros <= _MOST_COUNT:
            raise ValueError("a histogram counts with whole numbers")
        if not set(map(type, counts)) <= {int}:  # a bool is no count
            raise ValueError("a histogram counts with whole numbers")
        least, most = (min(counts), max(counts)) if counts else (1, 0)
        if least < -2 * span or most > _MOST_COUNT:
            raise ValueError("a histogram counts with whole numbers")
        made = cls(None, scale)
        if least > 0:
            made.buckets = dict(zip(range(index, index + len(counts)), counts, strict=True))
            index += len(counts)
        else:
            buckets = made.buckets
            for n in counts:
                if n > 0:
                    buckets[index] = n
                    index += 1
                else:
                    index -= n or -1
        if index > span + 1:
            raise ValueError("a histogram has too many buckets")
        made.zeros = zeros
        made.count = sum(made.buckets.values()) + zeros
        if made.count > _MOST_COUNT:
            raise ValueError("a histogram counts too much")
        return made


def record_table(histograms: Sequence[Histogram], table: NDArray[np.float64]) -> None:
    """Count table[:, i] in histograms[i], all of SCALE. Negative values and NaN count as zero."""
    if not table.size:
        return
    clean = np.clip(np.fmax(table, 0.0), 0.0, _LARGEST)
    counted = clean >= _SMALLEST
    # intp: on 32 bits NumPy 1 refuses to count int64, which it cannot cast safely.
    indexes = np.ceil(np.log2(np.maximum(clean, _SMALLEST)) * 2.0**SCALE).astype(np.intp) - 1
    first = int(indexes.min())
    width = int(indexes.max()) - first + 1
    indexes += np.arange(len(histograms)) * width - first
    counts = np.bincount(indexes[counted], minlength=len(histograms) * width)
    taken = np.flatnonzero(counts)
    columns, places = np.divmod(taken, width)
    for column, index, n in zip(columns.tolist(), (places + first).tolist(), counts[taken].tolist(), strict=True):
        buckets = histograms[column].buckets
        buckets[index] = buckets.get(index, 0) + n
    rows = len(table)
    figures = zip(clean.sum(0).tolist(), clean.max(0).tolist(), np.count_nonzero(counted, axis=0).tolist(), strict=True)
    for histogram, (total, maximum, above) in zip(histograms, figures, strict=True):
        histogram.count += rows
        histogram.zeros += rows - above
        histogram.total += total
        histogram.maximum = max(histogram.maximum, maximum)


def _integer(value: object) -> bool:
    return type(value) is int  # as JSON makes them: a bool is none


def tables(recorded: Sequence[Recorded]) -> Iterator[Table]:
    """One table for all answers of one source whose timings have the same parts."""
    sources, totals, _, timings, _ = zip(*recorded, strict=True)
    if sources.count(sources[0]) == len(sources):  # nearly always: no need to sort anything
        parts = tuple(timings[0] or ())
        read = _read(parts, timings)
        if read is not None:
            yield _table(sources[0], totals, parts, read)
            return
    alike: dict[tuple[str, tuple[str, ...]], tuple[list[float], list[dict[str, float]]]] = {}
    for source, total, given in zip(sources, totals, timings, strict=True):
        some, rows = alike.setdefault((source, tuple(given or ())), ([], []))
        some.append(total)
        rows.append(given or {})
    for (source, names), (some, rows) in alike.items():
        read = _read(names, rows)
        assert read is not None
        yield _table(source, some, names, read)


def _read(parts: tuple[str, ...], rows: Sequence[dict[str, float] | None]) -> list[Any] | None:
    """The values of these parts, row by row; None if a row has others."""
    if not parts:
        return None if any(rows) else [()] * len(rows)
    getter: Callable[[Any], Any] = itemgetter(*parts)
    n = len(parts)
    try:
        values = [getter(row) for row in rows if len(row) == n]  # type: ignore[arg-type]
    except (KeyError, TypeError):  # TypeError: a row of None
        return None
    return values if len(values) == len(rows) else None  # as many parts, and each of these: no others


def _table(source: str, totals: Sequence[float], parts: tuple[str, ...], rows: list[Any]) -> Table:
    flat = rows if len(parts) == 1 else chain.from_iterable(rows)
    values = np.fromiter(flat, np.float64, len(rows) * len(parts)).reshape(len(rows), len(parts))
    columns, names = [np.array(totals, np.float64)], []
    for stage in STAGES:
        mine = [i for i, part in enumerate(parts) if STAGE_OF.get(part) == stage]
        if mine:
            names.append(stage)
            columns.append(values[:, mine].sum(1) if len(mine) > 1 else values[:, mine[0]])
    return source, tuple(names), np.column_stack(columns)


BINS = 10
LEAST = 300
REFERENCE = 1000


def psi(reference: Sequence[int], seen: Sequence[int]) -> float:
    """Half a sample is added to each bin, so that an empty one is finite."""
    shares = []
    for counts in (reference, seen):
        total = sum(counts) + 0.5 * len(counts)
        shares.append([(n + 0.5) / total for n in counts])
    return math.fsum((b - a) * math.log(b / a) for a, b in zip(*shares, strict=True))


def count_score(counts: list[int], score: float | None) -> None:
    """Count one top score in its bin, unless it is None, NaN or no probability."""
    if score is not None and 0.0 <= score <= 1.0:
        counts[min(BINS - 1, int(score * BINS))] += 1


class Drift:
    """reference: counts in BINS of the board's own answers, complete or not; None to begin.
    bundled: the bundle's counts, used if valid with at least LEAST samples.
    """

    def __init__(self, reference: Sequence[int] | None = None, bundled: Sequence[int] | None = None) -> None:
        self.bundled = bundled is not None and len(bundled) == BINS and min(bundled) >= 0 and sum(bundled) >= LEAST
        if self.bundled:
            reference = bundled
        self.reference = list(reference) if reference is not None else [0] * BINS
        self.psi: float | None = None
        self._seen = [0] * BINS

    def add(self, counts: Sequence[int]) -> bool:
        """Count a window's samples and update `psi`. True if the reference grew."""
        self.psi = None
        if not self.bundled and sum(self.reference) < REFERENCE:
            self.reference = [a + b for a, b in zip(self.reference, counts, strict=True)]
            return any(counts)
        self._seen = [a + b for a, b in zip(self._seen, counts, strict=True)]
        if sum(self._seen) >= LEAST:
            self.psi = psi(self.reference, self._seen)
            self._seen = [0] * BINS
        return False

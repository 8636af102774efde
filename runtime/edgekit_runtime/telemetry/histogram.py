"""Histograms of timings that merge by adding, stages of an answer, drift, and their window.

    h = Histogram(); h.record(3.2); h.record(4.1)
    h.quantile(0.5)         # 3.2, within 1.1 %
    h.wire()                # [5, 53, [1, -10, 1]]: scale, index of the first bucket, counts; -10 is ten empty buckets
    record_table([h, other], np.array([[4.1, 0.2], [5.0, 0.3]]))      # a column each, in a few array passes
    stages_of({"decode": 0.4, "adapt": 0.1, "engine": 3.6})         # {"prepare": 0.5, "infer": 3.6}
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SCALE = 5
_SMALLEST = 1e-6
_LARGEST = 2.0**64  # what from_wire takes
_LARGEST_INDEX = 64  # octaves either side of 1 that a histogram from outside may span: 2^-64 to 2^64
_MOST_COUNT = (1 << 53) - 1
_WHOLE = {int}
Recorded = tuple[str, tuple[str, ...], tuple[float, ...], "bool | None", "tuple[int, int, float | None] | None"]
"""source, stages, milliseconds in all and in each stage, whether the budget was met, (clipped values, values, top
score)."""
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
    "token": "token",  # of a generated text: each token behind the first one
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

    @classmethod
    def joined(cls, several: Iterable[Histogram], scale: int = SCALE) -> Histogram:
        """Their sum, at that scale or the smallest of theirs."""
        made = cls(scale=scale)
        for one in several:
            made.merge(one)
        return made

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
            raise ValueError(f"a quantile must be in [0, 1], not {q}")
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
        if type(value) is not list or len(value) not in (3, 4):
            raise ValueError("a histogram is [scale, offset, counts]")
        scale, index, counts, zeros = value if len(value) == 4 else (*value, 0)
        if type(counts) is not list or {type(scale), type(index), type(zeros), *map(type, counts)} - _WHOLE:
            raise ValueError("a histogram counts with whole numbers")  # as JSON makes them: a bool is not one
        return cls.of_counts(scale, index, counts, zeros)

    @classmethod
    def of_counts(cls, scale: int, index: int, counts: list[int], zeros: int) -> Histogram:
        """index: of the first bucket. A count of -k stands for k empty buckets. Raises ValueError."""
        if not 0 <= scale <= SCALE:
            raise ValueError(f"a histogram's scale must be in 0..{SCALE}")
        span = _LARGEST_INDEX << scale
        if not -span <= index <= span:
            raise ValueError("a histogram's offset is out of range")
        least = min(counts, default=1)
        if len(counts) > 2 * span or least < -2 * span:
            raise ValueError("a histogram has too many buckets")
        made = cls(None, scale)
        if least > 0:
            made.buckets = dict(zip(range(index, index + len(counts)), counts))  # noqa: B905 - as long
            index += len(counts)
            made.count = sum(counts) + zeros
        else:
            buckets = made.buckets
            for n in counts:
                if n > 0:
                    buckets[index] = n
                    index += 1
                else:
                    index -= n or -1
            made.count = sum(buckets.values()) + zeros
        if index > span + 1:
            raise ValueError("a histogram has too many buckets")
        if not 0 <= zeros <= made.count <= _MOST_COUNT:
            raise ValueError("a histogram's counts are out of range")
        made.zeros = zeros
        return made


def record_table(histograms: Sequence[Histogram], table: NDArray[np.float64]) -> None:
    """Count table[:, i] in histograms[i], all of SCALE. Negative values and NaN count as zero."""
    if not table.size:
        return
    clean = np.fmin(np.fmax(table, 0.0), _LARGEST)
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


def stages_of(timings: Mapping[str, float]) -> dict[str, float]:
    """Stage -> milliseconds, of the parts of an answer."""
    spent: dict[str, float] = {}
    for part, ms in timings.items():
        if (stage := STAGE_OF.get(part)) is not None:
            spent[stage] = spent.get(stage, 0.0) + ms
    return spent


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
    """Count one top score in its bin; ignore None, NaN, and values outside [0, 1]."""
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


@dataclass
class ShadowWindow:
    """What a bundle that answers in silence did between two cuts.

    sha: start of its SHA-256.
    n: answers compared with those of the active bundle; same: of these, the same decisions.
    skipped: requests that were left out, because the board was at work.
    ratios: how many times as long its engine took, of each request.
    ms: of its engine, on average. mb: memory of its process.
    psi: of its top scores against those of the active bundle, since it began; None until LEAST of them.
    rests: a word if it did not run: `hot`, `busy`, `budget`, `memory`, or the code of an error; else empty.
    """

    sha: str
    n: int = 0
    same: int = 0
    skipped: int = 0
    ratios: Histogram = field(default_factory=Histogram)
    ms: float | None = None
    mb: float | None = None
    psi: float | None = None
    rests: str = ""


_SUMMED = ("over_budget", "over_bundle", "met", "refused", "clipped", "values", "compared", "differed", "dropped")


@dataclass
class CountedWindow:
    """What was counted between two cuts.

    answers: source -> latencies in milliseconds.
    errors: code -> count.
    over_bundle: answers beyond the bundle's budget, to callers that gave none.
    stages: stage -> milliseconds.
    clipped, values: input values at INT8's limits, and all that were sampled.
    compared, differed, dropped: as in MeterStats.
    scores: sampled top scores of a classifier, in each of ten equal parts of 0 to 1.
    packed: answers that are not in the histograms yet: by source and stages, milliseconds in all and in each stage.
    """

    answers: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    over_budget: int = 0
    over_bundle: int = 0
    met: int = 0
    refused: int = 0
    stages: dict[str, Histogram] = field(default_factory=dict)
    clipped: int = 0
    values: int = 0
    compared: int = 0
    differed: int = 0
    dropped: int = 0
    scores: list[int] = field(default_factory=lambda: [0] * BINS)
    packed: dict[tuple[str, tuple[str, ...]], list[NDArray[np.float64]]] = field(default_factory=dict)

    def add(self, other: CountedWindow) -> None:
        """Add another window's counts."""
        for mine, theirs in ((self.answers, other.answers), (self.stages, other.stages)):
            for name, histogram in theirs.items():
                mine.setdefault(name, Histogram()).merge(histogram)
        for code, n in other.errors.items():
            self.errors[code] = self.errors.get(code, 0) + n
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.scores = [mine + theirs for mine, theirs in zip(self.scores, other.scores, strict=True)]

    def add_answers(self, recorded: list[Recorded], budget_ms: float = math.inf) -> None:
        """Pack recorded answers, for `settle`. budget_ms: of those whose caller gave none."""
        sources, stages, spent, judged, clipped = zip(*recorded, strict=True)
        kinds = set(zip(sources, stages, strict=True))
        for source, names in kinds:
            rows = spent if len(kinds) == 1 else [one[2] for one in recorded if one[:2] == (source, names)]
            table = np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * (1 + len(names)))
            self.packed.setdefault((source, names), []).append(table)
        self.met += judged.count(True)
        self.over_budget += judged.count(False)
        if budget_ms < math.inf:
            self.over_bundle += sum(one[3] is None and one[2][0] > budget_ms for one in recorded)
        for some, values, score in filter(None, clipped):
            self.clipped += some
            self.values += values
            count_score(self.scores, score)

    def settle(self) -> None:
        """Count what was packed."""
        packed, self.packed = self.packed, {}
        for (source, names), tables in packed.items():
            histograms = [self.answers.setdefault(source, Histogram())]
            histograms += [self.stages.setdefault(stage, Histogram()) for stage in names]
            record_table(histograms, np.concatenate(tables).reshape(-1, len(histograms)))

    def latency(self) -> Histogram:
        """Over all sources."""
        return Histogram.joined(self.answers.values())

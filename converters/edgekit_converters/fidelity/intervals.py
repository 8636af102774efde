"""Confidence intervals, and what is counted while items stream by: a few numbers an item.

    drift = DriftMeter(["probs"], kinds(contract, reference.outputs))
    drift.add({"probs": original}, {"probs": answer})
    drift.cosine, drift.sqnr_db, drift.outputs()
    paired_interval(lost=9, gained=4, items=1000)        # (-0.0024, 0.0123), a drop of a share

Rules: intervals are 95 %, two-sided, and the same at every run: a bootstrap is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.output_kinds import SUM_TO_ONE, Kind, channel_axis, part_of
from edgekit_converters.fidelity.result import FewLevels, OutputDrift, Score, Share
from edgekit_converters.formats.graph import FEW_LEVELS

Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""

Interval = tuple[float, float]


def paired_interval(lost: int, gained: int, items: int) -> Interval:
    """Interval of (lost - gained) / items, the drop of a paired proportion, within [-1, 1].

    lost: items that only the original got right; gained: that only the artifact did. The adjusted Wald interval of
    Agresti and Min, Statistics in Medicine 24 (2005), 729-740: half an item is added to each of the four cells, so
    N = n + 2 and, with b and c the two counts + 1/2,

        (b - c) / N  +-  z sqrt(b + c - (b - c)^2 / N) / N

    Two models that never differ on 20 items get +- 8.9 points. Raises ValueError for impossible counts.
    """
    if items < 1 or lost < 0 or gained < 0 or lost + gained > items:
        raise ValueError(f"lost={lost} and gained={gained} do not fit {items} items")
    total = items + 2
    difference = lost - gained
    spread = Z95 * math.sqrt(lost + gained + 1 - difference * difference / total)
    return max(-1.0, (difference - spread) / total), min(1.0, (difference + spread) / total)


def share_interval(hits: int, items: int) -> Interval:
    """Wilson's score interval of p = hits / items, within [0, 1] (JASA 22 (1927), 209-212).

        (p + z^2 / 2n  +-  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    100 of 100 is 0.963 to 1. Raises ValueError for impossible counts.
    """
    if items < 1 or not 0 <= hits <= items:
        raise ValueError(f"{hits} hits do not fit {items} items")
    share, square = hits / items, Z95 * Z95 / items
    spread = Z95 * math.sqrt(share * (1 - share) / items + square / (4 * items))
    low, high = ((share + square / 2 + sign * spread) / (1 + square) for sign in (-1, 1))
    return (0.0 if hits == 0 else max(0.0, low)), (1.0 if hits == items else min(1.0, high))


def mean_interval(values: NDArray[np.float64] | Sequence[float]) -> Interval:
    """mean +- t s / sqrt(n), with Student's t; of one value the value itself."""
    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, mean
    spread = _student(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return mean - spread, mean + spread


def ratio_interval_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> Interval:
    """Interval of 10 log10(sum signal / sum noise) by the delta method; both sums > 0.

    The logarithm of a ratio of two means m and k varies as the mean of x / m - y / k does.
    """
    low, high = mean_interval(signal / signal.mean() - noise / noise.mean())
    middle = 10 * math.log10(float(signal.sum()) / float(noise.sum()))
    step = 10 / math.log(10)
    return middle + step * low, middle + step * high


def resampled_interval(statistic: Callable[[NDArray[np.int64]], float], items: int, resamples: int = 1000) -> Interval:
    """Percentile bootstrap: 2.5 % and 97.5 % points of the resampled statistic without NaNs.

    `statistic` uses the same indexes for both models, which makes the interval of a drop a paired one.
    """
    generator = np.random.default_rng(0)
    values = np.array([statistic(generator.integers(0, items, items)) for _ in range(resamples)])
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def resampled_score(
    name: str, measure: Callable[[NDArray[Any]], float], before: NDArray[Any], after: NDArray[Any], resamples: int
) -> Score:
    """Score a metric of which more is better, with an interval.

    before, after: what was kept of the same items of both models.
    """
    original, artifact = measure(before), measure(after)
    low, high = resampled_interval(lambda at: measure(before[at]) - measure(after[at]), len(before), resamples)
    drop = original - artifact
    return Score(name, original, artifact, drop, (drop, drop) if math.isnan(low) else (low, high))


def _student(degrees: int) -> float:
    """97.5 % point of Student's t: exact for 1 and 2, else Abramowitz and Stegun 26.7.5."""
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


FLOOR_DB = -200.0
"""Stands for a signal of zero with any noise: JSON has no infinity."""

SURE = 0.5
"""An original whose best probability is above this is sure of its answer."""

SILENT = 0.01
"""Two answers both below this share of the output's largest answer count as equal."""

FAINT = 1e-8
"""Channels below this share of the strongest channel's power are compared only within their group."""

_RESAMPLES = 400
"""Bootstrap resamples of the items, for the interval of a distance."""


class DriftMeter:
    """Distance of an artifact's outputs from the original's, of each and of all together.

    Intervals are a bootstrap over items without keeping outputs: each resample is a running sum that takes an item a
    Poisson(1) number of times (Hanley and MacGibbon, Comput. Methods Programs Biomed. 83 (2006), 57-62).
    An item with a non-finite answer counts as cosine 0, as disagreement, in the noise as zeros, and against the spread
    as one more deviation besides.

    kinds: what each output is, by name; a vector if not in it.
    """

    def __init__(self, names: Sequence[str], kinds: Mapping[str, Kind] | None = None) -> None:
        self.items = 0
        self.not_finite = 0
        known = kinds or {}
        self._outputs = {name: _Output(known.get(name, Kind())) for name in names}

    def add(self, original: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]]) -> bool:
        """One item's outputs by name, the original's finite. Returns whether the answer was finite."""
        finite = all(bool(np.isfinite(answer[name]).all()) for name in self._outputs)
        self.items += 1
        self.not_finite += not finite
        for name, output in self._outputs.items():
            output.add(np.asarray(original[name]), np.asarray(answer[name]) if finite else None)
        return finite

    @property
    def cosine(self) -> float:
        """Mean over items of the mean over outputs, -1..1."""
        return float(np.mean([np.mean(output.cosines) for output in self._outputs.values()]))

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(sum x^2 / sum (x - y)^2); None if nothing differs, -200 without signal."""
        signal = sum(sum(output.signal) for output in self._outputs.values())
        return decibels(signal, sum(sum(output.noise) for output in self._outputs.values()))

    def outputs(self) -> tuple[OutputDrift, ...]:
        return tuple(output.found(name) for name, output in self._outputs.items())


@dataclass
class _Output:
    """One output: three numbers an item, and counts.

    errors: sums of squares over the items, as many as `kind.spread` has.
    resampled: the same sums over each resample, for "errors", "channels", "cosine" and "items".
    """

    kind: Kind
    errors: NDArray[np.float64] | None = None
    resampled: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    cosines: list[float] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    worst: float = 0.0
    channels: NDArray[np.float64] | None = None
    levels: list[set[float]] = field(default_factory=list)
    wide: bool = False
    same: int = 0
    in_five: int = 0
    sure: int = 0
    sure_same: int = 0

    def add(self, original: NDArray[Any], answer: NDArray[Any] | None) -> None:
        """answer: None where it is not finite."""
        x = original.astype(np.float64).reshape(-1)
        y = np.zeros_like(x) if answer is None else answer.astype(np.float64).reshape(-1)
        self.signal.append(float(x @ x))
        self.noise.append(float((x - y) @ (x - y)))
        both = max(self.signal[-1], float(y @ y)) ** 0.5
        silent = both < SILENT * self.kind.largest
        self.cosines.append(0.0 if answer is None else 1.0 if silent else cosine(x, y))
        sums = {"items": np.ones(()), "cosine": np.array(self.cosines[-1])}
        if self.kind.spread is not None:
            error = x - y
            lost = answer is None
            squares = np.square(error) if len(self.kind.spread) == len(error) > 1 else np.array([float(error @ error)])
            squares = squares + np.square(self.kind.spread) if lost else squares
            self.errors = squares if self.errors is None else self.errors + squares
            sums["errors"] = squares
        # Signal and noise of each channel, [2, channels], where the output has more than one row of them
        sides = tuple(side for side in original.shape if side > 1)
        if len(sides) > 1:
            axis = self.kind.axis if self.kind.axis is not None else channel_axis(original.shape)
            others = tuple(place for place in range(len(sides)) if place != axis)
            power = np.array([np.square(values.reshape(sides)).sum(axis=others) for values in (x, x - y)])
            self.channels = power if self.channels is None else self.channels + power
            sums["channels"] = power
        times = self.random.poisson(1.0, _RESAMPLES)
        for name, one in sums.items():
            added = np.multiply.outer(times, one)
            self.resampled[name] = self.resampled[name] + added if name in self.resampled else added
        # The values that are in use in each group, one more than `FEW_LEVELS` at most
        self.levels = self.levels or [set() for _ in self.kind.groups]
        for group, levels in zip(self.kind.groups, self.levels, strict=True):
            if group.varied and len(levels) <= FEW_LEVELS:
                part = part_of(y.reshape(sides or (1,)), self.kind.axis or 0, group.channels)
                levels.update(np.unique(part)[: FEW_LEVELS + 1].tolist())
        self.worst = max(self.worst, float(np.abs(x - y).max(initial=0)))
        if self.kind.agrees:
            self._agree(original, answer)

    def _spread_error(self, errors: NDArray[np.float64] | None, items: float) -> float | None:
        if errors is None or self.kind.spread is None:
            return None
        return float((np.sqrt(errors / items) / self.kind.spread).max())

    @property
    def _few_levels(self) -> FewLevels | None:
        groups = zip(self.kind.groups, self.levels, strict=True)
        few = [(len(levels), group) for group, levels in groups if group.varied and len(levels) <= FEW_LEVELS]
        if not few:
            return None
        count, group = min(few, key=lambda pair: pair[0])
        ends = None if group.channels is None else (group.channels[0], group.channels[-1])
        return FewLevels(count, group.low, group.high, ends)

    def _worst_channel_db(self, channels: NDArray[np.float64] | None) -> float | None:
        if channels is None:
            return None
        signal, noise = channels
        heard = signal > FAINT * signal.max()
        pairs = [*zip(signal[heard], noise[heard], strict=True)]
        for group in self.kind.groups:
            if group.channels is not None:
                pairs.append((signal[[*group.channels]].sum(), noise[[*group.channels]].sum()))
        found = [decibels(float(s), float(n)) for s, n in pairs if s > 0]
        return min((db for db in found if db is not None), default=None)

    def _agree(self, original: NDArray[Any], answer: NDArray[Any] | None) -> None:
        if self.kind.indexes:
            self.same += answer is not None and bool((np.rint(answer) == original).all())
            return
        best = best_class(original)
        same = answer is not None and best == best_class(answer)
        sure = float(_probabilities(original)[best]) > SURE
        self.wide = self.wide or original.size > 5
        self.same += same
        self.in_five += answer is not None and best in best_classes(answer, 5)
        self.sure += sure
        self.sure_same += sure and same

    def found(self, name: str) -> OutputDrift:
        items = len(self.cosines)
        cosines, signal, noise = (np.array(column) for column in (self.cosines, self.signal, self.noise))
        db = decibels(float(signal.sum()), float(noise.sum()))
        low, high = mean_interval(cosines)
        found = OutputDrift(
            name=name,
            agreement=_share(self.same, items) if self.kind.agrees else None,
            agreement_top5=_share(self.in_five, items) if self.kind.agrees and self.wide else None,
            agreement_sure=_share(self.sure_same, self.sure) if self.kind.agrees else None,
            cosine=float(cosines.mean()),
            cosine_ci95=(max(-1.0, low), min(1.0, high)),
            sqnr_db=db,
            sqnr_ci95=ratio_interval_db(signal, noise) if db is not None and signal.any() else None,
            worst=self.worst,
            worst_channel_db=self._worst_channel_db(self.channels),
            kind=self.kind.what,
            spread_error=self._spread_error(self.errors, items),
            few_levels=self._few_levels,
        )
        return replace(found, loss_ci95=self._loss_interval(found))

    def _loss_interval(self, found: OutputDrift) -> Interval | None:
        if found.measure == "levels":
            return None
        if found.measure == "agreement":
            assert found.agreement is not None
            low, high = found.agreement.ci95
            return 1.0 - high, 1.0 - low
        losses = []
        for at in np.flatnonzero(self.resampled["items"]):
            sums = {name: values[at] for name, values in self.resampled.items()}
            once = replace(
                found,
                cosine=float(sums["cosine"] / sums["items"]),
                worst_channel_db=self._worst_channel_db(sums.get("channels")),
                spread_error=self._spread_error(sums.get("errors"), float(sums["items"])),
            )
            losses.append(once.losses[found.measure])
        low, high = np.percentile(losses, (2.5, 97.5))
        return float(low), float(high)


def cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """x.y / (|x| |y|), -1..1, for finite vectors; two zero vectors give 1, one gives 0."""
    peak_x, peak_y = float(np.abs(x).max(initial=0)), float(np.abs(y).max(initial=0))
    if peak_x == 0 or peak_y == 0:
        return 1.0 if peak_x == peak_y else 0.0
    x, y = x / peak_x, y / peak_y  # so that squares neither overflow nor vanish
    return float(np.clip((x @ y) / math.sqrt(float(x @ x) * float(y @ y)), -1.0, 1.0))


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise); None without noise, -200 with noise and no signal."""
    if noise == 0:
        return None
    return max(FLOOR_DB, 10 * math.log10(signal / noise)) if signal > 0 else FLOOR_DB


def best_class(scores: NDArray[Any]) -> int:
    """The index a board would answer: the greatest score, the lower index where two are equal."""
    return int(np.argmax(np.asarray(scores, np.float32).reshape(-1)))


def best_classes(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Indexes of the `count` greatest scores, best first; ties go to the lower index."""
    return np.argsort(-np.asarray(scores, np.float32).reshape(-1), kind="stable")[:count]


def _probabilities(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Scores that are not probabilities are taken for logits."""
    values = np.asarray(scores, np.float64).reshape(-1)
    if values.min(initial=0) >= 0 and abs(values.sum() - 1) <= SUM_TO_ONE:
        return values
    shifted = np.exp(values - values.max())
    result: NDArray[np.float64] = shifted / shifted.sum()
    return result


def _share(hits: int, items: int) -> Share | None:
    return Share(hits / items, share_interval(hits, items), items) if items else None

"""What is counted while items stream by: a few numbers an item, never its outputs.

drift = Drift(["probs"], kinds(contract, reference.outputs))
drift.add({"probs": original}, {"probs": answer})
drift.cosine, drift.sqnr_db, drift.outputs()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.intervals import mean_interval, paired_interval, ratio_interval_db, share_interval
from edgekit_converters.fidelity.kinds import SUM_TO_ONE, Kind, channel_axis, part_of
from edgekit_converters.fidelity.result import FewLevels, OutputDrift, Share
from edgekit_converters.graph import FEW_LEVELS

__all__ = ["FLOOR_DB", "SURE", "Accuracy", "Drift", "best_class", "best_classes", "cosine", "decibels"]

FLOOR_DB = -200.0
"""What stands for a signal of zero beside any noise: JSON has no infinity."""

SURE = 0.5
"""An original whose best probability is above this is sure of its answer."""

SILENT = 0.01
"""Of an output's largest answer: where both the original and the artifact stay below it, they say the same, nothing. The
direction of what is left is chance."""

FAINT = 1e-8
"""Of the power of an output's strongest channel: what is below it is not held against its own signal alone, but with its
group, whose peaks may be rare: a score is 0 nearly everywhere and decides everything."""


class Drift:
    """Distance of an artifact's outputs from the original's, over all items, for each output and for all together.

    kinds: what each output is, by name; one that is not in it is a vector.
    An item with an answer that is not finite counts as cosine 0, as disagreement, for the noise as an answer of zeros, and
    against the spread as one that is as far off besides: it can never look better than it is, and one NaN does not hide
    what the other items say.
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
        """10 log10(sum x^2 / sum (x - y)^2); None where nothing differs, -200 where the original is all zeros."""
        signal = sum(sum(output.signal) for output in self._outputs.values())
        return decibels(signal, sum(sum(output.noise) for output in self._outputs.values()))

    def outputs(self) -> tuple[OutputDrift, ...]:
        return tuple(output.found(name) for name, output in self._outputs.items())


@dataclass
class _Output:
    """One output: three numbers an item, and counts. errors: sums of squares over the items, as many as `kind.spread` has."""

    kind: Kind
    errors: NDArray[np.float64] | None = None
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
        if self.kind.spread is not None:
            self._against_spread(self.kind.spread, x - y, lost=answer is None)
        self._by_channel(original.shape, x, y)
        self._count_levels(original.shape, y)
        self.worst = max(self.worst, float(np.abs(x - y).max(initial=0)))
        if self.kind.agrees:
            self._agree(original, answer)

    def _against_spread(self, spread: NDArray[np.float64], error: NDArray[np.float64], *, lost: bool) -> None:
        squares = np.square(error) if len(spread) == len(error) > 1 else np.array([float(error @ error)])
        squares = squares + np.square(spread) if lost else squares
        self.errors = squares if self.errors is None else self.errors + squares

    @property
    def _spread_error(self) -> float | None:
        if self.errors is None or self.kind.spread is None:
            return None
        return float((np.sqrt(self.errors / len(self.cosines)) / self.kind.spread).max())

    def _by_channel(self, shape: tuple[int, ...], x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Signal and noise of each channel, [2, channels], where the output has more than one row of them."""
        sides = tuple(side for side in shape if side > 1)
        if len(sides) < 2:
            return
        axis = self.kind.axis if self.kind.axis is not None else channel_axis(shape)
        others = tuple(place for place in range(len(sides)) if place != axis)
        power = np.array([np.square(values.reshape(sides)).sum(axis=others) for values in (x, x - y)])
        self.channels = power if self.channels is None else self.channels + power

    def _count_levels(self, shape: tuple[int, ...], y: NDArray[np.float64]) -> None:
        """The values that are in use in each group, one more than `FEW_LEVELS` at most."""
        sides = tuple(side for side in shape if side > 1) or (1,)
        self.levels = self.levels or [set() for _ in self.kind.groups]
        for group, levels in zip(self.kind.groups, self.levels, strict=True):
            if group.varied and len(levels) <= FEW_LEVELS:
                part = part_of(y.reshape(sides), self.kind.axis or 0, group.channels)
                levels.update(np.unique(part)[: FEW_LEVELS + 1].tolist())

    @property
    def _few_levels(self) -> FewLevels | None:
        groups = zip(self.kind.groups, self.levels, strict=True)
        few = [(len(levels), group) for group, levels in groups if group.varied and len(levels) <= FEW_LEVELS]
        if not few:
            return None
        count, group = min(few, key=lambda pair: pair[0])
        ends = None if group.channels is None else (group.channels[0], group.channels[-1])
        return FewLevels(count, group.low, group.high, ends)

    @property
    def _worst_channel_db(self) -> float | None:
        if self.channels is None:
            return None
        signal, noise = self.channels
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
        return OutputDrift(
            name=name,
            agreement=_share(self.same, items) if self.kind.agrees else None,
            agreement_top5=_share(self.in_five, items) if self.kind.agrees and self.wide else None,
            agreement_sure=_share(self.sure_same, self.sure) if self.kind.agrees else None,
            cosine=float(cosines.mean()),
            cosine_ci95=(max(-1.0, low), min(1.0, high)),
            sqnr_db=db,
            sqnr_ci95=ratio_interval_db(signal, noise) if db is not None and signal.any() else None,
            worst=self.worst,
            worst_channel_db=self._worst_channel_db,
            kind=self.kind.what,
            spread_error=self._spread_error,
            few_levels=self._few_levels,
        )


@dataclass
class Accuracy:
    """Right answers of two classifiers on the same items, as counts."""

    items: int = 0
    both: int = 0
    lost: int = 0
    gained: int = 0

    def add(self, original_right: bool, artifact_right: bool) -> None:
        self.items += 1
        self.both += original_right and artifact_right
        self.lost += original_right and not artifact_right
        self.gained += artifact_right and not original_right

    @property
    def original(self) -> float:
        return (self.both + self.lost) / self.items

    @property
    def artifact(self) -> float:
        return (self.both + self.gained) / self.items

    @property
    def drop(self) -> float:
        """original - artifact from the counts: 18/20 - 17/20 is 1/20, the nearest float to 0.05."""
        return (self.lost - self.gained) / self.items

    @property
    def ci95(self) -> tuple[float, float]:
        return paired_interval(self.lost, self.gained, self.items)


def cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """x.y / (|x| |y|), -1..1, for finite vectors. Two zero vectors are alike: 1. One zero vector is like nothing: 0."""
    peak_x, peak_y = float(np.abs(x).max(initial=0)), float(np.abs(y).max(initial=0))
    if peak_x == 0 or peak_y == 0:
        return 1.0 if peak_x == peak_y else 0.0
    x, y = x / peak_x, y / peak_y  # so that squares neither overflow nor vanish
    return float(np.clip((x @ y) / math.sqrt(float(x @ x) * float(y @ y)), -1.0, 1.0))


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise); None where there is no noise, -200 where there is noise and no signal."""
    if noise == 0:
        return None
    return max(FLOOR_DB, 10 * math.log10(signal / noise)) if signal > 0 else FLOOR_DB


def best_class(scores: NDArray[Any]) -> int:
    """The index a board would answer: the greatest score, the lower index where two are equal."""
    return int(np.argmax(np.asarray(scores, np.float32).reshape(-1)))


def best_classes(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The indexes of the `count` greatest scores, best first, ties to the lower index: `top(k)` of the runtime."""
    return np.argsort(-np.asarray(scores, np.float32).reshape(-1), kind="stable")[:count]


def _probabilities(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Scores that are none yet are taken for logits."""
    values = np.asarray(scores, np.float64).reshape(-1)
    if values.min(initial=0) >= 0 and abs(values.sum() - 1) <= SUM_TO_ONE:
        return values
    shifted = np.exp(values - values.max())
    result: NDArray[np.float64] = shifted / shifted.sum()
    return result


def _share(hits: int, items: int) -> Share | None:
    return Share(hits / items, share_interval(hits, items), items) if items else None

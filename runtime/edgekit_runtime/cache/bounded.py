"""Which answers of near requests may be given, so that at most `error` of them are false.

    bound = ErrorBound(0.02)
    if bound.serves(entry, distance): ...                 # give the kept answer
    else: answer = compute(); bound.learn(entry, distance, same(kept, answer))

Rules:
- every computed answer with a kept one near it is an observation: what would the kept one have been worth?
- each entry has its own record, so its own threshold: distances at which it was confirmed lower the risk there, a
  contradiction raises it. A new entry has the risk that entries had at their first observation at that distance;
- a risk is only an order. An answer is given below a cut, and a cut opens only on evidence: a bet against "more than
  `error` of the answers below it are false" that has multiplied its stake by CUTS / (1 - CONFIDENCE) (Ville's
  inequality: however long one looks, a cut that breaks the bound opens with a probability of at most 1 - CONFIDENCE);
- open cuts stay observed: of the answers below them a share of `sample` is computed nevertheless. The capital is
  limited, so that a few contradictions close a cut again.

The idea of a decision for each entry under a stated error is vCache's (arXiv 2502.03771); the statistic is a betting
martingale after Waudby-Smith and Ramdas (arXiv 2010.09686).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable

from edgekit_runtime.system.records import record

CONFIDENCE = 0.95
CUTS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.06, 0.1, 0.16, 0.25)
_STAKES = (0.3, 0.6, 0.95)
_NEEDED = len(CUTS) / (1 - CONFIDENCE)
_MOST = 4 * _NEEDED
_PRIOR = 2.0  # observations that an entry's own record is weighed against
_KEPT = 16
_NEAREST, _RINGS = 1e-4, 16  # rings of distances, each twice as far as the one before

Entry = deque[tuple[float, bool]]
"""An entry's last observations: distance, and whether its answer was right."""


def new_entry() -> Entry:
    return deque(maxlen=_KEPT)


@record(frozen=True)
class BoundStats:
    """What is known of the answers that may be given.

    error: the largest share of false answers.
    open: whether any may be given now; cut: the risk below which.
    given: answers given; withheld: requests near a kept answer that were computed.
    sampled, wrong: answers below the cut that were computed nevertheless, and how many the kept one would have failed.
    false_rate, ci95: `wrong` / `sampled`, and its 95 % confidence interval; None before the first.
    """

    error: float
    open: bool
    cut: float
    given: int
    withheld: int
    sampled: int
    wrong: int
    false_rate: float | None
    ci95: tuple[float, float] | None


class ErrorBound:
    """Not thread-safe: its owner locks.

    error: the largest share of false answers among those given, above 0 and at most 0.5.
    sample: share of the answers that could be given and are computed, above 0 and at most 1.
    chance: gives numbers from 0 to 1.
    """

    def __init__(self, error: float, sample: float = 0.1, chance: random.Random | None = None) -> None:
        if not 0 < error <= 0.5 or not 0 < sample <= 1:
            raise ValueError(f"error must be above 0 and at most 0.5, sample at most 1, not {error} and {sample}")
        self.error, self._sample = error, sample
        self._chance = chance or random.Random()
        self._capital = [[1 / len(_STAKES)] * len(_STAKES) for _ in CUTS]
        self._first = [[0, 0] for _ in range(_RINGS)]
        self.given = self.withheld = self._sampled = self._wrong = 0

    @property
    def cut(self) -> float:
        """Answers of at most this risk may be given; 0 while the bound cannot be kept."""
        able = [cut for cut, capital in zip(CUTS, self._capital, strict=True) if sum(capital) >= _NEEDED]
        return max(able, default=0.0)

    def risk(self, entry: Iterable[tuple[float, bool]], distance: float) -> float:
        """How likely its answer is false at this distance, from 0 to 1: an order, not a promise."""
        wrong, count = self._first[_ring(distance)]
        weight = (wrong + 1) / (count + 2) * _PRIOR
        total = _PRIOR
        for seen, right in entry:
            known, other = (seen, distance) if right else (2 * distance, seen)
            near = min(1.0, max(known, _NEAREST) / max(other, _NEAREST))
            total += near
            weight += 0.0 if right else near
        return weight / total

    def serves(self, entry: Entry, distance: float) -> bool:
        """Whether to give the kept answer; else compute it, and `learn`."""
        if self.risk(entry, distance) <= self.cut and self._chance.random() >= self._sample:
            self.given += 1
            return True
        self.withheld += 1
        return False

    def learn(self, entry: Entry, distance: float, *, right: bool) -> None:
        """An answer was computed beside the kept one."""
        risk = self.risk(entry, distance)
        if risk <= self.cut:
            self._sampled += 1
            self._wrong += not right
        for cut, capital in zip(CUTS, self._capital, strict=True):
            if risk <= cut:
                for at, stake in enumerate(_STAKES):
                    capital[at] *= 1 + stake * (self.error - (not right))
                scale = min(1.0, _MOST / sum(capital))
                capital[:] = [max(part * scale, 1e-9) for part in capital]
        if not entry:
            ring = self._first[_ring(distance)]
            ring[0] += not right
            ring[1] += 1
        entry.append((distance, right))

    def stats(self) -> BoundStats:
        cut, seen, wrong = self.cut, self._sampled, self._wrong
        rate, ci95 = (wrong / seen, interval(wrong, seen)) if seen else (None, None)
        return BoundStats(self.error, cut > 0, cut, self.given, self.withheld, seen, wrong, rate, ci95)


def _ring(distance: float) -> int:
    return min(_RINGS - 1, max(0, math.ceil(math.log2(max(distance, _NEAREST) / _NEAREST))))


def chance(bad: int, of: int, share: float) -> float:
    """Probability of `bad` or more of `of` requests, each bad with probability `share`.

    The binomial tail, bounded by its first term and a geometric series (Feller, 1968, VI.3).
    """
    if bad <= of * share or not 0 < share < 1:
        return 1.0 if bad <= of * share else 0.0
    first = (
        math.lgamma(of + 1)
        - math.lgamma(bad + 1)
        - math.lgamma(of - bad + 1)
        + bad * math.log(share)
        + (of - bad) * math.log(1 - share)
    )
    return min(1.0, math.exp(min(0.0, first)) * (bad + 1) * (1 - share) / (bad + 1 - (of + 1) * share))


def interval(bad: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Clopper and Pearson, Biometrika 26, 1934), or a little more."""

    def lowest(bad: int) -> float:
        low, high = 0.0, bad / of
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if chance(bad, of, middle) < 0.025 else (low, middle)
        return low

    return lowest(bad), 1.0 - lowest(of - bad)

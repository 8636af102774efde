"""Whether looking up pays: a cache that never hits only costs time.

    worth = Worth()
    if worth.pays(now_s):
        ...look up..., worth.costs(2e-6), worth.looked(hit, now_s)
    worth.saved(0.003)                  # what an answer took that was not looked up

Rules:
- it looks as long as the highest hit rate that fits what was seen, times what a hit saves, covers a lookup: with no hit in n
  lookups a rate of 3 / n is still possible (95 %), so a dear network keeps its cache for long and a tiny one gives up soon;
- it never gives up while a lookup costs less than CHEAP of what a hit saves, however many misses there were;
- after giving up it looks again for a short while now and then, at first so that all of it takes `share` of the time, then
  ever more rarely, at the latest after `most_s`;
- what was seen fades: half of it is forgotten whenever there is twice as much as a decision takes;
- no clock and no timing of its own: whoever asks says what time it is and what things cost.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

__all__ = ["Worth", "WorthStats"]

CHEAP = 0.01
"""Below this share of what a hit saves, a lookup is always made."""
_LEAST_LOOKS = 32
_EVERY = 16
_FADE = 0.1


@dataclass(frozen=True)
class WorthStats:
    """looking: whether lookups are made now. hit_rate: of the recent ones. lookup_us, saves_us: None until measured."""

    looking: bool
    hit_rate: float | None
    lookup_us: float | None
    saves_us: float | None
    skipped: int
    stops: int


class Worth:
    """Thread-safe, and cheap enough to ask for every request. cheap: see CHEAP; 0 where looking costs more than time."""

    def __init__(self, *, share: float = 0.005, most_s: float = 5.0, cheap: float = CHEAP) -> None:
        self._cheap = cheap
        self._share = share
        self._most_s = most_s
        self._lock = threading.Lock()
        self._looking = True
        self._until = 0.0
        self._pause_s = 0.0
        self._looks = self._hits = self._due = self._skipped = self._stops = 0
        self._rate: float | None = None
        self._cost_s: float | None = None
        self._saves_s: float | None = None

    def pays(self, now_s: float) -> bool:
        """Whether to look up now. now_s: any clock that only goes forward; the same one for all calls."""
        if self._looking:
            return True
        if now_s < self._until:
            self._skipped += 1
            return False
        with self._lock:
            self._looks = self._hits = self._due = 0
            self._looking = True
        return True

    def looked(self, hits: int, now_s: float, looks: int = 1) -> None:
        """Lookups were made, so many of them hits: one by one, or several at once."""
        with self._lock:
            self._looks += looks
            self._hits += hits
            if self._looks >= max(_LEAST_LOOKS, self._due) and self._looking:
                self._due = self._looks + _EVERY
                self._decide(now_s)

    def costs(self, lookup_s: float) -> None:
        """What one lookup took, all that is done for its sake included. A sample of them is enough.

        What one took while the processor was elsewhere counts as twice the usual, so that no single one ends the looking.
        """
        usual_s = self._cost_s
        self._cost_s = _faded(usual_s, lookup_s if usual_s is None else min(lookup_s, 2 * usual_s))

    def saved(self, compute_s: float) -> None:
        """What it took to answer without the cache: a hit would have saved it."""
        self._saves_s = _faded(self._saves_s, compute_s)

    def stats(self) -> WorthStats:
        with self._lock:
            rate = self._hits / self._looks if self._looks else self._rate
            return WorthStats(
                self._looking, rate, _micro(self._cost_s), _micro(self._saves_s), self._skipped, self._stops
            )

    def _decide(self, now_s: float) -> None:
        cost, saves, looks, hits = self._cost_s, self._saves_s, self._looks, self._hits
        if cost is None or saves is None:
            return
        possible = min(1.0, (hits + 2 * math.sqrt(hits) + 3) / looks)
        if max(possible, self._cheap) * saves < cost:
            self._rate = hits / looks
            self._pause_s = min(max(cost * looks / self._share, 2 * self._pause_s), self._most_s)
            self._until = now_s + self._pause_s
            self._looking = False
            self._stops += 1
            return
        if hits * saves > cost * looks:
            self._pause_s = 0.0
        enough = max(8 * _LEAST_LOOKS, 6 * saves / max(cost, 1e-9))
        if looks >= 2 * enough:
            self._looks, self._hits, self._due = looks // 2, hits // 2, 0


def _faded(before: float | None, value: float) -> float:
    return value if before is None else before + _FADE * (value - before)


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6

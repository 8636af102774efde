"""Batch costs and expected callers, as pure bookkeeping: no thread, no clock.

    costs = Costs({1: 0.001, 32: 0.008})     # seconds, measured at the warm-up: see `loading.warming`
    costs.first(33)                                          # 32, if 32 and then 1 is cheaper than 33 at once

Rules:
- a batch size is used only where its measured time, hand-offs included, beats single runs by a fifth;
- times are medians of the last few runs: they follow a board that gets hot or busy within a dozen runs;
- a run below half the expected time makes all slower ones forgotten, for noise never makes a run faster. Requests are
  refused by these times, so one good answer must heal them;
- a size that has not run lately counts as no slower than smaller runs of as many items, and so gets its turn;
- with fixed shapes only those sizes exist, and n items cost as much as the next size up;
- a caller is expected back as often and as soon as callers came back before, with the slowest tenth left out.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.threads import begin

Mode = Literal["barge", "turns", "batch"]

LEAST_GAIN = 1.2
"""The gain of a batch over single runs below which none is made; less could be noise."""
HAND_OFF_SHARE = 0.05
"""The share of an engine's time that passing work between threads may take."""
HAND_OFF_S = 20e-6
"""The default if it was not measured."""
OUTDATED = 0.5
"""A run below this share of the expected time shows that older times are out of date."""
_OWN, _ALL, _STALE = 9, 15, 256
_REFRESH, _REFRESH_S = 4, 0.02
"""Runs, and seconds of runs, after which the tables are rebuilt, to keep that cheap."""


class Costs:
    """Reading is safe in any thread; `observe` is called by one thread at a time.

    seconds: batch size -> measured seconds; must hold 1.
    fixed: only these sizes exist, others are padded up.
    hand_off_s: seconds to pass work to another thread and wake it.
    """

    def __init__(self, seconds: Mapping[int, float], *, fixed: bool = False, hand_off_s: float = HAND_OFF_S) -> None:
        if 1 not in seconds or not all(n >= 1 and s > 0 for n, s in seconds.items()):
            raise ValueError(f"seconds must hold size 1, and every size and time must be above 0, not {dict(seconds)}")
        self.hand_off_s = hand_off_s
        self.fixed = fixed
        self._anchor = dict(sorted(seconds.items()))
        alone = self._anchor[1]
        per_item = {n: s / n + 2 * hand_off_s for n, s in self._anchor.items() if n > 1}
        gains = alone >= LEAST_GAIN * min(per_item.values(), default=alone)
        self.limit = max(self._anchor) if gains else 1  # which size to take is decided by the latest times
        self.sizes = tuple(n for n in self._anchor if n <= self.limit)
        self._own: dict[int, deque[float]] = {n: deque(maxlen=_OWN) for n in self.sizes}
        self._seen = dict.fromkeys(self.sizes, 0)
        self._all: deque[float] = deque(maxlen=_ALL)
        self._runs = self._built = 0
        self._spent_s = 0.0
        self._tables: tuple[list[float], list[float], list[int]] = ([], [], [])
        self._rebuild()

    @property
    def mode(self) -> Mode:
        """batch: larger batches gain. turns: they do not, and a hand-off is cheap. barge: it is not."""
        if self.limit > 1:
            return "batch"
        return "turns" if self.hand_off_s <= HAND_OFF_SHARE * self._anchor[1] else "barge"

    def seconds(self, n: int) -> float:
        """Recent seconds of one batch of n, at most `limit`."""
        return self._tables[0][n]

    def total(self, n: int) -> float:
        """Seconds of n items, in the cheapest batches."""
        whole, rest = divmod(n, self.limit)
        totals = self._tables[1]
        return whole * totals[self.limit] + totals[rest]

    def first(self, n: int) -> int:
        """How many of n waiting items to run now: the most efficient part of the cheapest split."""
        return self._tables[2][n] if n <= self.limit else self.limit

    def room(self, n: int) -> int:
        """How many more than n fill the next size."""
        return next((size - n for size in self.sizes if size > n), 0)

    def pays_to_wait(self, n: int, expected: int, wait_s: float) -> bool:
        """Whether n items should wait `wait_s` for `expected` more.

        Waiting ends after the wait and one run of all. Not waiting ends after a run of the n, during which the others
        arrive, and a run of those. The sooner end wins.
        """
        if n < 1 or expected < 1:
            return False
        waited = wait_s + self.total(n + expected)
        return waited < max(self.total(n), wait_s) + self.total(expected)

    def observe(self, n: int, seconds: float) -> None:
        """Record that a batch of n took this long. Ignored unless the time is positive."""
        if not seconds > 0:
            return
        size = self._up(n)
        ratio = seconds / self._at(n, self._anchor)
        outdated = seconds < OUTDATED * self.seconds(min(n, self.limit))
        if outdated:
            for learnt in (self._all, *self._own.values()):
                kept = [one for one in learnt if one <= ratio / OUTDATED]
                learnt.clear()
                learnt.extend(kept)
        self._own[size].append(ratio)
        self._all.append(ratio)
        self._runs += 1
        self._seen[size] = self._runs
        self._spent_s += seconds
        if outdated or self._runs in (1, 4) or (self._spent_s >= _REFRESH_S and self._runs - self._built >= _REFRESH):
            self._rebuild()

    def as_json(self) -> dict[str, object]:
        """For `describe()`: recent milliseconds per batch size, and how the engine is shared."""
        return {
            "mode": self.mode,
            "limit": self.limit,
            "fixed": self.fixed,
            "hand_off_ms": self.hand_off_s * 1e3,
            "ms": {n: self.seconds(n) * 1e3 for n in self.sizes},
        }

    def _up(self, n: int) -> int:
        return self.sizes[min(bisect_left(self.sizes, n), len(self.sizes) - 1)]

    def _at(self, n: int, table: Mapping[int, float]) -> float:
        """Interpolated between two sizes; with fixed shapes the next size up."""
        upper = self._up(n)
        if upper == n or self.fixed or n > upper:
            return table[upper]
        lower = self.sizes[bisect_left(self.sizes, n) - 1]
        share = (n - lower) / (upper - lower)
        return table[lower] + share * (table[upper] - table[lower])

    def _rebuild(self) -> None:
        """Build the tables up to the limit: one batch, the cheapest split, its first part."""
        self._built, self._spent_s = self._runs, 0.0
        drift = median(self._all) if self._all else 1.0
        lately: dict[int, float] = {}
        for size in self.sizes:
            own = self._own[size]
            if own and self._runs - self._seen[size] > _STALE:
                own.clear()
            enough = len(own) >= (3 if len(self._all) >= 3 else 1)
            usual = self._anchor[size] * (median(own) if enough else drift)
            smaller = [] if enough else [s * -(-size // n) for n, s in lately.items()]
            lately[size] = min([usual, *smaller])
        one = [0.0] + [self._at(n, lately) for n in range(1, self.limit + 1)]
        total, first = [0.0] * (self.limit + 1), [0] * (self.limit + 1)
        for n in range(1, self.limit + 1):
            parts = [s for s in self.sizes if s < n] + [n]
            costs = [one[s] + self.hand_off_s + total[n - s] for s in parts]
            part = min(range(len(parts)), key=costs.__getitem__)
            total[n] = costs[part]
            rest = first[n - parts[part]]
            first[n] = max(parts[part], rest, key=lambda s: s / one[s] if s else 0.0)
        self._tables = one, total, first


def median(values: Iterable[float]) -> float:
    """As `statistics` has it, which imports decimals and fractions."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def hand_off_s(clock: Callable[[], float] = time.perf_counter, *, times: int = 30) -> float:
    """Seconds to wake another thread, measured in a few milliseconds."""
    import threading

    here, there = threading.Lock(), threading.Lock()
    here.acquire()
    there.acquire()

    def answer() -> None:
        for _ in range(times):
            there.acquire()
            here.release()

    partner = threading.Thread(target=answer, name="edgekit-hand-off", daemon=True)
    try:
        if not begin(partner):
            return HAND_OFF_S
    except MemoryExceeded:  # what cannot be measured is assumed
        return HAND_OFF_S
    seconds = []
    for _ in range(times):
        start = clock()
        there.release()
        here.acquire()
        seconds.append((clock() - start) / 2)
    partner.join()
    return max(median(seconds), 1e-6)


_WINDOW = 64
_CROWD = 4
"""Arrivals have a rate if one of so many found another request waiting or running."""
_FORGOTTEN_S = 0.05
"""After this long, or four times the usual return if longer, an answered caller is gone."""


class Returns:
    """Expected callers: those just answered, who come back, and the arrival rate.

        returns.left(31, now)          # a batch of 31 got its results
        returns.came(now)              # a request arrived
        returns.expected(now)          # (30, 0.0006): how many more within how many seconds

    A single caller never waits for itself. Requests that each found the engine idle give no arrival rate, however
    regular they are. Times are seconds of one clock. Not thread-safe.

    away: when each caller that has not come back was answered.
    """

    def __init__(self) -> None:
        self.away: deque[float] = deque(maxlen=1024)
        self._delays: deque[float] = deque(maxlen=_WINDOW)
        self._came_back: deque[bool] = deque(maxlen=_WINDOW)
        self._arrivals: deque[float] = deque(maxlen=16)
        self._lone: deque[bool] = deque(maxlen=_CROWD)
        self._fresh = 0
        self._usual_s = self._latest_s = 0.0
        self._share = 0.0

    def left(self, count: int, now: float) -> None:
        """Record that `count` callers were answered now."""
        horizon = now - max(_FORGOTTEN_S, 4 * self._usual_s)
        while self.away and self.away[0] < horizon:
            self.away.popleft()
            self._came_back.append(False)
        self.away.extend([now] * count)

    def came(self, now: float, *, lone: bool = False) -> None:
        """Record an arrival: the caller answered longest ago counts as returned.

        lone: no other waited or ran.
        """
        self._arrivals.append(now)
        self._lone.append(lone)
        if self.away:
            self._delays.append(now - self.away.popleft())
            self._came_back.append(True)
            self._fresh += 1
            if self._fresh >= 8 or not self._share:
                self._learn()

    def expected(self, now: float, *, late: bool = False) -> tuple[int, float]:
        """(how many more, within how many seconds), or (0, 0.0).

        late: include those that come back later than usual, up to the latest seen.
        """
        if not self.away or not self._share:
            return 0, 0.0
        try:
            wait_s = self.away[-1] + (self._latest_s if late else self._usual_s) - now
        except IndexError:  # read without the mutex: the last one came back in this moment
            return 0, 0.0
        count = int(len(self.away) * self._share + 0.5)
        return (count, wait_s) if count and wait_s > 0 else (0, 0.0)

    def next_s(self, now: float, count: int) -> float | None:
        """Seconds until `count` more arrive at the recent rate; None if unknown."""
        if len(self._arrivals) < 4 or all(self._lone):
            return None
        taken = self._arrivals[-1] - self._arrivals[0]
        gap = taken / (len(self._arrivals) - 1)
        if now - self._arrivals[-1] > 4 * gap:  # they stopped
            return None
        return count * gap

    def missed(self) -> None:
        """Forget callers that were waited for and did not return."""
        self._came_back.extend([False] * len(self.away))
        self.away.clear()
        self._learn()

    def _learn(self) -> None:
        self._fresh = 0
        if self._delays:
            delays = sorted(self._delays)
            self._usual_s, self._latest_s = delays[int(0.9 * (len(delays) - 1))], delays[-1]
        if self._came_back:
            self._share = sum(self._came_back) / len(self._came_back)

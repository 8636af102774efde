"""Who is expected: callers that were just answered and come back, and the rate at which requests arrive.

    returns.left(31, now)          # a batch of 31 was told its results
    returns.came(now)              # a request arrived
    returns.expected(now)          # (30, 0.0006): how many more within how many seconds

Only what was seen counts: how many of the answered came back lately, and how soon. Nothing is expected of a caller that is
later than nine in ten were. A lone caller is never expected by itself: its own return is what ends the waiting for it, and
requests that each found the engine idle are no rate at which others come, however regular they are.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Returns"]

_WINDOW = 64
_CROWD = 4
"""There is a rate where one of so many arrivals found another request waiting or running."""
_FORGOTTEN_S = 0.05
"""After this long, or four times the usual return if that is longer, an answered caller counts as gone."""


class Returns:
    """Times in seconds of one clock. Not thread-safe."""

    def __init__(self) -> None:
        self._away: deque[float] = deque(maxlen=1024)
        self._delays: deque[float] = deque(maxlen=_WINDOW)
        self._came_back: deque[bool] = deque(maxlen=_WINDOW)
        self._arrivals: deque[float] = deque(maxlen=16)
        self._lone: deque[bool] = deque(maxlen=_CROWD)
        self._fresh = 0
        self._usual_s = self._latest_s = 0.0
        self._share = 0.0

    @property
    def away(self) -> int:
        """How many were answered and did not come back so far."""
        return len(self._away)

    def left(self, count: int, now: float) -> None:
        """So many callers were answered now."""
        self._forget(now)
        self._away.extend([now] * count)

    def came(self, now: float, *, lone: bool = False) -> None:
        """A request arrived: whoever was answered longest ago counts as back. lone: no other waited or ran."""
        self._arrivals.append(now)
        self._lone.append(lone)
        if self._away:
            self._delays.append(now - self._away.popleft())
            self._came_back.append(True)
            self._fresh += 1
            if self._fresh >= 8 or not self._share:
                self._learn()

    def expected(self, now: float, *, late: bool = False) -> tuple[int, float]:
        """(how many more, within how many seconds); (0, 0.0) when nobody is expected any more.

        late: count on those too that come back later than usual, up to the latest seen.
        """
        if not self._away or not self._share:
            return 0, 0.0
        try:
            wait_s = self._away[-1] + (self._latest_s if late else self._usual_s) - now
        except IndexError:  # read without the mutex: the last one came back in this moment
            return 0, 0.0
        count = int(len(self._away) * self._share + 0.5)
        return (count, wait_s) if count and wait_s > 0 else (0, 0.0)

    def next_s(self, now: float, count: int) -> float | None:
        """Seconds in which `count` more arrive at the rate of the last arrivals; None when there is no telling."""
        if len(self._arrivals) < 4 or all(self._lone):
            return None
        taken = self._arrivals[-1] - self._arrivals[0]
        gap = taken / (len(self._arrivals) - 1)
        if now - self._arrivals[-1] > 4 * gap:  # they stopped
            return None
        return count * gap

    def missed(self) -> None:
        """They were waited for and did not come: expect none of them."""
        self._came_back.extend([False] * len(self._away))
        self._away.clear()
        self._learn()

    def _forget(self, now: float) -> None:
        horizon = now - max(_FORGOTTEN_S, 4 * self._usual_s)
        while self._away and self._away[0] < horizon:
            self._away.popleft()
            self._came_back.append(False)

    def _learn(self) -> None:
        self._fresh = 0
        if self._delays:
            delays = sorted(self._delays)
            self._usual_s, self._latest_s = delays[int(0.9 * (len(delays) - 1))], delays[-1]
        if self._came_back:
            self._share = sum(self._came_back) / len(self._came_back)

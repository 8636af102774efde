"""Whether a request can still make it: what is ahead of it, what an inference takes, how much of its time is left.

    service = Service()
    service.add(4.1)                                        # an inference took 4.1 ms
    expected_ms(ahead=3, items=1, max_batch=1, service=service)

Rules:
- who cannot make it is told at once, so that the device can do something else with the time;
- only what was seen lately counts. A host that refused everybody because it was slow a minute ago would never find out
  that it is fast again: with nothing recent to go by, everybody is let in.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Service", "expected_ms"]


class Service:
    """The last inferences of one model. window: how many; recent_s: how long they count."""

    def __init__(self, window: int = 64, recent_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=window)
        self._recent_s = recent_s
        self._clock = clock

    def add(self, took_ms: float) -> None:
        self._last.append((self._clock(), took_ms))

    def quantiles(self) -> tuple[float, float] | None:
        """(p50, p95) in milliseconds; None without a recent inference."""
        since = self._clock() - self._recent_s
        recent = sorted(ms for at, ms in self._last if at >= since)
        if not recent:
            return None
        return recent[math.ceil(0.50 * len(recent)) - 1], recent[math.ceil(0.95 * len(recent)) - 1]


def expected_ms(ahead: int, items: int, max_batch: int, service: Service) -> float | None:
    """Milliseconds until the last of `items` is answered, with `ahead` items before it; None where nothing is known.

    Everything but the last inference is reckoned at its median, the last at its 95th percentile.
    """
    known = service.quantiles()
    if known is None:
        return None
    p50, p95 = known
    runs = math.ceil(ahead / max_batch) + math.ceil(items / max_batch)
    return (runs - 1) * p50 + p95

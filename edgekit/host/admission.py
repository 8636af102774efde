"""Whether a request can still make it: what is ahead of it, what an inference takes, how much of its time is left.

    service = Service()
    service.add(4.1)                                        # an inference took 4.1 ms
    expected_ms(ahead=3, items=1, max_batch=1, service=service)

Rules:
- who cannot make it is told at once, so that the device can do something else with the time;
- a request with nothing ahead of it is let in, whatever was learnt: who refuses everybody learns nothing newer;
- only what was seen lately counts, and never as slower than the latest inference: one good one outweighs a stall.
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
        """(p50, p95) in milliseconds, neither above the latest inference; None without a recent one."""
        since = self._clock() - self._recent_s
        recent = sorted(ms for at, ms in self._last if at >= since)
        if not recent:
            return None
        latest = self._last[-1][1]
        p50, p95 = (recent[math.ceil(q * len(recent)) - 1] for q in (0.50, 0.95))
        return min(p50, latest), min(p95, latest)


def expected_ms(ahead: int, items: int, max_batch: int, service: Service) -> float | None:
    """Milliseconds until the last of `items` is answered, with `ahead` items before it.

    None, for no estimate to refuse by, with nothing ahead and where nothing is known. Everything but the last inference
    is reckoned at its median, the last at its 95th percentile.
    """
    known = service.quantiles()
    if known is None or ahead == 0:
        return None
    p50, p95 = known
    runs = math.ceil(ahead / max_batch) + math.ceil(items / max_batch)
    return (runs - 1) * p50 + p95

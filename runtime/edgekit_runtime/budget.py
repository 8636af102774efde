"""Where a request goes: a pure function of the budget and of what was learnt from the last requests.

    decide(left_ms=60.0, device=Prospect(80.0), hosts=(Prospect(12.0),))      # the host, 12 ms expected

Rules, in this order:
- without a budget the device answers;
- the device answers where its 90th percentile fits what is left, and where nothing is known of it yet;
- else the ready host with the lowest 90th percentile answers, where that fits; one that was never measured is not
  asked;
- else the device answers where what is expected of it fits: it may well be late, and is counted as such;
- else nobody is asked and the caller hears so at once.

Every learnt estimate that can refuse keeps exploring. What is expected of the device is the smaller of its median and
its last inference, so one good answer is enough to be asked again; where all are refused, `device` runs a copy twice a
second.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["JUDGED_FOR_S", "PRESETS_MS", "Decision", "Learned", "Prospect", "Use", "decide"]

Destination = Literal["device", "host", "neither"]
Use = Literal["voice", "video", "mobile", "search", "recommendation", "vehicle"]

PRESETS_MS: dict[Use, float] = {
    "voice": 100.0,
    "video": 500.0,
    "mobile": 200.0,
    "search": 100.0,
    "recommendation": 50.0,
    "vehicle": 10.0,
}
"""Use -> milliseconds that a person, or a car, is ready to wait."""

JUDGED_FOR_S = 1e-3
"""Quantiles this young are not worked out again: of thousands of answers a second, each would sort what they learnt."""


@dataclass(frozen=True)
class Prospect:
    """What is expected of one destination. p90_ms: None before anything is known. ready: False while its breaker is
    open.

    expected_ms: what a request that came now would take, as far as it may be hoped; None for what p90_ms says.
    """

    p90_ms: float | None
    ready: bool = True
    expected_ms: float | None = None


@dataclass(frozen=True)
class Decision:
    """host: which one of those given, for `host`. predicted_ms: of the destination, or of the best one for `neither`.

    fits: whether that is within the budget; None where there is no budget or no prediction.
    """

    destination: Destination
    host: int | None
    predicted_ms: float | None
    fits: bool | None


def decide(left_ms: float | None, device: Prospect, hosts: Sequence[Prospect] = ()) -> Decision:
    """left_ms: what is left of the caller's budget, None for none."""
    if left_ms is None or device.p90_ms is None:
        return Decision("device", None, device.p90_ms, None)
    if device.p90_ms <= left_ms:
        return Decision("device", None, device.p90_ms, True)
    ready = [(host.p90_ms, index) for index, host in enumerate(hosts) if host.ready and host.p90_ms is not None]
    if ready and min(ready)[0] <= left_ms:
        predicted_ms, index = min(ready)
        return Decision("host", index, predicted_ms, True)
    expected_ms = device.p90_ms if device.expected_ms is None else device.expected_ms
    if expected_ms <= left_ms:
        return Decision("device", None, device.p90_ms, False)
    return Decision("neither", None, min([expected_ms, *(p90_ms for p90_ms, _ in ready)]), False)


class Learned:
    """The last latencies of one destination. Thread-safe: each step on the deque is atomic.

    window: how many count. max_age_s: older ones count only while there is nothing newer, so that a device that was
    throttled a minute ago is not held to it.
    """

    def __init__(self, window: int = 50, max_age_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=window)
        self._max_age_s = max_age_s
        self._clock = clock
        self._judged: tuple[float, float | None, float | None] = (-math.inf, None, None)

    def add(self, latency_ms: float) -> None:
        self._last.append((self._clock(), latency_ms))

    @property
    def age_s(self) -> float:
        """Seconds since the last one; infinite before the first."""
        return self._clock() - self._last[-1][0] if self._last else math.inf

    @property
    def p90_ms(self) -> float | None:
        """The smallest of the latencies that count which 90 % of them do not exceed; None before the first."""
        return self.quantiles_ms()[1]

    @property
    def expected_ms(self) -> float | None:
        """The smaller of the median and the last one: noise makes an inference slow, but never fast. None before the
        first.
        """
        median_ms, _ = self.quantiles_ms()
        return None if median_ms is None else min(median_ms, self._last[-1][1])

    def quantiles_ms(self) -> tuple[float | None, float | None]:
        """Median (the upper of two) and 90th percentile of the latencies that count; None before the first."""
        now = self._clock()
        judged_at, median_ms, p90_ms = self._judged
        if now - judged_at < JUDGED_FOR_S and median_ms is not None:
            return median_ms, p90_ms
        last = list(self._last)
        values = sorted(ms for at, ms in last if at >= now - self._max_age_s) or [ms for _, ms in last[-1:]]
        if not values:
            return None, None
        median_ms, p90_ms = values[len(values) // 2], values[math.ceil(0.9 * len(values)) - 1]
        self._judged = now, median_ms, p90_ms
        return median_ms, p90_ms

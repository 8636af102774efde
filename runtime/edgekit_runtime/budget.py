"""Where a request goes: a pure function of the budget and of what was learnt from the last requests.

With no host configured there is one destination: the device answers, and whether it met the budget is reported. The
prediction is kept all the same, so that a caller can see it (`stats().device_p90_ms`) before a host exists.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

__all__ = ["Decision", "Learned", "decide"]


@dataclass(frozen=True)
class Decision:
    """destination: who answers. predicted_ms: the 90th percentile expected of it, None before anything is known.

    fits: whether that is within the budget; None when there is no budget or no prediction.
    """

    destination: Literal["device"]
    predicted_ms: float | None
    fits: bool | None


def decide(remaining_ms: float | None, device_p90_ms: float | None) -> Decision:
    """remaining_ms: what is left of the caller's budget, None for none."""
    fits = None if remaining_ms is None or device_p90_ms is None else device_p90_ms <= remaining_ms
    return Decision("device", device_p90_ms, fits)


class Learned:
    """The last `window` latencies of one destination. Appending and reading are each one atomic step."""

    def __init__(self, window: int = 64) -> None:
        self._last: deque[float] = deque(maxlen=window)

    def add(self, latency_ms: float) -> None:
        self._last.append(latency_ms)

    @property
    def p90_ms(self) -> float | None:
        """The smallest of the last latencies that 90 % of them do not exceed."""
        values = sorted(self._last)
        return values[math.ceil(0.9 * len(values)) - 1] if values else None

"""When the device's first token will come, by what the last prompts took.

    forecast = Forecast(slots=4, example_ms=300.0)
    begun = forecast.begin(key)                 # a request; its prompt as one text
    forecast.outlook(key).expected_ms           # for `budget.decide`
    forecast.first(begun, ms); forecast.ended(begun, ms)

Rules:
- the time is proportional to the bytes that no recent prompt began with, plus STEP_BYTES for the first token;
- a request waits while all slots are taken: as long as the median of the last whole answers;
- an engine that got faster forgets its slow times, as `budget.InferenceHistory` does.
"""

from __future__ import annotations

import threading
from collections import deque
from statistics import median

from edgekit_runtime.policy.budget import DeviceOutlook, InferenceHistory
from edgekit_runtime.system.records import record

STEP_BYTES = 32
"""The first token of an answer takes about as long as so many bytes of a prompt."""
_LAST = 8


@record(frozen=True)
class ActivePrompt:
    """A request that the engine works on. fresh: bytes of its prompt that are computed."""

    key: str
    fresh: int
    waited: bool


class Forecast:
    """Thread-safe. example_ms: of a golden example, whose prompt has about STEP_BYTES."""

    def __init__(self, slots: int, example_ms: float) -> None:
        self._slots, self._lock = slots, threading.Lock()
        self._rates = InferenceHistory(max_age_s=3600.0)  # milliseconds a byte
        self._rates.add(example_ms / (2 * STEP_BYTES))
        self._prompts: deque[str] = deque(maxlen=slots)
        self._whole_ms: deque[float] = deque(maxlen=_LAST)
        self._active = 0

    def fresh_bytes(self, key: str) -> int:
        """Bytes of a prompt behind the longest beginning that it shares with a recent one."""
        with self._lock:
            shared = max((_shared(key, one) for one in self._prompts), default=0)
        return len(key[shared:].encode())

    def outlook(self, key: str, throttle_ms: float = 0.0) -> DeviceOutlook:
        """throttle_ms: what a drill adds to each."""
        size = self.fresh_bytes(key) + STEP_BYTES
        latest, full = self._rates.latest_ms, self._active >= self._slots
        return DeviceOutlook(
            tuple(size * rate + throttle_ms for rate in self._rates.ascending_ms),
            None if latest is None else size * latest + throttle_ms,
            median(self._whole_ms) if full and self._whole_ms else 0.0,
        )

    def begin(self, key: str) -> ActivePrompt:
        begun = ActivePrompt(key, self.fresh_bytes(key), self._active >= self._slots)
        with self._lock:
            self._active += 1
        return begun

    def first(self, begun: ActivePrompt, ms: float) -> None:
        """Its first token came after so long. One that waited says nothing of the engine."""
        with self._lock:
            self._prompts.append(begun.key)
        if not begun.waited:
            self._rates.add(ms / (begun.fresh + STEP_BYTES))

    def ended(self, begun: ActivePrompt, ms: float | None) -> None:
        """ms: of the whole answer, None if it was not complete."""
        with self._lock:
            self._active -= 1
        if ms is not None:
            self._whole_ms.append(ms)


def _shared(a: str, b: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low

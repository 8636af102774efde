"""What an ingestor took in during the last minute: whether it keeps up.

    intake = WindowIntake()
    intake.note(windows=40, repeated=1, waited_s=0.4)   # after each commit, in the ingestor's own thread
    intake.figures()                                    # {"windows_per_s": 0.67, "busy": 0.02, ...}; from any thread

Rules: seconds are kept one by one for a minute, whatever the number of commits; no clock of a board is in a figure.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["WindowIntake"]

_OVER_S = 60.0


class _Second:
    __slots__ = ("at", "repeated", "waited_s", "windows", "worked_s")

    def __init__(self, at: float, worked_s: float) -> None:
        self.at, self.worked_s = at, worked_s
        self.windows = self.repeated = 0
        self.waited_s = 0.0


class WindowIntake:
    """clock: seconds, monotonic. worked_s: processor time of the calling thread, seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._worked_s = clock, worked_s
        self._lock = threading.Lock()
        self._began = clock()
        self._seconds: deque[_Second] = deque()

    def note(self, windows: int, repeated: int, waited_s: float) -> None:
        """waited_s: how long the first of these was in hand before all of them were stored."""
        now, worked_s = self._clock(), self._worked_s()
        with self._lock:
            seconds = self._seconds
            if not seconds or now - seconds[-1].at >= 1.0:
                seconds.append(_Second(now, worked_s))
            last = seconds[-1]
            last.windows += windows
            last.repeated += repeated
            last.waited_s = max(last.waited_s, waited_s)
            last.worked_s = worked_s
            while seconds[0].at < now - _OVER_S - 1.0:
                seconds.popleft()

    def figures(self) -> dict[str, float]:
        """windows_per_s, repeated_per_s: new windows, and messages that were stored before.
        busy: share of a core.

        commit_s: the longest time from a message to its commit.
        """
        now = self._clock()
        with self._lock:
            lately = [second for second in self._seconds if second.at >= now - _OVER_S]
            over_s = max(1.0, min(_OVER_S, now - self._began))
            worked_s = lately[-1].worked_s - lately[0].worked_s if lately else 0.0
            return {
                "windows_per_s": round(sum(second.windows for second in lately) / over_s, 2),
                "repeated_per_s": round(sum(second.repeated for second in lately) / over_s, 2),
                "busy": round(min(1.0, worked_s / over_s), 4),
                "commit_s": round(max((second.waited_s for second in lately), default=0.0), 3),
            }

"""How much of this machine others use while something is timed on it.

    load = MachineLoad()
    load.look()             # before, between and after what is timed
    load.why                # "7 others ran on 2 cores"; "" on a quiet machine

Rules:
- a loop of fixed processor time shows which share of a core this thread gets;
- /proc/loadavg shows how many others run right now; its averages would count this build's own conversions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

_LOOP_S = 0.02
_FAIR_SHARE = 0.9  # of a core; a quiet machine gives more than 98 %


class MachineLoad:
    """clock: wall time, seconds. share: least share of a core that was seen."""

    def __init__(
        self,
        loadavg: Path = Path("/proc/loadavg"),
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loadavg, self._cores, self._clock = loadavg, cores or os.cpu_count() or 1, clock
        self._others: list[int] = []
        self.share = 1.0

    def look(self) -> None:
        """Sample the load now; takes 20 ms of processor time."""
        self._others += self._running()
        began, own = self._clock(), time.thread_time()
        while (used := time.thread_time() - own) < _LOOP_S:
            pass
        self.share = min(self.share, used / max(used, self._clock() - began))

    @property
    def why(self) -> str:
        """Why the machine counts as busy, "" if it does not."""
        others = median(self._others) if self._others else 0
        if others >= self._cores:
            return f"{others:g} others ran on {self._cores} cores"
        return f"it got {self.share:.0%} of a core" if self.share < _FAIR_SHARE else ""

    def _running(self) -> list[int]:
        try:
            running = self._loadavg.read_text().split()[3].partition("/")[0]
            return [max(0, int(running) - 1)]  # one of them is this thread
        except (OSError, IndexError, ValueError):
            return []

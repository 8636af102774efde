"""What a model counted, bundle by bundle: a meter for each, and the sum over all that it ever answered with.

    counts = Counts()
    counts.begin(meter)         # a bundle begins to answer, and what it does is counted by this meter
    counts.end(meter)           # it takes no more requests
    counts.stats()              # of all of them, since the model was opened

Rules:
- a bundle's counts are its own: a page, a report or a line in the log that names a version tells of that version alone;
- the sum never falls: what a bundle counted stays in it when another one has taken its place;
- a caller may be about to count its answer when its bundle has been closed already: the last few meters are read as they are,
  and only older ones are folded into the sum and let go.
"""

from __future__ import annotations

import threading
from collections import deque

from edgekit_runtime.telemetry.meter import Cut, Meter, MeterStats

__all__ = ["Counts"]

_KEPT = 4


class Counts:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a log handler may ask for stats while a meter writes its line
        self._past = Cut()
        self._meters: list[Meter] = []  # those that answer
        self._ended: deque[Meter] = deque()

    def begin(self, meter: Meter) -> None:
        with self._lock:
            self._meters.append(meter)

    def end(self, meter: Meter) -> None:
        """Its bundle is closed; what it still counts is in the sum."""
        with self._lock:
            self._meters.remove(meter)
            self._ended.append(meter)
            if len(self._ended) > _KEPT:
                self._past.add(self._ended.popleft().counted())

    def stats(self) -> MeterStats:
        """Over all bundles, in figures."""
        with self._lock:
            whole = Cut()
            whole.add(self._past)
            for meter in (*self._ended, *self._meters):
                whole.add(meter.counted())
        return whole.stats()

"""What a model counted, bundle by bundle: a meter for each, and the sum over all that it ever answered with.

    counts = Counts()
    counts.begin(meter)         # a bundle begins to answer, and what it does is counted by this meter
    counts.end(meter)           # it answers no more
    counts.stats()              # of all of them, since the model was opened

Rules:
- a bundle's counts are its own: a page, a report or a line in the log that names a version tells of that version alone;
- the sum never falls: what a bundle counted stays in it when another one has taken its place.
"""

from __future__ import annotations

import threading

from edgekit_runtime.telemetry.meter import Cut, Meter, MeterStats

__all__ = ["Counts"]


class Counts:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a log handler may ask for stats while a meter writes its line
        self._past = Cut()
        self._meters: list[Meter] = []

    def begin(self, meter: Meter) -> None:
        with self._lock:
            self._meters.append(meter)

    def end(self, meter: Meter) -> None:
        """Take what it counted over, and let go of it."""
        with self._lock:
            self._meters.remove(meter)
            self._past.add(meter.counted())

    def stats(self) -> MeterStats:
        """Over all bundles, in figures."""
        with self._lock:
            whole = Cut()
            whole.add(self._past)
            for meter in self._meters:
                whole.add(meter.counted())
        return whole.stats()

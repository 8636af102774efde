"""Functions that are called at a time, by one thread that starts with the first.

    alarms = Alarms(name="edgekit-deadlines")
    alarms.at(perf_counter() + 0.05, request.over)
    alarms.close()

Rules:
- what is called must be short: all others wait for it;
- one that raises is logged, and the others are called all the same;
- after `close` nothing is called any more, and nothing is taken.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count
from time import perf_counter

from edgekit_runtime.threads import begin


class Alarms:
    """Thread-safe. clock: monotonic seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = perf_counter) -> None:
        self._name, self._clock = name, clock
        self._changed = threading.Condition()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, when: float, what: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._go, name=self._name, daemon=True)
                self._thread = thread if begin(thread) else None
            entry = (when, next(self._order), what)
            heapq.heappush(self._agenda, entry)
            if self._agenda[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._agenda.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _go(self) -> None:
        while (what := self._next()) is not None:
            try:
                what()
            except Exception as error:  # noqa: BLE001 - the other requests have deadlines, too
                logging.getLogger("edgekit_runtime").error("at a request's deadline: %r", error)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next; None when it is closed."""
        with self._changed:
            while not self._closed:
                left_s = self._agenda[0][0] - self._clock() if self._agenda else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._agenda)[2]
                self._changed.wait(None if left_s is None else min(left_s, threading.TIMEOUT_MAX))
        return None

"""The watchdog: detect an engine that hangs, and fail its callers.

    watched = watch(running_s=runs.running_s, slowest_s=costs.slowest, bite=batcher.abandon)
    ...
    watched.end()

Rules:
- an engine hangs when one run lasts longer than 10 seconds and than 20 times its slowest run;
- `bite` is called once, and decides what becomes of the model;
- each engine has a thread of its own, which survives any fault in a check and ends with the watch;
- while the interpreter exits nothing is watched;
- nothing here can free the thread inside the engine: only an isolated process can (`isolate=True`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

from edgekit_runtime.system.errors import EngineHung
from edgekit_runtime.system.records import record
from edgekit_runtime.system.threads import begin, is_exiting

LEAST_LIMIT_S = 10.0
FACTOR = 20.0
MOST_LIMIT_S = 86_400.0
"""The longest limit allowed: a day."""
_END_S = 1.0
_LOOKS = 4
"""Checks within a limit while nothing runs."""


def limit_s(slowest_s: float) -> float:
    """Seconds that a run may take, when the slowest so far took slowest_s."""
    return max(LEAST_LIMIT_S, FACTOR * slowest_s)


@record(frozen=True)
class Health:
    """state: `ready`, `dead` after the engine hung or died for good, or `closed`.
    reason: why it is not ready.

    The next request restarts an isolated engine that died: it is dead only once restarting is given up."""

    state: Literal["ready", "dead", "closed"]
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "ready"


class WatchedEngine:
    """One engine under watch.

    running_s: duration of the present run, None without one.
    slowest_s: duration of the longest run that ended.
    bite: called once, from the watchdog's thread.
    limit: see `limit_s`."""

    def __init__(
        self,
        running_s: Callable[[], float | None],
        slowest_s: Callable[[], float],
        bite: Callable[[EngineHung], object],
        limit: Callable[[float], float] = limit_s,
    ) -> None:
        self._running_s = running_s
        self._slowest_s = slowest_s
        self._bite = bite
        self._limit = limit
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._troubled = False
        self.hung: EngineHung | None = None

    def look(self) -> float | None:
        """Check, and bite if need be. Returns the seconds until the next check, None after the last."""
        if self.hung is not None:
            return None
        running, limit = self._running_s(), self._limit(self._slowest_s())
        if running is None:
            return limit / _LOOKS
        if running < limit:
            return min(limit - running, limit / _LOOKS)
        self.hung = EngineHung(
            f"the engine has not responded for {running:.3g} s; {limit:.3g} s is the limit",
            do="Open the bundle again; with isolate=True the engine is killed and restarted automatically",
        )
        self._bite(self.hung)
        return None

    def look_safely(self) -> float | None:
        """As `look`; an error is logged once, and this model is checked again later."""
        try:
            return self.look()
        except Exception as error:  # noqa: BLE001 - the engine is watched all the same
            if not self._troubled:
                self._troubled = True
                logging.getLogger("edgekit_runtime").error("the watchdog cannot look after an engine: %r", error)
            return LEAST_LIMIT_S / _LOOKS

    def end(self) -> None:
        """Stop watching, and wait for the thread. Idempotent."""
        if is_exiting():  # the thread stands still, maybe with the lock
            return
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _go(self) -> None:
        while (wait_s := self.look_safely()) is not None and not self._ended.wait(min(MOST_LIMIT_S, wait_s)):
            pass


def watch(
    running_s: Callable[[], float | None],
    slowest_s: Callable[[], float],
    bite: Callable[[EngineHung], object],
    limit: Callable[[float], float] = limit_s,
) -> WatchedEngine:
    """Begin to watch an engine."""
    watched = WatchedEngine(running_s, slowest_s, bite, limit)
    if not is_exiting():
        thread = threading.Thread(target=watched._go, name="edgekit-watchdog", daemon=True)
        watched._thread = thread if begin(thread) else None
    return watched

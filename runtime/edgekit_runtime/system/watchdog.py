"""The watchdog: detect an engine that hangs, and fail its callers.

    watched = watch(running_s=batcher.running_s, slowest_s=costs.slowest, bite=batcher.abandon)
    ...
    watched.end()

Rules:
- an engine hangs when one run lasts longer than 10 seconds and than 20 times its slowest run;
- `bite` is called once, and decides what becomes of the model;
- one thread serves all models of a process, from the first to the last, and survives any fault in a check;
- while the interpreter exits nothing is watched;
- nothing here can free the thread inside the engine: only an isolated process can (`isolate=True`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgekit_runtime.system.errors import EngineHung
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


@dataclass(frozen=True)
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
        self._rounds: _Rounds | None = None
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
            f"the engine has not come back for {running:.3g} s; {limit:.3g} s is the most that is waited for",
            do="Open the bundle again; with isolate=True the engine is ended and started again by itself",
        )
        self._bite(self.hung)
        return None

    def look_safely(self) -> float | None:
        """As `look`; an error is logged once, and this model is checked again later."""
        try:
            return self.look()
        except Exception as error:  # noqa: BLE001 - the others are watched by this thread, too
            if not self._troubled:
                self._troubled = True
                logging.getLogger("edgekit_runtime").error("the watchdog cannot look after an engine: %r", error)
            return LEAST_LIMIT_S / _LOOKS

    def end(self) -> None:
        """Stop watching. Idempotent. The last one ends the watchdog's thread before this returns."""
        if self._rounds is not None:
            self._rounds.leave(self)


class _Rounds:
    """The thread that watches engines and waiting requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: list[WatchedEngine] = []
        self._thread: threading.Thread | None = None

    def add(self, watched: WatchedEngine) -> None:
        if is_exiting():  # the thread stands still, maybe with the lock
            return
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._go, name="edgekit-watchdog", daemon=True)
                self._thread = thread if begin(thread) else None
            watched._rounds = self
            self._watched.append(watched)
            self._changed.notify()

    def drop(self, watched: WatchedEngine) -> None:
        if is_exiting():
            return
        with self._changed:
            if watched in self._watched:
                self._watched.remove(watched)
                self._changed.notify()

    def leave(self, watched: WatchedEngine) -> None:
        """`drop`, and wait for the thread if no model is left to watch."""
        self.drop(watched)
        thread = self._thread
        if thread is not None and not self._watched and thread is not threading.current_thread():
            thread.join(_END_S)

    def _go(self) -> None:
        while True:
            with self._changed:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            looks = [(one, one.look_safely()) for one in watched]  # outside the lock: a bite may end its own watch
            for one, wait_s in looks:
                if wait_s is None:
                    self.drop(one)
            waits = [wait_s for _, wait_s in looks if wait_s is not None]
            with self._changed:
                if self._watched == watched:
                    self._changed.wait(min([*waits, MOST_LIMIT_S]) if waits else 0.0)


_rounds = _Rounds()


def watch(
    running_s: Callable[[], float | None],
    slowest_s: Callable[[], float],
    bite: Callable[[EngineHung], object],
    limit: Callable[[float], float] = limit_s,
) -> WatchedEngine:
    """Begin to watch an engine."""
    watched = WatchedEngine(running_s, slowest_s, bite, limit)
    _rounds.add(watched)
    return watched


def _after_fork() -> None:
    """The thread stayed in the parent."""
    global _rounds
    _rounds = _Rounds()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Whose turn it is: first come, first served, one at a time.

    turns.wait()                  # returns when it is this caller's turn
    try: ...
    finally: turns.give()         # to the next in line

Rules: whoever has the turn gives it on, once; somebody who waits and is interrupted leaves the line; closing refuses all
who wait and all who come, and calls its `free` once nobody has the turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from edgekit_runtime.errors import ClosedError

__all__ = ["Turns", "closed"]


@dataclass(slots=True)
class _Entry:
    """Who waits for a turn. begin: called when it has come, with the turn taken. answer: what is failed on closing."""

    begin: Callable[[], object]
    answer: Future[Any] | None = None
    begun: bool = False


class Turns:
    """Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._waiting = deque[_Entry]()
        self._busy = False
        self._idle = threading.Event()
        self._free: Callable[[], None] | None = None
        self.closed = False

    def take(self, begin: Callable[[], object], answer: Future[Any]) -> None:
        """Call `begin` when the turn has come, now or later. Raises ClosedError."""
        with self.lock:
            if self.closed:
                raise closed()
            if self._busy:
                self._waiting.append(_Entry(begin, answer))
                return
            self._busy = True
        begin()

    def wait(self) -> None:
        """Return when the turn has come. Raises ClosedError; interrupted, it is out of the line."""
        with self.lock:
            if self.closed:
                raise closed()
            if not self._busy:
                self._busy = True
                return
            come = threading.Event()
            entry = _Entry(come.set)
            self._waiting.append(entry)
        try:
            come.wait()
        except BaseException:
            with self.lock:
                mine = entry.begun
                if not mine and entry in self._waiting:
                    self._waiting.remove(entry)
            if mine:
                self.give()
            raise
        if not entry.begun:
            raise closed()

    def give(self) -> None:
        """To the next in line."""
        free: Callable[[], None] | None = None
        entry: _Entry | None = None
        with self.lock:
            if self._waiting:
                entry = self._waiting.popleft()
                entry.begun = True
            else:
                self._busy = False
                if self.closed:
                    free, self._free = self._free, None
        if entry is not None:
            entry.begin()
        if free is not None:
            free()
            self._idle.set()

    def close(self, free: Callable[[], None], timeout_s: float) -> bool:
        """Refuse what comes and what waits; `free` is called once nobody has the turn. True where this call closed it."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            busy = self._busy
            self._free = free if busy else None
        for entry in waiting:
            if entry.answer is None:
                entry.begin()
            elif entry.answer.set_running_or_notify_cancel():
                entry.answer.set_exception(closed())
        if busy:
            self._idle.wait(timeout_s)
        else:
            free()
        return True


def closed() -> ClosedError:
    """What everybody is told from then on."""
    return ClosedError("the session was closed", do="Open another one: model.session()")

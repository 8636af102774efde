"""The gate before an engine: one thread inside, and a waiter whose patience ends is the next.

    if gate.enter(patience_s=0.01):
        try: ...
        finally: gate.leave()

A plain lock is fast because whoever is running may take it again at once, and unfair for the same reason. Here a thread may
do so too, but one that has waited for its patience joins a line, and while there is a line the gate is handed to its head.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Gate"]


class Gate:
    """A mutual exclusion with bounded starvation. Not reentrant. Any thread may leave for the one that entered."""

    __slots__ = ("_line", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Lock] = deque()

    def try_enter(self) -> bool:
        """Enter if nobody is inside or in line."""
        return not self._line and self._lock.acquire(False)

    def enter(self, patience_s: float = 0.0, timeout_s: float | None = None) -> bool:
        """Wait to enter: among all others for `patience_s`, then in line. False when `timeout_s` passed first."""
        if not self._line and self._lock.acquire(False):
            return True
        patience = patience_s if timeout_s is None else min(patience_s, timeout_s)
        if patience > 0 and not self._line and self._lock.acquire(True, patience):
            return True
        left = None if timeout_s is None else max(0.0, timeout_s - patience)
        return self._in_line(left)

    def leave(self) -> None:
        """To the head of the line, or free for all."""
        if self._line:
            self._line.popleft().release()  # the lock stays taken: it is theirs now
            return
        self._lock.release()
        if self._line and self._lock.acquire(False):  # somebody joined the line just before the release
            self.leave()

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def _in_line(self, timeout_s: float | None) -> bool:
        turn = threading.Lock()
        turn.acquire()
        self._line.append(turn)
        if self._lock.acquire(False):  # it became free before anybody could see this place in the line
            self.leave()
        try:
            if timeout_s is None:
                return turn.acquire()
            if turn.acquire(True, timeout_s):
                return True
        except BaseException:
            self._quit(turn)
            raise
        return self._quit(turn, keep=True)

    def _quit(self, turn: threading.Lock, *, keep: bool = False) -> bool:
        """Give the place up; if the gate was handed over in this very moment, keep it or pass it on."""
        try:
            self._line.remove(turn)
        except ValueError:
            if not keep:
                self.leave()
            return keep
        return False

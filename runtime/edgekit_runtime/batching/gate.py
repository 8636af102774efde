"""The gate before an engine: one thread inside, and a waiter whose patience ends is the next.

    if gate.enter(patience_s=0.01):
        try: ...
        finally: gate.leave()

A plain lock is fast because whoever is running may take it again at once, and unfair for the same reason. Here a thread may
do so too, but one that has waited for its patience joins a line, and while there is a line the gate is handed to its head.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque

__all__ = ["Gate"]


class Gate:
    """A mutual exclusion with bounded starvation. Not reentrant. Any thread may leave for the one that entered.

    line, acquire, release: for a caller to whom every call counts. It enters by `not line and acquire(False)`, and leaves by
    `leave()` if there is a line, else by `release()` and `released()` if there is one by then.
    """

    __slots__ = ("_lock", "acquire", "line", "release", "shut")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.line: deque[threading.Lock] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        self.shut = False

    def try_enter(self) -> bool:
        """Enter if nobody is inside or in line."""
        return not self.line and self.acquire(False)

    def enter(self, patience_s: float = 0.0, timeout_s: float | None = None) -> bool:
        """Wait to enter: among all others for `patience_s`, then in line. False when `timeout_s` passed first, or it is shut."""
        if self.try_enter():
            return True
        patience = patience_s if timeout_s is None else min(patience_s, timeout_s)
        if patience > 0 and self.acquire(True, patience):  # while there is a line it is not released to the rest
            return True
        left = None if timeout_s is None else max(0.0, timeout_s - patience)
        return self._in_line(left)

    def leave(self) -> None:
        """To the head of the line, or free for all."""
        if self.line and not self.shut:
            with contextlib.suppress(IndexError):  # they were sent away in this very moment
                self.line.popleft().release()  # the lock stays taken: it is theirs now
                return
        self.release()
        if self.line:
            self.released()

    def released(self) -> None:
        """Somebody joined the line just before the release, and may not have seen it."""
        if self.acquire(False):
            self.leave()

    def shut_out(self) -> None:
        """Whoever is inside does not come out: send all that wait away, and let nobody wait any more."""
        self.shut = True
        while self.line:
            with contextlib.suppress(IndexError):
                self.line.popleft().release()

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def _in_line(self, timeout_s: float | None) -> bool:
        turn = threading.Lock()
        turn.acquire()
        self.line.append(turn)
        self.released()  # it may have become free before anybody could see this place in the line
        if self.shut:
            self.shut_out()
        try:
            if timeout_s is None:
                return turn.acquire() and not self.shut
            if turn.acquire(True, timeout_s):
                return not self.shut
        except BaseException:
            self._quit(turn)
            raise
        return self._quit(turn, keep=True)

    def _quit(self, turn: threading.Lock, *, keep: bool = False) -> bool:
        """Give the place up; if the gate was handed over in this very moment, keep it or pass it on."""
        try:
            self.line.remove(turn)
        except ValueError:
            if not keep:
                self.leave()
            return keep
        return False

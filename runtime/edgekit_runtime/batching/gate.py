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
from collections.abc import Callable

__all__ = ["Gate"]


LOOK_S = 0.1
LOST_LOOKS = 20
"""So many looks in a row must show the gate taken, and nobody at work, before it counts as lost."""


class Gate:
    """A mutual exclusion with bounded starvation. Not reentrant. Any thread may leave for the one that entered.

    progress: what changes with everything that is done inside; None while something is being done there right now, and so
    never a reason to doubt.

    line, acquire, release: for a caller to whom every call counts. It enters by `not line and acquire(False)`, and leaves by
    `leave()` if there is a line, else by `release()` and `released()` if there is one by then.
    """

    __slots__ = ("_lock", "_progress", "acquire", "line", "release", "shut")

    def __init__(self, progress: Callable[[], object] | None = None) -> None:
        self._progress = progress
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
            if self._turn_came(turn, timeout_s):
                return not self.shut
        except BaseException:
            self._quit(turn)
            raise
        return self._quit(turn, keep=True)

    def _turn_came(self, turn: threading.Lock, timeout_s: float | None) -> bool:
        """Wait for the turn. The head of the line takes it where whoever entered is seen to be gone: interrupted between two
        instructions, as Ctrl-C in a console may, or never having learnt that it was handed the gate."""
        left_s, seen, same = timeout_s, object(), 0
        while left_s is None or left_s > 0:
            wait_s = LOOK_S if left_s is None else min(LOOK_S, left_s)
            if turn.acquire(True, wait_s):
                return True
            left_s = None if left_s is None else left_s - wait_s
            now = self._progress() if self._progress is not None and self.line and self.line[0] is turn else None
            same = same + 1 if now is not None and now == seen else 0
            seen = now
            if same >= LOST_LOOKS:
                with contextlib.suppress(ValueError):
                    self.line.remove(turn)
                    return True  # the lock stays taken: it is ours now
                return turn.acquire()
        return False

    def _quit(self, turn: threading.Lock, *, keep: bool = False) -> bool:
        """Give the place up; if the gate was handed over in this very moment, keep it or pass it on."""
        try:
            self.line.remove(turn)
        except ValueError:
            if self.shut:  # sent away, not let in
                return False
            if not keep:
                self.leave()
            return keep
        return False

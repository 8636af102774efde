"""A model does not survive a fork: its threads and its engine's stayed in the parent. Using it there is a typed error.

    guard = ForkGuard()
    if guard.forked:            # one attribute: 20 ns a request
        raise guard.error()

Rules:
- the mark is set by the fork itself, in the child, so that no request asks the system who it is;
- a lock is in the child as some thread of the parent left it, for ever: where the mark is set, none is touched;
- a future that the parent promised ends in the child too, with the error, and without its callbacks: whatever they
  would wait for may be locked.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any

from edgekit_runtime.errors import ForkedError

__all__ = ["ForkGuard", "orphan", "promised"]

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()
_promised: weakref.WeakSet[Future[Any]] = weakref.WeakSet()


class ForkGuard:
    """forked: this process is a child that was forked after the guard was made."""

    __slots__ = ("__weakref__", "forked")

    def __init__(self) -> None:
        self.forked = False
        _guards.add(self)

    def check(self) -> None:
        """Raises ForkedError in a forked child."""
        if self.forked:
            raise self.error()

    def error(self) -> ForkedError:
        return _error()


def promised() -> Future[Any]:
    """A future for a caller that ends in a forked child, too."""
    future: Future[Any] = Future()
    _promised.add(future)
    return future


def orphan(future: Future[Any], error: ForkedError) -> None:
    """End a future whose maker stayed in the parent."""
    future._condition = threading.Condition()
    if not future.done():
        future._done_callbacks = []  # type: ignore[attr-defined]
        future.set_exception(error)


def _error() -> ForkedError:
    return ForkedError(
        "the model was opened before this process was forked",
        do="Open the bundle in the child, or start it as a fresh process (multiprocessing: spawn)",
    )


def _mark() -> None:
    for guard in list(_guards):
        guard.forked = True
    for future in list(_promised):
        orphan(future, _error())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark)

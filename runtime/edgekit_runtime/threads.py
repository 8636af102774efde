"""Threads at interpreter exit and after a fork.

    if not begin(thread):       # the interpreter ends: do without
        ...
    is_exiting()                    # whether to wait for no thread
    guard = ForkGuard()
    if guard.forked:            # one attribute: 20 ns a request
        raise guard.error()

Rules:
- code that would wait for a thread asks `is_exiting` first: while the interpreter ends, no new thread runs, daemon
  threads stand still, and `Thread.start` never returns;
- a model does not survive a fork, as its threads and its engine's stay in the parent: using it is a ForkedError;
- the mark is set by the fork itself, in the child, so that no request asks the system who it is;
- a lock is in the child as some thread of the parent left it, for ever: where the mark is set, none is touched;
- a future that the parent promised ends in the child too, with the error, and without its callbacks: whatever they
  would wait for may be locked.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from edgekit_runtime.errors import ForkedError, MemoryExceeded


def is_exiting() -> bool:
    """Whether the interpreter ends: from the handlers of `atexit` on."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


def begin(thread: threading.Thread) -> bool:
    """Start it; False where the interpreter ends.
    Raises MemoryExceeded where the system gives no more threads."""
    if sys.is_finalizing():
        return False
    try:
        thread.start()
    except RuntimeError as error:
        if is_exiting():  # Python 3.12 and later refuse it from `atexit` on
            return False
        if thread.ident is not None:  # it was started before
            raise
        raise MemoryExceeded(
            f"this process gets no more threads ({error})",
            where=thread.name,
            do="Raise its limits, of memory (ulimit -v, the cgroup's) or of threads (ulimit -u, TasksMax)",
        ) from error
    return True


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


def fork_safe_future() -> Future[Any]:
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


Result = TypeVar("Result")


class FutureRelay(threading.local):
    """Hands the result of one future to another, that a caller holds.

    Rules: the caller's future ends exactly once; a caller that withdrew gets nothing, and that is no error.
    now: whether this thread runs a caller's callback, which must not wait for what this thread would do.
    """

    now = False

    def carry(
        self,
        pending: Future[Any],
        answer: Future[Result],
        finish: Callable[[Any], Result],
        failed: Callable[[BaseException, bool], object],
    ) -> None:
        """finish: makes the caller's result, in the thread that ends `pending`.
        failed: takes an error, and whether it counts: False where the caller had withdrawn the request."""

        def settle(done: Future[Any]) -> None:
            wanted = answer.set_running_or_notify_cancel()
            outer, self.now = self.now, True
            try:
                result = finish(done.result())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                failed(error, wanted or not done.cancelled())
                if wanted:
                    answer.set_exception(error)
            else:
                if wanted:
                    answer.set_result(result)
            finally:
                self.now = outer

        pending.add_done_callback(settle)

"""Threads at interpreter exit and after a fork, and callbacks at a given time.

    if not begin(thread):       # the interpreter exits: do without
        ...
    is_exiting()                # then wait for no thread
    guard = ForkGuard()
    if guard.forked:            # one attribute: 20 ns a request
        raise guard.error()
    alarms = Alarms(name="edgekit-deadlines")
    alarms.at(perf_counter() + 0.05, request.over)

Rules:
- code that would wait for a thread checks `is_exiting` first: at exit no new thread runs, daemon threads stand still,
  and `Thread.start` never returns;
- a model does not survive a fork, because its threads stay in the parent: using it is a ForkedError;
- the fork itself sets the mark in the child. Once it is set, no lock is touched: it may be locked for ever;
- a future that the parent promised ends in the child with the error, and without its callbacks;
- a callback of `Alarms` must be short; one that raises is logged, and the others still run. After `close` none runs.
"""

from __future__ import annotations

import heapq
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from time import perf_counter
from typing import Any, TypeVar

from edgekit_runtime.system.errors import ForkedError, MemoryExceeded


def is_exiting() -> bool:
    """Whether the interpreter exits: from the handlers of `atexit` on."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


def begin(thread: threading.Thread) -> bool:
    """Start a thread; False if the interpreter exits.
    Raises MemoryExceeded if the system has no more threads."""
    if sys.is_finalizing():
        return False
    try:
        thread.start()
    except RuntimeError as error:
        if is_exiting():  # Python 3.12 and later refuse it from `atexit` on
            return False
        if thread.ident is not None:  # it was started before
            raise
        do = "Raise its limits, of memory (ulimit -v, the cgroup's) or of threads (ulimit -u, TasksMax)"
        raise MemoryExceeded(f"this process cannot start more threads ({error})", where=thread.name, do=do) from error
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
    do = "Open the bundle in the child, or start a fresh process (multiprocessing: spawn)"
    return ForkedError("the model was opened before the process forked", do=do)


def _mark() -> None:
    for guard in list(_guards):
        guard.forked = True
    for future in list(_promised):
        orphan(future, _error())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark)


Result = TypeVar("Result")


class FutureRelay(threading.local):
    """Hands the result of one future to another that a caller holds; it ends exactly once.
    A caller that withdrew gets nothing, and that is not an error.

    now: whether this thread runs a caller's callback, which must not wait for what this thread would do."""

    now = False

    def carry(
        self,
        pending: Future[Any],
        answer: Future[Result],
        finish: Callable[[Any], Result],
        failed: Callable[[BaseException, bool], object],
    ) -> None:
        """finish: makes the caller's result, in the thread that ends `pending`.
        failed: takes an error, and whether it counts: not if the caller had withdrawn the request."""

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


class Alarms:
    """Calls functions at given times from one thread. Thread-safe. clock: monotonic seconds."""

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
        """Wait for the next; None when closed."""
        with self._changed:
            while not self._closed:
                left_s = self._agenda[0][0] - self._clock() if self._agenda else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._agenda)[2]
                self._changed.wait(None if left_s is None else min(left_s, threading.TIMEOUT_MAX))
        return None

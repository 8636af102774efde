"""One request to the batcher, from arrival to its single completion.

    waiting -> running -> ended
    waiting -> ended                  cancelled, expired, closed

Rules:
- the batcher's mutex guards `state`, and only the thread that changed it to `ended` delivers the result;
- a caller that waits, one that holds a future and a task that awaits get it by the same method, `deliver`;
- an event loop is woken once for all of its tasks in a batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit_runtime.system.errors import EngineError

if TYPE_CHECKING:
    import asyncio


class BatchResult(NamedTuple):
    """A result, its seconds in the queue and in its batch, and the size of the batch."""

    result: Any
    queued_s: float
    ran_s: float
    batch: int


Outcome = BatchResult | BaseException


class RequestState(Enum):
    WAITING = 0
    RUNNING = 1
    ENDED = 2


class QueuedRequest:
    """item: dropped when the request ends.
    due, queued_at: of the batcher's clock.
    first: it found the engine idle.
    outcome: once it has ended.
    """

    __slots__ = ("due", "first", "item", "outcome", "priority", "queued_at", "state")

    def __init__(self, item: Any, queued_at: float, due: float, priority: int) -> None:
        self.item = item
        self.queued_at = queued_at
        self.due = due
        self.priority = priority
        self.state = RequestState.WAITING
        self.first = False
        self.outcome: Outcome | None = None

    def begin(self) -> bool:
        """Mark it as running; False if the caller has cancelled it. The mutex is held."""
        if self.state is not RequestState.WAITING:
            return False
        self.state = RequestState.RUNNING
        return True

    def end(self) -> bool:
        """Whether this call ends it, and so must `deliver`. The mutex is held."""
        if self.state is RequestState.ENDED:
            return False
        self.state = RequestState.ENDED
        return True

    def hand(self, outcome: Outcome) -> None:
        """Deliver without waking who waits."""
        self.item, self.outcome = None, outcome

    def deliver(self, outcome: Outcome) -> None:
        raise NotImplementedError


class WaitingCaller(QueuedRequest):
    """A caller that waits in its own thread.

    Waking a thread is slow, so each woken caller wakes the next two: see `wake_all`.
    leaf: it may be interrupted, so no other relies on it.
    """

    __slots__ = ("_delivered", "followers", "leaf")

    def __init__(self, item: Any, queued_at: float, due: float, priority: int) -> None:
        super().__init__(item, queued_at, due, priority)
        self.followers: Sequence[WaitingCaller] = ()
        self.leaf = False
        self._delivered = threading.Lock()
        self._delivered.acquire()

    def deliver(self, outcome: Outcome) -> None:
        self.hand(outcome)
        self.wake()

    def wake(self) -> None:
        self._delivered.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the result was delivered, or the time is over."""
        try:
            if timeout_s is None:
                return self._delivered.acquire()
            return self._delivered.acquire(True, min(max(0.0, timeout_s), threading.TIMEOUT_MAX))
        finally:
            if self.followers:
                self.pass_on()

    def pass_on(self) -> None:
        """Wake its followers."""
        followers, self.followers = self.followers, ()
        for follower in followers:
            follower.wake()


def wake_all(waiting: Sequence[WaitingCaller]) -> Sequence[WaitingCaller]:
    """Let each wake two others; returns those that the caller must wake.

    The mutex is held, and all have their outcome.
    """
    if len(waiting) <= 2:
        return waiting
    order = sorted(waiting, key=lambda request: request.leaf)
    able = len(order) - sum(request.leaf for request in order)
    for n, request in enumerate(order[:able]):
        request.followers = order[2 * n + 2 : 2 * n + 4]
    return [*order[:2], *order[2 * able + 2 :]]


class AwaitingTask(QueuedRequest):
    """A task of an event loop, which awaits `future`."""

    __slots__ = ("future",)

    def __init__(self, item: Any, queued_at: float, due: float, priority: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(item, queued_at, due, priority)
        self.future: asyncio.Future[BatchResult] = loop.create_future()

    def deliver(self, outcome: Outcome) -> None:
        self.hand(outcome)
        wake_loops((self,))


def wake_loops(tasks: Sequence[AwaitingTask]) -> None:
    """Wake each loop once, for all of its tasks. All have their outcome."""
    loops: defaultdict[asyncio.AbstractEventLoop, list[AwaitingTask]] = defaultdict(list)
    for task in tasks:
        loops[task.future.get_loop()].append(task)
    for loop, its_tasks in loops.items():
        with contextlib.suppress(RuntimeError):  # it was closed, and its tasks with it
            loop.call_soon_threadsafe(_resume, its_tasks)


def _resume(tasks: Sequence[AwaitingTask]) -> None:
    for task in tasks:
        if not task.future.done():  # else it was cancelled
            failed, end = isinstance(task.outcome, BaseException), task.future
            (end.set_exception if failed else end.set_result)(task.outcome)  # type: ignore[arg-type]


class FutureRequest(QueuedRequest):
    """A caller that holds a future."""

    __slots__ = ("future",)

    def __init__(
        self, item: Any, queued_at: float, due: float, priority: int, cancelled: Callable[[FutureRequest], None]
    ) -> None:
        super().__init__(item, queued_at, due, priority)
        self.future: _Future = _Future(lambda: cancelled(self))

    def begin(self) -> bool:
        return super().begin() and self._claim()

    def end(self) -> bool:
        waiting = self.state is RequestState.WAITING
        return super().end() and (not waiting or self._claim())

    def _claim(self) -> bool:
        if self.future.set_running_or_notify_cancel():
            return True
        self.state = RequestState.ENDED
        return False

    def deliver(self, outcome: Outcome) -> None:
        self.item = None
        self.future.unbind()
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class _Future(Future[BatchResult]):
    """Reports its cancellation, so that the queue holds no place and no tensors for it."""

    def __init__(self, cancelled: Callable[[], None]) -> None:
        super().__init__()
        self._on_cancel: Callable[[], None] | None = cancelled

    def unbind(self) -> None:
        """Disable cancellation and release the request."""
        self._on_cancel = None

    def cancel(self) -> bool:
        gone = super().cancel()
        on_cancel, self._on_cancel = self._on_cancel, None
        if gone and on_cancel is not None:
            on_cancel()
        return gone


def for_member(error: BaseException, member: int) -> BaseException:
    """The error for a member of a batch; threads must not share one, or tracebacks would mix.

    The first gets the error itself; others a copy with the first as its cause, or an EngineError with the same text if
    it cannot be copied.
    """
    if member == 0:
        return error
    try:
        copied = copy(error)
        if type(copied) is not type(error) or str(copied) != str(error):
            raise TypeError("the copy differs")
    except Exception:  # noqa: BLE001 - whatever its constructor thinks of being copied
        copied = EngineError(f"the inference failed: {type(error).__name__}: {error}")
    copied.__cause__, copied.__traceback__ = error, None
    return copied

"""Who waits for the engine: admission, the worker's sleep, and which of them run next. One mutex over all of it.

    queue.push(request)                     # refused when it is full or closed; wakes the worker
    while queue.sleep():                    # the worker, in its own thread
        queue.hold(clock)                   # while that pays
        batch, late = queue.take(clock)

Rules:
- whoever changes a request's state holds the mutex; who ended it tells its caller, after letting go of the mutex;
- what can no longer be met is taken out rather than run, and no batch grows past a member's deadline;
- by what was learnt only a request is refused that came while others waited or ran. One that found the engine idle runs unless
  its deadline passed: so each refusal follows a run that teaches, and an estimate that is too high heals itself;
- the worker is woken once for each sleep, when as many are queued as it sleeps for.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy

from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.batching.holding import hold
from edgekit_runtime.batching.lanes import Lanes
from edgekit_runtime.batching.request import Outcome, Promise, Request, State, Waiting, wake_all
from edgekit_runtime.batching.returns import Returns
from edgekit_runtime.errors import BudgetExceeded, EdgekitError, QueueFull

__all__ = ["Queue", "expired"]


class Queue:
    """limit: requests that wait at most. begin: called with the first request, the mutex held: starts the worker.

    mutex: guards all that is here. refusal: why nothing is taken any more. running: what the worker took. counts: what became
    of requests. held_s: what holding took.
    """

    def __init__(self, costs: Costs, limit: int, begin: Callable[[], object]) -> None:
        self.mutex = threading.Lock()
        self.lanes, self.returns = Lanes(), Returns()
        self.running: list[Request] = []
        self.refusal: EdgekitError | None = None
        self.counts: Counter[str] = Counter()
        self.held_s = 0.0
        self._costs, self._limit = costs, limit
        self._batches = costs.mode == "batch"
        self._begin: Callable[[], object] | None = begin
        self._alarm = threading.Lock()
        self._alarm.acquire()
        self._wanted = 0  # the worker sleeps until so many are queued; 0: it is awake

    # Admission.

    def push(self, request: Request, *, idle: bool = False) -> None:
        """idle: nothing runs in a caller's thread. Raises QueueFull, and what it refuses with."""
        with self.mutex:
            if self.refusal is not None:
                raise copy(self.refusal)
            if len(self.lanes) >= self._limit:
                self.counts["refused"] += 1
                raise QueueFull(
                    f"{self._limit} requests wait already",
                    do="Ask less often, or open the bundle with a longer queue",
                )
            request.first = idle and not self.lanes.live and not self.running
            self.lanes.push(request)
            if self._batches:
                self.returns.came(request.queued_at, lone=request.first)
            if self._begin is not None:
                begin, self._begin = self._begin, None
                begin()
            if 0 < self._wanted <= len(self.lanes):
                self.wake()

    def drop(self, request: Request, why: str) -> bool:
        """Take out a request that still waits; False where it is running or over."""
        with self.mutex:
            if request.state is not State.WAITING:
                return False
            request.state = State.ENDED
            request.item = None
            self.counts[why] += 1
            self.lanes.dropped()
        return True

    def cancelled(self, promise: Promise) -> None:
        """Its caller withdrew it."""
        if self.drop(promise, "cancelled"):
            promise.future.set_running_or_notify_cancel()

    def fail_all(self, error: EdgekitError, *, also: bool) -> None:
        """Fail all that wait; also: and what runs, and refuse what comes."""
        with self.mutex:
            ended = self._ended(self.lanes.clear(), "failed")
            if also:
                self.refusal = error
                ended += [request for request in self.running if request.end()]
            self.wake()
        for request in ended:
            request.tell(copy(error))

    # The worker's sleep.

    def wake(self) -> None:
        """The mutex is held. One release for each sleep; in this order, so that Ctrl-C between the two loses none."""
        if self._wanted:
            with contextlib.suppress(RuntimeError):  # released already
                self._alarm.release()
            self._wanted = 0

    def sleep(self) -> bool:
        """Until something is queued; False when nothing is taken any more and nothing is there."""
        while True:
            with self.mutex:
                if self.lanes.live:
                    return True
                if self.refusal is not None:
                    return False
                self._wanted = 1
            self._alarm.acquire()

    def hold(self, clock: Callable[[], float]) -> None:
        """Wait while that pays: first for those that come back as soon as usual; then, if some of them are missing and it
        still pays, for the late."""
        if not self._batches:
            return
        for late in (False, True):
            with self.mutex:
                now = clock()
                refused = self.refusal is not None
                target, wait_s = (0, 0.0) if refused else hold(self._costs, self.returns, self.lanes, now, late=late)
                self._wanted = target
            if target:
                self._wait(wait_s, late)
                self.held_s += clock() - now
                self.counts["held"] += 1

    def _wait(self, wait_s: float, late: bool) -> None:
        if self._alarm.acquire(True, wait_s):
            return
        with self.mutex:
            if not self._wanted:  # woken in this very moment
                self._alarm.acquire()
            elif late:
                self.returns.missed()
            self._wanted = 0

    # What runs next, and its end.

    def take(self, clock: Callable[[], float]) -> tuple[list[Request], list[Request]]:
        """(as many as are best to run together, those that cannot be met any more, which are to be told)."""
        costs, slack = self._costs, math.inf
        batch: list[Request] = []
        late: list[Request] = []
        with self.mutex:
            now = clock()
            want = costs.first(len(self.lanes))
            while len(batch) < want and (request := self.lanes.pop()) is not None:
                left = request.due - now
                if left <= 0 or (left < costs.seconds(1) and not request.first):
                    late.append(request)
                    continue
                if batch and costs.seconds(len(batch) + 1) > min(slack, left):
                    self.lanes.put_back(request)
                    break
                if request.begin():
                    batch.append(request)
                    slack = min(slack, left)
                else:
                    self.counts["cancelled"] += 1  # in this very moment
            if batch:
                late += self.lanes.hopeless(now + costs.seconds(len(batch)) + costs.seconds(1))
            if late:
                late = self._ended(late, "expired")
            self.running = batch
        return batch, late

    def end(self, batch: Sequence[Request], outcomes: Sequence[Outcome], clock: Callable[[], float]) -> None:
        """The batch ran: tell everybody. Outside the gate, because a caller's callback may ask for the next inference."""
        waiting: list[Waiting] = []
        promised: list[tuple[Request, Outcome]] = []
        with self.mutex:
            for request, outcome in zip(batch, outcomes, strict=True):
                if not request.end():
                    continue
                if isinstance(outcome, BaseException):
                    self.counts["failed"] += 1
                if isinstance(request, Waiting):
                    request.hand(outcome)
                    waiting.append(request)
                else:
                    promised.append((request, outcome))
            self.running = []
            if self._batches:
                self.returns.left(len(waiting) + len(promised), clock())
            first = wake_all(waiting)
        for one in first:
            one.wake()
        for request, outcome in promised:
            with contextlib.suppress(BaseException):  # of a callback that exits: it is not the others' fault
                request.tell(outcome)

    def _ended(self, waiting: list[Request], why: str) -> list[Request]:
        """End what was taken out, and count it; those that were not cancelled in this very moment. The mutex is held."""
        ended = [request for request in waiting if request.end()]
        self.counts[why] += len(ended)
        self.counts["cancelled"] += len(waiting) - len(ended)
        return ended


def expired() -> BudgetExceeded:
    """What a request hears whose time is over."""
    return BudgetExceeded(
        "the deadline passed, or could no longer be met, while the request queued",
        do="Give more time, ask less often, or use a smaller model",
    )

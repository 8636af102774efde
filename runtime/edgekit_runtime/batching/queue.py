"""The queue before the engine: admission, order, how long to wait for a larger batch.

    queue.push(request)                     # QueueFull or ClosedError; wakes the worker
    while queue.sleep():                    # the worker, in its own thread
        queue.hold(clock)                   # while that pays
        batch, late = queue.take(clock)

Rules:
- one mutex guards every request's state; a result is delivered after its release;
- a request that cannot meet its deadline is taken out, and no batch grows past a member's deadline;
- measured times refuse only a request that came while others waited or ran. One that found the engine idle runs, so
  an estimate that is too high heals itself;
- a batch is held for expected callers only if that ends sooner than running without them (`Costs.pays_to_wait`), and
  never beyond the soonest deadline less the run; a single caller never waits;
- the worker is woken once for each sleep, when as many are queued as it sleeps for.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from edgekit_runtime.batching.costs import Costs, Returns
from edgekit_runtime.batching.queued_request import (
    AwaitingTask,
    FutureRequest,
    Outcome,
    QueuedRequest,
    RequestState,
    WaitingCaller,
    wake_all,
    wake_loops,
)
from edgekit_runtime.system.errors import BudgetExceeded, EdgekitError, QueueFull


class Lanes:
    """The order of requests: a lane for each priority, first come, first served within it.

    A level of priority is worth `age_s` seconds of waiting, as if the request had come that much earlier. Cancelled
    requests leave gaps, which are skipped and swept when there are many. The queue's mutex is held.

    live: how many wait.
    """

    def __init__(self, age_s: float = 1.0) -> None:
        self._age_s = age_s
        self._lanes: defaultdict[int, deque[QueuedRequest]] = defaultdict(deque)
        self.live = 0
        self._gaps = 0
        self._soonest = float("inf")

    def __len__(self) -> int:
        return self.live

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (request for lane in self._lanes.values() for request in lane if request.state is RequestState.WAITING)

    def push(self, request: QueuedRequest, *, back: bool = False) -> None:
        """back: undo a `pop`."""
        lane = self._lanes[request.priority]
        (lane.appendleft if back else lane.append)(request)
        self.live += 1
        self._soonest = min(self._soonest, request.due)

    def pop(self) -> QueuedRequest | None:
        """Remove and return the next waiting request."""
        best, best_key = None, float("inf")
        for priority, lane in list(self._lanes.items()):
            while lane and lane[0].state is not RequestState.WAITING:
                lane.popleft()
                self._gaps -= 1
            if not lane:
                del self._lanes[priority]
                continue
            key = lane[0].queued_at - priority * self._age_s
            if key < best_key:
                best, best_key = lane, key
        if best is None:
            return None
        self.live -= 1
        return best.popleft()

    def dropped(self) -> None:
        """Count the place of a request that was cancelled or answered as a gap."""
        self.live -= 1
        self._gaps += 1
        if self._gaps > 32 and self._gaps > self.live:
            for priority, lane in list(self._lanes.items()):
                self._lanes[priority] = deque(r for r in lane if r.state is RequestState.WAITING)
            self._gaps = 0

    def hopeless(self, before: float) -> list[QueuedRequest]:
        """Remove all requests due before this time."""
        if self._soonest >= before:
            return []
        found = self._take_if(lambda request: request.due < before)
        self._soonest = min((request.due for request in self), default=float("inf"))
        return found

    def clear(self) -> list[QueuedRequest]:
        """Remove all requests."""
        return self._take_if(lambda request: True)

    def ahead(self, priority: int, now: float, came: float | None = None) -> int:
        """How many would run before a request of this priority that arrived now or at `came`."""
        total = 0
        for lane_priority, lane in self._lanes.items():
            if lane_priority >= priority and came is None:
                total += len(lane)
                continue
            came_before = (now if came is None else came) - (priority - lane_priority) * self._age_s
            for request in lane:
                if request.queued_at > came_before:
                    break
                total += 1
        return min(total, self.live)

    def _take_if(self, wanted: Callable[[QueuedRequest], bool]) -> list[QueuedRequest]:
        taken: list[QueuedRequest] = []
        for priority, lane in list(self._lanes.items()):
            kept: deque[QueuedRequest] = deque()
            for request in lane:
                if request.state is not RequestState.WAITING:
                    continue
                (taken if wanted(request) else kept).append(request)
            self._lanes[priority] = kept
        self._gaps = 0
        self.live -= len(taken)
        return taken


def hold(costs: Costs, returns: Returns, lanes: Lanes, now: float, *, late: bool = False) -> tuple[int, float]:
    """(how many to have queued, seconds to wait for them at most); (0, 0.0): run now.

    late: the usual return time has passed; whether the slower callers are worth waiting for.
    """
    count = len(lanes)
    if not 0 < count < costs.limit:
        return 0, 0.0
    expected, wait_s = returns.expected(now, late=late)
    expected = min(expected, costs.limit - count)
    if not costs.pays_to_wait(count, expected, wait_s):
        expected = costs.room(count)
        at_rate = None if late else returns.next_s(now, expected)
        if at_rate is None or not costs.pays_to_wait(count, expected, at_rate):
            return 0, 0.0
        wait_s = at_rate
    runs_s = costs.total(count + expected)
    slack = min((r.due for r in lanes if r.due != math.inf), default=math.inf) - now - runs_s
    return (count + expected, min(wait_s, slack)) if slack > 0 else (0, 0.0)


def would_hold(costs: Costs, returns: Returns, now: float) -> bool:
    """Whether a single request that came now would be held for returning callers."""
    expected, wait_s = returns.expected(now)
    expected = min(expected, costs.limit) - 1  # it is one of them itself
    return costs.pays_to_wait(1, expected, wait_s)


class Queue:
    """limit: requests that wait at most.
    begin: starts the worker; called with the first request, the mutex held.
    mutex: guards everything here.
    refusal: the error that refuses new requests.
    running: the batch that the worker took.
    counts: fate -> number of requests.
    held_s: seconds of holding.
    """

    def __init__(self, costs: Costs, limit: int, begin: Callable[[], object]) -> None:
        self.mutex = threading.Lock()
        self.lanes, self.returns = Lanes(), Returns()
        self.running: list[QueuedRequest] = []
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

    def push(self, request: QueuedRequest, *, idle: bool = False) -> None:
        """idle: nothing runs in a caller's thread. Raises QueueFull, and the refusal."""
        with self.mutex:
            if self.refusal is not None:
                raise copy(self.refusal)
            if len(self.lanes) >= self._limit:
                self.counts["refused"] += 1
                raise QueueFull(
                    f"the queue is full ({self._limit} requests)", do="Ask less often or raise ModelLimits(queue=)"
                )
            if self._begin is not None:
                self._begin()
                self._begin = None
            request.first = idle and not self.lanes.live and not self.running
            self.lanes.push(request)
            if self._batches:
                self.returns.came(request.queued_at, lone=request.first)
            if 0 < self._wanted <= len(self.lanes):
                self.wake()

    def drop(self, request: QueuedRequest, why: str) -> bool:
        """Remove a waiting request; False if it is running or done."""
        with self.mutex:
            if request.state is not RequestState.WAITING:
                return False
            request.state = RequestState.ENDED
            request.item = None
            self.counts[why] += 1
            self.lanes.dropped()
        return True

    def cancelled(self, promise: FutureRequest) -> None:
        """Drop a request that its caller cancelled."""
        if self.drop(promise, "cancelled"):
            promise.future.set_running_or_notify_cancel()

    def fail_all(self, error: EdgekitError, *, also: bool) -> None:
        """Fail all that wait; also: fail what runs, and refuse new requests."""
        with self.mutex:
            ended = self._ended(self.lanes.clear(), "failed")
            if also:
                self.refusal = error
                ended += [request for request in self.running if request.end()]
            self.wake()
        for request in ended:
            request.deliver(copy(error))

    # The worker's sleep.

    def wake(self) -> None:
        """Wake the worker, once for each sleep. The mutex is held.

        Release before reset: interrupted by Ctrl-C in between, the wake is not lost.
        """
        if self._wanted:
            with contextlib.suppress(RuntimeError):  # released already
                self._alarm.release()
            self._wanted = 0

    def sleep(self) -> bool:
        """Wait until something is queued; False if new requests are refused and none waits."""
        while True:
            with self.mutex:
                if self.lanes.live:
                    return True
                if self.refusal is not None:
                    return False
                self._wanted = 1
            self._alarm.acquire()

    def hold(self, clock: Callable[[], float]) -> None:
        """Wait for returning callers while that pays, first for the usual ones, then for the late."""
        if not self._batches:
            return
        for late in (False, True):
            with self.mutex:
                now = clock()
                refused = self.refusal is not None
                target, wait_s = (0, 0.0) if refused else hold(self._costs, self.returns, self.lanes, now, late=late)
                self._wanted = target
            if target:
                if not self._alarm.acquire(True, wait_s):
                    with self.mutex:
                        if not self._wanted:  # woken in this very moment
                            self._alarm.acquire()
                        elif late:
                            self.returns.missed()
                        self._wanted = 0
                self.held_s += clock() - now
                self.counts["held"] += 1

    # What runs next, and its end.

    def take(self, clock: Callable[[], float]) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        """(the best batch to run now, requests that cannot meet their deadline and must fail)."""
        costs, slack = self._costs, math.inf
        batch: list[QueuedRequest] = []
        late: list[QueuedRequest] = []
        with self.mutex:
            now = clock()
            want = costs.first(len(self.lanes))
            while len(batch) < want and (request := self.lanes.pop()) is not None:
                left = request.due - now
                if left <= 0 or (left < costs.seconds(1) and not request.first):
                    late.append(request)
                    continue
                if batch and costs.seconds(len(batch) + 1) > min(slack, left):
                    self.lanes.push(request, back=True)
                    break
                if request.begin():
                    batch.append(request)
                    slack = min(slack, left)
                else:
                    self.counts["cancelled"] += 1  # in this very moment
            if batch:
                late += self.lanes.hopeless(now + costs.seconds(len(batch)) + costs.seconds(1))
            late = self._ended(late, "expired")
            self.running = batch
        return batch, late

    def end(self, batch: Sequence[QueuedRequest], outcomes: Sequence[Outcome], clock: Callable[[], float]) -> None:
        """Deliver the batch's results, outside the gate: a callback may ask for the next inference."""
        ended: list[QueuedRequest] = []
        with self.mutex:
            for request, outcome in zip(batch, outcomes, strict=True):
                if request.end():
                    request.hand(outcome)
                    ended.append(request)
                    self.counts["failed"] += isinstance(outcome, BaseException)
            self.running = []
            if self._batches:
                self.returns.left(len(ended), clock())
            first = wake_all([request for request in ended if isinstance(request, WaitingCaller)])
        for one in first:
            one.wake()
        wake_loops([request for request in ended if isinstance(request, AwaitingTask)])
        for request in ended:
            if isinstance(request, FutureRequest) and request.outcome is not None:
                with contextlib.suppress(BaseException):  # of a callback that exits: it is not the others' fault
                    request.deliver(request.outcome)

    def _ended(self, waiting: list[QueuedRequest], why: str) -> list[QueuedRequest]:
        """End requests that were taken out, less those cancelled meanwhile. The mutex is held."""
        ended = [request for request in waiting if request.end()]
        self.counts[why] += len(ended)
        self.counts["cancelled"] += len(waiting) - len(ended)
        return ended


def expiry_error() -> BudgetExceeded:
    return BudgetExceeded(
        "the deadline passed, or could no longer be met, while the request queued",
        do="Give more time, ask less often, or use a smaller model",
    )

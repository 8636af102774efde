"""The micro-batcher: many callers, one engine, no waiting that does not pay.

    batcher = Batcher(run, costs)
    served = batcher.call(item)              # in the caller's own thread where nobody is before it
    future = batcher.submit(item, due=...)   # never blocks

How the engine is shared follows from what was measured (`Costs.mode`):
- barge: a run is short beside a hand-off. Callers run their own items one by one, and whoever is quick goes first; one that
  has waited for its patience is next.
- turns: batches gain nothing. Strictly in order, by one worker, so that nothing stands between two runs.
- batch: what queued while the engine was busy runs together; a batch is held for callers that are seen to come back, if that
  ends sooner than running without them.

Rules:
- a lone request waits for nobody and runs in its caller's thread; work for others never does: Ctrl-C hurts its receiver alone;
- the future exists before its request is queued, and every request ends exactly once;
- a cancelled caller never affects its batch-mates;
- an engine that fails on a batch runs its members alone, so that one bad input fails one request; each gets its own error;
- a request whose deadline can no longer be met is failed rather than run, and no batch grows past a member's deadline;
- a full queue refuses; a higher priority goes first, but none is overtaken for ever;
- `close()` drains, then fails what is left; `abandon()` fails all at once and forgets a run that does not end.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgekit_runtime.batching.costs import Costs, Mode
from edgekit_runtime.batching.fork import at_fork
from edgekit_runtime.batching.gate import Gate
from edgekit_runtime.batching.lanes import Lanes
from edgekit_runtime.batching.request import Outcome, Promise, Request, Served, State, Waiting, for_member, wake_all
from edgekit_runtime.batching.returns import Returns
from edgekit_runtime.errors import BudgetExceeded, ClosedError, EdgekitError, EngineError, ForkedError, QueueFull

__all__ = ["BatchStats", "Batcher"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Sequence[Item]], Sequence[Result]]

_served = tuple.__new__  # half of what the named tuple's own constructor takes

PATIENCE_HAND_OFFS = 5000
"""Barging: so many hand-offs long is a caller's patience. With 32 waiting, turns then take a hundredth of the time."""
LONGEST_PATIENCE_S = 0.05
_UNLEARNT: dict[Mode, int] = {"barge": 15, "turns": 3, "batch": 0}
"""Runs in callers' threads of which nothing is learnt, for each one of which something is: learning costs some microseconds."""
HEAL_S = 1.0
"""Where every deadline looked lost for so long, one request runs all the same: the estimate may be what is wrong."""


@dataclass(frozen=True)
class BatchStats:
    """batches: size -> how many ran. refused: QueueFull. expired: deadline lost. held_s: what holding took in all."""

    mode: Mode
    batches: dict[int, int]
    queued: int
    refused: int
    expired: int
    cancelled: int
    failed: int
    held: int
    held_s: float


class Batcher(Generic[Item, Result]):
    """run: takes 1..costs.limit items, returns as many results. It is never called by two threads at once.

    costs: what `learn` measured; without it every batch up to max_batch is taken to pay. queue_limit: requests that wait
    at most. clock: monotonic seconds. inline: False never runs in a caller's thread, so that `abandon` can answer every
    caller of an engine that hangs; a lone caller then pays two hand-offs. run_one: a shorter way for one item.
    """

    def __init__(
        self,
        run: Run[Item, Result],
        costs: Costs | None = None,
        *,
        max_batch: int = 1,
        queue_limit: int = 1024,
        clock: Callable[[], float] = time.perf_counter,
        inline: bool = True,
        run_one: Callable[[Item], Result] | None = None,
    ) -> None:
        if queue_limit < 1:
            raise ValueError(f"queue_limit must be at least 1, not {queue_limit}")
        self._run = run
        self._run_one = run_one or (lambda item: run((item,))[0])
        self._costs = Costs.assumed(max_batch) if costs is None else costs
        self._mode: Mode = self._costs.mode
        self._queue_limit = queue_limit
        self._clock = clock
        self._inline = inline
        self._barging = inline and self._mode == "barge"
        self._unlearnt = _UNLEARNT[self._mode]
        patience = PATIENCE_HAND_OFFS * self._costs.hand_off_s
        self._patience_s = min(LONGEST_PATIENCE_S, patience) if self._mode == "barge" else 0.0
        self._counts: Counter[str] = Counter()
        self._batches: Counter[int] = Counter()
        self._alone = 0  # runs in callers' threads
        self._held_s = 0.0
        self._fresh()
        at_fork(self)

    def _fresh(self) -> None:
        """The parts that hold locks and threads: made anew in a forked child."""
        self._gate = Gate(self._idle_since)
        self._mutex = threading.Lock()
        self._alarm = threading.Lock()
        self._alarm.acquire()
        self._wanted = 0  # the worker sleeps until so many are queued; 0: it is awake
        self._lanes = Lanes()
        self._returns = Returns()
        self._running: list[Request] = []
        self._started: float | None = None
        self._last_run = -math.inf
        self._refusal: EdgekitError | None = None
        self._worker: threading.Thread | None = None
        self._worker_id = 0
        self._main_id = threading.main_thread().ident

    # What callers use.

    def call(self, item: Item, *, due: float = math.inf, priority: int = 0) -> Served[Result]:
        """Run one item and return its result; in this thread when nobody is before it, else in its turn.

        due: of the batcher's clock, when the result is no longer wanted. priority: higher first; a level is worth a second
        of waiting. Raises what the engine raised, BudgetExceeded, QueueFull, ClosedError.
        """
        if self._barging and not priority:
            gate = self._gate
            if gate.line or not gate.acquire(False):
                return self._barge(item, due)
            try:  # as `_run_inline` does, without another call: a tiny network runs no longer than these lines
                if self._refusal is not None:
                    raise copy(self._refusal)
                self._started = start = self._clock()
                result = self._run_one(item)
                ran = self._clock() - start
                self._alone = alone = self._alone + 1
                if not alone & self._unlearnt:
                    self._learn_alone(start, ran)
                return _served(Served, (result, 0.0, ran, 1))
            finally:
                self._started = None
                if gate.line:
                    gate.leave()
                else:
                    gate.release()
                    if gate.line:
                        gate.released()
        if self._inline and not self._lanes and not self._would_hold() and self._gate.try_enter():
            self._came()
            return self._run_inline(item, 0.0)
        return self._wait_for(item, due, priority)

    def submit(self, item: Item, *, due: float = math.inf, priority: int = 0) -> Future[Served[Result]]:
        """Queue one item. Raises QueueFull, ClosedError; the future carries what comes later."""
        request = Promise(item, self._clock(), due, priority, self._cancelled)
        self._push(request)
        return request.future

    def expected_s(self, priority: int = 0) -> float:
        """Seconds from now until a request that comes now is predicted to be done; from the last runs and the queue."""
        now, started = self._clock(), self._started
        with self._mutex:
            ahead, running = self._lanes.ahead(priority, now), len(self._running)
        left = 0.0
        if started is not None:
            left = max(0.0, self._costs.total(max(1, running)) - (now - started))
        return left + self._costs.total(ahead + 1)

    @property
    def queued(self) -> int:
        return len(self._lanes)

    @property
    def running_s(self) -> float | None:
        """How long the present run lasts already; None when none does."""
        started = self._started
        return None if started is None else self._clock() - started

    def stats(self) -> BatchStats:
        with self._mutex:
            counts = self._counts
            return BatchStats(
                mode=self._mode,
                batches=dict(sorted((self._batches + Counter({1: self._alone})).items())),
                queued=len(self._lanes),
                refused=counts["refused"],
                expired=counts["expired"],
                cancelled=counts["cancelled"],
                failed=counts["failed"],
                held=counts["held"],
                held_s=self._held_s,
            )

    def abandon(self, error: EdgekitError) -> None:
        """The engine hangs: fail the running batch and all that wait, and refuse what comes, with this error.

        The thread in the engine is left alone; what it brings home late is dropped. A caller whose own thread is in the
        engine cannot be freed: it gets the error when the engine lets it go. See `inline`.
        """
        self._end_all(error, also=True)
        self._gate.shut_out()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Refuse new requests, drain for at most timeout_s, fail the rest, and end the worker. Idempotent.

        Returns True when nothing uses the engine any more, so that it may be freed.
        """
        end = time.monotonic() + timeout_s
        error = ClosedError("the model was closed", do="Open the bundle again")
        with self._mutex:
            self._refusal = self._refusal or error
            abandoned = not isinstance(self._refusal, ClosedError)
            worker = self._worker
            self._wake()
        own = worker is threading.current_thread()
        if abandoned and self._started is not None:
            end = time.monotonic()  # hung: nobody waits for it
        if worker is not None and not own:
            worker.join(max(0.0, end - time.monotonic()))
        self._end_all(error, also=False)
        if worker is not None and not own:
            worker.join(max(0.0, end - time.monotonic()))
        if not self._gate.enter(timeout_s=max(0.0, end - time.monotonic())):  # an inline call may still be running
            return False
        self._gate.leave()
        return own or worker is None or not worker.is_alive()

    def _idle_since(self) -> object:
        """What changes with every run; None during one."""
        return None if self._started is not None else (self._alone, self._last_run)

    # In the caller's own thread.

    def _barge(self, item: Item, due: float) -> Served[Result]:
        came = self._clock()
        timeout = None if due == math.inf else due - self._costs.seconds(1) - came
        if (timeout is not None and timeout <= 0) or not self._gate.enter(self._patience_s, timeout):
            if self._refusal is not None:
                raise copy(self._refusal)
            raise self._expired(1)
        return self._run_inline(item, self._clock() - came)

    def _run_inline(self, item: Item, queued_s: float) -> Served[Result]:
        """The gate was entered."""
        try:
            if self._refusal is not None:
                raise copy(self._refusal)
            self._started = start = self._clock()
            result = self._run_one(item)
            ran = self._clock() - start
            self._alone = alone = self._alone + 1
            if not alone & self._unlearnt:
                self._learn_alone(start, ran)
            return Served(result, queued_s, ran, 1)
        finally:
            self._started = None
            self._gate.leave()

    def _learn_alone(self, start: float, ran: float) -> None:
        """Still inside the gate: nobody else writes these."""
        self._last_run = start
        self._costs.observe(1, ran)
        if self._mode == "batch" and self._lanes:
            with self._mutex:
                self._returns.left(1, start + ran)

    def _would_hold(self) -> bool:
        """Whether the worker would hold this request, the only one, for callers that come back."""
        if self._mode != "batch" or not self._returns.away:
            return False
        expected, wait_s = self._returns.expected(self._clock())
        expected = min(expected, self._costs.limit) - 1  # it is one of them itself
        return self._costs.pays_to_wait(1, expected, wait_s)

    def _came(self) -> None:
        if self._mode == "batch" and self._returns.away:
            with self._mutex:
                self._returns.came(self._clock())

    def _wait_for(self, item: Item, due: float, priority: int) -> Served[Result]:
        if threading.get_ident() == self._worker_id:  # a callback that asks again must not wait for itself
            self._gate.enter()
            return self._run_inline(item, 0.0)
        request = Waiting(item, self._clock(), due, priority)
        request.leaf = threading.get_ident() == self._main_id  # Ctrl-C may strike it
        self._push(request)
        try:
            told = request.wait(None if due == math.inf else due - self._costs.seconds(1) - request.queued_at)
            if not told:
                if self._drop(request, "expired"):
                    raise self._expired(0)
                request.wait(None)  # it is running: late is better than never
        except BaseException:
            if not self._drop(request, "cancelled"):
                with self._mutex:
                    request.leaf = True
                request.pass_on()
            raise
        outcome = request.outcome
        if isinstance(outcome, Served):
            return outcome
        assert outcome is not None
        raise outcome

    # The queue.

    def _push(self, request: Request) -> None:
        with self._mutex:
            if self._refusal is not None:
                raise copy(self._refusal)
            if len(self._lanes) >= self._queue_limit:
                self._counts["refused"] += 1
                raise QueueFull(
                    f"{self._queue_limit} requests wait already",
                    do="Ask less often, or open the bundle with a longer queue",
                )
            self._lanes.push(request)
            if self._mode == "batch":
                self._returns.came(request.queued_at)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="edgekit-batcher", daemon=True)
                self._worker.start()
            if 0 < self._wanted <= len(self._lanes):
                self._wake()

    def _wake(self) -> None:
        """The mutex is held. One release for each sleep; in this order, so that Ctrl-C between the two loses none."""
        if self._wanted:
            with contextlib.suppress(RuntimeError):  # released already
                self._alarm.release()
            self._wanted = 0

    def _cancelled(self, promise: Promise) -> None:
        if self._drop(promise, "cancelled"):
            promise.future.set_running_or_notify_cancel()

    def _drop(self, request: Request, why: str) -> bool:
        """Take a request that still waits out of the queue; False where it is running or over."""
        with self._mutex:
            if request.state is not State.WAITING:
                return False
            request.state = State.ENDED
            request.item = None
            self._counts[why] += 1
            self._lanes.dropped()
        return True

    def _expired(self, count: int) -> BudgetExceeded:
        if count:
            with self._mutex:
                self._counts["expired"] += count
        return BudgetExceeded(
            "the deadline passed, or could no longer be met, while the request queued",
            do="Give more time, ask less often, or use a smaller model",
        )

    def _ended(self, waiting: list[Request], why: str) -> list[Request]:
        """End what was taken out of the queue, and count it; those that were not cancelled in this very moment. Mutex held."""
        ended = [request for request in waiting if request.end()]
        self._counts[why] += len(ended)
        self._counts["cancelled"] += len(waiting) - len(ended)
        return ended

    def _end_all(self, error: EdgekitError, *, also: bool) -> None:
        """Fail all that wait; also: and what runs, and refuse what comes."""
        with self._mutex:
            ended = self._ended(self._lanes.clear(), "failed")
            if also:
                self._refusal = error
                ended += [request for request in self._running if request.end()]
            self._wake()
        for request in ended:
            request.tell(copy(error))

    # The worker.

    def _work(self) -> None:
        self._worker_id = threading.get_ident()
        try:
            self._serve()
        except BaseException as error:
            self.abandon(EngineError(f"the batcher failed: {type(error).__name__}: {error}", do="Please report this"))
            raise

    def _serve(self) -> None:
        while self._sleep():
            if not self._gate.enter(self._patience_s):
                continue  # abandoned
            try:
                batch = self._gather()
                outcomes = self._perform(batch) if batch else []
            finally:
                self._gate.leave()
            self._deliver(batch, outcomes)  # outside the gate: a caller's callback may ask for the next inference

    def _sleep(self) -> bool:
        """Until something is queued; False when the batcher was closed and nothing is."""
        while True:
            with self._mutex:
                if self._lanes:
                    return True
                if self._refusal is not None:
                    return False
                self._wanted = 1
            self._alarm.acquire()

    def _gather(self) -> list[Request]:
        """The next batch, taken only once the engine is free, after holding it if that pays.

        First for those that come back as soon as usual; then, if some of them are missing and it still pays, for the late.
        """
        for late in (False, True):
            with self._mutex:
                now = self._clock()
                target, wait_s = self._hold(now, late)
                self._wanted = target
            if target:
                self._await(wait_s, late)
                self._held_s += self._clock() - now
                self._counts["held"] += 1
        return self._take()

    def _await(self, wait_s: float, late: bool) -> None:
        if self._alarm.acquire(True, wait_s):
            return
        with self._mutex:
            if not self._wanted:  # woken in this very moment
                self._alarm.acquire()
            elif late:
                self._returns.missed()
            self._wanted = 0

    def _hold(self, now: float, late: bool) -> tuple[int, float]:
        """(how many to have queued, seconds to wait for them at most); (0, 0.0): run now."""
        count = len(self._lanes)
        costs = self._costs
        if self._mode != "batch" or not 0 < count < costs.limit or self._refusal is not None:
            return 0, 0.0
        expected, wait_s = self._returns.expected(now, late=late)
        expected = min(expected, costs.limit - count)
        if not costs.pays_to_wait(count, expected, wait_s):
            expected = costs.room(count)
            at_rate = None if late else self._returns.next_s(now, expected)
            if at_rate is None or not costs.pays_to_wait(count, expected, at_rate):
                return 0, 0.0
            wait_s = at_rate
        runs_s = costs.total(count + expected)
        slack = min((r.due for r in self._lanes if r.due != math.inf), default=math.inf) - now - runs_s
        return (count + expected, min(wait_s, slack)) if slack > 0 else (0, 0.0)

    def _take(self) -> list[Request]:
        """As many as are best to run together, without those that cannot be met any more."""
        costs = self._costs
        batch: list[Request] = []
        late: list[Request] = []
        with self._mutex:
            now = self._clock()
            want, slack = costs.first(len(self._lanes)), math.inf
            while len(batch) < want and (request := self._lanes.pop()) is not None:
                left = request.due - now
                if left < costs.seconds(1) and not (left > 0 and now - self._last_run > HEAL_S):
                    late.append(request)
                    continue
                if batch and costs.seconds(len(batch) + 1) > min(slack, left):
                    self._lanes.put_back(request)
                    break
                if request.begin():
                    batch.append(request)
                    slack = min(slack, left)
                else:
                    self._counts["cancelled"] += 1  # in this very moment
            if batch:
                self._last_run = now
                late += self._lanes.hopeless(now + costs.seconds(len(batch)) + costs.seconds(1))
            late = self._ended(late, "expired")
            self._running = batch
        for request in late:
            request.tell(self._expired(0))
        return list(batch)

    def _perform(self, batch: list[Request]) -> list[Outcome]:
        """Run the batch; an outcome for each member."""
        outcomes = self._run_once(batch)
        if len(batch) == 1 or not isinstance(outcomes[0], Exception):
            return outcomes
        alone: list[Outcome] = []
        for request in batch:
            if request.state is State.ENDED:  # abandoned meanwhile
                alone.append(outcomes[0])
            else:
                alone += self._run_once([request])
        return alone

    def _run_once(self, batch: list[Request]) -> list[Outcome]:
        count = len(batch)
        start = self._started = self._clock()
        try:
            results = self._run([request.item for request in batch])
            if len(results) != count:
                raise RuntimeError(f"{count} items went in, {len(results)} results came out")
        except BaseException as error:  # noqa: BLE001 - every member must hear of it, and the worker must live
            return [for_member(error, member) for member in range(count)]
        finally:
            ran = self._clock() - start
            self._started = None
        self._batches[count] += 1
        self._costs.observe(count, ran)
        return [Served(result, start - r.queued_at, ran, count) for r, result in zip(batch, results, strict=True)]

    def _deliver(self, batch: list[Request], outcomes: list[Outcome]) -> None:
        with self._mutex:
            told = [(request, outcome) for request, outcome in zip(batch, outcomes, strict=True) if request.end()]
            self._running = []
            self._counts["failed"] += sum(isinstance(outcome, BaseException) for _, outcome in told)
            if self._mode == "batch":
                self._returns.left(len(told), self._clock())
            waiting = [request for request, _ in told if isinstance(request, Waiting)]
            for request, outcome in told:
                if isinstance(request, Waiting):
                    request.hand(outcome)
            first = wake_all(waiting)
        for one in first:
            one.wake()
        if len(waiting) == len(told):
            return
        for request, outcome in told:
            if isinstance(request, Waiting):
                continue
            with contextlib.suppress(BaseException):  # of a callback that exits: it is not the others' fault
                request.tell(outcome)

    def _after_fork(self) -> None:
        """In the child: the worker and whoever held a lock are not here. Nothing of the parent's is answered here."""
        waiting = [*self._running, *self._lanes]
        self._fresh()
        self._refusal = error = ForkedError(
            "the process was forked after the model was opened", do="Open the bundle in the child process"
        )
        for request in waiting:
            if isinstance(request, Promise):
                request.forked(copy(error))

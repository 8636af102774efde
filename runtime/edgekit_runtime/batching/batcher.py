"""The micro-batcher: many callers, one engine, no waiting that does not pay.

    batcher = Batcher(run, costs)
    served = batcher.call(item)              # in the caller's own thread if the queue is empty
    future = batcher.submit(item, due=...)   # never blocks

Rules:
- a single request runs in its caller's thread without waiting; no caller's thread works for others, so Ctrl-C hurts
  its receiver alone;
- the future exists before its request is queued, and every request ends exactly once;
- a cancelled caller never affects its batch-mates, and each member of a failed batch gets its own error;
- a full queue refuses; a higher priority goes first, but waiting counts, so that each request gets its turn;
- while the interpreter ends no worker runs: each caller runs its own item;
- `close()` drains, then fails the rest; `abandon()` fails all at once and forgets a run that does not end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from typing import Generic, TypeVar

from edgekit_runtime.batching.costs import Costs, Mode
from edgekit_runtime.batching.queue import Queue, expiry_error, would_hold
from edgekit_runtime.batching.queued_request import AwaitingTask, BatchResult, FutureRequest, WaitingCaller
from edgekit_runtime.batching.worker import Gate, Runs, Worker
from edgekit_runtime.system.errors import ClosedError, EdgekitError, model_closed
from edgekit_runtime.system.records import record
from edgekit_runtime.system.threads import is_exiting

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Sequence[Item]], Sequence[Result]]

PATIENCE_HAND_OFFS = 5000
"""Barging: a caller's patience in hand-offs. With 32 waiting, turns then take 1 % of it."""
LONGEST_PATIENCE_S = 0.05
LAST_S = 2.0
"""Seconds that a caller waits for the engine while the interpreter ends."""


@record(frozen=True)
class BatchStats:
    """batches: size -> how many ran.
    refused: requests that met a full queue.
    expired: requests that lost their deadline.
    held: batches that were held; held_s: seconds in all.
    """

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
    """How the engine is shared follows from the measured `Costs.mode`.

    barge: a run is short compared with a hand-off. Callers run their own items, the quickest first; one that has waited
    for its patience is next.
    turns: batches gain nothing. One worker runs the items in order.
    batch: items queued during a run go together; a batch is held for returning callers if that ends sooner.

    run: takes 1..costs.limit items, returns as many results. It is never called by two threads at once.
    costs: from `learn`.
    queue_limit: requests that wait at most.
    clock: monotonic seconds.
    inline: False never runs in a caller's thread, so that `abandon` can answer every caller of an engine that hangs, at
    the cost of two hand-offs a call.
    run_one: a shorter way for one item.
    """

    def __init__(
        self,
        run: Run[Item, Result],
        costs: Costs,
        *,
        queue_limit: int = 1024,
        clock: Callable[[], float] = time.perf_counter,
        inline: bool = True,
        run_one: Callable[[Item], Result] | None = None,
    ) -> None:
        if queue_limit < 1:
            raise ValueError(f"queue_limit must be at least 1, not {queue_limit}")
        self._costs, self.clock = costs, clock
        self._mode: Mode = costs.mode
        self.inline = inline
        self._barging, self.batches = inline and self._mode == "barge", self._mode == "batch"
        patience = PATIENCE_HAND_OFFS * costs.hand_off_s
        self._patience_s = min(LONGEST_PATIENCE_S, patience) if self._mode == "barge" else 0.0
        self.runs = Runs(run, run_one, costs, clock)
        self.gate = Gate(self.runs.idle_since)
        self.queue = Queue(costs, queue_limit, lambda: self._worker.begin())
        self._worker = Worker(self.queue, self.gate, self.runs, self._patience_s, self.abandon)
        self._main_id = threading.main_thread().ident

    # What callers use.

    def call(self, item: Item, *, due: float = math.inf, priority: int = 0) -> BatchResult:
        """Run one item and return its result, in this thread if the queue is empty.

        due: time on the batcher's clock after which the result is useless.
        priority: higher first; a level is worth a second of waiting.
        Raises what the engine raised, BudgetExceeded, QueueFull, ClosedError.
        """
        queue, barges = self.queue, self._barging and not priority
        if barges:
            first = True
        else:  # no request is ahead, and the worker would not hold this one, the only one, for those that come back
            first = self.inline and not queue.lanes.live
            if first and self.batches and queue.returns.away:
                first = not would_hold(self._costs, queue.returns, self.clock())
        if not first or not self.gate.try_enter():
            return self._barge(item, due) if barges else self._wait_for(item, due, priority)
        return self._run_inline(item, 0.0)

    def submit(self, item: Item, *, due: float = math.inf, priority: int = 0) -> Future[BatchResult]:
        """Queue one item. Raises QueueFull, ClosedError; the future carries later errors."""
        if is_exiting():
            future: Future[BatchResult] = Future()
            try:
                future.set_result(self._last(item))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)
            return future
        request = FutureRequest(item, self.clock(), due, priority, self.queue.cancelled)
        self.queue.push(request, idle=self.runs.started is None)
        return request.future

    async def wait(self, item: Item, *, due: float = math.inf, priority: int = 0) -> BatchResult:
        """As `call`, for a task of an event loop; without its item if the task is cancelled."""
        import asyncio

        if is_exiting():
            return self._last(item)
        request = AwaitingTask(item, self.clock(), due, priority, asyncio.get_running_loop())
        self.queue.push(request, idle=self.runs.started is None)
        try:
            return await request.future
        except BaseException:
            self.queue.drop(request, "cancelled")
            raise

    def ahead(self, priority: int = 0, came: float | None = None) -> tuple[float, float | None]:
        """(seconds of the requests queued before it, seconds that the present run lasts or None).

        came: the request's arrival on the batcher's clock; None for now.
        """
        now, queue = self.clock(), self.queue
        with queue.mutex:
            count = queue.lanes.ahead(priority, now, came)
        started = self.runs.started
        return self._costs.total(count) if count else 0.0, None if started is None else now - started

    @property
    def queued(self) -> int:
        return len(self.queue.lanes)

    def stats(self) -> BatchStats:
        queue, runs = self.queue, self.runs
        with queue.mutex:
            counts = queue.counts
            return BatchStats(
                mode=self._mode,
                batches=dict(sorted((runs.batches + Counter({1: runs.alone})).items())),
                queued=len(queue.lanes),
                held_s=queue.held_s,
                **{fate: counts[fate] for fate in ("refused", "expired", "cancelled", "failed", "held")},
            )

    def abandon(self, error: EdgekitError) -> None:
        """Fail the running batch and all that wait, and refuse new requests: the engine hangs.

        The thread in the engine is left alone and its result is dropped. A caller that is in the engine itself gets the
        error when the engine returns: see `inline`.
        """
        self.queue.fail_all(error, also=True)
        self.gate.shut_out()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Refuse new requests, drain for at most timeout_s, fail the rest, and end the worker.

        Idempotent. Returns True if nothing uses the engine any more, so that it may be freed.
        """
        end = time.monotonic() + timeout_s
        error, queue = model_closed(), self.queue
        with queue.mutex:
            queue.refusal = queue.refusal or error
            abandoned = not isinstance(queue.refusal, ClosedError)
            worker = self._worker.thread
            queue.wake()
        own = worker is threading.current_thread()
        if abandoned and self.runs.started is not None:
            end = time.monotonic()  # hung: no caller waits for it
        if worker is not None and not own:
            worker.join(max(0.0, end - time.monotonic()))
        queue.fail_all(error, also=False)
        if worker is not None and not own:
            worker.join(max(0.0, end - time.monotonic()))
        if not self.gate.enter(timeout_s=max(0.0, end - time.monotonic())):  # an inline call may still be running
            return False
        self.gate.leave()
        return own or worker is None or not worker.is_alive()

    # In the caller's own thread.

    def _barge(self, item: Item, due: float) -> BatchResult:
        if is_exiting():
            return self._last(item)
        came = self.clock()
        timeout = None if due == math.inf else due - self._costs.seconds(1) - came
        if (timeout is not None and timeout <= 0) or not self.gate.enter(self._patience_s, timeout):
            if self.queue.refusal is not None:
                raise copy(self.queue.refusal)
            with self.queue.mutex:
                self.queue.counts["expired"] += 1
            raise expiry_error()
        return self._run_inline(item, self.clock() - came)

    def _run_inline(self, item: Item, queued_s: float) -> BatchResult:
        """The caller has entered the gate."""
        runs = self.runs
        try:
            if self.queue.refusal is not None:
                raise copy(self.queue.refusal)
            if self.batches and self.queue.returns.away:
                with self.queue.mutex:
                    self.queue.returns.came(self.clock(), lone=True)
            runs.started = start = self.clock()
            result = runs.one(item)
            ran = self.clock() - start
            runs.alone = alone = runs.alone + 1
            if not alone & runs.unlearnt or ran < runs.quick_s:
                runs.learn(start, ran)
            if self.batches and self.queue.lanes.live:
                self.left(start + ran)
            return BatchResult(result, queued_s, ran, 1)
        finally:
            runs.started = None
            self.gate.leave()

    def left(self, now: float) -> None:
        """Note that a caller leaves while others wait: it may return."""
        with self.queue.mutex:
            self.queue.returns.left(1, now)

    def _wait_for(self, item: Item, due: float, priority: int) -> BatchResult:
        if threading.get_ident() == self._worker.ident:  # a callback that asks again must not wait for itself
            self.gate.enter()
            return self._run_inline(item, 0.0)
        if is_exiting():
            return self._last(item)
        request, queue = WaitingCaller(item, self.clock(), due, priority), self.queue
        request.leaf = threading.get_ident() == self._main_id  # Ctrl-C may strike it
        queue.push(request, idle=self.runs.started is None)
        needs_s = 0.0 if request.first else self._costs.seconds(1)
        try:
            ended = request.wait(None if due == math.inf else due - needs_s - request.queued_at)
            if not ended:
                if queue.drop(request, "expired"):
                    raise expiry_error()
                request.wait(None)  # it is running: late is better than never
        except BaseException:
            if not queue.drop(request, "cancelled"):
                with queue.mutex:
                    request.leaf = True
                request.pass_on()
            raise
        outcome = request.outcome
        if isinstance(outcome, BatchResult):
            return outcome
        assert outcome is not None
        raise outcome

    def _last(self, item: Item) -> BatchResult:
        """Run in the caller's thread during interpreter exit.

        A thread that was stopped may hold the engine for ever.
        """
        if not self.gate.enter(timeout_s=LAST_S):
            raise ClosedError(
                "the interpreter is exiting while another thread holds the engine", do="Close the model first"
            )
        return self._run_inline(item, 0.0)

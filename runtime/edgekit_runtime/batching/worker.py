"""The engine's side of a batcher: a gate for one thread, what runs inside, and the worker.

    worker = Worker(queue, gate, runs, patience_s, fallen=abandon)
    worker.begin()                          # by the queue, with the first request that has to wait

Rules:
- a thread that has waited at the gate for its patience joins a line, whose head is let in next;
- the next batch is taken only once the engine is free, so that it holds everything queued meanwhile;
- an engine that fails on a batch runs its members alone, so that one bad input fails one request, with its own error;
- small results of a batch are finished here: 32 callers that wake up would each hand the interpreter on for theirs;
- a worker that dies of anything but an engine's error fails all that wait.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from edgekit_runtime.batching.costs import OUTDATED, Costs, Mode
from edgekit_runtime.batching.queue import Queue, expiry_error
from edgekit_runtime.batching.queued_request import BatchResult, Outcome, QueuedRequest, RequestState, for_member
from edgekit_runtime.system.errors import EdgekitError, EngineError
from edgekit_runtime.system.threads import begin

LOOK_S = 0.1
LOST_LOOKS = 20
"""The gate counts as lost after so many looks in a row that show it taken but idle."""


class Gate:
    """A mutual exclusion with bounded starvation. Any thread may leave for the one that entered.

    A plain lock is fast because the running thread may take it again at once, and unfair for the same reason. Here a
    thread may do so until another has waited for its patience.

    progress: returns a value that changes with each run inside; None during a run.
    line, acquire: for a hot path without a call, which enters by `not line and acquire(False)`.
    """

    __slots__ = ("_lock", "_progress", "acquire", "line", "shut")

    def __init__(self, progress: Callable[[], object] | None = None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self.line: deque[threading.Lock] = deque()
        self.acquire = self._lock.acquire
        self.shut = False

    def try_enter(self) -> bool:
        return not self.line and self.acquire(False)

    def enter(self, patience_s: float = 0.0, timeout_s: float | None = None) -> bool:
        """Wait to enter: among all others for `patience_s`, then in line.

        False if `timeout_s` passed first, or the gate is shut.
        """
        if self.try_enter():
            return True
        patience = patience_s if timeout_s is None else min(patience_s, timeout_s)
        if patience > 0 and self.acquire(True, patience):  # while there is a line it is not released to the rest
            return True
        left = None if timeout_s is None else max(0.0, timeout_s - patience)
        return self._in_line(left)

    def leave(self) -> None:
        """Hand the gate to the head of the line, or free it."""
        if self.line and not self.shut:
            with contextlib.suppress(IndexError):  # they were sent away in this very moment
                self.line.popleft().release()  # the lock stays taken: it is theirs now
                return
        self._lock.release()
        if self.line:
            self.pass_on()

    def pass_on(self) -> None:
        """A thread may have joined the line unseen, just before the release."""
        if self.acquire(False):
            self.leave()

    def shut_out(self) -> None:
        """Turn away all waiters, now and later: the thread inside hangs."""
        self.shut = True
        while self.line:
            with contextlib.suppress(IndexError):
                self.line.popleft().release()

    def _in_line(self, timeout_s: float | None) -> bool:
        turn = threading.Lock()
        turn.acquire()
        self.line.append(turn)
        self.pass_on()  # it may have become free before anybody could see this place in the line
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
        """Wait for the turn.

        The head of the line takes it if the thread inside is gone: interrupted by Ctrl-C between two instructions, or
        without having learnt that the gate was its own.
        """
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
        """Leave the line; if the gate was handed over meanwhile, keep or pass it."""
        try:
            self.line.remove(turn)
        except ValueError:
            if self.shut:  # sent away, not let in
                return False
            if not keep:
                self.leave()
            return keep
        return False


_UNLEARNT: dict[Mode, int] = {"barge": 15, "turns": 3, "batch": 3}
"""A mask over single runs: only those at 0 are learnt from, for learning takes time."""


class Runs:
    """What runs now and for how long, and what each run teaches. Used inside the gate alone.

    started: when the present run began, None between runs.
    last_run: when the last one began that was learnt from.
    alone: runs in callers' threads.
    batches: size -> the worker's runs.
    unlearnt: see `_UNLEARNT`; a run below quick_s is learnt from always: the estimate is out of date.
    finish: what makes a member's result of its part of a batch; None leaves that to its caller.
    """

    __slots__ = (
        "alone", "batches", "clock", "costs", "finish", "last_run", "one", "quick_s", "run", "started", "unlearnt",
    )  # fmt: skip

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        one: Callable[[Any], Any] | None,
        costs: Costs,
        clock: Callable[[], float],
    ) -> None:
        self.run, self.one = run, one or (lambda item: run((item,))[0])
        self.costs, self.clock = costs, clock
        self.unlearnt = _UNLEARNT[costs.mode]
        self.finish: Callable[[Any], Any] | None = None
        self.alone = 0
        self.batches: Counter[int] = Counter()
        self.started: float | None = None
        self.last_run = -math.inf
        self.quick_s = OUTDATED * costs.seconds(1)

    def idle_since(self) -> object:
        """A value that changes with every run; None during one."""
        return None if self.started is not None else (self.alone, self.last_run)

    def running_s(self) -> float | None:
        """Seconds that the present run lasts already; None without one."""
        started = self.started
        return None if started is None else self.clock() - started

    def learn(self, start: float, ran: float) -> None:
        """From a run in a caller's thread, which is still inside the gate."""
        self.last_run = start
        self._observe(1, ran)

    def of(self, batch: Sequence[QueuedRequest]) -> list[Outcome]:
        """Run them together; if that fails, one by one."""
        outcomes = self._once(batch)
        if len(batch) == 1 or not isinstance(outcomes[0], Exception):
            return outcomes
        alone: list[Outcome] = []
        for request in batch:
            if request.state is RequestState.ENDED:  # abandoned meanwhile
                alone.append(outcomes[0])
            else:
                alone += self._once([request])
        return alone

    def _once(self, batch: Sequence[QueuedRequest]) -> list[Outcome]:
        count = len(batch)
        start = self.started = self.last_run = self.clock()
        try:
            results = self.run([request.item for request in batch])
            if len(results) != count:
                raise RuntimeError(f"{count} items in, {len(results)} results out")
        except BaseException as error:  # noqa: BLE001 - every member gets the error, and the worker must live
            return [for_member(error, member) for member in range(count)]
        finally:
            ran = self.clock() - start
            self.started = None
        self.batches[count] = runs = self.batches[count] + 1
        if self.costs.mode == "batch" or not runs & self.unlearnt or ran < self.quick_s:
            self._observe(count, ran)
        if count > 1 and self.finish is not None:
            try:
                results = [self.finish(result) for result in results]
            except Exception as error:  # noqa: BLE001 - as above
                return [for_member(error, member) for member in range(count)]
        return [BatchResult(result, start - r.queued_at, ran, count) for r, result in zip(batch, results, strict=True)]

    def _observe(self, count: int, ran: float) -> None:
        self.costs.observe(count, ran)
        self.quick_s = OUTDATED * self.costs.seconds(1)


class Worker:
    """The one thread that runs what waits.

    fallen: called with the reason if the worker dies.
    thread: None before it is needed.
    ident: its thread's, 0 before.
    """

    def __init__(
        self, queue: Queue, gate: Gate, runs: Runs, patience_s: float, fallen: Callable[[EdgekitError], object]
    ) -> None:
        self._queue, self._gate, self._runs = queue, gate, runs
        self._patience_s = patience_s
        self._fallen = fallen
        self.thread: threading.Thread | None = None
        self.ident = 0

    def begin(self) -> None:
        """Called once, by the queue that needs it."""
        thread = threading.Thread(target=self._work, name="edgekit-batcher", daemon=True)
        self.thread = thread if begin(thread) else None

    def _work(self) -> None:
        self.ident = threading.get_ident()
        clock = self._runs.clock
        try:
            while self._queue.sleep():
                if not self._gate.enter(self._patience_s):
                    continue  # abandoned
                try:
                    self._queue.hold(clock)
                    batch, late = self._queue.take(clock)
                    for request in late:
                        request.deliver(expiry_error())
                    outcomes = self._runs.of(batch) if batch else []
                finally:
                    self._gate.leave()
                self._queue.end(batch, outcomes, clock)
        except BaseException as error:
            self._fallen(EngineError(f"the batcher failed: {type(error).__name__}: {error}", do="Please report this"))
            raise

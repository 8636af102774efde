"""The micro-batcher: many callers, one engine, no waiting that does not pay.

    batcher = Batcher(run, max_batch=8)
    served = batcher.call(item)            # runs in the caller's own thread when the engine is idle
    future = batcher.submit(item)          # never blocks

Rules:
- the future exists before its request is queued;
- a lone request waits for nobody: it runs at once; a batch is what queued while the engine was busy, in order of arrival;
- a cancelled caller never affects its batch-mates;
- an error reaches every member of its batch, and the next batch runs all the same;
- `close()` lets the running batch finish, waits up to its time for the queue, then fails what is left with ClosedError;
- the engine is used by one thread at a time; the clock is monotonic and injected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from edgekit_runtime.errors import ClosedError

__all__ = ["Batcher", "Served", "batch_that_pays", "best_of"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Sequence[Item]], Sequence[Result]]


@dataclass(frozen=True)
class Served(Generic[Result]):
    """A result, how long it queued and how long its batch ran (seconds), and with how many others."""

    result: Result
    queued_s: float
    ran_s: float
    batch: int


@dataclass
class _Request(Generic[Item, Result]):
    item: Item
    queued_at: float
    future: Future[Served[Result]] = field(default_factory=Future)


class Batcher(Generic[Item, Result]):
    """run: takes 1..max_batch items, returns as many results. It is never called by two threads at once."""

    def __init__(
        self, run: Run[Item, Result], *, max_batch: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._clock = clock
        self._engine = threading.Lock()
        self._changed = threading.Condition()
        self._queue: deque[_Request[Item, Result]] = deque()
        self._busy = False
        self._closed = False
        self._worker: threading.Thread | None = None

    def call(self, item: Item) -> Served[Result]:
        """Run one item and return its result; in this thread when nobody is before it, else in its turn."""
        if not self._queue and not self._closed and self._engine.acquire(blocking=False):
            try:
                if not self._closed:
                    return self._run_alone(item)
            finally:
                self._engine.release()
        if threading.current_thread() is self._worker:  # a callback that asks again must not wait for itself
            with self._engine:
                return self._run_alone(item)
        return self.submit(item).result()

    def submit(self, item: Item) -> Future[Served[Result]]:
        """Queue one item. Raises ClosedError after close()."""
        request: _Request[Item, Result] = _Request(item, self._clock())
        with self._changed:
            if self._closed:
                raise _closed()
            self._queue.append(request)
            if self._worker is None or not self._worker.is_alive():  # not alive: this is a forked child
                self._worker = threading.Thread(target=self._work, name="edgekit-batcher", daemon=True)
                self._worker.start()
            self._changed.notify_all()
        return request.future

    @property
    def queued(self) -> int:
        return len(self._queue)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Refuse new requests, drain for at most timeout_s, fail the rest, and end the worker. Idempotent.

        Returns True when nothing uses the engine any more, so that it may be freed.
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while (self._queue or self._busy) and self._worker is not None:
                left = deadline - self._clock()
                if left <= 0 or not self._changed.wait(left):
                    break
            abandoned, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for request in abandoned:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(_closed())
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join(max(0.0, deadline - self._clock()))
        idle = self._engine.acquire(timeout=max(0.0, deadline - self._clock()))  # an inline call may still be running
        if idle:
            self._engine.release()
        return idle

    def _run_alone(self, item: Item) -> Served[Result]:
        start = self._clock()
        (result,) = self._run((item,))
        return Served(result, 0.0, self._clock() - start, 1)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed:
                        return
                    self._changed.wait()
                self._busy = True
            with self._engine:
                batch = self._take()
                settle = self._serve(batch)
            settle()  # outside the lock: a caller's callback may ask for the next inference
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _take(self) -> list[_Request[Item, Result]]:
        """Up to max_batch requests that were not cancelled, taken only once the engine is free."""
        batch: list[_Request[Item, Result]] = []
        with self._changed:
            while self._queue and len(batch) < self._max_batch:
                request = self._queue.popleft()
                if request.future.set_running_or_notify_cancel():
                    batch.append(request)
        return batch

    def _serve(self, batch: list[_Request[Item, Result]]) -> Callable[[], None]:
        """Run the batch; returns what tells its members."""
        start = self._clock()
        results: Sequence[Result] = ()
        failure: BaseException | None = None
        try:
            results = self._run([request.item for request in batch]) if batch else ()
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} items went in, {len(results)} results came out")
        except BaseException as error:  # noqa: BLE001 - every member must hear of it, and the worker must live
            failure = error
        ran = self._clock() - start

        def settle() -> None:
            if failure is not None:
                for request in batch:
                    request.future.set_exception(failure)
                return
            for request, result in zip(batch, results, strict=True):
                request.future.set_result(Served(result, start - request.queued_at, ran, len(batch)))

        return settle


def batch_that_pays(
    seconds: Callable[[int], float], *, sizes: Sequence[int] = (4, 16), least_gain: float = 1.25
) -> int:
    """The largest batch worth making, measured: `seconds(n)` is how long a batch of n takes.

    A batch of n pays when n single runs take at least `least_gain` times as long as it does. Convolutional nets on a CPU
    gain nothing (4 images cost 4 times one), small dense nets gain three times.
    """
    single, best = seconds(1), 1
    for size in sizes:
        if size * single < least_gain * seconds(size):
            break
        best = size
    return best


def best_of(run: Callable[[], object], times: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of a few runs: the least disturbed one."""
    seconds = []
    for _ in range(times):
        start = clock()
        run()
        seconds.append(clock() - start)
    return min(seconds)


def _closed() -> ClosedError:
    return ClosedError("the model was closed", do="Open the bundle again")

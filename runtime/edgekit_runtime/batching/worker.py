"""The worker: the one thread that runs what waits. It is begun with the first request that has to wait.

    worker = Worker(queue, gate, runs, patience_s, fallen=abandon)
    worker.begin()                          # by the queue

Rules:
- the next batch is taken only once the engine is free, so that it holds whatever queued meanwhile;
- results are told outside the gate: a caller's callback may ask for the next inference;
- a worker that falls, which no engine's error makes it do, fails all that wait rather than leave them waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgekit_runtime.batching.gate import Gate
from edgekit_runtime.batching.queue import Queue, expired
from edgekit_runtime.batching.request import Request
from edgekit_runtime.batching.runs import Runs
from edgekit_runtime.errors import EdgekitError, EngineError
from edgekit_runtime.threads import begin

__all__ = ["Worker"]


class Worker:
    """fallen: told why, where the worker falls. thread: None before it is needed. ident: its thread's, 0 before."""

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
        try:
            while self._queue.sleep():
                self._turn()
        except BaseException as error:
            self._fallen(EngineError(f"the batcher failed: {type(error).__name__}: {error}", do="Please report this"))
            raise

    def _turn(self) -> None:
        if not self._gate.enter(self._patience_s):
            return  # abandoned
        try:
            batch = self._gather()
            outcomes = self._runs.of(batch) if batch else []
        finally:
            self._gate.leave()
        self._queue.end(batch, outcomes, self._runs.clock)

    def _gather(self) -> list[Request]:
        """The next batch, after holding it if that pays."""
        clock = self._runs.clock
        self._queue.hold(clock)
        batch, late = self._queue.take(clock)
        for request in late:
            request.tell(expired())
        return batch

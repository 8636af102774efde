"""The board's own engine as a destination: adapt -> batcher -> engine -> finish, and what is learnt of it.

    device = Device(contract, prepared)
    outputs = device.finish(request, device.batcher.call(device.adapt(request, items)))

Rules:
- inputs are adapted before anything waits, so the caller may reuse its frame;
- what is expected of the device is the queue before a request and the last service times, never a guess;
- while it answers nobody, because hosts do or because it is refused, it runs a copy of a request now and then: only so
  is it known when it is fast again. One good inference is enough to be asked again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from time import perf_counter

from edgekit_runtime.batching import Batcher, BatchStats, Costs, Served, hand_off_s
from edgekit_runtime.budget import Learned, Prospect
from edgekit_runtime.contract.adapt import CLIP_EVERY, adapters
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.errors import ClosedError, EngineHung, QueueFull
from edgekit_runtime.options import check_number
from edgekit_runtime.readiness import Prepared
from edgekit_runtime.request import Items, Outputs, Request, Tensors
from edgekit_runtime.tensors import TensorSpec
from edgekit_runtime.watchdog import Watched, limit_s, watch

__all__ = ["Device"]

INLINE_BELOW_S = 0.01
"""An inference that takes less runs in its caller's own thread where nobody is before it. One that takes longer never
does: what two hand-offs cost is nothing beside it, and a caller can then be freed from an engine that hangs."""
WATCH_EVERY_S = 0.5
"""How often the device is tried while it answers nobody."""


class Device:
    """Thread-safe. queue_limit: requests that wait at most. hang_s: the longest an inference may take, None to find
    out.

    batcher: what runs the adapted tensors. clock: monotonic seconds, those of `Request.due`. ready: input tensors of
    the bundle's primary artifact, whose form callers may pass; None for the form of the artifact that runs.
    """

    def __init__(
        self,
        contract: Contract,
        prepared: Prepared,
        *,
        ready: Sequence[TensorSpec] | None = None,
        queue_limit: int = 1024,
        hang_s: float | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        entry, self.engine = prepared.entry, prepared.engine
        self._adapters = adapters(contract, entry.inputs, entry.inputs if ready is None else ready)
        self._adapted = count()
        self._finisher = Finisher(contract, entry.outputs)
        self._prepared = prepared
        self._learned = Learned(clock=clock)
        self._watching = threading.Lock()
        self._watch: Future[Served] | None = None
        self._throttle_s = 0.0
        free = all(tensor.free_batch for tensor in (*entry.inputs, *entry.outputs))
        self.costs = Costs(prepared.costs, fixed=not free, hand_off_s=hand_off_s())
        single_s = self._slowest_s = self.costs.seconds(1)
        self._learned.add(single_s * 1e3)
        self.batcher: Batcher[Tensors, Tensors] = Batcher(
            self._run,
            self.costs,
            queue_limit=queue_limit,
            clock=clock,
            inline=prepared.isolated or (single_s < INLINE_BELOW_S and hang_s is None),
            run_one=self._run_one,
        )
        self._hang_s = hang_s
        self._watched: Watched | None = None

    @property
    def hung(self) -> EngineHung | None:
        """Why nothing is answered here any more."""
        return self._watched.hung if self._watched is not None else None

    @property
    def queued(self) -> int:
        return self.batcher.queued

    def stats(self) -> BatchStats:
        return self.batcher.stats()

    def ways(self) -> dict[str, str]:
        """Input -> how pixels travel to the engine."""
        return {name: adapter.way for name, adapter in self._adapters}

    def prospect(self, priority: int = 0) -> Prospect:
        """What a request that came now would have to expect: the queue before it, and the last inferences."""
        queue_ms = max(0.0, self.batcher.expected_s(priority) - self.costs.seconds(1)) * 1e3
        expected_ms, p90_ms = self._learned.expected_ms, self._learned.p90_ms
        assert expected_ms is not None  # the warm-up was learnt from
        assert p90_ms is not None
        return Prospect(queue_ms + p90_ms, expected_ms=queue_ms + expected_ms)

    def adapt(self, request: Request, items: Items) -> Tensors:
        before = perf_counter()
        tensors = []
        for name, adapter in self._adapters:
            tensors.append(adapter(items[name]))  # a comprehension is a call before Python 3.12
        sample, rest = divmod(next(self._adapted), CLIP_EVERY)
        if not rest:
            for (_, adapter), tensor in zip(self._adapters, tensors, strict=True):
                clipped, seen = adapter.clipped(tensor, sample)
                if seen:
                    request.clipped = clipped, seen
        request.timings["adapt"] = (perf_counter() - before) * 1e3
        return tensors

    def finish(self, request: Request, served: Served) -> Outputs:
        """What the batcher gave as the contract's outputs; its times are noted and learnt from."""
        before = perf_counter()
        outputs = self._finisher(served.result)
        timings = request.timings
        timings["queue"], timings["engine"] = served.queued_s * 1e3, served.ran_s * 1e3
        timings["finish"] = (perf_counter() - before) * 1e3
        self._learned.add(served.ran_s * 1e3)
        self._slowest_s = max(self._slowest_s, served.ran_s)
        return outputs

    def watch(self, items: Items) -> None:
        """Run a copy of a request that the device does not answer, where nothing was learnt of it lately."""
        with self._watching:
            if self._learned.age_s < WATCH_EVERY_S or (self._watch is not None and not self._watch.done()):
                return
            try:
                self._watch = self.batcher.submit([adapter(items[name]) for name, adapter in self._adapters])
            except (ClosedError, QueueFull):
                return
        self._watch.add_done_callback(self._learn)

    def throttle(self, delay_ms: float) -> None:
        check_number("delay_ms", delay_ms)
        if not 0 <= delay_ms < math.inf:
            raise ValueError(f"delay_ms must be 0 or more, not {delay_ms}")
        self._throttle_s = delay_ms / 1e3

    def close(self, timeout_s: float) -> None:
        """Drain for at most timeout_s, fail the rest, and free the engine where nothing uses it any more."""
        idle = self.batcher.close(timeout_s)
        if self._watched is not None:
            self._watched.end()
        if idle:
            self._prepared.close()

    def _learn(self, done: Future[Served]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._learned.add(done.result().ran_s * 1e3)

    def _longest_s(self, slowest_s: float) -> float:
        return limit_s(slowest_s) if self._hang_s is None else self._hang_s

    def _run(self, batch: Sequence[Tensors]) -> Sequence[Tensors]:
        """One inference for the whole batch; the engine's outputs, a list an item."""
        self._before_run()
        return [self.engine.run(batch[0])] if len(batch) == 1 else self.engine.run_batch(batch)

    def _run_one(self, tensors: Tensors) -> Tensors:
        if self._throttle_s or self._watched is None:
            self._before_run()
        return self.engine.run(tensors)

    def _before_run(self) -> None:
        if self._watched is None and not self._prepared.isolated:
            self._watched = watch(
                lambda: self.batcher.running_s, lambda: self._slowest_s, self.batcher.abandon, self._longest_s
            )
        if self._throttle_s:
            time.sleep(self._throttle_s)

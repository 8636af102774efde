"""The board's own engine as a destination: adapt -> batcher -> engine -> finish.

    device = Device(contract, prepared)
    outputs = device.finish(request, device.batcher.call(device.adapt(request, items)))

Rules:
- inputs are adapted before anything waits, so the caller may reuse its frame;
- the expected latency is that of the queue and the last inferences;
- while hosts answer, or requests are refused, it runs a copy of a request now and then, to learn when it is fast again;
- an inference that ends after its caller has gone is learnt from, too.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from operator import itemgetter
from time import perf_counter

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import OUTDATED, Costs, hand_off_s
from edgekit_runtime.batching.queued_request import BatchResult
from edgekit_runtime.contract.adapt import CLIP_EVERY, Finisher, adapters, top_score
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.loading.readiness import PreparedEngine
from edgekit_runtime.policy.budget import DeviceOutlook, InferenceHistory
from edgekit_runtime.policy.options import check_number
from edgekit_runtime.serving.offload import WATCH_EVERY_S
from edgekit_runtime.serving.request import Items, Outputs, Request, Tensors
from edgekit_runtime.system.errors import ClosedError, EngineHung, QueueFull
from edgekit_runtime.system.watchdog import WatchedEngine, limit_s, watch

INLINE_BELOW_S = 0.01
"""A shorter inference runs in its caller's thread if the queue is empty.

For a longer one two hand-offs cost nothing, and its caller can be freed from an engine that hangs.
"""

ON_LOOP_S = 0.001
"""A shorter inference holds an event loop up no longer than passing it to another thread would."""

FINISHED_VALUES = 10_000
"""An answer of a batch with so many values at most is finished by the worker. Larger ones are by their callers, beside
the next run."""


class Device:
    """Thread-safe.

    ready: input tensors of the bundle's primary artifact, whose form callers may pass; None for those of the artifact
    that runs.
    queue_limit: requests that wait at most.
    hang_s: the longest an inference may take, None to find out.
    clock: monotonic seconds, those of `Request.due`.
    """

    def __init__(
        self,
        contract: Contract,
        prepared: PreparedEngine,
        *,
        ready: Sequence[TensorSpec] | None = None,
        queue_limit: int = 1024,
        hang_s: float | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        entry, self.engine = prepared.entry, prepared.engine
        self.adapters = adapters(contract, entry.inputs, entry.inputs if ready is None else ready)
        self.numbers, self._contract = count(), contract
        self.finisher = Finisher(contract, entry.outputs)
        self._prepared = prepared
        self._clock, self.learned = clock, InferenceHistory(clock=clock)
        self._watching = threading.RLock()  # what is submitted while the interpreter ends runs in this very thread
        self._watch: Future[BatchResult] | None = None
        self.throttle_s = 0.0
        free = all(tensor.free_batch for tensor in (*entry.inputs, *entry.outputs))
        self.costs = Costs(prepared.costs, fixed=not free, hand_off_s=hand_off_s())
        single_s = self.slowest_s = self.costs.seconds(1)
        self.learned.add(single_s * 1e3)
        self.batcher: Batcher[Tensors, Tensors] = Batcher(
            self._run,
            self.costs,
            queue_limit=queue_limit,
            clock=clock,
            inline=prepared.isolated or (single_s < INLINE_BELOW_S and hang_s is None),
            run_one=self._run_one,
        )
        if sum(math.prod(one.shape) for one in contract.outputs) <= FINISHED_VALUES:
            self.batcher.runs.finish = self.finisher
        self._hang_s = hang_s
        self._watched: WatchedEngine | None = None

    @property
    def hung(self) -> EngineHung | None:
        """Why this device no longer answers."""
        return self._watched.hung if self._watched is not None else None

    def ways(self) -> dict[str, str]:
        """Input -> how pixels travel to the engine."""
        return {name: adapter.way for name, adapter in self.adapters}

    def outlook(self, priority: int = 0, came: float | None = None) -> DeviceOutlook:
        """Expected latency of a request that arrives now or at `came`: the queue and an inference."""
        queue_s, elapsed_s = self.batcher.ahead(priority, came)
        learned = self.learned
        elapsed_ms = None if elapsed_s is None else elapsed_s * 1e3
        return DeviceOutlook(learned.ascending_ms, learned.latest_ms, queue_s * 1e3, elapsed_ms)

    @property
    def idle(self) -> bool:
        return self.batcher.runs.started is None and not self.batcher.queue.lanes.live

    def is_short(self) -> bool:
        """Whether an inference is below ON_LOOP_S, can begin at once, and gains by no batch."""
        brief = self.batcher.runs.quick_s < OUTDATED * ON_LOOP_S
        return brief and self.batcher.inline and not self.batcher.batches and self.idle

    def adapt(self, request: Request, items: Items) -> Tensors:
        before = perf_counter()
        tensors = []
        for name, adapter in self.adapters:
            tensors.append(adapter(items[name]))  # a comprehension is a call before Python 3.12
        sample, rest = divmod(next(self.numbers), CLIP_EVERY)
        if not rest:
            seen = [one.clipped(tensor, sample) for (_, one), tensor in zip(self.adapters, tensors, strict=True)]
            request.clipped = *max(seen, key=itemgetter(1)), None
        request.timings["adapt"] = (perf_counter() - before) * 1e3
        return tensors

    def finish(self, request: Request, served: BatchResult) -> Outputs:
        """The contract's outputs of a batcher's result; its times are noted and learnt from."""
        before = self._clock()
        outputs, timings = self.finish_late(served), request.timings
        timings["queue"], timings["engine"] = served.queued_s * 1e3, served.ran_s * 1e3
        timings["finish"] = (self._clock() - before) * 1e3
        if request.clipped is not None:
            request.clipped = *request.clipped[:2], top_score(outputs, self._contract)
        return outputs

    def finish_late(self, served: BatchResult) -> Outputs:
        """As `finish`, for a request whose caller has gone."""
        self.learned.add(served.ran_s * 1e3)
        self.slowest_s = max(self.slowest_s, served.ran_s)
        return self.finisher(served.result)

    def watch(self, items: Items) -> None:
        """Run a copy of a request that a host answers, to keep the device's times current."""
        with self._watching:
            if self.learned.age_s < WATCH_EVERY_S or (self._watch is not None and not self._watch.done()):
                return
            self._watch = self._copy(items)
        if self._watch is not None:
            self._watch.add_done_callback(self._learn)

    def run_beside(self, items: Items, done: Callable[[Outputs], None]) -> bool:
        """Run a request that a host answered, if the device is idle. Returns whether it is.

        done: gets the outputs.
        """
        served = self._copy(items) if self.idle else None
        if served is not None:
            served.add_done_callback(
                lambda ran: None if ran.cancelled() or ran.exception() else done(self.finish_late(ran.result()))
            )
        return served is not None

    def throttle(self, delay_ms: float) -> None:
        check_number("delay_ms", delay_ms)
        if not 0 <= delay_ms < math.inf:
            raise ValueError(f"delay_ms must be 0 or more, not {delay_ms}")
        with self._watching:
            self.throttle_s = delay_ms / 1e3
            self.batcher.runs.one = self._run_one

    def close(self, timeout_s: float) -> None:
        """Drain for at most timeout_s, fail the rest, and free the engine once it is unused."""
        idle = self.batcher.close(timeout_s)
        if self._watched is not None:
            self._watched.end()
        if idle:
            self._prepared.close()

    def _copy(self, items: Items) -> Future[BatchResult] | None:
        """Queue a request that no caller waits for; None if that is refused."""
        try:
            return self.batcher.submit([adapter(items[name]) for name, adapter in self.adapters])
        except (ClosedError, QueueFull):
            return None

    def _learn(self, done: Future[BatchResult]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.learned.add(done.result().ran_s * 1e3)

    def _run(self, batch: Sequence[Tensors]) -> Sequence[Tensors]:
        """One inference for the whole batch; the engine's outputs, a list an item."""
        self._before_run()
        return [self.engine.run(batch[0])] if len(batch) == 1 else self.engine.run_batch(batch)

    def _run_one(self, tensors: Tensors) -> Tensors:
        """Run the first item, or each throttled one; others go to the engine's own `run`."""
        self._before_run()
        with self._watching:
            if not self.throttle_s:
                self.batcher.runs.one = self.engine.run
        return self.engine.run(tensors)

    def _before_run(self) -> None:
        if self._watched is None and not self._prepared.isolated:
            self._watched = watch(
                self.batcher.runs.running_s,
                lambda: self.slowest_s,
                self.batcher.abandon,
                lambda slowest_s: limit_s(slowest_s) if self._hang_s is None else self._hang_s,
            )
        if self.throttle_s:
            time.sleep(self.throttle_s)

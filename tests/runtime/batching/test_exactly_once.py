"""Whatever happens to it, a request ends once: with its own result, its own error, or cancelled; never twice, never
never.

EDGEKIT_STRESS=1000000 runs the storm with so many futures instead of a few thousand.
"""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import CancelledError, wait
from time import perf_counter

import pytest
from gated import LONG, Gate, assumed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from property_examples import examples

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.system.errors import BudgetExceeded, ClosedError, EngineHung, QueueFull

STORM = int(os.environ.get("EDGEKIT_STRESS", "20000"))
COSTS = {
    "barge": lambda: Costs({1: 1e-6}, hand_off_s=20e-6),
    "turns": lambda: Costs({1: 1e-3}, hand_off_s=1e-6),
    "batch": lambda: assumed(16, single_s=1e-4),
    "fixed": lambda: Costs({1: 6e-4, 4: 1e-3, 16: 3e-3}, fixed=True),
}


class Futures(RuleBasedStateMachine):
    """One engine that stops between runs; callers submit, cancel, hurry and close in any order."""

    @initialize(costs=st.sampled_from(sorted(COSTS)), limit=st.integers(1, 6))
    def open(self, costs, limit):
        self.now = 0.0
        self.gate = Gate(closed=True)
        self.batcher = Batcher(self.gate, COSTS[costs](), queue_limit=limit, clock=lambda: self.now)
        self.asked = []
        self.ends = {}
        self.over = None
        self.limit = limit

    def _end(self, future):
        self.ends[future] = self.ends.get(future, 0) + 1

    @rule(item=st.sampled_from([1, 2, 3, "bad"]), priority=st.integers(-1, 1), due_in=st.sampled_from([None, 0.5, 2.0]))
    def submit(self, item, priority, due_in):
        due = float("inf") if due_in is None else self.now + due_in
        waiting = [future for _, future in self.asked if not (future.running() or future.done())]
        try:
            future = self.batcher.submit(item, due=due, priority=priority)
        except ClosedError:
            assert self.over is ClosedError
        except EngineHung:
            assert self.over is EngineHung
        except QueueFull:
            assert self.over is None
            assert len(waiting) >= self.limit, "some may have begun to run meanwhile"
        else:
            assert self.over is None
            assert self.batcher.queued <= self.limit
            future.add_done_callback(self._end)
            self.asked.append((item, future))

    @rule(which=st.integers(0, 99))
    def cancel(self, which):
        if self.asked:
            self.asked[which % len(self.asked)][1].cancel()

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def one_run_ends(self):
        self.gate.pass_one()

    @rule()
    def close(self):
        self.batcher.close(timeout_s=0.0)
        self.over = self.over or ClosedError

    @rule()
    def abandon(self):
        self.batcher.abandon(EngineHung("hangs"))
        self.over = EngineHung

    @invariant()
    def nothing_ends_twice(self):
        assert all(times == 1 for times in self.ends.values())

    def teardown(self):
        if not hasattr(self, "gate"):
            return
        self.gate.open.set()
        _, pending = wait([future for _, future in self.asked], LONG)
        assert not pending
        for item, future in self.asked:
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                assert future.result().result == item * 2
            elif isinstance(error, RuntimeError):
                assert item == "bad"
            else:
                assert isinstance(error, BudgetExceeded | ClosedError | EngineHung)
        assert not self.gate.overlapped
        if (
            self.over is EngineHung and self.batcher._worker.thread is not None
        ):  # close() waits for no engine that hangs
            self.batcher._worker.thread.join(LONG)
        assert self.batcher.close(LONG)
        assert self.batcher.queued == 0
        self.nothing_ends_twice()
        assert len(self.ends) == len(self.asked)


TestFutures = Futures.TestCase
TestFutures.settings = settings(
    max_examples=examples(60), stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


class Storm:
    """Threads that submit, call, cancel and hurry at random, and a tally of how each of their requests ended."""

    def __init__(self, batcher, requests):
        self.batcher = batcher
        self.lock = threading.Lock()
        self.tally = {}
        self.told = 0
        self.requests = requests

    def _count(self, end):
        with self.lock:
            self.tally[end] = self.tally.get(end, 0) + 1

    def _told(self, future):
        with self.lock:
            self.told += 1

    def work(self, seed):
        dice, mine = random.Random(seed), []
        for n in range(self.requests):
            item = seed * self.requests + n
            due = perf_counter() + dice.choice([0.0005, 10.0]) if dice.random() < 0.1 else float("inf")
            try:
                if dice.random() < 0.1:
                    assert self.batcher.call(item, due=due).result == -item
                    self._count("result")
                    continue
                future = self.batcher.submit(item, due=due, priority=dice.choice([0, 0, 0, 1]))
            except QueueFull:
                self._count("full")
                continue
            except BudgetExceeded:
                self._count("late")
                continue
            future.add_done_callback(self._told)
            mine.append((item, future))
            if dice.random() < 0.3:
                dice.choice(mine)[1].cancel()
            if len(mine) > 64:
                self.settle(mine)
        self.settle(mine)

    def settle(self, mine):
        for item, future in mine:
            try:
                assert future.result(2 * LONG).result == -item
                self._count("result")
            except CancelledError:
                self._count("cancelled")
            except BudgetExceeded:
                self._count("late")
        mine.clear()


@pytest.mark.parametrize("costs", sorted(COSTS))
def test_every_one_of_many_futures_completes_exactly_once(costs):
    ran, running = [], threading.Lock()

    def run(items):
        assert running.acquire(blocking=False), "two threads in the engine"
        ran.extend(items)
        running.release()
        return [-item for item in items]

    threads = 64
    batcher = Batcher(run, COSTS[costs](), queue_limit=512)
    storm = Storm(batcher, max(1, STORM // threads // len(COSTS)))
    workers = [threading.Thread(target=storm.work, args=(seed,)) for seed in range(1, threads + 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60 + STORM / 1000)
    assert not any(worker.is_alive() for worker in workers)
    assert sum(storm.tally.values()) == storm.requests * threads
    assert len(ran) == len(set(ran)) == storm.tally["result"], "what ran was answered, once"
    stats = batcher.stats()
    assert stats.cancelled == storm.tally.get("cancelled", 0)
    assert stats.refused == storm.tally.get("full", 0)
    assert stats.expired == storm.tally.get("late", 0)
    assert stats.queued == 0
    assert batcher.close(LONG)

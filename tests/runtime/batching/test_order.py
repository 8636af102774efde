"""Deadlines, priorities, a bounded queue, and what is held."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from gated import LONG, Gate, assumed, blocked, results

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.system.errors import BudgetExceeded, QueueFull

MS = 1e-3


class Clock:
    """Stands still until it is told; readable as a batcher's clock."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_higher_priority_runs_first():
    gate, batcher, first = blocked(max_batch=1)
    low, high = batcher.submit(2), batcher.submit(3, priority=1)
    gate.open.set()
    results([first, low, high])
    assert gate.batches == [[1], [3], [2]]
    batcher.close()


def test_a_low_priority_is_not_overtaken_by_what_comes_much_later():
    clock = Clock()
    gate, batcher, first = blocked(max_batch=1, clock=clock)
    low = batcher.submit(2)
    clock.now += 1.5
    high = batcher.submit(3, priority=1)
    gate.open.set()
    results([first, low, high])
    assert gate.batches == [[1], [2], [3]]
    batcher.close()


def test_a_request_whose_deadline_passed_in_the_queue_is_failed_and_not_run():
    clock = Clock()
    gate, batcher, first = blocked(clock=clock)
    late, patient = batcher.submit(2, due=clock() + 0.5), batcher.submit(3)
    clock.now += 1.0
    gate.open.set()
    with pytest.raises(BudgetExceeded):
        late.result(LONG)
    assert results([first, patient]) == [2, 6]
    assert gate.batches == [[1], [3]]
    assert batcher.stats().expired == 1
    batcher.close()


def test_a_request_that_cannot_wait_for_the_batch_before_it_is_failed_before_that_batch_runs():
    clock = Clock()
    costs = Costs({1: 0.1})
    gate = Gate(closed=True)
    batcher = Batcher(gate, costs, clock=clock)
    first = batcher.submit(1)
    gate.entered.acquire(timeout=LONG)
    second, third = batcher.submit(2), batcher.submit(3, due=clock() + 0.15)
    gate.pass_one()
    with pytest.raises(BudgetExceeded):
        third.result(LONG)
    assert not second.done(), "the engine is still busy with it"
    gate.open.set()
    assert results([first, second]) == [2, 4]
    batcher.close()


def test_no_batch_grows_past_a_members_deadline():
    clock = Clock()
    gate, batcher, first = blocked(costs=Costs({1: 0.1, 2: 0.15, 4: 0.25, 8: 0.45}), clock=clock)
    hurried = batcher.submit(2, due=clock() + 0.19)
    others = [batcher.submit(n) for n in range(3, 9)]
    gate.open.set()
    assert results([first, hurried, *others]) == [2 * n for n in range(1, 9)]
    assert gate.batches[1] == [2, 3], "three take longer than the first of them has left"
    batcher.close()


def test_a_caller_that_waits_in_its_own_thread_is_told_when_its_deadline_is_lost():
    gate, batcher, first = blocked()
    with pytest.raises(BudgetExceeded):
        batcher.call(2, due=batcher.clock() + 0.01)
    assert batcher.queued == 0
    gate.open.set()
    assert results([first]) == [2]
    batcher.close()


def test_a_request_that_found_the_engine_idle_runs_whatever_is_expected_of_it():
    """An estimate that came out too high must not refuse everything for ever."""
    clock = Clock()
    gate = Gate()
    batcher = Batcher(gate, Costs({1: 60.0}), clock=clock)
    assert batcher.submit(1, due=clock() + 1.0).result(LONG).result == 2
    with pytest.raises(BudgetExceeded):
        batcher.submit(2, due=clock() + 0.0).result(LONG)
    batcher.close()


def test_a_full_queue_refuses_at_once_and_what_it_holds_is_answered():
    gate, batcher, first = blocked(queue_limit=2)
    held = [batcher.submit(2), batcher.submit(3)]
    with pytest.raises(QueueFull, match=r"the queue is full \(2 requests\)"):
        batcher.submit(4)
    with pytest.raises(QueueFull):
        batcher.call(4)
    gate.open.set()
    assert results([first, *held]) == [2, 4, 6]
    assert batcher.stats().refused == 2
    batcher.close()


def test_cancelled_requests_take_no_place_in_the_queue():
    gate, batcher, first = blocked(queue_limit=2)
    for _ in range(1000):
        assert batcher.submit(2).cancel()
    kept = batcher.submit(3)
    gate.open.set()
    assert results([first, kept]) == [2, 6]
    assert batcher.stats().cancelled == 1000
    assert gate.batches == [[1], [3]]
    batcher.close()


def test_an_asyncio_caller_that_is_cancelled_harms_nobody():
    gate, batcher, first = blocked()

    async def ask(item):
        return (await asyncio.wrap_future(batcher.submit(item))).result

    async def main():
        tasks = [asyncio.create_task(ask(n)) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        gate.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(main())
    assert (answers[0], answers[2]) == (4, 8)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert results([first]) == [2]
    batcher.close()


def test_a_lone_caller_is_never_held_however_often_it_asks():
    batcher = Batcher(Gate(), assumed(8))
    for n in range(200):
        assert batcher.call(n).queued_s == 0.0
    assert batcher.stats().held == 0
    batcher.close()


@pytest.mark.parametrize("ask", ["call", "submit", "both"])
def test_a_lone_caller_waits_for_nobody_however_it_asks(ask):
    """Its inferences differ in length, so that it seems to come at a rate at which waiting for the next would pay."""
    clock, lengths = Clock(), [0.010, 0.010, 0.010, 0.0055]

    def run(items):
        clock.now += lengths[len(ran) % 4]
        ran.append(len(items))
        return items

    ran = []
    batcher = Batcher(run, Costs({1: 0.010, 2: 0.0101, 4: 0.0102}, hand_off_s=1e-6), clock=clock)
    for n in range(300):
        called = ask == "call" or (ask == "both" and n % 3 == 0)
        served = batcher.call(n) if called else batcher.submit(n).result(LONG)
        assert served.queued_s == 0.0
        clock.now += 0.0001
    stats = batcher.stats()
    assert (stats.held, stats.held_s) == (0, 0.0)
    assert ran == [1] * 300
    batcher.close()


def test_callers_that_come_back_together_are_batched_together():
    """Eight callers in a closed loop: after the first rounds they run as batches, whatever thread is quicker."""
    turns, callers = 40, 8
    sleeping = threading.Event()

    def run(items):
        sleeping.wait(0.002 + 0.0002 * len(items))
        return items

    batcher = Batcher(run, Costs({1: 2.2 * MS, 2: 2.4 * MS, 4: 2.8 * MS, 8: 3.6 * MS}))
    with ThreadPoolExecutor(callers) as pool:
        asked = [pool.submit(lambda: [batcher.call(n).result for n in range(turns)]) for _ in range(callers)]
        assert all(one.result(LONG) == list(range(turns)) for one in asked)
    stats = batcher.stats()
    assert sum(n * times for n, times in stats.batches.items()) == turns * callers
    assert sum(stats.batches.values()) < turns * callers / 2
    assert (stats.held_s > 0) == (stats.held > 0)
    batcher.close()


def test_in_turns_everybody_gets_the_same_share():
    """Eight callers of a net that gains nothing: strictly one after another, where a plain lock starves."""
    order, together, end = [], threading.Barrier(8), time.monotonic() + LONG

    def run(items):
        """Ends when all others wait, as late as the machine may wake them.

        The first runs in its caller's thread, and the worker may hold one of those that wait for it.
        """
        order.extend(items)
        others = 6 if len(order) == 1 else 7
        while len(order) < 200 and batcher.queued < others and time.monotonic() < end:
            time.sleep(0.0005)
        return items

    def ask(k):
        together.wait(LONG)
        for _ in range(40):
            batcher.call(k)

    batcher = Batcher(run, Costs({1: 1 * MS}, hand_off_s=5e-6))
    assert batcher.stats().mode == "turns"
    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(ask, k) for k in range(8)]:
            one.result(LONG)
    batcher.close()
    turn = order[1:9]
    assert sorted(turn) == list(range(8))
    assert order[1:193] == 24 * turn


def test_barging_callers_of_a_tiny_net_are_all_answered_and_futures_too():
    batcher = Batcher(Gate(), Costs({1: 2e-6}, hand_off_s=20e-6))
    assert batcher.stats().mode == "barge"
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: [batcher.call(n).result for n in range(300)]) for _ in range(8)]
        futures = [batcher.submit(n) for n in range(300)]
        assert all(one.result(LONG) == [2 * n for n in range(300)] for one in asked)
    assert results(futures) == [2 * n for n in range(300)]
    assert batcher.call(4, priority=3).result == 8
    assert batcher.call(4, due=batcher.clock() + LONG).result == 8
    batcher.close()


def test_a_barging_caller_is_told_when_its_deadline_is_lost():
    gate = Gate(closed=True)
    batcher = Batcher(gate, Costs({1: 2e-6}, hand_off_s=20e-6))
    inside = threading.Thread(target=batcher.call, args=(1,))
    inside.start()
    gate.entered.acquire(timeout=LONG)
    for due_in in (-1.0, 0.01):
        with pytest.raises(BudgetExceeded):
            batcher.call(2, due=batcher.clock() + due_in)
    gate.open.set()
    inside.join(LONG)
    assert batcher.call(3).result == 6
    batcher.close()


def test_the_queue_before_a_request_is_shorter_for_a_higher_priority_and_for_one_that_came_before():
    clock = Clock()
    gate = Gate(closed=True)
    batcher = Batcher(gate, Costs({1: 0.1}, hand_off_s=0.0), clock=clock)
    assert batcher.ahead() == (0.0, None)
    assert batcher.runs.running_s() is None
    futures = [batcher.submit(1)]
    gate.entered.acquire(timeout=LONG)
    for n in (2, 3):
        clock.now += 0.01
        futures.append(batcher.submit(n))
    clock.now += 0.02
    assert batcher.runs.running_s() == pytest.approx(0.04)
    assert batcher.ahead() == pytest.approx((0.2, 0.04))
    assert batcher.ahead(priority=1) == pytest.approx((0.0, 0.04))
    assert batcher.ahead(came=clock.now - 0.025) == pytest.approx((0.1, 0.04)), (
        "the second came before, the third after"
    )
    gate.open.set()
    results(futures)
    batcher.close()

"""Tasks of event loops in the batcher: a batch wakes a loop once, and none pays for another's end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
from gated import LONG, blocked

from edgekit_runtime.system.errors import BudgetExceeded, ClosedError


async def waiting_for(batcher, items, **options):
    """A task for each item, all of them queued."""
    tasks = [asyncio.ensure_future(batcher.wait(item, **options)) for item in items]
    before = batcher.queued
    while batcher.queued < before + len(tasks):
        await asyncio.sleep(0)
    return tasks


def counting_wakes(loop):
    """Counts how often another thread wakes the loop."""
    wakes, real = [], loop.call_soon_threadsafe

    def call_soon_threadsafe(callback, *arguments, context=None):
        wakes.append(callback)
        return real(callback, *arguments, context=context)

    loop.call_soon_threadsafe = call_soon_threadsafe
    return wakes


def test_a_batch_wakes_the_loop_once_and_makes_no_futures_of_threads(monkeypatch):
    gate, batcher, first = blocked(max_batch=32)
    made, real = [], Future.__init__
    monkeypatch.setattr(Future, "__init__", lambda self: made.append(1) or real(self))

    async def ask():
        wakes = counting_wakes(asyncio.get_running_loop())
        tasks = await waiting_for(batcher, range(32))
        gate.open.set()
        return [served.result for served in await asyncio.gather(*tasks)], len(wakes)

    assert asyncio.run(ask()) == ([2 * n for n in range(32)], 1)
    assert gate.batches == [[1], list(range(32))]
    assert made == []
    assert first.result(LONG).result == 2
    batcher.close()


def test_each_of_two_loops_is_woken_once_with_its_own_results():
    gate, batcher, _ = blocked(max_batch=32)
    queued, found = threading.Barrier(3), {}

    def loop_of(base):
        async def ask():
            wakes = counting_wakes(asyncio.get_running_loop())
            tasks = [asyncio.ensure_future(batcher.wait(base + n)) for n in range(8)]
            await asyncio.sleep(0)
            queued.wait(LONG)
            found[base] = [served.result for served in await asyncio.gather(*tasks)], len(wakes)

        asyncio.run(ask())

    threads = [threading.Thread(target=loop_of, args=(base,)) for base in (100, 200)]
    for thread in threads:
        thread.start()
    queued.wait(LONG)
    gate.open.set()
    for thread in threads:
        thread.join(LONG)
    assert found == {base: ([2 * (base + n) for n in range(8)], 1) for base in (100, 200)}
    assert [len(batch) for batch in gate.batches] == [1, 16]
    batcher.close()


@pytest.mark.parametrize("running", [False, True], ids=["while it waits", "while it runs"])
def test_a_cancelled_task_costs_its_batch_mates_nothing(running):
    gate, batcher, _ = blocked()

    async def ask():
        tasks = [asyncio.ensure_future(batcher.wait(n)) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        if running:
            gate.pass_one()
            assert gate.entered.acquire(timeout=LONG), "the batch of the three is in the engine"
        tasks[1].cancel()
        gate.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(ask())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [answers[0].result, answers[2].result] == [4, 8]
    assert gate.batches == [[1], [2, 3, 4] if running else [2, 4]]
    assert batcher.stats().cancelled == (0 if running else 1)
    batcher.close()


def test_each_task_of_a_failed_batch_gets_its_own_error():
    gate, batcher, _ = blocked()

    async def ask():
        tasks = await waiting_for(batcher, [2, "bad", 4])
        gate.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, bad, other = asyncio.run(ask())
    assert (good.result, str(bad), other.result) == (4, "the engine failed", 8)
    batcher.close()


def test_a_task_whose_time_is_over_is_refused_and_the_others_are_answered():
    gate, batcher, _ = blocked()

    async def ask():
        late = await waiting_for(batcher, [2], due=batcher.clock())
        tasks = await waiting_for(batcher, [3, 4])
        gate.open.set()
        return await asyncio.gather(*late, *tasks, return_exceptions=True)

    late, *others = asyncio.run(ask())
    assert isinstance(late, BudgetExceeded)
    assert [served.result for served in others] == [6, 8]
    batcher.close()


def test_closing_during_a_batch_ends_every_task():
    gate, batcher, _ = blocked(max_batch=2)

    async def ask():
        tasks = await waiting_for(batcher, range(6))
        closing = threading.Thread(target=batcher.close, args=(0.0,))
        closing.start()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        gate.open.set()
        closing.join(LONG)
        return answers

    assert all(isinstance(answer, ClosedError) for answer in asyncio.run(ask()))


def test_a_loop_that_was_closed_meanwhile_leaves_the_batcher_alive():
    gate, batcher, first = blocked()
    loop = asyncio.new_event_loop()
    task = loop.create_task(batcher.wait(2))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    last = batcher.submit(3)
    gate.open.set()
    assert (first.result(LONG).result, last.result(LONG).result) == (2, 6)
    batcher.close()

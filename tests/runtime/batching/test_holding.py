"""What is held, for whom and for how long: decided by values alone."""

from __future__ import annotations

import math

import pytest

from edgekit_runtime.batching.costs import Costs, Returns
from edgekit_runtime.batching.queue import Lanes, Queue, hold, would_hold
from edgekit_runtime.batching.queued_request import WaitingCaller

COSTS = Costs({1: 1e-3, 2: 1.05e-3, 4: 1.1e-3, 8: 1.2e-3}, hand_off_s=1e-6)


def waiting(count, due=math.inf):
    lanes = Lanes()
    for _ in range(count):
        lanes.push(WaitingCaller("x", 0.0, due, 0))
    return lanes


def coming_back(count, within_s=1e-4, now=1.0):
    """Callers that were answered at `now`, after coming back within that time ever since."""
    returns = Returns()
    for turn in range(20):
        at = now - (20 - turn) * 1e-2
        returns.left(count, at)
        for _ in range(count):
            returns.came(at + within_s)
    returns.left(count, now)
    return returns


def test_a_batch_is_held_for_those_that_come_back():
    target, wait_s = hold(COSTS, coming_back(7), waiting(1), 1.0)
    assert target == 8
    assert wait_s == pytest.approx(1e-4)


NOT_HELD = {
    "nobody waits": (COSTS, coming_back(7), waiting(0)),
    "the batch is full": (COSTS, coming_back(7), waiting(8)),
    "nobody is expected": (COSTS, Returns(), waiting(3)),
    "they come back later than a run takes": (COSTS, coming_back(7, within_s=5e-3), waiting(1)),
    "batches gain nothing": (Costs({1: 1e-3}), coming_back(7), waiting(1)),
    "the deadline leaves no time after the run": (COSTS, coming_back(7), waiting(1, due=1.0 + 1.2e-3)),
}


@pytest.mark.parametrize("case", NOT_HELD)
def test_nothing_is_held_where(case):
    assert hold(*NOT_HELD[case], 1.0) == (0, 0.0)


def test_a_deadline_shortens_the_wait():
    target, wait_s = hold(COSTS, coming_back(7), waiting(1, due=1.0 + 1.2e-3 + 5e-5), 1.0)
    assert target == 8
    assert wait_s == pytest.approx(5e-5, rel=0.1)


def test_a_lone_request_runs_at_once_unless_others_come_back():
    assert not would_hold(COSTS, Returns(), 1.0)
    assert not would_hold(COSTS, coming_back(1), 1.0)  # that one is itself
    assert would_hold(COSTS, coming_back(7), 1.0)


def test_what_was_held_and_for_how_long_is_counted():
    queue = Queue(COSTS, 8, begin=lambda: None)
    queue.push(WaitingCaller("x", 1.0, math.inf, 0))
    queue.returns = coming_back(7)
    seconds = iter([1.0, 1.25, 100.0])  # it waits for the seven from the first to the second; then nobody is expected
    queue.hold(lambda: next(seconds))
    assert (queue.counts["held"], queue.held_s) == (1, 0.25)

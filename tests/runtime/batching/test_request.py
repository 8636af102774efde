"""Waking many: every one is woken once, and nobody relies on a thread that may be interrupted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.batching.queued_request import WaitingCaller, wake_all


def woken(first):
    """All that wake when `first` do, each passing on as it would."""
    reached, now = [], list(first)
    while now:
        one = now.pop()
        reached.append(one)
        assert not (one.leaf and one.followers)
        now += one.followers
    return reached


@given(st.lists(st.booleans(), max_size=70))
def test_every_one_is_woken_exactly_once_and_leaves_wake_nobody(leaves):
    waiting = [WaitingCaller(None, 0.0, 0.0, 0) for _ in leaves]
    for one, leaf in zip(waiting, leaves, strict=True):
        one.leaf = leaf
    reached = woken(wake_all(waiting))
    assert len(reached) == len(set(map(id, reached))) == len(waiting)


def test_who_runs_the_engine_wakes_two_of_many():
    assert len(wake_all([WaitingCaller(None, 0.0, 0.0, 0) for _ in range(32)])) == 2


def test_a_caller_that_is_woken_passes_it_on_even_when_it_gave_up_waiting():
    one, other = (WaitingCaller(None, 0.0, 0.0, 0) for _ in range(2))
    one.followers = [other]
    assert one.wait(0.0) is False
    assert other.wait(0.0) is True

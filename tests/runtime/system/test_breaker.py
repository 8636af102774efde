"""The breaker as a table of what happens and when, and as laws that hold whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.system.breaker import Breaker


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def play(*steps, threshold=3):
    """steps: `ok`, `no`, `?` (may one go), or seconds that pass.

    Returns the answers to `?` and the state at the end.
    """
    clock = Clock()
    breaker = Breaker(threshold=threshold, shortest_s=0.25, longest_s=2.0, clock=clock)
    said = []
    for step in steps:
        if step == "?":
            said.append(breaker.allows())
        elif step == "ok":
            breaker.record_success()
        elif step == "no":
            breaker.failed()
        else:
            clock.now += step
    return said, breaker.state


T, F = True, False
TABLE = {
    "a new one lets everything through": (["?", "?"], [T, T], "closed"),
    "failures below the threshold change nothing": (["no", "no", "?"], [T], "closed"),
    "a success starts the count again": (["no", "no", "ok", "no", "no", "?"], [T], "closed"),
    "enough in a row open it": (["no", "no", "no", "?"], [F], "open"),
    "open for its time": (["no"] * 3 + [0.24, "?"], [F], "open"),
    "then one probe may go": (["no"] * 3 + [0.25, "?", "?", "?"], [T, F, F], "half-open"),
    "before anybody asks it is half-open too": (["no"] * 3 + [0.25], [], "half-open"),
    "a probe that succeeds closes it": (["no"] * 3 + [0.25, "?", "ok", "?", "?"], [T, T, T], "closed"),
    "and the count starts again": (["no"] * 3 + [0.25, "?", "ok", "no", "no"], [T], "closed"),
    "a probe that fails opens it for twice as long": (
        ["no"] * 3 + [0.25, "?", "no", 0.49, "?", 0.01, "?"], [T, F, T], "half-open"),
    "a success resets the waiting": (
        ["no"] * 3 + [0.25, "?", "no", 0.5, "?", "ok", "no", "no", "no", 0.25, "?"], [T, T, T], "half-open"),
    "late reports change nothing while it is open": (["no"] * 3 + ["no", "ok", "no", 0.2, "?"], [F], "open"),
    "a probe that never reports is forgotten": (["no"] * 3 + [0.25, "?", 1.9, "?", 0.1, "?"], [T, F, T], "half-open"),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "said", "state"), TABLE.values(), ids=TABLE.keys())
def test_the_table(steps, said, state):
    assert play(*steps) == (said, state)


def test_the_waiting_doubles_up_to_the_longest():
    clock = Clock()
    breaker = Breaker(threshold=1, shortest_s=0.25, longest_s=2.0, clock=clock)
    breaker.failed()
    for wait in (0.25, 0.5, 1.0, 2.0, 2.0, 2.0):
        clock.now += wait - 0.01
        assert not breaker.allows()
        clock.now += 0.01
        assert breaker.allows()
        breaker.failed()


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"shortest_s": 0.0}, {"shortest_s": 3.0}])
def test_settings_that_make_no_sense_are_the_callers_mistake(wrong):
    with pytest.raises(ValueError):
        Breaker(**wrong)


steps = st.lists(st.sampled_from(["ok", "no", "?"]) | st.floats(0, 3), max_size=60)


@given(steps, st.integers(1, 5))
def test_whatever_happened_it_closes_when_the_host_is_back(happened, threshold):
    """After any history, waiting out the longest time and one probe that succeeds closes it."""
    _, state = play(*happened, 2.0, "?", "ok", threshold=threshold)
    assert state == "closed"


@given(steps, st.integers(1, 5))
def test_a_host_that_is_down_gets_at_most_one_probe_each_wait(happened, threshold):
    """From opening on, with nothing but failures, the k-th probe comes no sooner than 0.25 * 2**k s after the one
    before.
    """
    clock = Clock()
    breaker = Breaker(threshold=threshold, shortest_s=0.25, longest_s=2.0, clock=clock)
    for _ in range(threshold):
        breaker.failed()
    last, wait = clock.now, 0.25
    for step in happened:
        if isinstance(step, float):
            clock.now += step
        elif breaker.allows():
            assert clock.now - last >= wait
            breaker.failed()
            last, wait = clock.now, min(2 * wait, 2.0)


@given(steps)
def test_fewer_failures_in_a_row_than_the_threshold_never_open_it(happened):
    kept, row = [], 0
    for step in happened:
        row = row + 1 if step == "no" else 0 if step == "ok" else row
        if row == 3:
            kept.append("ok")
            row = 1
        kept.append(step)
    said, state = play(*kept, threshold=3)
    assert all(said)
    assert state == "closed"

"""A gate whose holder is gone is taken over, and one whose holder is at work never."""

from __future__ import annotations

import threading

import pytest

from edgekit_runtime.batching import worker as module
from edgekit_runtime.batching.worker import Gate

LONG = 30


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    monkeypatch.setattr(module, "LOST_LOOKS", 5)


def test_a_gate_that_nobody_leaves_any_more_goes_to_the_head_of_the_line():
    gate = Gate(lambda: "nothing happens")
    assert gate.try_enter()  # and its holder was struck by Ctrl-C before it could do anything about it
    entered, order = [], threading.Lock()

    def enter(number):
        assert gate.enter(timeout_s=LONG)
        with order:
            entered.append(number)
        gate.leave()

    waiting = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    for one in waiting:
        one.start()
    for one in waiting:
        one.join(LONG)
    assert sorted(entered) == [0, 1, 2, 3]
    assert gate.try_enter()


@pytest.mark.parametrize(
    "progress", [lambda: None, iter(range(10**9)).__next__], ids=["a long run", "one after another"]
)
def test_a_gate_whose_holder_is_at_work_is_waited_for(progress):
    gate = Gate(progress)
    assert gate.try_enter()
    assert not gate.enter(timeout_s=0.3)
    gate.leave()
    assert gate.enter(timeout_s=LONG)
    gate.leave()

"""Functions that are called at a time: each once, in order, whatever another one does."""

from __future__ import annotations

import threading
from time import perf_counter

from edgekit_runtime.system.threads import Alarms

LONG = 20


def test_they_are_called_in_the_order_of_their_times():
    alarms, called, done = Alarms("edgekit-test"), [], threading.Event()
    now = perf_counter()
    for late_s, name in ((0.03, "third"), (0.01, "first"), (0.02, "second")):
        alarms.at(now + late_s, lambda name=name: called.append((name, perf_counter() - now)))
    alarms.at(now + 0.04, done.set)
    assert done.wait(LONG)
    alarms.close()
    assert [name for name, _ in called] == ["first", "second", "third"]
    assert all(at >= due for (_, at), due in zip(called, (0.01, 0.02, 0.03), strict=True))


def test_one_that_raises_stops_no_other(caplog):
    alarms, done = Alarms("edgekit-test"), threading.Event()
    alarms.at(perf_counter(), lambda: 1 / 0)
    alarms.at(perf_counter() + 0.01, done.set)
    assert done.wait(LONG)
    alarms.close()
    assert "division by zero" in caplog.text


def test_a_sooner_one_is_not_kept_waiting_by_a_later_one():
    alarms, done = Alarms("edgekit-test"), threading.Event()
    alarms.at(perf_counter() + 3600, lambda: None)
    alarms.at(perf_counter() + 0.01, done.set)
    assert done.wait(LONG)
    alarms.close()


def test_after_closing_nothing_is_called_and_no_thread_is_left():
    alarms, called = Alarms("edgekit-test"), []
    alarms.at(perf_counter() + 3600, lambda: called.append(1))
    alarms.close()
    alarms.at(perf_counter(), lambda: called.append(2))
    assert not called
    assert not [thread for thread in threading.enumerate() if thread.name == "edgekit-test"]

"""Work stops in the middle when its time is over, and only the work that the limit was set for."""

from __future__ import annotations

import threading

import pytest

from edgekit_converters.recipe.progress import TimeIsOverError, tick, time_limit


def over():
    raise TimeIsOverError


def test_a_loop_below_the_limit_stops_and_what_comes_after_goes_on():
    tick()
    with pytest.raises(TimeIsOverError), time_limit(over):
        tick()
    tick()


def test_the_inner_limit_counts_and_the_outer_one_comes_back():
    calls = []
    with time_limit(lambda: calls.append("outer")):
        with time_limit(lambda: calls.append("inner")):
            tick()
        tick()
    assert calls == ["inner", "outer"]


def test_no_converter_takes_it_for_a_failure():
    assert not issubclass(TimeIsOverError, Exception)


def test_other_threads_go_on():
    done = []

    def work():
        tick()
        done.append(True)

    with time_limit(over):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert done == [True]

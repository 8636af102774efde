"""Identical requests in flight share one inference, and every one of them hears how it ended."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from edgekit_runtime.cache.identity import Flights

OUTPUTS = {"y": np.zeros(1)}


def test_the_first_leads_and_the_others_follow():
    flights = Flights()
    assert flights.join("k")[1]
    followers = [flights.join("k") for _ in range(3)]
    assert not any(leads for _, leads in followers)
    flights.land("k", OUTPUTS)
    assert all(flight.result(0) is OUTPUTS for flight, _ in followers)


def test_another_key_is_another_flight():
    flights = Flights()
    assert flights.join("a")[1]
    assert flights.join("b")[1]


def test_an_error_reaches_every_follower():
    flights = Flights()
    flights.join("k")
    flight, _ = flights.join("k")
    flights.crash("k", RuntimeError("engine"))
    with pytest.raises(RuntimeError, match="engine"):
        flight.result(0)


@pytest.mark.parametrize("end", ["land", "crash"])
def test_a_key_is_free_again_after_its_flight(end):
    flights = Flights()
    flights.join("k")
    flights.land("k", OUTPUTS) if end == "land" else flights.crash("k", RuntimeError())
    assert flights.join("k")[1]


def test_a_follower_that_gives_up_harms_nobody():
    flights = Flights()
    flights.join("k")
    flight, _ = flights.join("k")
    assert not flight.cancel()
    flights.land("k", OUTPUTS)
    assert flight.result(0) is OUTPUTS


def test_of_many_threads_exactly_one_leads():
    flights, barrier = Flights(), threading.Barrier(8)
    got: list[tuple[Future, bool]] = []

    def join():
        barrier.wait()
        got.append(flights.join("k"))

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(leads for _, leads in got) == 1
    flights.land("k", OUTPUTS)
    assert all(leads or flight.result(0) is OUTPUTS for flight, leads in got)

"""What is known of a host, with a clock that only the test moves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit_runtime.remote.host_record import PROBE_S, PROVE_EVERY, STALE_S, HostRecord

SIZE = 150_528


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def record(clock):
    """A host that answered ten times in 12 ms."""
    made = HostRecord(clock)
    for _ in range(10):
        answered(made, clock, 12.0)
    return made


def answered(record, clock, ms, size=SIZE):
    sent = record.sent(size)
    clock.now += ms / 1e3
    record.answered(sent)


def probed_after(record, clock, step_s=0.01):
    """Seconds until it is to be probed."""
    began = clock.now
    while not record.probe():
        clock.now += step_s
        assert clock.now - began < 60
    return clock.now - began


def test_one_that_was_never_measured_is_not_ready_and_is_probed_at_once(clock):
    record = HostRecord(clock)
    assert not record.outlook(SIZE).ready
    assert record.probe()


def test_answers_count_for_requests_of_their_size(record, clock):
    for _ in range(5):
        answered(record, clock, 90.0, size=20 * SIZE)
    assert record.outlook(SIZE).chance(50.0) == 1.0
    assert record.outlook(20 * SIZE).chance(50.0) == 0.0
    assert record.outlook(1).chance(50.0) == 1.0, "unknown: the size that is known best"


def test_what_is_overdue_counts_as_missed_before_it_is_lost(record, clock):
    for _ in range(5):
        record.sent(SIZE)
    clock.now += 0.017
    assert record.outlook(SIZE).chance(200.0) == 1.0
    clock.now += 0.002  # half as long again as nine in ten answers took
    assert record.outlook(SIZE).chance(200.0) < 0.5


def test_an_answer_that_came_late_is_an_answer(record, clock):
    for _ in range(20):
        answered(record, clock, 400.0)
    assert record.healthy
    assert record.outlook(SIZE).chance(200.0) < 0.05
    assert record.outlook(SIZE).chance(500.0) == 1.0


def test_what_never_came_opens_the_breaker_and_a_probe_goes_within_half_a_second(record, clock):
    for _ in range(4):
        record.lost(record.sent(SIZE), "host-late")
    assert not record.outlook(SIZE).ready
    waits = []
    for _ in range(8):
        waits.append(probed_after(record, clock))
        record.lost(record.sent(SIZE), "host-unreachable")
    assert waits[0] == pytest.approx(0.1, abs=0.02)
    assert max(waits) <= 0.51
    probed_after(record, clock)
    answered(record, clock, 12.0)
    assert record.outlook(SIZE).ready


def test_a_503_closes_the_door_for_a_tenth_of_a_second_and_does_not_open_the_breaker(record, clock):
    for _ in range(20):
        record.lost(record.sent(SIZE), "host-busy")
    assert record.breaker.state == "closed"
    assert not record.outlook(SIZE).ready
    assert probed_after(record, clock) == pytest.approx(0.1, abs=0.02)


def test_after_a_second_of_503_it_is_asked_again_within_half_a_second(record, clock):
    until = clock.now + 1.0
    record.lost(record.sent(SIZE), "host-busy")
    while clock.now < until:
        probed_after(record, clock)
        if clock.now < until:
            record.lost(record.sent(SIZE), "host-busy")
    assert clock.now - until <= 0.5
    answered(record, clock, 12.0)
    assert record.outlook(SIZE).ready


def test_it_is_probed_four_times_a_second_while_it_matters_and_else_every_five_seconds(record, clock):
    assert probed_after(record, clock) == pytest.approx(STALE_S, abs=0.02)
    answered(record, clock, 12.0)
    record.matters()
    assert probed_after(record, clock) == pytest.approx(PROBE_S, abs=0.02)


def pinged(record, clock, ms):
    sent = record.sent(0)
    clock.now += ms / 1e3
    record.answered(sent)


@pytest.fixture
def known(clock):
    """A host with a round trip of 4 ms that takes 12 ms for SIZE, 8 of them by its own words, and 40 for 20 * SIZE."""
    made = HostRecord(clock)
    for _ in range(6):
        pinged(made, clock, 4.0)
        for size, ms in ((SIZE, 12.0), (20 * SIZE, 40.0)):
            sent = made.sent(size)
            clock.now += ms / 1e3
            made.answered(sent, host_ms=8.0)
    return made


def test_a_ping_says_what_an_answer_of_each_size_would_take(known, clock):
    for _ in range(20):
        pinged(known, clock, 24.0)
    for size, ms in ((SIZE, 32.0), (20 * SIZE, 60.0)):
        assert known.outlook(size).chance(ms + 0.1) == 1.0
        assert known.outlook(size).chance(ms - 0.1) < 0.1
    for _ in range(20):
        pinged(known, clock, 4.0)
    assert known.outlook(SIZE).chance(12.1) > 0.9


def test_a_ping_that_is_lost_counts_as_missed_and_four_of_them_open_the_breaker(known):
    known.lost(known.sent(0), "host-late")
    assert 0.8 < known.outlook(SIZE).chance(50.0) < 0.9
    for _ in range(3):
        known.lost(known.sent(0), "host-late")
    assert known.breaker.state == "open"


def test_pings_keep_a_breaker_closed_only_while_inferences_come_back(known, clock):
    for _ in range(10):
        known.lost(known.sent(0), "host-late")
        pinged(known, clock, 4.0)
    assert known.breaker.state == "closed"
    for _ in range(4):  # it takes connections, and computes nothing
        known.lost(known.sent(SIZE), "host-late")
        pinged(known, clock, 4.0)
    assert known.breaker.state == "open"


def test_a_host_that_answers_all_the_time_is_asked_for_its_example_beside_every_twentieth_answer(known, clock):
    seen = []
    for number in range(90):
        steps = known.probe()
        seen += [number] if steps == ("example",) else []
        answered(known, clock, 12.0)
    assert np.diff(seen).tolist() == [PROVE_EVERY] * (len(seen) - 1)
    assert len(seen) == 5  # twelve answers are known
    known.doubt()
    assert known.probe() == ("example",)


def test_a_host_whose_example_was_wrong_earns_its_trust_again(known, clock):
    known.lost(known.sent(SIZE), "host-golden")
    pinged(known, clock, 4.0)
    known.probe(proven=False)
    answered(known, clock, 12.0)  # the example, right again
    seen = []
    for number in range(60):
        seen += [number] if known.probe() == ("example",) else []
        answered(known, clock, 12.0)
    assert np.diff(seen).tolist() == [2, 4, 8, 16, PROVE_EVERY][: len(seen) - 1]


def after(record, clock, s=10.0):
    clock.now += s
    return record.probe()


def test_a_probe_is_a_ping_while_that_says_enough(known, clock):
    assert after(known, clock) == ("ping",)
    assert known.probe(proven=False) == ("ping", "example")
    assert HostRecord(clock).probe() == ("ping", "example")
    known.lost(known.sent(SIZE), "host-late")
    assert after(known, clock) == ("ping", "example")
    answered(known, clock, 12.0)
    assert after(known, clock) == ("ping",)
    known.lost(known.sent(SIZE), "host-busy")
    assert after(known, clock) == ("example",)


def test_a_host_that_is_slower_than_it_can_be_is_asked_for_its_example_and_a_slow_network_is_not(known, clock):
    for host_ms, steps in ((90.0, ("ping", "example")), (20.0, ("ping",))):
        sent = known.sent(SIZE, wanted_s=0.05)
        clock.now += 0.1  # too late for its caller
        known.answered(sent, host_ms=host_ms)
        assert after(known, clock) == steps
    sent = known.sent(SIZE, wanted_s=0.05)  # of a server that says nothing it may be either
    clock.now += 0.1
    known.answered(sent)
    assert after(known, clock) == ("ping", "example")


def test_one_fast_answer_shows_that_the_slow_ones_are_out_of_date(known, clock):
    for host_ms in (90.0, 90.0, 90.0, 90.0, 90.0, 8.0):
        sent = known.sent(SIZE)
        clock.now += (host_ms + 4.0) / 1e3
        known.answered(sent, host_ms=host_ms)
    for _ in range(20):
        pinged(known, clock, 4.0)
    assert known.outlook(SIZE).chance(13.0) > 0.9


def test_an_answer_that_was_overtaken_is_no_news(known, clock):
    first, second = known.sent(SIZE), known.sent(SIZE)
    clock.now += 0.012
    known.answered(second, host_ms=8.0)
    known.lost(first, "host-late")
    assert after(known, clock) == ("ping",)


def test_while_the_breaker_is_open_only_a_ping_that_came_back_is_followed_by_an_example(known, clock):
    for _ in range(4):
        known.lost(known.sent(SIZE), "host-unreachable")
    assert after(known, clock) == ("ping", "example")
    pinged(known, clock, 4.0)
    assert known.breaker.state == "half-open"
    assert not known.outlook(SIZE).ready
    answered(known, clock, 12.0)
    assert known.outlook(SIZE).ready


def test_what_is_on_its_way_is_probe_enough(record, clock):
    record.matters()
    clock.now += PROBE_S - 0.05
    record.sent(SIZE)
    clock.now += 0.1
    assert not record.probe()


def test_answers_count_in_the_order_in_which_they_were_asked_for(record, clock):
    first, second = record.sent(SIZE), record.sent(SIZE)
    clock.now += 0.012
    record.answered(second)
    record.lost(first, "host-late")
    assert [math.isinf(ms) for ms in record.outlook(SIZE).answers_ms] == [False] * 10 + [True, False]


def test_the_ninetieth_percentile_is_of_what_came(record):
    assert record.p90_ms == pytest.approx(12.0)
    for _ in range(30):
        record.lost(record.sent(SIZE), "host-late")
    assert record.p90_ms is None
    assert HostRecord().p90_ms is None


def test_a_probe_that_is_lost_never_stands_before_the_next_for_long(record, clock):
    assert HostRecord(clock).probe_s == 2.0  # never measured: it may have to load its model
    assert record.probe_s == 0.5
    for _ in range(4):
        record.lost(record.sent(SIZE), "host-late")
    assert record.probe_s == 0.5
    for _ in range(30):
        answered(record, clock, 800.0)
    assert record.probe_s == pytest.approx(1.2)


def test_a_host_that_owes_answers_to_callers_that_have_gone_is_asked_nothing_more(record, clock):
    owed = [record.sent(SIZE, wanted_s=0.2) for _ in range(8)]
    clock.now += 0.19
    assert record.outlook(SIZE).ready
    clock.now += 0.02
    assert not record.outlook(SIZE).ready
    record.answered(owed[0])
    assert record.outlook(SIZE).ready

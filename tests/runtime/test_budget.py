"""Where a request goes, as a table; what was learnt, with an injected clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.budget import JUDGED_FOR_S, Learned, Prospect, decide

FAST, SLOW, UNKNOWN, DOWN = Prospect(10.0), Prospect(90.0), Prospect(None), Prospect(5.0, ready=False)


@pytest.mark.parametrize(
    ("left_ms", "device", "hosts", "destination", "host"),
    [
        (None, SLOW, [FAST], "device", None),
        (50.0, UNKNOWN, [FAST], "device", None),
        (50.0, FAST, [Prospect(1.0)], "device", None),
        (10.0, FAST, [Prospect(1.0)], "device", None),
        (50.0, SLOW, [FAST], "host", 0),
        (50.0, SLOW, [Prospect(20.0), FAST], "host", 1),
        (50.0, SLOW, [DOWN, Prospect(20.0)], "host", 1),
        (50.0, SLOW, [UNKNOWN, FAST], "host", 1),
        (50.0, SLOW, [DOWN], "neither", None),
        (50.0, SLOW, [UNKNOWN], "neither", None),
        (50.0, SLOW, [Prospect(60.0)], "neither", None),
        (50.0, SLOW, [], "neither", None),
        (50.0, Prospect(90.0, expected_ms=40.0), [], "device", None),
        (50.0, Prospect(90.0, expected_ms=40.0), [FAST], "host", 0),
        (50.0, Prospect(90.0, expected_ms=60.0), [Prospect(60.0)], "neither", None),
        (0.0, FAST, [FAST], "neither", None),
    ],
)
def test_the_rules(left_ms, device, hosts, destination, host):
    decision = decide(left_ms, device, hosts)
    assert (decision.destination, decision.host) == (destination, host)


@pytest.mark.parametrize(
    ("left_ms", "device", "hosts", "predicted_ms", "fits"),
    [
        (None, SLOW, [], 90.0, None),
        (50.0, FAST, [], 10.0, True),
        (50.0, SLOW, [Prospect(20.0), FAST], 10.0, True),
        (50.0, Prospect(90.0, expected_ms=40.0), [], 90.0, False),
        (5.0, Prospect(90.0, expected_ms=40.0), [Prospect(60.0), FAST], 10.0, False),
        (5.0, Prospect(90.0, expected_ms=40.0), [Prospect(60.0), DOWN], 40.0, False),
    ],
)
def test_what_is_predicted_and_whether_it_fits(left_ms, device, hosts, predicted_ms, fits):
    decision = decide(left_ms, device, hosts)
    assert (decision.predicted_ms, decision.fits) == (predicted_ms, fits)


PROSPECTS = st.builds(Prospect, st.one_of(st.none(), st.floats(0, 200)), st.booleans())
DEVICES = st.builds(
    Prospect, st.one_of(st.none(), st.floats(0, 200)), expected_ms=st.one_of(st.none(), st.floats(0, 200))
)


@given(st.one_of(st.none(), st.floats(-10, 200)), DEVICES, st.lists(PROSPECTS, max_size=4))
def test_what_fits_is_never_refused_and_what_is_asked_fits(left_ms, device, hosts):
    decision = decide(left_ms, device, hosts)
    if decision.destination == "host":
        chosen = hosts[decision.host]
        assert chosen.ready
        assert chosen.p90_ms == decision.predicted_ms <= left_ms < device.p90_ms
    if decision.destination == "neither":
        assert device.p90_ms > left_ms
        assert device.expected_ms is None or device.expected_ms > left_ms
        assert all(not h.ready or h.p90_ms is None or h.p90_ms > left_ms for h in hosts)
    if decision.fits:
        assert decision.predicted_ms <= left_ms


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_nothing_learnt_predicts_nothing():
    assert Learned().p90_ms is None
    assert Learned().age_s == math.inf


def test_the_ninetieth_percentile_of_the_window():
    learned = Learned(window=10)
    for ms in range(1, 21):
        learned.add(float(ms))
    assert learned.p90_ms == 19.0  # of 11..20


def test_what_is_expected_is_the_median_or_the_last_one_if_that_is_smaller():
    clock = Clock()
    learned = Learned(clock=clock)
    assert learned.expected_ms is None
    expected = []
    for ms in (20.0, 30.0, 25.0, 90.0, 10.0):
        learned.add(ms)
        clock.now += 2 * JUDGED_FOR_S
        expected.append(learned.expected_ms)
    assert expected == [20.0, 30.0, 25.0, 30.0, 10.0], "of two in the middle the greater one"


def test_quantiles_this_young_are_not_worked_out_again():
    clock = Clock()
    learned = Learned(clock=clock)
    clock.now = 1.0
    learned.add(10.0)
    assert learned.p90_ms == 10.0
    learned.add(20.0)
    clock.now += 0.9 * JUDGED_FOR_S
    assert learned.p90_ms == 10.0
    clock.now += 0.2 * JUDGED_FOR_S
    assert learned.p90_ms == 20.0


def test_a_latency_counts_until_its_age_is_over():
    clock = Clock()
    learned = Learned(max_age_s=5.0, clock=clock)
    learned.add(100.0)
    clock.now = 5.0
    learned.add(10.0)
    assert learned.p90_ms == 100.0


def test_old_latencies_stop_counting_when_newer_ones_come():
    clock = Clock()
    learned = Learned(max_age_s=5.0, clock=clock)
    for _ in range(40):
        learned.add(100.0)
    clock.now = 6.0
    assert learned.p90_ms == 100.0  # nothing newer is known
    learned.add(10.0)
    assert learned.age_s == 0.0
    clock.now += JUDGED_FOR_S
    assert learned.p90_ms == 10.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=80))
def test_nine_of_ten_do_not_exceed_it(values):
    learned = Learned(window=80, max_age_s=1e9)
    for value in values:
        learned.add(value)
    assert sum(value <= learned.p90_ms for value in values) >= 0.9 * len(values)
    assert learned.p90_ms in values

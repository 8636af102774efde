"""Where a request goes, as a table; what was learnt, with an injected clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.policy.budget import (
    JUDGED_FOR_S,
    SURE,
    DeviceOutlook,
    HedgeTokens,
    HostOutlook,
    InferenceHistory,
    decide,
)

LOST = math.inf
FAST, SLOW = DeviceOutlook((10.0,) * 10), DeviceOutlook((90.0,) * 10)
HALF = DeviceOutlook((40.0,) * 5 + (60.0,) * 5)
NEAR, FAR, HALF_LOST = HostOutlook((10.0,) * 10), HostOutlook((90.0,) * 10), HostOutlook((10.0, LOST) * 15)
DOWN, UNKNOWN = HostOutlook((10.0,) * 10, ready=False), HostOutlook((), ready=False)


@pytest.mark.parametrize(
    ("left_ms", "device", "hosts", "token", "destination", "host"),
    [
        (None, SLOW, [NEAR], True, "device", None),
        (50.0, FAST, [NEAR], True, "device", 0),
        (10.0, FAST, [NEAR], True, "device", 0),
        (50.0, SLOW, [NEAR], True, "host", 0),
        (50.0, SLOW, [FAR, NEAR], True, "host", 1),
        (50.0, SLOW, [DOWN, NEAR], True, "host", 1),
        (50.0, HALF, [NEAR], True, "host", 0),
        (50.0, HALF, [FAR], True, "device", 0),
        (50.0, HALF, [HALF_LOST], False, "device", 0),
        (50.0, HALF, [HALF_LOST], True, "both", 0),
        (50.0, SLOW, [HALF_LOST], True, "host", 0),
        (50.0, SLOW, [FAR], True, "host", 0),  # no hope anywhere: the host, as a probe
        (50.0, SLOW, [DOWN], True, "neither", None),
        (50.0, SLOW, [UNKNOWN], True, "neither", None),
        (50.0, SLOW, [], True, "neither", None),
        (50.0, HALF, [], True, "neither", None),  # of two in the middle the greater one
        (50.0, DeviceOutlook((40.0,) * 6 + (60.0,) * 4), [], True, "device", None),
        (50.0, DeviceOutlook((90.0,) * 9, latest_ms=40.0), [], True, "device", None),
        (0.0, FAST, [], True, "neither", None),
    ],
)
def test_the_rules(left_ms, device, hosts, token, destination, host):
    decision = decide(left_ms, device, hosts, token=token)
    assert (decision.destination, decision.host) == (destination, host)


@pytest.mark.parametrize(
    ("left_ms", "device", "hosts", "degraded", "destination"),
    [
        (50.0, SLOW, [], FAST, "degraded"),
        (50.0, SLOW, [DOWN], FAST, "degraded"),
        (50.0, SLOW, [], HALF, "neither"),  # it is not sure either
        (5.0, SLOW, [], FAST, "neither"),
        (50.0, SLOW, [FAR], FAST, "host"),
        (50.0, FAST, [], FAST, "device"),
        (50.0, DeviceOutlook((40.0,) * 6 + (60.0,) * 4), [], FAST, "device"),
        (None, SLOW, [], FAST, "device"),
    ],
)
def test_the_degraded_artifact_answers_where_nobody_else_would_and_it_is_sure(
    left_ms, device, hosts, degraded, destination
):
    decision = decide(left_ms, device, hosts, degraded=degraded)
    assert decision.destination == destination
    if destination == "degraded":
        assert (decision.fits, decision.predicted_ms) == (True, 10.0)


def test_what_is_expected_counts_the_queue_and_the_rest_of_what_runs():
    running = DeviceOutlook((20.0, 40.0), queue_ms=5.0, elapsed_ms=10.0)  # rests of 10 and 30, the greater counts
    assert running.p90_ms == running.expected_ms == 75.0
    assert DeviceOutlook((20.0, 40.0), latest_ms=20.0, queue_ms=5.0, elapsed_ms=10.0).expected_ms == 55.0
    assert [running.needs_ms(left_ms) for left_ms in (10.0, 30.0, 50.0)] == [None, 20.0, 40.0]


@pytest.mark.parametrize(
    ("device", "left_ms", "chance"),
    [
        (DeviceOutlook((20.0, 30.0, 40.0, 50.0)), 30.0, 0.5),
        (DeviceOutlook((20.0, 30.0, 40.0, 50.0), queue_ms=10.0), 30.0, 0.25),
        (DeviceOutlook((20.0, 40.0), elapsed_ms=10.0), 30.0, 0.25),  # rests of 10 and 30, own of 20 and 40
        (DeviceOutlook((20.0, 40.0), elapsed_ms=30.0), 30.0, 0.5),  # it is one of the slow ones: 10 are left
        (DeviceOutlook((20.0, 20.0), elapsed_ms=25.0), 40.0, 0.0),  # none is known that lasts so long: as long again
        (DeviceOutlook((20.0, 20.0), elapsed_ms=25.0), 45.0, 1.0),
    ],
)
def test_the_chance_of_the_device(device, left_ms, chance):
    assert device.chance(left_ms) == pytest.approx(chance)


def test_the_chance_of_what_runs_already():
    running = DeviceOutlook((20.0, 30.0, 60.0), elapsed_ms=25.0)
    assert running.finishes(5.0) == 0.5
    assert running.finishes(35.0) == 1.0


def test_newer_answers_of_a_host_weigh_more():
    was_bad, is_bad = HostOutlook((LOST,) * 10 + (10.0,) * 5), HostOutlook((10.0,) * 10 + (LOST,) * 5)
    assert is_bad.chance(50.0) < 0.5 < was_bad.chance(50.0)


def test_what_a_host_needs_is_said_by_its_answers_in_time():
    host = HostOutlook((*range(10, 20), LOST, 500.0))
    assert host.needs_ms(50.0) == 18
    assert host.needs_ms(5.0) is None


DEVICES = st.builds(
    lambda services, queue, elapsed: DeviceOutlook(sorted(services), queue_ms=queue, elapsed_ms=elapsed),
    st.lists(st.floats(0.1, 200), min_size=1, max_size=50),
    st.floats(0, 100),
    st.one_of(st.none(), st.floats(0, 100)),
)
HOSTS = st.builds(HostOutlook, st.lists(st.one_of(st.just(LOST), st.floats(0, 200)), max_size=30), st.booleans())


@given(st.floats(-10, 300), DEVICES, st.lists(HOSTS, max_size=4), st.booleans())
def test_the_likelier_is_asked(left_ms, device, hosts, token):
    decision = decide(left_ms, device, hosts, token=token)
    ready = [host.chance(left_ms) for host in hosts if host.ready]
    if decision.destination == "host":
        assert hosts[decision.host].ready
        assert hosts[decision.host].chance(left_ms) == max(ready)
        assert device.chance(left_ms) < SURE
    if decision.destination == "device" and decision.device_chance < SURE and ready:
        assert decision.device_chance >= max(ready)
    if decision.destination == "neither":
        assert not ready
    if device.chance(left_ms) >= SURE:
        assert decision.destination == "device"


@given(DEVICES, st.floats(0, 300), st.floats(0, 300))
def test_more_time_is_never_a_smaller_chance(device, one, other):
    less, more = sorted((one, other))
    assert 0.0 <= device.chance(less) <= device.chance(more) <= 1.0


def test_tokens_are_earned_and_bounded():
    tokens = HedgeTokens(earned=0.5, most=2.0)
    assert [tokens.take() for _ in range(3)] == [True, True, False]
    tokens.earn()
    assert not tokens.take()
    for _ in range(10):
        tokens.earn()
    assert [tokens.take() for _ in range(3)] == [True, True, False]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_nothing_learnt_predicts_nothing():
    assert not InferenceHistory().ascending_ms
    assert InferenceHistory().latest_ms is None
    assert InferenceHistory().age_s == math.inf


def test_what_counts_is_a_window():
    learned = InferenceHistory(window=10)
    for ms in range(51, 71):
        learned.add(float(ms))
    assert list(learned.ascending_ms) == list(range(61, 71))
    assert DeviceOutlook(learned.ascending_ms).p90_ms == 69.0


def test_what_is_expected_is_the_median_or_the_last_one_if_that_is_smaller():
    assert DeviceOutlook((10.0, 20.0, 30.0, 40.0), latest_ms=40.0).expected_ms == 30.0
    assert DeviceOutlook((10.0, 20.0, 30.0, 40.0), latest_ms=10.0).expected_ms == 10.0


def test_what_is_this_young_is_not_sorted_again():
    clock = Clock()
    learned = InferenceHistory(clock=clock)
    clock.now = 1.0
    learned.add(10.0)
    assert list(learned.ascending_ms) == [10.0]
    learned.add(20.0)
    clock.now += 0.9 * JUDGED_FOR_S
    assert list(learned.ascending_ms) == [10.0]
    clock.now += 0.2 * JUDGED_FOR_S
    assert list(learned.ascending_ms) == [10.0, 20.0]


def test_an_inference_much_faster_than_the_median_makes_the_slower_ones_forgotten():
    clock = Clock()
    learned = InferenceHistory(clock=clock)
    for ms in (20.0, *[44.0] * 20):
        learned.add(ms)
    clock.now = 1.0
    assert learned.ascending_ms[-1] == 44.0
    learned.add(21.0)
    assert list(learned.ascending_ms) == [20.0, 21.0]


def test_no_inference_that_counts_took_longer_than_the_longest():
    clock = Clock()
    learned = InferenceHistory(max_age_s=5.0, clock=clock)
    assert learned.most_ms == math.inf  # none is known
    for ms in (20.0, 60.0, 21.0):
        learned.add(ms)
    assert learned.ascending_ms[-1] == learned.most_ms == 60.0
    learned.add(70.0)
    assert learned.most_ms == 70.0
    clock.now = 6.0
    learned.add(20.0)
    assert learned.ascending_ms[-1] == learned.most_ms == 20.0


def test_one_slow_inference_is_an_accident():
    learned = InferenceHistory()
    for ms in (20.0, 21.0, 60.0, 20.5):
        learned.add(ms)
    assert list(learned.ascending_ms) == [20.0, 20.5, 21.0, 60.0]


def test_old_ones_stop_counting_when_newer_ones_come():
    clock = Clock()
    learned = InferenceHistory(max_age_s=5.0, clock=clock)
    for _ in range(40):
        learned.add(15.0)
    clock.now = 6.0
    assert list(learned.ascending_ms) == [15.0]  # nothing newer is known
    learned.add(10.0)
    assert learned.age_s == 0.0
    clock.now += JUDGED_FOR_S
    assert list(learned.ascending_ms) == [10.0]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=80))
def test_nine_of_ten_do_not_exceed_the_ninetieth_percentile(values):
    p90_ms = DeviceOutlook(sorted(values)).p90_ms
    assert sum(value <= p90_ms for value in values) >= 0.9 * len(values)
    assert p90_ms in values


def test_a_device_that_became_faster_forgets_its_slow_time_once():
    """Else each request would go through its whole history, until somebody asks what to expect."""
    history = InferenceHistory(clock=lambda: 0.0)
    for _ in range(20):
        history.add(10.0)
    assert history.ascending_ms[-1] == 10.0
    history.add(1.0)
    assert history.outdated_ms < 1.0, "the next one as fast is not news"
    assert list(history.ascending_ms) == [1.0]

"""The simulated world keeps its own rules, and edgekit's policy keeps its promises in it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "fallback"))
from policies import POLICIES, _most_in_time, bound, play
from simulate import RECOVERIES, compare, recovery
from traces import SCENARIOS, Scenario, draw

SHORT = 300
CALM = Scenario(20.0, hot_s=0.0, bad_s=0.0, loss=0.0, straggle=0.0)


def test_a_seed_gives_one_trace_and_one_result():
    one, other = (draw(SCENARIOS["LAN 35/s"], 5, SHORT) for _ in range(2))
    assert np.array_equal(one.arrivals_s, other.arrivals_s)
    assert play(one, "edgekit").at_ms == play(other, "edgekit").at_ms
    assert not np.array_equal(one.arrivals_s, draw(SCENARIOS["LAN 35/s"], 6, SHORT).arrivals_s)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["LAN 60/s", "bursts of 4, 25/s", "busy host, 35/s"])
def test_every_caller_hears_once_and_never_after_its_deadline(policy, name):
    trace = draw(SCENARIOS[name], 1, SHORT)
    played = play(trace, policy)
    assert len(played.at_ms) == SHORT
    assert max(played.at_ms) <= trace.scenario.budget_ms + 1e-6


@pytest.mark.parametrize("name", SCENARIOS)
def test_nobody_exceeds_the_bound(name):
    trace = draw(SCENARIOS[name], 2, SHORT)
    most = bound(trace)
    assert all(play(trace, policy).share <= most + 1e-9 for policy in ("edgekit", "always device", "always host"))


def test_the_bound_of_one_device_is_what_it_can_serve():
    trace = draw(replace(CALM, rate=100.0), 3, SHORT)
    seconds = trace.seconds + 0.06
    most = _most_in_time(trace, np.arange(SHORT))
    assert play(trace, "always device").met <= most <= seconds / 0.016


def test_with_time_enough_everything_is_met_at_home():
    trace = draw(replace(CALM, rate=5.0), 1, SHORT)
    played = play(trace, "edgekit")
    assert played.share > 0.99
    assert played.offload < 0.05
    assert 0 < played.busy_s < trace.seconds
    assert played.wasted_s < 0.1 * played.busy_s


def test_without_a_host_it_does_as_well_as_the_device_alone():
    trace = draw(replace(SCENARIOS["LAN 35/s"], loss=1.0, bad_loss=1.0), 1, 2 * SHORT)
    assert play(trace, "edgekit").share >= play(trace, "always device").share - 0.03


@pytest.mark.parametrize("name", ["LAN 60/s", "slow host, 35/s"])
def test_it_does_better_than_either_alone(name):
    trace = draw(SCENARIOS[name], 4, 3 * SHORT)
    ours = play(trace, "edgekit").share
    assert ours > max(play(trace, one).share for one in ("always device", "always host"))


def test_in_no_scenario_it_does_worse_than_the_better_of_the_two_and_nobody_hears_late():
    rows = compare(SCENARIOS, seeds=(12,), seconds=40.0, policies=("edgekit", "always device", "always host"))
    assert min(row.against_simple for row in rows.values()) >= -0.01
    assert sum(row.to_bound for row in rows.values()) / len(rows) <= 0.03
    assert rows["LAN 15/s"].offloaded["edgekit"] <= 0.2  # at 0.3 of the device's capacity
    assert max(row.latest_ms["edgekit"] for row in rows.values()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("trouble", RECOVERIES)
def test_once_trouble_is_over_the_better_one_answers_again_soon(trouble):
    seconds = recovery(trouble, seeds=(11,))
    assert seconds
    assert max(seconds) < (2.0 if trouble == "the device is cool" else 1.0)


def test_a_row_has_every_policy():
    row = compare({"calm": CALM}, seeds=(1,), seconds=5.0)["calm"]
    assert set(row.met) == set(POLICIES)
    assert row.to_bound == pytest.approx(row.bound - row.met["edgekit"])

"""Costs: what was measured decides, and nothing else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.batching.costs import Costs, hand_off_s

MS = 1e-3
DENSE = {1: 0.498 * MS, 4: 1.008 * MS, 16: 2.879 * MS, 32: 4.531 * MS}
MOBILENET = {1: 3.16 * MS, 2: 6.3 * MS, 4: 12.5 * MS, 8: 25.2 * MS}
TINY = {1: 2.3e-6, 4: 4.6e-6, 16: 10.8e-6}


@pytest.mark.parametrize(
    ("seconds", "mode", "limit"),
    [
        pytest.param(DENSE, "batch", 32, id="a dense net gains threefold: batches"),
        pytest.param(MOBILENET, "turns", 1, id="a convolutional net gains nothing: turns"),
        pytest.param(TINY, "barge", 1, id="a tiny net gains less than a hand-off costs: barging"),
        pytest.param({1: 1.0, 2: 1.8}, "turns", 1, id="a gain of a tenth may be noise: turns"),
    ],
)
def test_how_an_engine_is_shared_follows_from_what_was_measured(seconds, mode, limit):
    costs = Costs(seconds, hand_off_s=10e-6)
    assert (costs.mode, costs.limit) == (mode, limit)


def test_a_free_axis_costs_what_lies_between_and_a_fixed_shape_the_next_size_up():
    free, fixed = Costs(DENSE), Costs(DENSE, fixed=True)
    assert free.seconds(10) == pytest.approx((1.008 + 2.879) / 2 * MS)
    assert fixed.seconds(10) == pytest.approx(2.879 * MS)


def test_thirty_three_are_better_run_as_thirty_two_and_one():
    costs = Costs(DENSE)
    assert costs.first(33) == 32
    assert costs.total(33) == pytest.approx(costs.total(32) + costs.total(1))


def test_nine_in_fixed_shapes_are_eight_and_one_rather_than_padded_to_thirty_two():
    costs = Costs({1: 0.6 * MS, 8: 2.3 * MS, 32: 5.0 * MS}, fixed=True)
    assert costs.first(9) == 8
    assert costs.first(3) == 1, "three single runs are 1.8 ms, a padded batch of eight 2.3"
    assert costs.first(30) == 30


def test_the_part_that_serves_most_a_second_goes_first():
    costs = Costs({1: 1.0 * MS, 8: 2.0 * MS}, fixed=True, hand_off_s=1e-6)
    assert costs.first(9 - 1) == 8
    assert costs.total(9) == pytest.approx(3.0 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("queued", "expected", "wait_ms", "pays"),
    [
        pytest.param(16, 16, 0.5, True, id="two halves are 5.8 ms, half a millisecond and a whole 5.0"),
        pytest.param(16, 16, 1.5, False, id="the wait eats the gain"),
        pytest.param(1, 31, 0.2, True, id="a short wait for many"),
        pytest.param(1, 31, 1.0, False, id="meanwhile the one could have run"),
        pytest.param(1, 0, 0.0, False, id="nobody is expected"),
        pytest.param(0, 5, 0.0, False, id="nobody waits"),
    ],
)
def test_holding_pays_only_if_it_ends_sooner(queued, expected, wait_ms, pays):
    costs = Costs({1: 0.5 * MS, 16: 2.9 * MS, 32: 4.5 * MS}, hand_off_s=1e-6)
    assert costs.pays_to_wait(queued, expected, wait_ms * MS) is pays


def test_a_net_that_gains_nothing_is_never_held():
    costs = Costs(MOBILENET)
    assert not any(costs.pays_to_wait(n, k, 1e-6) for n in (1, 2, 9) for k in (1, 5, 30))


sizes = st.dictionaries(st.sampled_from([2, 3, 4, 8, 16, 32]), st.floats(1e-6, 1.0), max_size=5)


@given(sizes, st.floats(1e-6, 1.0), st.booleans(), st.integers(1, 80))
def test_a_split_never_costs_more_than_one_by_one_nor_loses_an_item(others, single, fixed, n):
    costs = Costs({1: single} | others, fixed=fixed, hand_off_s=1e-9)
    assert costs.total(n) <= n * (costs.seconds(1) + 2e-9)
    left, parts = n, []
    while left:
        part = costs.first(left)
        assert 1 <= part <= min(left, costs.limit)
        parts.append(part)
        left -= part
    assert sum(parts) == n


@given(sizes, st.floats(1e-6, 1.0), st.integers(1, 40), st.integers(1, 40), st.floats(0, 2.0))
def test_a_longer_wait_never_pays_where_a_shorter_does_not(others, single, n, expected, wait_s):
    costs = Costs({1: single} | others)
    if costs.pays_to_wait(n, expected, wait_s):
        assert costs.pays_to_wait(n, expected, wait_s / 2)


def test_a_board_that_became_hot_is_followed_in_all_sizes():
    costs = Costs(DENSE)
    for _ in range(12):
        costs.observe(32, 2 * DENSE[32])
    assert costs.seconds(32) == pytest.approx(2 * DENSE[32])
    assert costs.seconds(4) == pytest.approx(2 * DENSE[4]), "it did not run, but the board is the same"


def test_one_slow_run_moves_nothing():
    costs = Costs(DENSE)
    for n in range(16):
        costs.observe(32, DENSE[32] * (50 if n == 7 else 1))
    assert costs.seconds(32) == pytest.approx(DENSE[32])


def test_what_was_measured_is_corrected_by_the_first_runs():
    costs = Costs({1: 0.001, 8: 0.002})
    costs.observe(1, 0.25)
    assert costs.seconds(1) == pytest.approx(0.25)


@pytest.mark.parametrize("seconds", [{}, {2: 1.0}, {1: 0.0}, {1: 1.0, 0: 1.0}])
def test_senseless_times_are_refused(seconds):
    with pytest.raises(ValueError, match="size 1"):
        Costs(seconds)


def test_a_hand_off_is_measured():
    ticks = itertools.count()
    assert hand_off_s(lambda: next(ticks) * 1e-6) >= 1e-6
    assert 0 < hand_off_s(times=3) < 1


def test_a_size_that_was_measured_while_others_held_the_processor_gets_its_turn_and_again_later():
    """A kept verdict said 6.1 ms of a batch that takes 2.6, and only smaller ones ran from then on."""
    costs = Costs({1: 0.4, 16: 1.6, 32: 6.1}, fixed=True)
    assert costs.first(32) == 32
    for _ in range(4):
        costs.observe(32, 6.1)
    assert costs.first(32) == 16, "it is as slow as it was said to be"
    for _ in range(300):
        costs.observe(16, 1.6)
    assert costs.first(32) == 32
    for _ in range(4):
        costs.observe(32, 2.6)
    assert (costs.first(32), costs.seconds(32)) == (32, pytest.approx(2.6))

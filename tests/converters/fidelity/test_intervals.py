"""The interval of a paired drop: the published formula, and that it covers what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.fidelity.intervals import (
    Z95,
    mean_interval,
    paired_interval,
    ratio_interval_db,
    resampled_interval,
    share_interval,
)


@st.composite
def counts(draw):
    items = draw(st.integers(1, 5000))
    lost = draw(st.integers(0, items))
    return lost, draw(st.integers(0, items - lost)), items


@given(counts())
def test_it_holds_the_drop_and_stays_within_minus_one_and_one(case):
    lost, gained, items = case
    low, high = paired_interval(lost, gained, items)
    assert -1 <= low <= (lost - gained) / items <= high <= 1
    assert low < high


@given(counts())
def test_exchanging_the_models_mirrors_it(case):
    lost, gained, items = case
    low, high = paired_interval(lost, gained, items)
    assert paired_interval(gained, lost, items) == (pytest.approx(-high), pytest.approx(-low))


@given(counts())
def test_it_is_wald_on_a_table_with_half_an_item_more_in_each_cell(case):
    lost, gained, items = case
    b, c, n = lost + 0.5, gained + 0.5, items + 2
    p12, p21 = b / n, c / n
    error = math.sqrt(((p12 + p21) - (p12 - p21) ** 2) / n)
    expected = max(-1, p12 - p21 - Z95 * error), min(1, p12 - p21 + Z95 * error)
    assert paired_interval(lost, gained, items) == pytest.approx(expected)


def test_the_approval_ratings_of_agrestis_textbook():
    """1,600 people asked twice, 150 and 86 changed their minds: 0.04 +- 0.0187 by the plain Wald interval."""
    assert paired_interval(150, 86, 1600) == pytest.approx((0.0213, 0.0587), abs=2e-4)


def test_two_models_that_never_differ_are_not_proved_equal():
    low, high = paired_interval(0, 0, 20)
    assert (low, high) == pytest.approx((-0.0891, 0.0891), abs=1e-4)
    assert paired_interval(0, 0, 10_000)[1] < 2e-4


def test_more_items_with_the_same_rates_make_it_narrower():
    widths = [high - low for low, high in (paired_interval(3 * k, k, 100 * k) for k in (1, 4, 16, 64))]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(("items", "lost", "gained"), [(20, 0.05, 0.05), (155, 0.05, 0.02), (600, 0.01, 0.005)])
def test_it_covers_the_truth_nearly_as_often_as_it_says(items, lost, gained):
    rng = np.random.default_rng(2005)
    draws = rng.multinomial(items, [lost, gained, 1 - lost - gained], size=4000)
    intervals = [paired_interval(int(b), int(c), items) for b, c, _ in draws]
    covered = np.mean([low <= lost - gained <= high for low, high in intervals])
    assert 0.94 <= covered <= 0.999, f"covers {covered:.3f}"


@pytest.mark.parametrize(("lost", "gained", "items"), [(0, 0, 0), (-1, 0, 5), (0, -1, 5), (3, 3, 5)])
def test_counts_that_do_not_fit_are_a_callers_bug(lost, gained, items):
    with pytest.raises(ValueError, match="do not fit"):
        paired_interval(lost, gained, items)


def test_wilsons_interval_is_the_published_one_and_never_a_point():
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert share_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    low, high = share_interval(100, 100)
    assert (low, high) == (pytest.approx(0.963, abs=1e-3), 1.0)


def test_the_interval_of_a_mean_is_students():
    values = np.array([2.0, 4.0, 6.0])  # mean 4, s = 2, t(2) = 4.303
    assert mean_interval(values) == pytest.approx((4 - 4.302653 * 2 / math.sqrt(3), 4 + 4.302653 * 2 / math.sqrt(3)))
    ten = np.arange(11.0)  # t(10) = 2.228
    low, high = mean_interval(ten)
    assert (high - low) / 2 == pytest.approx(2.228139 * ten.std(ddof=1) / math.sqrt(11), rel=1e-4)


def test_the_bootstrap_is_the_same_at_every_run_and_near_the_formula():
    values = np.random.default_rng(1).normal(size=400)
    first = resampled_interval(lambda at: float(values[at].mean()), 400)
    assert first == resampled_interval(lambda at: float(values[at].mean()), 400)
    assert first == pytest.approx(mean_interval(values), abs=0.02)


def test_the_interval_of_a_ratio_covers_the_truth():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        signal, noise = generator.exponential(100, 200), generator.exponential(1, 200)
        low, high = ratio_interval_db(signal, noise)
        covered += low <= 20 <= high
    assert 0.92 <= covered / 400 <= 0.98

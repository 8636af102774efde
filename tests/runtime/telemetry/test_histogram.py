"""The histogram's algebra: quantiles within 1.1 %, merging is adding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.telemetry.histogram import Histogram, record_table

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=300)
BOUND = 0.011


def made(values):
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def exact(values, q):
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


@given(VALUES, st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]))
def test_a_quantile_is_within_one_point_one_per_cent_of_the_exact_one(values, q):
    assert made(values).quantile(q) == pytest.approx(exact(values, q), rel=BOUND)


@given(VALUES, VALUES)
def test_merging_equals_recording_both(left, right):
    merged, both = made(left), made(left + right)
    merged.merge(made(right))
    assert merged.buckets == both.buckets
    assert (merged.count, merged.maximum) == (both.count, both.maximum)


@given(VALUES, VALUES)
def test_merging_commutes(left, right):
    a, b = made(left), made(right)
    a.merge(made(right))
    b.merge(made(left))
    assert a.buckets == b.buckets


def test_nothing_recorded_has_no_quantile():
    assert Histogram().quantile(0.5) is None


def test_zeros_are_counted_and_answered():
    histogram = made([1.0])
    histogram.record(0.0)
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=BOUND)


@pytest.mark.parametrize("q", [-0.1, 1.1])
def test_a_quantile_outside_zero_to_one_is_the_callers_bug(q):
    with pytest.raises(ValueError, match="quantile"):
        made([1.0]).quantile(q)


@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.floats(0.0, 1e9)), max_size=300))
def test_recording_a_table_equals_recording_one_by_one(rows):
    together = [made([3.0]), made([])]
    record_table(together, np.array(rows, np.float64).reshape(-1, 2))
    single = [made([3.0] + [a for a, _ in rows]), made([b for _, b in rows])]
    for mine, theirs in zip(together, single, strict=True):
        assert (mine.buckets, mine.zeros, mine.count) == (theirs.buckets, theirs.zeros, theirs.count)
        assert mine.maximum == theirs.maximum
        assert mine.total == pytest.approx(theirs.total)


def test_what_is_no_latency_counts_as_zero_and_poisons_nothing():
    histogram = Histogram()
    record_table([histogram], np.array([[math.nan], [-1.0], [math.inf], [4.0]]))
    assert (histogram.count, histogram.zeros) == (4, 2)
    assert histogram.quantile(0.75) == pytest.approx(4.0, rel=BOUND)
    assert histogram.maximum == 2.0**64
    assert Histogram.from_wire(histogram.wire()).count == 4


def test_a_table_of_nothing_but_zeros_has_no_buckets():
    histogram = Histogram()
    record_table([histogram], np.zeros((3, 1)))
    assert (histogram.count, histogram.zeros, histogram.buckets) == (3, 3, {})


@given(VALUES, st.integers(-12, 22))
def test_counting_up_to_a_power_of_two_is_exact(values, octave):
    assert made(values).at_most(octave) == sum(value <= 2.0**octave for value in values)

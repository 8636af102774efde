"""Packed histograms: the same numbers as histograms that are merged as objects."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgekit.fleet.store import packed
from edgekit_runtime.telemetry.histogram import Histogram

COUNTS = st.one_of(st.integers(1, 300), st.integers(1, 1 << 40))
BUCKETS = st.dictionaries(st.integers(-2048, 2048), COUNTS, max_size=20)
ONE = st.tuples(st.integers(0, 5), st.one_of(st.just(0), st.integers(0, 1 << 40)), BUCKETS)
BINS = st.dictionaries(st.sampled_from(["device", "cache", "host"]), ONE, max_size=4)


@settings(max_examples=60, deadline=None)
@given(BINS)
@example({"device": (0, 0, {-32: 1, -29: 1, 0: 1, 1: 1})})  # a run with gaps that is as long as all indexes are many
def test_what_was_packed_is_unpacked(bins):
    assert packed.unpack(packed.pack(bins)) == bins


def test_a_blob_of_version_2_is_read():
    blob = (
        "0280050303f93f01000188410202077001011100010190430100ff"
        "05696e6665720400018340010500000100000100000100000100000101"
    )
    bins = {"device": (5, 3, {-7: 1, 136: 7, 137: 70000, 400: 255}), "infer": (4, 0, {3: 1 << 40})}
    assert packed.unpack(bytes.fromhex(blob)) == bins


@settings(max_examples=60, deadline=None)
@given(BINS, BINS)
def test_merging_is_that_of_histograms(one, other):
    objects = packed.histograms(one)
    for name, histogram in packed.histograms(other).items():
        objects.setdefault(name, Histogram()).merge(histogram)
    packed.merge(one, other)
    assert {name: (h.scale, h.zeros, h.buckets) for name, h in objects.items()} == one


@settings(max_examples=60, deadline=None)
@given(BUCKETS, st.integers(0, 1000), st.lists(st.floats(0, 1), min_size=1, max_size=4).map(sorted))
def test_a_quantile_is_the_histograms(buckets, zeros, wanted):
    bins = {"device": (5, zeros, buckets)}
    histogram = packed.histograms(bins)["device"]
    if histogram.count > 1 << 50:
        return  # q * count is no longer exact
    assert packed.quantiles([bins], wanted) == [histogram.quantile(q) for q in wanted]


def test_counts_stop_where_every_database_still_counts():
    bins = {"device": (5, 0, {7: packed.MOST})}
    packed.merge(bins, {"device": (5, packed.MOST, {7: packed.MOST})})
    packed.merge(bins, {"device": (5, packed.MOST, {})})
    assert packed.unpack(packed.pack(bins)) == {"device": (5, packed.MOST, {7: packed.MOST})}


def test_an_outlier_costs_a_few_bytes_and_no_precision():
    near = {"device": (5, 0, dict.fromkeys(range(100, 180), 900))}
    far = {"device": (5, 0, near["device"][2] | {2048: 1})}
    assert len(packed.pack(far)) - len(packed.pack(near)) < 12
    assert packed.quantiles([far], [1.0]) == [pytest.approx(2.0**64, rel=0.03)]

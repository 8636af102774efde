"""What a model counted over all its bundles never falls, and misses nothing that was counted late."""

from __future__ import annotations

from edgekit_runtime.telemetry.meter import Counts, Meter


def test_an_answer_that_is_counted_after_its_bundle_was_closed_is_in_the_sum():
    counts, first, second = Counts(), Meter(), Meter()
    for meter in (first, second):
        counts.begin(meter)
    counts.end(first)
    first.record("device", 1.0, None)
    assert counts.stats().answers == {"device": 1}


def test_the_sum_holds_over_any_number_of_bundles():
    counts = Counts()
    for number in range(1, 20):
        meter = Meter()
        counts.begin(meter)
        meter.record("device", 1.0, True)
        meter.error("engine")
        counts.end(meter)
        assert (counts.stats().requests, counts.stats().met) == (2 * number, number)
    assert len(counts._ended) < 10

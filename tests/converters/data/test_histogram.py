"""The streaming histogram counts the values, not how they came."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgekit_converters.data.ranges import BINS, SAMPLE, ActivationHistogram

LARGE = float(np.float32(3e38))
values = arrays(
    np.float32,
    st.integers(0, 60),
    elements=st.floats(-LARGE, LARGE, width=32) | st.floats(-8, 8, width=32) | st.sampled_from([0.0, -0.0, 2.0**-133]),
)


def of(*chunks: np.ndarray) -> ActivationHistogram:
    histogram = ActivationHistogram()
    for chunk in chunks:
        histogram.add(chunk)
    return histogram


def same(a: ActivationHistogram, b: ActivationHistogram) -> bool:
    return (a.top, a.zeros) == (b.top, b.zeros) and bool((a.counts == b.counts).all())


@given(st.lists(values, max_size=5), st.randoms(use_true_random=False))
def test_a_stream_counts_like_the_whole_in_any_order_and_any_chunks(chunks: list[np.ndarray], random):
    whole = np.concatenate([np.zeros(0, np.float32), *chunks])
    shuffled = whole.copy()
    np.random.default_rng(random.randrange(1000)).shuffle(shuffled)
    assert same(of(*chunks), of(whole))
    assert same(of(*np.array_split(shuffled, 3)), of(whole))
    assert of(whole).total == whole.size


@given(values, values, values)
def test_merging_is_adding(a: np.ndarray, b: np.ndarray, c: np.ndarray):
    left, right, other = of(a), of(b), of(c)
    left.merge(right)
    assert same(left, of(a, b))
    assert same(right, of(b))
    other.merge(left)
    assert same(other, of(a, b, c))


@given(arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 100, width=32)), st.floats(0.01, 0.99))
@settings(max_examples=60)
def test_quantiles_lie_beside_those_of_the_values(found: np.ndarray, share: float):
    quantile = of(found).quantiles([share])[0]
    ordered = np.sort(found.astype(np.float64))
    at = share * ordered.size
    below, above = ordered[max(int(np.ceil(at)) - 2, 0)], ordered[min(int(np.floor(at)) + 1, ordered.size - 1)]
    slack = 2.0**-7 * max(abs(below), abs(above)) + 2.0**-15 * float(np.abs(found).max()) + np.finfo(np.float32).tiny
    assert below - slack <= quantile <= above + slack


def test_bins_are_narrow_at_every_scale():
    for scale in (1e-20, 1.0, 1e20):
        normal = (np.random.default_rng(0).normal(size=200_000) * scale).astype(np.float32)
        low, middle, high = of(*np.split(normal, 4)).quantiles((0.001, 0.5, 0.999))
        expected = np.quantile(normal, (0.001, 0.5, 0.999))
        np.testing.assert_allclose((low, high), expected[[0, 2]], rtol=0.01)
        assert abs(middle - expected[1]) < 0.01 * scale


def test_the_size_does_not_depend_on_how_much_was_counted():
    histogram = ActivationHistogram()
    for exponent in range(-30, 30):
        histogram.add(np.full(1000, 2.0**exponent, np.float32))
        assert histogram.counts.shape == (2, BINS)
    assert histogram.total == 60_000


@pytest.mark.parametrize("shape", [(112, 112, 96), (64, 320, 320), (1, 65_537)])
def test_of_a_large_array_a_share_is_counted_and_no_channel_missed(shape: tuple[int, ...]):
    channels = np.zeros(shape, np.float32)
    channels[...] = 2.0 ** (np.arange(shape[-1]) % 8)
    whole = of(channels)
    assert whole.total == SAMPLE
    counts = whole.bins().counts
    assert len(counts) == 8
    np.testing.assert_allclose(counts, SAMPLE / 8, rtol=0.02)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(odd: float):
    with pytest.raises(ValueError, match="NaN or infinity"):
        of(np.array([1.0, odd], np.float32))


def test_an_empty_histogram_has_no_quantiles():
    with pytest.raises(ValueError, match="empty"):
        ActivationHistogram().quantiles([0.5])

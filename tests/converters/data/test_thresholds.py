"""Every range method gives a range that can be used, and the one that it is known for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgekit_converters.data.ranges import METHODS, usable
from edgekit_converters.data.statistics import TensorStatistics

LARGE = float(np.float32(3e38))
RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=20_000).astype(np.float32)
OUTLIERS = np.where(RNG.random(20_000) < 1e-5, 60, NORMAL).astype(np.float32)
OUTLIERS[0] = 60


def of(*samples: np.ndarray) -> TensorStatistics:
    tensor = TensorStatistics()
    for sample in samples:
        tensor.add(sample)
    return tensor


def error(values: np.ndarray, low: float, high: float) -> float:
    """Mean squared error of 256 levels from low to high, zero among them."""
    step = (high - low) / 255
    zero = np.rint(low / step)
    return float(np.mean((np.clip(np.rint(values / step), zero, zero + 255) * step - values) ** 2))


@given(arrays(np.float32, st.integers(0, 50), elements=st.floats(-LARGE, LARGE, width=32)), st.sampled_from(METHODS))
@settings(max_examples=150)
def test_a_range_contains_zero_is_finite_and_never_empty(values: np.ndarray, method):
    low, high = of(values).range(method)
    assert np.isfinite([low, high]).all()
    assert low <= 0 <= high
    assert np.float32((high - low) / 255) > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, (0.0, 1.0)), (3.0, (0.0, 3.0)), (-2.0, (-2.0, 0.0)), (-0.0, (0.0, 1.0))]
)
def test_a_constant_tensor_has_a_range_that_a_scale_can_be_made_of(method, value: float, expected):
    assert of(np.full((2, 5), value, np.float32)).range(method) == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_that_was_never_seen_has_a_range(method):
    assert of().range(method) == (0.0, 1.0)


@pytest.mark.parametrize("value", [1e-30, -1e-30, 1e-45])
def test_a_range_too_narrow_for_a_scale_is_widened(value: float):
    low, high = usable(min(value, 0), max(value, 0))
    assert high - low >= 2.0**-40


def test_minmax_is_exact():
    assert of(OUTLIERS).range("minmax") == (float(OUTLIERS.min()), 60.0)


def test_percentile_leaves_one_in_ten_thousand_on_either_side():
    low, high = of(OUTLIERS).range("percentile")
    expected = np.quantile(OUTLIERS, (0.0001, 0.9999))
    np.testing.assert_allclose((low, high), expected, rtol=0.02)


def test_percentile_keeps_a_bound_that_many_values_reach():
    clipped = np.clip(3 * NORMAL, 0, 6)
    np.testing.assert_allclose(of(clipped).range("percentile"), (0, 6))


SHAPES = {
    "normal": NORMAL,
    "outliers": OUTLIERS,
    "rectified": np.maximum(NORMAL, 0),
    "negative": -(np.abs(NORMAL) ** 2),
    "heavy tails": RNG.standard_t(3, 20_000).astype(np.float32),
    "clipped at six": np.clip(3 * NORMAL, 0, 6),
    "one sided with a bend": NORMAL / (1 + np.exp(-NORMAL)),
    "few values": np.array([0, 1, 2, 100], np.float32).repeat([500, 300, 200, 1]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_mse_comes_near_the_best_of_all_ranges(shape: str):
    values = SHAPES[shape].astype(np.float32)
    tensor = of(values)
    fractions = 2.0 ** np.linspace(-5, 0, 13)
    lows = tensor.low * fractions if tensor.low < 0 else [0.0]
    highs = tensor.high * fractions if tensor.high > 0 else [0.0]
    best = min(error(values, low, high) for low in lows for high in highs if high > low)
    assert error(values, *tensor.range("mse")) <= 1.1 * best


def test_entropy_cuts_outliers_and_keeps_a_bounded_tensor_whole():
    assert of(OUTLIERS).range("entropy")[1] < 10
    even = RNG.uniform(0, 6, 20_000).astype(np.float32)
    assert of(even).range("entropy")[1] > 5.5


def test_entropy_agrees_with_a_direct_search_of_the_divergence():
    values = RNG.gamma(2.0, 1.0, 2_000_000).astype(np.float32)
    counts, _ = np.histogram(values, 2048, (0, float(values.max())))
    divergences = []
    for end in range(256, 2049, 8):
        inside = counts[:end].astype(float)
        p = inside.copy()
        p[-1] += counts[end:].sum()
        q = np.zeros(end)
        for level in range(256):
            part = slice(level * end // 256, (level + 1) * end // 256)
            occupied = inside[part] > 0
            q[part][occupied] = inside[part].sum() / max(occupied.sum(), 1)
        p, q = p / p.sum(), q / q.sum()
        some = p > 0
        ok = (q[some] > 0).all()
        divergences.append(float((p[some] * np.log(p[some] / q[some])).sum()) if ok else np.inf)
    direct = float(values.max()) * (256 + 8 * int(np.argmin(divergences))) / 2048
    assert of(values).range("entropy")[1] == pytest.approx(direct, rel=0.25)


def test_ends_and_channels_are_those_of_the_whole_stream():
    samples = [RNG.normal(2, 3, (1, 5, 7, 4)).astype(np.float32) for _ in range(6)]
    whole = np.concatenate(samples)
    for axis, turned in ((-1, samples), (1, [sample.transpose(0, 3, 1, 2) for sample in samples])):
        tensor = TensorStatistics(axis)
        for sample in turned:
            tensor.add(sample)
        assert (tensor.low, tensor.high) == (whole.min(), whole.max())
        np.testing.assert_array_equal(tensor.channels, [whole.min((0, 1, 2)), whole.max((0, 1, 2))])


def test_channels_are_given_up_where_their_number_changes():
    tensor = TensorStatistics(1)
    tensor.add(np.ones((1, 3, 2), np.float32))
    tensor.add(np.ones((1, 4, 2), np.float32))
    tensor.add(np.ones((1, 3, 2), np.float32))
    assert tensor.channels is None
    assert tensor.histogram.total == 20


def test_infinities_are_left_out_and_nan_is_remembered():
    tensor = of(np.array([[1.0, -np.inf], [2.0, np.inf]], np.float32), np.full(3, -np.inf, np.float32))
    assert (tensor.low, tensor.high, tensor.histogram.total) == (1.0, 2.0, 2)
    assert not tensor.undefined
    tensor.add(np.array([np.nan, 3], np.float32))
    assert (tensor.undefined, tensor.high, tensor.histogram.total) == (True, 3.0, 3)

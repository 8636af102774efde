"""Rounding with compensation never does harm, and its integers are the ones that a quantizer finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_converters.targets.rounding import LEVELS, compensate_rounding, nearest, output_error, steps_of


@st.composite
def layers(draw):
    """Weights [groups, outputs, n] and patches [groups, rows, n], some of them constant, dead or moving together."""
    groups, outputs, n = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 70))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = random.normal(size=(groups, outputs, n)) * 10.0 ** random.uniform(-4, 2, (groups, outputs, 1))
    patches = random.normal(size=(groups, draw(st.integers(1, 40)), n)) + draw(st.sampled_from([0.0, 3.0]))
    patches = patches + draw(st.sampled_from([0.0, 5.0])) * random.normal(size=(groups, patches.shape[1], 1))
    if draw(st.booleans()):
        weights[0, 0] = 0
    if draw(st.booleans()):
        patches[..., 0] = 0
    return weights, patches


def second_moment(patches: np.ndarray) -> np.ndarray:
    return patches.transpose(0, 2, 1) @ patches / patches.shape[1]


@given(layers())
@settings(max_examples=60)
def test_no_channel_has_more_output_error_than_with_nearest(layer):
    weights, patches = layer
    second = second_moment(patches)
    found = output_error(weights, compensate_rounding(weights, second, patches.shape[1]), second)
    plain = output_error(weights, nearest(weights), second)
    assert (found <= plain + 1e-12).all()


@given(layers())
@settings(max_examples=60)
def test_a_quantizer_that_divides_by_the_largest_weight_finds_the_very_integers(layer):
    weights, patches = layer
    rounded = compensate_rounding(weights, second_moment(patches), patches.shape[1])
    integers = rounded / steps_of(weights)
    np.testing.assert_allclose(integers, np.round(integers), atol=1e-9)
    assert np.abs(integers).max() <= LEVELS + 1e-9
    stored = rounded.astype(np.float32)
    scale = np.maximum(np.abs(stored).max(axis=-1, keepdims=True), np.float32(1e-30)) / np.float32(LEVELS)
    np.testing.assert_array_equal(np.round(stored / scale), np.round(integers))


def test_inputs_that_move_together_make_up_for_each_other():
    random = np.random.default_rng(0)
    weights = random.normal(size=(1, 16, 27))
    patches = random.normal(size=(1, 500, 1)) + 0.1 * random.normal(size=(1, 500, 27))
    second = second_moment(patches)
    found = output_error(weights, compensate_rounding(weights, second, 500), second).sum()
    assert found < 0.1 * output_error(weights, nearest(weights), second).sum()


def test_few_rows_are_not_believed():
    """Five rows of 200 columns: what fits them alone would hurt on others."""
    random = np.random.default_rng(0)
    weights, seen, unseen = random.normal(size=(1, 8, 200)), random.normal(size=(1, 5, 200)), np.eye(200)[None]
    found = compensate_rounding(weights, second_moment(seen), 5)
    assert output_error(weights, found, unseen).sum() < 1.5 * output_error(weights, nearest(weights), unseen).sum()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_moments_that_are_not_finite_leave_nearest(value):
    weights = np.random.default_rng(0).normal(size=(1, 2, 3))
    np.testing.assert_array_equal(compensate_rounding(weights, np.full((1, 3, 3), value), 10), nearest(weights))

"""Equalisation is exact in float, and makes channels alike where it may."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_converters.formats.graph import Graph
from edgekit_converters.targets.equalise import equalise_channels
from tests.converters.targets.rounding_networks import Drawn, inputs, outputs_of, separable


def peaks_of(graph: Graph) -> dict[str, np.ndarray]:
    peaks: dict[str, np.ndarray] = {}
    with graph.watch() as watched:
        for feed in inputs(8):
            for name, values in watched.run(feed).items():
                if values.ndim > 1:
                    axes = tuple(axis for axis in range(values.ndim) if axis != 1)
                    peaks[name] = np.maximum(peaks.get(name, 0), np.abs(values).max(axis=axes))
    return peaks


@given(st.integers(0, 2**16), st.integers(0, 2**16))
@settings(max_examples=12)
def test_the_network_computes_the_same_whatever_the_peaks(seed, other):
    graph = separable(seed)
    random = np.random.default_rng(other)
    peaks = {name: 10.0 ** random.uniform(-4, 4, entry.shape) for name, entry in peaks_of(graph).items()}
    unseen = inputs(4, seed=7)
    exact = outputs_of(graph, unseen)
    np.testing.assert_allclose(outputs_of(equalise_channels(graph, peaks), unseen), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("tensor", "changes"), [("a", True), ("b", True), ("sum", True), ("c", False), ("y", False)])
def test_tensors_behind_relu_and_sums_gain_and_those_behind_relu6_and_outputs_stay(tensor, changes):
    graph = separable()
    first = graph.constant("stem.w") * np.geomspace(1, 0.01, 8, dtype=np.float32).reshape(-1, 1, 1, 1)
    graph = graph.with_constants({"stem.w": first, "stem.b": graph.constant("stem.b") * np.geomspace(1, 0.01, 8)})
    before, after = peaks_of(graph)[tensor], peaks_of(equalise_channels(graph, peaks_of(graph)))[tensor]
    assert np.allclose(before, after, rtol=1e-3) != changes
    if changes:
        assert after.max() * before.min() <= before.max() * after.min() * 1.001


def test_a_bias_that_a_sum_adds_is_scaled_with_its_product():
    drawn = Drawn()
    drawn.add("MatMul", ["x", drawn.constant("w", 6, 4)], "product")
    drawn.add("Add", ["product", drawn.constant("b", 4)], "sum")
    drawn.add("Relu", ["sum"], "r")
    drawn.add("MatMul", ["r", drawn.constant("v", 4, 3)], "y")
    graph = drawn.graph((1, 6), "y")
    feeds = inputs(8, (1, 6))
    peaks = {name: np.array([1.0, 0.1, 0.5, 0.01]) for name in ("product", "sum", "r")}
    np.testing.assert_allclose(
        outputs_of(equalise_channels(graph, peaks), feeds), outputs_of(graph, feeds), rtol=1e-4, atol=1e-5
    )


def test_a_dead_channel_stays_as_it_is():
    graph = separable()
    peaks = peaks_of(graph) | {"b": np.array([0, 1, 1, 1, 1, 1, 1, 0.0])}
    found = equalise_channels(graph, {"depthwise": peaks["b"], "b": peaks["b"]})
    np.testing.assert_allclose(found.constant("depthwise.w")[0], graph.constant("depthwise.w")[0], rtol=1e-6)

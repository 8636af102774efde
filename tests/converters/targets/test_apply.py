"""Steps change constants, and only where that helps."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.data.statistics import Statistics, observe
from edgekit_converters.formats.graph import Graph
from edgekit_converters.targets.rounding import apply, nearest, restore_layers
from tests.converters.targets.rounding_networks import Drawn, inputs, outputs_of, separable


def statistics_of(graph: Graph, count: int = 16) -> Statistics:
    return observe(graph, iter(inputs(count)), count)


def refined(graph: Graph, *steps) -> Graph:
    return apply(graph, steps, statistics_of(graph), lambda: iter(inputs(16)))


def with_nearest_weights(graph: Graph) -> Graph:
    values = {}
    for layer in graph.layers:
        if layer.weight:
            constant = graph.constant(layer.weight)
            values[layer.weight] = nearest(constant.reshape(1, len(constant), -1).astype(float)).reshape(constant.shape)
    return graph.with_constants(values)


def test_rounding_leaves_less_noise_at_the_outputs_of_unseen_samples():
    graph = separable()
    unseen = inputs(64, seed=7)
    exact = outputs_of(graph, unseen)
    plain = np.square(outputs_of(with_nearest_weights(graph), unseen) - exact).mean()
    assert np.square(outputs_of(refined(graph, "round"), unseen) - exact).mean() < 0.6 * plain


@pytest.mark.parametrize("steps", [("equalise",), ("round",), ("equalise", "round"), ()])
def test_only_constants_change(steps):
    graph = separable()
    found = refined(graph, *steps)
    assert found.layers == graph.layers
    assert found.tensors == graph.tensors
    assert (found.inputs, found.outputs) == (graph.inputs, graph.outputs)


def test_weights_that_need_no_rounding_stay_and_so_do_their_biases():
    graph = with_nearest_weights(separable())
    found = refined(graph, "round")
    for layer in graph.layers:
        if layer.weight and layer.bias:
            np.testing.assert_allclose(found.constant(layer.weight), graph.constant(layer.weight), atol=1e-6)
            np.testing.assert_allclose(found.constant(layer.bias), graph.constant(layer.bias), atol=1e-5)


def test_the_same_samples_give_the_same_bytes():
    assert refined(separable(), "equalise", "round").data == refined(separable(), "equalise", "round").data


def test_a_weight_that_two_layers_read_stays_as_it_is():
    drawn = Drawn()
    drawn.constant("w", 3, 3, 3, 3)
    drawn.add("Conv", ["x", "w"], "a", pads=[1] * 4)
    drawn.add("Conv", ["a", "w"], "y", pads=[1] * 4)
    graph = drawn.graph((1, 3, 16, 16), "y")
    np.testing.assert_array_equal(refined(graph, "equalise", "round").constant("w"), graph.constant("w"))


def test_layers_that_stay_in_float_get_their_own_weights_back():
    graph = separable()
    rounded = refined(graph, "round")
    found = restore_layers(rounded, graph, {"stem"})
    np.testing.assert_array_equal(found.constant("stem.w"), graph.constant("stem.w"))
    np.testing.assert_array_equal(found.constant("stem.b"), graph.constant("stem.b"))
    np.testing.assert_array_equal(found.constant("expand.w"), rounded.constant("expand.w"))


def test_silent_samples_do_no_harm():
    """Nothing moves: there is nothing to learn from, and nothing is learnt."""
    graph = separable()
    silent = [[np.zeros((1, 3, 16, 16), np.float32)] for _ in range(4)]
    found = apply(graph, ("equalise", "round"), observe(graph, iter(silent), 4), lambda: iter(silent))
    unseen = inputs(16, seed=7)
    exact = outputs_of(graph, unseen)
    assert np.isfinite(outputs_of(found, unseen)).all()
    assert np.square(outputs_of(found, unseen) - exact).mean() < 0.01 * np.square(exact).mean()

"""A layer's weights times the patches that it sees is what the engine computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekit_converters.targets.equalise import as_matrix
from tests.converters.targets.rounding_networks import Drawn

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((4, 6, 1, 1), {}),
    "same padding": ((4, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "uneven padding": ((4, 6, 3, 2), {"pads": [0, 1, 2, 0]}),
    "strides": ((4, 6, 3, 3), {"strides": [2, 3]}),
    "dilations": ((4, 6, 3, 3), {"dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    "depthwise": ((6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise with a multiplier": ((12, 1, 3, 3), {"group": 6}),
    "groups": ((4, 3, 3, 3), {"group": 2}),
    "auto_pad": ((4, 6, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
}


def product(graph: Any, feed: list[np.ndarray], limit: int = 10**6) -> tuple[np.ndarray, np.ndarray]:
    """Output channels [rows, channels] by matrix product, and what the engine says."""
    (layer,) = graph.layers
    matrix = as_matrix(graph, layer)
    assert matrix is not None
    assert layer.weight is not None
    patches = matrix.patches(feed[0], limit, np.random.default_rng(0))
    assert patches is not None
    found = np.einsum("gon,grn->rgo", matrix.weights(graph.constant(layer.weight)), patches)
    bias = 0 if layer.bias is None else graph.constant(layer.bias)
    with graph.watch() as watched:
        values = watched.run(feed)[layer.outputs[0]]
    channels = values.shape[1] if values.ndim > 2 else values.shape[-1]
    rows = np.moveaxis(values, 1, -1) if values.ndim > 2 and layer.window else values
    return found.reshape(len(found), -1) + bias, rows.reshape(-1, channels if layer.window else values.shape[-1])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_is_patches_times_weights(name):
    shape, attributes = CONVOLUTIONS[name]
    drawn = Drawn()
    drawn.conv("x", "y", shape, **attributes)
    feed = [np.random.default_rng(1).normal(size=(1, 6, 9, 10)).astype(np.float32)]
    found, computed = product(drawn.graph((1, 6, 9, 10), "y"), feed)
    np.testing.assert_allclose(found, computed, rtol=1e-4, atol=1e-4)


def test_convolution_over_a_sequence_is_patches_times_weights():
    drawn = Drawn()
    drawn.conv("x", "y", (5, 6, 3), pads=[1, 1], strides=[2])
    graph = drawn.graph((1, 6, 11), "y")
    feed = [np.random.default_rng(1).normal(size=(1, 6, 11)).astype(np.float32)]
    found, computed = product(graph, feed)
    np.testing.assert_allclose(found, computed, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_is_rows_times_weights(transposed):
    drawn = Drawn()
    shape = (4, 7) if transposed else (7, 4)
    drawn.add("Gemm", ["x", drawn.constant("w", *shape), drawn.constant("b", 4)], "y", transB=transposed)
    feed = [np.random.default_rng(1).normal(size=(1, 7)).astype(np.float32)]
    found, computed = product(drawn.graph((1, 7), "y"), feed)
    np.testing.assert_allclose(found, computed, rtol=1e-4, atol=1e-5)


def test_matrix_product_of_a_sequence_is_rows_times_weights():
    drawn = Drawn()
    drawn.add("MatMul", ["x", drawn.constant("w", 7, 4)], "y")
    feed = [np.random.default_rng(1).normal(size=(1, 5, 7)).astype(np.float32)]
    found, computed = product(drawn.graph((1, 5, 7), "y"), feed)
    np.testing.assert_allclose(found, computed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_go_back_into_the_file_as_they_came(name):
    shape, attributes = CONVOLUTIONS[name]
    drawn = Drawn()
    drawn.conv("x", "y", shape, **attributes)
    graph = drawn.graph((1, 6, 9, 10), "y")
    (layer,) = graph.layers
    matrix = as_matrix(graph, layer)
    assert matrix is not None
    constant = graph.constant("y.w")
    np.testing.assert_array_equal(matrix.constant(matrix.weights(constant)), constant)


def test_products_of_two_activations_and_transposed_convolutions_are_none():
    drawn = Drawn()
    drawn.add("Transpose", ["x"], "t", perm=[0, 1, 3, 2])
    drawn.add("MatMul", ["x", "t"], "m")
    drawn.add("ConvTranspose", ["m", drawn.constant("w", 2, 3, 2, 2)], "y", strides=[2, 2])
    graph = drawn.graph((1, 2, 4, 4), "y")
    assert [as_matrix(graph, layer) for layer in graph.layers] == [None] * len(graph.layers)


def test_no_more_rows_are_drawn_than_asked_for():
    drawn = Drawn()
    drawn.conv("x", "y", (4, 6, 3, 3))
    graph = drawn.graph((1, 6, 9, 10), "y")
    matrix = as_matrix(graph, graph.layers[0])
    assert matrix is not None
    patches = matrix.patches(np.zeros((1, 6, 9, 10), np.float32), 5, np.random.default_rng(0))
    assert patches is not None
    assert patches.shape == (1, 5, 54)

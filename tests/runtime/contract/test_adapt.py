"""Pixels reach an artifact exactly as the original network would have seen them, by the shortest way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_runtime.contract import Adapter, ImageSpec, InputContract
from edgekit_runtime.errors import InputError
from edgekit_runtime.tensors import Quantization, TensorSpec


def image_input(mean, std, size=4):
    image = ImageSpec(size, size, tuple(map(float, mean)), tuple(map(float, std)))
    return InputContract("image", (size, size, 3), "float32", image)


def tensor(dtype, quantization=None, layout="NHWC", size=4):
    shape = (1, size, size, 3) if layout == "NHWC" else (1, 3, size, size)
    return TensorSpec("image", "t", dtype, shape, layout, quantization)


PIXELS = np.random.default_rng(3).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def expected(pixels, contract, spec):
    """The definition, written down once more, in double precision."""
    real = (pixels.astype(np.float64) - contract.image.mean) / contract.image.std
    if spec.quantization is None:
        return real
    limits = np.iinfo(spec.dtype)
    return np.clip(np.rint(real / spec.quantization.scale) + spec.quantization.zero_point, limits.min, limits.max)


@pytest.mark.parametrize(
    ("mean", "std", "scale", "zero_point", "dtype", "way"),
    [
        ((127,) * 3, (128,) * 3, 1 / 128, -1, "int8", "xor"),
        ((0,) * 3, (255,) * 3, 1 / 255, -128, "int8", "xor"),
        ((0,) * 3, (1,) * 3, 1.0, 0, "uint8", "same"),
        ((0,) * 3, (1,) * 3, 2.0, -128, "int8", "table"),
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), 0.0187, -14, "int8", "affine"),
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), 0.012, -14, "int8", "affine"),  # clips at both ends
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), 0.0187, 114, "uint8", "affine"),
    ],
)
def test_the_way_is_the_shortest_that_is_exact(mean, std, scale, zero_point, dtype, way):
    contract, spec = image_input(mean, std), tensor(dtype, Quantization(scale, zero_point))
    adapter = Adapter(contract, spec)
    assert adapter.way == way
    result = adapter(PIXELS)
    assert (result.shape, result.dtype) == ((1, 4, 4, 3), np.dtype(dtype))
    np.testing.assert_array_equal(result[0], expected(PIXELS, contract, spec))


@settings(deadline=None)
@given(st.floats(0, 200), st.floats(1, 260), st.floats(0.002, 2), st.integers(-128, 127))
def test_quantized_pixels_are_within_one_step_of_the_definition(mean, std, scale, zero_point):
    contract, spec = image_input((mean,) * 3, (std,) * 3), tensor("int8", Quantization(scale, zero_point))
    assert np.abs(Adapter(contract, spec)(PIXELS)[0] - expected(PIXELS, contract, spec)).max() <= 1


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_float_artifacts_get_normalised_pixels_in_their_layout(layout):
    contract, spec = image_input((127, 100, 50), (128, 60, 20)), tensor("float32", layout=layout)
    result = Adapter(contract, spec)(PIXELS)
    assert result.shape == spec.shape
    wanted = expected(PIXELS, contract, spec)
    np.testing.assert_allclose(
        result[0], wanted.transpose(2, 0, 1) if layout == "NCHW" else wanted, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_tensor_input_is_turned_only_where_the_artifact_has_its_axes_in_another_order(dtype, layout):
    item = np.arange(48, dtype=np.float32).reshape(4, 4, 3)
    quantization = Quantization(1.0, 0) if dtype == "int8" else None
    for channels_first in (False, True):
        given = item.transpose(2, 0, 1) if channels_first else item
        adapter = Adapter(InputContract("x", given.shape, "float32"), tensor(dtype, quantization, layout))
        wanted = item.transpose(2, 0, 1) if layout == "NCHW" else item
        np.testing.assert_array_equal(adapter(given)[0], wanted)


def test_an_array_ready_for_the_engine_is_not_touched():
    ready = np.zeros((4, 4, 3), np.int8)
    result = Adapter(image_input((0,) * 3, (1,) * 3), tensor("int8", Quantization(1.0, -128)))(ready)
    assert result.shape == (1, 4, 4, 3)
    assert np.shares_memory(result, ready)


def test_what_the_original_took_is_quantized():
    contract, spec = image_input((127,) * 3, (128,) * 3), tensor("int8", Quantization(1 / 128, -1))
    normalised = ((PIXELS.astype(np.float32) - 127) / 128).astype(np.float32)
    adapter = Adapter(contract, spec)
    np.testing.assert_array_equal(adapter(normalised), adapter(PIXELS))


def test_values_outside_the_range_are_clipped_not_wrapped():
    contract, spec = (
        InputContract("x", (3,), "float32"),
        TensorSpec("x", "x", "int8", (1, 3), None, Quantization(0.1, 0)),
    )
    np.testing.assert_array_equal(Adapter(contract, spec)(np.array([-99.0, 0.0, 99.0]))[0], [-128, 0, 127])


def test_fractions_for_an_integer_input_are_refused():
    adapter = Adapter(InputContract("ids", (3,), "int32"), TensorSpec("ids", "ids", "int32", (1, 3)))
    assert adapter(np.array([1, 2, 3], np.int64)).dtype == np.int32
    with pytest.raises(InputError, match="without losing values"):
        adapter(np.array([1.5, 2.0, 3.0]))

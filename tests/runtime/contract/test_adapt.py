"""Pixels reach an artifact exactly as the original network would have seen them, by the shortest way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.pixels import quantize
from edgekit_runtime.contract.spec import ImageSpec, InputContract, Quantization, TensorSpec
from edgekit_runtime.system.errors import InputError


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


@settings(max_examples=examples(60))
@given(
    st.lists(st.floats(0, 255), min_size=3, max_size=3),
    st.lists(st.floats(0.5, 300), min_size=3, max_size=3),
    st.floats(0.001, 3),
    st.integers(-128, 127),
    st.sampled_from(["int8", "uint8", "int16"]),
    st.sampled_from(["NHWC", "NCHW"]),
)
def test_every_pixel_of_every_channel_is_quantized_as_a_float_would_be(mean, std, scale, zero_point, dtype, layout):
    """Whichever way was chosen: exact, not within a step."""
    image = ImageSpec(16, 16, tuple(mean), tuple(std))
    contract = InputContract("image", (16, 16, 3), "float32", image)
    spec = tensor(dtype, Quantization(scale, zero_point), layout, size=16)
    every = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    real = (every.astype(np.float32) - np.float32(mean)) / np.float32(std)
    wanted = quantize(real, spec.quantization, np.dtype(dtype))
    found = Adapter(contract, spec)(every)[0]
    np.testing.assert_array_equal(found, wanted.transpose(2, 0, 1) if layout == "NCHW" else wanted)
    assert found.dtype == np.dtype(dtype)


@settings(max_examples=examples(60))
@given(
    st.lists(st.floats(width=32), min_size=6, max_size=6),
    st.sampled_from([0.0, 1e-3, 1.0, 300.0]),
    st.floats(0.001, 3),
    st.integers(-128, 127),
    st.sampled_from(["int8", "int16"]),
)
def test_the_shortcut_of_floats_quantizes_as_ever_and_passes_on_what_is_no_number(
    drawn, spread, scale, zero_point, dtype
):
    """Within the range that needs no clipping, at its ends, and far beyond."""
    quantization, limits = Quantization(scale, zero_point), np.iinfo(dtype)
    ends = [(end - zero_point) * scale for end in (limits.min, limits.max)]
    real = np.array([*drawn, *ends], np.float32) if spread == 0.0 else spread * np.linspace(*ends, 8, dtype=np.float32)
    adapter = Adapter(InputContract("x", (8,), "float32"), TensorSpec("x", "x", dtype, (1, 8), None, quantization))
    with np.errstate(over="ignore"):
        found = adapter.shortcuts(())[np.dtype(np.float32)](real)
        if np.isfinite(real).all():
            steps = np.rint(real / np.float32(scale)) + zero_point  # the definition, step by step
            np.testing.assert_array_equal(found[0], np.clip(steps, limits.min, limits.max).astype(dtype))
        else:
            assert found is None


@pytest.mark.parametrize("side", [1, 7, 97, 224])
def test_pictures_of_any_height_are_quantized_alike(side):
    """Constants are laid out over rows, and not every height has a divisor."""
    image = ImageSpec(side, 5, (123.7, 116.3, 103.5), (58.4, 57.1, 57.4))
    contract = InputContract("image", (side, 5, 3), "float32", image)
    pixels = np.random.default_rng(side).integers(0, 256, (side, 5, 3), np.uint8)
    for dtype, quantization in (("int8", Quantization(0.0187, -14)), ("float32", None)):
        spec = TensorSpec("image", "t", dtype, (1, side, 5, 3), "NHWC", quantization)
        np.testing.assert_allclose(
            Adapter(contract, spec)(pixels)[0], expected(pixels, contract, spec), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_array_equal(  # a view with gaps between its rows
            Adapter(contract, spec)(np.repeat(pixels, 2, axis=1)[:, ::2]), Adapter(contract, spec)(pixels)
        )


def clipped_share(adapter, made, samples):
    counts = [adapter.clipped(made(adapter), sample) for sample in range(samples)]
    return sum(c for c, _ in counts), sum(n for _, n in counts)


def test_the_share_of_clipped_values_is_right_over_many_requests():
    """Every value is as likely to be looked at as any other, so also one corner of a picture counts as what it is."""
    contract, spec = image_input((0,) * 3, (1,) * 3, size=64), tensor("int8", Quantization(1.0, -128), size=64)
    adapter = Adapter(contract, spec)
    pixels = np.full((64, 64, 3), 100, np.uint8)
    pixels[:8, :8, 0], pixels[:8, :8, 1] = 0, 255
    clipped, counted = clipped_share(adapter, lambda adapt: adapt(pixels), 64)
    assert clipped / counted == pytest.approx(2 * 64 / pixels.size, rel=0.1)


@pytest.mark.parametrize(("dtype", "limits"), [("int8", (-128, 127)), ("uint8", (0, 255))])
def test_only_the_limits_count_as_clipped(dtype, limits):
    spec = TensorSpec("x", "x", dtype, (1, 256), None, Quantization(1.0, 0))
    adapter = Adapter(InputContract("x", (256,), "float32"), spec)
    every = np.arange(256, dtype=np.uint8).view(dtype)
    assert adapter.clipped(every[None], 0) == (2, 256)
    inner = np.array([v for v in every if v not in limits], dtype)
    assert Adapter(InputContract("x", (256,), "float32"), spec).clipped(inner[None], 0)[0] == 0


def test_an_artifact_that_takes_floats_clips_nothing():
    adapter = Adapter(image_input((0,) * 3, (1,) * 3), tensor("float32"))
    assert clipped_share(adapter, lambda adapt: adapt(PIXELS), 2) == (0, 0)


READY = tensor("int8", Quantization(1 / 128, -1))
OTHERS = {
    "float, channels last": tensor("float32"),
    "float, channels first": tensor("float32", layout="NCHW"),
    "another scale": tensor("int8", Quantization(1 / 100, 3)),
    "uint8": tensor("uint8", Quantization(1 / 128, 127)),
    "int8, channels first": tensor("int8", READY.quantization, "NCHW"),
}


@pytest.mark.parametrize("spec", OTHERS.values(), ids=OTHERS)
def test_what_is_ready_for_the_primary_artifact_is_what_every_artifact_takes(spec):
    contract = image_input((127,) * 3, (128,) * 3)
    ready = Adapter(contract, READY)(PIXELS)[0]
    normalised = ((PIXELS.astype(np.float32) - 127) / 128).astype(np.float32)
    np.testing.assert_array_equal(Adapter(contract, spec, READY)(ready), Adapter(contract, spec)(normalised))


def test_a_number_ready_for_the_primary_artifact_is_no_number_of_the_original():
    """An input that is no picture takes integers for floats, but for the one form that is the engine's."""
    contract = InputContract("x", (3,), "float32")
    primary = TensorSpec("x", "x", "int8", (1, 3), None, Quantization(0.5, -2))
    alternate = TensorSpec("x", "x", "float32", (-1, 3))
    given = np.array([-2, 0, 2], np.int8)
    np.testing.assert_array_equal(Adapter(contract, alternate, primary)(given)[0], np.float32([0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(
        Adapter(contract, primary, alternate)(given)[0], [-6, -2, 2], "they are numbers there"
    )

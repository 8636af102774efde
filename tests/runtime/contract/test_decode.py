"""Whatever a caller has becomes the canonical tensor, or one clear error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from edgekit_runtime.contract import Decoder, ImageSpec, InputContract
from edgekit_runtime.errors import InputError


def contract(**changes):
    spec = {"height": 4, "width": 4, "mean": (0.0,) * 3, "std": (1.0,) * 3} | changes
    image = ImageSpec(**spec)
    return InputContract("image", (image.height, image.width, image.channels), "float32", image)


DECODE = Decoder(contract())
TENSOR = Decoder(InputContract("x", (3,), "float32"))


def encoded(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


RED = Image.new("RGB", (4, 4), (255, 0, 0))


@pytest.mark.parametrize("form", ["path", "str", "bytes", "bytearray", "memoryview", "pil", "array", "batched"])
def test_every_form_of_the_same_picture_gives_the_same_tensor(tmp_path, form):
    data = encoded(RED)
    (tmp_path / "red.png").write_bytes(data)
    value = {
        "path": tmp_path / "red.png",
        "str": str(tmp_path / "red.png"),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "pil": RED,
        "array": np.asarray(RED),
        "batched": np.asarray(RED)[None],
    }[form]
    decoded = DECODE(value)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, np.broadcast_to([255, 0, 0], (4, 4, 3)))


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), (255, 0, 0)),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),
        ("LA", (0, 0), (255, 255, 255)),
        ("CMYK", (0, 0, 0, 255), (0, 0, 0)),
        ("I;16", 65535, (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb_with_alpha_over_white(mode, colour, expected):
    np.testing.assert_array_equal(DECODE(Image.new(mode, (4, 4), colour))[0, 0], expected)


def test_a_palette_is_expanded():
    np.testing.assert_array_equal(DECODE(encoded(RED.quantize()))[0, 0], (255, 0, 0))


def test_exif_orientation_is_applied():
    picture = Image.new("RGB", (4, 4), "white")
    picture.putpixel((0, 0), (0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held with its right side up: turn by 90 degrees clockwise
    turned = DECODE(encoded(picture, "PNG", exif=exif))
    assert turned[0, 3].sum() == 0


def test_bgr_order_is_the_contracts_business():
    decode = Decoder(contract(color="bgr"))
    np.testing.assert_array_equal(decode(RED)[0, 0], (0, 0, 255))


def test_a_grey_contract_gives_one_channel():
    decode = Decoder(contract(color="gray", mean=(0.0,), std=(1.0,)))
    assert decode(RED).shape == (4, 4, 1)
    assert decode(np.zeros((9, 9), np.uint8)).shape == (4, 4, 1)


def test_uint8_pixels_of_another_size_are_resized():
    assert DECODE(np.full((30, 20, 3), 7, np.uint8)).shape == (4, 4, 3)


def test_centre_crop_keeps_the_centre_and_the_aspect():
    picture = Image.new("RGB", (30, 10), "white")
    picture.paste((255, 0, 0), (10, 0, 20, 10))
    decode = Decoder(contract(resize="center-crop"))
    np.testing.assert_array_equal(decode(picture), np.broadcast_to([255, 0, 0], (4, 4, 3)))


def test_letterbox_pads_with_grey():
    decode = Decoder(contract(resize="letterbox"))
    decoded = decode(Image.new("RGB", (8, 4), "white"))
    np.testing.assert_array_equal(decoded[0, 0], (114, 114, 114))
    np.testing.assert_array_equal(decoded[1, 1], (255, 255, 255))


def test_a_float_array_of_the_contracts_shape_is_left_alone():
    array = np.random.default_rng(0).normal(size=(4, 4, 3)).astype(np.float32)
    assert DECODE(array) is array


def test_channels_first_is_turned():
    array = np.arange(48, dtype=np.float32).reshape(3, 4, 4)
    np.testing.assert_array_equal(DECODE(array), array.transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not an image that can be decoded"),
        (b"GIF89a but not really", "not an image that can be decoded"),
        (encoded(Image.new("RGB", (64, 64)))[:60], "not an image that can be decoded"),
        (np.zeros((5, 5, 3), np.float32), r"float32 array of shape \[5, 5, 3\] does not fit"),
        (np.zeros((5, 5, 2), np.uint8), "not a picture"),
        (np.zeros((0, 5, 3), np.uint8), "not a picture"),
        (np.zeros((2, 4, 4, 3), np.uint8), "not a picture"),
        ("no/such/file.png", r"no/such/file\.png: cannot be read"),
        (object(), "not a tensor"),
        (None, "not a tensor"),
    ],
    ids=[
        "empty",
        "garbage",
        "truncated",
        "float size",
        "channels",
        "zero side",
        "batch of two",
        "absent",
        "object",
        "none",
    ],
)
def test_what_cannot_be_decoded_is_one_clear_error(value, why):
    with pytest.raises(InputError, match=why):
        DECODE(value)


def test_a_picture_that_asks_for_gigabytes_is_refused_before_it_is_decoded():
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    with pytest.raises(InputError, match=r"pixels is more than|not an image that can be decoded"):
        DECODE(bomb)


@pytest.mark.parametrize("value", [[1.0, 2.0, 3.0], np.ones(3), np.ones((1, 3), np.int32)])
def test_a_tensor_input_takes_arrays_and_lists(value):
    assert TENSOR(value).shape == (3,)


@pytest.mark.parametrize("value", [np.ones(4), "x", b"123", {"a": 1}])
def test_a_tensor_input_says_what_it_wants(value):
    with pytest.raises(InputError, match=r"Pass an array of shape \[3\], dtype float32"):
        TENSOR(value)

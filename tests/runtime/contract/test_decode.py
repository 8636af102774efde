"""Whatever a caller has becomes the canonical tensor, or one clear error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.picture import EncodedImage
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError


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
        (b"", "is empty: no byte of a picture arrived"),
        (b"GIF89a but not really", "not an image that can be decoded"),
        (encoded(Image.new("RGB", (64, 64)))[:60], "not an image that can be decoded"),
        (np.zeros((5, 5, 3), np.float32), r"float32 array of shape \[5, 5, 3\] does not fit"),
        (np.zeros((5, 5, 2), np.uint8), "not a picture"),
        (np.zeros((0, 5, 3), np.uint8), "not a picture"),
        (
            np.zeros((2, 4, 4, 3), np.uint8),
            r"a batch of 2 items; a request is one item\. Call submit\(\) once for each",
        ),
        (np.zeros((0, 4, 4, 3), np.uint8), "an empty batch"),
        (np.zeros((3, 4, 4, 3), np.float32), "a batch of 3 items"),
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
        "empty batch",
        "batch of floats",
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


PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint16", "uint32", "bool", "complex64", "U3", "O", "M8[s]"]
)
def test_pixels_that_are_not_uint8_are_refused_never_guessed(dtype):
    with pytest.raises(InputError, match=r"Pass pixels 0\.\.255 with \.astype\(numpy\.uint8\)"):
        DECODE(PIXELS.astype(dtype))


def test_a_nested_list_of_pixels_is_refused_too():
    with pytest.raises(InputError, match="an image cannot be int64"):
        DECODE(PIXELS.tolist())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad):
    image = np.zeros((4, 4, 3), np.float32)
    image[1, 2, 0] = bad
    for decode, value in ((DECODE, image), (TENSOR, np.array([0.0, bad, 1.0]))):
        with pytest.raises(InputError, match="holds NaN or infinity"):
            decode(value)


def test_integers_that_would_wrap_are_refused():
    tokens = Decoder(InputContract("tokens", (3,), "int32"))
    assert tokens(np.arange(3)).shape == (3,)
    with pytest.raises(InputError, match="outside int32"):
        tokens(np.arange(3) + 2**32)
    with pytest.raises(InputError, match="it takes int32, not float64"):
        tokens(np.array([0.0, 1.0, 2.0]))


def test_what_is_ready_for_the_engine_passes_where_the_artifact_takes_it():
    ready = np.zeros((4, 4, 3), np.int8)
    assert Decoder(contract(), [np.dtype(np.int8)])(ready) is ready


def test_a_camera_frame_with_alpha_has_the_cameras_order_too():
    decode = Decoder(contract(color="bgr", height=2, width=2))
    bgra = np.zeros((2, 2, 4), np.uint8)
    bgra[:] = (10, 20, 30, 255)
    np.testing.assert_array_equal(decode(bgra)[0, 0], (10, 20, 30))


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (Image.new("RGB", (0, 0)), "is not a picture"),
        (Image.new("F", (4, 4), 0.5), "mode F has no fixed range"),
        (Image.new("I", (4, 4), 200), "mode I has no fixed range"),
    ],
    ids=["empty", "float", "int"],
)
def test_pictures_without_a_meaning_are_refused(picture, why):
    with pytest.raises(InputError, match=why):
        DECODE(picture)


def test_a_truncated_or_closed_picture_is_one_clear_error():
    lazy = Image.open(io.BytesIO(encoded(Image.effect_noise((64, 64), 50).convert("RGB"))[:900]))
    closed = Image.open(io.BytesIO(encoded(RED)))
    closed.close()
    for picture in (lazy, closed):
        with pytest.raises(InputError, match="not an image that can be decoded"):
            DECODE(picture)


def test_a_path_with_a_nul_is_one_clear_error():
    with pytest.raises(InputError, match="cannot be read"):
        DECODE("cat\0.png")


def test_decoding_in_threads_leaves_the_applications_warnings_alone():
    import warnings
    from concurrent.futures import ThreadPoolExecutor

    before = list(warnings.filters)
    data = encoded(Image.effect_noise((300, 300), 50).convert("RGB"))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(DECODE, [data] * 40))
    assert warnings.filters == before


def test_encoded_bytes_for_an_input_that_is_no_image_are_told_so(tmp_path):
    (tmp_path / "cat.png").write_bytes(encoded(RED))
    with pytest.raises(InputError, match=r"this input is not an image"):
        TENSOR(EncodedImage.read(tmp_path / "cat.png"))

"""Two requests are the same when every byte, dtype and shape is; nothing less."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgekit_runtime.cache.identity import identify
from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.picture import EncodedImage
from edgekit_runtime.system.errors import InputError


def key(value, namespace=b"model"):
    return identify({"x": value}, namespace)[0]


def png(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@given(st.integers(0, 224 * 224 * 3 - 1))
def test_one_pixel_makes_another_key(position):
    one = np.zeros((224, 224, 3), np.uint8)
    other = one.copy()
    other.reshape(-1)[position] = 1
    assert key(one) != key(other)


def test_a_shortened_text_of_an_array_is_no_key():
    one = np.zeros((224, 224, 3), np.uint8)
    other = one.copy()
    other[112, 112, 1] = 255
    assert str(one) == str(other)  # what md5(str(array)) would have compared
    assert key(one) != key(other)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros(8, np.uint8), np.zeros(2, np.float32)),
        (np.zeros((2, 4), np.uint8), np.zeros((4, 2), np.uint8)),
        (np.zeros(4, np.uint8), bytes(4)),
        (np.zeros(4, np.uint8), np.zeros(4, np.int8)),
        (Image.new("L", (2, 2)), Image.new("L", (4, 1))),
        (Image.new("RGB", (2, 2)), Image.new("HSV", (2, 2))),
    ],
    ids=["dtype", "shape", "kind", "sign", "size", "mode"],
)
def test_equal_bytes_of_another_kind_are_another_request(left, right):
    assert key(left) != key(right)


def test_another_model_is_another_request():
    assert key(np.zeros(4), b"one") != key(np.zeros(4), b"two")


def test_a_view_has_the_key_of_its_copy():
    frame = np.arange(24, dtype=np.uint8).reshape(4, 6)
    assert key(frame[:, ::2]) == key(frame[:, ::2].copy())


def test_a_path_is_read_once_and_has_the_key_of_its_bytes(tmp_path):
    path = tmp_path / "p.png"
    data = png(Image.new("RGB", (3, 3), "red"))
    path.write_bytes(data)
    path_key, inputs = identify({"x": path}, b"model")
    assert inputs["x"] == EncodedImage(data, str(path))
    assert path_key == key(data) == key(str(path))


def test_a_palette_belongs_to_an_image():
    red, blue = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    assert key(red) != key(blue)


def test_what_has_no_bytes_has_no_key():
    assert key([1, 2, 3]) is None


def test_several_inputs_make_one_key_whatever_their_order():
    a, b = np.zeros(3), np.ones(3)
    assert identify({"a": a, "b": b}, b"m")[0] == identify({"b": b, "a": a}, b"m")[0]
    assert identify({"a": a, "b": b}, b"m")[0] != identify({"a": b, "b": a}, b"m")[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.jpg"):
        identify({"x": tmp_path / "absent.jpg"}, b"model")


YUV = np.arange(4 * 4 * 3 // 2, dtype=np.uint8).tobytes()
FRAMES = {
    "bgr": Frame(np.zeros((4, 4, 3), np.uint8), "bgr"),
    "rgb": Frame(np.zeros((4, 4, 3), np.uint8), "rgb"),
    "nv12": Frame(YUV, "nv12", width=4, height=4),
    "nv21": Frame(YUV, "nv21", width=4, height=4),
    "full range": Frame(YUV, "nv12", width=4, height=4, full_range=True),
    "another matrix": Frame(YUV, "nv12", width=4, height=4, matrix="bt709"),
    "another width": Frame(YUV, "nv12", width=2, height=4, stride=4),
    "other bytes": Frame(YUV[::-1], "nv12", width=4, height=4),
    "an array": np.zeros((4, 4, 3), np.uint8),
}


def test_every_setting_of_a_camera_frame_belongs_to_its_key():
    assert len({key(frame) for frame in FRAMES.values()}) == len(FRAMES)


def test_the_same_frame_twice_is_one_request():
    assert key(Frame(bytearray(YUV), "nv12", width=4, height=4)) == key(FRAMES["nv12"])
    pixels = np.arange(96, dtype=np.uint8).reshape(4, 8, 3)
    assert key(Frame(pixels[:, ::2], "bgr")) == key(Frame(pixels[:, ::2].copy(), "bgr"))

"""Where a picture goes on its way into the network, every point finds its way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.geometry import Geometry, place, stored_box
from edgekit_runtime.contract.spec import ImageSpec

SIDE = st.integers(1, 5000)
IMAGES = st.builds(
    lambda height, width, resize, crop: ImageSpec(
        height, width, (0.0,) * 3, (1.0,) * 3, resize=resize, crop=crop if resize == "center-crop" else 1.0
    ),
    st.integers(1, 640),
    st.integers(1, 640),
    st.sampled_from(["stretch", "center-crop", "letterbox"]),
    st.floats(0.1, 1.0),
)


@given(SIDE, SIDE, IMAGES, st.lists(st.tuples(*[st.floats(-100, 6000)] * 4), max_size=5))
def test_boxes_go_to_the_network_and_back(width, height, image, corners):
    geometry = place(width, height, image).geometry
    boxes = np.array(corners, np.float64).reshape(-1, 4)
    corner, scale = (geometry.left, geometry.top) * 2, (geometry.scale_x, geometry.scale_y) * 2
    in_network = (boxes - np.array(corner)) / np.array(scale)
    np.testing.assert_allclose(geometry.to_caller(in_network), boxes, rtol=1e-9, atol=1e-6)


@given(SIDE, SIDE, IMAGES)
def test_what_is_used_of_a_picture_lies_inside_it_and_inside_the_network(width, height, image):
    placement = place(width, height, image)
    left, top, right, bottom = placement.crop
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    x, y = placement.offset
    inner = np.array([[x, y, x + placement.inner[0], y + placement.inner[1]]], float)
    assert inner.min() >= 0
    assert (inner[0, 2:] <= (image.width, image.height)).all()
    np.testing.assert_allclose(placement.geometry.to_caller(inner)[0], placement.crop, atol=1e-6)


@given(SIDE, SIDE, IMAGES)
def test_stretch_and_letterbox_use_the_whole_picture(width, height, image):
    placement = place(width, height, image)
    if image.resize != "center-crop":
        assert placement.crop == (0, 0, width, height)


@pytest.mark.parametrize(
    ("resize", "size", "box", "callers"),
    [
        ("stretch", (1280, 720), (0, 0, 320, 320), (0, 0, 1280, 720)),
        ("stretch", (1280, 720), (160, 160, 240, 200), (640, 360, 960, 450)),
        ("letterbox", (1280, 720), (0, 70, 320, 250), (0, 0, 1280, 720)),
        ("letterbox", (720, 1280), (70, 0, 250, 320), (0, 0, 720, 1280)),
        ("center-crop", (1280, 720), (0, 0, 320, 320), (280, 0, 1000, 720)),
    ],
)
def test_boxes_of_the_network_are_told_in_the_callers_pixels(resize, size, box, callers):
    image = ImageSpec(320, 320, (0.0,) * 3, (1.0,) * 3, resize=resize)
    np.testing.assert_allclose(place(*size, image).geometry.to_caller(np.array([box]))[0], callers)


def test_a_picture_of_the_networks_size_is_where_it_is():
    image = ImageSpec(240, 320, (0.0,) * 3, (1.0,) * 3, resize="letterbox")
    assert place(320, 240, image).geometry == Geometry(320, 240)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_of_the_upright_picture_is_found_in_the_stored_one(orientation):
    Image = pytest.importorskip("PIL.Image")
    ImageOps = pytest.importorskip("PIL.ImageOps")
    stored = Image.fromarray(np.arange(7 * 5, dtype=np.uint8).reshape(5, 7))
    stored.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(stored)
    box = (1, 2, 4, 5)
    found = stored.crop(stored_box(box, stored.size, orientation))
    found.getexif()[0x0112] = orientation
    assert ImageOps.exif_transpose(found).tobytes() == upright.crop(box).tobytes()

"""Camera frames of every format become the picture that they are of, whatever padding a driver leaves."""

from __future__ import annotations

import sys
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.frame import Frame, FrameFormat, to_rgb
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError

RANDOM = np.random.default_rng(5)


def decoder(width, height, **changes):
    channels = 1 if changes.get("color") == "gray" else 3
    image = ImageSpec(height, width, (0.0,) * channels, (1.0,) * channels, **changes)
    return Decoder(InputContract("image", (height, width, channels), "float32", image))


def formula(y, u, v, matrix="bt601", full_range=False):
    """BT.601-7 and BT.709-6 in double precision, one pixel after the other."""
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}[matrix]
    kg = 1 - kr - kb
    y, u, v = (plane.astype(np.float64) for plane in (y, u, v))
    y, u, v = (
        (y, u - 128, v - 128) if full_range else ((y - 16) / 219 * 255, (u - 128) / 224 * 255, (v - 128) / 224 * 255)
    )
    rgb = np.stack([y + 2 * (1 - kr) * v, y, y + 2 * (1 - kb) * u], axis=-1)
    rgb[..., 1] = (y - kr * rgb[..., 0] - kb * rgb[..., 2]) / kg
    rgb[..., 1] = y - 2 * (1 - kb) * kb / kg * u - 2 * (1 - kr) * kr / kg * v
    return rgb.clip(0, 255)


def planes(width, height):
    return (
        RANDOM.integers(0, 256, (height, width), np.uint8),
        RANDOM.integers(0, 256, (height // 2, width // 2), np.uint8),
        RANDOM.integers(0, 256, (height // 2, width // 2), np.uint8),
    )


def doubled(plane):
    return plane.repeat(2, axis=0).repeat(2, axis=1)


def buffer(kind, y, u, v, pad=0, more_rows=0):
    """What a driver would hand out: rows padded by `pad` bytes, luma by `more_rows` rows, all of it filled with 77."""

    def padded(plane, columns, rows):
        whole = np.full((rows, columns), 77, np.uint8)
        whole[: plane.shape[0], : plane.shape[1]] = plane
        return whole.reshape(-1)

    height, width = y.shape
    stride, rows = width + pad, height + more_rows
    parts = [padded(y, stride, rows)]
    if kind in ("nv12", "nv21"):
        pair = np.stack([u, v] if kind == "nv12" else [v, u], axis=-1).reshape(height // 2, width)
        parts.append(padded(pair, stride, rows // 2))
    else:
        parts += [padded(plane, stride // 2, rows // 2) for plane in ([u, v] if kind == "i420" else [v, u])]
    return np.concatenate(parts)


@settings(max_examples=examples(30))
@given(st.sampled_from(["bt601", "bt709"]), st.booleans(), st.integers(0, 2**32 - 1))
def test_colours_are_those_of_the_recommendations(matrix, full_range, seed):
    random = np.random.default_rng(seed)
    y, u, v = random.integers(0, 256, (3, 20, 30), np.uint8)
    found = to_rgb(y, u, v, matrix, full_range).astype(np.float64)
    assert np.abs(found - formula(y, u, v, matrix, full_range)).max() <= 1.5


@pytest.mark.parametrize(
    ("yuv", "rgb"),
    [
        ((16, 128, 128), (0, 0, 0)),
        ((235, 128, 128), (255, 255, 255)),
        ((81, 90, 240), (255, 0, 0)),
        ((145, 54, 34), (0, 255, 0)),
        ((41, 240, 110), (0, 0, 255)),
    ],
    ids=["black", "white", "red", "green", "blue"],
)
def test_the_colour_bars_come_out(yuv, rgb):
    y, u, v = (np.full((2, 2), value, np.uint8) for value in yuv)
    assert np.abs(to_rgb(y, u, v, "bt601", False)[0, 0].astype(int) - rgb).max() <= 2


@pytest.mark.parametrize("kind", ["nv12", "nv21", "i420", "yv12"])
@pytest.mark.parametrize(("pad", "more_rows"), [(0, 0), (6, 0), (0, 4), (32, 8)])
def test_every_layout_with_any_padding_is_the_same_picture(kind, pad, more_rows):
    y, u, v = planes(12, 8)
    data = buffer(kind, y, u, v, pad, more_rows)
    frame = Frame(data, kind, width=12, height=8, stride=12 + pad, rows=8 + more_rows)
    for found, wanted in zip(frame.parts, (y, u, v), strict=True):
        np.testing.assert_array_equal(found, wanted)
    picture = decoder(12, 8)(frame)
    assert np.abs(picture - formula(y, doubled(u), doubled(v))).max() <= 1.5


@pytest.mark.parametrize("kind", ["yuyv", "uyvy"])
@pytest.mark.parametrize("pad", [0, 8])
def test_two_pixels_of_a_row_may_share_their_colour(kind, pad):
    y = RANDOM.integers(0, 256, (7, 12), np.uint8)
    u, v = RANDOM.integers(0, 256, (2, 7, 6), np.uint8)
    four = [y[:, ::2], u, y[:, 1::2], v] if kind == "yuyv" else [u, y[:, ::2], v, y[:, 1::2]]
    rows = np.stack(four, axis=-1).reshape(7, 24)
    padded = np.concatenate([rows, np.full((7, pad), 77, np.uint8)], axis=1)
    frame = Frame(padded.tobytes(), kind, width=12, height=7, stride=24 + pad)
    for found, wanted in zip(frame.parts, (y, u, v), strict=True):
        np.testing.assert_array_equal(found, wanted)
    wanted = formula(y, u.repeat(2, axis=1), v.repeat(2, axis=1))
    assert np.abs(decoder(12, 7)(frame) - wanted).max() <= 1.5
    as_array = Frame(rows.reshape(7, 12, 2), kind)  # as OpenCV gives it without conversion
    np.testing.assert_array_equal(decoder(12, 7)(as_array), decoder(12, 7)(frame))


def test_a_frame_that_shares_colours_along_rows_is_resized_in_its_proportions():
    pytest.importorskip("PIL")
    y, u, v = smooth(320, 240)
    u, v = u.repeat(2, axis=0), v.repeat(2, axis=0)
    pairs = np.stack([y[:, ::2], u, y[:, 1::2], v], axis=-1).tobytes()
    halves = buffer("i420", y, u[::2], v[::2])
    for resize in ("stretch", "center-crop", "letterbox"):
        decode = decoder(64, 48, resize=resize)
        found = decode(Frame(pairs, "yuyv", width=320, height=240)).astype(int)
        assert np.abs(found - decode(Frame(halves, "i420", width=320, height=240))).max() <= 4


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, np.asarray])
def test_any_buffer_will_do(form):
    y, u, v = planes(12, 8)
    data = buffer("nv12", y, u, v).tobytes()
    frame = Frame(np.frombuffer(data, np.uint8) if form is np.asarray else form(data), "nv12", width=12, height=8)
    np.testing.assert_array_equal(frame.parts[0], y)


def test_a_two_dimensional_array_says_its_own_size():
    y, u, v = planes(12, 8)
    frame = Frame(buffer("i420", y, u, v).reshape(12, 12), "i420")
    assert frame.size == (12, 8)
    padded = Frame(buffer("i420", y, u, v, pad=4).reshape(12, 16), "i420", width=12)
    np.testing.assert_array_equal(padded.parts[2], v)


PIXELS = RANDOM.integers(0, 256, (8, 12, 3), np.uint8)


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_the_order_of_a_packed_frame_is_what_it_says(color):
    decode = decoder(12, 8, color=color)
    wanted = PIXELS if color == "rgb" else PIXELS[:, :, ::-1]
    np.testing.assert_array_equal(decode(Frame(PIXELS, "rgb")), wanted)
    np.testing.assert_array_equal(decode(Frame(PIXELS[:, :, ::-1], "bgr")), wanted)
    alpha = np.full((8, 12, 1), 255, np.uint8)
    np.testing.assert_array_equal(decode(Frame(np.concatenate([PIXELS[:, :, ::-1], alpha], 2), "bgra")), wanted)
    np.testing.assert_array_equal(decode(Frame(PIXELS.tobytes(), "rgb", width=12, height=8)), wanted)


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_a_packed_frame_is_resized_like_the_picture_it_is(color):
    Image = pytest.importorskip("PIL.Image")
    decode = decoder(5, 3, color=color)
    wanted = decode(Image.fromarray(PIXELS))
    np.testing.assert_array_equal(decode(Frame(PIXELS, "rgb")), wanted)
    np.testing.assert_array_equal(decode(Frame(PIXELS[:, :, ::-1], "bgr")), wanted)


def test_padded_rows_of_a_packed_buffer_are_skipped():
    rows = np.full((8, 40), 77, np.uint8)
    rows[:, :36] = PIXELS.reshape(8, 36)
    np.testing.assert_array_equal(decoder(12, 8)(Frame(rows.tobytes(), "rgb", width=12, height=8, stride=40)), PIXELS)


def smooth(width, height):
    """Planes without sharp edges, as of a photograph out of focus: resizing before or after colouring is alike."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    luma = 126 + 50 * np.sin(6 * x + 2 * y)
    half_x, half_y = np.meshgrid(np.linspace(0, 1, width // 2), np.linspace(0, 1, height // 2))
    return tuple(
        plane.astype(np.uint8) for plane in (luma, 128 + 50 * np.cos(4 * half_x), 128 + 50 * np.sin(3 * half_y))
    )


@pytest.mark.parametrize("resize", ["stretch", "center-crop", "letterbox"])
@pytest.mark.parametrize("size", [(64, 48), (322, 246), (300, 100)])
def test_sizing_before_colouring_is_the_same_picture(resize, size):
    Image = pytest.importorskip("PIL.Image")
    y, u, v = smooth(320, 240)
    decode = decoder(*size, resize=resize)
    coloured = Image.fromarray(to_rgb(y, u, v, "bt601", False))
    found = decode(Frame(buffer("nv12", y, u, v), "nv12", width=320, height=240)).astype(int)
    assert np.abs(found - decode(coloured)).max() <= 6


@pytest.mark.parametrize("full_range", [False, True])
def test_grey_is_the_luma(full_range):
    y, u, v = planes(12, 8)
    frame = Frame(buffer("nv21", y, u, v), "nv21", width=12, height=8, full_range=full_range)
    wanted = y if full_range else ((y.astype(float) - 16) / 219 * 255).clip(0, 255)
    assert np.abs(decoder(12, 8, color="gray")(frame)[:, :, 0] - wanted).max() <= 0.5


def test_a_frame_of_the_networks_size_needs_no_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    y, u, v = planes(12, 8)
    for image in ({}, {"color": "bgr"}, {"color": "gray"}, {"resize": "letterbox"}, {"resize": "center-crop"}):
        decode = decoder(12, 8, **image)
        decode(Frame(buffer("nv12", y, u, v), "nv12", width=12, height=8))
        if image.get("color") != "gray":
            decode(Frame(PIXELS, "bgr"))


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_the_camera_may_fill_its_buffer_again(color):
    """The item never shares memory with the frame."""
    y, u, v = planes(12, 8)
    data = buffer("nv12", y, u, v)
    decode = decoder(12, 8, color=color)
    for frame in (
        Frame(data, "nv12", width=12, height=8),
        Frame(data, "nv12", width=12, height=8, full_range=True),
        Frame(PIXELS, "rgb"),
        Frame(PIXELS, "bgr"),
        Frame(y, "gray"),
    ):
        if frame.packed and color == "gray" and frame.format != "gray":
            pytest.importorskip("PIL")
        if frame.format == "gray" and color != "gray":
            pytest.importorskip("PIL")
        assert not np.shares_memory(decode(frame), frame.data)


REFUSED = {
    "odd width": ({"width": 11, "height": 8}, "11 x 8 is odd"),
    "odd height": ({"width": 12, "height": 7}, "12 x 7 is odd"),
    "no size": ({}, "does not say how large"),
    "no width": ({"height": 8}, "does not say how large"),
    "too short": ({"width": 12, "height": 10}, "144 bytes are too few for nv12 of 12 x 10: it takes 180"),
    "a stride below the width": ({"width": 12, "height": 8, "stride": 10}, "10 bytes a row"),
    "an odd stride": ({"width": 12, "height": 8, "stride": 13}, "13 bytes a row"),
    "fewer rows than the picture": ({"width": 12, "height": 8, "rows": 6}, "6 rows do not hold"),
    "negative": ({"width": -12, "height": 8}, "-12 x 8 is not a picture"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_that_cannot_be_are_refused_where_the_frame_is_made(case):
    options, why = REFUSED[case]
    with pytest.raises(InputError, match=why):
        Frame(bytes(144), "nv12", **options)


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (bytes(100), "uyvy", "100 bytes are too few for uyvy of 12 x 8: it takes 191"),
        (np.zeros((8, 12, 4), np.uint8), "bgr", "not bgr of 12 x 8"),
        (np.zeros((8, 12, 3), np.float32), "bgr", "float32"),
        (np.zeros((8, 12, 3), np.int8), "rgb", "int8"),
        (np.zeros(144, np.uint16), "nv12", "array of uint16 is not a buffer"),
        ("a string", "nv12", "a str is not a buffer"),
        (object(), "i420", "a object is not a buffer"),
    ],
)
def test_data_of_another_kind_is_refused(data, kind, why):
    with pytest.raises(InputError, match=why):
        Frame(data, kind, width=12, height=8)


def test_two_pixels_share_a_colour_only_where_there_are_two():
    with pytest.raises(InputError, match="one colour for 2 pixels of a row, and 11 is odd"):
        Frame(bytes(176), "yuyv", width=11, height=8)


@pytest.mark.parametrize("written", ["NV12", "nv12", "Nv12"])
def test_a_format_is_known_in_any_case(written):
    assert Frame(bytes(96), written, 8, 8, matrix="BT709").format == "nv12"


@pytest.mark.parametrize(
    ("written", "meant"), [("YUY2", "yuyv"), ("IYUV", "i420"), ("grey", "gray"), ("nv-12", "nv12"), ("rgb8", "rgb")]
)
def test_an_unknown_format_is_told_what_may_have_been_meant(written, meant):
    with pytest.raises(ValueError, match=rf"format must be one of .*did you mean '{meant}'\?"):
        Frame(bytes(96), written, 8, 8)


def test_a_format_that_does_not_exist_is_a_mistake_in_the_code():
    with pytest.raises(ValueError, match="format must be one of bgr, "):
        Frame(PIXELS, "grb")
    with pytest.raises(ValueError, match="matrix must be one of bt601, bt709"):
        Frame(PIXELS, "rgb", matrix="bt2020")


def test_a_frame_for_an_input_that_is_no_image_is_told_so():
    with pytest.raises(InputError, match="this input is not an image"):
        Decoder(InputContract("x", (3,), "float32"))(Frame(PIXELS, "rgb"))


def test_a_frame_tells_where_it_was_placed():
    y, u, v = planes(120, 80)
    decode = decoder(30, 30, resize="letterbox")
    frame = Frame(buffer("nv12", y, u, v), "nv12", width=120, height=80)
    _, geometry = decode.place(frame)
    assert geometry == decode.locate(frame)
    assert (geometry.width, geometry.height, geometry.scale_x, geometry.top) == (120, 80, 4.0, -20.0)


SIZES = st.one_of(st.none(), st.integers(-4, 40), st.sampled_from([2**31, 2**63, 10**30]))


@settings(max_examples=examples(300))
@given(st.sampled_from(get_args(FrameFormat)), st.integers(0, 3000), SIZES, SIZES, SIZES, SIZES)
def test_no_size_reaches_beyond_the_buffer(kind, length, width, height, stride, rows):
    """Whatever is said of a buffer, every value of every part is one of its bytes, or the frame is refused."""
    data = np.full(length, 7, np.uint8)
    try:
        frame = Frame(data, kind, width=width, height=height, stride=stride, rows=rows)
    except InputError:
        return
    start, end = data.ctypes.data, data.ctypes.data + length
    for part in frame.parts:
        first = part.ctypes.data
        last = first + sum((n - 1) * step for n, step in zip(part.shape, part.strides, strict=True))
        assert start <= first <= last < end
        assert (part == 7).all()

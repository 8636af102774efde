"""Whatever holds a picture or numbers is taken for what it is, and told apart before a byte of it is read."""

from __future__ import annotations

import array
import io
import mmap
import tracemalloc

import numpy as np
import pytest

from edgekit_runtime import Frame
from edgekit_runtime.contract.decode import Decoder, copy_in, unwrap
from edgekit_runtime.contract.picture import MAX_BYTES, MAX_PIXELS, EncodedImage
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError

IMAGE = Decoder(InputContract("image", (8, 8, 3), "float32", ImageSpec(8, 8, (0.0,) * 3, (1.0,) * 3)))
TENSOR = Decoder(InputContract("x", (3,), "float32"))
PIXELS = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def png():
    Image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file


def mapped(tmp_path):
    (tmp_path / "x.png").write_bytes(png().getvalue())
    with (tmp_path / "x.png").open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


PICTURES = {
    "a BytesIO, wherever it stands": lambda _: png(),
    "a memoryview of its bytes": lambda _: memoryview(png().getvalue()),
    "a bytearray": lambda _: bytearray(png().getvalue()),
    "an array of bytes": lambda _: array.array("B", png().getvalue()),
    "a file in memory": mapped,
    "a memoryview of pixels": lambda _: PIXELS.data,
    "a memoryview of every other row": lambda _: PIXELS.repeat(2, axis=0).data[::2],
    "a memory map of pixels": lambda folder: np.memmap(folder / "m", np.uint8, "w+", shape=(8, 8, 3)).__iadd__(PIXELS),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_each_holder_of_a_picture_is_taken_properly(kind, tmp_path):
    assert np.array_equal(IMAGE(PICTURES[kind](tmp_path)), PIXELS)


@pytest.mark.parametrize(
    "value", [array.array("f", [1, 2, 3]), memoryview(array.array("d", [1, 2, 3])), memoryview(b"\1\2\3")]
)
def test_each_holder_of_numbers_is_an_array(value):
    assert list(TENSOR(value)) == [1, 2, 3]


def test_an_array_of_numbers_is_a_view_of_the_callers_memory():
    numbers = array.array("f", [1, 2, 3])
    assert np.shares_memory(unwrap(numbers, "x"), np.frombuffer(numbers, np.float32))


REFUSED = {
    "masked": (lambda: np.ma.masked_less(PIXELS, 9), "a masked array has no values where it is masked.*filled"),
    "an open file": (lambda: io.BufferedReader(io.BytesIO(b"x")), r"an open file is not an input.*file\.read\(\)"),
    "a text file": (lambda: io.StringIO("x"), "an open file is not an input"),
}


@pytest.mark.parametrize("decode", [IMAGE, TENSOR])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_clear_meaning_is_refused_in_one_sentence(kind, decode):
    value, why = REFUSED[kind]
    with pytest.raises(InputError, match=why):
        decode(value())


FAR_TOO_LARGE = {
    "pixels": (IMAGE, np.broadcast_to(np.uint8(0), (12_000, 12_000, 3)), "12000 x 12000 pixels is more than"),
    "grey pixels": (IMAGE, np.broadcast_to(np.uint8(0), (10**6, 10**6)), "pixels is more than"),
    "a batch of one": (IMAGE, np.broadcast_to(np.uint8(0), (1, 12_000, 12_000, 3)), "pixels is more than"),
    "floats": (IMAGE, np.broadcast_to(np.float32(0), (10**6, 10**6, 3)), "does not fit"),
    "a tensor": (TENSOR, np.broadcast_to(np.float64(0), (10**12,)), "does not fit"),
    "a batch of tensors": (TENSOR, np.broadcast_to(np.float32(0), (10**10, 3)), "a batch of"),
}


@pytest.mark.parametrize("kind", FAR_TOO_LARGE)
@pytest.mark.parametrize("ask", ["__call__", "place", "admit"])
def test_what_is_far_too_large_is_refused_before_any_of_it_is_copied(kind, ask):
    decode, giant, why = FAR_TOO_LARGE[kind]
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=why):
            getattr(decode, ask)(giant)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_file_that_no_picture_needs_is_not_read(tmp_path):
    with (tmp_path / "x.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: it takes no room on the disk
    with pytest.raises(InputError, match=f"{MAX_BYTES + 1:,} bytes are more than"):
        EncodedImage.read(tmp_path / "x.png")


def test_a_camera_frame_has_the_bounds_of_a_picture():
    side = 2 * int(MAX_PIXELS**0.5)
    with pytest.raises(InputError, match=f"{side} x {side} pixels is more than"):
        Frame(np.broadcast_to(np.uint8(0), (side, side, 3)), "bgr")
    with pytest.raises(InputError, match="bytes are more than"):
        Frame(np.broadcast_to(np.uint8(0), (MAX_BYTES + 1,)), "nv12", width=8, height=8)


def test_what_is_kept_no_longer_changes_with_the_callers_memory():
    pixels, flat, frame = PIXELS.copy(), bytearray(b"\7" * 192), np.full((8, 8, 3), 7, np.uint8)
    mine = [
        copy_in(pixels),
        copy_in(flat),
        copy_in(memoryview(flat)),
        copy_in(Frame(frame, "bgr")),
        copy_in(Frame(flat, "rgb", 8, 8)),
    ]
    pixels[:] = frame[:] = 0
    flat[:] = bytes(192)
    assert np.array_equal(mine[0], PIXELS)
    assert mine[1] == mine[2] == b"\7" * 192
    assert all((one.parts[0] == 7).all() for one in mine[3:])

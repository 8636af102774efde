"""Every kind of picture is decoded upright, in bounded memory, or refused in a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from property_examples import examples

from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.picture import MAX_PIXELS
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError

PEAK = """
import resource, sys
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.system.errors import InputError
from PIL import Image, PngImagePlugin
image = ImageSpec(6, 6, (0.0,) * 3, (255.0,) * 3, resize="center-crop", crop=0.875, interpolation="bicubic")
decode = Decoder(InputContract("image", (6, 6, 3), "float32", image))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    told = f"decoded {decode(sys.argv[1]).shape}"
except InputError as error:
    told = str(error)
print(told, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)
"""


def decoder(width=6, height=4, **changes):
    channels = 1 if changes.get("color") == "gray" else 3
    image = ImageSpec(height, width, (0.0,) * channels, (1.0,) * channels, **changes)
    return Decoder(InputContract("image", (height, width, channels), "float32", image))


def encoded(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def gradient(width, height):
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


RED, BLUE = Image.new("RGB", (6, 4), (255, 0, 0)), Image.new("RGB", (6, 4), (0, 0, 255))
CLEAR = Image.new("P", (6, 4))
CLEAR.putpalette([255, 0, 0, 0, 255, 0])
PICTURES = {
    "CMYK JPEG": (encoded(Image.new("CMYK", (6, 4), (0, 255, 255, 0)), "JPEG"), (255, 0, 0), 3),
    "grey JPEG": (encoded(Image.new("L", (6, 4), 90), "JPEG"), (90, 90, 90), 1),
    "progressive JPEG": (encoded(RED, "JPEG", progressive=True), (255, 0, 0), 2),
    "grey with alpha": (encoded(Image.new("LA", (6, 4), (0, 0)), "PNG"), (255, 255, 255), 0),
    "palette with one clear colour": (encoded(CLEAR, "PNG", transparency=0), (255, 255, 255), 0),
    "palette with alpha a colour": (encoded(CLEAR, "PNG", transparency=bytes([128, 255])), (255, 127, 127), 1),
    "one clear colour of RGB": (encoded(RED, "PNG", transparency=(255, 0, 0)), (255, 255, 255), 0),
    "one clear grey": (encoded(Image.new("L", (6, 4), 9), "PNG", transparency=9), (255, 255, 255), 0),
    "one bit": (encoded(Image.new("1", (6, 4), 1), "PNG"), (255, 255, 255), 0),
    "16 bit": (encoded(Image.fromarray(np.full((4, 6), 0x8081, np.uint16)), "PNG"), (128, 128, 128), 0),
    "animated GIF": (encoded(RED, "GIF", save_all=True, append_images=[BLUE]), (255, 0, 0), 0),
    "animated WebP": (encoded(RED, "WEBP", save_all=True, append_images=[BLUE], lossless=True), (255, 0, 0), 0),
    "MPO of two cameras": (encoded(RED, "MPO", save_all=True, append_images=[BLUE]), (255, 0, 0), 2),
    "TIFF": (encoded(RED, "TIFF"), (255, 0, 0), 0),
    "BMP": (encoded(RED, "BMP"), (255, 0, 0), 0),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_every_kind_of_picture_has_its_colour(kind):
    data, colour, off = PICTURES[kind]
    assert np.abs(decoder()(data).astype(int) - colour).max() <= off


def test_alpha_is_laid_over_white_in_large_pictures_too():
    picture = gradient(2000, 1500).convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize((2000, 1500)))
    white = Image.new("RGBA", picture.size, "white")
    wanted = Image.alpha_composite(white, picture).convert("RGB").resize((60, 40), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decoder(60, 40)(picture), np.asarray(wanted))


def turned(orientation, kind, size=(90, 60)):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(gradient(*size), kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("resize", ["stretch", "center-crop", "letterbox"])
def test_orientation_is_applied_whatever_the_format(orientation, kind, resize):
    data = turned(orientation, kind)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    decode = decoder(30, 30, resize=resize)
    found, geometry = decode.place(data)
    assert np.abs(found.astype(int) - decode(upright.convert("RGB"))).max() <= 1
    assert (geometry.width, geometry.height) == upright.size
    assert decode.locate(data) == geometry


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("resize", ["stretch", "center-crop", "letterbox"])
@pytest.mark.parametrize("size", [(901, 603), (1000, 720)])
def test_a_large_jpeg_decoded_small_is_the_same_picture_in_the_same_place(orientation, resize, size):
    data = turned(orientation, "JPEG", size)
    decode = decoder(30, 20, resize=resize)
    found, geometry = decode.place(data)
    whole = Image.open(io.BytesIO(data))
    whole.load()
    assert np.abs(found.astype(int) - decode(whole)).max() <= 4
    assert geometry == decode.place(whole)[1] == decode.locate(data)


DECODED_IN_A_CHILD = """
import io, json, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
from PIL import Image
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import ImageSpec, InputContract
decode = Decoder(InputContract("x", (224, 224, 3), "float32", ImageSpec(224, 224, (0.0,) * 3, (1.0,) * 3)))
small = io.BytesIO()
Image.new("RGB", (900, 900)).save(small, "JPEG")
decode(small.getvalue())
def held():  # the most that this process ever held, in MiB; what getrusage tells, it inherits from its parent
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
before = held()
item, geometry = decode.place(sys.argv[1])
print(json.dumps({"mb": held() - before, "size": [geometry.width, geometry.height], "pixel": item[9, 9].tolist()}))
"""


def test_a_jpeg_of_a_hundred_megapixels_is_decoded_in_bounded_memory(tmp_path):
    """In a process of its own, where warnings are errors; all of its pixels would be 400 MB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell the most that a process held")
    Image.new("L", (12_000, 8_400), 120).save(tmp_path / "large.jpg")
    done = subprocess.run(
        [sys.executable, "-c", DECODED_IN_A_CHILD, str(tmp_path / "large.jpg")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["size"] == [12_000, 8_400]
    assert found["pixel"] == [120, 120, 120]
    assert found["mb"] < 40


def header(kind, width, height):
    """A few hundred bytes that claim to be a picture of any size."""
    data = bytearray(encoded(Image.new("RGB", (16, 16)), kind))
    if kind == "PNG":
        data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    else:
        start = data.index(b"\xff\xc0") + 5
        data[start : start + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


TOO_LARGE = {
    "100 megapixels of PNG": (header("PNG", 12_000, 8_400), {}, "12000 x 8400 pixels is more than 33,554,432"),
    "4 gigapixels of PNG": (header("PNG", 65_000, 65_000), {}, "65000 x 65000 pixels is more than 33,554,432"),
    "4 gigapixels of JPEG": (header("JPEG", 65_000, 65_000), {}, "65000 x 65000 pixels is more than 268,435,456"),
    "100 megapixels that the network nearly needs": (
        header("JPEG", 12_000, 8_400),
        {"width": 6000, "height": 4000},
        "12000 x 8400 pixels is more than 33,554,432",
    ),
    "100 megapixels where single pixels are asked for": (
        header("JPEG", 12_000, 8_400),
        {"interpolation": "nearest"},
        "12000 x 8400 pixels is more than 33,554,432",
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_cannot_be_decoded_in_bounded_memory_is_refused_before_it_is(case, recwarn):
    data, image, why = TOO_LARGE[case]
    with pytest.raises(InputError, match=why):
        decoder(**image)(data)
    assert not recwarn.list


def test_a_large_progressive_jpeg_is_refused_for_it_keeps_every_coefficient(tmp_path):
    data = bytearray(encoded(gradient(64, 48), "JPEG", progressive=True))
    start = data.index(b"\xff\xc2") + 5
    data[start : start + 4] = (8_400).to_bytes(2, "big") + (12_000).to_bytes(2, "big")
    with pytest.raises(InputError, match=r"a progressive JPEG of 12000 x 8400 pixels.*baseline"):
        decoder()(bytes(data))


def test_a_picture_of_the_applications_own_is_not_touched():
    lazy = Image.open(io.BytesIO(encoded(gradient(901, 603), "JPEG")))
    decoder()(lazy)
    assert lazy.size == (901, 603)
    assert MAX_PIXELS >= 7680 * 4320


def test_a_picture_of_millions_of_rows_is_refused_by_its_head():
    """Found by fuzzing: Pillow's rows of 7 pixels take as much as the pixels."""
    data = bytearray(encoded(Image.new("L", (7, 9)), "PNG"))
    data[20:24] = (4_194_304).to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(InputError, match="7 x 4194304 pixels: a side is more than 65,535"):
        decoder()(bytes(data))


LARGE = {"RGB": None, "P": None, "L": None, "I;16": None, "RGBA": "more than 25,165,824", "LA": "more than 25,165,824"}


@pytest.mark.parametrize(("mode", "words"), LARGE.items(), ids=LARGE)
def test_no_picture_of_the_most_pixels_takes_256_mb_to_decode(mode, words, tmp_path):
    """In a process of its own, whose peak is then the picture's; found by fuzzing with 16 bits of grey."""
    file = tmp_path / "large.png"
    Image.new(mode, (8192, 4096)).save(file, compress_level=1)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, file], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    told, grown_mb = done.stdout.rsplit(None, 1)
    assert float(grown_mb) < 256
    assert (words or "decoded") in told


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_truncated_file_is_one_clear_error(kind, share, tmp_path):
    data = encoded(Image.effect_noise((400, 300), 80).convert("RGB"), kind)
    (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
    for size in ((6, 4), (200, 100)):  # decoded small, and whole
        with pytest.raises(InputError, match=r"cut: not an image that can be decoded(: [\w (),.]+)?\. Pass a complete"):
            decoder(*size)(tmp_path / "cut")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_says_nothing_and_costs_no_answer():
    data = encoded(RED, "JPEG", exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff garbage")
    assert decoder()(data).shape == (4, 6, 3)


SMALL = {
    kind: encoded(Image.effect_noise((24, 16), 90).convert("RGB"), kind, **options)
    for kind, options in {"JPEG": {}, "PNG": {}, "GIF": {}, "WEBP": {}, "TIFF": {}, "BMP": {}}.items()
}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=examples(300))
@given(
    st.sampled_from(sorted(SMALL)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    st.floats(0.1, 1),
)
def test_damaged_files_are_decoded_or_refused_and_nothing_else(kind, changes, share):
    data = bytearray(SMALL[kind])
    for where, byte in changes:
        data[int(where * len(data))] = byte
    decode = decoder()
    for attempt in (decode, decode.locate):
        with contextlib.suppress(InputError):
            attempt(bytes(data[: int(len(data) * share)]))


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "PCX", "TGA", "IM"])
def test_only_the_formats_that_are_named_are_looked_for(kind):
    with pytest.raises(InputError, match="not an image that can be decoded"):
        decoder()(encoded(RED.resize((32, 32)), kind))


def test_a_postscript_picture_starts_no_interpreter(tmp_path, monkeypatch):
    script = tmp_path / "gs"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InputError):
        decoder()(encoded(RED.resize((32, 32)), "EPS"))
    assert not (tmp_path / "started").exists()


def png_of_two_turns(first, second):
    """A PNG that says how it is turned before its pixels, and again behind them."""
    turned = Image.Exif()
    turned[0x0112] = first
    data = encoded(gradient(6, 4), "PNG", exif=turned)
    turned[0x0112] = second
    later = encoded(gradient(6, 4), "PNG", exif=turned)
    at = later.index(b"eXIf") - 4
    chunk = later[at : at + 12 + int.from_bytes(later[at : at + 4], "big")]
    end = data.index(b"IEND") - 4
    return data[:end] + chunk + data[end:]


@pytest.mark.parametrize("turns", [(6, 1), (1, 6), (6, 6)])
def test_where_a_picture_lies_is_told_alike_with_and_without_its_pixels(turns):
    data = png_of_two_turns(*turns)
    assert decoder().locate(data) == decoder().place(data)[1]

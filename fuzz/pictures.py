"""The decoder of pictures, and a camera's frame.

`picture`: an input is an encoded file; its length picks one of four contracts. A PNG's chunks and a JPEG's segments are
changed with their lengths and checksums made to fit; anything else is changed byte by byte.
`frame`: sixteen numbers that say what a buffer is, then the buffer: what is claimed of strides and rows must never let
NumPy look outside of it.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from random import Random

import numpy as np

from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError
from fuzz.octets import altered
from fuzz.target import Target

_WHOLE = ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0))
_SPECS = (
    ImageSpec(8, 8, *_WHOLE),
    ImageSpec(12, 16, *_WHOLE, color="bgr", resize="letterbox"),
    ImageSpec(9, 7, (0.0,), (255.0,), color="gray", interpolation="nearest"),
    ImageSpec(6, 6, *_WHOLE, resize="center-crop", crop=0.875, interpolation="bicubic"),
)
_DECODERS = tuple(
    Decoder(InputContract("image", (spec.height, spec.width, spec.channels), "float32", spec)) for spec in _SPECS
)


def _read_picture(data: bytes) -> None:
    spec, decoder = _SPECS[len(data) % 4], _DECODERS[len(data) % 4]
    item, geometry = decoder.place(data)
    assert item.dtype == np.uint8
    assert item.shape == (spec.height, spec.width, spec.channels)
    assert decoder.locate(data) == geometry, "the header says another size than the picture has"


@cache
def _pictures() -> tuple[bytes, ...]:
    from PIL import Image, PngImagePlugin

    random = np.random.default_rng(0)
    rgb = Image.fromarray(random.integers(0, 256, (14, 22, 3), np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    made = []
    for mode, kind, options in (
        ("RGB", "PNG", {}), ("P", "PNG", {"transparency": 3}), ("RGBA", "PNG", {"exif": turned}), ("I;16", "PNG", {}),
        ("LA", "PNG", {}), ("1", "PNG", {}), ("RGB", "JPEG", {}), ("L", "JPEG", {"exif": turned}), ("CMYK", "JPEG", {}),
        ("RGB", "JPEG", {"progressive": True}), ("P", "GIF", {}), ("RGB", "BMP", {}), ("P", "BMP", {}),
        ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True, "exif": turned}), ("RGB", "TIFF", {}),
        ("RGB", "TIFF", {"compression": "tiff_lzw", "exif": turned}),
        ("L", "TIFF", {"compression": "tiff_adobe_deflate"}), ("RGB", "PPM", {}), ("L", "PPM", {}), ("1", "PPM", {}),
    ):  # fmt: skip
        file = io.BytesIO()
        one = (
            Image.fromarray(np.arange(14 * 22, dtype=np.uint16).reshape(14, 22))
            if mode == "I;16"
            else rgb.convert(mode)
        )
        one.save(file, kind, **options)
        made.append(file.getvalue())
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n  8\n4578696600004d4d\n", zip=True)
    file = io.BytesIO()
    rgb.save(file, "PNG", pnginfo=text)
    return (*made, file.getvalue())


def _mutate_picture(data: bytes, random: Random) -> bytes:
    act = random.random()
    if data[:8] == b"\x89PNG\r\n\x1a\n" and act < 0.7:
        return _png(data, random)
    if data[:2] == b"\xff\xd8" and act < 0.6:
        return _jpeg(data, random)
    if act > 0.97:  # two formats in one file
        return data[: random.randrange(len(data) + 1)] + random.choice(_pictures())
    return altered(data, random)


def _png(data: bytes, random: Random) -> bytes:
    chunks, at = [], 8
    while at + 8 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        return altered(data, random)
    number = random.randrange(len(chunks))
    kind, body = chunks[number]
    act = random.randrange(6)
    if act == 0:
        chunks.insert(random.randrange(len(chunks) + 1), (kind, body))
    elif act == 1:
        del chunks[number]
    elif act == 2:
        chunks[number] = (
            random.choice(
                (b"IHDR", b"IDAT", b"PLTE", b"tRNS", b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"acTL", b"fdAT", b"IEND")
            ),
            body,
        )
    elif act == 3 and kind == b"IDAT":
        try:
            chunks[number] = (kind, zlib.compress(altered(zlib.decompress(body), random)))
        except zlib.error:
            chunks[number] = (kind, altered(body, random))
    elif act == 4 and kind == b"IHDR" and len(body) >= 13:
        sizes = struct.pack(">II", *(random.choice((0, 1, 7, 64, 300, 70000, 2**31 - 1, 2**32 - 1)) for _ in "wh"))
        chunks[number] = (kind, sizes + body[8:])
    else:
        chunks[number] = (kind, altered(body, random))
    return data[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _jpeg(data: bytes, random: Random) -> bytes:
    """The segments before the picture's own data; their lengths fit."""
    segments, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] not in (0xDA, 0xD9):
        (size,) = struct.unpack_from(">H", data, at + 2)
        segments.append((data[at + 1], data[at + 4 : at + 2 + max(size, 2)]))
        at += 2 + max(size, 2)
    if not segments:
        return altered(data, random)
    number = random.randrange(len(segments))
    marker, body = segments[number]
    act = random.randrange(5)
    if act == 0:
        segments.insert(number, (marker, body))
    elif act == 1:
        del segments[number]
    elif act == 2:
        segments[number] = (random.choice((0xC0, 0xC1, 0xC2, 0xC4, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE)), body)
    else:
        segments[number] = (marker, altered(body, random))
    head = b"".join(
        bytes((0xFF, marker)) + struct.pack(">H", (len(body) + 2) & 0xFFFF) + body for marker, body in segments
    )
    rest = data[at:]
    return data[:2] + head + (altered(rest, random) if random.random() < 0.3 else rest)


_FORMATS = ("bgr", "rgb", "bgra", "rgba", "gray", "nv12", "nv21", "i420", "yv12", "yuyv", "uyvy")
_CLAIM = struct.Struct("<BBhhiiBB")
_GRAY = ImageSpec(4, 6, (0.0,), (255.0,), color="gray")


def _read_frame(data: bytes) -> None:
    if len(data) < _CLAIM.size:
        return
    kind, form, width, height, stride, rows, matrix, full = _CLAIM.unpack_from(data)
    made = Frame(
        _buffer(data[_CLAIM.size :], form, width),
        _FORMATS[kind % len(_FORMATS)],  # type: ignore[arg-type]
        width if form & 16 == 0 else None,
        height if form & 32 == 0 else None,
        stride or None,
        rows or None,
        ("bt601", "bt709")[matrix & 1],  # type: ignore[arg-type]
        bool(full & 1),
    )
    total = sum(int(part.astype(np.uint64).sum()) for part in made.parts if part.size <= 2**20)  # every byte is touched
    assert total >= 0
    if made.size[0] * made.size[1] <= 2**14:
        item, geometry = _DECODERS[form % 4].place(made)
        assert item.shape == (_SPECS[form % 4].height, _SPECS[form % 4].width, _SPECS[form % 4].channels)
        assert _DECODERS[form % 4].locate(made) == geometry


def _buffer(data: bytes, form: int, width: int) -> object:
    """Bytes, or an array of one of the forms that cameras give."""
    kind = form & 15
    flat = np.frombuffer(data, np.uint8)
    if kind < 6:
        return (data, bytearray(data), memoryview(data))[kind % 3]
    if kind < 8:
        return flat
    wide = max(1, abs(width) % 97)
    channels = (1, 2, 3, 4)[kind % 4]
    rows = flat.size // (wide * channels)
    shaped = flat[: rows * wide * channels].reshape(rows, wide, channels)
    return shaped if kind < 12 else shaped[:, :, 0]


@cache
def _frames() -> tuple[bytes, ...]:
    made = []
    for kind, name in enumerate(_FORMATS):
        size = {"bgra": 4, "rgba": 4, "bgr": 3, "rgb": 3, "gray": 1, "yuyv": 2, "uyvy": 2}.get(name, 1.5)
        made.append(
            _CLAIM.pack(kind, 0, 12, 8, 0, 0, kind, kind)
            + bytes(range(256))[: int(12 * 8 * size)].ljust(int(96 * size), b"\x7f")
        )
    padded = bytes(16 * 10 * 3 // 2)
    return (*made, _CLAIM.pack(5, 0, 12, 8, 16, 10, 0, 0) + padded, _CLAIM.pack(7, 1, 12, 8, 16, 10, 1, 1) + padded)


def _mutate_frame(data: bytes, random: Random) -> bytes:
    if len(data) < _CLAIM.size or random.random() < 0.2:
        return altered(data, random)
    claim = list(_CLAIM.unpack_from(data))
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(claim))
        limits = (
            (0, 255),
            (0, 255),
            (-32768, 32767),
            (-32768, 32767),
            (-(2**31), 2**31 - 1),
            (-(2**31), 2**31 - 1),
            (0, 255),
            (0, 255),
        )[at]
        wanted = random.choice(
            (0, 1, 2, 3, 6, 8, 12, 13, 16, 24, 64, 4096, 32767, 2**31 - 1, -1, claim[at] + 1, claim[at] * 2, -claim[at])
        )
        claim[at] = min(max(wanted, limits[0]), limits[1])
    body = data[_CLAIM.size :]
    if random.random() < 0.4:
        body = body[: random.randrange(len(body) + 1)] if random.random() < 0.5 else body + bytes(random.randrange(300))
    return _CLAIM.pack(*claim) + body


def picture() -> Target:
    return Target("picture", _read_picture, (InputError,), _pictures, _mutate_picture)


def frame() -> Target:
    return Target("frame", _read_frame, (InputError,), _frames, _mutate_frame, 1 << 13)

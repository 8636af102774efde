"""Pictures of every mode and depth as files, made byte by byte, each with the pixels that it stands for."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 8, 6


@dataclass(frozen=True)
class Made:
    """pixels: [6, 8, 3], transparency over white. off: how far a lossy file's may be."""

    name: str
    data: bytes
    pixels: np.ndarray
    off: int = 1


_rows, _columns = np.mgrid[0:HEIGHT, 0:WIDTH]
GREY = (_rows * WIDTH + _columns) / (WIDTH * HEIGHT - 1)
RGB = np.stack([_columns / (WIDTH - 1), _rows / (HEIGHT - 1), 1 - _columns / (WIDTH - 1)], -1)
ALPHA = np.where((_rows + _columns) % 3 == 0, 0.0, np.where((_rows + _columns) % 3 == 1, 0.6, 1.0))
INDEX = (_rows + _columns) % 2 + 2 * (_rows % 2)
COLOURS = np.array([(255, 0, 0), (0, 200, 0), (0, 0, 255), (250, 240, 10)], np.uint8)


def levels(part: np.ndarray, most: int) -> np.ndarray:
    """0..1 as whole numbers up to `most`."""
    return np.round(part * most).astype(np.int64)


def shown(numbers: np.ndarray, most: int) -> np.ndarray:
    """Of whole numbers up to `most` the pixels that they stand for."""
    eight = numbers * 255 / most
    return np.round(eight if eight.ndim == 3 else np.repeat(eight[:, :, None], 3, 2)).astype(np.uint8)


def over_white(pixels: np.ndarray, alpha: np.ndarray, most: int) -> np.ndarray:
    part = alpha[:, :, None] / most
    return np.round(pixels * part + 255 * (1 - part)).astype(np.uint8)


def packed(numbers: np.ndarray, bits: int, order: str = "big") -> bytes:
    """Rows of so many bits a sample, each row ended at a byte."""
    flat = numbers.reshape(len(numbers), -1)
    if bits in (16, 32):
        return flat.astype(f"{'>' if order == 'big' else '<'}u{bits // 8}").tobytes()
    places = np.arange(bits - 1, -1, -1)
    return b"".join(np.packbits((row[:, None] >> places & 1).astype(np.uint8)).tobytes() for row in flat)


def png(numbers: np.ndarray, bits: int, colour: int, *more: tuple[bytes, bytes]) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = packed(numbers, bits)
    each = len(rows) // HEIGHT
    body = b"".join(b"\0" + rows[at : at + each] for at in range(0, len(rows), each))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, 0)
    middle = b"".join(chunk(*one) for one in more)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + middle + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    )


def tiff(numbers: np.ndarray, bits: int, photometric: int, order: str = "little", **more: list[int]) -> bytes:
    """more: tags `t338=[1]`. Of one strip, not compressed."""
    samples = 1 if numbers.ndim == 2 else numbers.shape[2]
    mark = "<" if order == "little" else ">"
    body = packed(numbers, bits, order)
    tags = {256: [WIDTH], 257: [HEIGHT], 258: [bits] * samples, 259: [1], 262: [photometric], 277: [samples],
            278: [HEIGHT], 279: [len(body)], **{int(name[1:]): value for name, value in more.items()}}  # fmt: skip
    tags[273] = [8]
    ifd, extra = b"", b""
    at = 8 + len(body) + len(body) % 2
    behind = at + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        value = struct.pack(f"{mark}{len(values)}H", *values)
        if len(value) > 4:
            extra_at = behind + len(extra)
            extra += value
            value = struct.pack(f"{mark}I", extra_at)
        ifd += struct.pack(f"{mark}HHI", tag, 3, len(values)) + value.ljust(4, b"\0")
    head = (b"II*\0" if order == "little" else b"MM\0*") + struct.pack(f"{mark}I", at)
    count = struct.pack(f"{mark}H", len(tags))
    return head + body + b"\0" * (len(body) % 2) + count + ifd + b"\0\0\0\0" + extra


def netpbm(kind: str, numbers: np.ndarray, most: int) -> bytes:
    head = f"{kind}\n{WIDTH} {HEIGHT}\n{most}\n".encode()
    if kind in ("P2", "P3"):
        return head + " ".join(map(str, numbers.ravel())).encode() + b"\n"
    return head + numbers.astype(">u2" if most > 255 else "u1").tobytes()


def bitmap(kind: str) -> tuple[bytes, np.ndarray]:
    one = levels(GREY, 1)
    if kind == "P1":
        return f"P1\n{WIDTH} {HEIGHT}\n".encode() + " ".join(map(str, 1 - one.ravel())).encode() + b"\n", shown(one, 1)
    return f"P4\n{WIDTH} {HEIGHT}\n".encode() + packed(1 - one, 1), shown(one, 1)


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def made() -> Iterator[Made]:
    yield from _pngs()
    yield from _tiffs()
    for most in (1, 15, 100, 255, 1000, 1023, 4095, 65535):
        grey, rgb = levels(GREY, most), levels(RGB, most)
        yield Made(f"pgm to {most}", netpbm("P5", grey, most), shown(grey, most))
        yield Made(f"ppm to {most}", netpbm("P6", rgb, most), shown(rgb, most))
    yield Made("pgm in text to 4095", netpbm("P2", levels(GREY, 4095), 4095), shown(levels(GREY, 4095), 4095))
    yield Made("ppm in text to 100", netpbm("P3", levels(RGB, 100), 100), shown(levels(RGB, 100), 100))
    yield Made("pbm", *bitmap("P4"))
    yield Made("pbm in text", *bitmap("P1"))
    yield from _others()


def _pngs() -> Iterator[Made]:
    for bits in (1, 2, 4, 8, 16):
        most = 2**bits - 1
        grey = levels(GREY, most)
        yield Made(f"png grey {bits}", png(grey, bits, 0), shown(grey, most))
        key = int(grey[-1, -1] if bits == 1 else grey[2, 3])
        seen = shown(grey, most)
        seen[grey == key] = 255
        yield Made(f"png grey {bits} with a clear value", png(grey, bits, 0, (b"tRNS", struct.pack(">H", key))), seen)
    for bits in (2, 4, 8):
        table = (b"PLTE", COLOURS.tobytes())
        yield Made(f"png palette {bits}", png(INDEX, bits, 3, table), COLOURS[INDEX])
        alpha = np.array([255, 0, 128, 255])
        clear = over_white(COLOURS[INDEX], alpha[INDEX], 255)
        yield Made(f"png palette {bits} with alpha", png(INDEX, bits, 3, table, (b"tRNS", bytes([255, 0, 128]))), clear)
    for bits in (8, 16):
        most = 2**bits - 1
        rgb, grey, alpha = levels(RGB, most), levels(GREY, most), levels(ALPHA, most)
        yield Made(f"png rgb {bits}", png(rgb, bits, 2), shown(rgb, most))
        seen = shown(rgb, most)
        seen[2, 3] = 255
        key = struct.pack(">HHH", *rgb[2, 3])
        yield Made(f"png rgb {bits} with a clear value", png(rgb, bits, 2, (b"tRNS", key)), seen)
        both = np.dstack([grey, alpha])
        yield Made(f"png grey and alpha {bits}", png(both, bits, 4), over_white(shown(grey, most), alpha, most))
        both = np.dstack([rgb, alpha])
        yield Made(f"png rgb and alpha {bits}", png(both, bits, 6), over_white(shown(rgb, most), alpha, most))


def _tiffs() -> Iterator[Made]:
    for order in ("little", "big"):
        for bits in (1, 2, 4, 8, 16):
            most = 2**bits - 1
            grey = levels(GREY, most)
            yield Made(f"tiff grey {bits} {order}", tiff(grey, bits, 1, order), shown(grey, most))
            yield Made(f"tiff grey {bits} {order}, white is 0", tiff(most - grey, bits, 0, order), shown(grey, most))
        for bits in (8, 16):
            most = 2**bits - 1
            rgb, alpha = levels(RGB, most), levels(ALPHA, most)
            yield Made(f"tiff rgb {bits} {order}", tiff(rgb, bits, 2, order), shown(rgb, most))
            both = np.dstack([rgb, alpha])
            clear = over_white(shown(rgb, most), alpha, most)
            yield Made(f"tiff rgb and alpha {bits} {order}", tiff(both, bits, 2, order, t338=[2]), clear)
            spare = tiff(both, bits, 2, order, t338=[0])
            yield Made(f"tiff rgb and a spare {bits} {order}", spare, shown(rgb, most))
            laid = levels(RGB * ALPHA[:, :, None], most)
            yield Made(
                f"tiff rgb times alpha {bits} {order}",
                tiff(np.dstack([laid, alpha]), bits, 2, order, t338=[1]),
                clear,
                2,
            )
            ink = np.dstack([most - rgb, np.zeros_like(rgb[:, :, :1])])
            yield Made(f"tiff cmyk {bits} {order}", tiff(ink, bits, 5, order), shown(rgb, most))
    grey = levels(GREY, 4095)
    yield Made("tiff grey 12", tiff(grey, 12, 1), shown(grey, 4095))
    yield Made("tiff grey 12, white is 0", tiff(4095 - grey, 12, 0), shown(grey, 4095))
    grey, alpha = levels(GREY, 255), levels(ALPHA, 255)
    both = np.dstack([grey, alpha])
    yield Made("tiff grey and alpha", tiff(both, 8, 1, t338=[2]), over_white(shown(grey, 255), alpha, 255))
    for bits in (1, 2, 4, 8):
        index = INDEX % 2**bits
        table = np.zeros((3, 2**bits), np.int64)
        table[:, : min(4, 2**bits)] = COLOURS.T[:, : 2**bits].astype(np.int64) * 257
        yield Made(f"tiff palette {bits}", tiff(index, bits, 3, t320=table.ravel().tolist()), COLOURS[index])


def _others() -> Iterator[Made]:
    rgb = Image.fromarray(shown(levels(RGB, 255), 255))
    pixels, grey = np.asarray(rgb), shown(levels(GREY, 255), 255)
    flat = np.full((HEIGHT, WIDTH, 3), (200, 60, 30), np.uint8)
    for kind in ("BMP", "PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        yield Made(f"{kind} rgb", encoded(rgb, kind, **options), pixels)
        yield Made(f"{kind} grey", encoded(Image.fromarray(grey[:, :, 0]), kind, **options), grey)
    clear = rgb.copy()
    clear.putalpha(Image.fromarray(levels(ALPHA, 255).astype(np.uint8)))
    yield Made("WEBP rgb and alpha", encoded(clear, "WEBP", lossless=True), over_white(pixels, levels(ALPHA, 255), 255))
    yield Made("WEBP lossy", encoded(Image.fromarray(flat), "WEBP"), flat, 4)
    index = Image.fromarray(INDEX.astype(np.uint8), "P")
    index.putpalette(COLOURS.tobytes())
    yield Made("BMP palette", encoded(index, "BMP"), COLOURS[INDEX])
    yield Made("GIF palette", encoded(index, "GIF"), COLOURS[INDEX])
    seen = COLOURS[INDEX].copy()
    seen[INDEX == 1] = 255
    yield Made("GIF palette with a clear value", encoded(index, "GIF", transparency=1), seen)
    yield Made("JPEG rgb", encoded(Image.fromarray(flat), "JPEG", quality=95), flat, 4)
    yield Made(
        "JPEG grey",
        encoded(Image.fromarray(flat).convert("L"), "JPEG"),
        np.asarray(Image.fromarray(flat).convert("L").convert("RGB")),
        4,
    )
    yield Made("JPEG cmyk", encoded(Image.fromarray(flat).convert("CMYK"), "JPEG", quality=95), flat, 4)
    fives = levels(RGB, 31)
    sixteen = (fives[:, :, 0] << 10 | fives[:, :, 1] << 5 | fives[:, :, 2])[::-1].astype("<u2").tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 16, 0, len(sixteen), 0, 0, 0, 0)
    yield Made(
        "BMP rgb 555", b"BM" + struct.pack("<IHHI", 54 + len(sixteen), 0, 0, 54) + head + sixteen, shown(fives, 31), 8
    )

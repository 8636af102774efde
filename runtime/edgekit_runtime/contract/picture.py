"""Encoded bytes and Pillow's pictures -> the canonical pixels, within bounded memory.

    pixels, placement = render(open_encoded(data, "cat.jpg"), image)

Rules:
- at most MAX_PIXELS pixels are decoded (128 MiB of Pillow's four bytes a pixel), a quarter fewer with transparency,
  which needs two copies. libjpeg decodes a larger JPEG at 1/2, 1/4 or 1/8 if the network needs far fewer pixels;
- EXIF orientation is applied, palettes are expanded, alpha is laid over white, an animation's first frame counts;
- grey of 12 or 16 bits becomes 8 by its file's depth, never by its values; the log warns once of nearly black ones;
- only FORMATS are tried: Pillow's reader of PostScript, for one, starts a program on the bytes;
- a decoder's error becomes one InputError that names the file.
"""

from __future__ import annotations

import io
import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.array_file import refuse_irregular
from edgekit_runtime.contract.geometry import Box4, Placement, place, stored_box
from edgekit_runtime.contract.spec import ImageSpec
from edgekit_runtime.system.errors import InputError, MissingExtraError
from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "PPM", "WEBP", "TIFF")
"""Pillow's names; PPM stands for PGM and PBM too."""
MAX_PIXELS = 2**25
"""Of a decoded picture: a frame of 8K video fits."""
MAX_CONVERTED_PIXELS = 3 * 2**23
"""Of a picture whose four bytes a pixel become another four: with transparency, CMYK."""
MAX_SIDE = 2**16 - 1
"""As in JPEG: Pillow keeps eight bytes for each row of each copy."""
MAX_BYTES = 2**28
"""Of a picture's file or a camera's buffer: eight bytes for each of the most pixels."""
MAX_JPEG_PIXELS = 2**28
"""Of a JPEG: even at 1/8 of its size every coefficient must be read."""
PADDING = 114
"""The grey around a letterboxed picture."""
_GAP = 2.0
"""A JPEG is decoded at least so many times as large as needed, which leaves the resize filter its effect."""
_LOG, _DARK_SAID = logging.getLogger(__name__), threading.Event()
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
"""Tags of a TIFF."""
_PNG_EXIF = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")
"""Starts of PNG chunks that may hold an orientation."""
_TURNS = (
    *(None, None, "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM"),
    *("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"),
)
"""EXIF orientation -> the transposition that puts the picture upright."""


@record(frozen=True)
class EncodedImage:
    """Bytes of an encoded image. where: their place, for messages."""

    data: bytes
    where: str

    @classmethod
    def read(cls, path: Path) -> EncodedImage:
        """Read a regular file. Raises InputError naming the file."""
        refuse_irregular(path, "Pass the path of a picture")
        try:
            check_bytes(path.stat().st_size, str(path))
            return cls(path.read_bytes(), str(path))
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
            why = getattr(error, "strerror", None) or error
            do = "Check the path and its permissions"
            raise InputError(f"cannot be read: {why}", where=str(path), do=do) from error


def open_encoded(data: bytes, where: str) -> Image.Image:
    """The picture with only its header read. Raises InputError."""
    image = pillow()
    if not data:
        raise InputError("is empty: no byte of a picture arrived", where=where, do="Pass the bytes of a whole file")
    if data[:8] == _PNG and len(data) >= 24:  # before Pillow warns of it on stderr
        refuse_large(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"), MAX_PIXELS, where)
    try:
        if data[:3] == _JPEG:  # no format is tried in vain, and Pillow's own bound does not count: ours does
            from PIL import JpegImagePlugin

            picture: Image.Image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        else:
            picture = image.open(io.BytesIO(data), formats=FORMATS)
    except image.DecompressionBombError as error:
        raise InputError(f"its pixels are more than {MAX_PIXELS:,}", where=where, do="Make it smaller") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise _undecodable(error, where) from error
    most = MAX_JPEG_PIXELS if picture.format == "JPEG" else MAX_PIXELS
    refuse_large(*picture.size, most, where)
    if max(picture.size) > MAX_SIDE:
        size = f"{picture.width} x {picture.height}"
        raise InputError(f"{size} pixels: a side is more than {MAX_SIDE:,}", where=where, do="Make it smaller")
    return picture


def loaded(picture: Image.Image, where: str = "the image") -> Image.Image:
    """The picture with its pixels in memory.
    Raises InputError: too large, empty, closed or truncated."""
    refuse_large(*picture.size, MAX_PIXELS, where)
    try:
        _scale_clear_value(picture)
        picture.load()
    except Exception as error:
        raise _undecodable(error, where) from error
    return picture


def _scale_clear_value(picture: Image.Image) -> None:
    """Scale the transparent value of an unloaded PNG to 8 bits: Pillow keeps the file's depth."""
    clear, tiles = picture.info.get("transparency"), getattr(picture, "tile", None)
    if picture.format != "PNG" or not tiles or not isinstance(clear, (int, tuple)):
        return
    mode = tiles[0][3]
    if isinstance(clear, int) and mode in ("L;2", "L;4"):
        picture.info["transparency"] = clear * 255 // (2 ** int(mode[-1]) - 1)
    elif isinstance(clear, tuple) and mode == "RGB;16B":
        picture.info["transparency"] = tuple(value >> 8 for value in clear)


def upright_size(picture: Image.Image, data: bytes = b"") -> tuple[int, int]:
    """(width, height) as a viewer shows it, mostly from the header. data: the encoded bytes."""
    if picture.format == "TIFF":  # rotated by Pillow itself, which says so in the size before or after, by version
        loaded(picture)
    width, height = picture.size
    if picture.format == "PNG":
        marks = sum(map(data.count, _PNG_EXIF))
        if "exif" not in picture.info and not marks:
            return width, height  # Pillow would decode the whole picture to see whether something comes behind it
        if marks > 1:  # the last one counts, and it may stand behind the picture
            loaded(picture)
    return (height, width) if _orientation(picture) >= 5 else (width, height)


def render(
    picture: Image.Image, image: ImageSpec, where: str = "the image", *, ours: bool = False
) -> tuple[NDArray[np.uint8], Placement]:
    """A picture as a uint8 [height, width, channels] array, and how it was placed.
    Orientation, mode, crop, size and colour order are applied.

    ours: no one else holds the picture, so a JPEG may be decoded smaller than it is."""
    if 0 in picture.size:
        raise InputError(f"{picture.width} x {picture.height} is not a picture", where=where, do="Pass one with pixels")
    mode = "L" if image.color == "gray" else "RGB"
    reducible = ours and picture.format == "JPEG"
    if not reducible:
        if ours:
            # a picture of four bytes a pixel that is converted is in memory twice
            four_bytes = picture.mode not in ("1", "L", "P") and not picture.mode.startswith("I;16")
            if four_bytes and mode == "RGB" and (picture.mode != mode or _transparent(picture)):
                refuse_large(*picture.size, MAX_CONVERTED_PIXELS, where)
        loaded(picture, where)
    orientation = _orientation(picture)
    size = picture.size
    placement = place(*((size[1], size[0]) if orientation >= 5 else size), image)
    box: Box4 = stored_box(placement.crop, size, orientation)
    if reducible:
        factor = _reduce(picture, image, placement, where)
        box = (box[0] / factor, box[1] / factor, box[2] / factor, box[3] / factor)
        loaded(picture, where)
    try:
        flat = _flatten(picture, where)
        flat = flat if flat.mode == mode else flat.convert(mode)
        if ours and flat is not picture:
            picture.close()  # its pixels are needed no more, and a crop of the others is made next
        inner = placement.inner[::-1] if orientation >= 5 else placement.inner
        cut = _resample(flat, box, inner, image)
        turn = _TURNS[orientation]
        if turn is not None:
            cut = cut.transpose(getattr(pillow().Transpose, turn))
    except InputError:
        raise
    except Exception as error:  # modes that Pillow reads and cannot convert
        raise _undecodable(error, where) from error
    return on_canvas(np.asarray(cut, np.uint8), placement, image), placement


def on_canvas(pixels: NDArray[np.uint8], placement: Placement, image: ImageSpec) -> NDArray[np.uint8]:
    """Pixels [h, w] or [h, w, 3] of the inner size as the canonical tensor, in its colour order."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if image.color == "bgr":
        pixels = pixels[:, :, ::-1]
    width, height = placement.inner
    if (width, height) == (image.width, image.height):
        return np.ascontiguousarray(pixels)
    canvas = np.full((image.height, image.width, image.channels), PADDING, np.uint8)
    x, y = placement.offset
    canvas[y : y + height, x : x + width] = pixels
    return canvas


def _reduce(picture: Image.Image, image: ImageSpec, placement: Placement, where: str) -> float:
    """Let a JPEG be decoded at a fraction of its size.
    Returns how many of its pixels become one a side. Raises InputError."""
    wanted, (width, height) = int(placement.shrinks / _GAP), picture.size
    factor = next((n for n in (8, 4, 2) if n <= wanted), 1)
    if factor == 1 or image.interpolation == "nearest":  # a contract that asks for single pixels gets them
        return 1.0
    if picture.info.get("progressive") and width * height > MAX_PIXELS:
        raise InputError(
            f"a progressive JPEG of {width} x {height} pixels: libjpeg keeps all of it in memory, and more than "
            f"{MAX_PIXELS:,} are not decoded",
            where=where,
            do="Make it smaller, or save it as a baseline JPEG",
        )
    set_up = picture.draft("L" if image.color == "gray" else "RGB", (width // factor, height // factor))
    return 1.0 if set_up is None else width / set_up[1][2]


def _resample(picture: Image.Image, box: Box4, size: tuple[int, int], image: ImageSpec) -> Image.Image:
    """The part `box` of a picture, scaled to size."""
    whole = (math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3]))
    if whole != (0, 0, *picture.size):  # cropped first: a resize with a box would let the filter look outside it
        picture = picture.crop(whole)
    if picture.size == size:
        return picture
    if whole == box:
        return picture.resize(size, resampling(image))
    inside = (box[0] - whole[0], box[1] - whole[1], box[2] - whole[0], box[3] - whole[1])
    return picture.resize(size, resampling(image), inside)


def _flatten(picture: Image.Image, where: str) -> Image.Image:
    """Transparency over white; 16-bit grey scaled to 8; a mode without a fixed range is refused."""
    # In 32 bits: PGM of every depth, which Pillow scales to 16, and PNG by older Pillows
    sixteen = picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM"))
    if picture.mode in ("I", "F") and not sixteen:
        what = f"a picture of mode {picture.mode} has no fixed range of values"
        raise InputError(what, where=where, do="Convert it to L or RGB")
    return _eight_bits(picture, where) if sixteen else _over_white(picture) if _transparent(picture) else picture


def _eight_bits(picture: Image.Image, where: str) -> Image.Image:
    """16-bit grey in 8 bits."""
    tags = getattr(picture, "tag_v2", {}) if picture.format == "TIFF" else {}
    bits = 12 if tags.get(_BITS_PER_SAMPLE) == (12,) else 16
    flip = 2**bits - 1 if tags.get(_PHOTOMETRIC) == 0 else 0  # white is 0
    clear = picture.info.get("transparency")
    grey: Image.Image = pillow().new("L", picture.size)
    most = 0
    for top, strip in _strips(picture):
        numbers = np.asarray(strip).clip(0, 2**bits - 1) ^ flip
        most = max(most, int(numbers.max()))
        eight = (numbers >> (bits - 8)).astype(np.uint8)
        if isinstance(clear, int):
            eight[numbers == clear] = 255
        grey.paste(pillow().fromarray(eight), (0, top))
    if bits == 16 and 0 < most < 2**12 and not _DARK_SAID.is_set():
        _DARK_SAID.set()
        _LOG.warning("%s: 16-bit grey that ends at %d of 65535 is nearly black; scale it to all 16 bits", where, most)
    return grey


def _transparent(picture: Image.Image) -> bool:
    return picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info


def _strips(picture: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Parts of a large picture, to avoid further copies of all of it."""
    rows = max(1, 2**20 // picture.width)
    for top in range(0, picture.height, rows):
        yield top, picture.crop((0, top, picture.width, min(top + rows, picture.height)))


def _over_white(picture: Image.Image) -> Image.Image:
    flat: Image.Image = pillow().new("RGB", picture.size, (255, 255, 255))
    for top, strip in _strips(picture):
        if "transparency" in picture.info:
            strip.info["transparency"] = picture.info["transparency"]
        if strip.mode in ("La", "RGBa"):
            strip = strip.convert("LA" if strip.mode == "La" else "RGBA")
        rgba = strip.convert("RGBA")
        white = pillow().new("RGBA", rgba.size, (255, 255, 255, 255))
        flat.paste(pillow().alpha_composite(white, rgba).convert("RGB"), (0, top))
    return flat


def _orientation(picture: Image.Image) -> int:
    """1 to 8; 1, as stored, if nothing sensible is said."""
    try:
        value = picture.getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001 - parsers of foreign bytes raise anything; damaged EXIF says nothing
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def check_bytes(size: int, where: str) -> None:
    """Raises InputError for more than MAX_BYTES."""
    if size > MAX_BYTES:
        raise InputError(f"{size:,} bytes are more than {MAX_BYTES:,}", where=where, do="Make the picture smaller")


def refuse_large(width: int, height: int, most: int, where: str) -> None:
    """Raises InputError for more pixels than that."""
    if width * height > most:
        raise InputError(f"{width} x {height} pixels is more than {most:,}", where=where, do="Make it smaller")


def _undecodable(error: Exception, where: str) -> InputError:
    what = "not an image that can be decoded"
    if type(error).__name__ != "UnidentifiedImageError":  # which says no more
        what += f": {next(iter(str(error).splitlines()), '') or type(error).__name__}"
    return InputError(what, where=where, do="Pass a complete PNG, JPEG, WebP, BMP, GIF or TIFF file")


def resampling(image: ImageSpec) -> Any:
    """Pillow's filter for the contract's interpolation."""
    return getattr(pillow().Resampling, image.interpolation.upper())


def pillow() -> Any:
    """Pillow's Image module. Raises MissingExtraError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("image", "decoding or resizing a picture") from error
    return Image

"""What a caller has -> the canonical tensor of one input.

For an image input the caller may pass a path, encoded bytes (PNG, JPEG, ...), a PIL image, or an array:
uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] are pixels of any size (RGB order unless `color` says bgr); a floating
array of the contract's shape is what the original model took, already normalised, and is left alone. An array with a
leading batch axis of 1 is one item. For any other input only arrays are taken.

Rules:
- EXIF orientation is applied, palettes are expanded, alpha is laid over white;
- a decoder's own complaint becomes one InputError that names the file;
- arrays of the canonical size need no Pillow.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.array_file import refuse_irregular
from edgekit_runtime.contract.check import check_dtype, check_values
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MAX_PIXELS", "Decoder", "Encoded"]

MAX_PIXELS = 89_000_000
"""Larger pictures are refused before they are decoded: a few kilobytes of PNG can ask for gigabytes. Just below the size
at which Pillow starts to warn by itself."""


@dataclass(frozen=True)
class Encoded:
    """The bytes of an encoded image and the place they came from, for the error message."""

    data: bytes
    where: str

    @classmethod
    def read(cls, path: Path) -> Encoded:
        """Raises InputError naming the file. Only regular files are read: a pipe or a device may never end."""
        refuse_irregular(path)
        try:
            return cls(path.read_bytes(), str(path))
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot be read: {why}", where=str(path), do="Check the path and its permissions"
            ) from error


class Decoder:
    """Callable: one raw input in, the canonical item out.

    The result is a uint8 [H, W, C] array of pixels, or the caller's own array where that already fits. ready: dtypes that
    an artifact takes as they are, besides what `check` allows.
    """

    def __init__(self, contract: InputContract, ready: Collection[np.dtype[Any]] = ()) -> None:
        self._contract = contract
        self._ready = tuple(ready)
        pixels = (np.dtype(np.uint8),) if contract.image is not None else ()
        self._as_it_is = (*self._ready, *pixels)  # these need no check: every value of theirs means something
        self._where = f"input '{contract.name}'"

    def __call__(self, value: Any) -> NDArray[Any]:
        if isinstance(value, np.ndarray):
            if value.shape == self._contract.shape and value.dtype in self._as_it_is:
                return value
            return self._array(value)
        image = self._contract.image
        if image is None:
            if isinstance(value, Encoded):
                raise InputError("this input is no image", where=value.where, do=self._do())
            return self._array(self._as_array(value))
        if isinstance(value, (str, os.PathLike)):
            value = Encoded.read(Path(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = Encoded(bytes(value), "the encoded image")
        if isinstance(value, Encoded):
            return render(decode_bytes(value.data, value.where), image, value.where)
        if hasattr(value, "convert") and hasattr(value, "size"):
            return render(value, image)
        return self._array(self._as_array(value))

    def _as_array(self, value: Any) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise self._refuse(f"a {type(value).__name__} is not a tensor") from error
        if array.dtype == object or array.dtype.kind in "USV":
            raise self._refuse(f"a {type(value).__name__} is not a tensor")
        return array

    def _array(self, array: NDArray[Any]) -> NDArray[Any]:
        check_dtype(array.dtype, self._contract, self._ready)
        if array.dtype not in self._ready and not (self._contract.image is not None and array.dtype == np.uint8):
            check_values(array, self._contract)
        shape = self._contract.shape
        if array.ndim == len(shape) + 1 and array.shape[0] == 1:
            array = array[0]
        if array.shape == shape:
            return array
        image = self._contract.image
        if image is None:
            raise self._refuse(f"an array of shape {list(array.shape)} does not fit")
        if array.shape == (shape[2], shape[0], shape[1]):
            return array.transpose(1, 2, 0)
        if array.dtype != np.uint8:
            raise self._refuse(f"a {array.dtype} array of shape {list(array.shape)} does not fit")
        return render(self._pixels(array, image), image)

    def _pixels(self, array: NDArray[Any], image: ImageSpec) -> Image.Image:
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or 0 in array.shape:
            raise self._refuse(f"a uint8 array of shape {list(array.shape)} is not a picture")
        if array.ndim == 3 and image.color == "bgr":  # a camera's order: BGR, or BGRA
            array = array[:, :, [2, 1, 0, 3][: array.shape[2]]]
        picture: Image.Image = _pillow().fromarray(np.ascontiguousarray(array))
        return picture

    def _refuse(self, what: str) -> InputError:
        return InputError(what, where=self._where, do=self._do())

    def _do(self) -> str:
        shape = list(self._contract.shape)
        if self._contract.image is not None:
            return f"Pass an image, a path, encoded bytes, a uint8 [H, W, 3] array or a float array of shape {shape}"
        return f"Pass an array of shape {shape}, dtype {self._contract.dtype}"


def decode_bytes(data: bytes, where: str) -> Image.Image:
    """Decode PNG, JPEG and whatever else Pillow reads, fully, so that a truncated file fails here."""
    pillow = _pillow()
    try:
        picture: Image.Image = pillow.open(io.BytesIO(data))
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise _undecodable(error, where) from error
    return loaded(picture, where)


def loaded(picture: Image.Image, where: str = "the image") -> Image.Image:
    """A picture whose pixels are in memory. Raises InputError for one that is too large, empty, closed or truncated."""
    if picture.width * picture.height > MAX_PIXELS:
        raise InputError(
            f"{picture.width} x {picture.height} pixels is more than {MAX_PIXELS:,}", where=where, do="Make it smaller"
        )
    if 0 in picture.size:
        raise InputError(f"{picture.width} x {picture.height} is no picture", where=where)
    try:
        picture.load()
    except Exception as error:
        raise _undecodable(error, where) from error
    return picture


def _undecodable(error: Exception, where: str) -> InputError:
    return InputError(
        f"not an image that can be decoded ({type(error).__name__})",
        where=where,
        do="Pass a complete PNG, JPEG, WebP or BMP file",
    )


def render(picture: Image.Image, image: ImageSpec, where: str = "the image") -> NDArray[np.uint8]:
    """Orientation, mode, crop, size, colour order: a uint8 [height, width, channels] array."""
    from PIL import ImageOps

    picture = loaded(picture, where)
    try:
        picture = ImageOps.exif_transpose(picture)
        picture = _flatten(picture, where).convert("L" if image.color == "gray" else "RGB")
        picture = _RESIZERS[image.resize](picture, image)
    except InputError:
        raise
    except Exception as error:  # modes that Pillow reads and cannot convert
        raise _undecodable(error, where) from error
    pixels = np.asarray(picture, np.uint8)
    if image.color == "gray":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if image.color == "bgr" else pixels


def _flatten(picture: Image.Image, where: str) -> Image.Image:
    """Transparency over white; 16-bit grey scaled to 8; what has no fixed range is refused."""
    sixteen = picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG")  # older Pillows
    if picture.mode in ("I", "F") and not sixteen:
        raise InputError(
            f"a picture of mode {picture.mode} has no fixed range of values", where=where, do="Convert it to L or RGB"
        )
    if sixteen:
        eight_bit = (np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        grey: Image.Image = _pillow().fromarray(eight_bit)
        return grey
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = _pillow().new("RGBA", rgba.size, (255, 255, 255, 255))
        flat: Image.Image = _pillow().alpha_composite(white, rgba)
        return flat
    return picture


def _stretch(picture: Image.Image, image: ImageSpec) -> Image.Image:
    if picture.size == (image.width, image.height):
        return picture
    return picture.resize((image.width, image.height), _filter(image))


def _center_crop(picture: Image.Image, image: ImageSpec) -> Image.Image:
    width, height = picture.size
    scale = min(width / image.width, height / image.height) * image.crop
    crop_w, crop_h = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    left, upper = (width - crop_w) // 2, (height - crop_h) // 2
    # Cropped first: a resize with a box would let the filter look outside it.
    return _stretch(picture.crop((left, upper, left + crop_w, upper + crop_h)), image)


def _letterbox(picture: Image.Image, image: ImageSpec) -> Image.Image:
    width, height = picture.size
    scale = min(image.width / width, image.height / height)
    inner = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), _filter(image))
    grey = 114 if inner.mode == "L" else (114, 114, 114)
    canvas: Image.Image = _pillow().new(inner.mode, (image.width, image.height), grey)
    canvas.paste(inner, ((image.width - inner.width) // 2, (image.height - inner.height) // 2))
    return canvas


_RESIZERS: dict[str, Callable[[Image.Image, ImageSpec], Image.Image]] = {
    "stretch": _stretch,
    "center-crop": _center_crop,
    "letterbox": _letterbox,
}


def _filter(image: ImageSpec) -> Any:
    return getattr(_pillow().Resampling, image.interpolation.upper())


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("image", "decoding or resizing a picture") from error
    return Image

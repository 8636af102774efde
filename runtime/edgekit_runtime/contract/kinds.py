"""The kinds of input, a class each: everything that depends on what an input is.

    kind_of(spec).dtypes(spec)              # of a canonical item; for an image uint8 first
    kind_of(spec).open("cat.jpg", spec)     # (pixels, where they lie in the picture)

- image (has an `ImageSpec`): paths, encoded bytes, pictures, frames, pixels of any size, normalised floats;
- tensor: any other; arrays that its dtype can hold without guessing: integers for floats, never floats for integers.
  Audio is a tensor that is one row of floats, filled by pieces of a recording (`takes_rows`).

Rule: no other module checks for an `ImageSpec`, except the workstation's table of the same kinds
(`edgekit_converters.data.dataset`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.frame import Frame, render_frame
from edgekit_runtime.contract.geometry import Geometry, place
from edgekit_runtime.contract.picture import (
    MAX_PIXELS,
    EncodedImage,
    open_encoded,
    pillow,
    refuse_large,
    render,
    upright_size,
)
from edgekit_runtime.contract.pixels import Step, pixel_step
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, TensorSpec
from edgekit_runtime.system.errors import InputError

Placed = tuple[NDArray[Any], "Geometry | None"]


class TensorKind:
    """Numbers of one shape.

    extras: extras that must be installed for it.
    any_size: whether items may have other shapes."""

    extras: tuple[str, ...] = ()
    any_size = False

    def free_dtypes(self, spec: InputContract) -> tuple[np.dtype[Any], ...]:
        """Dtypes of which every value is valid, so that values need no check."""
        return ()

    def dtypes(self, spec: InputContract) -> tuple[np.dtype[Any], ...]:
        """Of a canonical item, the best one first."""
        return (*self.free_dtypes(spec), np.dtype(spec.dtype))

    def most_bytes(self, spec: InputContract) -> int:
        """Bytes of one item in the widest numbers."""
        return 16 * math.prod(spec.shape)

    def advice(self, spec: InputContract) -> str:
        """What to pass, for an error."""
        return f"Pass an array of shape {list(spec.shape)}, dtype {spec.dtype}"

    def describe(self, spec: InputContract) -> str:
        return f"{spec.dtype} [{' x '.join(map(str, spec.shape))}]"

    def problems(self, spec: InputContract) -> Iterator[str]:
        """What is impossible in a contract that came with a bundle."""
        return iter(())

    def check_dtype(self, dtype: np.dtype[Any], spec: InputContract) -> None:
        """Raises InputError if this dtype cannot stand for the input without guessing."""
        if dtype.kind not in "biuf" or not np.can_cast(dtype, np.dtype(spec.dtype), "same_kind"):
            where = f"input '{spec.name}'"
            raise InputError(f"it takes {spec.dtype}, not {dtype}", where=where, do=f"Pass {spec.dtype}")

    def admit(self, value: Any) -> Any:
        """The value before a byte of it is read: bytes are numbers here."""
        return np.asarray(value) if isinstance(value, memoryview) else value

    def open(self, value: Any, spec: InputContract) -> Placed | None:
        """The item that a value other than an array stands for; None if it may be made an array."""
        if isinstance(value, (EncodedImage, Frame)):
            where = value.where if isinstance(value, EncodedImage) else f"input '{spec.name}'"
            raise InputError("this input is not an image", where=where, do=self.advice(spec))
        return None

    def check_shape(self, array: NDArray[Any], spec: InputContract) -> None:
        """Raises InputError if an array of another shape cannot become an item."""
        raise refusal(spec, f"an array of shape {list(array.shape)} does not fit")

    def resize(self, array: NDArray[Any], spec: InputContract) -> Placed:
        """The item that an array of another shape becomes."""
        raise refusal(spec, f"an array of shape {list(array.shape)} does not fit")

    def geometry(self, spec: InputContract) -> Geometry | None:
        """Where an item of the network's own size lies in the picture."""
        return None

    def locate(self, value: Any, spec: InputContract) -> Geometry | None:
        """Where the item of this value lies in the picture, without decoding it."""
        return None

    def axes(self, spec: InputContract, tensor: TensorSpec, *, fits: bool) -> tuple[int, int, int] | None:
        """The order of axes that an artifact takes, None for the contract's or if the shape fits."""
        if tensor.layout is None or len(spec.shape) != 3 or fits:
            return None
        return (2, 0, 1) if tensor.layout == "NCHW" else (1, 2, 0)

    def step(self, spec: InputContract, tensor: TensorSpec) -> tuple[str, Step | None]:
        """Name and function of the conversion from pixels to an artifact's numbers; see `pixels`."""
        return "cast", None


class ImageKind(TensorKind):
    """Pictures: uint8 pixels of any size, or floats of the network's own, already normalised."""

    extras = ("image",)
    any_size = True

    def free_dtypes(self, spec: InputContract) -> tuple[np.dtype[Any], ...]:
        return (np.dtype(np.uint8),)

    def most_bytes(self, spec: InputContract) -> int:
        return super().most_bytes(spec) + 4 * MAX_PIXELS

    def advice(self, spec: InputContract) -> str:
        pixels = "Pass an image, a path, encoded bytes, a uint8 [H, W, 3] array"
        return f"{pixels}, or floats of shape {list(spec.shape)} that are already normalised"

    def describe(self, spec: InputContract) -> str:
        image, size = _image(spec), " x ".join(map(str, spec.shape))
        mean, std = _each(image.mean), _each(image.std)
        return f"{image.color} image, {image.resize} to {size}, (pixel - {mean}) / {std}"

    def problems(self, spec: InputContract) -> Iterator[str]:
        image = _image(spec)
        if spec.shape != (image.height, image.width, image.channels):
            yield f"a picture of another shape than {list(spec.shape)}"
        if not len(image.mean) == len(image.std) == image.channels:
            yield "mean and std are not one a channel"
        if not all(image.std):
            yield "a std is zero"
        if not 0 < image.crop <= 1:
            yield f"a crop of {image.crop:g} is not within 0 and 1"

    def check_dtype(self, dtype: np.dtype[Any], spec: InputContract) -> None:
        floats = np.dtype(spec.dtype).kind == "f"
        if dtype != np.uint8 and not (dtype.kind == "f" and floats):
            do = "Pass pixels 0..255 with .astype(numpy.uint8)"
            do += f", or the model's own input as {spec.dtype}" if floats else ""
            raise InputError(f"an image cannot be {dtype}", where=f"input '{spec.name}'", do=do)

    def admit(self, value: Any) -> Any:
        return value

    def open(self, value: Any, spec: InputContract) -> Placed | None:
        if isinstance(value, Frame):
            pixels, placement = render_frame(value, _image(spec))
            return pixels, placement.geometry
        value = _encoded(value)
        if isinstance(value, EncodedImage):
            pixels, placement = render(open_encoded(value.data, value.where), _image(spec), value.where, ours=True)
        elif _is_picture(value):
            pixels, placement = render(value, _image(spec))
        else:
            return None
        return pixels, placement.geometry

    def check_shape(self, array: NDArray[Any], spec: InputContract) -> None:
        if array.shape == _channels_first(spec):
            return
        if array.dtype != np.uint8:
            raise refusal(spec, f"a {array.dtype} array of shape {list(array.shape)} does not fit")
        drawn = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
        if not drawn or 0 in array.shape:
            raise refusal(spec, f"a uint8 array of shape {list(array.shape)} is not a picture")
        refuse_large(array.shape[1], array.shape[0], MAX_PIXELS, f"input '{spec.name}'")

    def resize(self, array: NDArray[Any], spec: InputContract) -> Placed:
        if array.shape == _channels_first(spec):
            return array.transpose(1, 2, 0), self.geometry(spec)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        image = _image(spec)
        # Resizing treats all colours alike: bgr is put through as if it were rgb, and comes out as bgr.
        order = replace(image, color="rgb") if image.color == "bgr" else image
        pixels, placement = render(pillow().fromarray(np.ascontiguousarray(array)), order)
        return pixels, placement.geometry

    def geometry(self, spec: InputContract) -> Geometry | None:
        image = _image(spec)
        return Geometry(image.width, image.height)

    def locate(self, value: Any, spec: InputContract) -> Geometry | None:
        image, value = _image(spec), _encoded(value)
        if isinstance(value, Frame):
            return place(*value.size, image).geometry
        if isinstance(value, EncodedImage):
            size = upright_size(open_encoded(value.data, value.where), value.data)
            return place(*size, image).geometry
        if _is_picture(value):
            return place(*upright_size(value), image).geometry
        array = value if isinstance(value, np.ndarray) else as_array(value, spec)
        if array.ndim == 4:
            array = array[0]
        if array.dtype != np.uint8 or array.shape in (spec.shape, _channels_first(spec)):
            return self.geometry(spec)
        return place(array.shape[1], array.shape[0], image).geometry

    def axes(self, spec: InputContract, tensor: TensorSpec, *, fits: bool) -> tuple[int, int, int] | None:
        return (2, 0, 1) if tensor.layout == "NCHW" else None

    def step(self, spec: InputContract, tensor: TensorSpec) -> tuple[str, Step | None]:
        return pixel_step(_image(spec), tensor)


_TENSOR, _IMAGE = TensorKind(), ImageKind()


def kind_of(spec: InputContract) -> TensorKind:
    """The kind of an input."""
    return _TENSOR if spec.image is None else _IMAGE


def pictures(inputs: Sequence[InputContract]) -> tuple[ImageSpec, ...]:
    """The specs of the inputs that are images, in their order."""
    return tuple(spec.image for spec in inputs if spec.image is not None)


def network_size(inputs: Sequence[InputContract]) -> tuple[int, int]:
    """(width, height) of the first input that is an image; (1, 1) without one."""
    return next(((image.width, image.height) for image in pictures(inputs)), (1, 1))


def takes_rows(contract: Contract) -> bool:
    """Whether the model takes one row of floats, as the pieces of a recording are."""
    if len(contract.inputs) != 1 or pictures(contract.inputs):
        return False
    spec = contract.inputs[0]
    return np.dtype(spec.dtype).kind == "f" and sum(size != 1 for size in spec.shape) <= 1


def as_array(value: Any, spec: InputContract) -> NDArray[Any]:
    """Nested lists and the like as an array. Raises InputError if it holds no numbers."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise refusal(spec, f"a value of type {type(value).__name__} is not a tensor") from error
    if array.dtype == object or array.dtype.kind in "USV":
        raise refusal(spec, f"a value of type {type(value).__name__} is not a tensor")
    return array


def refusal(spec: InputContract, what: str) -> InputError:
    """The error for a value of this input, with what to pass instead."""
    return InputError(what, where=f"input '{spec.name}'", do=kind_of(spec).advice(spec))


def _image(spec: InputContract) -> ImageSpec:
    return cast(ImageSpec, spec.image)


def _channels_first(spec: InputContract) -> tuple[int, int, int]:
    return spec.shape[2], spec.shape[0], spec.shape[1]


def _encoded(value: Any) -> Any:
    if isinstance(value, (str, os.PathLike)):
        return EncodedImage.read(Path(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return EncodedImage(bytes(value), "the encoded image")
    return value


def _is_picture(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "size")


def _each(values: tuple[float, ...]) -> str:
    """One number if all channels have the same."""
    return f"{values[0]:g}" if len(set(values)) == 1 else "[" + ", ".join(f"{value:g}" for value in values) + "]"

"""What a caller has -> the canonical tensor of one input, and where it lies in the caller's picture.

For an image input the caller may pass a path, encoded bytes (PNG, JPEG, ...), a PIL image, a camera's `Frame`, or an array:
uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] are pixels of any size (RGB order unless `color` says bgr); a floating
array of the contract's shape is what the original model took, already normalised, and is left alone. An array with a
leading batch axis of 1 is one item. For any other input only arrays are taken.

    item, geometry = decoder.place("cat.jpg")
    geometry = decoder.locate("cat.jpg")            # the same, without decoding: for an answer out of the cache

Rules:
- what a picture goes through is in `picture` and `yuv`, where it goes in `geometry`;
- what cannot fit by its kind, dtype, shape or size is refused before anything of it is read or copied: `admit`;
- an empty batch, or one of several items, is told apart from a wrong shape;
- arrays of the canonical size need no Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.check import check_dtype, check_values
from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.geometry import Geometry, place
from edgekit_runtime.contract.given import Encoded, taken
from edgekit_runtime.contract.picture import (
    MAX_PIXELS,
    loaded,
    open_encoded,
    pillow,
    refuse_large,
    render,
    upright_size,
)
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.contract.yuv import render_frame
from edgekit_runtime.errors import InputError

__all__ = ["MAX_PIXELS", "Decoder", "Encoded", "loaded"]


class Decoder:
    """Callable: one raw input in, the canonical item out.

    The result is a uint8 [H, W, C] array of pixels, or the caller's own array where that already fits (a `Frame` never
    shares memory with it). ready: dtypes that an artifact takes as they are, besides what `check` allows. Thread-safe.
    """

    def __init__(self, contract: InputContract, ready: Collection[np.dtype[Any]] = ()) -> None:
        self._contract = contract
        self._ready = tuple(ready)
        image = contract.image
        pixels = (np.dtype(np.uint8),) if image is not None else ()
        self._as_it_is = (*self._ready, *pixels)  # these need no check: every value of theirs means something
        self._where = f"input '{contract.name}'"
        self._own = Geometry(image.width, image.height) if image is not None else None

    def __call__(self, value: Any) -> NDArray[Any]:
        if type(value) is np.ndarray and value.shape == self._contract.shape and value.dtype in self._as_it_is:
            return value
        return self.place(value)[0]

    def admit(self, value: Any) -> Any:
        """The value, or the array or bytes that it stands for (see `given`), where it can fit as far as kind, dtype, shape
        and size tell; no byte of it is read. Raises InputError."""
        value = taken(value, self._where)
        if self._contract.image is None and isinstance(value, memoryview):
            value = np.asarray(value)  # bytes are numbers here
        if isinstance(value, np.ndarray):
            self._fitting(value)
        return value

    def place(self, value: Any) -> tuple[NDArray[Any], Geometry | None]:
        """The canonical item, and where the caller's picture it lies: None for an input that is no image.

        An array that is taken as it is, is the network's own picture.
        """
        if type(value) is np.ndarray and value.shape == self._contract.shape and value.dtype in self._as_it_is:
            return value, self._own
        value = self.admit(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        image = self._contract.image
        if image is None:
            if isinstance(value, (Encoded, Frame)):
                where = value.where if isinstance(value, Encoded) else self._where
                raise InputError("this input is no image", where=where, do=self._do())
            return self._array(self._as_array(value))
        if isinstance(value, Frame):
            pixels, placement = render_frame(value, image)
            return pixels, placement.geometry
        value = _encoded(value)
        if isinstance(value, Encoded):
            pixels, placement = render(open_encoded(value.data, value.where), image, value.where, ours=True)
            return pixels, placement.geometry
        if _is_picture(value):
            pixels, placement = render(value, image)
            return pixels, placement.geometry
        return self._array(self._as_array(value))

    def locate(self, value: Any) -> Geometry | None:
        """The geometry that `place` gives, without decoding: of encoded pictures the header is read.

        Raises InputError where not even that can be read.
        """
        image = self._contract.image
        if image is None:
            return None
        value = _encoded(value)
        if isinstance(value, Frame):
            return place(*value.size, image).geometry
        if isinstance(value, Encoded):
            size = upright_size(open_encoded(value.data, value.where), value.data)
            return place(*size, image).geometry
        if _is_picture(value):
            return place(*upright_size(value), image).geometry
        array = value if isinstance(value, np.ndarray) else self._as_array(value)
        height, width, channels = shape = self._contract.shape
        if array.ndim == 4:
            array = array[0]
        if array.dtype != np.uint8 or array.shape in (shape, (channels, height, width)):
            return self._own
        return place(array.shape[1], array.shape[0], image).geometry

    def _as_array(self, value: Any) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise self._refuse(f"a {type(value).__name__} is not a tensor") from error
        if array.dtype == object or array.dtype.kind in "USV":
            raise self._refuse(f"a {type(value).__name__} is not a tensor")
        return array

    def _array(self, array: NDArray[Any]) -> tuple[NDArray[Any], Geometry | None]:
        image, shape = self._contract.image, self._contract.shape
        array = self._fitting(array)
        if array.dtype not in self._ready and not (image is not None and array.dtype == np.uint8):
            check_values(array, self._contract)
        if array.shape == shape:
            return array, self._own
        assert image is not None
        if array.shape == (shape[2], shape[0], shape[1]):
            return array.transpose(1, 2, 0), self._own
        return self._pixels(array, image)

    def _fitting(self, array: NDArray[Any]) -> NDArray[Any]:
        """Without the batch axis, where dtype and shape fit. Nothing is read, so that it costs the same for any size."""
        image, shape = self._contract.image, self._contract.shape
        check_dtype(array.dtype, self._contract, self._ready)
        array = self._one_item(array)
        if array.shape == shape or (image is not None and array.shape == (shape[2], shape[0], shape[1])):
            return array
        if image is None:
            raise self._refuse(f"an array of shape {list(array.shape)} does not fit")
        if array.dtype != np.uint8:
            raise self._refuse(f"a {array.dtype} array of shape {list(array.shape)} does not fit")
        drawn = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
        if not drawn or 0 in array.shape:
            raise self._refuse(f"a uint8 array of shape {list(array.shape)} is not a picture")
        refuse_large(array.shape[1], array.shape[0], MAX_PIXELS, self._where)
        return array

    def _one_item(self, array: NDArray[Any]) -> NDArray[Any]:
        """Without the batch axis. Raises InputError for a batch that holds no item, or several."""
        item = self._contract.shape
        if array.ndim != len(item) + 1 or (self._contract.image is None and array.shape[1:] != item):
            return array
        if len(array) == 1:
            only: NDArray[Any] = array[0]
            return only
        if len(array) == 0:
            raise InputError("an empty batch has nothing to answer", where=self._where, do=self._do())
        raise InputError(
            f"a batch of {len(array)} items; a request is one item",
            where=self._where,
            do=f"Call submit() once for each, of shape {list(item)}: what queues is run as a batch where that pays. Of a file, "
            "save each item by itself: numpy.save('one.npy', array[0])",
        )

    def _pixels(self, array: NDArray[np.uint8], image: ImageSpec) -> tuple[NDArray[Any], Geometry]:
        """A picture of another size, in the contract's own order of colours."""
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        # Resizing treats all colours alike: bgr is put through as if it were rgb, and comes out as bgr.
        order = replace(image, color="rgb") if image.color == "bgr" else image
        pixels, placement = render(pillow().fromarray(np.ascontiguousarray(array)), order)
        return pixels, placement.geometry

    def _refuse(self, what: str) -> InputError:
        return InputError(what, where=self._where, do=self._do())

    def _do(self) -> str:
        shape = list(self._contract.shape)
        if self._contract.image is not None:
            return f"Pass an image, a path, encoded bytes, a uint8 [H, W, 3] array or a float array of shape {shape}"
        return f"Pass an array of shape {shape}, dtype {self._contract.dtype}"


def _encoded(value: Any) -> Any:
    if isinstance(value, (str, os.PathLike)):
        return Encoded.read(Path(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), "the encoded image")
    return value


def _is_picture(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "size")

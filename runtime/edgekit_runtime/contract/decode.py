"""What a caller has -> the canonical tensor of one input, and its place in the picture.

    item, geometry = decoder.place("cat.jpg")
    geometry = decoder.locate("cat.jpg")            # the same, without decoding: for a cached answer

An image input takes a path, encoded bytes (PNG, JPEG, ...), a PIL image, a camera's `Frame`, or an array: uint8 [H, W],
[H, W, 1], [H, W, 3] or [H, W, 4] pixels of any size, RGB unless `color` says bgr; or floats of the contract's shape,
already normalised. Other inputs take arrays. A leading batch axis of 1 is removed.

Rules:
- what cannot fit by kind, dtype, shape or size is refused before it is read or copied (`admit`); no more than MAX_BYTES
  of an encoded picture or a camera's buffer are read, hashed or copied;
- NaN, infinity, integers out of range, an empty batch and one of several items are refused, each with its own message;
- what holds numbers in memory (`array.array`, a memoryview with a shape) is an array without a copy; a flat row of
  bytes may be an encoded picture;
- a masked array is refused, because the network would see what lies under the mask, and so is an open file, but not a
  `BytesIO` or a mapped file;
- arrays of the canonical size need no Pillow.
"""

from __future__ import annotations

import array
import io
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.kinds import as_array, kind_of, refusal
from edgekit_runtime.contract.picture import EncodedImage, check_bytes
from edgekit_runtime.contract.spec import InputContract
from edgekit_runtime.system.errors import InputError


class Decoder:
    """Callable: one raw input in, the canonical item out. Thread-safe.
    The result is a uint8 [H, W, C] array of pixels, or the caller's own array if that fits.

    ready: dtypes that an artifact takes as they are, besides what the input takes.
    as_it_is: dtypes of which an array of the contract's shape is already canonical."""

    def __init__(self, contract: InputContract, ready: Collection[np.dtype[Any]] = ()) -> None:
        self._contract, self._kind = contract, kind_of(contract)
        self._ready = tuple(ready)
        self.as_it_is = (*self._ready, *self._kind.free_dtypes(contract))
        self._geometry = self._kind.geometry(contract)

    def __call__(self, value: Any) -> NDArray[Any]:
        return self.place(value)[0]

    def admit(self, value: Any) -> Any:
        """The value, or what it stands for (`unwrap`), if it fits; not read yet. Raises InputError."""
        value = self._kind.admit(unwrap(value, f"input '{self._contract.name}'"))
        if isinstance(value, np.ndarray):
            self._fitting(value)
        return value

    def place(self, value: Any) -> tuple[NDArray[Any], Geometry | None]:
        """The canonical item, and its place in the caller's picture (None unless it is an image)."""
        if type(value) is np.ndarray and value.shape == self._contract.shape and value.dtype in self.as_it_is:
            return value, self._geometry
        value = self.admit(value)
        if not isinstance(value, np.ndarray):
            opened = self._kind.open(value, self._contract)
            if opened is not None:
                return opened
            value = as_array(value, self._contract)
        array = self._fitting(value)
        if array.dtype not in self.as_it_is:
            check_values(array, self._contract)
        return (
            (array, self._geometry) if array.shape == self._contract.shape else self._kind.resize(array, self._contract)
        )

    def locate(self, value: Any) -> Geometry | None:
        """The geometry that `place` gives, without decoding. Raises InputError for a bad header."""
        return self._kind.locate(value, self._contract)

    def _fitting(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array without its batch axis, if dtype and shape fit. Reads no values."""
        if array.dtype not in self._ready:
            self._kind.check_dtype(array.dtype, self._contract)
        array = self._one_item(array)
        if array.shape != self._contract.shape:
            self._kind.check_shape(array, self._contract)
        return array

    def _one_item(self, array: NDArray[Any]) -> NDArray[Any]:
        """Without the batch axis. Raises InputError for an empty batch, or several items."""
        item = self._contract.shape
        if array.ndim != len(item) + 1 or not (self._kind.any_size or array.shape[1:] == item):
            return array
        if len(array) == 1:
            only: NDArray[Any] = array[0]
            return only
        if len(array) == 0:
            raise refusal(self._contract, "an empty batch has nothing to answer")
        do = f"Call submit() once for each, of shape {list(item)}: what queues is run as a batch where that pays. "
        do += "Of a file, save each item by itself: numpy.save('one.npy', array[0])"
        what = f"a batch of {len(array)} items; a request is one item"
        raise InputError(what, where=f"input '{self._contract.name}'", do=do)


def unwrap(value: Any, where: str) -> Any:
    """The value, or the array or bytes that it stands for; copies only what a `BytesIO` holds.

        unwrap("cat.jpg", where)                 # itself: a path is read later, once
        unwrap(io.BytesIO(png), where)           # the bytes in it
        unwrap(array.array("f", [0, 1]), where)  # float32 [2], a view

    Raises InputError, at `where`, if it is not an input, or holds more than MAX_BYTES of an encoded picture."""
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask") and hasattr(value, "filled"):
            what = "a masked array has no values where it is masked"
            raise InputError(what, where=where, do="Pass array.filled(...) instead")
        return np.asarray(value)  # of a subclass the plain array: a memory map is read as one
    if isinstance(value, io.BytesIO):
        check_bytes(value.getbuffer().nbytes, where)
        return value.getvalue()
    if isinstance(value, (array.array, memoryview)):
        return _buffer(memoryview(value), where)
    if isinstance(value, (bytes, bytearray)):
        check_bytes(len(value), where)
    elif hasattr(value, "read") and not isinstance(value, (os.PathLike, EncodedImage)):
        try:
            return _buffer(memoryview(value), where)  # a mapped file is open, and in memory
        except TypeError:
            do = "Pass its path, or the bytes in it: file.read()"
            raise InputError("an open file is not an input", where=where, do=do) from None
    return value


def copy_in(value: Any) -> Any:
    """Copy what `unwrap` gave, so that the caller may overwrite its arrays and buffers."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Frame):
        data = value.data
        return replace(value, data=data.copy() if isinstance(data, np.ndarray) else bytes(data))
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _buffer(view: memoryview[Any], where: str) -> Any:
    if view.ndim == 1 and view.format in ("B", "b", "c"):
        check_bytes(view.nbytes, where)
        return view
    try:
        return np.asarray(view)
    except (ValueError, TypeError, BufferError) as error:
        raise InputError(f"a buffer of '{view.format}' holds no numbers", where=where, do="Pass an array") from error


def check_values(array: NDArray[Any], contract: InputContract) -> None:
    """Raises InputError for NaN, infinity, and integers that the contract's dtype cannot hold."""
    wanted, where = np.dtype(contract.dtype), f"input '{contract.name}'"
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            do = "Look for a division by zero or an overflow in what made the array"
            raise InputError("it holds NaN or infinity", where=where, do=do)
        wider = wanted.kind == "f" and array.dtype.itemsize > wanted.itemsize and array.size
        if wider and float(np.abs(array).max()) > float(np.finfo(wanted).max):
            raise InputError(f"it has values outside {wanted}", where=where, do=f"Pass {wanted}")
    elif wanted.kind in "iu" and array.dtype != wanted and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InputError(f"it has values outside {contract.dtype}", where=where, do=f"Pass {contract.dtype}")

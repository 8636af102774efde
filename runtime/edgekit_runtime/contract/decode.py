"""What a caller has -> the canonical tensor of one input, and where it lies in the caller's picture.

For an image input the caller may pass a path, encoded bytes (PNG, JPEG, ...), a PIL image, a camera's `Frame`, or an array:
uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] are pixels of any size (RGB order unless `color` says bgr); a floating
array of the contract's shape is what the original model took, already normalised, and is left alone. An array with a
leading batch axis of 1 is one item. For any other input only arrays are taken.

    item, geometry = decoder.place("cat.jpg")
    geometry = decoder.locate("cat.jpg")            # the same, without decoding: for an answer out of the cache

Rules:
- what depends on the kind of the input is in `kinds`; what a picture goes through is in `picture` and `yuv`;
- what cannot fit by its kind, dtype, shape or size is refused before anything of it is read or copied: `admit`;
- no NaN, no infinity, no integer out of range;
- an artifact's own dtype may be passed where the caller says so (`ready`): an array made for the engine;
- an empty batch, or one of several items, is told apart from a wrong shape;
- arrays of the canonical size need no Pillow.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.given import Encoded, taken
from edgekit_runtime.contract.kinds import as_array, kind_of, refusal
from edgekit_runtime.contract.picture import MAX_PIXELS, loaded
from edgekit_runtime.contract.spec import InputContract
from edgekit_runtime.errors import InputError

__all__ = ["MAX_PIXELS", "Decoder", "Encoded", "check_values", "loaded"]


class Decoder:
    """Callable: one raw input in, the canonical item out.

    The result is a uint8 [H, W, C] array of pixels, or the caller's own array where that already fits (a `Frame` never
    shares memory with it). ready: dtypes that an artifact takes as they are, besides what the input takes. Thread-safe.
    """

    def __init__(self, contract: InputContract, ready: Collection[np.dtype[Any]] = ()) -> None:
        self._contract, self._kind = contract, kind_of(contract)
        self._ready = tuple(ready)
        self._as_it_is = (*self._ready, *self._kind.free_dtypes(contract))  # these need no check
        self._own = self._kind.geometry(contract)

    def __call__(self, value: Any) -> NDArray[Any]:
        if type(value) is np.ndarray and value.shape == self._contract.shape and value.dtype in self._as_it_is:
            return value
        return self.place(value)[0]

    def admit(self, value: Any) -> Any:
        """The value, or the array or bytes that it stands for (see `given`), where it can fit as far as kind, dtype, shape
        and size tell; no byte of it is read. Raises InputError."""
        value = self._kind.admit(taken(value, f"input '{self._contract.name}'"))
        if isinstance(value, np.ndarray):
            self._fitting(value)
        return value

    def place(self, value: Any) -> tuple[NDArray[Any], Geometry | None]:
        """The canonical item, and where in the caller's picture it lies: None for an input that is no image.

        An array that is taken as it is, is the network's own picture.
        """
        if type(value) is np.ndarray and value.shape == self._contract.shape and value.dtype in self._as_it_is:
            return value, self._own
        value = self.admit(value)
        if not isinstance(value, np.ndarray):
            opened = self._kind.open(value, self._contract)
            if opened is not None:
                return opened
            value = as_array(value, self._contract)
        array = self._fitting(value)
        if array.dtype not in self._as_it_is:
            check_values(array, self._contract)
        return (array, self._own) if array.shape == self._contract.shape else self._kind.resize(array, self._contract)

    def locate(self, value: Any) -> Geometry | None:
        """The geometry that `place` gives, without decoding. Raises InputError where a picture's header cannot be read."""
        return self._kind.locate(value, self._contract)

    def _fitting(self, array: NDArray[Any]) -> NDArray[Any]:
        """Without the batch axis, where dtype and shape fit. Nothing is read, so that it costs the same for any size."""
        if array.dtype not in self._ready:
            self._kind.check_dtype(array.dtype, self._contract)
        array = self._one_item(array)
        if array.shape != self._contract.shape:
            self._kind.check_shape(array, self._contract)
        return array

    def _one_item(self, array: NDArray[Any]) -> NDArray[Any]:
        """Without the batch axis. Raises InputError for a batch that holds no item, or several."""
        item = self._contract.shape
        if array.ndim != len(item) + 1 or not (self._kind.any_size or array.shape[1:] == item):
            return array
        if len(array) == 1:
            only: NDArray[Any] = array[0]
            return only
        if len(array) == 0:
            raise refusal(self._contract, "an empty batch has nothing to answer")
        raise InputError(
            f"a batch of {len(array)} items; a request is one item",
            where=f"input '{self._contract.name}'",
            do=f"Call submit() once for each, of shape {list(item)}: what queues is run as a batch where that pays. Of a file, "
            "save each item by itself: numpy.save('one.npy', array[0])",
        )


def check_values(array: NDArray[Any], contract: InputContract) -> None:
    """Raises InputError for NaN, infinity, and integers that the contract's dtype cannot hold."""
    wanted, where = np.dtype(contract.dtype), f"input '{contract.name}'"
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError(
                "it holds NaN or infinity",
                where=where,
                do="Look for a division by zero or an overflow in what made the array",
            )
        wider = wanted.kind == "f" and array.dtype.itemsize > wanted.itemsize and array.size
        if wider and float(np.abs(array).max()) > float(np.finfo(wanted).max):
            raise InputError(f"it has values outside {wanted}", where=where, do=f"Pass {wanted}")
    elif wanted.kind in "iu" and array.dtype != wanted and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InputError(f"it has values outside {contract.dtype}", where=where, do=f"Pass {contract.dtype}")

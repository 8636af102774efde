"""What a caller handed over, looked at before a byte of it is read: so far only its kind and its size count.

    taken("cat.jpg", where)                 # itself: a path is read later, once
    taken(io.BytesIO(png), where)           # the bytes in it
    taken(array.array("f", [0, 1]), where)  # float32 [2], a view

Rules:
- what holds numbers in memory (`array.array`, a memoryview with a shape) is an array, without a copy; one plain row of bytes
  may be an encoded picture, and stays what it is;
- a masked array is refused: what is masked has no value, and the network would be fed what lies under the mask;
- an open file is refused: where it stands, and who closes it, is the caller's business. A `BytesIO` is taken whole, and so
  is a file that was mapped into memory;
- no more than MAX_BYTES of an encoded picture, or of a camera's buffer, are read, hashed or copied.
"""

from __future__ import annotations

import array
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_runtime.array_file import refuse_irregular
from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.picture import bounded
from edgekit_runtime.errors import InputError

__all__ = ["Encoded", "kept", "taken"]


@dataclass(frozen=True)
class Encoded:
    """The bytes of an encoded image and the place they came from, for the error message."""

    data: bytes
    where: str

    @classmethod
    def read(cls, path: Path) -> Encoded:
        """Raises InputError naming the file. Only regular files are read: a pipe or a device may never end."""
        refuse_irregular(path, "Pass the path of a picture")
        try:
            bounded(path.stat().st_size, str(path))
            return cls(path.read_bytes(), str(path))
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot be read: {why}", where=str(path), do="Check the path and its permissions"
            ) from error


def taken(value: Any, where: str) -> Any:
    """The value, or the array or the bytes that it stands for; nothing is copied but what a `BytesIO` holds.

    where: for the error. Raises InputError for what is no input, or holds more than MAX_BYTES of an encoded picture.
    """
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask") and hasattr(value, "filled"):
            raise InputError(
                "a masked array has no values where it is masked", where=where, do="Pass array.filled(...) instead"
            )
        return np.asarray(value)  # of a subclass the plain array: a memory map is read as one
    if isinstance(value, io.BytesIO):
        bounded(value.getbuffer().nbytes, where)
        return value.getvalue()
    if isinstance(value, (array.array, memoryview)):
        return _buffer(memoryview(value), where)
    if isinstance(value, (bytes, bytearray)):
        bounded(len(value), where)
    elif hasattr(value, "read") and not isinstance(value, (os.PathLike, Encoded)):
        try:
            return _buffer(memoryview(value), where)  # a mapped file is open, and in memory
        except TypeError:
            do = "Pass its path, or the bytes in it: file.read()"
            raise InputError("an open file is no input", where=where, do=do) from None
    return value


def kept(value: Any) -> Any:
    """What `taken` gave, in memory of its own: the caller may write over its arrays and buffers from now on."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Frame):
        data = value.data
        return replace(value, data=data.copy() if isinstance(data, np.ndarray) else bytes(data))
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _buffer(view: memoryview[Any], where: str) -> Any:
    if view.ndim == 1 and view.format in ("B", "b", "c"):
        bounded(view.nbytes, where)
        return view
    try:
        return np.asarray(view)
    except (ValueError, TypeError, BufferError) as error:
        raise InputError(f"a buffer of '{view.format}' holds no numbers", where=where, do="Pass an array") from error

"""What makes two requests the same: every byte the caller gave, its dtype and shape, the model and its contract.

    key, inputs = identify({"image": "cat.jpg"}, namespace)     # the file is read once, here

- xxh3-128 of all the bytes, before any decoding: a hit on a JPEG costs a hash. `str(array)` is no key: NumPy shortens it.
- A path is replaced by the bytes it held when it was identified, so a file that changes later changes nothing.
- Something without bytes to hash (a list, a custom object) has no key: it is computed, never cached.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from edgekit_runtime.contract.decode import Encoded, loaded

__all__ = ["Identity", "identify"]

Identity = Hashable


def identify(inputs: Mapping[str, Any], namespace: bytes) -> tuple[Identity | None, Mapping[str, Any]]:
    """The key of a request, or None where it has none, and the inputs with paths replaced by their bytes.

    namespace: digests of the model and of its contract. Raises InputError when a path cannot be read.
    """
    if len(inputs) == 1:  # the hot path: no dict is rebuilt, no list is made
        ((name, value),) = inputs.items()
        if isinstance(value, np.ndarray):
            array = _array(value)
            return (None if array is None else (namespace, name, *array)), inputs
    read = {name: _read(value) for name, value in inputs.items()}
    parts: list[Hashable] = [namespace]
    for name in sorted(read):
        part = _part(read[name])
        if part is None:
            return None, read
        parts.append((name, *part))
    return tuple(parts), read


def _read(value: Any) -> Any:
    return Encoded.read(Path(value)) if isinstance(value, (str, os.PathLike)) else value


def _part(value: Any) -> tuple[Hashable, ...] | None:
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Encoded):
        return ("encoded", xxhash.xxh3_128_digest(value.data))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("encoded", xxhash.xxh3_128_digest(bytes(value)))
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):  # a PIL image
        loaded(value)
        palette = repr(value.getpalette()) if value.mode in ("P", "PA") else ""
        orientation = value.getexif().get(0x0112, 1) if hasattr(value, "getexif") else 1
        details = f"{value.mode} {value.size} {orientation} {value.info.get('transparency')!r} {palette}"
        return ("image", details, xxhash.xxh3_128_digest(value.tobytes()))
    return None


def _array(array: np.ndarray[Any, Any]) -> tuple[Hashable, ...] | None:
    if array.dtype.kind not in "biuf":  # no tensor: the decoder says so
        return None
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return (array.dtype.str, array.shape, xxhash.xxh3_128_digest(contiguous.data if array.size else b""))

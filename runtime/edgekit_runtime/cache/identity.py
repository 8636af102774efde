"""What makes two requests the same: every byte, dtype and shape, the model and its contract.

    key, inputs = identify({"image": "cat.jpg"}, namespace)     # the file is read once, here
    flight, leads = flights.join(key)                           # identical requests share one inference

Rules:
- a key is 32 bytes: 16 for model, input name, dtype and shape, and xxh3-128 of all bytes before decoding, so a hit on a
  JPEG costs a hash. `str(array)` is not a key: NumPy shortens it;
- a path is replaced by the bytes that it held when it was identified;
- an input without bytes to hash (a list, a custom object) has no key: it is computed, never cached.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import xxhash

from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.picture import EncodedImage, loaded
from edgekit_runtime.contract.text import Text

Identity = bytes
_MOST_KINDS = 1024
_digest = xxhash.xxh3_128_digest
_kinds: dict[Hashable, bytes] = {}  # few in a process: what a kind of request hashes to need not be computed every time
Result = TypeVar("Result")


def namespace(*digests: str) -> bytes:
    """Separate one model's keys from all others'. digests: of whatever decides its answers."""
    return _digest("\0".join(digests).encode())


def identify(inputs: Mapping[str, Any], namespace: bytes) -> tuple[Identity | None, Mapping[str, Any]]:
    """A request's key (None if uncacheable), and its inputs with paths replaced by bytes.

    Raises InputError if a path cannot be read.
    """
    read = {
        name: EncodedImage.read(Path(value)) if isinstance(value, (str, os.PathLike)) else value
        for name, value in inputs.items()
    }
    kinds: list[Hashable] = [namespace]
    digests = b""
    for name in sorted(read):
        part = _part(read[name])
        if part is None:
            return None, read
        kinds += (name, *part[0])
        digests += part[1]
    if len(read) > 1:
        digests = _digest(digests)
    return kind_digest(tuple(kinds)) + digests, read


def of_artifact(key: Identity, artifact: str) -> Identity:
    """The key for another artifact's answer to that request. artifact: digest of the model file."""
    return _digest(key[:16] + artifact.encode()) + key[16:]


def _part(value: Any) -> tuple[tuple[Hashable, ...], bytes] | None:
    """An input's kind and the digest of its bytes, or None if it cannot be hashed."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return None
        return (value.dtype, value.shape), _digest(np.ascontiguousarray(value).data)
    if isinstance(value, EncodedImage):
        return ("encoded",), _digest(value.data)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("encoded",), _digest(bytes(value))
    if isinstance(value, Text):
        return ("text",), _digest(value.data)
    if isinstance(value, Frame):
        settings = (value.format, *value.size, value.stride, value.rows, value.matrix, value.full_range)
        data = value.data  # padding counts too: hashing around it would cost more than it finds
        if isinstance(data, np.ndarray):
            return ("frame", *settings, data.dtype, data.shape), _digest(np.ascontiguousarray(data).data)
        return ("frame", *settings), _digest(data)
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):  # a PIL image
        loaded(value)
        palette = repr(value.getpalette()) if value.mode in ("P", "PA") else ""
        orientation = value.getexif().get(0x0112, 1) if hasattr(value, "getexif") else 1
        details = f"{value.mode} {value.size} {orientation} {value.info.get('transparency')!r} {palette}"
        return ("image",), _digest(details.encode() + b"\0" + value.tobytes())
    return None


def kind_digest(kind: tuple[Hashable, ...]) -> bytes:
    found = _kinds.get(kind)
    if found is None:
        if len(_kinds) >= _MOST_KINDS:  # shapes without end: pictures of every size
            _kinds.clear()
        parts = (part.str if isinstance(part, np.dtype) else part for part in kind)
        found = _kinds[kind] = _digest(repr(tuple(parts)).encode())
    return found


class Flights(Generic[Result]):
    """Requests in flight. Thread-safe; at most one flight a key at any time.

        flight, leads = flights.join(key)
        if leads:  ... compute, then flights.land(key, result)  or  flights.crash(key, error)
        else:      result = flight.result()

    The leader must land or crash: both wake every follower and free the key. Followers are rare, so their future is
    made when the first one comes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[Result] | None] = {}
        self._own: Future[Result] = Future()  # what a leader is handed; no caller waits on it

    def join(self, key: Hashable) -> tuple[Future[Result], bool]:
        """The flight for `key`, and whether the caller leads it and so computes the answer."""
        with self._lock:
            if key not in self._flights:
                self._flights[key] = None
                return self._own, True
            flight = self._flights[key]
            if flight is None:
                flight = self._flights[key] = Future()
                flight.set_running_or_notify_cancel()  # one follower must not cancel it for all
            return flight, False

    def land(self, key: Hashable, result: Result) -> None:
        """Raises KeyError if `key` has no leader."""
        flight = self._end(key)
        if flight is not None:
            flight.set_result(result)

    def crash(self, key: Hashable, error: BaseException) -> None:
        """Raises KeyError if `key` has no leader."""
        flight = self._end(key)
        if flight is not None:
            flight.set_exception(error)

    def _end(self, key: Hashable) -> Future[Result] | None:
        with self._lock:
            return self._flights.pop(key)

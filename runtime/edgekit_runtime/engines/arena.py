"""Shared memory for the tensors of two processes, and the frames that describe them.

    arena = Arena.create()
    layout = arena.write([tensor])          # into the shared pages
    arena.read(layout)                      # arrays that own their memory

Rules:
- tensors are copied once in and once out; nothing is encoded;
- it grows as needed, and each side remaps it after the other made it larger;
- a frame is an operation and a few bytes; a layout is sent only when it changed.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
_HEAD = struct.Struct("<Ic")
_CHUNK = 1 << 16

Layout = tuple[tuple[int, str, tuple[int, ...]], ...]
"""Offset, dtype and shape of each tensor."""


class Arena:
    """fd: of a file in memory, closed with the arena."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._size = 0

    @classmethod
    def create(cls) -> Arena:
        """An empty arena; an unnamed temporary file on systems without memory files."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("edgekit"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def write(self, arrays: Sequence[NDArray[Any]], begin: int = 0) -> Layout:
        """Copy the arrays in, one after another from `begin`."""
        layout = layout_of(arrays, begin)
        pages = self._pages(_end(layout))
        for (offset, _, shape), array in zip(layout, arrays, strict=True):
            np.frombuffer(pages, array.dtype, array.size, offset).reshape(shape)[...] = array
        return layout

    def read(self, layout: Layout) -> list[NDArray[Any]]:
        return [array.copy() for array in self.views(layout)]

    def views(self, layout: Layout) -> list[NDArray[Any]]:
        """The arrays in place, valid until the next write."""
        pages = self._pages(_end(layout))
        return [
            np.frombuffer(pages, dtype, int(np.prod(shape, dtype=np.int64)), offset).reshape(shape)
            for offset, dtype, shape in layout
        ]

    def shrink(self) -> None:
        """Give its pages back; the contents are gone."""
        self._map, self._size = None, 0
        os.ftruncate(self.fd, 0)

    def forget(self) -> None:
        """Remap before the next use, because the other side changed the size."""
        self._map, self._size = None, 0

    def close(self) -> None:
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _pages(self, least: int) -> mmap.mmap:
        """The mapping, of at least `least` bytes. An older one lives as long as arrays look into it."""
        least = max(least, mmap.PAGESIZE)
        if self._map is None or self._size < least:
            size = max(os.fstat(self.fd).st_size, least)
            os.ftruncate(self.fd, size)
            self._map, self._size = mmap.mmap(self.fd, size), size
        return self._map


def layout_of(arrays: Sequence[NDArray[Any]], begin: int = 0) -> Layout:
    layout, offset = [], begin
    for array in arrays:
        layout.append((offset, array.dtype.str, array.shape))
        offset = -(-(offset + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
    return tuple(layout)


def read_layout(value: Any) -> Layout:
    """A layout that came as JSON."""
    return tuple((offset, dtype, tuple(shape)) for offset, dtype, shape in value)


def _end(layout: Layout) -> int:
    return max(
        (offset + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for offset, dtype, shape in layout),
        default=0,
    )


def frame(operation: bytes, body: bytes = b"") -> bytes:
    """operation: one byte."""
    return _HEAD.pack(len(body), operation) + body


def frames(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Operations and their bodies, until the other side is gone."""
    with file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, operation = _HEAD.unpack(head)
            if len(body := file.read(length)) < length:
                return
            yield operation, body


def read_frame(fd: int) -> tuple[bytes, bytes] | None:
    """The next operation and its body; None when the other side is gone."""
    data = os.read(fd, _CHUNK)
    while len(data) < _HEAD.size:
        more = os.read(fd, _CHUNK) if data else b""
        if not more:
            return None
        data += more
    length, operation = _HEAD.unpack_from(data)
    parts, have = [data[_HEAD.size :]], len(data) - _HEAD.size
    while have < length:
        more = os.read(fd, _CHUNK)
        if not more:
            return None
        parts.append(more)
        have += len(more)
    return operation, b"".join(parts)

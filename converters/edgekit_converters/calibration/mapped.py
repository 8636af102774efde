"""NumPy files without reading them: the array is mapped, and only the items that are looked at come into memory.

array = map_npy(Path("photos.npy"))
arrays = map_npz(Path("photos.npz"))           # {"x": ..., "y": ...}

A `.npz` is a zip. A member that `numpy.savez` stored is bytes in that file like those of a `.npy`, and is mapped in place;
one that `numpy.savez_compressed` packed has to be read whole. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

__all__ = ["map_npy", "map_npz", "memory_bytes", "npz_names"]

_CONTAINERS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_UNKNOWN = 8 << 30  # where no system call tells
_LOCAL_HEADER_BYTES = 30
_NAME_LENGTHS_AT = 26
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def map_npy(path: Path) -> Any:
    """What numpy.load gives, mapped. A damaged file raises whatever NumPy meets first."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an array with no items cannot be mapped
        return np.load(path, allow_pickle=False)


def memory_bytes() -> int:
    """Of the machine, or of the container that this runs in where that has less."""
    found = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file
            found.append(int(limit.read_text()))
    return min(found, default=_UNKNOWN)


def npz_names(path: Path) -> list[str]:
    """The members' names, without the `.npy` that the zip adds."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def map_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These members, each mapped where it is stored plainly, read otherwise. A damaged file raises anything."""
    with np.load(path, allow_pickle=False) as loaded, zipfile.ZipFile(path) as archive:
        arrays = {}
        for name in names:
            mapped = _stored(path, archive.getinfo(f"{name}.npy"))
            arrays[name] = loaded[name] if mapped is None else mapped
        return arrays


def _stored(path: Path, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    """A member mapped in place, or None where that cannot be done and reading it decides what it is."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset + _NAME_LENGTHS_AT)
        start = member.header_offset + _LOCAL_HEADER_BYTES + sum(struct.unpack("<HH", file.read(4)))
        file.seek(start)
        read_header = _HEADERS.get(npy_format.read_magic(file))
        if read_header is None:
            return None
        shape, fortran, dtype = read_header(file)
        bytes_of_values = int(np.prod(shape, dtype=object)) * dtype.itemsize
        whole = file.tell() - start + bytes_of_values == member.file_size
        if dtype.hasobject or bytes_of_values == 0 or not whole:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")

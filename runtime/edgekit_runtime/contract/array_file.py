"""NumPy files from untrusted sources, whose headers are checked before anything is unpacked.

    read_headers(Path("x.npz"))  # {"x": ArrayHeader((40000000, 8, 8, 1), float32)}

Rules: only regular files are opened; a header that promises more than its file holds is damaged; no more of a header is
unpacked than NumPy would parse; all arrays of a file together stay within the limit; nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from edgekit_runtime.system.errors import InputError
from edgekit_runtime.system.records import record

_MOST_HEADER_BYTES = 12 + 4 * 10_000  # NumPy parses 10,000 characters of it, which are four bytes each at most
_MOST_MEMBERS = 4096
_AGAIN = "Pass an image, a .npy or a .npz"
_HEADERS: Mapping[int, Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    1: npy_format.read_array_header_1_0,
    2: npy_format.read_array_header_2_0,
}


@record(frozen=True)
class ArrayHeader:
    """The header of one array. packed: its values are compressed in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    packed: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Header by name, "" for the one array of a .npy; reads a few hundred bytes an array.
    Raises whatever a damaged file makes NumPy and zipfile raise, and ValueError for a header that promises too much."""
    with path.open("rb") as file:
        magic = file.read(len(npy_format.MAGIC_PREFIX))
        if magic == npy_format.MAGIC_PREFIX:
            file.seek(0)
            return {"": _header(file, path.stat().st_size)}
    if not magic.startswith(b"PK"):
        raise ValueError("it is neither a .npy nor a .npz of NumPy")
    import zipfile  # boards that never read one start without it

    found = {}
    with zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > _MOST_MEMBERS:
            raise ValueError(f"it holds {len(archive.infolist()):,} arrays, more than {_MOST_MEMBERS:,}")
        for member in archive.infolist():
            with archive.open(member) as opened:
                packed = member.compress_type != zipfile.ZIP_STORED
                found[member.filename.removesuffix(".npy")] = _header(opened, member.file_size, packed=packed)
    return found


def read_arrays(path: Path, most_bytes: int, item: str = "far less") -> dict[str, NDArray[Any]]:
    """The arrays of a .npy or .npz, by name as in `read_headers`.
    Raises InputError: irregular, damaged, or above `most_bytes` together, where it says what an `item` is."""
    refuse_irregular(path)
    try:
        arrays = read_headers(path).values()
        for one in arrays:
            if one.nbytes > most_bytes:
                held = f"an array of shape {list(one.shape)}, {in_bytes(one.nbytes)}"
                raise InputError(f"holds {held}, and the model takes {item}", where=str(path), do="Pass one item")
        total = sum(one.nbytes for one in arrays)
        if total > most_bytes:
            what = f"holds {len(arrays)} arrays, {in_bytes(total)}, and the model takes {item}"
            raise InputError(what, where=str(path), do="Pass one item: an array for each input")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return dict(loaded)
    except InputError:
        raise
    except Exception as error:  # NumPy, zipfile and its decompressors raise dozens of kinds, MemoryError among them
        why = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"cannot be read: {why}", where=str(path), do=_AGAIN) from error


def refuse_irregular(path: Path, do: str = _AGAIN) -> None:
    """Raises InputError for an existing path that is not a regular file. do: the advice."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return
    if not stat.S_ISREG(mode):
        raise InputError("not a regular file", where=str(path), do=do)


def in_bytes(count: int) -> str:
    """`10.2 GB`."""
    for name, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {name}"
    return f"{count / 1000:.1f} kB"


def _header(file: IO[bytes], size: int, *, packed: bool = False) -> ArrayHeader:
    """size: of the file or member in bytes, header and values."""
    head = io.BytesIO(file.read(_MOST_HEADER_BYTES))
    version = npy_format.read_magic(head)
    shape, _, dtype = _HEADERS.get(version[0], _HEADERS[2])(head)
    found = ArrayHeader(shape, dtype, packed)
    if not dtype.hasobject and found.nbytes > size:
        raise ValueError(f"its header promises {in_bytes(found.nbytes)}, and there are {in_bytes(size)}")
    return found

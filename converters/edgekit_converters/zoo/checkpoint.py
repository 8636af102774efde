"""Reads PyTorch's legacy checkpoint files (before 1.6) without PyTorch and without trusting the file.

A pickle is a program. The rules that keep this one harmless:

- only the opcodes that a dict of tensors needs may occur, and memo numbers are bounded: nothing is unpickled before the
  whole stream has been read as data;
- only four names may be looked up: OrderedDict, the two tensor rebuilders and the storage types; none is imported;
- a storage must lie inside the file, and a tensor inside its storage with no more elements than that has.

    weights = read_state_dict(Path("net.pth"))      # {"conv.weight": float32 [16, 3, 3, 3], ...}
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError

__all__ = ["MAX_BYTES", "read_state_dict"]

MAX_BYTES = 1 << 30
"""Larger checkpoints are refused: they are read into memory."""

_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_MEMO = 1 << 20
_DTYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
}
_OPCODES = frozenset(
    {
        "PROTO",
        "STOP",
        "MARK",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "SETITEM",
        "SETITEMS",
        "APPEND",
        "APPENDS",
        "BINUNICODE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BINPUT",
        "LONG_BINPUT",
        "BINGET",
        "LONG_BINGET",
        "GLOBAL",
        "REDUCE",
        "BINPERSID",
        "BUILD",
    }
)


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str


class _View(tuple[Any, ...]):
    """What the file says of one tensor: storage, offset, size, stride. Nothing is believed until `_tensor` has checked it."""

    __slots__ = ()


def _view(*arguments: Any) -> _View:
    return _View(arguments[:4])


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: dict[str, str]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return _view
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and pid[1] in _DTYPES.values()):
            raise pickle.UnpicklingError("it refers to something that is not a tensor's storage")
        storage = _Storage(pid[1], str(pid[2]))
        self._storages[storage.key] = storage.dtype
        return storage


def read_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array (its own memory, the file's dtype). Raises SourceError for anything but a dict of plain tensors."""
    data = _read(path)
    if data[:4] == b"PK\x03\x04":
        _refuse(path, "this is a zip checkpoint of PyTorch 1.6 or later; only the older format is read")
    file, storages = io.BytesIO(data), dict[str, str]()
    try:
        if _unpickle(file, storages) != _MAGIC:
            _refuse(path, "this is not a PyTorch checkpoint")
        _unpickle(file, storages)  # the protocol version
        _unpickle(file, storages)  # what the writing machine was
        entries, keys = _unpickle(file, storages), _unpickle(file, storages)
        arrays = _read_storages(file, keys, storages)
        return _tensors(entries, arrays)
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - a crafted pickle can raise whatever it likes
        _refuse(path, f"the checkpoint is damaged or holds more than tensors: {error or type(error).__name__}", error)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            _refuse(path, f"the checkpoint is larger than {MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", error)


def _unpickle(file: io.BytesIO, storages: dict[str, str]) -> Any:
    start = file.tell()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"it uses the opcode {opcode.name}")
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > _MAX_MEMO:
            raise pickle.UnpicklingError("its memo is too large")
    end = file.tell()
    file.seek(start)
    value = _Unpickler(io.BytesIO(file.read(end - start)), storages).load()
    file.seek(end)
    return value


def _read_storages(file: io.BytesIO, keys: Any, storages: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The raw numbers follow the pickles: for each key an int64 element count, then the elements, little endian."""
    if not isinstance(keys, list):
        raise TypeError("the list of storages is missing")
    view, at, arrays = file.getbuffer(), file.tell(), dict[str, NDArray[Any]]()
    for key in map(str, keys):
        dtype = np.dtype(storages[key])
        count = int.from_bytes(view[at : at + 8], "little", signed=True)
        at += 8
        if count < 0 or count * dtype.itemsize > len(view) - at:
            raise ValueError(f"storage {key} reaches beyond the end of the file")
        arrays[key] = np.frombuffer(view, dtype, count, at)
        at += count * dtype.itemsize
    return arrays


def _tensors(entries: Any, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    if not isinstance(entries, dict):
        raise TypeError(f"it holds a {type(entries).__name__}, not a dict of tensors")
    tensors = {}
    for name, entry in entries.items():
        if not (isinstance(name, str) and isinstance(entry, _View)):
            raise TypeError(f"entry {name!r} is not a tensor")
        tensors[name] = _tensor(name, entry, arrays)
    return tensors


def _tensor(name: str, entry: _View, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    storage, offset, size, stride = entry
    numbers = (offset, *size, *stride)
    if any(type(n) is not int or n < 0 for n in numbers) or len(size) != len(stride) or len(size) > 8:
        raise ValueError(f"tensor {name!r} has an impossible shape")
    flat = arrays[storage.key]
    count = prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else offset
    if flat.dtype != np.dtype(storage.dtype) or count > flat.size or last >= max(flat.size, 1):
        raise ValueError(f"tensor {name!r} reaches beyond its storage")
    if count == 0:
        return np.zeros(size, flat.dtype)
    steps = [step * flat.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(flat[offset:], size, steps, writeable=False).copy()


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(
        what, where=str(path), do="Pass a state dict saved with torch.save in the legacy format"
    ) from cause

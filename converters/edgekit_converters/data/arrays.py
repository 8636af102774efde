"""`.npy` and `.npz` files as examples: `x` or the model's own input names, `y` for labels.

Rules: arrays are mapped, also members of a `.npz` that `numpy.savez` stored; a compressed member is read whole, and
refused above a third of the machine's memory; nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Canonical, Dataset, Example, check_kind, fingerprint_of, sets_of
from edgekit_converters.data.folder import Classes, names_of
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.array_file import in_bytes, read_headers
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.children import machine_bytes
from edgekit_runtime.system.errors import EdgekitError

_CONTAINERS = tuple(map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")))
_UNKNOWN = 8 << 30  # where no system call says
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
    """Of the machine, or of the container that this runs in if that has less."""
    found = [machine_bytes() or _UNKNOWN]
    for limit in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file
            found.append(int(limit.read_text()))
    return min(found)


def map_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These members, each mapped if it is stored plainly, read otherwise.
    A damaged file raises anything."""
    with np.load(path, allow_pickle=False) as loaded, zipfile.ZipFile(path) as archive:
        arrays = {}
        for name in names:
            mapped = _stored(path, archive.getinfo(f"{name}.npy"))
            arrays[name] = loaded[name] if mapped is None else mapped
        return arrays


def _stored(path: Path, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    """Map a member in place. None where that cannot be done, and reading it decides what it is."""
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


Members = tuple[dict[str, NDArray[Any]], NDArray[Any] | None]
"""Arrays by input name, and the labels where there are some."""


@dataclass(frozen=True)
class Arrays(Dataset):
    """A Dataset over arrays whose first axis counts the items."""

    path: Path
    inputs: Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None
    contract: Contract
    any_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def fingerprint(self) -> str | None:
        return fingerprint_of([self.path])

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, classes = Canonical(self.contract), Classes(self.contract)
        for index in indexes:
            origin = f"{self.path}, item {index}"
            values = {name: np.asarray(array[index]) for name, array in self.inputs.items()}
            label = None if self.labels is None else classes.of_value(self.labels[index], origin)
            yield Example(canonical(values, origin), label, origin)


def open_npy(path: Path, contract: Contract) -> Arrays:
    """One array [N, ...] for a model with one input. Raises CalibrationError."""
    return check_item(path, *npy_members(path, contract), contract)


def npy_members(path: Path, contract: Contract) -> Members:
    """Of any shape.
    Raises CalibrationError for a file that cannot be read, or a model with several inputs."""
    if len(contract.inputs) != 1:
        names = ", ".join(spec.name for spec in contract.inputs)
        raise CalibrationError("a .npy holds one array", where=str(path), do=f"Give a .npz with the arrays {names}")
    try:
        read_headers(path)  # a header that promises what the file does not hold would ask for that much memory
        array = map_npy(path)
    except Exception as error:  # a damaged header raises ValueError, TokenError, SyntaxError, ...
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise CalibrationError("this is a .npz under the name of a .npy", where=str(path), do="Rename it to .npz")
    return {contract.inputs[0].name: array}, None


def open_npz(path: Path, contract: Contract) -> Arrays:
    """Raises CalibrationError for missing, unknown, mismatched or unreadable members."""
    return check_item(path, *npz_members(path, contract), contract)


def npz_members(path: Path, contract: Contract) -> Members:
    """Of any shape. Raises CalibrationError for missing, unknown or unreadable members."""
    try:
        with path.open("rb") as file:
            if file.read(len(npy_format.MAGIC_PREFIX)) == npy_format.MAGIC_PREFIX:
                what = "this is a .npy under the name of a .npz"
                raise CalibrationError(what, where=str(path), do="Rename it to .npy")
        headers = read_headers(path)
        names = _members(path, list(headers), contract)
        most = memory_bytes() // 3
        size = sum(one.nbytes for one in headers.values() if one.packed)
        if size > most:
            do = "Save the array as .npy, which is read piece by piece, or use fewer examples"
            raise CalibrationError(f"is {in_bytes(size)} when unpacked", where=str(path), do=do)
        members = map_npz(path, names)
    except EdgekitError:
        raise
    except Exception as error:  # as above, and what zipfile and its decompressors raise
        raise _unreadable(path, error) from error
    labels = members.pop("y", None)
    if "x" in members and "x" not in {spec.name for spec in contract.inputs}:
        members[contract.inputs[0].name] = members.pop("x")
    return members, labels


def _members(path: Path, names: list[str], contract: Contract) -> list[str]:
    """The members to read.
    An unknown one is an error: a label array under another name would be lost in silence."""
    inputs = [spec.name for spec in contract.inputs]
    wanted = inputs if all(name in names for name in inputs) else ["x"] if len(inputs) == 1 else inputs
    for name in wanted:
        if name not in names:
            missing = names_of(inputs) if len(inputs) == 1 else f"array '{name}'"
            what = f"has no {missing}; it holds {', '.join(names) or 'nothing'}"
            call = ", ".join(f"{one if one.isidentifier() else 'x'}=..." for one in inputs)
            if len(inputs) > 1 and not all(map(str.isidentifier, inputs)):
                call = f"**{{{', '.join(f'{one!r}: ...' for one in inputs)}}}"
            raise CalibrationError(what, where=str(path), do=f"Save it with numpy.savez(file, {call}); labels are y")
    for name in names:
        if name not in (*wanted, "y"):
            do = f"Keep the {names_of(inputs)}, y for labels, and no others"
            raise CalibrationError(f"holds an unused array '{name}'", where=str(path), do=do)
    return names


def check_item(path: Path, arrays: dict[str, NDArray[Any]], labels: NDArray[Any] | None, contract: Contract) -> Arrays:
    """One item along the first axis of each array.
    Raises CalibrationError for shapes and labels that do not fit."""
    counts = set()
    for spec in contract.inputs:
        array = arrays[spec.name]
        where = str(path)
        check_kind(spec, array.dtype, where)
        if array.ndim == 0 or not sets_of(spec).fits(spec, array.dtype, tuple(array.shape[1:])):
            expected = ", ".join(["N", *(str(n) for n in spec.shape)])
            what = f"the input '{spec.name}' has shape {list(array.shape)} and the model takes [{expected}]"
            raise CalibrationError(what, where=where)
        counts.add(len(array))
    if len(counts) > 1:
        listed = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise CalibrationError(f"the arrays have different lengths: {listed}", where=str(path))
    count = counts.pop()
    if count == 0:
        raise CalibrationError("holds no items", where=str(path), do="Give at least one")
    return Arrays(path, arrays, None if labels is None else _labels(path, labels, count, contract), contract)


def _labels(path: Path, labels: NDArray[Any], count: int, contract: Contract) -> NDArray[Any]:
    """[N] class indexes for a classifier, from names too.
    For any other task numbers [N, ...]: the right answers, or boxes."""
    where, classes = f"{path}, y", Classes(contract)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if classes.count is not None:
        if labels.ndim == 2:
            do = 'Save y.argmax(axis=1) if it is one-hot. Set `task = "raw"` in the contract file if y are numbers'
            raise CalibrationError(f"has shape {list(labels.shape)}, not one class an item", where=where, do=do)
        if labels.ndim == 1 and labels.dtype.kind == "U":
            labels = classes.of_names(labels, where)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            do = "Labels are integers [N], the class of each item, or the contract file's names"
            raise CalibrationError(f"is {labels.dtype} {list(labels.shape)}", where=where, do=do)
    elif labels.ndim == 0 or labels.dtype.kind not in "iuf":
        do = "Labels are numbers, one or an array an item"
        raise CalibrationError(f"is {labels.dtype} {list(labels.shape)}", where=where, do=do)
    if len(labels) != count:
        raise CalibrationError(f"there are {count} items and {len(labels)} labels", where=where)
    if classes.count is not None:
        for index in (int(labels.argmin()), int(labels.argmax())):
            classes.of_number(int(labels[index]), f"{where}[{index}]")
    elif not np.isfinite(labels).all():
        raise CalibrationError("holds NaN or infinity", where=where, do="Remove those items, or mend their labels")
    return labels


def _unreadable(path: Path, error: Exception) -> CalibrationError:
    if "allow_pickle" in str(error) or "pickle" in str(error).lower():
        do = "Save plain numeric arrays"
        return CalibrationError("holds Python objects, which edgekit never unpickles", where=str(path), do=do)
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__
    return CalibrationError(f"cannot be read as NumPy arrays: {reason}", where=str(path), do="Save it again with NumPy")

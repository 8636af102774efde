"""How much a model's file may unpack to: held against what it declares, before anything is unpacked.

Rules:
- 2 GB at most: no board takes more;
- above 256 MB at most 50 times the bytes that hold it: trained weights do not shrink further;
- no two members of an archive have one name, also where only case differs, and their bytes do not overlap;
- an HDF5 file keeps its numbers in itself: no links to other files, no external or virtual storage.

    check_archive(path, archive)
    check_hdf5(path, file)
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from edgekit_converters.errors import SourceError

__all__ = ["LARGEST", "check_archive", "check_hdf5", "check_unpacked"]

LARGEST = 2_000_000_000
_FREELY = 256 << 20
_RATIO = 50
_MOST_PARTS = 100_000


def check_unpacked(path: Path, unpacked: int, stored: int, what: str) -> None:
    """Raises SourceError where so many bytes are too many, or too many for those that hold them."""
    if unpacked > LARGEST:
        _refuse(path, f"{what} unpacks to {unpacked / 1e9:.1f} GB: no board takes more than 2 GB")
    if unpacked > _FREELY and unpacked > _RATIO * max(stored, 1):
        _refuse(path, f"{what} unpacks to {unpacked // max(stored, 1)} times its size, {unpacked / 1e6:.0f} MB")


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Raises SourceError for a ZIP archive that declares too much, or whose members are not what they seem."""
    members = archive.infolist()
    if len(members) > _MOST_PARTS:
        _refuse(path, f"it has {len(members)} members")
    if len({member.filename.casefold() for member in members}) < len(members):
        _refuse(path, "two of its members have one name")
    stored = sum(member.compress_size for member in members)
    if stored > path.stat().st_size:
        _refuse(path, "its members overlap")
    check_unpacked(path, sum(member.file_size for member in members), stored, "it")


def check_hdf5(path: Path, file: Any) -> None:
    """file: an open h5py.File. Raises SourceError for links, foreign storage, and declared shapes beyond the bounds."""
    unpacked = stored = 0
    for dataset in _datasets(path, file):
        if dataset.external or dataset.is_virtual:
            _refuse(path, f"its '{dataset.name}' lies in another file, which is never opened")
        unpacked += int(dataset.size or 0) * dataset.dtype.itemsize
        stored += dataset.id.get_storage_size()
        check_unpacked(path, unpacked, stored, "it")


def _datasets(path: Path, file: Any) -> Iterator[Any]:
    """Every dataset once, without following a link that is no part of the file's own tree."""
    import h5py  # type: ignore[import-untyped]

    waiting, seen = [file], set[int]()
    while waiting:
        group = waiting.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                _refuse(path, f"its '{group.name.rstrip('/')}/{name}' is a link, which is never followed")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > _MOST_PARTS:
                _refuse(path, f"it has more than {_MOST_PARTS} parts")
            if isinstance(item, h5py.Group):
                waiting.append(item)
            elif isinstance(item, h5py.Dataset):
                yield item


def _refuse(path: Path, what: str) -> NoReturn:
    raise SourceError(what, where=str(path), do="Save the model again, or get it from someone you know")

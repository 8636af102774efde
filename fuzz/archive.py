"""The corpus that is kept: one archive for each target. Its bytes depend on its inputs alone."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def kept(name: str) -> list[bytes]:
    """The inputs of a target's archive; none where there is no archive yet."""
    path = FOLDER / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(info) for info in archive.infolist()]


def keep(name: str, inputs: Iterable[bytes]) -> int:
    """Write a target's archive anew. Returns its size in bytes."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for data in inputs:
            info = zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:16])
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path.stat().st_size

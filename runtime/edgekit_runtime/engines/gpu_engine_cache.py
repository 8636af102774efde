"""A cache of engines built for this GPU, in the state folder.

    key = key_of(data, "tensorrt-rtx 1.7.1.116", shapes="1 1 1, 2 8 32", gpu=cuda.identity())
    plan = load_or_build(folder, key, lambda: builder.build(...))

Rules:
- the key holds all that a built engine depends on: model bytes, shapes, library version, GPU and driver;
- one process builds at a time; another that waited for it reads the result;
- a built engine holds code: one that is damaged, or that another user could replace, is ignored;
- at most MOST files are kept, the least recently used are deleted first;
- a built engine holds the model's weights, so none is kept of an encrypted model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from edgekit_runtime.system.files import in_turn
from edgekit_runtime.system.sealed import name_of, read_sealed, write_sealed

FORMAT = 2
MOST = 32
_MOST_BYTES = 1 << 34
BUILD_S = 600.0
"""Seconds to wait for another process's build."""


def key_of(data: bytes, library: str, *, shapes: str, gpu: str) -> str:
    """The file name of a built engine. data: the model file."""
    return name_of(str(FORMAT), hashlib.sha256(data).hexdigest(), library, shapes, gpu)


def load_or_build(folder: Path | None, key: str, build: Callable[[], bytes]) -> bytes:
    """The stored engine, or the result of `build`, which is stored then.

    folder: None stores nothing; one that cannot be written is ignored.
    """
    if folder is None:
        return build()
    file = folder / f"{key}.engine"
    if (known := load_cached(file)) is not None:
        return known
    with in_turn(folder, BUILD_S):
        if (known := load_cached(file)) is not None:
            return known
        made = build()
        store(file, made)
    return made


def load_cached(file: Path) -> bytes | None:
    """Load a built engine; None if absent, damaged or replaceable by another user."""
    made = read_sealed(file, _MOST_BYTES)
    if made is None:
        return None
    with contextlib.suppress(OSError):
        os.utime(file)
    return made


def store(file: Path, made: bytes) -> None:
    """Never raises."""
    with contextlib.suppress(OSError):
        write_sealed(file, made)
        others = sorted((one for one in file.parent.iterdir() if one.suffix == file.suffix), key=_used)
        for old in others[: max(0, len(others) - MOST)]:
            old.unlink(missing_ok=True)


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0

"""The two ways to write a file whole: for good, or as what can be made again.

    write_durably(Path("bundles/net.ekb"), data)     # the old bytes or the new ones, whenever the power goes
    write_cache(file, [data])                        # the old bytes or the new ones, unless the power goes

Rules:
- bytes are written under a name of their own beside the file, which then takes its name: no reader ever sees half a file;
- what is written durably is flushed before it is renamed, and its folder after;
- whatever ends it early leaves nothing behind but what a kill leaves: a name that ends with `.partial`;
- an install root adds rules of its own to the same steps (`install.disk`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

__all__ = ["NOFOLLOW", "Draft", "draft_in", "replace_in", "write_cache", "write_durably"]

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Draft:
    """Writes until all is written: one call of the system may take less than it was given."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        return len(data)

    def fileno(self) -> int:
        return self._file.fileno()


@contextlib.contextmanager
def draft_in(folder: int, name: str) -> Iterator[Draft]:
    """A new file in an open folder, flushed to the disk at the end; removed on an error. Raises OSError."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o644, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield Draft(file)
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def replace_in(folder: int, draft: str, name: str) -> None:
    """Rename within an open folder, durably. Raises OSError."""
    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def write_durably(path: Path, data: bytes) -> None:
    """The folder is made where it is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, draft = os.open(path.parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)), _draft(path)
    try:
        with draft_in(folder, draft) as file:
            file.write(data)
        try:
            replace_in(folder, draft, path.name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def write_cache(path: Path, parts: Iterable[bytes]) -> None:
    """What may be lost with the power, and is made again then. The folder is made where it is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(_draft(path))
    try:
        with draft.open("xb") as file:
            for part in parts:
                file.write(part)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _draft(path: Path) -> str:
    """A name that no other process and no other thread writes to."""
    return f".{path.name[:100]}.{os.getpid()}.{threading.get_ident()}.partial"

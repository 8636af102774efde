"""Files that a person named: regular ones alone, and no larger than what is asked for may be.

    text = read_regular(Path("boards/our-gateway.toml"), 1 << 20).decode("utf-8")

Rules: a pipe or a device may never end, or end only when somebody writes; it is refused before it is read. What is too
large is refused before it is read. A file is opened first and looked at then: it cannot be exchanged in between, and an
emulated board shows its files to those who open them alone.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular", "read_regular"]


def open_regular(path: Path) -> BinaryIO:
    """To be read, without waiting for anybody. Raises OSError, with a sentence as its strerror, for what is no regular file."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, most: int) -> bytes:
    """Raises OSError, with a sentence as its strerror, for what is no regular file and for more than `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes are more than it may have ({most:,})", str(path))
        return file.read(most)

"""Files that a person named, read whole: regular ones alone, and no larger than what is asked for may be.

    text = read_regular(Path("boards/our-gateway.toml"), 1 << 20).decode("utf-8")

Rules: a pipe or a device may never end, or end only when somebody writes; it is refused before it is opened. What is too
large is refused before it is read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_regular"]


def read_regular(path: Path, most: int) -> bytes:
    """Raises OSError, with a sentence as its strerror, for what is no regular file and for more than `most` bytes."""
    told = path.stat()
    if stat.S_ISDIR(told.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(told.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if told.st_size > most:
        raise OSError(errno.EFBIG, f"{told.st_size:,} bytes are more than it may have ({most:,})", str(path))
    with path.open("rb") as file:
        return file.read(most)

"""The two ways to write a file whole, the one to read it, and the one file lock.
Written for good, or as what can be made again.

    write_durably(Path("bundles/net.ekb"), data)     # the old bytes or the new ones, whenever the power goes
    write_cache(file, [data])                        # the old bytes or the new ones, unless the power goes
    data = read_regular(file, 1 << 20)               # a regular file of a bounded size, without waiting for anybody
    if take(descriptor) is False: ...                # another has the lock
    with in_turn(folder, patience_s=60): ...         # one process at a time; not for ever

Rules:
- bytes are written under a name of their own beside the file, which then takes its name: no reader ever sees half a
  file;
- what is written durably is flushed before it is renamed, and its folder after;
- whatever ends it early leaves nothing behind but what a kill leaves: a name that ends with `.partial`;
- what is read is opened first and looked at then: a pipe or a device may never end, and is refused before it is read;
- an install root adds rules of its own to the same steps (`install.disk`);
- the lock is the kernel's own (flock), which ends with its process, however that ends. A system or a file system
  without locks is reported: the caller decides whether to go without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | _PLAIN
_AT_ONCE = 1 << 20  # a file of the kernel has no size
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
def draft_in(folder: int, name: str, mode: int = 0o644) -> Iterator[Draft]:
    """A new file in an open folder, flushed to the disk at the end; removed on an error.
    Raises OSError."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, mode, dir_fd=folder)
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


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """The folder is made where it is missing. Raises OSError.

    mode: of the file, from its first moment.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, draft = os.open(path.parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)), _draft(path)
    try:
        with draft_in(folder, draft, mode) as file:
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
    """What may be lost with the power, and is made again then.

    The folder is made where it is missing. Raises OSError.
    """
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


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """To be read, without waiting for anybody.

    follow: whether a link may stand for the file.

    Raises OSError, with a sentence as its strerror, for what is no regular file; ValueError for a path with a NUL.
    """
    flags = _PLAIN if follow else NOFOLLOW
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | flags)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `most` bytes.
    Raises OSError, with a sentence, and ValueError."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes are more than it may have ({most:,})", str(path))
        return file.read(min(most, max(size, _AT_ONCE)))  # room for all that it asks for is made first


def take(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """True: it is ours. False: another has it, and `wait` is not set.

    None: nothing can be locked here. Raises OSError.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextlib.contextmanager
def in_turn(folder: Path, patience_s: float) -> Iterator[None]:
    """One process at a time for what is kept in this folder.
    After patience_s, or without file locks, all at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        end = time.monotonic() + patience_s
        while take(handle) is False and time.monotonic() < end:
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)

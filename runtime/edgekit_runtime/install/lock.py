"""Locks of an install root: one install at a time, and objects in use are kept.

    with alone(root.lock_file, wait_s=600): ...        # InstallError (install-busy) if another does not end in time
    lease = hold(path)                                 # while a model is open; `in_use(path)` is True elsewhere
    lease.release()

Rules:
- locks end with their process, however it ends (`files.take`): there is nothing to clean up;
- readers take no turn: they hold what they opened, and nothing held is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from edgekit_runtime.install.durable import open_regular, storage_errors
from edgekit_runtime.system.errors import InstallError
from edgekit_runtime.system.files import take

_LOOK_S = 0.1


@contextlib.contextmanager
def alone(
    path: Path,
    *,
    wait_s: float = 600.0,
    waiting: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Run alone in a root. waiting: called once if another process is at work.

    Raises InstallError (install-busy) after wait_s seconds, StorageError if the lock file cannot be created, and for
    whatever the system refuses inside.
    """
    with storage_errors(path):
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            descriptor = open_regular(path)  # who may only read takes turns as well
    try:
        end, reported = clock() + wait_s, False
        with storage_errors(path.parent):
            while not _take(descriptor, shared=False):
                if not reported:
                    reported = True
                    waiting()
                if clock() >= end:
                    what = f"another install is still running after {wait_s:g} s"
                    raise InstallError(what, where=str(path.parent), do="Wait for it, or end it", code="install-busy")
                threading.Event().wait(min(_LOOK_S, max(0.0, end - clock())))
            yield
    finally:
        os.close(descriptor)


class Lease:
    """A file in use: an open descriptor with a lock that others see."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self._descriptor = descriptor
        self._held = True
        self._guard = threading.Lock()

    def file(self) -> BinaryIO:
        """A reader of the very file that is held, whatever its name refers to now."""
        copy = os.dup(self._descriptor)
        os.lseek(copy, 0, os.SEEK_SET)
        return os.fdopen(copy, "rb")

    def release(self) -> None:
        """Idempotent."""
        with self._guard:
            if self._held:
                self._held = False
                os.close(self._descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.release()


def hold(path: Path) -> Lease:
    """Hold a file against removal. Raises OSError, InstallError (planted)."""
    descriptor = open_regular(path)
    try:
        _take(descriptor, shared=True, wait=True)
        if os.fstat(descriptor).st_nlink == 0:  # removed between opening and holding it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return Lease(descriptor, path)


def in_use(path: Path) -> bool:
    """Whether a process holds it, or may hold it if the disk does not tell. False if absent."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _take(descriptor, shared=False)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _take(descriptor: int, *, shared: bool, wait: bool = False) -> bool:
    if os.name == "nt":
        raise InstallError(
            "installing needs a POSIX system: its locks and its links", do="Open the bundle's file itself"
        )
    return take(descriptor, shared=shared, wait=wait) is not False

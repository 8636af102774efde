"""Starts of an application while a generation is on trial with it: one that ends without a word has failed.

    start = begin(root, 4)          # before the bundle is opened
    start.end()                     # the model was closed in order
    failed_starts(root, 4)          # how many processes are gone that never said so

Rules:
- a start is a file that its process holds locked: the kernel lets go of it however the process ends, power cut included;
- a start that goes on is not a failed one, so that several processes may open one root;
- where a start cannot be written down (a read-only file system) nothing is tried out: the committed generation answers.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from edgekit_runtime.errors import InstallError
from edgekit_runtime.install.disk import create_empty, make_folder, names_in, remove, storing, sync_folder
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease, hold, in_use

__all__ = ["Start", "begin", "failed_starts"]

_NAME = re.compile(r"[0-9]{1,9}")


class Start:
    """One process's trial of a generation."""

    def __init__(self, path: Path, lease: Lease) -> None:
        self._path, self._lease = path, lease

    def end(self) -> None:
        """In order: it counts no more."""
        with contextlib.suppress(InstallError):
            remove(self._path)  # durably: else a power cut brings it back, as one that failed
        self._lease.release()

    def fail(self) -> None:
        """It did not come to anything, and this process says so itself."""
        self._lease.release()


def begin(root: Root, number: int) -> Start:
    """Under the lock of the root. Raises StorageError, InstallError (planted)."""
    folder = _folder(root, number)
    make_folder(folder)
    taken = [int(name) for name in _names(folder)]
    path = folder / str(max(taken, default=0) + 1)
    with storing(path):
        create_empty(path)
        lease = hold(path)
        sync_folder(folder)
    return Start(path, lease)


def failed_starts(root: Root, number: int) -> int:
    folder = _folder(root, number)
    return sum(not in_use(folder / name) for name in _names(folder))


def _folder(root: Root, number: int) -> Path:
    return root.generation(number) / "starts"


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in names_in(folder) if _NAME.fullmatch(name)]
    except (OSError, InstallError):
        return []

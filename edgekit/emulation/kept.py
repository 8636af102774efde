"""What is made once and kept: a folder appears whole or not at all, however many processes want it at once.

    folder = kept(root, "userlands/bookworm-arm64", make)       # make(draft) fills a folder

Rules: one process makes it while the others wait; what an interrupted one left is removed by the next; what is kept is
never changed, only removed by whoever wants it made anew. The one exception is Python's own: bytecode beside its source.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from edgekit.emulation.errors import EmulationError, UserlandError
from edgekit_runtime.board import state_dir
from edgekit_runtime.whole_file import take

__all__ = ["cache_root", "kept"]


def cache_root(folder: Path | None = None) -> Path:
    """Where emulated boards are kept: the given folder, or `emulation` in the state folder. Absolute."""
    return (folder or state_dir() / "emulation").absolute()


def kept(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name below the root, made where it is missing.

    Raises what `make` raises, and UserlandError where the disk refuses.
    """
    final = root / name
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _alone(final.with_name(f".{final.name}.lock")):
            if not final.is_dir():
                _made(final, make)
    except OSError as error:
        raise _refused(error, final) from error
    return final


def _made(final: Path, make: Callable[[Path], None]) -> None:
    for left in final.parent.glob(f".{final.name}.*.draft"):  # of a process that is gone: nobody else has the lock
        shutil.rmtree(left, ignore_errors=True)
    draft = final.with_name(f".{final.name}.{os.getpid()}.draft")
    draft.mkdir()
    try:
        make(draft)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it where that one dies."""
    with lock.open("w") as stream:
        if take(stream.fileno(), wait=True) is None:
            raise EmulationError(
                "no file can be locked here", where=str(lock), do="Name another folder with EDGEKIT_STATE_DIR"
            )
        yield


def _refused(error: OSError, where: Path) -> UserlandError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    do = (
        "Make room there, or name another folder with EDGEKIT_STATE_DIR"
        if full
        else "Name another folder with EDGEKIT_STATE_DIR"
    )
    return UserlandError(f"cannot be written: {error.strerror or error}", where=str(where), do=do)

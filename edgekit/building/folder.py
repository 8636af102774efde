"""The folder that bundles go to: writable before the long work starts, and one build's at a time.

Rules: a build waits for another one that writes into the same folder, and says so; the lock is the kernel's, so that one
which was killed holds nothing; what was made for a build that failed goes away again. What is no folder cannot be the cache
either; a cache that is one and cannot be written is done without.

    with output_folder(Path("bundles"), progress): ...
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgekit.errors import OutputError
from edgekit_converters.progress import Progress, silent
from edgekit_runtime.whole_file import take

__all__ = ["check_cache", "output_folder"]


def check_cache(folder: Path | None) -> None:
    """Raises OutputError for a path that cannot be a folder: a file stands there, or in its way."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
        if there.exists() and not there.is_dir():
            raise OutputError(
                "a file cannot be the cache" if there == folder else f"{there} is a file, so this cannot be the cache",
                where=str(folder),
                do="Choose a folder with --cache, or keep nothing: --no-cache",
            )


@contextmanager
def output_folder(folder: Path, progress: Progress = silent) -> Iterator[None]:
    """Raises OutputError where the folder cannot be made or written."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    with _taken_away(missing), _locked(folder, progress), _taken_away(missing):  # the inner one under the lock
        yield


@contextmanager
def _taken_away(made: Sequence[Path]) -> Iterator[None]:
    """After an error, the folders that were made and are empty."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: somebody's file, or a bundle that is finished
            for place in made:
                place.rmdir()
        raise


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Holds the folder itself: no file of ours is left in it."""
    while True:
        _writable(folder)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # the build before us failed, and took its folder away
            continue
        try:
            _wait_for(handle, folder, progress)
            if not _is(handle, folder):
                continue
            yield
            return
        finally:
            os.close(handle)


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise OutputError(
            f"cannot be written: {why}", where=str(folder), do="Choose a writable folder with -o"
        ) from error


def _wait_for(handle: int, folder: Path, progress: Progress) -> None:
    """A file system that knows no locks (some network shares) lets everybody in."""
    with contextlib.suppress(OSError):
        if take(handle) is False:
            progress(f"waiting for another build in {folder}", 0, None)
            take(handle, wait=True)


def _is(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except OSError:
        return False

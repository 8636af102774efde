"""Files that are there whole or not at all.

write_whole(Path("bundles/net-build.json"), data, "the report")

Rule: only an ordinary file, or a link to one, is ever replaced. A device, a pipe or a folder of that name stays: who names
/dev/null or /dev/stdout does not mean that a file should take its place.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from edgekit.errors import OutputError

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write beside the final name and move there, so that no reader ever sees half a file. what: in the error's words.

    Raises OutputError when the folder cannot be written, the disk is full, or something that is no ordinary file has that name;
    nothing is left behind then.
    """
    _refuse_what_is_no_file(path, what)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(partial).chmod(0o644)
            Path(partial).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(path),
            do="Make room there, or choose another folder with -o",
        ) from error


def _refuse_what_is_no_file(path: Path, what: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # nothing is there; or what keeps it from being seen keeps it from being written, and is told then
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise OutputError(
            f"{what} cannot be written: {found} has that name", where=str(path), do="Name a file that may be replaced"
        )

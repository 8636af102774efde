"""A file that a person named, whole or not at all.

write_whole(Path("bundles/net-build.json"), data, "the report")

Rule: only an ordinary file, or a link to one, is ever replaced. A device, a pipe or a folder of that name stays: who names
/dev/null or /dev/stdout does not mean that a file should take its place.
"""

from __future__ import annotations

import stat
from pathlib import Path

from edgekit.errors import OutputError
from edgekit_runtime.whole_file import write_durably

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Durably, so that no reader ever sees half a file. what: in the error's words.

    Raises OutputError when the folder cannot be written, the disk is full, or something that is no ordinary file has that name;
    nothing is left behind then.
    """
    _refuse_what_is_no_file(path, what)
    try:
        write_durably(path, data)
    except OSError as error:
        raise OutputError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(path),
            do="Make room there, or choose another folder",
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

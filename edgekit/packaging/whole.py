"""Files that are there whole or not at all.

write_whole(Path("bundles/net-build.json"), data, "the report")
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from edgekit.errors import OutputError

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write beside the final name and move there, so that no reader ever sees half a file. what: in the error's words.

    Raises OutputError when the folder cannot be written or the disk is full; nothing is left behind then.
    """
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

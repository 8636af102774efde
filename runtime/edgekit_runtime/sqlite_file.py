"""The owner of the SQLite file at a path, by its first hundred bytes.
No other program's file is ever written to or moved.

    owner(Path("answers.db"), 0x656B6163)           # "empty", "ours", "unmarked" or "other"
    set_aside(Path("spool.db"))                     # spool.db.bad, or where there is one spool.db.bad2
    first_unsafe_of(Path("answers.db"))             # what lets another user change it or its logs, or None

Rules:
- ours is what carries the mark: the application id in the header,
  https://www.sqlite.org/fileformat.html#application_id;
- "empty" is what holds nothing: an empty file, one that was cut inside SQLite's header, zeros that a power cut left;
- nothing that was set aside is overwritten. Once there are MOST_SET_ASIDE, a damaged file of ours is deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from edgekit_runtime.strict_modes import Unsafe, first_unsafe

MOST_SET_ASIDE = 4
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_LOGS = ("-wal", "-shm", "-journal")


def owner(path: Path, mark: int) -> Literal["empty", "ours", "unmarked", "other"]:
    """Whose file it is.
    unmarked: SQLite's, without an application id: being made at this moment, an older file of ours, or another
        program's.

    Raises OSError.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device may never end
        return "other"
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
            if not head.startswith(_MAGIC):
                while head and not any(head):
                    head = file.read(1 << 20)
                return "other" if head else "empty"
    except FileNotFoundError:
        return "empty"
    if len(head) < _HEADER:
        return "empty"
    found = int.from_bytes(head[68:72], "big")
    return "ours" if found == mark else "unmarked" if found == 0 else "other"


def first_unsafe_of(path: Path) -> Unsafe | None:
    """By `strict_modes`: SQLite plays back any log that lies beside the database."""
    logs = (first_unsafe(path.with_name(path.name + suffix), above=path.parent) for suffix in _LOGS)
    return first_unsafe(path) or next(filter(None, logs), None)


def delete(path: Path) -> None:
    """The database and its logs."""
    for suffix in ("", *_LOGS):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Under a name that is free; without one it is deleted.

    Its logs go: without them it is as it was when they began.
    """
    for number in range(1, MOST_SET_ASIDE + 1):
        free = path.with_name(f"{path.name}.bad{number if number > 1 else ''}")
        if not free.exists():
            path.replace(free)
            break
    delete(path)

"""SQLite files of ours: opened one way, known by a mark, their troubles in a word.

    db = connect(Path("answers.db"), 0x656B6163, log_pages=64)      # raises ForeignDatabase for another program's
    with transaction(db):
        db.execute(...)
    owner(path, 0x656B6163)         # "empty", "ours", "unmarked" or "other"
    trouble_of(error)               # "damaged", "full", "busy" or "cannot-be-written"

Rules:
- a file is ours by the application id in its header. An unmarked one is taken if it holds nothing but tables of ours;
- a foreign file is never written to, moved or deleted;
- every file has a write-ahead log. With `durable` a commit survives a power cut; without, the file does, and the
  last seconds may not;
- what was set aside is never overwritten, and beyond MOST_SET_ASIDE a damaged file of ours is deleted.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.system.files import Unsafe, first_unsafe

if TYPE_CHECKING:
    import sqlite3

PAGE = 4096
MOST_SET_ASIDE = 4
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_LOGS = ("-wal", "-shm", "-journal")
Trouble = Literal["damaged", "full", "busy", "cannot-be-written"]
# Of the errors that Python calls operational; any other is of a statement that does not fit the tables, or of reading.
_TROUBLE: Mapping[str, Trouble] = {
    "database is locked": "busy",
    "database table is locked": "busy",
    "database schema is locked": "busy",
    "locking protocol": "busy",
    "database or disk is full": "full",
    "access permission denied": "cannot-be-written",
    "attempt to write a readonly database": "cannot-be-written",
    "unable to open database file": "cannot-be-written",
    "interrupted": "cannot-be-written",
    "not authorized": "cannot-be-written",
}
"""SQLite's own texts (sqlite3_errstr), because Python 3.10 gives an error no code."""


class ForeignDatabase(Exception):  # noqa: N818 - a finding; who opens the file says what it should have been
    """The file is another program's."""


def connect(
    path: Path,
    mark: int | None,
    *,
    tables: Mapping[str, list[str]] | None = None,
    wait_s: float = 0.0,
    durable: bool = False,
    log_pages: int = 1000,
    exclusive: bool = False,
    shrinks: bool = False,
    statements: int = 128,
) -> sqlite3.Connection:
    """Open or create it; statements outside of `transaction` commit by themselves.

    mark: application id; None for a file whose owner is known otherwise.
    tables: name -> columns that an unmarked file of ours may have.
    wait_s: for another process's lock.
    log_pages: at which the log is folded in.
    exclusive: keep other processes out.
    shrinks: whether a new file can give pages back (incremental_vacuum).
    statements: how many stay compiled.

    Raises ForeignDatabase, sqlite3.Error and OSError.
    """
    import sqlite3

    connection = sqlite3.connect(
        path, timeout=wait_s, isolation_level=None, check_same_thread=False, cached_statements=statements
    )
    try:
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        if mark is not None:
            if not _may_be_ours(connection, mark, tables or {}):
                raise ForeignDatabase
            if connection.execute("PRAGMA application_id").fetchone() != (mark,):  # new: before anything else is in it
                connection.execute(f"PRAGMA page_size = {PAGE}")
                if shrinks:
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute(f"PRAGMA application_id = {mark}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA secure_delete = OFF")  # some builds overwrite what is deleted: wear for nothing
        connection.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
        connection.execute(f"PRAGMA journal_size_limit = {log_pages * PAGE}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Without a lock and without a log: for a medium that is read-only, or only for a look."""
    import sqlite3

    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    import sqlite3

    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def owner(path: Path, mark: int) -> Literal["empty", "ours", "unmarked", "other"]:
    """Whose SQLite file it is, by its first hundred bytes. Raises OSError.

    empty: an empty file, one cut inside SQLite's header, or zeros after a power cut.
    ours: its application id is `mark` (https://www.sqlite.org/fileformat.html#application_id).
    unmarked: without an id: being made, an older file of ours, or another program's."""
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


def is_foreign(path: Path, mark: int, tables: Mapping[str, list[str]]) -> bool:
    """Whether it is another program's; only a look. Raises sqlite3.Error and OSError."""
    whose = owner(path, mark)
    if whose == "unmarked":
        with contextlib.closing(connect_read_only(path)) as connection:
            return not _may_be_ours(connection, mark, tables)
    return whose == "other"


def _may_be_ours(connection: sqlite3.Connection, mark: int, tables: Mapping[str, list[str]]) -> bool:
    """Changes nothing."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    columns = {name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')] for (name,) in found}
    # marks come before tables: read after them, it is that of a file which another process made meanwhile
    its_mark = pragma(connection, "application_id")
    return its_mark == mark or (its_mark == 0 and all(tables.get(name) == columns[name] for name in columns))


def first_unsafe_of(path: Path) -> Unsafe | None:
    """`first_unsafe` of a database and its logs, which SQLite plays back."""
    logs = (first_unsafe(path.with_name(path.name + suffix), above=path.parent) for suffix in _LOGS)
    return first_unsafe(path) or next(filter(None, logs), None)


def file_bytes(path: Path) -> int:
    """Of the database and its log."""
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            total += path.with_name(path.name + suffix).stat().st_size
    return total


def delete(path: Path) -> None:
    """The database and its logs."""
    for suffix in ("", *_LOGS):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Rename the database to a free name, or delete it without one. Its logs are deleted."""
    for number in range(1, MOST_SET_ASIDE + 1):
        free = path.with_name(f"{path.name}.bad{number if number > 1 else ''}")
        if not free.exists():
            path.replace(free)
            break
    delete(path)


def trouble_of(error: BaseException) -> Trouble:
    """The word for an error of SQLite or of the disk."""
    import sqlite3

    if isinstance(error, sqlite3.Error):
        for text, trouble in _TROUBLE.items():
            if str(error).startswith(text):
                return trouble
    if isinstance(error, (sqlite3.DataError, sqlite3.ProgrammingError)):  # the caller's own, and nothing of the file
        return "cannot-be-written"
    if isinstance(error, (sqlite3.DatabaseError, OverflowError)):  # a number beyond SQLite's is in it
        return "damaged"
    return "full" if isinstance(error, OSError) and error.errno == errno.ENOSPC else "cannot-be-written"

"""The disk tier's file: answers in SQLite, easy on a memory card, repaired after trouble.

    medium = Medium(path, max_bytes)            # raises CacheFileError for a foreign database, and nothing else
    medium.attend(error)                        # a reader's error, or None: now and then, before writing
    medium.do(lambda file: file.write(rows))    # None if it failed
    medium.trouble                              # unsafe, damaged, full, cannot-be-written, busy, or None

Rules:
- the file and its log stay below `max_bytes`: room is made before a write, least recently used first. One commit a
  batch, in a write-ahead log flushed at checkpoints: power loss costs the last seconds of answers, never the file;
- use is ordered by answers stored, not by time, and noted only for what left the newest eighth: repeated reads write
  nothing;
- a file that other users could change or replace (`files.first_unsafe_of`) is left alone, and that is logged;
- only a file with edgekit's mark, or an empty one, is ever deleted. A damaged file is deleted and rebuilt; so is one
  that fills a disk, with half the bound from then on;
- a file that cannot be opened is retried after a second, then ever more rarely, up to five minutes. A locked one is
  left alone; a replaced or lost one is opened again;
- one thread writes, one at a time reads (possibly the same); other processes may have the file open too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from edgekit_runtime.system.errors import CacheFileError
from edgekit_runtime.system.files import delete, first_unsafe_of, owner

if TYPE_CHECKING:
    import sqlite3

_LOG = logging.getLogger("edgekit_runtime.cache")
MARK = 0x656B6163  # "ekac", the application id in the file's header
_FORMAT = 2
_PAGE = 4096
_MOST_LOG_PAGES = 1024
_OPENING_BUSY_S = 0.2
_WRITING_BUSY_S = 2.0
_EVICT_SHARE = 16
# `place` is small and its order random, `body` is large and its order that of writing: a new answer changes little
# twice.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS body (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, model INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS place (hash INTEGER PRIMARY KEY, id INTEGER NOT NULL, used INTEGER NOT NULL);
"""
_FIND = "SELECT key, used, data FROM place JOIN body USING (id) WHERE hash = ?"
LEAST_BYTES = 1 << 20
_RETRY_S = (1.0, 300.0)
# SQLite's primary result codes.
_DAMAGED = (1, 10, 11, 17, 19, 20, 26)  # other tables, input/output, corrupt, schema, constraint, mismatch, no database
_FULL = 13
_BUSY = (5, 6, 15)
_UNCODED = {
    "access permission denied": 3,
    "database is locked": 5,
    "database table is locked": 6,
    "attempt to write a readonly database": 8,
    "disk I/O error": 10,
    "database disk image is malformed": 11,
    "database or disk is full": 13,
    "unable to open database file": 14,
    "locking protocol": 15,
    "database schema has changed": 17,
    "constraint failed": 19,
    "datatype mismatch": 20,
    "file is not a database": 26,
}
"""SQLite's own texts (sqlite3_errstr) -> result codes: Python 3.10 gives an error no code. Any other text is that of a
statement that does not fit the tables, `_SQL_ERROR`.
"""
_SQL_ERROR = 1
_NO_SPACE = 28  # ENOSPC


@dataclass(frozen=True, slots=True)
class Row:
    """key: 32 bytes.
    model: of the answer, a 63-bit number.
    body: what `KeptForm` packed.
    """

    key: bytes
    model: int
    body: bytes


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """entries: estimated, in the file now. evicted: to make room."""

    entries: int
    evicted: int


class Medium:
    """Opens, repairs or rebuilds the file. One thread attends and works; any may read fields.

    file: None while unusable.
    rebuilt: how often it was deleted and recreated.
    """

    def __init__(self, path: Path, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.file: AnswerFile | None = None
        self.trouble: str | None = None
        self.rebuilt = 0
        self._clock = clock
        self._retry_s = _RETRY_S[0]
        self._retry_at = 0.0
        self._open()

    @property
    def writable(self) -> bool:
        """False for a file on a read-only medium."""
        return self.file is None or self.file.writable

    def attend(self, broken: BaseException | None = None) -> None:
        """Repair what is broken, reopen what was replaced, retry what could not be opened."""
        if broken is not None:
            self._mend(broken)
        elif self.file is not None and self.file.is_replaced:
            self.close()
            self._reopen()
        if self.file is None and self._clock() >= self._retry_at:
            self._reopen()

    def do(self, work: Callable[[AnswerFile], DiskWrite | None]) -> DiskWrite | None:
        """Do it with the file; after a failure repair the file and retry once. None if not done."""
        for _ in range(2):
            file = self.file
            if file is None or not file.writable:
                return None
            try:
                done = work(file)
            except Exception as error:  # noqa: BLE001 - sqlite3 is not imported here; a disk must not end an application
                self._mend(error)
            else:
                self.trouble = None
                return done
        return None

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def _mend(self, error: BaseException) -> None:
        self.trouble, file = trouble_of(error), self.file
        if self.trouble == "busy" or file is None:
            return
        if self.trouble == "cannot-be-written" or not file.writable:
            moved = file.is_replaced  # SQLite refuses to write to a file that lost its name
            self.close()
            self._reopen() if moved else self._later()
            return
        if self.trouble == "full":
            self.max_bytes = max(LEAST_BYTES, min(self.max_bytes, file_bytes(self.path)) // 2)
        self.file = None
        self.rebuilt += 1
        with contextlib.suppress(OSError):
            file.destroy()
        self._reopen(self.trouble)

    def _reopen(self, trouble: str | None = None) -> None:
        try:
            self._open(trouble)
        except CacheFileError:  # somebody else's has taken its place
            self.trouble = "cannot-be-written"
            self._later()

    def _open(self, trouble: str | None = None) -> None:
        """Open the file, deleting a damaged one first. trouble: reported until something is written."""
        if unsafe := first_unsafe_of(self.path):
            if self.trouble != "unsafe":
                _LOG.warning("%s is not used: %s: %s. %s", self.path, unsafe.where, unsafe.what, unsafe.do)
            self.trouble = "unsafe"
            self._later()
            return
        for last in (False, True):
            try:
                self.file = AnswerFile.open(self.path, self.max_bytes)
            except CacheFileError:
                raise
            except Exception as error:  # sqlite3 is not imported here; a disk must not end an application
                trouble = trouble_of(error)
                if last or trouble != "damaged":
                    break
                if owner(self.path, MARK) not in ("ours", "empty"):
                    raise foreign(self.path) from error
                self.rebuilt += 1
                with contextlib.suppress(OSError):
                    delete(self.path)
            else:
                self.trouble = trouble if self.file.writable else "cannot-be-written"
                self._retry_s = _RETRY_S[0]
                return
        self.trouble = trouble
        self._later()

    def _later(self) -> None:
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _RETRY_S[1])


class AnswerFile:
    """Every method raises sqlite3.Error or OSError if the disk or the file fails."""

    def __init__(self, path: Path, reader: sqlite3.Connection, writer: sqlite3.Connection | None, pages: int) -> None:
        self.path = path
        self._reader, self._writer, self._pages = reader, writer, pages
        self._reading = threading.Lock()
        self._log_pages = _log_pages(pages)
        self._inode = _inode(path)
        oldest, newest = reader.execute("SELECT (SELECT min(id) FROM body), (SELECT max(id) FROM body)").fetchone()
        self._newest = newest or 0
        self.entries = self._newest - oldest + 1 if oldest else 0  # at most; counting would read a tenth of the file
        self._counted = False

    @classmethod
    def open(cls, path: Path, max_bytes: int) -> AnswerFile:
        """Open or create it, read-only on a medium that is. Raises CacheFileError too."""
        import sqlite3

        pages = max_bytes // _PAGE - 2 * _log_pages(max_bytes // _PAGE)
        whose = owner(path, MARK)  # unmarked: being made at this moment, or not ours; see `_prepare`
        if whose == "other":
            if not path.is_file():
                raise CacheFileError("not a regular file", where=str(path), do="Name another file")
            raise foreign(path)
        if whose == "empty" and path.exists() and path.stat().st_size:
            delete(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            reader = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            return cls._or_closed(path, [reader], pages)
        writer = sqlite3.connect(path, timeout=_OPENING_BUSY_S, isolation_level=None, check_same_thread=False)
        opened = [writer]
        try:
            _prepare(writer, path, _log_pages(pages))
            writer.execute(f"PRAGMA max_page_count = {pages}")
            writer.execute(f"PRAGMA busy_timeout = {round(1e3 * _WRITING_BUSY_S)}")
            reader = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
            opened.insert(0, reader)
            reader.execute("PRAGMA query_only = ON")
            reader.execute("PRAGMA cache_size = -512")
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        return cls._or_closed(path, opened, pages)

    @classmethod
    def _or_closed(cls, path: Path, opened: list[sqlite3.Connection], pages: int) -> AnswerFile:
        try:
            return cls(path, opened[0], opened[1] if len(opened) > 1 else None, pages)
        except BaseException:
            for connection in opened:
                connection.close()
            raise

    @property
    def batch_bytes(self) -> int:
        """Most bytes for one `write`, so that the log keeps its bound."""
        return self._log_pages * _PAGE

    @property
    def writable(self) -> bool:
        return self._writer is not None

    @property
    def is_replaced(self) -> bool:
        """Whether the path now leads to another file, or to none."""
        return self._inode != _inode(self.path)

    def read(self, key: bytes) -> tuple[object, bool] | None:
        """The stored body, and whether the next write should note its use."""
        with self._reading:
            found = self._reader.execute(_FIND, (_hash(key),)).fetchone()
        if found is None or found[0] != key:  # the 63 bits of another key
            return None
        _, used, data = found
        return data, not isinstance(used, int) or self._newest - used > self.entries // 8

    def write(self, rows: Sequence[Row], used: Iterable[bytes] = (), refused: Iterable[bytes] = ()) -> DiskWrite:
        """Delete what was refused, make room, then store rows and note uses in one commit."""
        assert self._writer is not None
        if not self._counted:
            self._count()
        need = sum(len(row.body) // _PAGE + 2 for row in rows)
        writer = self._writer
        for key in refused:
            self._delete(writer.execute("SELECT hash, id FROM place WHERE hash = ?", (_hash(key),)).fetchall())
        evicted = self._make_room(need) if rows else 0
        writer.execute("BEGIN IMMEDIATE")
        try:
            (newest,) = writer.execute("SELECT coalesce(max(id), 0) FROM body").fetchone()
            writer.executemany("UPDATE place SET used = ? WHERE hash = ?", [(newest, _hash(key)) for key in used])
            for row in rows:
                newest = self._insert(row)
            writer.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._newest = newest
        return DiskWrite(self.entries, evicted)

    def forget(self, model: int) -> DiskWrite:
        """Delete every answer of one model."""
        assert self._writer is not None
        last = 0
        while True:
            found = self._writer.execute(
                "SELECT id, key FROM body WHERE model = ? AND id > ? ORDER BY id LIMIT ?",
                (model, last, self._log_pages),
            ).fetchall()
            if not found:
                return DiskWrite(self.entries, 0)
            last = found[-1][0]
            self._delete([(_hash(key), place) for place, key in found])

    def close(self) -> None:
        """Never raises."""
        import sqlite3

        with self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with contextlib.suppress(sqlite3.Error):
                        connection.close()

    def destroy(self) -> None:
        """Close and delete, unless another process has replaced it."""
        ours = not self.is_replaced
        self.close()
        if ours:
            delete(self.path)

    def _insert(self, row: Row) -> int:
        assert self._writer is not None
        execute, hashed = self._writer.execute, _hash(row.key)
        there = execute("SELECT id FROM place WHERE hash = ?", (hashed,)).fetchone()
        if there is not None:
            execute("DELETE FROM body WHERE id = ?", there)
        else:
            self.entries += 1
        place = execute(
            "INSERT INTO body (key, model, data) VALUES (?, ?, ?)", (row.key, row.model, row.body)
        ).lastrowid
        assert place is not None
        execute("INSERT OR REPLACE INTO place VALUES (?, ?, ?)", (hashed, place, place))
        return place

    def _make_room(self, need: int) -> int:
        """Evict the least recently used until `need` pages are free. Returns how many."""
        assert self._writer is not None
        evicted = 0
        while self._pragma("page_count") - self._pragma("freelist_count") + need > self._pages - self._pages // 20:
            self._count()
            n = max(1, self.entries // _EVICT_SHARE)
            oldest = self._writer.execute("SELECT hash, id FROM place ORDER BY used LIMIT ?", (n,)).fetchall()
            if not oldest:
                break
            for start in range(0, len(oldest), self._log_pages):  # a row is a page or two: the log stays small
                self._delete(oldest[start : start + self._log_pages])
            evicted += len(oldest)
        surplus = self._pragma("page_count") - self._pages
        if surplus > 0:  # the bound was larger before
            # a script, because a statement would be stepped once, for one page
            self._writer.executescript(f"PRAGMA incremental_vacuum({surplus});")
        return evicted

    def _count(self) -> None:
        assert self._writer is not None
        (self.entries,) = self._writer.execute("SELECT count(*) FROM place").fetchone()
        self._counted = True

    def _delete(self, rows: Sequence[tuple[int, int]]) -> None:
        assert self._writer is not None
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._writer.executemany("DELETE FROM place WHERE hash = ?", [(hashed,) for hashed, _ in rows])
            self._writer.executemany("DELETE FROM body WHERE id = ?", [(place,) for _, place in rows])
            self._writer.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.entries = max(0, self.entries - len(rows))

    def _pragma(self, name: str) -> int:
        assert self._writer is not None
        return int(self._writer.execute(f"PRAGMA {name}").fetchone()[0])

    def _roll_back(self) -> None:
        import sqlite3

        assert self._writer is not None
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("ROLLBACK")


def file_bytes(path: Path) -> int:
    """Of the file and its log."""
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            total += path.with_name(path.name + suffix).stat().st_size
    return total


def foreign(path: Path) -> CacheFileError:
    return CacheFileError("this is no file of answers, and it is left alone", where=str(path), do="Name another file")


def _prepare(writer: sqlite3.Connection, path: Path, log_pages: int) -> None:
    """Mark a new file before anything else is in it; empty one of another format."""
    (mark,) = writer.execute("PRAGMA application_id").fetchone()
    if mark == 0 and writer.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
        (mark,) = writer.execute("PRAGMA application_id").fetchone()  # another process made it between the two looks
        if mark == 0:
            raise foreign(path)
    if mark == 0:
        writer.execute(f"PRAGMA page_size = {_PAGE}")
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        writer.execute(f"PRAGMA application_id = {MARK}")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA synchronous = NORMAL")
    writer.execute("PRAGMA secure_delete = OFF")  # some builds overwrite with zeros what is deleted: wear for nothing
    writer.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
    writer.execute(f"PRAGMA journal_size_limit = {log_pages * _PAGE}")
    writer.execute("PRAGMA cache_size = -1024")
    (found,) = writer.execute("PRAGMA user_version").fetchone()
    if found != _FORMAT:
        for table in ("place", "body"):
            writer.execute(f"DROP TABLE IF EXISTS {table}")
        writer.execute(f"PRAGMA user_version = {_FORMAT}")
    writer.executescript(_SCHEMA)


def _hash(key: bytes) -> int:
    """63 bits: SQLite's integers are signed. The row holds the whole key."""
    return xxhash.xxh3_64_intdigest(key) >> 1


def _log_pages(pages: int) -> int:
    """Pages at which the log is folded in; with one more batch at most a quarter of the bound."""
    return max(8, min(_MOST_LOG_PAGES, pages // 8))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def trouble_of(error: BaseException) -> str:
    """The word for an error of the disk or of SQLite."""
    primary = getattr(error, "sqlite_errorcode", None)
    if primary is None:
        primary = _UNCODED.get(str(error), _SQL_ERROR if type(error).__name__ == "OperationalError" else 0)
    primary &= 0xFF
    if primary in _DAMAGED:
        return "damaged"
    if primary == _FULL or getattr(error, "errno", None) == _NO_SPACE:
        return "full"
    return "busy" if primary in _BUSY else "cannot-be-written"

"""The disk tier: answers that survive a reboot, in a SQLite file, easy on a memory card.

    disk = DiskCache(Path("answers.db"), KeptForm(namespace, contract.outputs), max_bytes=256 << 20)
    disk.put(key, outputs)                  # returns at once
    found = disk.find(key)                  # MISS, or CachedAnswer(outputs, age_s)
    disk.close()                            # writes what is pending

Rules:
- it stores hashes and outputs, never an input; several models, each with its namespace, and processes share a file;
- the file and its log stay below `max_bytes`: room is made before a write, least recently used first. One commit a
  batch, in a log flushed at checkpoints: power loss costs the last seconds of answers, never the file;
- use is ordered by answers stored, not by time, and noted only for what left the newest eighth: repeated reads write
  nothing;
- a file that other users could change or replace is left alone, and that is logged; so is a locked one;
- only a file with edgekit's mark, or an empty one, is ever deleted. A damaged file is deleted and rebuilt; so is one
  that fills a disk, with half the bound from then on. A replaced or lost one is opened again;
- a file that cannot be opened is retried after a second, then ever more rarely, up to five minutes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import xxhash

from edgekit_runtime.cache.memory_tier import Moment, moment
from edgekit_runtime.cache.stored_answers import LOG, KeptForm, KeptTier
from edgekit_runtime.system import database
from edgekit_runtime.system.database import PAGE, ForeignDatabase, pragma, transaction, trouble_of
from edgekit_runtime.system.errors import CacheFileError
from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    import sqlite3

MARK = 0x656B6163  # "ekac", the application id in the file's header
_FORMAT = 3
_MOST_LOG_PAGES = 1024
_OPENING_WAIT_S = 0.2
_WRITING_WAIT_S = 2.0
_EVICT_SHARE = 16
# `place` is small and its order random, `body` is large and its order that of writing: a new answer or a use that is
# noted changes few pages. In one table the second would change one of a body, and write up to twice as much.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS body (id INTEGER PRIMARY KEY, key BLOB NOT NULL, model INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS place (hash INTEGER PRIMARY KEY, id INTEGER NOT NULL, used INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON place BEGIN DELETE FROM body WHERE id = OLD.id; END;
"""
_FIND = "SELECT key, used, data FROM place JOIN body USING (id) WHERE hash = ?"
_OLDEST = "SELECT hash FROM place ORDER BY used LIMIT ?"
_SOME_OF_A_MODEL = "SELECT id FROM body WHERE model = ? AND id > ? ORDER BY id LIMIT ?"
LEAST_BYTES = 1 << 20
_RETRY_S = (1.0, 300.0)
_MOST_NOTES = 4096


@record(frozen=True)
class DiskStats:
    """bytes: of the file and its log.
    waiting: answers not written yet.
    lost: answers that were never written.
    refused: lookups that found something else than was written.
    rebuilt: how often the file was deleted and recreated.
    trouble: unsafe, damaged, full, cannot-be-written, busy, or None.
    forgetting: a flush has not reached the file yet.
    limit: bytes that the file may take, reduced once a disk was full.
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evicted: int
    expired: int
    waiting: int
    written: int
    lost: int
    rebuilt: int
    trouble: str | None
    forgetting: bool
    limit: int
    refused: int


class DiskCache(KeptTier):
    """Raises CacheFileError when opened on a foreign database, nothing afterwards."""

    tier: Literal["disk"] = "disk"
    counted: ClassVar = (*KeptTier.counted, "evicted")

    def __init__(
        self,
        path: str | os.PathLike[str],
        form: KeptForm,
        *,
        max_bytes: int = 256 << 20,
        ttl_s: float | None = None,
        now: Callable[[], Moment] = moment,
        batch_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_bytes < LEAST_BYTES:
            raise ValueError(f"max_bytes must be at least {LEAST_BYTES}")
        super().__init__(form, os.fspath(path), ttl_s=ttl_s, now=now, batch_s=batch_s)
        self._model = int.from_bytes(form.namespace[:8].ljust(8, b"\0"), "big") >> 1
        self._file = AnswerFile(Path(path), max_bytes, clock=clock)
        self._used: dict[bytes, None] = {}

    @property
    def largest_bytes(self) -> int:
        """Limit of one answer: a sixteenth of the bound."""
        return self._file.max_bytes // 16

    def stats(self) -> DiskStats:
        with self._change:
            file, waiting = self._file, self._waiting
            return DiskStats(
                **self._counts,
                entries=file.entries,
                bytes=database.file_bytes(file.path),
                waiting=len(waiting.answers),
                rebuilt=file.rebuilt,
                trouble=file.trouble,
                forgetting=waiting.clear,
                limit=file.max_bytes,
            )

    def _read(self, key: bytes, *, note: bool) -> object:
        read = self._file.read(key)
        if read is None:
            return None
        if note and read[1] and len(self._used) < _MOST_NOTES:
            with self._change:
                self._used[key] = None
        return read[0]

    def _accepts(self) -> bool:
        return self._file.writable

    def _most_bytes(self) -> tuple[int, int]:
        waiting, batch = super()._most_bytes()
        return min(waiting, self._file.max_bytes // 2), min(batch, self._file.log_pages * PAGE)

    def _store(self, answers: Mapping[bytes, bytes], refused: Sequence[bytes]) -> int:
        with self._change:
            used, self._used = self._used, {}
        evicted = self._file.write(self._model, answers, used, refused)
        with self._change:
            self._counts["evicted"] += evicted or 0
        return 0 if evicted is None else len(answers)

    def _forget(self) -> bool:
        return self._file.forget(self._model)

    def _shut(self) -> None:
        if self._used:
            self._store({}, ())
        self._file.close()

    def _trouble(self) -> str | None:
        return self._file.trouble


class AnswerFile:
    """The file: one thread writes, any may read.

    Raises CacheFileError for a foreign one when made, nothing afterwards.

    max_bytes: halved once the disk was full.
    entries: estimated until the first write, because counting reads a part of the file.
    rebuilt: how often it was deleted and recreated.
    trouble: of the last attempt, or None.
    """

    def __init__(self, path: Path, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.entries = self.rebuilt = 0
        self.trouble: str | None = None
        self._clock = clock
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._broken: BaseException | None = None
        self._newest = 0
        self._inode: tuple[int, int] | None = None
        self._retry_s, self._retry_at = _RETRY_S[0], 0.0
        self._open()

    @property
    def writable(self) -> bool:
        """Whether a write has something to do: False on read-only media, unless a read failed there."""
        return self._reader is None or self._writer is not None or self._broken is not None

    @property
    def log_pages(self) -> int:
        """Pages at which the log is folded in; with one more batch at most a quarter of the bound."""
        return max(8, min(_MOST_LOG_PAGES, self.max_bytes // PAGE // 8))

    @property
    def _pages(self) -> int:
        return self.max_bytes // PAGE - 2 * self.log_pages

    def read(self, key: bytes) -> tuple[object, bool] | None:
        """The stored body, and whether to note its use. Errors are left to the next write."""
        with self._reading:
            if self._reader is None or self._broken is not None:
                return None
            try:
                found = self._reader.execute(_FIND, (_hash(key),)).fetchone()
            except Exception as error:  # noqa: BLE001 - sqlite3 is not imported here; whatever the disk does, it is a miss
                self._broken = error if trouble_of(error) != "busy" else None
                return None
        if found is None or found[0] != key:  # the hash of another key
            return None
        _, used, data = found
        return data, not isinstance(used, int) or self._newest - used > self.entries // 8

    def write(
        self, model: int, answers: Mapping[bytes, bytes], used: Iterable[bytes] = (), refused: Iterable[bytes] = ()
    ) -> int | None:
        """Delete refused answers, make room, store, note uses. How many were evicted, or None."""

        def work(db: sqlite3.Connection) -> int:
            evicted = self._make_room(db, sum(len(body) // PAGE + 2 for body in answers.values())) if answers else 0
            with transaction(db):
                (newest,) = db.execute("SELECT coalesce(max(id), 0) FROM body").fetchone()
                db.executemany("DELETE FROM place WHERE hash = ?", [(_hash(key),) for key in refused])
                db.executemany("UPDATE place SET used = ? WHERE hash = ?", [(newest, _hash(key)) for key in used])
                for key, body in answers.items():
                    newest += 1
                    db.execute(
                        "DELETE FROM place WHERE hash = ?", (_hash(key),)
                    )  # of this key, or of one that collides
                    db.execute("INSERT INTO body VALUES (?, ?, ?, ?)", (newest, key, model, body))
                    db.execute("INSERT INTO place VALUES (?, ?, ?)", (_hash(key), newest, newest))
            self._newest = newest
            self._count(db)
            return evicted

        return self._do(work)

    def forget(self, model: int) -> bool:
        """Delete all answers of one model in steps, to bound the log. False on failure."""

        def work(db: sqlite3.Connection) -> int:
            some = (model, 0, self.log_pages)
            while last := db.execute(f"SELECT max(id) FROM ({_SOME_OF_A_MODEL})", some).fetchone()[0]:
                db.execute(f"DELETE FROM place WHERE id IN ({_SOME_OF_A_MODEL})", some)
                some = (model, last, self.log_pages)
            self._count(db)
            return 0

        return self._do(work) is not None

    def close(self) -> None:
        """Never raises."""
        import sqlite3

        with self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with contextlib.suppress(sqlite3.Error):
                        connection.close()
            self._reader = self._writer = self._broken = None

    def _do(self, work: Callable[[sqlite3.Connection], int]) -> int | None:
        """Run `work`, repairing the file first and once more on failure; None if that fails."""
        if self._broken is not None:
            self._mend(self._broken)
        elif self._is_replaced() if self._reader is not None else self._clock() >= self._retry_at:
            self._reopen()
        for _ in range(2):
            if self._writer is None:
                return None
            try:
                done = work(self._writer)
            except Exception as error:  # noqa: BLE001 - as in `read`; a disk must not end an application
                self._mend(error)
            else:
                self.trouble = None
                return done
        return None

    def _make_room(self, db: sqlite3.Connection, need: int) -> int:
        """Evict the least recently used until `need` pages are free. Returns how many."""
        evicted = 0
        while pragma(db, "page_count") - pragma(db, "freelist_count") + need > self._pages - self._pages // 20:
            n = max(1, min(self.entries // _EVICT_SHARE, self.log_pages))  # a row is a page or two: the log stays small
            gone = db.execute(f"DELETE FROM place WHERE hash IN ({_OLDEST})", (n,)).rowcount
            if not gone:
                break
            evicted += gone
        surplus = pragma(db, "page_count") - self._pages
        if surplus > 0:  # the bound was larger before
            # a script, because a statement would be stepped once, for one page
            db.executescript(f"PRAGMA incremental_vacuum({surplus});")
        return evicted

    def _count(self, db: sqlite3.Connection) -> None:
        (self.entries,) = db.execute("SELECT count(*) FROM place").fetchone()

    def _mend(self, error: BaseException) -> None:
        self.trouble = trouble_of(error)
        if self.trouble == "busy":
            return
        moved = self._is_replaced()  # SQLite refuses to write to a file that lost its name
        read_only = self._writer is None
        self.close()
        if self.trouble == "cannot-be-written" or read_only:
            self._reopen() if moved else self._later()
            return
        if self.trouble == "full":
            self.max_bytes = max(LEAST_BYTES, min(self.max_bytes, database.file_bytes(self.path)) // 2)
        self.rebuilt += 1
        if not moved:
            with contextlib.suppress(OSError):
                database.delete(self.path)
        self._reopen(self.trouble)

    def _reopen(self, trouble: str | None = None) -> None:
        self.close()
        try:
            self._open(trouble)
        except CacheFileError:  # somebody else's has taken its place
            self.trouble = "cannot-be-written"
            self._later()

    def _open(self, trouble: str | None = None) -> None:
        """Open the file, deleting a damaged one first. trouble: reported until something is written."""
        if unsafe := database.first_unsafe_of(self.path):
            if self.trouble != "unsafe":
                LOG.warning("%s is not used: %s: %s. %s", self.path, unsafe.where, unsafe.what, unsafe.do)
            self.trouble = "unsafe"
            self._later()
            return
        for last in (False, True):
            try:
                self._connect()
            except Exception as error:
                self.close()
                foreign, trouble = isinstance(error, ForeignDatabase), trouble_of(error)
                if foreign or (trouble == "damaged" and database.owner(self.path, MARK) not in ("ours", "empty")):
                    foreign_file = "not an edgekit answer cache; the file is left alone"
                    what = foreign_file if self.path.is_file() else "not a regular file"
                    raise CacheFileError(what, where=str(self.path), do="Name another file") from error
                if last or trouble != "damaged":
                    break
                self.rebuilt += 1
                with contextlib.suppress(OSError):
                    database.delete(self.path)
            else:
                self.trouble = trouble if self._writer is not None else "cannot-be-written"
                self._retry_s = _RETRY_S[0]
                return
        self.trouble = trouble
        self._later()

    def _connect(self) -> None:
        import sqlite3

        path = self.path
        whose = database.owner(path, MARK)
        if whose == "other":
            raise ForeignDatabase
        if whose == "empty" and path.exists() and path.stat().st_size:
            database.delete(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            self._reader = reader = database.connect_read_only(path)
        else:
            self._writer = writer = database.connect(
                path, MARK, wait_s=_OPENING_WAIT_S, log_pages=self.log_pages, shrinks=True
            )
            if pragma(writer, "user_version") not in (0, _FORMAT):
                raise sqlite3.DatabaseError("another format")
            writer.execute(f"PRAGMA user_version = {_FORMAT}")
            writer.executescript(_SCHEMA)
            writer.execute("PRAGMA cache_size = -1024")
            writer.execute(f"PRAGMA max_page_count = {self._pages}")
            writer.execute(f"PRAGMA busy_timeout = {round(1e3 * _WRITING_WAIT_S)}")
            self._reader = reader = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
            reader.execute("PRAGMA query_only = ON")
            reader.execute("PRAGMA cache_size = -512")
        oldest, newest = reader.execute("SELECT (SELECT min(id) FROM body), (SELECT max(id) FROM body)").fetchone()
        self._newest, self.entries = newest or 0, newest - oldest + 1 if newest else 0
        self._inode = _inode(path)

    def _is_replaced(self) -> bool:
        """Whether the path now leads to a different file or to nothing."""
        return self._inode != _inode(self.path)

    def _later(self) -> None:
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _RETRY_S[1])


def _hash(key: bytes) -> int:
    """63 bits: SQLite's integers are signed. The row holds the whole key."""
    return xxhash.xxh3_64_intdigest(key) >> 1


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

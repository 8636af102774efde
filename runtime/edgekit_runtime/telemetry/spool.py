"""The spool: unacknowledged windows on disk, safe from power cuts.

    spool = Spool.open(Path("porch-1.db"))
    seq = spool.append(body)
    spool.after(0, limit=20)                # [(seq, body), ...]
    spool.forget(seq)

Rules:
- a window is committed (SQLite, WAL, synchronous=FULL) before it is sent, and forgotten only when the ingestor has
  confirmed it: a broker's receipt does not count. Forgetting is written with the next window: one flush a window;
- seq only grows, also over restarts. `epoch` is random and made with the file, so a wiped board starts another one;
- a full file drops its oldest windows and counts them in `dropped`; `floor` is the oldest seq left. Events among them
  move to the end, under a new seq, up to a quarter of what is kept: so everything from `floor` to `last` is there;
- a damaged file is set aside as NAME.bad and a new one begun; a foreign database is neither moved nor written to;
- one thread uses a spool. Errors of SQLite or the disk are TelemetryError (telemetry-spool).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.system import database
from edgekit_runtime.system.database import PAGE, ForeignDatabase, pragma, transaction
from edgekit_runtime.system.errors import TelemetryError

if TYPE_CHECKING:
    import sqlite3

MOST_BYTES = 16 * 2**20
MOST_BYTES_IN_MEMORY = 1 * 2**20
_MARK = 0x656B7370  # "eksp", the application id in the file's header
_FULL = 0.95  # make room above this share of the pages: the hard bound is for what this did not foresee
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS win (seq INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL);
"""
_MOST_COUNTED = 1 << 62  # SQLite counts to 2 ** 63 - 1
_EPOCH = re.compile(r"[0-9a-f]{16}")
_EVENT, _SAMPLE = b'{"kind":', b'"kind":"sample"}'
_IS_EVENT = f"substr(body, 1, {len(_EVENT)}) = x'{_EVENT.hex()}'"
_COLUMNS = {"meta": ["name", "value"], "win": ["seq", "body"]}


class Spool:
    """epoch: 16 hex digits.
    boot: how often this file was opened.
    dropped: windows given up since the file was made.
    """

    def __init__(self, connection: sqlite3.Connection, most_bytes: int, path: Path | None) -> None:
        self._db = connection
        connection.text_factory = lambda text: text.decode(errors="replace")  # else a flipped bit is an error each time
        self._pages = max(16, most_bytes // PAGE)
        self._confirmed = 0
        self.path = path
        with _disk(path):
            self._prepare()

    @classmethod
    def open(cls, path: Path, most_bytes: int = MOST_BYTES) -> Spool:
        """Open or create the file.

        Raises TelemetryError (telemetry-spool) if it is in use, foreign, unsafe or not writable, or the disk fails.
        """
        import sqlite3

        if unsafe := database.first_unsafe_of(path):
            raise TelemetryError(unsafe.what, where=str(unsafe.where), do=unsafe.do, code="telemetry-spool")
        try:
            return cls._opened(path, most_bytes)
        except TelemetryError as error:
            cause = error.__cause__  # an OperationalError: the file is busy, unwritable or on a full disk
            if not isinstance(cause, sqlite3.DatabaseError) or isinstance(cause, sqlite3.OperationalError):
                raise
        with _disk(path):
            database.set_aside(path)
        return cls._opened(path, most_bytes)

    @classmethod
    def _opened(cls, path: Path, most_bytes: int) -> Spool:
        with _disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                connection = database.connect(path, _MARK, tables=_COLUMNS, durable=True, log_pages=64, exclusive=True)
            except ForeignDatabase as error:
                raise _foreign(path) from error
        try:
            return cls(connection, most_bytes, path)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def in_memory(cls, most_bytes: int = MOST_BYTES_IN_MEMORY) -> Spool:
        """A spool without a file, for a board whose disk fails."""
        import sqlite3

        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        return cls(connection, most_bytes, None)

    def append(self, body: bytes) -> int:
        """Commit one window and return its seq. Raises TelemetryError (telemetry-spool)."""
        with _disk(self.path), transaction(self._db):
            self._sweep()
            gone = self._make_room()
            seq = self._db.execute("INSERT INTO win (body) VALUES (?)", (body,)).lastrowid
        assert seq is not None
        self._last = seq
        self.dropped += gone
        return seq

    def after(self, seq: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` windows above `seq` that are not confirmed, oldest first."""
        with _disk(self.path):
            return self._db.execute(
                "SELECT seq, body FROM win WHERE seq > ? ORDER BY seq LIMIT ?", (max(seq, self._confirmed), limit)
            ).fetchall()

    def bodies(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The bodies of these seqs that are still spooled."""
        with _disk(self.path):
            marks = ", ".join("?" * len(seqs))
            return dict(self._db.execute(f"SELECT seq, body FROM win WHERE seq IN ({marks})", tuple(seqs)))

    def events(self) -> list[int]:
        """The seqs of unconfirmed events, oldest first."""
        with _disk(self.path):
            query = f"SELECT seq FROM win WHERE seq > ? AND {_IS_EVENT} ORDER BY seq"
            return [seq for (seq,) in self._db.execute(query, (self._confirmed,))]

    def forget(self, mark: int) -> None:
        """The host has stored every window up to `mark`; the next commit deletes them."""
        self._confirmed = max(self._confirmed, min(mark, self._last))

    @property
    def last(self) -> int:
        """The largest seq given so far."""
        return self._last

    @property
    def floor(self) -> int:
        """The oldest unconfirmed seq, or the next seq if all are confirmed."""
        with _disk(self.path):
            (oldest,) = self._db.execute("SELECT min(seq) FROM win WHERE seq > ?", (self._confirmed,)).fetchone()
        return int(oldest) if oldest is not None else self._last + 1

    def waiting(self) -> tuple[int, int]:
        """(windows, bytes) not yet confirmed."""
        with _disk(self.path):
            n, size = self._db.execute(
                "SELECT count(*), coalesce(sum(length(body)), 0) FROM win WHERE seq > ?", (self._confirmed,)
            ).fetchone()
        return int(n), int(size)

    def sample_bytes(self) -> int:
        """Bytes of samples that are not confirmed."""
        with _disk(self.path):
            query = (
                f"SELECT coalesce(sum(length(body)), 0) FROM win WHERE seq > ? AND substr(body, ?) = x'{_SAMPLE.hex()}'"
            )
            (size,) = self._db.execute(query, (self._confirmed, -len(_SAMPLE))).fetchone()
        return int(size)

    def swap_note(self, name: str, text: str) -> str | None:
        """Store a note for the owner; returns the previous one."""
        before = self.note(name)
        if before != text:
            with _disk(self.path), transaction(self._db):
                self._set(f"note-{name}", text)
        return before

    def note(self, name: str) -> str | None:
        with _disk(self.path):
            text = self._meta(f"note-{name}")
        return None if text is None else str(text)

    def new_epoch(self) -> None:
        """Begin an epoch, if the host knows a later seq: this file is an older copy of itself."""
        with _disk(self.path), transaction(self._db):
            self._epoch_is(secrets.token_hex(8))

    def close(self) -> None:
        """Delete what was forgotten, and close. Never raises."""
        import sqlite3

        with contextlib.suppress(sqlite3.Error, TelemetryError), _disk(self.path), transaction(self._db):
            self._sweep()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _prepare(self) -> None:
        import sqlite3

        if self.path is not None:
            verdict = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(f"malformed: {verdict}")
        self._db.execute(f"PRAGMA max_page_count = {self._pages}")
        self._db.executescript(_SCHEMA)
        made = {sql for (sql,) in self._db.execute("SELECT sql FROM sqlite_master WHERE name IN ('meta', 'win')")}
        if made != {line.replace("IF NOT EXISTS ", "") for line in _SCHEMA.strip().rstrip(";").split(";\n")}:
            raise sqlite3.DatabaseError("malformed: other columns")
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'win'").fetchone()
        found = (self._meta("boot") or 0, self._meta("dropped") or 0, row[0] if row else 0)
        if not all(type(number) is int and 0 <= number < _MOST_COUNTED for number in found):
            raise sqlite3.DatabaseError("malformed: a counter is not a number")
        boot, self.dropped, self._last = (int(number) for number in found)
        self.boot = boot + 1
        with transaction(self._db):
            epoch = self._meta("epoch")
            if not (isinstance(epoch, str) and _EPOCH.fullmatch(epoch)):
                self._epoch_is(secrets.token_hex(8))
            else:
                self.epoch = epoch
            gone = self._db.execute("DELETE FROM win WHERE typeof(body) <> 'blob'").rowcount
            self.dropped += gone
            self._set("boot", self.boot)
            if gone:
                self._set("dropped", self.dropped)

    def _epoch_is(self, epoch: str) -> None:
        self.epoch = epoch
        self._set("epoch", epoch)

    def _sweep(self) -> None:
        if self._confirmed:
            self._db.execute("DELETE FROM win WHERE seq <= ?", (self._confirmed,))

    def _make_room(self) -> int:
        """Drop the oldest twentieth if the file is nearly full. Returns how many."""
        used = pragma(self._db, "page_count") - pragma(self._db, "freelist_count")
        if used < _FULL * self._pages:
            return 0
        n, events = self._db.execute(f"SELECT count(*), coalesce(sum({_IS_EVENT}), 0) FROM win").fetchone()
        oldest = self._db.execute("SELECT seq, body FROM win ORDER BY seq LIMIT ?", (max(1, n // 20),)).fetchall()
        self._db.execute("DELETE FROM win WHERE seq <= ?", (oldest[-1][0],))
        kept = [body for _, body in oldest if is_event(body) and events <= n // 4]
        for body in kept:
            self._last = self._db.execute("INSERT INTO win (body) VALUES (?)", (body,)).lastrowid or self._last
        gone = len(oldest) - len(kept)
        self._set("dropped", self.dropped + gone)
        return gone

    def _meta(self, name: str) -> str | int | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _set(self, name: str, value: str | int) -> None:
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value)
        )


def is_event(body: bytes) -> bool:
    """Whether a body is an event: only those begin with their kind."""
    return body.startswith(_EVENT)


def is_sample(body: bytes) -> bool:
    """Whether a body is a part of a sample: only those end with that kind."""
    return body.endswith(_SAMPLE)


def refuse_foreign(path: Path) -> None:
    """Raises TelemetryError (telemetry-spool) for a foreign file, before it is opened."""
    import sqlite3

    with contextlib.suppress(OSError, sqlite3.Error):
        if database.is_foreign(path, _MARK, _COLUMNS):
            raise _foreign(path)


def _foreign(path: Path) -> TelemetryError:
    what = "not a telemetry spool; the file is left alone"
    return TelemetryError(what, where=str(path), do="Name another file", code="telemetry-spool")


@contextmanager
def _disk(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite and the system into TelemetryError (telemetry-spool)."""
    import sqlite3

    try:
        yield
    except (sqlite3.Error, OSError) as error:
        where = "memory" if path is None else str(path)
        raise TelemetryError(
            f"the telemetry spool cannot be used ({error})", where=where, code="telemetry-spool"
        ) from error

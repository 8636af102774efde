"""The store in one SQLite file: enough for some thousand boards, nothing to install.

One connection writes, in one thread; others read.

    store = SqliteStore.open(Path("fleet.db"))
    marks = store.commit(arrivals, changes)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgekit.fleet.schema import Bound
from edgekit.fleet.sql import SqlStore, store_errors

if TYPE_CHECKING:
    import sqlite3

_CACHE_KB = 32_000
"""Pages of boards that report once a minute: read again from the file for each window otherwise."""


class SqliteStore(SqlStore):
    """See the Store protocol for what each method promises."""

    words: ClassVar = {
        "int": "INTEGER", "real": "REAL", "text": "TEXT", "blob": "BLOB", "id": "INTEGER PRIMARY KEY",
        "clustered": " WITHOUT ROWID",
    }  # fmt: skip
    begin = ("BEGIN IMMEDIATE",)

    def __init__(self, connection: sqlite3.Connection, where: str, bounds: Mapping[str, Bound] | None = None) -> None:
        import sqlite3

        super().__init__(where, bounds)
        self._db = connection
        self.faults = (sqlite3.Error,)
        self.down = (sqlite3.OperationalError,)

    @classmethod
    def open(cls, path: Path, bounds: Mapping[str, Bound] | None = None) -> SqliteStore:
        """Open or make the file. Raises StoreError."""
        import sqlite3

        with store_errors(str(path), (sqlite3.Error,)):
            if not path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {path.parent}")
            connection = sqlite3.connect(
                path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        store = cls(connection, str(path), bounds)
        try:
            with store_errors(str(path), (sqlite3.Error,)):
                store.execute("PRAGMA journal_mode = WAL")
                store.execute("PRAGMA synchronous = FULL")
                store.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
                store.execute("PRAGMA wal_autocheckpoint = 4000")
            store.prepare()
        except BaseException:
            store.close()
            raise
        return store

    def execute(self, statement: str, given: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(statement, given)

    def many(self, statement: str, rows: Any) -> None:
        self._db.executemany(statement, rows)

    def version(self) -> int | None:
        (version,) = self.execute("PRAGMA user_version").fetchone()
        if version:
            return int(version)
        (tables,) = self.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return 0 if tables else None

    def set_version(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version}")

    def rollback(self) -> None:
        if self._db.in_transaction:  # a full disk has undone it already
            self.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            self._db.close()

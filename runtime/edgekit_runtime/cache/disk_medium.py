"""The disk tier's file through all its troubles: opened, dropped and rebuilt, left alone for a while, taken up again.

    medium = Medium(path, max_bytes)            # raises CacheFileError for somebody else's database, and nothing else
    medium.attend(error)                        # what a reader met, or None: now and then, before writing
    medium.do(lambda file: file.write(rows))    # None where it could not be done
    medium.trouble                              # damaged, full, cannot-be-written, busy, or None

Rules:
- what is damaged is deleted and made anew; so is what fills a disk, and it may grow half as large from then on;
- what cannot be opened is tried again after a second, and ever more rarely, at the latest after five minutes;
- what another process holds locked is left alone;
- a path that leads to another file by now, or to none, is opened again.

One thread attends and does; any may look at the fields.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from edgekit_runtime.cache.disk_file import MARK, AnswerFile, Written, file_bytes, foreign
from edgekit_runtime.errors import CacheFileError
from edgekit_runtime.sqlite_file import delete, owner

__all__ = ["LEAST_BYTES", "Medium", "trouble_of"]

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
"""Of SQLite's own texts (sqlite3_errstr) its result codes: Python 3.10 gives an error no code. Every other text is that of a statement
that does not fit the tables, `_SQL_ERROR`."""
_SQL_ERROR = 1
_NO_SPACE = 28  # ENOSPC


class Medium:
    """file: None while there is none to use. rebuilt: how often it was dropped."""

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
        """False for a file on a read-only medium; where there is none, one may come."""
        return self.file is None or self.file.writable

    def attend(self, broken: BaseException | None = None) -> None:
        """Mend what is broken, take up what was replaced, try again what could not be opened."""
        if broken is not None:
            self._mend(broken)
        elif self.file is not None and self.file.replaced:
            self.close()
            self._reopen()
        if self.file is None and self._clock() >= self._retry_at:
            self._reopen()

    def do(self, work: Callable[[AnswerFile], Written | None]) -> Written | None:
        """Do it with the file; where that fails, mend the file and try once more. None when it was not done."""
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
            moved = file.replaced  # SQLite refuses to write to a file that lost its name
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
        """Open the file; one that is damaged is deleted first. trouble: what led here, told until something is written."""
        for last in (False, True):
            try:
                self.file = AnswerFile.open(self.path, self.max_bytes)
            except CacheFileError:
                raise
            except Exception as error:  # sqlite3 is not imported here; a disk must not end an application
                trouble = trouble_of(error)
                if last or trouble != "damaged":
                    break
                if owner(self.path, MARK) not in ("ours", "nobody"):
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


def trouble_of(error: BaseException) -> str:
    """One word for what a disk did."""
    primary = getattr(error, "sqlite_errorcode", None)
    if primary is None:
        primary = _UNCODED.get(str(error), _SQL_ERROR if type(error).__name__ == "OperationalError" else 0)
    primary &= 0xFF
    if primary in _DAMAGED:
        return "damaged"
    if primary == _FULL or getattr(error, "errno", None) == _NO_SPACE:
        return "full"
    return "busy" if primary in _BUSY else "cannot-be-written"

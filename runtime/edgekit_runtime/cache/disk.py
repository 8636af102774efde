"""The disk tier: answers that survive a reboot, written by one thread, so no request waits.

    disk = DiskCache(Path("answers.db"), KeptForm(namespace, contract.outputs), max_bytes=256 << 20)
    disk.put(key, outputs)                  # returns at once
    found = disk.find(key)                  # MISS, or CachedAnswer(outputs, age_s)
    disk.close()                            # writes what is pending

Rules:
- it stores hashes and outputs, never an input; several models, each with its namespace, and processes share a file;
- an answer older than `ttl_s`, or of unknown age, is a miss; `stale` finds it until its bytes are needed;
- disk trouble is never an error (see `disk_file`): lookups miss, and `stats` has the word for it;
- an answer that is not what was written under its key, or not of the contract (`kept`), is a miss: it is counted,
  logged once, and deleted;
- pending writes are bounded: beyond that new answers are not stored, and counted;
- a flushed answer is not returned again: until the file has forgotten it, nothing is read from it or written to it; a
  file that never could is a RuntimeWarning at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.cache.disk_file import LEAST_BYTES, AnswerFile, Medium, Row, file_bytes, trouble_of
from edgekit_runtime.cache.kept import KeptForm, PackError
from edgekit_runtime.cache.memory_tier import MISS, Miss, Moment, age_s, entry_bytes, freeze, moment
from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.threads import begin

_LOG = logging.getLogger("edgekit_runtime.cache")
_MOST_WAITING_BYTES = 8 << 20
_BATCH = 256
_MOST_NOTES = 4096
_FORGET_AGAIN_S = (1.0, 60.0)


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """age_s: None if unknown."""

    outputs: Any
    age_s: float | None


@dataclass(frozen=True)
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


@dataclass
class _Counts:
    hits: int = 0
    misses: int = 0
    expired: int = 0
    evicted: int = 0
    written: int = 0
    lost: int = 0
    refused: int = 0


@dataclass
class _PendingWork:
    """answers: key -> outputs, when they were made, bytes.
    refused: keys to delete.
    clear: flush first, until done.
    """

    answers: dict[bytes, tuple[Any, Moment, int]] = field(default_factory=dict)
    used: dict[bytes, None] = field(default_factory=dict)
    refused: dict[bytes, None] = field(default_factory=dict)
    bytes: int = 0
    clear: bool = False
    now: bool = False
    closing: bool = False


class DiskCache:
    """Thread-safe. Raises CacheFileError when opened on a foreign database, nothing afterwards."""

    tier: Literal["disk"] = "disk"

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
        self.path = Path(path)
        self._model = int.from_bytes(form.namespace[:8].ljust(8, b"\0"), "big") >> 1
        self._form = form
        self._medium = Medium(self.path, max_bytes, clock=clock)
        self._ttl_s = ttl_s
        self._now = now
        self._batch_s = batch_s
        self._owner = os.getpid()
        self._counts = _Counts()
        self._waiting = _PendingWork()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None
        self._forget_again_s = 0.0  # how long to wait before a flush that failed is tried again

    def find(self, key: bytes) -> CachedAnswer | Miss:
        """The answer stored under `key`. Reads the disk; waits for no writer."""
        found = self._look(key)
        if os.getpid() != self._owner:
            return MISS
        with self._change:
            if isinstance(found, Miss):
                self._counts.misses += 1
                return MISS
            if self._ttl_s is not None and (found.age_s is None or found.age_s >= self._ttl_s):
                self._counts.expired += 1
                self._counts.misses += 1
                return MISS
            self._counts.hits += 1
        return found

    def get(self, key: bytes) -> Any | Miss:
        """As `find`, the outputs alone."""
        found = self.find(key)
        return found if isinstance(found, Miss) else found.outputs

    def stale(self, key: bytes) -> CachedAnswer | Miss:
        """The answer stored under `key` whatever its age. Counts neither hit nor miss."""
        return self._look(key)

    def has(self, key: bytes) -> bool:
        """Whether a fresh answer is stored. Counts nothing and notes no use."""
        found = self._look(key, note=False)
        if isinstance(found, Miss):
            return False
        return self._ttl_s is None or (found.age_s is not None and found.age_s < self._ttl_s)

    @property
    def largest_bytes(self) -> int:
        """Limit of one answer: a sixteenth of the bound."""
        return self._medium.max_bytes // 16

    def put(self, key: bytes, outputs: Any) -> bool:
        """Store soon. False if the answer is above `largest_bytes` or too much is pending."""
        if os.getpid() != self._owner:
            return False
        outputs = freeze(outputs)
        size = entry_bytes(outputs)
        with self._change:
            waiting = self._waiting
            most = min(_MOST_WAITING_BYTES, self._medium.max_bytes // 2)
            too_much = size > self.largest_bytes or (waiting.bytes > 0 and waiting.bytes + size > most)
            if waiting.closing or not self._medium.writable or too_much:
                self._counts.lost += 1
                return False
            before = waiting.answers.pop(key, None)
            waiting.bytes += size - (before[2] if before is not None else 0)
            waiting.answers[key] = (outputs, self._now(), size)
            self._start()
            if len(waiting.answers) == _BATCH or len(waiting.answers) == 1:
                self._change.notify_all()
            return True

    def sync(self, timeout_s: float = 30.0) -> bool:
        """Wait until pending answers are written or lost. False after timeout_s."""
        with self._change:
            if self._thread is None:
                return True
            self._waiting.now = True
            self._change.notify_all()
            return self._change.wait_for(lambda: not (self._has_rows() or self._waiting.clear), timeout_s)

    def flush(self) -> None:
        """Forget every answer of this model at once; other models' stay."""
        with self._change:
            self._waiting = _PendingWork(clear=True, now=True, closing=self._waiting.closing)
            self._forget_again_s = 0.0
            self._start()
            self._change.notify_all()

    def stats(self) -> DiskStats:
        with self._change:
            c, medium = self._counts, self._medium
            file = medium.file
            return DiskStats(
                c.hits,
                c.misses,
                file.entries if file is not None else 0,
                file_bytes(self.path),
                c.evicted,
                c.expired,
                len(self._waiting.answers),
                c.written,
                c.lost,
                medium.rebuilt,
                medium.trouble,
                self._waiting.clear,
                medium.max_bytes,
                c.refused,
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is pending within timeout_s, and close the file.

        RuntimeWarning if a flush could not reach the file.
        """
        if os.getpid() != self._owner:
            return
        with self._change:
            if self._waiting.used:
                self._start()
            again, self._waiting.closing = self._waiting.closing, True
            self._change.notify_all()
            thread = self._thread
        atexit.unregister(self.close)
        if thread is None:
            self._shut()
        else:
            thread.join(timeout_s)
        if self._waiting.clear and not again:
            why = self._medium.trouble or "busy"
            warnings.warn(
                f"{self.path}: what was flushed is still in the file ({why}) and will be found when it is opened "
                "again; flush again then, or delete the file",
                RuntimeWarning,
                stacklevel=2,
            )

    def _look(self, key: bytes, *, note: bool = True) -> CachedAnswer | Miss:
        if os.getpid() != self._owner:
            return MISS
        with self._change:
            waiting, file = self._waiting, self._medium.file
            there = waiting.answers.get(key)
            if there is not None:
                return CachedAnswer(there[0], age_s(there[1], self._now()))
            if file is None or waiting.clear or self._broken is not None:
                return MISS
        try:
            read = file.read(key)
            if read is None:
                return MISS
            body, worth_noting = read
            outputs, born = self._form.unpack(key, body)
        except PackError as why:
            self._refuse(key, str(why))
            return MISS
        except Exception as error:  # noqa: BLE001 - sqlite3 is not imported here; whatever the disk does, it is a miss
            self._report(file, error)
            return MISS
        if note and worth_noting and len(waiting.used) < _MOST_NOTES:
            waiting.used[key] = None
        return CachedAnswer(outputs, age_s(born, self._now()))

    def _refuse(self, key: bytes, why: str) -> None:
        with self._change:
            self._counts.refused += 1
            first = self._counts.refused == 1
            if self._medium.writable and len(self._waiting.refused) < _MOST_NOTES:
                self._waiting.refused[key] = None
                self._start()
                self._change.notify_all()
        if first:
            _LOG.warning("%s: an answer in it is not what was written there, and is not given: %s", self.path, why)

    def _has_rows(self) -> bool:
        return bool(self._waiting.answers or self._waiting.refused)

    def _report(self, file: AnswerFile, error: BaseException) -> None:
        """Leave a reader's trouble to the writing thread, unless the file is only busy."""
        with self._change:
            if trouble_of(error) == "busy" or self._waiting.closing or file is not self._medium.file:
                return
            self._broken = error
            self._waiting.now = True
            self._start()
            self._change.notify_all()

    def _start(self) -> None:
        """Start the thread at the first write; under the lock."""
        if self._thread is None and not self._waiting.closing:
            thread = threading.Thread(target=self._work, name="edgekit-disk-cache", daemon=True)
            try:
                if not begin(thread):  # the interpreter ends: nothing more is written
                    return
            except MemoryExceeded:  # an answer is not refused for its cache; the next one tries again
                return
            self._thread = thread
            atexit.register(self.close)  # for an application that ends without closing its model

    # The thread that writes.

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._has_rows() or self._urgent())
                if self._waiting.clear and self._forget_again_s:
                    self._change.wait_for(
                        lambda: self._waiting.closing or not self._forget_again_s, self._forget_again_s
                    )
                elif not self._urgent():
                    self._change.wait_for(self._urgent, self._batch_s)
                self._waiting.now = False
                closing = self._waiting.closing
                broken, self._broken = self._broken, None
            self._medium.attend(broken)
            if self._forget():
                while self._write_some():
                    pass
            if closing:
                self._shut()
                return

    def _urgent(self) -> bool:
        waiting = self._waiting
        return waiting.now or waiting.clear or waiting.closing or len(waiting.answers) >= _BATCH

    def _forget(self) -> bool:
        """Whether no flush is pending. A failed one is retried, ever more rarely."""
        with self._change:
            asked = self._waiting
        if not asked.clear:
            return True
        done = self._medium.do(lambda file: file.forget(self._model)) is not None
        with self._change:
            asked.clear = not done
            first, last = _FORGET_AGAIN_S
            self._forget_again_s = 0.0 if done else min(max(first, 2 * self._forget_again_s), last)
            self._change.notify_all()
        return done

    def _write_some(self) -> bool:
        """Write one batch. True if there may be more."""
        with self._change:
            waiting = self._waiting
            file = self._medium.file
            room = file.batch_bytes if file is not None else self._medium.max_bytes
            batch: dict[bytes, tuple[Any, Moment, int]] = {}
            for key, answer in waiting.answers.items():
                room -= answer[2]
                if batch and (room < 0 or len(batch) == _BATCH):
                    break
                batch[key] = answer
            if waiting.clear:  # flushed meanwhile: that comes first
                return False
            if not batch and not waiting.refused and not (waiting.closing and waiting.used):
                return False
            used, waiting.used = waiting.used, {}
            refused = tuple(waiting.refused)
        rows = []
        for key, (outputs, born, _) in batch.items():
            with contextlib.suppress(PackError):
                rows.append(Row(key, self._model, self._form.pack(key, outputs, born)))
        written = self._medium.do(lambda file: file.write(rows, used, refused))
        with self._change:
            if written is None:
                self._counts.lost += len(rows)
            else:
                self._counts.written += len(rows)
                self._counts.evicted += written.evicted
            self._counts.lost += len(batch) - len(rows)
            for key in refused:
                waiting.refused.pop(key, None)
            for key, (outputs, _, size) in batch.items():
                if waiting.answers.get(key, (None,))[0] is outputs:
                    del waiting.answers[key]
                    waiting.bytes -= size
            self._change.notify_all()
            return self._has_rows()

    def _shut(self) -> None:
        with self._change:
            self._counts.lost += len(self._waiting.answers)
            self._waiting.answers.clear()
            self._waiting.refused.clear()
            self._change.notify_all()
        self._medium.close()

"""The fleet's store on any SQL database: its schema, and transactions that write.

SQLite and PostgreSQL differ only in how to connect and in six keywords of the schema. The rest is here, in
`reading`, `writing` and `sums`.

Rules:
- a commit that fails for one board is done again board by board, and what cannot be stored is refused ("unstorable");
- a database that fails (full, locked, gone) refuses no window and no board: StoreError, and nothing has changed;
- one connection, one thread at a time; readers of pages open a store of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from edgekit.fleet.store.fleet_errors import StoreError, store_errors
from edgekit.fleet.store.migrations import migrate
from edgekit.fleet.store.reading import StoreReader
from edgekit.fleet.store.records import Arrival, Change, Mark, now_ms
from edgekit.fleet.store.schema import ADD_TO_COUNTER, BOUNDS, DDL, OLDEST, SUMS, VERSION, Bound, quoted
from edgekit.fleet.store.sums import Sums, delete_samples, forget, grow, prune, write_rollups
from edgekit.fleet.store.writing import Batch

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_STALE_MS = 30 * 60 * 1000
_FOLD_AFTER_MS = 75 * 60 * 1000


class SqlStore(StoreReader):
    """Every method may raise StoreError, and then has changed nothing."""

    words: ClassVar[Mapping[str, str]]
    """The schema's words in this database: int, real, text, blob, id, clustered."""
    begin: tuple[str, ...] = ("BEGIN",)
    """How a transaction that writes begins: one at a time, or two would count the same window."""
    down: tuple[type[Exception], ...] = ()
    """Those that no single board caused."""

    def __init__(self, where: str, bounds: Mapping[str, Bound] | None = None) -> None:
        super().__init__(where)
        self._bounds = {**BOUNDS, **(bounds or {})}
        self._named: Counter[str] = Counter()  # boards -> builds that they brought since `_named_ms`
        self._brought: Counter[str] = Counter()  # in the transaction that runs
        self._named_ms = 0

    @abstractmethod
    def many(self, statement: str, rows: Any) -> None:
        """Run one statement for each row."""

    @abstractmethod
    def version(self) -> int | None:
        """The schema's version; None in an empty database, 0 in one of something else."""

    @abstractmethod
    def set_version(self, version: int) -> None: ...

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if any. Does not raise if the database is gone."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def columns(self, table: str) -> set[str]:
        """Of a table; empty if it does not exist."""

    @abstractmethod
    def keep_copy(self, version: int) -> str:
        """Copy the store, in a transaction that has changed nothing; returns where it is."""

    def prepare(self) -> None:
        """Create missing tables; migrate those of an earlier release, and keep a copy of them.

        Raises StoreError for tables of a later one, and is closed.
        """
        with ExitStack() as failed:
            failed.callback(self.close)
            with self.writing():
                found = self.version()
                if found is not None and OLDEST <= found < VERSION:
                    migrate(self, found)
                elif found not in (None, VERSION):
                    what = f"the store was made by another release (version {found}, expected {VERSION})"
                    do = "Use that release, or move the store aside: boards resend about eleven days that no store has"
                    raise StoreError(what, where=self.where, do=do)
                self.define(*DDL)
                if found != VERSION:
                    self.set_version(VERSION)
            failed.pop_all()

    def define(self, *statements: str) -> None:
        """Run CREATE statements with the words {int}, {real}, {text}, {blob}, {id} and {clustered}."""
        for statement in statements:
            for word, here in self.words.items():
                statement = statement.replace("{" + word + "}", here)
            self.execute(statement)

    # Writing.

    def commit(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
        """Store messages. What it returns may be acknowledged."""
        with store_errors(self.where, self.faults):
            self._brought.clear()
            try:
                with self._transaction():
                    marks = self._apply(arrivals, changes)
            except self.down:
                raise
            except Exception:  # noqa: BLE001 - some board's: found below, or raised again there
                self._brought.clear()
                with self._transaction():
                    marks = self._apply_each(arrivals, changes)
            self._named.update(self._brought)
            return marks

    def _apply(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
        batch = Batch(self, self._named)
        batch.read(dict.fromkeys([*(change.device for change in changes), *(arrival.device for arrival in arrivals)]))
        for change in changes:
            batch.change(change)
        marks = batch.arrive(arrivals) if arrivals else []
        batch.finish()
        self._brought.update(batch.brought)
        return marks

    def _apply_each(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
        """Store board by board, and a failing board's windows one by one."""
        boards: dict[str, tuple[list[Arrival], list[Change]]] = {}
        for arrival in arrivals:
            boards.setdefault(arrival.device, ([], []))[0].append(arrival)
        for change in changes:
            boards.setdefault(change.device, ([], []))[1].append(change)
        marks: list[Mark] = []
        for mine, births in boards.values():
            found = self._try(mine, births)
            if found is not None:
                marks += found
                continue
            for birth in births:
                self._try([], [birth])
            latest: dict[str, Mark] = {}
            for arrival in sorted(mine, key=lambda arrival: arrival.seal.seq):
                found = self._try([arrival], [])
                if found is None:
                    refused = replace(arrival, window=None, event=None, refused="unstorable", payload=b"")
                    found = self._apply([refused], [])
                for mark in found:
                    before = latest.get(mark.epoch, Mark(mark.device, mark.epoch, 0))
                    latest[mark.epoch] = replace(
                        mark, windows=before.windows + mark.windows, repeated=before.repeated + mark.repeated
                    )
            marks += latest.values()
        return marks

    def _try(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark] | None:
        """The marks, or None if it cannot be stored, with nothing changed."""
        self.execute("SAVEPOINT part")
        try:
            marks = self._apply(arrivals, changes)
        except self.down:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, it is this board's
            self.execute("ROLLBACK TO SAVEPOINT part")
            return None
        self.execute("RELEASE SAVEPOINT part")
        return marks

    def look_for_silence(self, now_ms: int) -> int:
        """Call offline what missed two and a half windows; how many those were."""
        with self.writing():
            silent = self.execute(
                "SELECT id FROM device WHERE online = 1 AND seen_ms + 2500 * window_s < ? AND seen_ms < ?",
                (now_ms, now_ms - 3000),
            ).fetchall()
            stale = self.execute(
                "SELECT id FROM device WHERE figures_ms > 0 AND figures_ms < ?", (now_ms - _STALE_MS,)
            ).fetchall()
            if silent or stale:
                batch = Batch(self, self._named)
                batch.read(dict.fromkeys(name for (name,) in (*silent, *stale)))
                for (name,) in silent:
                    batch.offline(name, now_ms, "missed two and a half windows")
                for (name,) in stale:
                    batch.clear_figures(name)
                batch.finish()
            self._fold(now_ms, 50)
        return len(silent)

    def _fold(self, now_ms: int, most: int) -> None:
        """Fold finished quarters into hours, again if they change."""
        hours = self.execute(
            "SELECT DISTINCT device, start_ms - start_ms % 3600000, build FROM rollup WHERE folded = 0 AND "
            "start_ms < ? LIMIT ?",
            (now_ms - _FOLD_AFTER_MS, most),
        ).fetchall()
        made: dict[tuple[int, int, int, int], tuple[Sums, int]] = {}
        for device, hour, build in hours:
            key = (device, 60, hour, build)
            (before,) = self.execute(
                "SELECT max(length(latency) + coalesce(length(stages), 0)) FROM rollup WHERE device = ? AND "
                "minutes = ? AND start_ms = ? AND build = ?", key,
            ).fetchone()  # fmt: skip
            sums = Sums()
            for row in self.execute(
                f"SELECT {quoted(SUMS)}, temp, cpu, mem, psi, latency, stages, codes FROM rollup WHERE device = ? "
                "AND minutes = 15 AND start_ms >= ? AND start_ms < ? AND build = ?",
                (device, hour, hour + _HOUR_MS, build),
            ).fetchall():
                sums.merge(Sums.of_row(row))
            made[key] = (sums, -1 if before is None else before)
        if hours:
            grow(self, write_rollups(self, made))
            self.many(
                "UPDATE rollup SET folded = 1 WHERE device = ? AND minutes = 15 AND start_ms >= ? AND start_ms < ? "
                "AND build = ?",
                [(device, hour, hour + _HOUR_MS, build) for device, hour, build in hours],
            )

    def prune(self, now_ms: int) -> None:
        """Forget what is older than its time, and the oldest of what takes too much."""
        if now_ms - self._named_ms > _DAY_MS:
            self._named_ms = now_ms
            self._named.clear()
        with self.writing():
            prune(self, self._bounds, now_ms)

    def forget(self, name: str, at_ms: int | None = None) -> bool:
        """Remove a board and its history. False if it is unknown."""
        with self.writing():
            return forget(self, name, now_ms() if at_ms is None else at_ms)

    def delete_samples(self, device: str | None = None) -> int:
        """Of a board, or of all; how many parts those were."""
        with self.writing():
            return delete_samples(self, device)

    def to_clear(self) -> list[str]:
        """Forgotten boards whose birth the broker may still keep."""
        return [name for (name,) in self.select("SELECT device FROM forgotten WHERE cleared = 0 LIMIT 100")]

    def mark_cleared(self, names: Sequence[str]) -> None:
        with self.writing():
            self.many("UPDATE forgotten SET cleared = 1 WHERE device = ?", [(name,) for name in names])

    @contextmanager
    def writing(self) -> Iterator[SqlStore]:
        """A transaction of this thread; `execute` and `many` are part of it."""
        with store_errors(self.where, self.faults), self._transaction():
            yield self

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                for statement in self.begin:
                    self.execute(statement)
                yield
                self.execute("COMMIT")
            except BaseException:
                self.rollback()
                raise

    def try_writing(self) -> None:
        """Write a number, to see whether it can be."""
        with self.writing():
            self.execute(ADD_TO_COUNTER, ("tried", 1))

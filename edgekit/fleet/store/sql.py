"""The fleet's store on any SQL database: transactions, and what pages read.

SQLite and PostgreSQL differ in how to connect and in six words of the schema; everything else is here and in `writing`,
`sums` and `pruning`.

Rules:
- a commit that fails for one board is done again board by board, and what cannot be stored is refused ("unstorable");
- a database that fails (full, locked, gone) refuses no window and no board: StoreError, and nothing has changed;
- one connection, one thread at a time; readers of pages open a store of their own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from edgekit.fleet.store import packed
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit.fleet.store.schema import BOUNDS, LISTED, STATE_SQL, SUMS, VERSION, Bound, ddl, quoted, where_of
from edgekit.fleet.store.store import (
    GROUPS,
    SORTS,
    STATES,
    Arrival,
    BoardLatency,
    BuildBoards,
    Change,
    Event,
    FleetDevice,
    GroupBy,
    GroupCount,
    Mark,
    Query,
    Resolution,
    Rollup,
    Totals,
)
from edgekit.fleet.store.sums import Sums, forget, grow, prune, rollups_of, select_in, write_rollups
from edgekit.fleet.store.writing import RECENT, Batch
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.window import parse_window

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_FIVE_MS = 300_000
_STALE_MS = 30 * 60 * 1000
_FOLD_AFTER_MS = 75 * 60 * 1000
_MINUTES = {"5m": 5, "15m": 15, "1h": 60}
_DEVICES = f"SELECT d.num, {quoted(LISTED, 'd.')} FROM device AS d"
_ROLLUPS = (
    f"SELECT r.start_ms, b.model, b.version, b.profile, {quoted(SUMS, 'r.')}, r.temp, r.cpu, r.mem, r.psi, r.latency, "
    "r.stages, r.codes FROM rollup AS r JOIN build AS b ON b.num = r.build"
)


class SqlStore(ABC):
    """See the Store protocol for what each method promises."""

    words: ClassVar[Mapping[str, str]]
    """What the schema's words are here: int, real, text, blob, id, clustered."""
    begin: tuple[str, ...] = ("BEGIN",)
    """How a transaction that writes begins: one at a time, or two would count the same window."""
    faults: tuple[type[Exception], ...] = ()
    """All that the database's driver raises."""
    down: tuple[type[Exception], ...] = ()
    """Of these, the ones that are no single board's fault."""

    where: str
    """The file, or the server and database; no password."""

    def __init__(self, where: str, bounds: Mapping[str, Bound] | None = None) -> None:
        self.where = where
        self._bounds = {**BOUNDS, **(bounds or {})}
        self._lock = threading.RLock()
        self._named: Counter[str] = Counter()  # boards -> builds that they brought since `_named_ms`
        self._brought: Counter[str] = Counter()  # in the transaction that runs
        self._named_ms = 0

    @abstractmethod
    def execute(self, statement: str, given: Sequence[Any] = ()) -> Any:
        """Run one statement; a cursor."""

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
        """Undo a transaction, if there is one still; never raises for a database that is gone."""

    @abstractmethod
    def close(self) -> None: ...

    def prepare(self) -> None:
        """Make the tables where there are none. Raises StoreError for those of another release."""
        with self.writing():
            found = self.version()
            if found not in (None, VERSION):
                raise StoreError(
                    f"the store has tables of another release (version {found}, this is {VERSION})",
                    where=self.where,
                    do="Move it aside and start with a new one: boards keep about eleven days that no store has",
                )
            self.define(*ddl())
            if found is None:
                self.set_version(VERSION)

    def define(self, *statements: str) -> None:
        """Run CREATE statements with the words {int}, {real}, {text}, {blob}, {id} and {clustered}."""
        for statement in statements:
            for word, here in self.words.items():
                statement = statement.replace("{" + word + "}", here)
            self.execute(statement)

    # Writing.

    def commit(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
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
        """Board by board, and the windows of a culprit one by one."""
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
            for arrival in sorted(mine, key=lambda arrival: arrival.seq):
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
        """None when it cannot be stored, and then nothing of it is."""
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
                    batch.offline(name, now_ms, "has not reported for two and a half windows")
                for (name,) in stale:
                    batch.clear_figures(name)
                batch.finish()
            self._fold(now_ms, 50)
        return len(silent)

    def _fold(self, now_ms: int, most: int) -> None:
        """Make hours of quarters that are over; an hour whose quarters change again is made again."""
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
        if now_ms - self._named_ms > _DAY_MS:
            self._named_ms = now_ms
            self._named.clear()
        with self.writing():
            prune(self, self._bounds, now_ms)

    def forget(self, name: str) -> bool:
        with self.writing():
            return forget(self, name)

    @contextmanager
    def writing(self) -> Iterator[SqlStore]:
        """One transaction, for this thread alone; `execute` and `many` are part of it."""
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

    # Reading.

    def select(self, statement: str, given: Sequence[Any] = ()) -> list[Any]:
        with self._lock, store_errors(self.where, self.faults):
            return list(self.execute(statement, given).fetchall())

    def devices(self, query: Query) -> tuple[list[FleetDevice], int]:
        if query.sort not in SORTS:
            raise ValueError(f"{query.sort!r} is none of SORTS")
        where, given = where_of(query)
        direction = "DESC" if query.descending else "ASC"
        order = f'd."{query.sort}" IS NULL, d."{query.sort}" {direction}, d."id"'
        ((count,),) = self.select(f"SELECT count(*) FROM device AS d {where}", given)
        rows = self.select(
            f"{_DEVICES} {where} ORDER BY {order} LIMIT ? OFFSET ?", (*given, query.limit, max(0, query.offset))
        )
        return self._listed(rows), count

    def counts(self, group_by: GroupBy | None = None, query: Query | None = None) -> list[GroupCount]:
        where, given = where_of(query or Query())
        names = GROUPS[group_by] if group_by is not None else ()
        columns = quoted(names, "d.")
        sums = ", ".join(f"coalesce(sum(CASE WHEN {STATE_SQL[state]} THEN 1 ELSE 0 END), 0)" for state in STATES)
        rows = self.select(
            f"SELECT count(*), {sums}{', ' if names else ''}{columns} FROM device AS d {where} "
            + (f"GROUP BY {columns} ORDER BY 1 DESC, {columns}" if names else ""),
            given,
        )
        end = 1 + len(STATES)
        return [GroupCount(tuple(row[end:]), row[0], dict(zip(STATES, row[1:end], strict=True))) for row in rows]

    def builds(self, model: str | None = None) -> list[BuildBoards]:
        where, given = where_of(Query(model=model))
        rows = self.select(
            f'SELECT d.model, d.version, d.profile, d.budget_ms, d.psi, d."id", d.p99, d.n FROM device AS d {where}',
            given,
        )
        builds: dict[tuple[str, str, str], tuple[Counter[float], list[float], list[BoardLatency]]] = {}
        for model_name, version, profile, budget, psi, device, p99, n in rows:
            said = builds.get((model_name, version, profile))
            if said is None:
                said = builds[(model_name, version, profile)] = (Counter(), [], [])
            budgets, drifts, boards = said
            if budget is not None:
                budgets[budget] += 1
            if psi is not None:
                drifts.append(psi)
            if p99 is not None:
                boards.append(BoardLatency(device, p99, n))
        found = []
        for build, (budgets, drifts, boards) in builds.items():
            usual = max(budgets, key=lambda budget: (budgets[budget], budget), default=None)
            found.append(BuildBoards(*build, usual, tuple(sorted(drifts)), tuple(boards)))
        return found

    def changed(self, after: int, ids: Sequence[str]) -> list[FleetDevice]:
        with self._lock, store_errors(self.where, self.faults):
            found = select_in(self, f'{_DEVICES} WHERE d."id" IN ({{}})', list(ids))
            unique = {row[0]: row for row in found}
            return self._listed(sorted(
                (row for row in unique.values() if row[-1] > after), key=lambda row: row[1]
            ))  # fmt: skip

    def fleet(self, changed_after: int = -1) -> list[FleetDevice]:
        return self._listed(self.select(f'{_DEVICES} WHERE d.changed > ? ORDER BY d."id"', (changed_after,)))

    def device(self, name: str) -> FleetDevice | None:
        rows = self._listed(self.select(f'{_DEVICES} WHERE d."id" = ?', (name,)))
        return rows[0] if rows else None

    def _listed(self, rows: Sequence[Any]) -> list[FleetDevice]:
        """Devices of rows, each with its last windows."""
        recent: dict[int, list[list[Any]]] = {}
        with self._lock, store_errors(self.where, self.faults):
            for num, *point in dict.fromkeys(map(tuple, select_in(
                self, "SELECT device, moment_ms, p50, p95, p99, rate, temp, slot FROM recent WHERE device IN ({})",
                [row[0] for row in rows],
            ))):  # fmt: skip
                recent.setdefault(num, []).append(point[:-1])
        made = []
        for num, *row in rows:
            value = dict(zip(LISTED, row, strict=True))
            points = sorted(recent.get(num, ()), key=lambda point: point[0])[-RECENT:]
            made.append(FleetDevice(**{**value, "online": bool(value["online"]), "recent": points}))
        return made

    def device_history(self, name: str, since_ms: int, resolution: Resolution = "15m") -> list[Rollup]:
        found = self.select('SELECT num FROM device WHERE "id" = ?', (name,))
        if not found:
            return []
        num = found[0][0]
        if resolution == "5m":
            return self._five_minutes(num, name, since_ms)
        minutes = _MINUTES[resolution]
        rows = self.select(
            f"{_ROLLUPS} WHERE r.device = ? AND r.minutes = ? AND r.start_ms >= ?", (num, minutes, since_ms)
        )
        rollups = {row[:4]: Sums.of_row(row[4:]) for row in rows}
        if minutes == 60:
            rollups |= self._open_hours(num, since_ms)
        return rollups_of(rollups, minutes)

    def _open_hours(self, num: int, since_ms: int) -> dict[tuple[Any, ...], Sums]:
        """Hours of which a quarter is not folded yet, out of all their quarters."""
        rows = self.select(
            f"{_ROLLUPS} JOIN (SELECT DISTINCT start_ms - start_ms % 3600000 AS hour, build FROM rollup WHERE "
            "device = ? AND minutes = 15 AND folded = 0) AS o ON o.build = r.build AND r.start_ms >= o.hour AND "
            "r.start_ms < o.hour + 3600000 WHERE r.device = ? AND r.minutes = 15 AND o.hour >= ?",
            (num, num, since_ms),
        )
        hours: dict[tuple[Any, ...], Sums] = {}
        for row in rows:
            key = (row[0] - row[0] % _HOUR_MS, *row[1:4])
            hours.setdefault(key, Sums()).merge(Sums.of_row(row[4:]))
        return hours

    def _five_minutes(self, num: int, name: str, since_ms: int) -> list[Rollup]:
        """Out of the last raw windows, by their keys: at most RECENT of them."""
        rows = self.select(
            "SELECT c.moment_ms, w.payload FROM recent AS c JOIN win AS w ON w.device = c.device AND "
            "w.epoch = c.epoch AND w.seq = c.seq WHERE c.device = ? AND c.moment_ms >= ?",
            (num, since_ms),
        )
        rollups: dict[tuple[Any, ...], Sums] = {}
        for moment, payload in rows:
            try:
                window = parse_window(bytes(payload), name)
            except WindowError:
                continue
            key = (moment - moment % _FIVE_MS, window.model, window.version, window.profile)
            rollups.setdefault(key, Sums()).add_window(window)
        return rollups_of(rollups, 5)

    def history(
        self, model: str | None, version: str | None, profile: str | None, since_ms: int, resolution: Resolution
    ) -> list[Rollup]:
        minutes = _MINUTES[resolution]
        wanted = {"model": model, "version": version, "profile": profile}
        exact = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND b.{name} = ?" for name in exact)
        rows = self.select(
            f"{_ROLLUPS} WHERE r.device = 0 AND r.minutes = ? AND r.start_ms >= ?{where}",
            (minutes, since_ms, *exact.values()),
        )
        return rollups_of({row[:4]: Sums.of_row(row[4:]) for row in rows}, minutes)

    def events(self, name: str | None, limit: int, kinds: Sequence[str] = (), before: int | None = None) -> list[Event]:
        where: list[str] = []
        given: list[Any] = []
        if name is not None:
            where.append('d."id" = ?')
            given.append(name)
        if kinds:
            where.append(f"e.kind IN ({', '.join('?' * len(kinds))})")
            given += kinds
        if before is not None:
            where.append("e.id < ?")
            given.append(before)
        rows = self.select(
            'SELECT e.at_ms, d."id", e.kind, e.text, e.id FROM event AS e JOIN device AS d ON d.num = e.device '
            f"{'WHERE ' if where else ''}{' AND '.join(where)} ORDER BY e.id DESC LIMIT ?",
            (*given, limit),
        )
        return [Event(*row) for row in rows]

    def totals(self) -> Totals:
        ((devices, *sums),) = self.select(
            "SELECT count(*), coalesce(sum(online), 0), coalesce(sum(stored * 1.0), 0), coalesce(sum(lost * 1.0), 0), "
            "coalesce(sum(refused * 1.0), 0), coalesce(sum(waiting * 1.0), 0), "
            "coalesce(max(CASE WHEN latest_ms < seen_ms THEN latest_ms ELSE seen_ms END), 0) FROM device"
        )
        found = self.select("SELECT value FROM counter WHERE name = 'changed'")
        online, stored, lost, refused, waiting, newest_ms = (min(packed.MOST, int(n)) for n in sums)
        changed = found[0][0] if found else 0
        return Totals(devices, online, stored, lost, refused, changed, waiting, newest_ms)

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {name: (rows, size) for name, rows, size in self.select('SELECT name, "rows", bytes FROM size')}

    def windows(self, name: str) -> list[tuple[str, int]]:
        """(epoch, seq) of the raw windows that are still kept, for checks."""
        return [tuple(row) for row in self.select(
            'SELECT w.epoch, w.seq FROM win AS w JOIN device AS d ON d.num = w.device WHERE d."id" = ? '
            "ORDER BY w.epoch, w.seq", (name,),
        )]  # fmt: skip


@contextmanager
def store_errors(where: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Faults of a database as StoreError."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *faults)):
            raise
        raise StoreError(
            f"the store cannot be used ({str(error).strip()})", where=where,
            do="Check the path, its rights and the disk",
        ) from error  # fmt: skip

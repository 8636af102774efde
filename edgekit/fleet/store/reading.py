"""What pages and alerts read of the fleet's store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from edgekit.fleet.store import packed
from edgekit.fleet.store.fleet_errors import store_errors
from edgekit.fleet.store.messages import Window, parse_window
from edgekit.fleet.store.records import (
    GROUPS,
    SORTS,
    STATES,
    BoardLatency,
    Build,
    BuildBoards,
    Event,
    FleetDevice,
    GroupBy,
    GroupCount,
    Query,
    Resolution,
    Rollup,
    Totals,
)  # fmt: skip
from edgekit.fleet.store.schema import LISTED, STATE_SQL, SUMS, quoted, where_of
from edgekit.fleet.store.sums import Sums, rollups_of, select_in
from edgekit.fleet.store.writing import RECENT
from edgekit_runtime.system.errors import WindowError

_HOUR_MS = 3_600_000
_FIVE_MS = 300_000
_MINUTES = {"5m": 5, "15m": 15, "1h": 60}
_DEVICES = f"SELECT d.num, {quoted(LISTED, 'd.')} FROM device AS d"
_RECENT = "recent AS c JOIN win AS w ON w.device = c.device AND w.epoch = c.epoch AND w.seq = c.seq"
_ROLLUPS = (
    f"SELECT r.start_ms, b.model, b.version, b.profile, {quoted(SUMS, 'r.')}, r.temp, r.cpu, r.mem, r.psi, r.latency, "
    "r.stages, r.codes FROM rollup AS r JOIN build AS b ON b.num = r.build"
)


class Quarter(NamedTuple):
    """A board's quarter of an hour with one version."""

    device: str
    version: str
    start_ms: int
    sums: Sums


class StoreReader(ABC):
    """Every method may raise StoreError."""

    faults: tuple[type[Exception], ...] = ()
    """Exceptions of the database driver."""

    def __init__(self, where: str) -> None:
        """where: the file, or the server and database; no password."""
        self.where, self._lock = where, threading.RLock()

    @abstractmethod
    def execute(self, statement: str, given: Sequence[Any] = ()) -> Any:
        """Run one statement; a cursor."""

    def select(self, statement: str, given: Sequence[Any] = ()) -> list[Any]:
        with self._lock, store_errors(self.where, self.faults):
            return list(self.execute(statement, given).fetchall())

    def devices(self, query: Query) -> tuple[list[FleetDevice], int]:
        """One page of a list, and how many boards the whole list has."""
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
        """Boards of a list by state, of the fleet or of each group; the largest group first."""
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
        """Each build that runs on a board now; of one model, or of all."""
        where, given = where_of(Query(model=model))
        rows = self.select(
            f'SELECT d.model, d.version, d.profile, d.budget_ms, d.psi, d."id", d.p99, d.n FROM device AS d {where}',
            given,
        )
        builds: dict[Build, list[tuple[Any, Any, BoardLatency]]] = {}
        for name, version, profile, budget, psi, *latency in rows:
            builds.setdefault((name, version, profile), []).append((budget, psi, BoardLatency(*latency)))
        found = []
        for names, boards in builds.items():
            budgets = Counter(budget for budget, _, _ in boards if budget is not None)
            usual = max(budgets, key=lambda budget: (budgets[budget], budget), default=None)
            drifts = sorted(psi for _, psi, _ in boards if psi is not None)
            heard = tuple(board for _, _, board in boards if board.p99 is not None)
            found.append(BuildBoards(*names, usual, tuple(drifts), heard))
        return found

    def changed(self, after: int, ids: Sequence[str]) -> list[FleetDevice]:
        """Those of these boards that changed after that, by id."""
        with self._lock, store_errors(self.where, self.faults):
            found = select_in(self, f'{_DEVICES} WHERE d."id" IN ({{}})', list(ids))
            unique = {row[0]: row for row in found}
            return self._listed(sorted(
                (row for row in unique.values() if row[-1] > after), key=lambda row: row[1]
            ))  # fmt: skip

    def fleet(self, changed_after: int = -1) -> list[FleetDevice]:
        """All boards that changed after that, by id."""
        return self._listed(self.select(f'{_DEVICES} WHERE d.changed > ? ORDER BY d."id"', (changed_after,)))

    def device(self, name: str) -> FleetDevice | None:
        rows = self._listed(self.select(f'{_DEVICES} WHERE d."id" = ?', (name,)))
        return rows[0] if rows else None

    def _listed(self, rows: Sequence[Any]) -> list[FleetDevice]:
        """Rows as devices, each with its last windows."""
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
        """Of one board, the oldest first. 5m reaches back an hour, 15m 14 days, 1h 400."""
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

    def samples(self, device: str | None = None) -> Iterator[tuple[str, str, bytes]]:
        """(board, id, what was sealed) of each sample that is whole, the oldest first."""
        whole = self.select(
            'SELECT d."id", s.device, s.id FROM sample AS s JOIN device AS d ON d.num = s.device '
            'WHERE ? IN (\'\', d."id") GROUP BY d."id", s.device, s.id '
            "HAVING count(*) = min(s.parts) AND max(s.parts) = min(s.parts) ORDER BY min(s.at_ms), s.id",
            (device or "",),
        )
        for name, num, sample in whole:
            parts = self.select("SELECT data FROM sample WHERE device = ? AND id = ? ORDER BY part", (num, sample))
            yield name, sample, b"".join(bytes(data) for (data,) in parts)

    def quarters(self, names: Sequence[str], model: str, since_ms: int) -> list[Quarter]:
        """What these boards answered with a model, quarter by quarter, without stages."""
        statement = (
            f'SELECT d."id", b.version, r.start_ms, b.model, {quoted(SUMS, "r.")}, r.temp, r.cpu, r.mem, r.psi, '
            "r.latency, NULL, NULL FROM rollup AS r JOIN build AS b ON b.num = r.build JOIN device AS d ON "
            f'd.num = r.device WHERE r.minutes = 15 AND r.start_ms >= {int(since_ms)} AND d."id" IN ({{}})'
        )
        with self._lock, store_errors(self.where, self.faults):
            rows = select_in(self, statement, list(names))
        return [Quarter(*row[:3], Sums.of_row(row[4:])) for row in rows if row[3] == model]  # type: ignore[call-arg]

    def _open_hours(self, num: int, since_ms: int) -> dict[tuple[Any, ...], Sums]:
        """Hours with an unfolded quarter, from all their quarters."""
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

    def newest(self, name: str) -> Window | None:
        """The newest window of a board, as far as it is kept."""
        rows = self.select(
            f"SELECT w.payload FROM {_RECENT} JOIN device AS d ON d.num = c.device "
            'WHERE d."id" = ? ORDER BY c.moment_ms DESC LIMIT 1',
            (name,),
        )
        try:
            return parse_window(bytes(rows[0][0]), name) if rows else None
        except WindowError:
            return None

    def _five_minutes(self, num: int, name: str, since_ms: int) -> list[Rollup]:
        """From the last raw windows, at most RECENT."""
        rows = self.select(
            f"SELECT c.moment_ms, w.payload FROM {_RECENT} WHERE c.device = ? AND c.moment_ms >= ?", (num, since_ms)
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
        self, model: str | None, version: str | None, profile: str | None, since_ms: int, resolution: Resolution,
        *, stages: bool = True,
    ) -> list[Rollup]:  # fmt: skip
        """All boards by (model, version, profile), oldest first. None: any. 5m: the last 2 days."""
        minutes = _MINUTES[resolution]
        wanted = {"model": model, "version": version, "profile": profile}
        exact = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND b.{name} = ?" for name in exact)
        rows = self.select(
            f"{_ROLLUPS} WHERE r.device = 0 AND r.minutes = ? AND r.start_ms >= ?{where}",
            (minutes, since_ms, *exact.values()),
        )
        return rollups_of({row[:4]: Sums.of_row(row[4:], stages) for row in rows}, minutes)

    def events(self, name: str | None, limit: int, kinds: Sequence[str] = (), before: int | None = None) -> list[Event]:
        """The latest first. before: those with a smaller id."""
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

    def went_offline(self, since_ms: int, least: int) -> list[tuple[str, str, int]]:
        """(board, site, times) of boards that went offline so often, or more."""
        return [tuple(row) for row in self.select(
            'SELECT d."id", d.site, count(*) FROM event AS e JOIN device AS d ON d.num = e.device WHERE '
            "e.kind = 'offline' AND e.at_ms >= ? GROUP BY d.\"id\", d.site HAVING count(*) >= ?", (since_ms, least),
        )]  # fmt: skip

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
        """Rows and bytes of each table that grows."""
        return {name: (rows, size) for name, rows, size in self.select('SELECT name, "rows", bytes FROM size')}

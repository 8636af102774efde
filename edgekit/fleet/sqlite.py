"""The store in one SQLite file: what a fleet of some thousand boards needs, and nothing to install.

Raw windows are kept to be looked into and are bounded; pages read `device` and `r15`. One connection writes, in one
thread; others read.

    store = SqliteStore.open(Path("fleet.db"))
    marks = store.commit(arrivals, changes)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.fleet.errors import StoreError
from edgekit.fleet.store import (
    QUARTER_MS,
    Arrival,
    Change,
    Device,
    Event,
    Mark,
    Quarter,
    Totals,
    moment_of,
    quantiles,
    quarter_of,
)
from edgekit_runtime.telemetry import Histogram, Window

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteStore"]

RECENT = 60
_DAY_MS = 24 * 3600 * 1000
_KEEP_MS = {"win": 7 * _DAY_MS, "r15": 14 * _DAY_MS, "event": 90 * _DAY_MS}
_MOST_BYTES = 2 * 2**30
_SCHEMA = """
CREATE TABLE IF NOT EXISTS win (
    device TEXT, epoch TEXT, seq INTEGER, received_ms INTEGER, refused TEXT, payload BLOB,
    PRIMARY KEY (device, epoch, seq)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS win_received ON win (received_ms);
CREATE TABLE IF NOT EXISTS mark (
    device TEXT, epoch TEXT, hwm INTEGER, stored INTEGER, lost INTEGER, refused INTEGER,
    PRIMARY KEY (device, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS r15 (
    device TEXT, start_ms INTEGER, model TEXT, version TEXT, windows INTEGER, n INTEGER, errors INTEGER, hits INTEGER,
    misses INTEGER, host INTEGER, over INTEGER, dur_ms INTEGER, latency TEXT, p50 REAL, p95 REAL, p99 REAL, temp REAL,
    cpu REAL, mem REAL, PRIMARY KEY (device, start_ms, model, version)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS r15_start ON r15 (start_ms);
CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, at_ms INTEGER, device TEXT, kind TEXT, text TEXT);
CREATE INDEX IF NOT EXISTS event_device ON event (device, at_ms);
CREATE TABLE IF NOT EXISTS device (id TEXT PRIMARY KEY, changed INTEGER, online INTEGER, seen_ms INTEGER,
    window_s REAL, row TEXT) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS device_changed ON device (changed);
"""


class SqliteStore:
    """See the Store protocol for what each method promises."""

    def __init__(self, connection: sqlite3.Connection, where: str, most_bytes: int = _MOST_BYTES) -> None:
        self._db = connection
        self._where = where
        self._most_bytes = most_bytes
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, most_bytes: int = _MOST_BYTES) -> SqliteStore:
        """Open or make the file. Raises StoreError."""
        import sqlite3

        with _told(str(path)):
            if not path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {path.parent}")
            connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
        return cls(connection, str(path), most_bytes)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Writing.

    def commit(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
        with self._writing() as batch:
            for change in changes:
                batch.change(change)
            groups: dict[tuple[str, str], list[Arrival]] = {}
            for arrival in arrivals:
                groups.setdefault((arrival.device, arrival.epoch), []).append(arrival)
            marks = [batch.arrive(*key, group) for key, group in groups.items()]
            batch.finish()
        return marks

    def look_for_silence(self, now_ms: int) -> int:
        with self._writing() as batch:
            silent = self._db.execute(
                "SELECT id FROM device WHERE online = 1 AND seen_ms < ? - max(2500 * window_s, 3000)", (now_ms,)
            ).fetchall()
            for (name,) in silent:
                batch.offline(name, now_ms, "has not reported for two and a half windows")
            batch.finish()
        return len(silent)

    def prune(self, now_ms: int) -> None:
        with self._writing():
            for table, column in (("win", "received_ms"), ("r15", "start_ms"), ("event", "at_ms")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} < ?", (now_ms - _KEEP_MS[table],))
            while self._bytes() > self._most_bytes:
                gone = self._db.execute(
                    "DELETE FROM win WHERE (device, epoch, seq) IN (SELECT device, epoch, seq FROM win ORDER BY "
                    "received_ms LIMIT 1000)"
                ).rowcount
                if not gone:
                    break

    def _bytes(self) -> int:
        page, pages, free = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
        return int(page * (pages - free))

    @contextmanager
    def _writing(self) -> Iterator[_Batch]:
        with self._lock, _told(self._where):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield _Batch(self._db, self._advance)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def _advance(self, device: str, epoch: str, hwm: int) -> int:
        """The largest seq up to which nothing is missing above hwm."""
        rows = self._db.execute(
            "SELECT seq FROM win WHERE device = ? AND epoch = ? AND seq > ? ORDER BY seq", (device, epoch, hwm)
        )
        for (seq,) in rows:
            if seq != hwm + 1:
                break
            hwm = seq
        return hwm

    # Reading.

    def fleet(self, changed_after: int = -1) -> list[Device]:
        rows = self._read("SELECT row FROM device WHERE changed > ? ORDER BY id", (changed_after,))
        return [_device(row) for (row,) in rows]

    def device(self, name: str) -> Device | None:
        rows = self._read("SELECT row FROM device WHERE id = ?", (name,))
        return _device(rows[0][0]) if rows else None

    def quarters(self, name: str, since_ms: int) -> list[Quarter]:
        rows = self._read(
            "SELECT start_ms, model, version, windows, n, errors, hits, misses, host, over, "
            "1000.0 * n / max(dur_ms, 1), p50, p95, p99, temp, cpu, mem FROM r15 WHERE device = ? AND start_ms >= ? "
            "ORDER BY start_ms, windows",
            (name, since_ms),
        )
        return [Quarter(*row) for row in rows]

    def events(self, name: str | None, limit: int) -> list[Event]:
        where, given = ("WHERE device = ?", (name, limit)) if name is not None else ("", (limit,))
        rows = self._read(f"SELECT at_ms, device, kind, text FROM event {where} ORDER BY id DESC LIMIT ?", given)
        return [Event(*row) for row in rows]

    def totals(self) -> Totals:
        ((devices, online),) = self._read("SELECT count(*), coalesce(sum(online), 0) FROM device")
        ((windows, lost, refused),) = self._read(
            "SELECT coalesce(sum(stored), 0), coalesce(sum(lost), 0), coalesce(sum(refused), 0) FROM mark"
        )
        return Totals(devices, online, windows, lost, refused)

    def windows(self, name: str) -> list[tuple[str, int]]:
        """(epoch, seq) of the raw windows that are still kept, for checks."""
        return list(self._read("SELECT epoch, seq FROM win WHERE device = ? ORDER BY epoch, seq", (name,)))

    def _read(self, statement: str, given: Iterable[Any] = ()) -> list[Any]:
        with self._lock, _told(self._where):
            return self._db.execute(statement, tuple(given)).fetchall()


class _Batch:
    """One transaction's worth of changes: rows are read once, changed in memory, written at the end."""

    def __init__(self, connection: sqlite3.Connection, advance: Any) -> None:
        self._db = connection
        self._advance = advance
        self._rows: dict[str, Device] = {}
        self._fresh: dict[str, list[Arrival]] = {}

    def change(self, change: Change) -> None:
        """A birth makes a device, and a later death of the same boot ends it."""
        state, name, now = change.state, change.device, change.received_ms
        row = self._row(name)
        if state.birth is None:
            if row.epoch == state.epoch and state.boot >= row.boot and row.online:
                self.offline(name, now, "is gone")
            return
        birth = state.birth
        if row.model and (row.model, row.version) != (birth.model, birth.version):
            self._event(now, name, "model", f"runs {birth.model} {birth.version} instead of {row.model} {row.version}")
        if row.epoch and row.epoch != state.epoch:
            self._event(now, name, "epoch", "began a new spool")
        elif row.boot and state.boot > row.boot:
            self._event(now, name, "boot", "started again")
        known = row.seen_ms > 0
        self._rows[name] = replace(
            row, epoch=state.epoch, boot=state.boot, software=birth.software, model=birth.model, version=birth.version,
            sha=birth.sha, profile=birth.profile, hardware=birth.hardware, budget_ms=birth.budget_ms,
            window_s=birth.window_s,
        )  # fmt: skip
        if not known or not change.retained:
            self._online(name, now)

    def arrive(self, device: str, epoch: str, arrivals: list[Arrival]) -> Mark:
        """Store what is new of one epoch, and move its mark."""
        found = self._db.execute(
            "SELECT hwm, stored, lost, refused FROM mark WHERE device = ? AND epoch = ?", (device, epoch)
        ).fetchone()
        arrivals.sort(key=lambda arrival: arrival.seq)
        hwm, stored, lost, refused = found or (arrivals[0].floor - 1, 0, 0, 0)
        floor = 0
        for arrival in arrivals:
            floor = max(floor, arrival.floor)
            if arrival.seq <= hwm or not self._insert(arrival):
                continue
            stored += 1
            self._fresh.setdefault(device, []).append(arrival)
            if arrival.window is None:
                refused += 1
                if refused == 1:
                    self._event(
                        arrival.received_ms, device, "refused", f"sent a window that was refused: {arrival.refused}"
                    )
        if floor - 1 > hwm:
            gone = floor - 1 - hwm - self._count(device, epoch, hwm, floor)
            hwm = floor - 1
            if gone:
                lost += gone
                self._event(arrivals[-1].received_ms, device, "lost", f"gave up {gone} windows")
        hwm = self._advance(device, epoch, hwm)
        self._db.execute(
            "INSERT INTO mark VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET hwm = excluded.hwm, stored = "
            "excluded.stored, lost = excluded.lost, refused = excluded.refused",
            (device, epoch, hwm, stored, lost, refused),
        )
        last = arrivals[-1]
        waiting = self._row(device).waiting
        if last.window is not None:
            seal = last.window.seal
            waiting = max(0, seal.floor - 1 + seal.spooled - hwm)
        self._rows[device] = replace(self._row(device), lost=lost, refused=refused, waiting=waiting)
        self._online(device, last.received_ms)
        return Mark(device, epoch, hwm)

    def offline(self, name: str, now_ms: int, why: str) -> None:
        row = self._row(name)
        self._rows[name] = replace(row, online=False, since_ms=now_ms)
        self._event(now_ms, name, "offline", why)

    def finish(self) -> None:
        """Roll up what is new, and write the rows that changed."""
        for name, arrivals in self._fresh.items():
            self._roll_up(name, [(a, a.window) for a in arrivals if a.window is not None])
        if not self._rows:
            return
        (changed,) = self._db.execute("SELECT coalesce(max(changed), 0) + 1 FROM device").fetchone()
        for name, row in self._rows.items():
            if not row.seen_ms:
                continue
            value = json.dumps(asdict(replace(row, changed=changed)))
            self._db.execute(
                "INSERT INTO device VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET changed = excluded.changed, "
                "online = excluded.online, seen_ms = excluded.seen_ms, window_s = excluded.window_s, row = "
                "excluded.row",
                (name, changed, int(row.online), row.seen_ms, row.window_s, value),
            )

    def _roll_up(self, name: str, arrived: list[tuple[Arrival, Window]]) -> None:
        if not arrived:
            return
        quarters: dict[tuple[int, str, str], list[Window]] = {}
        points = []
        for arrival, window in arrived:
            moment = moment_of(window, arrival.received_ms)
            quarters.setdefault((quarter_of(moment), window.model, window.version), []).append(window)
            figures = [None if q is None else round(q, 3) for q in quantiles(window.latency, (0.5, 0.95, 0.99))]
            points.append([moment, *figures, round(1000.0 * window.n / window.dur_ms, 2), window.system.temp])
        for (start, model, version), windows in quarters.items():
            self._add_to_quarter(name, start, (model, version), windows)
        last, newest = arrived[-1]
        system = newest.system
        row = self._row(name)
        row = replace(
            row, model=newest.model, version=newest.version, sha=newest.sha, profile=newest.profile,
            epoch=row.epoch or newest.seal.epoch, boot=max(row.boot, newest.boot), temp=system.temp, cpu=system.cpu,
            mem=system.mem, throttled=system.thr, disk=system.disk,
            recent=sorted([*row.recent, *points], key=lambda point: point[0])[-RECENT:],
        )  # fmt: skip
        self._rows[name] = replace(row, **self._lately(row, last.received_ms))

    def _add_to_quarter(self, name: str, start: int, model: tuple[str, str], windows: list[Window]) -> None:
        key = (name, start, *model)
        found = self._db.execute(
            "SELECT windows, n, errors, hits, misses, host, over, dur_ms, latency, temp, cpu, mem FROM r15 "
            "WHERE device = ? AND start_ms = ? AND model = ? AND version = ?",
            key,
        ).fetchone() or (0, 0, 0, 0, 0, 0, 0, 0, "{}", None, None, None)
        latency = _latency(found[8])
        counts = list(found[:8])
        hottest, cpu, mem = found[9:]
        for window in windows:
            given = (
                1, window.n, window.errors, window.hits, window.misses or 0, window.host, window.over_budget,
                window.dur_ms
            )  # fmt: skip
            counts = [have + more for have, more in zip(counts, given, strict=True)]
            for source, histogram in window.latency.items():
                latency.setdefault(source, Histogram()).merge(histogram)
            hottest = _largest(hottest, window.system.temp)
            cpu, mem = _largest(cpu, window.system.cpu), _largest(mem, window.system.mem)
        text = json.dumps({source: histogram.wire() for source, histogram in latency.items()}, separators=(",", ":"))
        self._db.execute(
            "INSERT OR REPLACE INTO r15 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, *counts, text, *quantiles(latency, (0.5, 0.95, 0.99)), hottest, cpu, mem),
        )

    def _lately(self, row: Device, now_ms: int) -> dict[str, Any]:
        """The figures of the present quarter of an hour and the one before, of the model that runs now."""
        found = self._db.execute(
            "SELECT n, errors, hits, misses, host, over, dur_ms, latency FROM r15 WHERE device = ? AND start_ms >= ? "
            "AND model = ? AND version = ?",
            (row.id, quarter_of(now_ms) - QUARTER_MS, row.model, row.version),
        ).fetchall()
        if not found:
            return {}
        latency: dict[str, Histogram] = {}
        for quarter in found:
            for source, histogram in _latency(quarter[7]).items():
                latency.setdefault(source, Histogram()).merge(histogram)
        n, errors, hits, misses, host, over, dur_ms = (sum(quarter[i] for quarter in found) for i in range(7))
        p50, p95, p99 = quantiles(latency, (0.5, 0.95, 0.99))
        return {
            "n": n, "errors": errors, "hits": hits, "misses": misses, "host": host, "over": over, "p50": p50,
            "p95": p95,
            "p99": p99, "rate": 1000.0 * n / dur_ms if dur_ms else None,
        }  # fmt: skip

    def _insert(self, arrival: Arrival) -> bool:
        """Whether it was new."""
        return bool(
            self._db.execute(
                "INSERT OR IGNORE INTO win VALUES (?, ?, ?, ?, ?, ?)",
                (
                    arrival.device, arrival.epoch, arrival.seq, arrival.received_ms, arrival.refused or None,
                    arrival.payload if arrival.window is not None else None,
                ),
            ).rowcount
        )  # fmt: skip

    def _count(self, device: str, epoch: str, above: int, below: int) -> int:
        (n,) = self._db.execute(
            "SELECT count(*) FROM win WHERE device = ? AND epoch = ? AND seq > ? AND seq < ?",
            (device, epoch, above, below),
        ).fetchone()
        return int(n)

    def _row(self, name: str) -> Device:
        if name not in self._rows:
            found = self._db.execute("SELECT row FROM device WHERE id = ?", (name,)).fetchone()
            self._rows[name] = _device(found[0]) if found else Device(name)
        return self._rows[name]

    def _online(self, name: str, now_ms: int) -> None:
        row = self._row(name)
        if not row.online:
            self._event(now_ms, name, "online", "reports again" if row.seen_ms else "reports for the first time")
            row = replace(row, online=True, since_ms=now_ms)
        self._rows[name] = replace(row, seen_ms=max(now_ms, row.seen_ms))

    def _event(self, at_ms: int, device: str, kind: str, text: str) -> None:
        self._db.execute(
            "INSERT INTO event (at_ms, device, kind, text) VALUES (?, ?, ?, ?)", (at_ms, device, kind, text)
        )


_FIELDS = {field.name for field in fields(Device)}


def _device(row: str) -> Device:
    """Unknown keys, of a later release, are left out."""
    return Device(**{name: value for name, value in json.loads(row).items() if name in _FIELDS})


def _latency(text: str) -> dict[str, Histogram]:
    return {source: Histogram.from_wire(wire) for source, wire in json.loads(text).items()}


def _largest(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None


@contextmanager
def _told(where: str) -> Iterator[None]:
    import sqlite3

    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"the store cannot be used ({error})", where=where, do="Check the path, its rights and the disk"
        ) from error

"""Roll-ups on their way into a store and out of it: sums of windows and their rows.

The bytes of each row are counted, so that tables keep their bounds.

    sums = Sums.of_row(row)
    sums.add_window(window)
    sizes = write_rollups(database, {(device, 15, start_ms, build): (sums, bytes_before)})
    grow(database, sizes)

Rules:
- a roll-up's key is (device, minutes, start_ms, build); device 0 is the whole fleet;
- a count stops at 2^53 - 1, and a roll-up names at most 32 error codes;
- every row that is written counts in `size`, by which tables are bounded.

Prune a fleet's store: rows past their days, the oldest beyond a table's bytes.

Forgotten boards leave it, too.

    with store.writing():
        prune(store, BOUNDS, now_ms)
        forget(store, "porch-1")

Rules:
- both are part of the transaction in which they are called;
- bounds in bytes go by the counters in `size`, which every deletion here reduces by what it deletes;
- no deletion decides what counts as stored: `mark` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from edgekit.fleet.store import packed
from edgekit.fleet.store.messages import Window
from edgekit.fleet.store.records import Rollup
from edgekit.fleet.store.schema import ADD_TO_COUNTER, FORGOTTEN, ROLLUP, SIZE, SUMS, Bound, quoted
from edgekit_runtime.system.strict_json import load_json

_MOST = packed.MOST
_CHUNK = 250


class ReadDatabase(Protocol):
    """A connection: one transaction at a time. `?` stands for a value."""

    def execute(self, statement: str, given: Sequence[Any] = ()) -> Any: ...


class Database(ReadDatabase, Protocol):
    def many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None: ...


def select_in(database: ReadDatabase, statement: str, values: Sequence[Any], width: int = 1) -> list[Any]:
    """Rows of a statement whose {} is a list of values or of rows of `width` integers."""
    found: list[Any] = []
    for start in range(0, len(values), _CHUNK):
        some = list(values[start : start + _CHUNK])
        size = next(size for size in (1, 10, 50, _CHUNK) if size >= len(some))
        some += [some[-1]] * (size - len(some))
        if width == 1:
            marks, given = ", ".join("?" * size), some
        else:
            one = "(" + ", ".join(["CAST(? AS BIGINT)"] * width) + ")"
            marks, given = ", ".join([one] * size), [value for row in some for value in row]
        found += database.execute(statement.replace("{}", marks), given).fetchall()
    return found


class Sums:
    """A roll-up while windows are added to it. largest: of a window, LARGEST."""

    __slots__ = ("codes", "counts", "largest", "latency", "stages")

    def __init__(self) -> None:
        self.counts = [0] * len(SUMS)
        self.largest: list[float | None] = [None] * 4
        self.latency: packed.Bins = {}
        self.stages: packed.Bins = {}
        self.codes: dict[str, int] = {}

    @classmethod
    def of_row(cls, row: Sequence[Any], whole: bool = True) -> Sums:
        """row: SUMS, temp, cpu, mem, psi, latency, stages, codes. whole: with the stages."""
        made = cls()
        n = len(SUMS)
        made.counts = list(row[:n])
        made.largest = list(row[n : n + 4])
        made.latency = packed.unpack(row[n + 4])
        if row[n + 5] and whole:
            made.stages = packed.unpack(row[n + 5])
        if row[n + 6]:
            made.codes = load_json(row[n + 6])
        return made

    def row(self) -> tuple[Any, ...]:
        return (
            *[min(n, _MOST) for n in self.counts], *self.largest,
            packed.pack(self.latency), packed.pack(self.stages) if self.stages else None,
            json.dumps(self.codes) if self.codes else None,
        )  # fmt: skip

    def add_window(self, window: Window) -> None:
        given = (
            1, window.dur_ms, window.n, window.errors, window.hits, window.misses or 0, window.host,
            window.over_budget, window.refused_by_budget, window.compared, window.differed,
            window.clipped, window.values, window.dropped,
        )  # fmt: skip
        self.counts = [have + more for have, more in zip(self.counts, given)]  # noqa: B905 - as long
        system = window.system
        self._raise((system.temp, system.cpu, system.mem, window.psi))
        for source, h in window.latency.items():
            packed.add(self.latency, source, h.scale, h.zeros, h.buckets)
        for stage, h in window.stages.items():
            packed.add(self.stages, stage, h.scale, h.zeros, h.buckets)
        for code, n in window.error_codes.items():
            self._count(code, n)

    def merge(self, other: Sums) -> None:
        self.counts = [have + more for have, more in zip(self.counts, other.counts)]  # noqa: B905 - as long
        self._raise(other.largest)
        packed.merge(self.latency, other.latency)
        packed.merge(self.stages, other.stages)
        for code, n in other.codes.items():
            self._count(code, n)

    def _count(self, code: str, n: int) -> None:
        if code not in self.codes and len(self.codes) >= 32:
            code = "other"
        self.codes[code] = min(_MOST, self.codes.get(code, 0) + n)

    def _raise(self, values: Sequence[float | None]) -> None:
        for place, value in enumerate(values):
            most = self.largest[place]
            if value is not None and (most is None or value > most):
                self.largest[place] = value


LARGEST = ("temp", "cpu", "mem", "psi")
_VALUES = (*SUMS, *LARGEST, "latency", "stages", "codes")
READ_ROLLUPS = (
    f"SELECT r.device, r.minutes, r.start_ms, r.build, {quoted(_VALUES, 'r.')} FROM (VALUES {{}}) AS k "
    "CROSS JOIN rollup AS r WHERE r.device = k.column1 AND r.minutes = k.column2 AND r.start_ms = k.column3 "
    "AND r.build = k.column4"
)
_WRITE_SIZE = (
    f'{SIZE.insert()} ON CONFLICT (name) DO UPDATE SET "rows" = size."rows" + excluded."rows", '
    "bytes = size.bytes + excluded.bytes"
)
NAMES = {5: "r5", 15: "r15", 60: "r1h"}
FLEET_NAMES = {5: "r5", 15: "m15", 60: "m1h"}
ROW_BYTES = {"win": 64, "rollup": 90, "event": 48, "mark": 80, "sample": 60}
Key = tuple[int, int, int, int]
"""device, minutes, start_ms, build."""


def grow(database: Database, sizes: dict[str, tuple[int, int]]) -> None:
    """Record added rows and bytes."""
    if sizes:
        database.many(_WRITE_SIZE, [(name, rows, size) for name, (rows, size) in sizes.items()])


def write_rollups(database: Database, rollups: dict[Key, tuple[Sums, int]]) -> dict[str, tuple[int, int]]:
    """Write roll-ups; returns the growth of each size.

    rollups: key -> sums, and bytes of the row that is replaced, or -1."""
    rows: list[tuple[Any, ...]] = []
    sizes: dict[str, tuple[int, int]] = {}
    for key, (sums, before) in rollups.items():
        row = sums.row()
        rows.append((*key, *row, 0 if key[0] and key[1] == 15 else 1))
        name = NAMES[key[1]] if key[0] else FLEET_NAMES[key[1]]
        more, bytes_more = sizes.get(name, (0, 0))
        size = len(row[-3]) + len(row[-2] or b"")
        new = before < 0
        sizes[name] = (more + new, bytes_more + size + (ROW_BYTES["rollup"] if new else -before))
    if rows:
        database.many(ROLLUP.write(), rows)
    return sizes


def rollups_of(found: Mapping[tuple[Any, ...], Sums], minutes: int) -> list[Rollup]:
    """Roll-ups as the pages read them, the oldest first.

    found: (start_ms, model, version, profile) -> sums.
    """
    made = []
    for (start, model, version, profile), sums in sorted(
        found.items(), key=lambda item: (item[0][0], item[1].counts[0], item[0])
    ):
        figures: dict[str, Any] = dict(zip((*SUMS, *LARGEST), (*sums.counts, *sums.largest), strict=True))
        made.append(Rollup(
            start, minutes * 60_000, model, version, profile, **figures, error_codes=sums.codes,
            latency=packed.histograms(sums.latency), stages=packed.histograms(sums.stages),
        ))  # fmt: skip
    return made


_DAY_MS = 24 * 3600 * 1000
_AT_ONCE = 20_000
_SIZES = {
    "win": "coalesce(length(payload), 0)",
    "event": "length(text)",
    "sample": "length(data)",
    "mark": "0",
    "rollup": "length(latency) + coalesce(length(stages), 0)",
}
"""Bytes of a row, on top of ROW_BYTES."""


def prune(database: Database, bounds: Mapping[str, Bound], now_ms: int) -> None:
    """Delete rows beyond their days or bytes, then builds without roll-ups."""
    for table, column in (("win", "received_ms"), ("event", "at_ms"), ("mark", "seen_ms"), ("sample", "at_ms")):
        _trim(database, table, table, column, bounds[table], now_ms)
    for names, device in ((NAMES, "device > 0"), (FLEET_NAMES, "device = 0")):
        for minutes, name in names.items():
            where = f"minutes = {minutes} AND {device}"
            _trim(database, name, "rollup", "start_ms", bounds[name], now_ms, where)
    database.execute("DELETE FROM forgotten WHERE at_ms < ?", (now_ms - int(bounds["mark"].days * _DAY_MS),))
    database.execute("DELETE FROM build WHERE NOT EXISTS (SELECT 1 FROM rollup WHERE rollup.build = build.num)")


def forget(database: Database, name: str, now_ms: int) -> bool:
    """Delete a board and its history; only a live message brings it back. False if unknown."""
    found = database.execute('SELECT num FROM device WHERE "id" = ?', (name,)).fetchone()
    if found is None:
        return False
    num = found[0]
    for table in ("win", "mark", "event", "sample"):
        _delete(database, table, table, "device = ?", num)
    for minutes in (15, 60):
        _delete(database, NAMES[minutes], "rollup", f"minutes = {minutes} AND device = ?", num)
    for table in ("recent", "shadow"):
        database.execute(f"DELETE FROM {table} WHERE device = ?", (num,))
    database.execute("DELETE FROM device WHERE num = ?", (num,))
    database.execute(FORGOTTEN.write(), (name, now_ms, 0))
    database.execute(ADD_TO_COUNTER, ("changed", 1))
    return True


def delete_samples(database: Database, device: str | None) -> int:
    """Of a board, or of all; how many parts those were."""
    (before,) = database.execute("SELECT count(*) FROM sample").fetchone()
    for (num,) in database.execute("SELECT num FROM device WHERE ? IN ('', \"id\")", (device or "",)).fetchall():
        _delete(database, "sample", "sample", "device = ?", num)
    return int(before - database.execute("SELECT count(*) FROM sample").fetchone()[0])


def _trim(
    database: Database, name: str, table: str, column: str, bound: Bound, now_ms: int, where: str = "1 = 1"
) -> None:
    """Delete what is too old, then the oldest until the rest is within its bytes."""
    _delete(database, name, table, f"{where} AND {column} < ?", now_ms - int(bound.days * _DAY_MS))
    while True:
        size = database.execute('SELECT "rows", bytes FROM size WHERE name = ?', (name,)).fetchone()
        rows, total = size or (0, 0)
        if total <= bound.bytes or rows <= 0:
            break
        enough = min(_AT_ONCE, int((total - bound.bytes) * rows / total))
        found = database.execute(
            f"SELECT {column} FROM {table} WHERE {where} ORDER BY {column} LIMIT 1 OFFSET {enough}"
        ).fetchone()
        if found is None:
            break
        _delete(database, name, table, f"{where} AND {column} < ?", found[0] + 1)


def _delete(database: Database, name: str, table: str, where: str, limit: int) -> None:
    rows, total = database.execute(
        f"SELECT count(*), coalesce(sum({_SIZES[table]}), 0) FROM {table} WHERE {where}", (limit,)
    ).fetchone()
    if rows:
        database.execute(f"DELETE FROM {table} WHERE {where}", (limit,))
        grow(database, {name: (-rows, -int(total) - rows * ROW_BYTES[table])})

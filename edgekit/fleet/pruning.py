"""Prune a fleet's store: rows past their days, the oldest beyond a table's bytes.

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

from collections.abc import Mapping

from edgekit.fleet.schema import Bound
from edgekit.fleet.sums import FLEET_NAMES, NAMES, ROW_BYTES, Database, grow

_DAY_MS = 24 * 3600 * 1000
_AT_ONCE = 20_000
_SIZES = {
    "win": "coalesce(length(payload), 0)",
    "event": "length(text)",
    "mark": "0",
    "rollup": "length(latency) + coalesce(length(stages), 0)",
}
"""Bytes of a row, beside ROW_BYTES."""


def prune(database: Database, bounds: Mapping[str, Bound], now_ms: int) -> None:
    """Delete what is beyond its days or its bytes; then the names of builds that no roll-up has."""
    _trim(database, "win", "win", "received_ms", bounds, now_ms)
    _trim(database, "event", "event", "at_ms", bounds, now_ms)
    _trim(database, "mark", "mark", "seen_ms", bounds, now_ms)
    for minutes, name in NAMES.items():
        if minutes != 5:
            _trim(database, name, "rollup", "start_ms", bounds, now_ms, f"minutes = {minutes} AND device > 0")
    for minutes, name in FLEET_NAMES.items():
        _trim(database, name, "rollup", "start_ms", bounds, now_ms, f"minutes = {minutes} AND device = 0")
    database.execute("DELETE FROM build WHERE NOT EXISTS (SELECT 1 FROM rollup WHERE rollup.build = build.num)")


def forget(database: Database, name: str) -> bool:
    """Delete a board and all that is known of it. False if there is none."""
    found = database.execute('SELECT num FROM device WHERE "id" = ?', (name,)).fetchone()
    if found is None:
        return False
    num = found[0]
    for table in ("win", "mark", "event"):
        _delete(database, table, table, "device = ?", num)
    for minutes in (15, 60):
        _delete(database, NAMES[minutes], "rollup", f"minutes = {minutes} AND device = ?", num)
    database.execute("DELETE FROM recent WHERE device = ?", (num,))
    database.execute("DELETE FROM device WHERE num = ?", (num,))
    database.execute("UPDATE counter SET value = value + 1 WHERE name = 'changed'")
    return True


def _trim(
    database: Database, name: str, table: str, column: str, bounds: Mapping[str, Bound], now_ms: int,
    where: str = "1 = 1",
) -> None:  # fmt: skip
    """Delete what is too old, then the oldest until the rest is within its bytes."""
    bound = bounds[name]
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

"""The tables of a fleet's store, for every database, and how much of each is kept.

Rules:
- a device and a (model, version, profile) are small integers in every other table;
- `device` has a column for each figure of a list, and nothing that grows;
- `mark` knows which windows are stored by itself, as ranges, so `win` may be pruned at any place;
- `rollup` holds all roll-ups: of a device, or with device 0 of the whole fleet; `minutes` is 5, 15 or 60;
- each table that grows is bounded in days and in bytes; `build` goes with the last roll-up that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from edgekit.fleet.store.records import FleetDevice, Query

VERSION = 5
"""Stores of before, from OLDEST on, are migrated: see `migrations`."""
OLDEST = 2
_DAY_MS = 24 * 3600 * 1000
LISTED = tuple(field.name for field in fields(FleetDevice) if field.name != "recent")
"""The fields of Device, all columns of the table."""
DEVICE_COLUMNS = ("num", *LISTED, "born_epoch", "born_boot", "latest_ms", "figures_ms")
"""born_*: of the last birth. latest_ms: when its newest window ended. figures_ms: arrival of the last figures."""
SUMS = (
    "windows", "dur_ms", "n", "errors", "hits", "misses", "host", "over", "blocked", "compared", "differed", "clipped",
    "values", "dropped",
)  # fmt: skip
"""Columns of a roll-up that add."""

STATE_SQL = {
    "online": "d.online = 1",
    "offline": "d.online = 0",
    "late": 'd."over" * 100 > d.n',
    "hot": "((d.throttled & 15) > 0 OR d.temp >= 80)",
    "drifting": "d.psi > 0.2",
    "lagging": "d.waiting * d.window_s > 3600",
    "failing": "d.errors * 20 > d.n + d.errors",
    "losing": "d.lost > 0",
}
"""State of a board -> the condition on `device AS d`."""


@dataclass(frozen=True)
class Bound:
    """What of one table is kept, whichever is less."""

    days: float
    bytes: int


BOUNDS: Mapping[str, Bound] = {
    "win": Bound(7, 2 << 30),
    "r5": Bound(2, 256 << 20),
    "r15": Bound(14, 6 << 30),
    "r1h": Bound(400, 4 << 30),
    "m15": Bound(14, 256 << 20),
    "m1h": Bound(400, 256 << 20),
    "event": Bound(90, 256 << 20),
    "mark": Bound(400, 256 << 20),
    "sample": Bound(30, 1 << 30),
}
"""r: roll-ups of devices, m: of the fleet, as r5 is, too."""


def quoted(names: Sequence[str], before: str = "") -> str:
    return ", ".join(f'{before}"{name}"' for name in names)


@dataclass(frozen=True)
class StoreTable:
    """spec: `name word, ...` of each column, in the schema's words. key: of a row."""

    name: str
    spec: str
    key: str
    clustered: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.split(" ")[0] for column in self.spec.split(", "))

    def create(self) -> str:
        """With {int}, {real}, {text}, {blob} and {clustered} to be filled in."""
        columns = ", ".join('"{}" {{{}}}'.format(*column.split(" ")) for column in self.spec.split(", "))
        clustered = "{clustered}" if self.clustered else ""
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, PRIMARY KEY ({self.key})){clustered}"

    def insert(self) -> str:
        return f"INSERT INTO {self.name} ({quoted(self.columns)}) VALUES ({', '.join('?' * len(self.columns))})"

    def write(self, *fixed: str, where: str = "") -> str:
        """Insert a row, or replace what it has under its key, less the `fixed` columns."""
        kept = (*self.key.split(", "), *fixed)
        changed = ", ".join(f'"{name}" = excluded."{name}"' for name in self.columns if name not in kept)
        return f"{self.insert()} ON CONFLICT ({self.key}) DO UPDATE SET {changed}{where}"


_WORDS = {"bool": "int", "int": "int", "float": "real", "str": "text"}
_KINDS = {field.name: _WORDS[str(field.type).split(" ")[0]] for field in fields(FleetDevice) if field.name in LISTED}
_KINDS |= {"num": "int", "born_epoch": "text", "born_boot": "int", "latest_ms": "int", "figures_ms": "int"}
DEVICE = StoreTable("device", ", ".join(f"{name} {_KINDS[name]}" for name in DEVICE_COLUMNS), "num", clustered=False)
BUILD = StoreTable("build", "num int, model text, version text, profile text", "num", clustered=False)
MARK = StoreTable(
    "mark", "device int, epoch text, hwm int, ahead text, stored int, gap int, dropped int, refused int, seen_ms int",
    "device, epoch",
)  # fmt: skip
WIN = StoreTable(
    "win", "device int, epoch text, seq int, received_ms int, refused text, payload blob", "device, epoch, seq"
)
RECENT_WINDOWS = StoreTable(
    "recent", "device int, slot int, moment_ms int, epoch text, seq int, p50 real, p95 real, p99 real, rate real, "
    "temp real", "device, slot",
)  # fmt: skip
ROLLUP = StoreTable(
    "rollup",
    f"device int, minutes int, start_ms int, build int, {', '.join(f'{name} int' for name in SUMS)}, temp real, "
    "cpu real, mem real, psi real, latency blob, stages blob, codes text, folded int",
    "device, minutes, start_ms, build",
)
SHADOW = StoreTable(
    "shadow", "device int, sha text, n int, same int, skipped int, ratios text, ms real, mb real, psi real, "
    "rests text, at_ms int", "device, sha",
)  # fmt: skip
"""Answers in silence, since the last roll-out of that bundle began; of each board the last MOST_SHADOWS bundles."""
SAMPLE_PART = StoreTable("sample", "device int, id text, part int, parts int, data blob, at_ms int", "device, id, part")
"""Parts of samples as they came, encrypted; a sample is whole when it has `parts`."""
SIZE = StoreTable("size", "name text, rows int, bytes int", "name")
FORGOTTEN = StoreTable("forgotten", "device text, at_ms int, cleared int", "device")
"""Boards whose retained birth is not to bring them back. cleared: the broker has dropped it."""
_COUNTER = StoreTable("counter", "name text, value int", "name")
SET_COUNTER = _COUNTER.write()
ADD_TO_COUNTER = f"{_COUNTER.insert()} ON CONFLICT (name) DO UPDATE SET value = counter.value + excluded.value"
"""Given a name and a number."""
DDL = (
    *(table.create() for table in (
        DEVICE, BUILD, MARK, WIN, RECENT_WINDOWS, ROLLUP, SHADOW, SAMPLE_PART, SIZE, FORGOTTEN, _COUNTER,
    )),
    "CREATE TABLE IF NOT EXISTS event (id {id}, at_ms {int}, device {int}, kind {text}, text {text})",
    "CREATE UNIQUE INDEX IF NOT EXISTS device_id ON device (id)",
    "CREATE UNIQUE INDEX IF NOT EXISTS build_names ON build (model, version, profile)",
    "CREATE INDEX IF NOT EXISTS win_received ON win (received_ms)",
    "CREATE INDEX IF NOT EXISTS rollup_start ON rollup (minutes, start_ms)",
    "CREATE INDEX IF NOT EXISTS rollup_build ON rollup (build)",
    "CREATE INDEX IF NOT EXISTS rollup_open ON rollup (start_ms) WHERE folded = 0",
    "CREATE INDEX IF NOT EXISTS event_device ON event (device, id)",
    "CREATE INDEX IF NOT EXISTS event_kind ON event (kind, at_ms)",
)  # fmt: skip


def where_of(query: Query) -> tuple[str, tuple[Any, ...]]:
    """(the WHERE clause of a list on `device AS d`, what it is given)"""
    parts: list[str] = []
    given: list[Any] = []
    if query.text:
        columns = ("id", "model", "version", "profile", "site", "group")
        joined = " || ' ' || ".join(f'd."{name}"' for name in columns)
        parts.append(f"lower({joined}) LIKE ? ESCAPE '!'")
        escaped = query.text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        given.append(f"%{escaped}%")
    if query.state:
        if query.state not in STATE_SQL:
            raise ValueError(f"{query.state!r} is none of STATES")
        if query.state == "lagging":
            parts.append("d.waiting * d.window_s > ?")
            given.append(query.lag_s)
        else:
            parts.append(STATE_SQL[query.state])
    for name in ("site", "group", "model", "version", "profile"):
        if getattr(query, name) is not None:
            parts.append(f'd."{name}" = ?')
            given.append(getattr(query, name))
    return ("WHERE " + " AND ".join(parts) if parts else "", tuple(given))

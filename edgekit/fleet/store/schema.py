"""The tables of a fleet's store, for every database, and how much of each is kept.

Rules:
- a device and a (model, version, profile) are small integers in every other table;
- `device` has a column for each figure of a list, and nothing that grows;
- `mark` knows which windows are stored by itself, as ranges, so `win` may be pruned at any place;
- `rollup` holds all roll-ups: of a device, or with device 0 of the whole fleet; `minutes` is 5, 15 or 60;
- each table that grows is bounded in days and in bytes; `build` goes with the last roll-up that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgekit.fleet.store.store import FleetDevice, Query

VERSION = 2
_DAY_MS = 24 * 3600 * 1000
_TYPES = {bool: "{int}", int: "{int}", float: "{real}", str: "{text}"}
LISTED = tuple(field.name for field in fields(FleetDevice) if field.name != "recent")
"""The fields of Device, all columns of the table."""
DEVICE_COLUMNS = ("num", *LISTED, "born_epoch", "born_boot", "latest_ms", "figures_ms")
"""born_*: of the last birth. latest_ms: when its newest window ended. figures_ms: arrival of the last figures."""
SUMS = (
    "windows", "dur_ms", "n", "errors", "hits", "misses", "host", "over", "blocked", "compared", "differed", "clipped",
    "values",
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
}
"""r: roll-ups of devices, m: of the fleet, as r5 is, too."""


def quoted(names: tuple[str, ...], before: str = "") -> str:
    return ", ".join(f'{before}"{name}"' for name in names)


def ddl() -> tuple[str, ...]:
    """The statements, with {int}, {real}, {text}, {blob}, {id} and {clustered} filled in."""
    sums = ", ".join(f'"{name}" {{int}}' for name in SUMS)
    kinds = {field.name: str(field.type) for field in fields(FleetDevice)}
    kinds |= {"num": "int", "born_epoch": "str", "born_boot": "int", "latest_ms": "int", "figures_ms": "int"}
    words = {"bool": "{int}", "int": "{int}", "float": "{real}", "str": "{text}"}
    columns = [
        f'"{name}" {words[kinds[name].split(" ")[0]]}' + (" PRIMARY KEY" if name == "num" else "")
        for name in DEVICE_COLUMNS
    ]
    return (
        f"CREATE TABLE IF NOT EXISTS device ({', '.join(columns)})",
        "CREATE UNIQUE INDEX IF NOT EXISTS device_id ON device (id)",
        "CREATE TABLE IF NOT EXISTS build (num {int} PRIMARY KEY, model {text}, version {text}, profile {text}, "
        "UNIQUE (model, version, profile))",
        "CREATE TABLE IF NOT EXISTS mark (device {int}, epoch {text}, hwm {int}, ahead {text}, stored {int}, "
        "gap {int}, dropped {int}, refused {int}, seen_ms {int}, PRIMARY KEY (device, epoch)){clustered}",
        "CREATE TABLE IF NOT EXISTS win (device {int}, epoch {text}, seq {int}, received_ms {int}, refused {text}, "
        "payload {blob}, PRIMARY KEY (device, epoch, seq)){clustered}",
        "CREATE INDEX IF NOT EXISTS win_received ON win (received_ms)",
        "CREATE TABLE IF NOT EXISTS recent (device {int}, slot {int}, moment_ms {int}, epoch {text}, seq {int}, "
        "p50 {real}, p95 {real}, p99 {real}, rate {real}, temp {real}, PRIMARY KEY (device, slot)){clustered}",
        "CREATE TABLE IF NOT EXISTS rollup (device {int}, minutes {int}, start_ms {int}, build {int}, "
        f"{sums}, temp {{real}}, cpu {{real}}, mem {{real}}, psi {{real}}, latency {{blob}}, stages {{blob}}, "
        "codes {text}, folded {int}, PRIMARY KEY (device, minutes, start_ms, build)){clustered}",
        "CREATE INDEX IF NOT EXISTS rollup_start ON rollup (minutes, start_ms)",
        "CREATE INDEX IF NOT EXISTS rollup_build ON rollup (build)",
        "CREATE INDEX IF NOT EXISTS rollup_open ON rollup (start_ms) WHERE folded = 0",
        "CREATE TABLE IF NOT EXISTS event (id {id}, at_ms {int}, device {int}, kind {text}, text {text})",
        "CREATE INDEX IF NOT EXISTS event_device ON event (device, id)",
        "CREATE TABLE IF NOT EXISTS size (name {text} PRIMARY KEY, rows {int}, bytes {int}){clustered}",
        "CREATE TABLE IF NOT EXISTS counter (name {text} PRIMARY KEY, value {int}){clustered}",
    )


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

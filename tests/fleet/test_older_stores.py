"""Stores that earlier releases made, as their own code wrote them, opened by this one."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from fleet.boards import EPOCH, NOW, arrival

from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.schema import OLDEST, VERSION

STORES = Path(__file__).parent / "stores"


def rows_of(path):
    """Every row of every table, by column."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in names}


@pytest.mark.parametrize("version", range(OLDEST, VERSION))
def test_a_store_of_each_earlier_version_opens_without_a_loss(tmp_path, version):
    """Two boards, five windows, an hour of roll-ups, an alert, and a roll-out that runs."""
    path = tmp_path / "fleet.db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.executescript((STORES / f"v{version}.sql").read_text())
    before = rows_of(path)
    store = SqliteStore.open(path)
    rollouts, alerts = RolloutTables(store), AlertTables(store)
    after = rows_of(path)
    for name, rows in before.items():
        assert [{column: row[column] for column in rows[0]} for row in after[name]] == rows, name
    assert rows_of(f"{path}.v{version}") == before, "and the copy has all of it, too"
    assert {(row.id, row.stored, row.dropped) for row in store.fleet()} == {("porch-1", 3, 0), ("gate-1", 2, 0)}
    (hour,) = store.device_history("porch-1", 0, "1h")
    assert (hour.n, hour.errors, hour.dropped, hour.error_codes) == (9, 6, 0, {"busy": 6})
    assert tuple(hour.quantiles(0.5, 0.99)) == (pytest.approx(20.0, rel=0.011), pytest.approx(90.0, rel=0.011))
    assert [row.n for row in store.history("digits", "2", None, 0, "15m")] == [8]
    assert [one.key for one in alerts.list()] == ["drift:a:1:b"]
    (running,) = rollouts.all(active=True)
    assert (running.standing.state, running.standing.evidence, running.boards) == ("running", (), 2)
    (mark,) = store.commit([arrival(seq, "gate-1", version="2") for seq in (2, 3, 4)], [])
    assert (mark.epoch, mark.hwm) == (EPOCH, 5), "what was stored ahead of a gap is known"
    assert store.commit([arrival(3, at=NOW)], [])[0].repeated == 1
    store.close()
    assert SqliteStore.open(path).version() == VERSION

"""What every store of the fleet promises."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from dataclasses import replace
from threading import Thread

import pytest
from fleet.boards import EPOCH, NOW, arrival, birth, histogram, windows

from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store import migrations
from edgekit.fleet.store.databases import PostgresStore, SqliteStore
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit.fleet.store.records import SORTS, Arrival, Event, Mark, Query, Totals
from edgekit.fleet.store.schema import VERSION, Bound
from edgekit_runtime.telemetry.window import MOST_SEQ, Seal

QUARTER = 900_000
OTHER = "ffffffffffffffff"


@pytest.fixture
def store(open_store):
    return open_store()


def marks(store, *arrivals):
    return {mark.epoch: mark.hwm for mark in store.commit(arrivals, [])}


def test_a_mark_moves_without_a_gap(store):
    assert store.commit([arrival(1), arrival(2)], []) == [Mark("porch-1", EPOCH, 2, known=False)]
    assert marks(store, arrival(5), arrival(4)) == {EPOCH: 2}
    assert marks(store, arrival(3)) == {EPOCH: 5}


def test_a_window_that_comes_twice_is_stored_and_counted_once(store):
    for _ in range(3):
        store.commit([arrival(1), arrival(2), arrival(1)], [])
    assert windows(store, "porch-1") == [(EPOCH, 1), (EPOCH, 2)]
    assert store.device("porch-1").n == 4
    assert store.totals().windows == 2


def test_a_commit_says_what_was_new_and_the_totals_how_old_the_newest_window_is(store):
    assert (store.totals().newest_ms, store.totals().waiting) == (0, 0)
    (first,) = store.commit([arrival(1), arrival(2), arrival(2)], [])
    assert (first.windows, first.repeated) == (2, 1)
    (again,) = store.commit([arrival(1), arrival(2), arrival(3, refused="shape")], [])
    assert (again.windows, again.repeated) == (0, 2)
    ahead = NOW + 120_000
    store.commit([arrival(1, "porch-2", at=ahead, received=NOW + 30_000)], [])
    assert store.totals().newest_ms == NOW + 30_000, "a clock that is ahead makes nothing newer than it came"
    store.commit([replace(arrival(1, "porch-3"), seal=replace(arrival(1).seal, spooled=41))], [])
    assert store.totals().waiting == 40


def test_in_any_order_and_with_any_repetition_the_sum_is_the_same(store):
    rng = random.Random(0)
    arrivals = [arrival(seq, epoch=epoch) for seq in range(1, 41) for epoch in (EPOCH, OTHER)] * 2
    rng.shuffle(arrivals)
    for start in range(0, len(arrivals), 7):
        store.commit(arrivals[start : start + 7], [])
    assert marks(store, arrival(40), arrival(40, epoch=OTHER)) == {EPOCH: 40, OTHER: 40}
    assert store.device("porch-1").n == 160
    assert (store.totals().windows, store.totals().lost) == (80, 0)


def test_a_floor_moves_the_mark_over_what_the_board_gave_up_and_counts_it(store):
    assert marks(store, arrival(1), arrival(2), arrival(5)) == {EPOCH: 2}
    assert marks(store, arrival(9, floor=8, dropped=4)) == {EPOCH: 7}
    assert marks(store, arrival(8, floor=8, dropped=4)) == {EPOCH: 9}
    assert store.device("porch-1").lost == 4
    assert "gave up 4 windows" in [event.text for event in store.events("porch-1", 10)]


def test_a_window_that_was_counted_as_lost_stays_so(store):
    store.commit([arrival(1), arrival(9, floor=9, dropped=7)], [])
    assert marks(store, arrival(5)) == {EPOCH: 9}
    assert store.device("porch-1").lost == 7
    assert store.device("porch-1").n == 4


def test_a_board_that_reported_elsewhere_before_has_lost_nothing(store):
    assert marks(store, arrival(1000, floor=1000)) == {EPOCH: 1000}
    assert store.device("porch-1").lost == 0


def test_a_refused_window_moves_the_mark(store):
    assert marks(store, arrival(1), arrival(2, refused="version"), arrival(3)) == {EPOCH: 3}
    assert store.device("porch-1").refused == 1
    assert store.device("porch-1").n == 4


def test_two_epochs_of_one_device_do_not_meet(store):
    assert marks(store, arrival(1), arrival(1, epoch=OTHER), arrival(2, epoch=OTHER)) == {EPOCH: 1, OTHER: 2}


def test_a_row_shows_the_last_quarters_of_the_model_that_runs(store):
    for seq in range(1, 5):
        store.commit([arrival(seq, ms=[10.0] * 90 + [100.0] * 10, cached=100, host=10, over=10, temp=60.0)], [])
    row = store.device("porch-1")
    assert (row.n, row.hits, row.misses, row.host, row.over) == (840, 400, 440, 40, 40)
    assert row.p50 == pytest.approx(10.0, rel=0.011)
    assert row.p99 == pytest.approx(100.0, rel=0.011)
    assert row.rate == pytest.approx(3.5)
    assert (row.temp, len(row.recent)) == (60.0, 4)
    store.commit([arrival(5, version="2", ms=[5.0])], [])
    assert (store.device("porch-1").version, store.device("porch-1").n) == ("2", 1)


def test_roll_ups_are_quarters_of_an_hour_whose_histograms_merge(store):
    first = [arrival(seq, at=NOW + 60_000 * seq, received=NOW + 60_000 * seq, ms=[10.0] * 9) for seq in (1, 2)]
    later = [arrival(3, at=NOW + QUARTER, received=NOW + QUARTER, ms=[40.0])]
    store.commit(first + later, [])
    one, two = store.device_history("porch-1", 0)
    assert (one.start_ms, two.start_ms) == (NOW - NOW % QUARTER, NOW - NOW % QUARTER + QUARTER)
    assert (one.windows, one.n, two.n) == (2, 18, 1)
    assert one.rate == pytest.approx(18 / 120)
    assert two.p99 == pytest.approx(40.0, rel=0.011)


def test_a_spooled_window_is_filed_when_it_happened_if_its_clock_is_to_be_believed(store):
    late = arrival(1, at=NOW - 4 * QUARTER, received=NOW)
    lost_clock = arrival(2, at=86_400_000, received=NOW, clock=False)
    ahead = arrival(3, at=NOW + 10 * QUARTER, received=NOW)
    store.commit([late, lost_clock, ahead], [])
    assert [(q.start_ms, q.windows) for q in store.device_history("porch-1", 0)] == [
        (NOW - NOW % QUARTER - 4 * QUARTER, 1),
        (NOW - NOW % QUARTER, 2),
    ]


def test_birth_death_and_silence(store):
    store.commit([], [birth()])
    assert (store.device("porch-1").online, store.device("porch-1").hardware) == (True, "Raspberry Pi 4 Model B")
    store.commit([], [birth(on=False)])
    assert store.device("porch-1").online is False
    store.commit([arrival(1, received=NOW + 1000)], [])
    assert store.device("porch-1").online is True
    assert store.look_for_silence(NOW + 1000 + 149_000) == 0
    assert store.look_for_silence(NOW + 1000 + 151_000) == 1
    assert store.device("porch-1").online is False
    kinds = [event.kind for event in store.events("porch-1", 10)]
    assert kinds == ["offline", "online", "offline", "online"]


@pytest.mark.parametrize("death", [{"boot": 1}, {"epoch": OTHER, "boot": 9}], ids=["an earlier boot", "another epoch"])
def test_a_death_of_an_earlier_life_is_not_believed(store, death):
    store.commit([], [birth(boot=2)])
    store.commit([], [birth(on=False, **death)])
    assert store.device("porch-1").online is True


def test_a_birth_that_the_broker_retained_says_nothing_about_now(store):
    store.commit([arrival(1)], [birth()])
    store.look_for_silence(NOW + 10 * QUARTER)
    store.commit([], [birth(received=NOW + 10 * QUARTER, retained=True, ver="7")])
    row = store.device("porch-1")
    assert (row.online, row.version, row.seen_ms) == (False, "7", NOW)


def test_a_death_of_a_device_nobody_knows_makes_no_device(store):
    store.commit([], [birth("ghost-1", on=False)])
    assert store.fleet() == []


def test_only_rows_that_changed_are_asked_for_again(store):
    store.commit([arrival(1), arrival(1, "porch-2")], [])
    seen = max(row.changed for row in store.fleet())
    assert store.fleet(seen) == []
    store.commit([arrival(2)], [])
    assert [row.id for row in store.fleet(seen)] == ["porch-1"]


def test_what_is_stored_is_there_after_a_restart(store, open_store):
    store.commit([arrival(1), arrival(2)], [birth()])
    again = open_store()
    assert marks(again, arrival(2)) == {EPOCH: 2}
    assert again.device("porch-1") == store.device("porch-1")


def test_pruning_bounds_raw_windows_and_never_counts_one_again(open_store):
    store = open_store(bounds={"win": Bound(7, 300_000)})
    for seq in range(1, 3001, 100):
        store.commit([arrival(n, received=NOW - 3001 + n) for n in range(seq, seq + 100)], [])
    store.prune(NOW)
    kept = len(windows(store, "porch-1"))
    assert 0 < kept < 3000
    assert marks(store, arrival(5)) == {EPOCH: 3000}
    assert (len(windows(store, "porch-1")), store.totals().windows) == (kept, 3000)
    store.prune(NOW + 400 * 24 * 3_600_000)
    assert (windows(store, "porch-1"), store.device_history("porch-1", 0)) == ([], [])


def test_a_broken_connection_is_made_anew_and_nothing_is_counted_twice(postgres):
    store = PostgresStore.open(postgres.url())
    store.commit([arrival(1)], [])
    postgres.stop()
    for use in (lambda: store.commit([arrival(2)], []), store.totals):
        with pytest.raises(StoreError, match="the store failed") as caught:
            use()
        assert "secret" not in str(caught.value)
    postgres.again()
    assert marks(store, arrival(1), arrival(2)) == {EPOCH: 2}
    assert store.totals().windows == 2
    store.close()


def test_two_ingestors_that_share_a_database_count_each_window_once(postgres):
    url = postgres.url()
    stores = [PostgresStore.open(url) for _ in range(2)]
    parts = [[arrival(seq, f"b-{seq % 3}") for seq in range(1, 41)] for _ in stores]

    def work(store, arrivals):
        for one in arrivals:
            store.commit([one], [])

    threads = [Thread(target=work, args=pair) for pair in zip(stores, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].totals().windows == 40
    assert sum(row.n for row in stores[1].fleet()) == 80
    for store in stores:
        store.close()


def test_tables_of_another_release_are_refused(tmp_path, postgres):
    import psycopg

    with sqlite3.connect(tmp_path / "old.db") as old:
        old.execute("CREATE TABLE device (id TEXT)")
    old.close()
    with pytest.raises(StoreError, match="another release"):
        SqliteStore.open(tmp_path / "old.db")
    url = postgres.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE device (id TEXT)")
    with pytest.raises(StoreError, match="another release"):
        PostgresStore.open(url)


def as_version_3(store):
    """What a store of an earlier release is."""
    with store.writing():
        for table, column in (("rollout", "evidence"), ("rollup", "dropped"), ("device", "dropped")):
            store.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        store.set_version(3)


def test_a_store_of_an_earlier_release_is_migrated_and_a_copy_kept(open_store, store_url, tmp_path):
    before = open_store()
    before.commit([arrival(1), arrival(2)], [birth()])
    RolloutTables(before)
    as_version_3(before)
    store = open_store()
    assert (store.version(), store.totals().windows, len(store.device_history("porch-1", 0))) == (VERSION, 2, 1)
    assert RolloutTables(store).all() == []
    assert marks(store, arrival(3)) == {EPOCH: 3}
    open_store()
    if store_url.startswith("postgresql"):
        ((schema,),) = store.select("SELECT current_schema()")
        assert store.select(f'SELECT count(*) FROM "{schema}_v3".win') == [(2,)]
        return
    copy = tmp_path / "fleet.db.v3"
    assert copy.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("SELECT count(*) FROM win").fetchone() == (2,)
        assert kept.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_migration_that_fails_changes_nothing(open_store, monkeypatch):
    before = open_store()
    RolloutTables(before)
    as_version_3(before)

    def fail(store):
        store.define("ALTER TABLE rollout ADD COLUMN other {text}", "ALTER TABLE no_such ADD COLUMN x {text}")

    with monkeypatch.context() as patch:
        patch.setitem(migrations.STEPS, 3, fail)
        with pytest.raises(StoreError, match="no_such"):
            open_store()
    assert (before.version(), "other" in before.columns("rollout")) == (3, False)
    assert open_store().version() == VERSION


def test_other_users_cannot_read_the_file(tmp_path):
    SqliteStore.open(tmp_path / "fleet.db").close()
    assert (tmp_path / "fleet.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "fleet.db").chmod(0o640)
    store = SqliteStore.open(tmp_path / "fleet.db")
    store.commit([arrival(1)], [])
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    store.close()
    assert set(modes.values()) == {0o640}, "an administrator's choice is kept, also for the logs"


@pytest.mark.parametrize("what", ["a folder that is not there", "a folder", "no database"])
def test_a_store_that_cannot_be_opened_is_one_sentence(tmp_path, what):
    (tmp_path / "text").write_text("hello " * 1000)
    path = {
        "a folder that is not there": tmp_path / "no" / "x.db",
        "a folder": tmp_path,
        "no database": tmp_path / "text",
    }
    with pytest.raises(StoreError, match="the store failed"):
        SqliteStore.open(path[what])


def test_a_database_that_fails_refuses_nobody_and_changes_nothing(store):
    store.commit([arrival(1)], [])
    execute = store.execute

    def full(statement, given=()):
        if "INTO counter" in statement:
            raise next(iter(store.down))("the disk is full")
        return execute(statement, given)

    store.execute = full
    with pytest.raises(StoreError, match="the disk is full"):
        store.commit([arrival(2), arrival(1, "porch-2")], [birth("porch-9")])
    store.execute = execute
    assert windows(store, "porch-1") == [(EPOCH, 1)]
    assert store.device("porch-9") is None
    assert marks(store, arrival(2)) == {EPOCH: 2}


# One bad board harms nobody.


def test_a_board_that_cannot_be_stored_is_refused_and_all_others_are_kept(store):
    store.commit([arrival(1)], [birth()])
    bad = arrival(3)
    object.__setattr__(bad.window, "model", object())
    marked = store.commit(
        [arrival(2), bad, arrival(4), *(arrival(1, f"gate-{n}") for n in range(20))], [birth("porch-9")]
    )
    assert {(mark.device, mark.hwm) for mark in marked} == {("porch-1", 4), *((f"gate-{n}", 1) for n in range(20))}
    assert store.device("porch-1").refused == 1
    assert "sent a refused window: unstorable" in [event.text for event in store.events("porch-1", 9)]
    assert sum(mark.windows for mark in marked) == 22
    totals = store.totals()
    assert totals == Totals(22, 22, 24, 0, 1, totals.changed, 0, totals.newest_ms)
    assert store.device("porch-1").n == 6


def test_counts_stop_at_what_every_database_holds_and_no_sum_overflows(store):
    most = (1 << 53) - 1
    for device in ("porch-1", "porch-2", "porch-3"):
        for seq in range(1, 9):
            one = arrival(seq, device, cached=1)
            huge = replace(one.window, n=most, errors=most, hits=most, over_budget=most, dur_ms=1)
            huge.latency["cache"].buckets[-180] = most
            store.commit([replace(one, window=huge)], [])
    row = store.device("porch-1")
    assert (row.n, row.errors, row.refused) == (most, most, 0)
    assert store.device_history("porch-1", 0)[0].hits == most
    assert store.history("digits", "1", None, 0, "1h")[0].n == most
    for device in ("porch-1", "porch-2", "porch-3"):
        for n in range(1, 21):
            for seq in (1, MOST_SEQ):
                store.commit([arrival(seq, device, epoch=f"{n:016x}", floor=seq, dropped=seq - 1)], [])
    assert store.totals().lost == 3 * 20 << 31
    assert store.devices(Query(sort="lost"))[1] == 3
    assert store.counts()[0].states["losing"] == 3


def test_a_board_gave_up_what_it_says_and_no_more(store):
    assert marks(store, arrival(1), arrival(MOST_SEQ, floor=MOST_SEQ)) == {EPOCH: MOST_SEQ}
    assert (store.device("porch-1").lost, store.totals().lost) == (0, 0)
    assert marks(store, arrival(1, "gate-1"), arrival(9, "gate-1", floor=9, dropped=3)) == {EPOCH: 9}
    assert store.device("gate-1").lost == 3


def test_random_epochs_leave_a_bounded_number_of_marks(store):
    for n in range(100):
        store.commit([arrival(1, epoch=f"{n:016x}", received=NOW + n)], [])
    assert store.sizes()["mark"][0] == 8
    assert marks(store, arrival(1, epoch=f"{99:016x}")) == {f"{99:016x}": 1}
    assert store.device("porch-1").stored == 100


def test_the_newest_window_may_come_first(store):
    for seq in range(40, 0, -1):
        assert marks(store, arrival(seq, at=NOW - (40 - seq) * 60_000, temp=40.0 + seq)) == {
            EPOCH: 40 if seq == 1 else 0
        }
        assert marks(store, arrival(40)) == {EPOCH: 40 if seq == 1 else 0}
    row = store.device("porch-1")
    assert (row.stored, row.temp, len(row.recent)) == (40, 80.0, 40)
    assert row.recent == sorted(row.recent)


def test_gaps_without_end_are_not_remembered_and_not_acknowledged(store):
    assert marks(store, *(arrival(seq, floor=1) for seq in range(2, 400, 2))) == {EPOCH: 0}
    assert store.device("porch-1").stored == 64
    assert marks(store, *(arrival(seq, floor=1) for seq in range(1, 400))) == {EPOCH: 399}
    assert (store.device("porch-1").stored, store.device("porch-1").n) == (399, 798)


def test_pruning_by_bytes_counts_nothing_twice_above_the_mark(open_store):
    store = open_store(bounds={"win": Bound(7, 1000)})
    store.commit([arrival(seq) for seq in range(11, 200)], [])
    store.prune(NOW)
    assert store.sizes()["win"][1] <= 1000
    assert marks(store, *(arrival(seq) for seq in range(1, 200))) == {EPOCH: 199}
    assert (store.device("porch-1").stored, store.device("porch-1").n) == (199, 398)


TABLES = ["win", "r15", "r1h", "r5", "m15", "m1h", "event", "mark"]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_bounded_in_bytes_and_in_days(open_store, table):
    store = open_store(bounds={table: Bound(400, 3000)})
    for n in range(60):
        at = NOW - n * 2_400_000
        store.commit(
            [arrival(n + 1, f"b-{n:03}", at=at, received=at, version=str(n))], [birth(f"b-{n:03}", received=at)]
        )
    for _ in range(2):
        store.look_for_silence(NOW + 2 * 3_600_000)
    before = store.sizes()
    assert before[table][1] > 3000
    store.prune(NOW)
    assert store.sizes()[table][1] <= 3000
    assert {name: size for name, size in store.sizes().items() if name != table} == {
        name: size for name, size in before.items() if name != table
    }
    store.prune(NOW + 500 * 24 * 3_600_000)
    assert set(store.sizes().values()) == {(0, 0)}


def test_versions_go_with_their_last_rollup_and_their_numbers_mix_nothing_up(store):
    """A board that says another version in each window, and one that stays."""
    for seq in range(1, 41):
        store.commit([arrival(seq, version=f"x{seq}")], [])
    later = NOW + 401 * 24 * 3_600_000
    store.commit([arrival(1, "gate-1", version="7", at=later, received=later, ms=[30.0])], [])
    store.prune(later)
    assert store.select("SELECT version FROM build") == [("7",)]
    store.commit([arrival(2, "gate-1", version="8", at=later, received=later, ms=[40.0])], [])
    rows = store.history("digits", None, None, 0, "1h")
    assert [(row.version, row.n) for row in rows] == [("7", 1), ("8", 1)]


def test_a_silent_boards_figures_are_cleared_after_half_an_hour(store):
    store.commit([arrival(1, over=2), arrival(1, "gate-1")], [birth()])
    store.look_for_silence(NOW + 10 * 60_000)
    assert (store.device("porch-1").online, store.device("porch-1").over) == (False, 2)
    store.commit([arrival(2, "gate-1", received=NOW + 20 * 60_000)], [])
    store.look_for_silence(NOW + 31 * 60_000)
    row = store.device("porch-1")
    assert (row.p50, row.p99, row.rate, row.n, row.over, row.hits) == (None, None, None, 0, 0, 0)
    assert len(row.recent) == 1
    assert store.device("gate-1").p99 is not None


# What pages ask.


@pytest.fixture
def fleet(store):
    """Nine boards: two offline, one late, one hot, one lagging, one failing, one losing, and names that LIKE knows."""
    names = ["a-1", "a-2", "late-1", "hot-1", "lagging-1", "failing-1", "losing-1", "off-1", "off-2"]
    store.commit([], [birth(name, site="north" if name < "h" else "south", group="g%_1") for name in names])
    extra = {"late-1": {"ms": [90.0] * 50}, "hot-1": {"temp": 85.0}, "losing-1": {"floor": 3, "dropped": 2}}
    store.commit([arrival(1, name) for name in names], [])
    arrivals = [arrival(3, name, **extra.get(name, {})) for name in names]
    by = {one.device: one for one in arrivals}
    by["failing-1"] = replace(by["failing-1"], window=replace(by["failing-1"].window, errors=9))
    by["lagging-1"] = replace(by["lagging-1"], seal=replace(by["lagging-1"].seal, spooled=100))
    store.commit(list(by.values()), [birth(name, on=False) for name in ("off-1", "off-2")])
    store.commit([], [birth(name, on=False) for name in ("off-1", "off-2")])
    return store


def test_lists_are_filtered_sorted_and_paged(fleet):
    def ids(**query):
        rows, count = fleet.devices(Query(**query))
        return [row.id for row in rows], count

    assert ids(limit=2) == (["a-1", "a-2"], 9)
    assert ids(limit=2, offset=2) == (["failing-1", "hot-1"], 9)
    assert ids(state="offline", descending=True) == (["off-2", "off-1"], 2)
    assert ids(state="online", limit=1) == (["a-1"], 7)
    for state in ("late", "hot", "lagging", "failing", "losing"):
        assert ids(state=state) == ([f"{state}-1"], 1)
    assert ids(text="OFF-", sort="p99") == (["off-1", "off-2"], 2)
    assert ids(text="%_1", limit=1)[1] == 9
    assert ids(text="%1")[1] == 0
    assert ids(site="north", state="offline")[1] == 0
    assert ids(site="south")[1] == 6
    assert ids(model="digits", version="1", profile="raspberry-pi-4", group="g%_1")[1] == 9
    assert ids(version="2")[1] == 0
    assert ids(sort="p99", descending=True, limit=1)[0] == ["late-1"]
    assert ids(sort="temp", descending=True, limit=1)[0] == ["hot-1"]
    assert len(fleet.devices(Query(limit=1))[0][0].recent) == 2


def test_a_sort_or_a_state_that_is_none_is_refused(fleet):
    for query in (Query(sort="id; DROP TABLE device"), Query(state="1 = 1")):
        with pytest.raises(ValueError, match="none of"):
            fleet.devices(query)


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_puts_unknown_figures_last(fleet, sort):
    fleet.commit([], [birth("new-1", sla=None)])
    for descending in (False, True):
        values = [getattr(row, sort) for row in fleet.devices(Query(sort=sort, descending=descending))[0]]
        known = [value for value in values if value is not None]
        assert values == sorted(known, reverse=descending) + [None] * (len(values) - len(known))


def test_counts_are_of_the_fleet_or_of_groups(fleet):
    (whole,) = fleet.counts()
    assert (whole.key, whole.devices) == ((), 9)
    assert whole.states == {
        "online": 7,
        "offline": 2,
        "late": 1,
        "hot": 1,
        "drifting": 0,
        "lagging": 1,
        "failing": 1,
        "losing": 1,
    }
    assert [(count.key, count.devices) for count in fleet.counts("site")] == [(("south",), 6), (("north",), 3)]
    assert [(count.key, count.devices) for count in fleet.counts("model")] == [(("digits", "1"), 9)]
    assert [count.key for count in fleet.counts("build")] == [("digits", "1", "raspberry-pi-4")]
    assert fleet.counts("site", Query(state="hot"))[0].key == ("south",)
    assert fleet.counts("profile", Query(text="nothing")) == []


def test_changes_are_asked_for_by_id(fleet):
    seen = fleet.totals().changed
    assert fleet.changed(seen, ["a-1", "a-2"]) == []
    fleet.commit([arrival(4, "a-2"), arrival(4, "hot-1")], [])
    assert [row.id for row in fleet.changed(seen, ["a-1", "a-2", "none-1"])] == ["a-2"]
    assert fleet.totals().changed > seen


def test_history_of_a_model_adds_up_over_boards_and_time(store):
    for n in range(8):
        at = NOW + n * 5 * 60_000
        store.commit([arrival(n + 1, name, at=at, received=at, ms=[10.0] * 9) for name in ("a-1", "a-2")], [])
    store.commit([arrival(9, "a-1", version="2", ms=[20.0])], [])
    for resolution, rows in (("5m", 9), ("15m", 4), ("1h", 2)):
        found = store.history("digits", None, None, 0, resolution)
        assert sum(rollup.n for rollup in found) == 145
        assert len(found) == rows
        assert [rollup.start_ms for rollup in found] == sorted(rollup.start_ms for rollup in found)
    assert [rollup.n for rollup in store.history("digits", "2", "raspberry-pi-4", 0, "5m")] == [1]
    assert store.history("other", None, None, 0, "5m") == []
    five = store.history("digits", "1", None, 0, "5m")[0]
    assert (five.boards, five.rate) == (pytest.approx(0.4), pytest.approx(0.15))
    assert five.p99 == pytest.approx(10.0, rel=0.011)


def test_hours_are_the_quarters_added_before_and_after_they_are_folded(store):
    for n in range(16):
        at = NOW + n * 10 * 60_000
        store.commit([arrival(n + 1, at=at, received=at, ms=[float(10 + n)] * 9)], [])
    before = store.device_history("porch-1", 0, "1h")
    assert [rollup.n for rollup in before] == [54, 54, 36]
    assert "r1h" not in store.sizes()
    store.look_for_silence(NOW + 4 * 3_600_000)
    assert store.sizes()["r1h"][0] == 3
    after = store.device_history("porch-1", 0, "1h")
    assert [(r.start_ms, r.n, r.p99) for r in after] == [(r.start_ms, r.n, r.p99) for r in before]
    store.commit([arrival(99, at=NOW, received=NOW + 4 * 3_600_000)], [])
    assert [rollup.n for rollup in store.device_history("porch-1", 0, "1h")] == [56, 54, 36]
    store.look_for_silence(NOW + 4 * 3_600_000)
    assert [rollup.n for rollup in store.device_history("porch-1", 0, "1h")] == [56, 54, 36]


def test_the_last_hour_of_a_board_in_five_minutes(store):
    for n in range(12):
        at = NOW + n * 60_000
        store.commit([arrival(n + 1, at=at, received=at, ms=[10.0] * 9)], [])
    assert [rollup.n for rollup in store.device_history("porch-1", 0, "5m")] == [36, 45, 27]
    assert store.device_history("none-1", 0, "5m") == []


def test_events_by_kind_and_page_and_those_of_boards(store):
    install = Event(NOW, "porch-1", "install", "installed digits 2")
    store.commit([arrival(1), Arrival("porch-1", Seal(EPOCH, 2, 1), NOW, b"{}", event=install)], [birth()])
    assert [event.text for event in store.events("porch-1", 5, kinds=["install"])] == ["installed digits 2"]
    latest, first = store.events(None, 5)
    assert (first.kind, latest.kind) == ("online", "install")
    assert store.events(None, 5, before=latest.id) == [first]
    assert marks(store, arrival(3)) == {EPOCH: 3}


def test_a_board_is_forgotten_with_all_that_is_known_of_it(store):
    store.commit([arrival(1), arrival(1, "gate-1")], [birth(), birth("gate-1")])
    assert store.forget("porch-1")
    assert not store.forget("porch-1")
    assert [row.id for row in store.fleet()] == ["gate-1"]
    assert {event.device for event in store.events(None, 9)} == {"gate-1"}
    assert marks(store, arrival(2)) == {EPOCH: 0}
    assert store.device("porch-1").n == 2


def test_a_retained_birth_brings_no_forgotten_board_back_and_a_live_message_does(store):
    store.commit([arrival(1)], [birth(), birth("gate-1")])
    for name in ("porch-1", "gate-1"):
        store.forget(name, NOW)
    assert store.to_clear() == ["gate-1", "porch-1"] or store.to_clear() == ["porch-1", "gate-1"]
    store.mark_cleared(["porch-1"])
    assert store.to_clear() == ["gate-1"]
    store.commit([], [birth(retained=True), birth("gate-1", retained=True), birth("new-1", retained=True)])
    assert [row.id for row in store.fleet()] == ["new-1"]
    store.commit([arrival(2)], [birth(retained=True), birth("gate-1")])
    assert [row.id for row in store.fleet()] == ["gate-1", "new-1", "porch-1"]
    assert store.select("SELECT * FROM forgotten") == []
    store.forget("new-1", NOW)
    store.prune(NOW + 401 * 24 * 3_600_000)
    assert store.select("SELECT * FROM forgotten") == []


def test_a_mark_says_whether_the_birth_of_that_boot_is_known(store):
    assert store.commit([arrival(1)], []) == [Mark("porch-1", EPOCH, 1, known=False)]
    assert store.commit([arrival(2)], [birth()]) == [Mark("porch-1", EPOCH, 2, known=True)]
    assert store.commit([arrival(1, epoch=OTHER)], []) == [Mark("porch-1", OTHER, 1, known=False)]


def test_what_boards_count_is_rolled_up(store):
    one = arrival(1)
    more = {
        "stages": {"infer": histogram([8.0, 9.0]), "queue": histogram([0.1])}, "refused_by_budget": 2, "errors": 5,
        "error_codes": {"busy": 3, "fault": 2}, "clipped": 10, "values": 1000, "psi": 0.3, "compared": 4,
        "differed": 1, "site": "north", "group": "gates", "dropped": 30,
    }  # fmt: skip
    store.commit([replace(one, window=replace(one.window, **more))], [])
    store.commit([replace(arrival(2), window=replace(one.window, **(more | {"psi": 0.1})))], [])
    row = store.device("porch-1")
    assert (row.blocked, row.clipped, row.values, row.psi) == (4, 20, 2000, 0.3)
    assert (row.compared, row.differed, row.site, row.group, row.dropped) == (8, 2, "north", "gates", 60)
    for rollup in (*store.device_history("porch-1", 0), *store.history("digits", None, None, 0, "5m")):
        assert (rollup.blocked, rollup.clipped, rollup.values, rollup.psi) == (4, 20, 2000, 0.3)
        assert (rollup.error_codes, rollup.dropped) == ({"busy": 6, "fault": 4}, 60)
        assert {stage: h.count for stage, h in rollup.stages.items()} == {"infer": 4, "queue": 2}
    assert store.counts()[0].states["drifting"] == 1


def test_site_and_group_are_those_of_the_birth(store):
    store.commit([arrival(1)], [birth(site="north", group="gates")])
    assert (store.device("porch-1").site, store.device("porch-1").group) == ("north", "gates")

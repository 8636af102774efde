"""What every store of the fleet promises."""

from __future__ import annotations

import random

import pytest
from fleet.boards import EPOCH, NOW, arrival, birth

from edgekit.fleet import Mark, SqliteStore, StoreError

QUARTER = 900_000
OTHER = "ffffffffffffffff"


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore.open(tmp_path / "fleet.db")
    yield opened
    opened.close()


def marks(store, *arrivals):
    return {mark.epoch: mark.hwm for mark in store.commit(arrivals, [])}


def test_a_mark_moves_without_a_gap(store):
    assert store.commit([arrival(1), arrival(2)], []) == [Mark("porch-1", EPOCH, 2)]
    assert marks(store, arrival(5), arrival(4)) == {EPOCH: 2}
    assert marks(store, arrival(3)) == {EPOCH: 5}


def test_a_window_that_comes_twice_is_stored_and_counted_once(store):
    for _ in range(3):
        store.commit([arrival(1), arrival(2), arrival(1)], [])
    assert store.windows("porch-1") == [(EPOCH, 1), (EPOCH, 2)]
    assert store.device("porch-1").n == 4
    assert store.totals().windows == 2


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
    assert marks(store, arrival(9, floor=8)) == {EPOCH: 7}
    assert marks(store, arrival(8, floor=8)) == {EPOCH: 9}
    assert store.device("porch-1").lost == 4
    assert "gave up 4 windows" in [event.text for event in store.events("porch-1", 10)]


def test_a_window_that_was_counted_as_lost_stays_so(store):
    store.commit([arrival(1), arrival(9, floor=9)], [])
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
    one, two = store.quarters("porch-1", 0)
    assert (one.start_ms, two.start_ms) == (NOW - NOW % QUARTER, NOW - NOW % QUARTER + QUARTER)
    assert (one.windows, one.n, two.n) == (2, 18, 1)
    assert one.rate == pytest.approx(18 / 120)
    assert two.p99 == pytest.approx(40.0, rel=0.011)


def test_a_spooled_window_is_filed_when_it_happened_if_its_clock_is_to_be_believed(store):
    late = arrival(1, at=NOW - 4 * QUARTER, received=NOW)
    lost_clock = arrival(2, at=86_400_000, received=NOW, clock=False)
    ahead = arrival(3, at=NOW + 10 * QUARTER, received=NOW)
    store.commit([late, lost_clock, ahead], [])
    assert [(q.start_ms, q.windows) for q in store.quarters("porch-1", 0)] == [
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


def test_what_is_stored_is_there_after_a_restart(store, tmp_path):
    store.commit([arrival(1), arrival(2)], [birth()])
    again = SqliteStore.open(tmp_path / "fleet.db")
    assert marks(again, arrival(2)) == {EPOCH: 2}
    assert again.device("porch-1") == store.device("porch-1")
    again.close()


def test_pruning_bounds_raw_windows_and_never_counts_one_again(tmp_path):
    store = SqliteStore.open(tmp_path / "small.db", most_bytes=900_000)
    for seq in range(1, 3001, 100):
        store.commit([arrival(n) for n in range(seq, seq + 100)], [])
    store.prune(NOW)
    kept = len(store.windows("porch-1"))
    assert 0 < kept < 3000
    assert marks(store, arrival(5)) == {EPOCH: 3000}
    assert (len(store.windows("porch-1")), store.totals().windows) == (kept, 3000)
    store.prune(NOW + 400 * 24 * 3_600_000)
    assert (store.windows("porch-1"), store.quarters("porch-1", 0)) == ([], [])
    store.close()


@pytest.mark.parametrize("what", ["a folder that is not there", "a folder", "no database"])
def test_a_store_that_cannot_be_opened_is_one_sentence(tmp_path, what):
    (tmp_path / "text").write_text("hello " * 1000)
    path = {
        "a folder that is not there": tmp_path / "no" / "x.db",
        "a folder": tmp_path,
        "no database": tmp_path / "text",
    }
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore.open(path[what])


def test_a_commit_that_fails_changes_nothing(store):
    store.commit([arrival(1)], [])
    bad = arrival(2)
    object.__setattr__(bad, "payload", object())
    with pytest.raises(StoreError):
        store.commit([arrival(3), bad], [birth("porch-9")])
    assert store.windows("porch-1") == [(EPOCH, 1)]
    assert store.device("porch-9") is None

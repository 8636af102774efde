"""Roll-outs: waves, the comparison, the decisions, and the tables under every order of events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fleet.boards import birth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgekit.fleet.rollouts.comparison import Verdict
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables, fitting
from edgekit.fleet.rollouts.waves import (
    ACTIVE,
    RolloutPlan,
    RolloutStanding,
    Tally,
    decide,
    obey,
    parse_share,
    wanted,
    waves_of,
)
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.records import FleetDevice
from edgekit_runtime.install.orders import FINAL, Former, OrderReport

PLAN = RolloutPlan(settle_s=60.0, figures_s=120.0, deadline_s=3600.0)
RUNNING, SAME, WORSE, UNKNOWN = (
    RolloutStanding(),
    Verdict("same", evidence=(1.5, 0.0)),
    Verdict("worse", "slower"),
    Verdict("unknown", "12 answers"),
)
PHASES = [*FINAL, "committed", "fetching", "trial"]
TWO = RolloutBundle("digits", "2", "raspberry-pi-4", ("raspberry-pi-4",), "b" * 64, "b" * 12, 1000)


def test_a_board_has_the_same_wave_on_every_server_and_each_wave_has_a_board():
    names = [f"porch-{n}" for n in range(1000)]
    waves = waves_of(7, names, (0.01, 0.1, 0.5, 1.0))
    assert waves == waves_of(7, reversed(names), (0.01, 0.1, 0.5, 1.0))
    assert [list(waves.values()).count(n) for n in range(4)] == [10, 90, 400, 500]
    assert waves != waves_of(8, names, (0.01, 0.1, 0.5, 1.0))
    assert sorted(waves_of(7, names[:3], (0.01, 0.1, 0.5, 1.0)).values()) == [0, 1, 2]
    assert len(waves_of(7, names, (0.1, 0.3))) == 300


@pytest.mark.parametrize("waves", [(), (0.5, 0.1), (0.0, 1.0), (0.5, 1.5)])
def test_waves_that_are_none_are_refused(waves):
    with pytest.raises(FleetError):
        RolloutPlan(waves=waves)


def test_shares_are_read():
    assert [parse_share(text) for text in ("5%", "0.05", "100%")] == [0.05, 0.05, 1.0]
    for text in ("five", "nan", "101%", "-1%"):
        with pytest.raises(FleetError):
            parse_share(text)


WHOLE = Tally(10, 0, 10, 0, last_ms=1000, all=100)
ONE = Tally(1, 0, 1, 0, last_ms=1000, all=10)
STEPS = {
    "boards are pending": (RUNNING, Tally(10, 2, 8, 0, 1000), UNKNOWN, 500_000, "running", 0),
    "watched too short": (RUNNING, WHOLE, SAME, 60_000, "running", 0),
    "no worse": (RUNNING, WHOLE, SAME, 61_000, "running", 1),
    "too few answers yet": (RUNNING, WHOLE, UNKNOWN, 61_000, "running", 0),
    "too few answers for too long": (RUNNING, WHOLE, UNKNOWN, 181_000, "paused", 0),
    "too few answers, waived": (replace(RUNNING, waived=0), WHOLE, UNKNOWN, 61_000, "running", 1),
    "worse": (RUNNING, Tally(10, 9, 1, 0, 1000), WORSE, 1000, "undoing", 0),
    "two of ten failed": (RUNNING, Tally(10, 8, 0, 2, 1000, all=100), UNKNOWN, 1000, "undoing", 0),
    "one of ten failed, alone": (RUNNING, Tally(10, 0, 9, 1, 1000, all=100), SAME, 61_000, "running", 1),
    "the only board failed": (RUNNING, Tally(1, 0, 0, 1, 1000, all=1), UNKNOWN, 1000, "undoing", 0),
    "one failed, and others may join": (RUNNING, Tally(1, 0, 0, 1, 1000, spare=9, all=10), SAME, 61_000, "running", 0),
    "one is worse, and others may join": (
        RUNNING,
        replace(ONE, spare=9),
        replace(SAME, doubt=True),
        61_000,
        "running",
        0,
    ),
    "one of two failed": (RUNNING, Tally(1, 0, 0, 1, 1000, spare=1, all=2), UNKNOWN, 1000, "undoing", 0),
    "one is worse, and no other is left": (RUNNING, ONE, replace(SAME, doubt=True), 61_000, "running", 1),
    "one of twenty failed": (RUNNING, Tally(20, 0, 19, 1, 1000, all=100), SAME, 61_000, "running", 1),
    "offline beyond the deadline": (RUNNING, Tally(10, 2, 8, 0, 1000), SAME, 3_600_000, "running", 1),
    "nobody finished": (RUNNING, Tally(10, 10, 0, 0), SAME, 3_600_000, "paused", 0),
    "the last wave": (RolloutStanding(wave=3), WHOLE, SAME, 61_000, "done", 3),
    "paused": (RolloutStanding("paused"), WHOLE, SAME, 61_000, "paused", 0),
    "paused, and boards fail": (RolloutStanding("paused"), Tally(10, 0, 8, 2, all=10), SAME, 61_000, "undoing", 0),
    "going back": (RolloutStanding("undoing"), Tally(10, 0, 8, 2, moving_back=3), WORSE, 61_000, "undoing", 0),
    "back": (RolloutStanding("undoing"), Tally(10, 0, 8, 2), WORSE, 61_000, "undone", 0),
    "some never came back": (
        RolloutStanding("undoing"),
        Tally(10, 0, 8, 2, moving_back=1),
        SAME,
        3_600_001,
        "undone",
        0,
    ),
    "done": (RolloutStanding("done", 3), Tally(10, 0, 0, 10), WORSE, 61_000, "done", 3),
}


@pytest.mark.parametrize(("standing", "tally", "verdict", "now", "state", "wave"), STEPS.values(), ids=STEPS)
def test_what_follows(standing, tally, verdict, now, state, wave):
    after = decide(PLAN, standing, tally, verdict, now)
    assert (after.state, after.wave) == (state, wave)
    assert after is standing or after.why or after.state == "undone"


def test_more_boards_join_a_wave_whose_board_is_gone_or_is_the_only_one_to_say_worse():
    assert wanted(WHOLE, SAME) == wanted(WHOLE, replace(SAME, doubt=True)) == 0
    assert wanted(replace(WHOLE, spare=90), replace(SAME, doubt=True)) == 1, "one by one, once its boards are done"
    assert wanted(replace(WHOLE, spare=90, pending=1), replace(SAME, doubt=True)) == 0
    assert wanted(replace(ONE, spare=90), replace(SAME, doubt=True)) == 2
    assert wanted(Tally(1, 0, 0, 1, spare=2, all=3), UNKNOWN) == 1
    assert wanted(Tally(10, 4, 6, 0, all=100, absent=4, spare=90), UNKNOWN) == 4
    assert wanted(Tally(10, 4, 6, 0, all=100, absent=4), UNKNOWN) == 0


def test_an_abort_may_leave_boards_where_they_are():
    assert decide(replace(PLAN, undo=False), RUNNING, WHOLE, WORSE, 1000).state == "aborted"


def test_a_word_that_makes_no_sense_names_those_that_do():
    assert obey("pause", RUNNING, 5).state == "paused"
    assert obey("resume", RolloutStanding("paused", 1), 5) == RolloutStanding(
        "running", 1, 5, 1, "by the operator", True
    )
    with pytest.raises(FleetError, match="pause, abort, undo"):
        obey("resume", RUNNING, 5)
    with pytest.raises(FleetError, match="nothing"):
        obey("pause", RolloutStanding("undone"), 5)


def rows(n, **changes):
    return [
        FleetDevice(f"porch-{i}", model="digits", version="1", sha="a" * 12, profile="raspberry-pi-4", **changes)
        for i in range(n)
    ]


def test_a_rollout_is_for_boards_of_its_model_and_profile():
    boards = [*rows(2, site="north"), replace(rows(3)[2], sha=TWO.sha), replace(rows(4)[3], profile="jetson"),
              replace(rows(5)[4], model="faces")]  # fmt: skip
    assert fitting(TWO, boards) == ["porch-0", "porch-1"]
    assert fitting(TWO, boards, site="south") == []
    assert fitting(TWO, boards, model="faces") == ["porch-4"]


@pytest.fixture
def tables(open_store):
    return RolloutTables(open_store())


NAMES = [f"porch-{n}" for n in range(10)]
FORMER = Former("1", "a" * 64)


def test_an_order_is_due_until_its_board_came_to_an_end(tables):
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(0.2, 1.0)), NAMES, 1000)
    due = tables.due(1000, 100)
    assert len(due) == 2
    assert {one.order.sha256 for one in due} == {TWO.sha256}
    tables.mark_published(due, 1000)
    assert tables.due(1050, 100) == []
    assert tables.due(1200, 100) == due
    tables.report([(due[0].device, OrderReport(made.rev, "committed", "2", former=FORMER))], 1300)
    assert [one.device for one in tables.due(1400, 100)] == [due[1].device]
    assert tables.tally(made, 1300) == Tally(2, 1, 1, 0, last_ms=1300, spare=8, all=10)
    tables.report([(due[0].device, OrderReport(made.rev, "failed", "2"))], 1400)
    assert tables.tally(made, 1300).failed == 0


def test_a_report_of_another_bundle_under_the_same_number_counts_for_nothing(tables):
    """Of a store that was lost and made again, or of a second server with the same clock."""
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(0.2, 1.0)), NAMES, 1000)
    right, wrong = (one.device for one in tables.due(1000, 100))
    said = OrderReport(made.rev, "committed", "2", former=FORMER, sha256=TWO.sha256)
    tables.report([(right, said), (wrong, replace(said, sha256="f" * 64))], 1300)
    assert tables.tally(made, 1300) == Tally(2, 1, 1, 0, last_ms=1300, spare=8, all=10)
    assert [one.device for one in tables.due(1400, 100)] == [wrong]
    tables.speak(1, "undo", 1500)
    back = OrderReport(made.undo_rev, "committed", "1", sha256=FORMER.sha256)
    tables.report([(right, replace(back, sha256=TWO.sha256))], 1600)
    assert tables.tally(tables.get(1), 1300).moving_back == 1
    tables.report([(right, back)], 1700)
    assert tables.tally(tables.get(1), 1300).moving_back == 0


def test_undo_sends_back_what_moved_and_withdraws_the_rest(tables):
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(0.3, 1.0)), NAMES, 1000)
    moved, failed, silent = [one.device for one in tables.due(1000, 100)]
    rolled_back = OrderReport(made.rev, "rolled-back", "1", "slow", "trial-failed", FORMER)
    tables.report([(moved, OrderReport(made.rev, "committed", "2", former=FORMER)), (failed, rolled_back)], 1100)
    tables.speak(1, "undo", 1200)
    due = {one.device: one for one in tables.due(1200, 100)}
    assert due[moved].order.sha256 == FORMER.sha256
    assert due[failed].order is due[silent].order is None
    tables.mark_published(list(due.values()), 1200)
    assert [one.device for one in tables.due(2000, 100)] == [moved]
    tables.report([(silent, OrderReport(made.rev, "committed", "2", former=FORMER))], 2000)  # it had begun
    late = next(one for one in tables.due(2001, 100) if one.device == silent)
    assert late.order.sha256 == FORMER.sha256
    assert tables.tally(tables.get(1), 1300).moving_back == 2


def test_one_rollout_a_board_and_the_last_one_is_undone_first(tables):
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(1.0,)), NAMES, 1000)
    with pytest.raises(FleetError, match="roll-out 1"):
        tables.make(TWO, "http://x/y.ekb", PLAN, NAMES[:1], 1000)
    with pytest.raises(FleetError, match="no board matches"):
        tables.make(TWO, "http://x/y.ekb", PLAN, [], 1000)
    tables.step(made, RolloutStanding("done", 0, 1000), 1100)
    later = tables.make(replace(TWO, version="3"), "http://x/z.ekb", PLAN, NAMES, 900)
    assert later.rev > made.undo_rev
    with pytest.raises(FleetError, match="Undo it first: edgekit fleet undo 2"):
        tables.speak(1, "undo", 1200)


def test_once_a_later_rollout_was_undone_the_one_before_it_can_be(tables):
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(1.0,)), NAMES[:2], 1000)
    tables.report([(name, OrderReport(made.rev, "committed", "2", former=FORMER)) for name in NAMES[:2]], 1050)
    tables.step(made, RolloutStanding("done", 0, 1000), 1100)
    three = replace(TWO, version="3", sha256="3" * 64)
    later = tables.make(three, "http://x/z.ekb", replace(PLAN, waves=(1.0,)), NAMES[:2], 1200)
    of_two = Former("2", TWO.sha256)
    tables.report([(name, OrderReport(later.rev, "committed", "3", former=of_two)) for name in NAMES[:2]], 1250)
    tables.speak(2, "undo", 1300)
    with pytest.raises(FleetError, match="Undo it first: edgekit fleet undo 2"):
        tables.speak(1, "undo", 1310)
    undo_rev = tables.get(2).undo_rev
    tables.report([(name, OrderReport(undo_rev, "committed", "2")) for name in NAMES[:2]], 1350)
    assert tables.speak(1, "undo", 1400).standing.state == "undoing"
    back = [one for one in tables.due(1400, 100) if one.rollout == 1]
    assert {one.rev > undo_rev for one in back} == {True}, "boards take no order of a lower number"
    assert {(one.device, one.order.sha256) for one in back} == {(name, FORMER.sha256) for name in NAMES[:2]}


def test_a_wave_is_drawn_from_boards_that_are_there_and_replaces_who_left(open_store):
    store = open_store()
    store.commit([], [birth(name, received=1000) for name in NAMES])
    store.commit([], [birth(name, on=False, received=2000) for name in NAMES[:5]])
    tables = RolloutTables(store)
    made = tables.make(TWO, "http://x/y.ekb", replace(PLAN, waves=(0.2, 1.0)), NAMES, 3000)
    first = [row.device for row in tables.boards(1) if row.wave == 0]
    assert set(first) <= set(NAMES[5:])
    store.commit([], [birth(first[0], on=False, received=4000)])
    assert tables.tally(made, 4000 + 299_000) == Tally(2, 2, 0, 0, spare=3, all=10)
    now = 4000 + 301_000
    assert tables.tally(made, now) == Tally(2, 2, 0, 0, absent=1, spare=3, all=10)
    assert tables.reinforce(made, 1, now)
    assert not tables.reinforce(made, 1, now), "decided from what was before"
    made = tables.get(1)
    assert (made.standing.since_ms, tables.tally(made, now)) == (now, Tally(2, 2, 0, 0, spare=2, all=10))
    wave = {row.device: row.wave for row in tables.boards(1)}
    assert (wave[first[0]], wave[first[1]]) == (1, 0)
    assert len({one.device for one in tables.due(now, 0)}) == 3, "the one that left may still take it when it is back"


def test_a_step_counts_only_where_it_was_decided(tables):
    made = tables.make(TWO, "http://x/y.ekb", PLAN, NAMES, 1000)
    tables.speak(1, "pause", 1100)
    assert not tables.step(made, replace(made.standing, wave=1, since_ms=1200), 1200)
    assert tables.get(1).standing.state == "paused"


class AnyOrder(RuleBasedStateMachine):
    """Boards that end in any way at any time, an operator, a server that is killed between any two steps."""

    @initialize(n=st.integers(1, 12), waves=st.sampled_from([(1.0,), (0.01, 1.0), (0.2, 0.5, 1.0)]),
                undo=st.booleans())  # fmt: skip
    def make(self, n, waves, undo):
        self.store = SqliteStore.open(Path(":memory:"))
        self.tables = RolloutTables(self.store)
        self.now, self.plan = 1000, replace(PLAN, waves=waves, undo=undo, abort_over=0.3)
        self.rollout = self.tables.make(TWO, "http://x/y.ekb", self.plan, NAMES[:n] if n <= 10 else NAMES, self.now)
        self.boards = dict.fromkeys(NAMES[:n], "1")  # what each runs
        self.orders = {}  # what each was sent last: (rev, version) or None
        self.done = {}  # (device, rev) -> phase
        self.first_orders = {}
        self.waves_seen = [0]
        self.was = "running"

    def look(self):
        self.rollout = self.tables.get(1)
        return self.rollout.standing

    @rule(forward=st.integers(1, 100_000), verdict=st.sampled_from([SAME, SAME, SAME, WORSE, UNKNOWN]))
    def server(self, forward, verdict):
        self.now += forward
        rollout = self.tables.get(1)
        after = decide(rollout.plan, rollout.standing, self.tables.tally(rollout, self.now), verdict, self.now)
        if after != rollout.standing:
            assert self.tables.step(rollout, after, self.now)
        self.waves_seen.append(self.look().wave)

    @rule(arrives=st.lists(st.booleans(), min_size=12, max_size=12), marked=st.booleans())
    def publish(self, arrives, marked):
        """marked: the server lived to write down that it published."""
        due = self.tables.due(self.now, 10_000)
        for one, here in zip(due, arrives, strict=False):
            if one.order is not None and one.want == "new":
                self.first_orders.setdefault(one.device, []).append(one.rev)
            if here:
                self.orders[one.device] = None if one.order is None else (one.order.rev, one.order.version)
        if marked:
            self.tables.mark_published(due, self.now)

    @rule(which=st.integers(0, 11), phase=st.sampled_from(PHASES), heard=st.booleans())
    def board(self, which, phase, heard):
        device = sorted(self.boards)[which % len(self.boards)]
        order = self.orders.get(device)
        if order is None:
            return
        rev, version = order
        phase = self.done.setdefault((device, rev), phase) if phase in FINAL else phase
        if (device, rev) in self.done:
            phase = self.done[device, rev]
        if phase == "committed":
            self.boards[device] = version
        if heard:
            self.tables.report([(device, OrderReport(rev, phase, self.boards[device], former=FORMER))], self.now)

    @rule(word=st.sampled_from(["pause", "resume", "abort", "undo"]))
    def operator(self, word):
        try:
            self.tables.speak(1, word, self.now)
        except FleetError:
            assert self.look().state not in {"pause": ["running"], "resume": ["paused"]}.get(word, [])

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def restart(self):
        self.tables = RolloutTables(self.store)

    @invariant()
    def no_wave_twice_and_none_lost(self):
        if not hasattr(self, "store"):
            return
        standing, boards = self.look(), self.tables.boards(1)
        assert len(boards) == len(self.boards)
        assert self.waves_seen == sorted(self.waves_seen)
        assert all(len(set(revs)) == 1 for revs in self.first_orders.values())
        if standing.state in ("running", "done"):
            assert all((row.want == "new") == (row.wave <= standing.wave) for row in boards)
            assert standing.state == "done" or standing.evidence in ((), (1.5, 0.0))
        if standing.state == "done":
            assert all(row.want == "new" for row in boards)
        if standing.state in ("undoing", "undone"):
            assert all(row.want in ("", "former", "none") for row in boards)
        if standing.state not in ACTIVE:
            assert self.tables.all(active=True) == []

    def teardown(self):
        if not hasattr(self, "store"):
            return
        if self.look().state in ("undoing", "undone"):
            self.come_back()
        self.store.close()

    def come_back(self):
        """Everything arrives from now on: then every board runs what it ran before."""
        for _ in range(4):
            said = [(device, OrderReport(rev, phase, self.boards[device], former=FORMER))
                    for (device, rev), phase in self.done.items()]  # fmt: skip
            self.tables.report(said, self.now)
            self.now += 20_000
            for one in self.tables.due(self.now, 10_000):
                self.orders[one.device] = None if one.order is None else (one.order.rev, one.order.version)
            for device, order in self.orders.items():
                if order is not None and (device, order[0]) not in self.done:
                    self.done[device, order[0]] = "committed"
                    self.boards[device] = order[1]
        gone = {
            device
            for (device, rev), phase in self.done.items()
            if rev == self.rollout.undo_rev and phase != "committed"
        }
        assert {device for device, version in self.boards.items() if version != "1"} <= gone


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


@given(st.integers(1, 2**53), st.sets(st.text("abcdef0123", min_size=3, max_size=8), max_size=30))
@settings(max_examples=50)
def test_every_board_has_one_wave(rev, names):
    waves = waves_of(rev, names, (0.01, 0.1, 1.0))
    assert set(waves) == names
    assert set(waves.values()) <= {0, 1, 2}

"""Verdicts on a new version: the real store, tables and rule under a clock of the test; then many simulated fleets."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fleet.boards import NOW, arrival, birth, histogram
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.verdicts import LAWS, VERSIONS, roll_out, run_beside
from edgekit.fleet.rollout_runner import Rolling
from edgekit.fleet.rollouts.comparison import (
    LEAST_ANSWERS,
    BadCounts,
    BoardFigures,
    Figures,
    beyond,
    compare,
    contrast,
    likelihood_ratio,
    usual_quarters,
)
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, fitting
from edgekit.fleet.rollouts.waves import RolloutPlan
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_runtime.install.orders import Former, OrderReport
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.link import Broker

TWO = RolloutBundle("digits", "2", "raspberry-pi-4", ("raspberry-pi-4",), "b" * 64, "b" * 12, 1000)
MINUTE = 60_000


@pytest.fixture
def store():
    """The rule is the same on each database; tests/contracts has what differs."""
    store = SqliteStore.open(Path(":memory:"))
    yield store
    store.close()


@dataclass
class Habit:
    """per_minute: requests. ms: usual latency. errors: share of the requests. there: whether the board is on.
    slower, worse: with the new version, times and more errors. fails: how often an hour nearly every request of a
    report fails, with any version. group: its label."""

    per_minute: float = 12.0
    ms: float = 20.0
    errors: float = 0.0
    there: bool = True
    slower: float = 1.0
    worse: float = 0.0
    fails: float = 0.0
    group: str = ""


@dataclass
class Fleet:
    """Boards that report every five minutes, and take orders at once; a server without a broker."""

    store: object
    habits: dict[str, Habit]
    seed: int = 0
    now: int = NOW
    moved: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.draw, self.seq = random.Random(self.seed), 0
        self.rolling = Rolling(Broker.parse("mqtt://127.0.0.1:1"), self.store)
        self.tables = self.rolling.tables
        self.store.commit([], [birth(name, received=self.now) for name in self.habits])

    def pass_time(self, minutes=5):
        self.now += minutes * MINUTE
        self.seq += 1
        sent = []
        for name, habit in self.habits.items():
            if not habit.there:
                continue
            new = name in self.moved
            requests = int(habit.per_minute * minutes + self.draw.random())
            share = 0.8 if self.draw.random() < habit.fails * minutes / 60 else habit.errors + habit.worse * new
            failed = sum(self.draw.random() < share for _ in range(requests))
            usual = habit.ms * (habit.slower if new else 1.0)
            ms = [usual * self.draw.lognormvariate(0, 0.2) for _ in range(requests - failed)]
            sent.append(arrival(self.seq, name, at=self.now, received=self.now, ms=ms, errors=failed, over=0,
                                version="2" if new else "1"))  # fmt: skip
        self.store.commit(sent, [])
        self.store.look_for_silence(self.now)

    def report(self):
        """Boards do what they were ordered."""
        said = []
        for due in self.tables.due(self.now, 0):
            if due.order is None or not self.habits[due.device].there:
                continue
            (self.moved.add if due.want == "new" else self.moved.discard)(due.device)
            former = Former("1", "a" * 64)
            said.append((due.device, OrderReport(due.rev, "committed", due.order.version, former=former)))
        self.tables.report(said, self.now)

    def roll_out(self, plan=None, hours=12, hours_before=3):
        """The standing when it ends or pauses."""
        for _ in range(hours_before):
            self.pass_time(60)
        made = self.tables.make(TWO, "http://x/y.ekb", plan or RolloutPlan(), list(self.habits), self.now)
        for _ in range(hours * 12):
            self.report()
            self.pass_time()
            self.rolling.step(self.now)
            standing = self.tables.get(made.id).standing
            if standing.state != "running":
                break
        return standing


def fleet_of(store, boards, *, seed=0, **habit):
    return Fleet(store, {f"porch-{n}": Habit(**habit) for n in range(boards)}, seed)


def unlike(store, boards, seed, **habit):
    """Boards of different traffic, speed and errors; one has a hundred times the answers of the others."""
    draw = random.Random(seed)
    habits = {
        f"porch-{n}": Habit(draw.choice([2, 6, 12, 30]), draw.uniform(9, 90), draw.choice([0, 0, 0.001, 0.02]), **habit)
        for n in range(boards)
    }
    habits["porch-3"] = replace(habits["porch-3"], per_minute=300, ms=2.0)
    return Fleet(store, habits, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_faultless_version_is_done_on_boards_unlike_each_other(store, seed):
    """The first wave's board may be the slowest of the fleet, or the one that fails most: it always was."""
    standing = unlike(store, 30, seed).roll_out()
    assert (standing.state, standing.why) == ("done", "every wave has committed")


WORSE = {"1.8 times slower": Habit(slower=1.8), "2 % more errors": Habit(worse=0.02)}


@pytest.mark.parametrize("habit", WORSE.values(), ids=WORSE)
@pytest.mark.parametrize("boards", [6, 40])
def test_a_worse_version_is_undone_beside_one_busy_old_board(store, boards, habit):
    fleet = fleet_of(store, boards, slower=habit.slower, worse=habit.worse)
    fleet.habits["porch-3"] = Habit(per_minute=600, ms=2.0)
    standing = fleet.roll_out()
    assert standing.state == "undoing", standing
    assert ("slower: p" if habit.slower > 1 else "more errors: ") in standing.why
    assert standing.why.endswith("boards")
    fleet.report()
    fleet.rolling.step(fleet.now)
    assert fleet.tables.get(1).standing.state == "undone"


@pytest.mark.parametrize(("worse", "state"), [(0.02, "undoing"), (0.0, "done")])
def test_boards_that_fail_by_themselves_hide_nothing(store, worse, state):
    """Each board fails four of five requests in one of twenty hours: the mean of its day is 4 % already."""
    assert fleet_of(store, 20, fails=0.05, worse=worse).roll_out(hours_before=24).state == state


BESIDE = {
    "equal": (Habit(), "done", "every wave has committed"),
    "worse": (Habit(worse=0.02), "undoing", "wave 1: more errors: "),
    "slower": (Habit(slower=1.8), "undoing", "wave 1: slower: p9"),
    "better": (Habit(errors=0.05, worse=-0.05), "done", "every wave has committed; fewer errors: 0.00% of "),
    "faster": (Habit(slower=0.5), "done", "every wave has committed; faster: p9"),
}


@pytest.mark.parametrize(("habit", "state", "why"), BESIDE.values(), ids=BESIDE)
def test_a_version_is_compared_beside_boards_of_another_label(store, habit, state, why):
    """Twelve boards of one group run it; twelve of the other keep theirs, and receive no order."""
    fleet = fleet_of(store, 24)
    for n, name in enumerate(fleet.habits):
        fleet.habits[name] = replace(habit, group="b") if n % 2 else replace(habit, slower=1.0, worse=0.0, group="a")
    store.commit([], [birth(name, group=one.group) for name, one in fleet.habits.items()])
    plan = RolloutPlan((1.0,), settle_s=3600.0, against=("group", "a"))
    devices = fitting(TWO, store.fleet(), against=plan.against)
    assert devices == sorted(name for name, one in fleet.habits.items() if one.group == "b")
    for _ in range(3):
        fleet.pass_time(60)
    number = fleet.tables.make(TWO, "http://x/y.ekb", plan, devices, fleet.now).id
    while (standing := fleet.tables.get(number).standing).state == "running":
        fleet.report()
        fleet.pass_time()
        fleet.rolling.step(fleet.now)
    assert standing.state == state
    assert standing.why.startswith(why)
    errors = next(one for one in fleet.tables.figures(number) if one.name == "errors")
    assert errors.votes == 12
    assert errors.others[1] > 0, "the others' answers are shown beside them"
    assert (errors.sure >= 1) == why.startswith("wave 1: more errors")
    assert all(f"{cell}".count("%") == 3 for cell in errors.cells()[:4]), "each share with its interval"


def test_a_label_that_no_board_has_is_refused(store):
    fleet = fleet_of(store, 3)
    with pytest.raises(FleetError, match="--against group=x: no board with this label runs digits"):
        fitting(TWO, store.fleet(), against=("group", "x"))
    assert len(fitting(TWO, store.fleet())) == len(fleet.habits)
    with pytest.raises(FleetError, match="--against"):
        RolloutPlan(against=("colour", "red"))


def test_a_hostile_board_in_the_first_wave_stops_nothing(store):
    fleet = fleet_of(store, 30)
    for _ in range(3):
        fleet.pass_time(60)
    made = fleet.tables.make(TWO, "http://x/y.ekb", RolloutPlan(), list(fleet.habits), fleet.now)
    (first,) = (row.device for row in fleet.tables.boards(made.id) if row.wave == 0)
    fleet.habits[first] = Habit(worse=1.0, slower=50.0)
    while (standing := fleet.tables.get(made.id).standing).state == "running":
        fleet.report()
        fleet.pass_time()
        fleet.rolling.step(fleet.now)
    assert standing.state == "done"
    assert len([row for row in fleet.tables.boards(made.id) if row.wave == 0]) == 3, "two more were asked"


def test_a_hostile_board_does_not_wave_a_worse_version_through(store):
    fleet = fleet_of(store, 10, worse=0.1)
    fleet.habits["porch-0"] = Habit(per_minute=600, ms=0.01)
    fleet.habits["porch-1"] = Habit(errors=1.0)
    assert fleet.roll_out().state == "undoing"


def test_a_door_bell_with_a_request_a_minute_is_judged(store):
    """It takes hours, and no longer than a day a wave."""
    fleet = fleet_of(store, 10, per_minute=1.0)
    assert fleet.roll_out(hours=60, hours_before=12).state == "done"
    assert fleet.now - NOW < 40 * 60 * MINUTE


def test_a_worse_one_at_a_door_bell_is_undone(store):
    standing = fleet_of(store, 10, per_minute=1.0, slower=20.0).roll_out(hours=60, hours_before=12)
    assert standing.state == "undoing"


def test_where_the_only_board_of_a_wave_is_gone_another_takes_its_place(store):
    fleet = fleet_of(store, 10)
    for _ in range(3):
        fleet.pass_time(60)
    made = fleet.tables.make(TWO, "http://x/y.ekb", RolloutPlan(), list(fleet.habits), fleet.now)
    (first,) = (row.device for row in fleet.tables.boards(made.id) if row.wave == 0)
    fleet.habits[first] = Habit(there=False)
    began = fleet.now
    while fleet.tables.get(made.id).standing.wave == 0:
        fleet.report()
        fleet.pass_time()
        fleet.rolling.step(fleet.now)
        assert fleet.now - began < 60 * MINUTE
    assert fleet.tables.get(made.id).standing.state == "running"


def test_a_wave_of_boards_that_are_all_gone_pauses_nothing_for_ever(store):
    """Five of ten are offline and come last; they install when they come back."""
    fleet = fleet_of(store, 10)
    gone = [f"porch-{n}" for n in range(5)]
    fleet.pass_time(60)
    fleet.habits |= dict.fromkeys(gone, Habit(there=False))
    standing = fleet.roll_out(hours=60)
    assert (standing.state, standing.wave) == ("done", 3)
    assert standing.why == "every wave has committed; 5 boards install it when they come back"
    assert fleet.now - NOW < 40 * 60 * MINUTE
    fleet.habits |= dict.fromkeys(gone, Habit())
    fleet.report()
    assert fleet.moved == set(fleet.habits)


def test_where_all_boards_are_gone_the_operators_word_is_enough(store):
    """It pauses after a day; `resume` does not begin another one for the same wave."""
    fleet = fleet_of(store, 4)
    fleet.pass_time(60)
    fleet.habits = dict.fromkeys(fleet.habits, Habit(there=False))
    standing = fleet.roll_out(hours=30)
    assert (standing.state, standing.why) == ("paused", "no board of wave 1 finished in time")
    fleet.tables.speak(1, "resume", fleet.now)
    for _ in range(4):
        fleet.pass_time(5)
        fleet.rolling.step(fleet.now)
    assert fleet.tables.get(1).standing.wave == 1


def test_boards_that_fall_silent_with_the_new_version_stop_it(store):
    fleet = fleet_of(store, 20)
    for _ in range(3):
        fleet.pass_time(60)
    made = fleet.tables.make(TWO, "http://x/y.ekb", RolloutPlan(), list(fleet.habits), fleet.now)
    for _ in range(36):
        fleet.report()
        fleet.habits |= dict.fromkeys(fleet.moved, Habit(there=False))
        fleet.pass_time()
        fleet.rolling.step(fleet.now)
    standing = fleet.tables.get(made.id).standing
    assert (standing.state, standing.wave) == ("undoing", 0)
    assert standing.why == "wave 1: offline since they installed it, on 3 of 3 boards"


def test_what_happens_to_all_boards_is_not_the_versions(store):
    fleet = fleet_of(store, 12)
    for _ in range(3):
        fleet.pass_time(60)
    made = fleet.tables.make(TWO, "http://x/y.ekb", RolloutPlan(), list(fleet.habits), fleet.now)
    while (standing := fleet.tables.get(made.id).standing).state == "running":
        fleet.report()
        fleet.habits = dict.fromkeys(fleet.habits, Habit(ms=20.0 + min(20.0, (fleet.now - made.made_ms) / 3 / MINUTE)))
        fleet.pass_time()
        fleet.rolling.step(fleet.now)
    assert standing.state == "done", standing


# The comparison itself.


def figures(errors=0, n=LEAST_ANSWERS, ms=20.0, psi=None):
    return Figures(n - errors, errors, 0, histogram([ms] * (n - errors)), psi)


def boards(*several):
    return [BoardFigures(f"porch-{n}", *one) for n, one in enumerate(several)]


OLD = figures(n=17_000, errors=17)
COMPARED = {
    "the same": ([(OLD, figures())] * 3, "same"),
    "no errors before or since": ([(figures(n=17_000), figures())] * 3, "same"),
    "one error": ([(figures(n=17_000), figures(1))] + [(OLD, figures())] * 2, "same"),
    "errors on three": ([(OLD, figures(9))] * 3, "worse"),
    "errors on one of three": ([(OLD, figures(300))] + [(OLD, figures())] * 2, "same"),
    "errors on two of three": ([(OLD, figures(300))] * 2 + [(OLD, figures())], "unknown"),
    "errors on two of three for long": ([(OLD, figures(1200, 1200))] * 2 + [(OLD, figures(0, 1200))], "same"),
    "slower": ([(OLD, figures(ms=30.0))] * 3, "worse"),
    "a tenth slower": ([(OLD, figures(ms=22.0))] * 3, "same"),
    "drift": ([(OLD, figures(psi=0.5))] * 3, "worse"),
    "drift that was there": ([(replace(OLD, psi=0.45), figures(psi=0.5))] * 3, "same"),
    "drift on one": ([(OLD, figures(psi=0.5)), *[(OLD, figures(psi=0.05))] * 2], "same"),
    "too few answers": ([(OLD, figures(n=LEAST_ANSWERS - 1))] * 3, "unknown"),
    "no answers before": ([(Figures(), figures())] * 3, "unknown"),
    "no boards": ([], "unknown"),
}


@pytest.mark.parametrize(("several", "says"), COMPARED.values(), ids=COMPARED)
def test_the_comparison(several, says):
    verdict = compare(boards(*several), [], boards=100, waves=4)
    assert verdict.says == says
    assert bool(verdict.why) == (says != "same")


def test_of_one_or_two_boards_one_is_enough_and_of_three_another_must_agree():
    (alone,) = boards((OLD, figures(60)))
    assert compare([alone], [], boards=1, waves=4).says == "worse"
    assert compare([alone], [], boards=2, waves=4).says == "worse"


def test_what_befalls_all_boards_is_not_the_versions_where_the_others_have_hardly_answered():
    """A tenth of the answers is late everywhere; of the few that the others gave, on one board alone by chance."""
    before, late = Figures(17_500, 0, 50), Figures(20, 0, 2)
    wave = boards(*[(before, late)] * 5)
    few = boards((before, late), *[(before, Figures(20))] * 4)
    assert compare(wave, few, boards=10, waves=4).says == "unknown"
    assert compare(wave, few * 4, boards=10, waves=4).says == "unknown", "a fifth of the others are worse, too"
    well = boards(*[(before, Figures(100))] * 5)
    assert compare(wave, well, boards=10, waves=4).says == "worse"
    enough = boards(*[(before, Figures(300, 0, 30))] * 5)
    assert compare(enough, few, boards=10, waves=4).says == "worse", "it does not wait for boards that are idle"
    assert compare(wave, [], boards=10, waves=4).says == "worse"
    new = boards(*[(Figures(), Figures(20))] * 5)
    assert compare(wave, new, boards=10, waves=4).says == "worse", "nor for boards without a past, which have no vote"


@pytest.mark.parametrize(("size", "unusual", "says"), [(40, 0.09, "same"), (40, 0.0, "worse"), (9, 0.09, "worse")])
def test_of_many_boards_that_fail_by_themselves_some_may_fail_just_now(size, unusual, says):
    """Eight fail outright, and none of the others: in a wave of forty that is no more than their own past says."""
    before = replace(OLD, unusual=unusual)
    wave = boards(*[(before, figures(30, 40))] * 8, *[(before, figures(0, 40))] * (size - 8))
    others = boards(*[(before, figures(0, 40))] * 40)
    assert compare(wave, others, boards=100, waves=4).says == says
    every = boards(*[(before, figures(20, 200))] * size)
    assert compare(every, others, boards=100, waves=4).says == "worse", "a version that is worse everywhere"


def test_the_evidence_of_a_wave_adds_to_the_next():
    few = boards((OLD, figures(4)), (OLD, figures()))
    first = compare(few, [], boards=100, waves=4)
    assert (first.says, max(first.evidence) > 0) == ("unknown", True) or first.says == "same"
    later = compare(boards((OLD, figures(9)), (OLD, figures(9))), [], boards=100, waves=4, earlier=first.evidence)
    alone = compare(boards((OLD, figures(9)), (OLD, figures(9))), [], boards=100, waves=4)
    assert max(later.evidence) >= max(alone.evidence)


@given(
    st.floats(0, 0.3), st.integers(1, 400), st.integers(1, 400), st.sampled_from([2.0, 8.0]), st.floats(1, 2),
    st.floats(0, 0.01),
)  # fmt: skip
def test_evidence_against_an_equal_version_is_at_most_one_on_average(share, before, since, times, margin, allowance):
    """Over all counts that are possible, whatever the share before is."""

    def chances(of, share):
        return [math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(of + 1)]

    worst = min(1.0, margin * share + allowance)
    then, now = chances(min(before, 60), share), chances(min(since, 60), worst)
    mean = sum(
        p * q * likelihood_ratio(BadCounts(x, len(then) - 1, y, len(now) - 1), times, margin, allowance)
        for x, p in enumerate(then)
        for y, q in enumerate(now)
    )
    assert mean <= 1 + 1e-9


def test_slow_answers_are_counted_beyond_the_slowest_of_before():
    before = histogram([10.0] * 990 + [50.0] * 10)
    assert beyond(before, histogram([10.0] * 99 + [70.0]), 0.01, 1.25) == BadCounts(11, 1000, 1, 100)
    assert beyond(before, histogram([10.0] * 99 + [60.0]), 0.01, 1.25).bad == 0
    assert beyond(before, Histogram(), 0.01, 1.25) == BadCounts(11, 1000, 0, 0)
    assert beyond(Histogram(), histogram([5.0]), 0.01, 1.25) == BadCounts(1, 0, 0, 1)


QUARTERS = {
    "no errors": ([(180, 0, 0)] * 96, set()),
    "a few by chance": ([(180, n % 3 == 0, n % 5 == 0) for n in range(96)], set()),
    "two of them alone": ([(180, 0, 0)] * 94 + [(180, 140, 0), (180, 0, 170)], {94, 95}),
    "always": ([(180, 150, 0)] * 96, set()),
    "a third of the day": ([(180, 2, 0)] * 64 + [(180, 90, 0)] * 32, set(range(64, 64 + 19))),
    "no requests": ([(0, 0, 0)] * 4 + [(10, 0, 0)], {0, 1, 2, 3}),
    "one": ([(100, 100, 0)], set()),
    "none": ([], set()),
}


@pytest.mark.parametrize(("quarters", "left_out"), QUARTERS.values(), ids=QUARTERS)
def test_quarters_in_which_a_board_failed_by_itself_are_left_out(quarters, left_out):
    """At most a fifth of them, and only beyond chance."""
    kept = set(usual_quarters(quarters))
    assert len(set(range(len(quarters))) - kept) == len(left_out)
    if quarters and quarters[-1] != quarters[0] and len(left_out) < 19:
        assert set(range(len(quarters))) - kept == left_out


def test_better_is_worse_with_the_times_exchanged():
    bad, good = figures(60, n=2000), figures(0, n=2000)
    a, b = boards(*[(bad, bad)] * 5), boards(*[(bad, good)] * 5)
    found = contrast(a, b, boards=5)
    assert (found.says, found.why) == (
        "better", "fewer errors: 0.00% of 10,000 against 3.00% of 10,000 before, on 5 of 5 boards"
    )  # fmt: skip
    assert contrast(b, boards(*[(good, bad)] * 5), boards=5).says == "worse"
    assert contrast(a, a, boards=5).says == "same"
    assert contrast(b, b, boards=5).says == "same", "both became better: not the version's"


@pytest.mark.parametrize("law", ["equal boards", "boards unlike each other", "bursts, 5 % of the time"])
def test_equal_versions_beside_each_other_are_not_called_different(law):
    assert [run_beside(LAWS[law], VERSIONS["equal"], 10, seed).says for seed in range(3)] == ["same"] * 3


# Many fleets; benchmarks/fleet/verdicts.py has a thousand of each.

SEEDS = range(4)


@pytest.mark.parametrize("law", LAWS)
def test_an_equal_version_is_done_whatever_the_traffic(law):
    assert [roll_out(LAWS[law], VERSIONS["equal"], 10, seed).state for seed in SEEDS] == ["done"] * len(SEEDS)


@pytest.mark.parametrize(("boards", "seed"), [(10, 47), (10, 63), (1000, 27)])
def test_an_equal_version_is_done_where_all_boards_become_slower(boards, seed):
    """Fleets in which a wave had more late answers by chance than the few of the others."""
    law = LAWS["all slower within an hour, 1.5 times"]
    assert roll_out(law, VERSIONS["equal"], boards, seed).state == "done"


@pytest.mark.parametrize("version", ["1.4 times slower", "2 % more errors"])
@pytest.mark.parametrize("law", ["equal boards", "heavy-tailed traffic", "one busy board", "no errors"])
def test_a_worse_version_is_undone_whatever_the_traffic(law, version):
    assert [roll_out(LAWS[law], VERSIONS[version], 10, seed).state for seed in SEEDS] == ["undoing"] * len(SEEDS)

"""Roll-outs that first answer in silence: the rule on simulated boards, the real store, and how a roll-out goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fleet.asgi import Client
from fleet.boards import NOW, arrival, birth

from benchmarks.fleet.shadows import LAWS, shadow_rollout
from edgekit.fleet.pages.app import Facts, make_app
from edgekit.fleet.pages.forms import phase_words
from edgekit.fleet.rollout_runner import Rolling
from edgekit.fleet.rollouts.comparison import Verdict
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle
from edgekit.fleet.rollouts.shadows import BOARDS, ShadowFigures, describe, judge
from edgekit.fleet.rollouts.waves import SHADOW, RolloutPlan, RolloutStanding, Tally, decide, obey
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.install.orders import OrderReport
from edgekit_runtime.telemetry.histogram import Histogram, ShadowWindow
from edgekit_runtime.telemetry.link import Broker

TWO = RolloutBundle("digits", "2", "raspberry-pi-4", ("raspberry-pi-4",), "b" * 64, "c" * 12, 1000)
PLAN = RolloutPlan((0.2, 1.0), settle_s=60.0, shadow=0.05)
NAMES = [f"porch-{n:02}" for n in range(20)]


def figures(device, n, others=0, ratio=1.0, rests=""):
    ratios = Histogram(scale=3)
    for _ in range(n):
        ratios.record(ratio)
    return ShadowFigures(TWO.sha256[:12], n, n - others, 0, ratios, rests=rests, device=device)


@pytest.mark.parametrize("law", LAWS)
def test_equal_versions_pass_and_five_percent_of_other_answers_are_refused(law):
    """One of 100 may fail for the equal, one of 20 for the other; the benchmark has 1,000 runs each."""
    equal = [shadow_rollout(LAWS[law], 10, 0.0, seed).says for seed in range(12)]
    other = [shadow_rollout(LAWS[law], 10, 0.05, seed).says for seed in range(12)]
    assert equal.count("same") == 12
    assert other.count("worse") >= 11
    assert other.count("same") <= 1


@pytest.mark.parametrize("of", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("says", ["same", "worse"])
def test_one_board_decides_nothing_however_much_it_answers(of, says):
    lone = figures("a", 100_000, 0 if says == "same" else 100_000)
    assert judge([lone], of=of).says == "unknown"
    agree = [figures(str(n), 200) for n in range(9)]
    if says == "worse":
        assert judge([lone, *agree], of=1000).says == "same"
    else:
        assert judge([lone, *(figures(str(n), 400, 40) for n in range(9))], of=1000).says == "worse"


def test_no_answers_decide_nothing_and_say_why():
    found = judge([figures("a", 0, rests="hot"), figures("b", 0, rests="memory"), figures("c", 0)], of=10)
    assert found.says == "unknown"
    assert "none of 3 boards" in found.why
    assert "hot on 1" in found.why


def test_what_costs_too_much_or_does_not_run_is_refused():
    assert judge([figures(str(n), 200, ratio=1.9) for n in range(3)], of=10).why.startswith("it is slower")
    assert judge([figures(str(n), 200, ratio=1.9 if n < 2 else 1.0) for n in range(9)], of=10).says == "same"
    broken = [figures(str(n), 0, rests="engine") for n in range(3)]
    assert judge(broken, of=10).why == "it does not run on 3 of 3 boards (engine 3)"
    assert judge([*broken[:2], *(figures(f"b{n}", 200) for n in range(8))], of=10).says == "same"


def test_what_is_shown_has_its_interval():
    assert describe([figures("a", 500, 1), figures("b", 500)]).startswith(
        "99.9% of 1,000 answers agree (99.4% to 100.0%), on 2 of 2 boards, 0.96 times as long as the active version"
    )


def test_steps_of_a_roll_out_before_its_first_wave():
    began = RolloutStanding(wave=SHADOW, since_ms=0)
    nothing = Tally(0, 0, 0, 0, all=20)
    same, worse, unknown = (Verdict(says, says) for says in ("same", "worse", "unknown"))
    assert decide(PLAN, began, nothing, same, 59_000) == began
    assert decide(PLAN, began, nothing, same, 61_000).wave == 0
    stopped = decide(PLAN, began, nothing, worse, 1_000)
    assert (stopped.state, stopped.why) == ("aborted", "shadow: worse")
    assert decide(PLAN, began, nothing, unknown, 3_600_000) == began
    paused = decide(PLAN, began, nothing, unknown, 2 * 24 * 3_600_000)
    assert (paused.state, paused.by_word) == ("paused", False)
    resumed = obey("resume", paused, 0)
    assert decide(PLAN, resumed, nothing, unknown, 1).wave == 0


@pytest.fixture
def store():
    store = SqliteStore.open(Path(":memory:"))
    yield store
    store.close()


def answer_in_silence(store, seq, others=0, why="", n=60, sha=TWO.sha256[:12]):
    sent = []
    for name in NAMES:
        ratios = Histogram(scale=3)
        for _ in range(n):
            ratios.record(1.0)
        one = arrival(seq, name)
        shadow = ShadowWindow(sha, n, n - others, 2, ratios, 20.0, 60.0, None, why)
        sent.append(replace(one, window=replace(one.window, shadow=shadow)))
    store.commit(sent, [])


def test_shadows_are_ordered_counted_once_and_end_before_the_waves(store):
    store.commit([], [birth(name) for name in NAMES])
    rolling = Rolling(Broker.parse("mqtt://127.0.0.1:1"), store)
    tables = rolling.tables
    made = tables.make(TWO, "http://fleet/b.ekb", PLAN, NAMES, NOW)
    due = tables.due(NOW, 60_000)
    assert len(due) == BOARDS
    assert {(one.want, one.order.shadow, one.order.rev) for one in due} == {("shadow", 0.05, made.rev - 1)}
    tables.mark_published(due, NOW)
    reports = [(one.device, OrderReport(made.rev - 1, "shadowing", "1", sha256=TWO.sha256)) for one in due]
    tables.report(reports, NOW)
    assert tables.due(NOW + 3_600_000, 60_000) == []
    answer_in_silence(store, 1)
    answer_in_silence(store, 1)  # a window that comes twice
    answer_in_silence(store, 2)
    found = tables.shadows(tables.get(made.id))
    assert [(one.n, one.same, one.skipped, one.ms) for one in found] == [(120, 120, 4, 20.0)] * BOARDS
    rolling.step(NOW + 61_000)
    standing = tables.get(made.id).standing
    assert (standing.state, standing.wave) == ("running", 0)
    assert standing.why.startswith("shadow: 100.0% of 1,200 answers agree (99.")
    due = tables.due(NOW + 61_000, 60_000)
    assert sorted(one.order.shadow if one.order else None for one in due if one.order) == [0.0] * 4
    assert sum(one.order is None for one in due) == BOARDS - 4
    tables.mark_published(due, NOW + 61_000)
    assert tables.due(NOW + 62_000, 60_000) == []


def test_a_version_that_answers_otherwise_is_withdrawn_and_no_board_moves(store):
    store.commit([], [birth(name) for name in NAMES])
    rolling = Rolling(Broker.parse("mqtt://127.0.0.1:1"), store)
    made = rolling.tables.make(TWO, "http://fleet/b.ekb", PLAN, NAMES, NOW)
    rolling.tables.mark_published(rolling.tables.due(NOW, 60_000), NOW)
    answer_in_silence(store, 1, others=6)
    rolling.step(NOW + 5_000)
    standing = rolling.tables.get(made.id).standing
    assert standing.state == "aborted"
    assert standing.why.startswith("shadow: its answers differ: 90.0% of 600 answers agree")
    due = rolling.tables.due(NOW + 5_000, 60_000)
    assert [one.order for one in due] == [None] * BOARDS
    assert {row.want for row in rolling.tables.boards(made.id)} == {"none", ""}
    shown = rolling.tables.shadows(rolling.tables.get(made.id))
    assert [(one.n, one.same) for one in shown] == [(60, 54)] * len(NAMES), "an operator reads afterwards why"
    page = Client(make_app(store, Facts(dict, dict, ""), rollouts=rolling.tables)).get(f"/rollouts/{made.id}").text
    assert "Stopped: no board has the new version." in page
    assert "Shadow answers" in page
    assert "updated boards" not in page
    assert (phase_words("none", "shadowing"), phase_words("shadow", "shadowing")) == (
        ("withdrawn", "off"), ("shadow runs", "on"),
    )  # fmt: skip


def test_a_board_keeps_few_shadows_and_none_when_it_is_forgotten(store):
    store.commit([], [birth(name) for name in NAMES])
    for number in range(9):
        answer_in_silence(store, number + 1, sha=f"{number:012x}")
    assert store.select("SELECT count(*), max(n) FROM shadow") == [(4 * len(NAMES), 60)]
    store.forget(NAMES[0])
    assert store.select("SELECT count(*) FROM shadow") == [(4 * (len(NAMES) - 1),)]

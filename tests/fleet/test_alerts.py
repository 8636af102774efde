"""Alerts: what is found, when it clears, who is told, and rules tried on stored data."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import random
import threading
import time
from dataclasses import dataclass, replace

import pytest
from fleet.boards import NOW, arrival, birth, histogram
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from edgekit.fleet.alert_runner import Alerting, replay
from edgekit.fleet.alerts.alert_rules import (
    AlertFinding,
    Snapshot,
    Trouble,
    chance,
    evaluate,
    interval,
    silent,
)
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.alerts.rules_file import Rules, read_rules
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.records import BoardLatency, Rollup

FIVE = 300_000
AT = NOW - NOW % FIVE
BUILD = ("net", "7", "raspberry-pi-4")


def window(ago, ms, *, version="7", n=200, inference=None, queue=1.0, **changes):
    """A roll-up that ended `ago` windows before AT."""
    stages = {"inference": histogram([inference or ms] * n), "queue": histogram([queue] * n)}
    sums = {"windows": 5, "dur_ms": FIVE, "n": n, "errors": 0, "hits": 0, "misses": 0, "host": 0, "over": 0}
    return Rollup(AT - (ago + 1) * FIVE, FIVE, "net", version, "raspberry-pi-4", **(sums | changes),
                  latency={"device": histogram([ms] * n)}, stages=stages)  # fmt: skip


def seen(*rows, **more):
    budgets = {(row.model, row.version, row.profile): 30.0 for row in rows}
    return Snapshot(AT, sorted(rows, key=lambda row: row.start_ms), budgets, **more)


P99 = {
    "twice above twice the budget": ([window(1, 70), window(0, 70)], (), True),
    "once": ([window(1, 20), window(0, 70)], (), False),
    "twice, and not twice the budget": ([window(1, 55), window(0, 55)], (), False),
    "too few answers": ([window(1, 70), window(0, 70, n=99)], (), False),
    "still above 1.5 times": ([window(1, 50), window(0, 50)], ("p99:net:7:raspberry-pi-4",), True),
    "few answers clear nothing": ([window(1, 70, n=40), window(0, 70, n=40)], ("p99:net:7:raspberry-pi-4",), True),
    "below it": ([window(1, 40), window(0, 40)], ("p99:net:7:raspberry-pi-4",), False),
    "long ago": ([window(9, 70), window(8, 70)], (), False),
}


@pytest.mark.parametrize(("rows", "active", "found"), P99.values(), ids=P99)
def test_p99_is_judged_by_two_windows_and_clears_lower(rows, active, found):
    assert [one.key for one in evaluate(Rules(), seen(*rows), active)] == ["p99:net:7:raspberry-pi-4"] * found


def test_it_names_the_stage_that_grew_and_the_version_since_which():
    rows = [*(window(ago, 18, version="6") for ago in (3, 2)), *(window(ago, 70, inference=65) for ago in (1, 0))]
    (one,) = evaluate(Rules(), seen(*rows))
    assert "net 7 on raspberry-pi-4: p99" in one.text
    assert "2.4 times the budget of 30 ms, over 400 answers; the stage 'inference' grew from" in one.text
    assert one.text.endswith("since version 7; version 6 was not slow")
    assert one.facts["stage"] == "inference"


def test_within_one_version_it_names_the_time_and_the_queue():
    rows = [*(window(ago, 18) for ago in (5, 4, 3, 2)), *(window(ago, 70, inference=18, queue=50) for ago in (1, 0))]
    (one,) = evaluate(Rules(), seen(*rows))
    assert one.facts["stage"] == "queue"
    assert "UTC, within version 7" in one.text


@given(st.data())
def test_the_chance_of_a_count_is_never_below_the_exact_one(data):
    of = data.draw(st.integers(1, 300))
    bad, share = data.draw(st.integers(0, of)), data.draw(st.floats(1e-6, 0.999))
    exact = sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(bad, of + 1))
    found = chance(bad, of, share)
    assert exact * (1 - 1e-9) <= found <= 1
    assert found <= 1.2 * exact or not 1e-300 < exact < 0.02
    assert chance(0, of, share) == 1


def boards(*figures):
    """(p99, answers) of each; or of one, its place in the list."""
    return {BUILD: [BoardLatency(f"porch-{n}", p99, answers) for n, (p99, answers) in enumerate(figures)]}


ONE_SLOW = boards((900, 1000), *[(20, 1000)] * 29)
HIDING = boards((1, 900_000), *[(70, 1000)] * 5, *[(20, 1000)] * 5)


def test_one_board_that_is_slow_alone_is_named():
    slow = seen(window(1, 300), window(0, 300), boards=ONE_SLOW)
    (one,) = evaluate(Rules(), slow)
    assert "; only porch-0 of 30 boards is that slow" in one.text
    assert (one.facts["boards"], one.facts["of"], one.facts["named"]) == (1, 30, ["porch-0"])
    (two,) = evaluate(Rules(), replace(slow, boards=boards((900, 1000), (90, 1000), *[(20, 1000)] * 28)))
    assert "; only porch-0 and porch-1 of 30 boards are that slow" in two.text
    (many,) = evaluate(Rules(), replace(slow, boards=boards(*[(300, 1000)] * 30)))
    assert "only" not in many.text


def test_a_board_with_most_of_the_answers_hides_no_slow_ones():
    """Together their p99 is well; five of eleven are slow by their own."""
    fast = seen(window(1, 1.0), window(0, 1.0), boards=HIDING)
    (one,) = evaluate(Rules(), fast)
    assert "; 5 of 11 boards are slow by their own p99, and porch-0 gives 99% of the answers" in one.text
    assert one.facts["heaviest"] == "porch-0"
    equal = replace(fast, boards={BUILD: [replace_n(board) for board in HIDING[BUILD]]})
    assert evaluate(Rules(), equal) == [], "without one that outweighs them all answers together decide"
    assert evaluate(Rules(), replace(fast, boards=boards((1, 900_000), (70, 1000), (70, 1000)))) == [], "too few"
    well = replace(fast, boards=boards((1, 900_000), *[(50, 1000)] * 5))
    assert evaluate(Rules(), well) == [], "below twice the budget"
    (lasting,) = evaluate(Rules(), well, ["p99:net:7:raspberry-pi-4"])
    assert lasting.kind == "p99", "and it clears at 1.5 times, too"


def replace_n(board):
    return board._replace(n=1000)


def test_in_the_store_a_busy_board_hides_no_slow_ones(store):
    names = [f"porch-{n}" for n in range(6)]
    store.commit([], [birth(name, received=AT - 2 * FIVE) for name in [*names, "busy-1"]])
    for seq in range(1, 11):
        at = AT - 2 * FIVE + seq * 60_000
        slow = [arrival(seq, name, at=at, received=at, ms=[70.0] * 20) for name in names]
        store.commit([*slow, arrival(seq, "busy-1", at=at, received=at, ms=[1.0] * 20_000)], [])
    alerting = Alerting(store, Rules(off=("offline",)), lambda *_, receipt: True)
    alerting.step(AT + 1000)
    (alert,) = alerting.tables.list()
    assert (alert.kind, alert.facts["boards"], alert.facts["of"], alert.facts["heaviest"]) == ("p99", 6, 7, "busy-1")


def test_a_build_that_falls_silent_has_not_recovered(store):
    """No answers for a quarter of an hour: the alert ends, and says for what want."""
    store.commit([], [birth("porch-1", received=AT - 4 * FIVE)])
    store.commit([arrival(n, at=AT - FIVE * 2 + n * 60_000, received=AT, ms=[70.0] * 60) for n in range(1, 11)], [])
    told = []

    def publish(topic, payload, *, receipt):
        told.append(json.loads(payload))
        receipt(True)
        return True

    rules = Rules(topic="ek/alerts", off=("offline",))
    alerting = Alerting(store, rules, publish)
    for at in (AT + 1000, AT + 2 * FIVE, AT + 3 * FIVE + 1000, AT + 3 * FIVE + 2000):
        alerting.step(at)
    assert [one["event"] for one in told] == ["opened", "cleared"]
    assert told[1]["text"].endswith("; no more answers arrive, so recovery is unknown")
    assert told[1]["facts"]["no_data"] is True
    assert alerting.tables.list(active=False)[0].text == told[1]["text"]
    replayed = [finding.text for _, event, finding in replay(store, rules, AT - 6 * FIVE, AT + 4 * FIVE)
                if event == "cleared"]  # fmt: skip
    assert [text.endswith("so recovery is unknown") for text in replayed] == [True]
    for begin, seq, ms in ((4, 11, 70.0), (6, 21, 10.0)):
        at, end = AT + begin * FIVE, AT + (begin + 2) * FIVE
        store.commit([arrival(seq + n, at=at + n * 60_000 + 30_000, received=end, ms=[ms] * 60) for n in range(10)], [])
        alerting.step(end + 1000)
        alerting.step(end + 2000)
    assert [one["event"] for one in told] == ["opened", "cleared", "opened", "cleared"]
    assert "no_data" not in told[3]["facts"]


def test_few_answers_clear_no_share_of_a_host():
    rows = [window(1, 20, n=30, host=2), window(0, 20, n=30, host=2)]
    assert evaluate(Rules(), seen(*rows)) == []
    (lasting,) = evaluate(Rules(), seen(*rows), ["fallback:net:7:raspberry-pi-4"])
    assert lasting.kind == "fallback"
    assert silent(Rules(), seen(*rows), ["fallback:net:7:raspberry-pi-4", "drift:net:7:raspberry-pi-4"]) == {
        "drift:net:7:raspberry-pi-4"
    }


ENDED = [(0, 3, True), (0, 2, False), (0, 4000, True), (2000, 0, False), (1900, 100, False), (1860, 140, True)]
"""Answers, requests without one, and whether that is an alert."""


@pytest.mark.parametrize(("kind", "blocked"), [("errors", 0), ("refusals", 1)])
@pytest.mark.parametrize(("n", "bad", "found"), ENDED)
def test_requests_that_fail_or_are_refused_are_an_alert_where_it_is_no_chance(kind, blocked, n, bad, found):
    """Also where all do, so that there is no answer and no latency; and three of three, but not two of two."""
    rows = [window(1, 20, n=0), window(0, 20, n=n, errors=bad, blocked=bad * blocked, error_codes={"engine": bad})]
    alerts = evaluate(Rules(), seen(*rows))
    assert [one.key for one in alerts] == [f"{kind}:net:7:raspberry-pi-4"] * found
    if found:
        assert f"net 7 on raspberry-pi-4: {bad / (n + bad):.1%} of {n + bad:,} requests" in alerts[0].text
        assert ("(engine " in alerts[0].text) == (kind == "errors")
        assert evaluate(Rules(off=(kind,)), seen(*rows)) == []
        assert silent(Rules(), seen(*rows), [alerts[0].key]) == set()
        assert silent(Rules(), seen(), [alerts[0].key]) == {alerts[0].key}


def test_rare_errors_of_a_week_are_no_alert():
    """Each look at 1 % of errors, of few and of many requests: none of 2,016 windows."""
    draw = random.Random(5)
    for of in (3, 30, 300):
        failed = [sum(draw.random() < 0.01 for _ in range(of)) for _ in range(2016 * 30 // (of + 20))]
        rows = [window(0, 20, n=of - bad, errors=bad) for bad in failed]
        assert not any(evaluate(Rules(), seen(row)) for row in rows)


def test_a_board_that_fails_alone_is_named_and_a_build_that_fails_is_one_alert(store):
    names = [f"porch-{n}" for n in range(60)]
    store.commit([], [birth(name, received=AT - 2 * FIVE) for name in names])

    def told(seq, name, refuses):
        one = arrival(seq, name, at=AT - FIVE + seq, received=AT, ms=() if refuses else [20.0] * 10)
        return replace(one, window=replace(one.window, errors=10, refused_by_budget=10)) if refuses else one

    store.commit([told(1, name, name == "porch-7") for name in names], [])
    alerting = Alerting(store, Rules(), lambda *_, receipt: True)
    alerting.step(AT + 1000)
    (one,) = alerting.tables.list()
    assert (one.key, one.text) == ("failing:board:porch-7", "porch-7: gave no answer to 100.0% of 10 requests")
    store.commit([told(2, name, True) for name in names], [])
    alerting.step(AT + 2000)
    (one,) = alerting.tables.list()
    assert one.key == "refusals:digits:1:raspberry-pi-4"
    said = "digits 1 on raspberry-pi-4: 50.8% of 1,200 requests were refused by their budget"
    assert one.text == f"{said}; 95% interval 47.9% to 53.8%"


def test_the_interval_of_a_share_is_the_exact_one():
    """Against the binomial tail itself."""
    for bad, of in ((3, 3), (0, 10), (1, 20), (40, 100), (120, 900)):
        low, high = interval(bad, of)
        assert low <= bad / of <= high

        def tail(n, of, share):
            return sum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(n, of + 1))

        assert bad == 0 or tail(bad, of, low) == pytest.approx(0.025, rel=0.2)
        assert bad == of or 1 - tail(bad + 1, of, high) == pytest.approx(0.025, rel=0.2)


@dataclass
class Reporting:
    """Boards that report a window a minute, and a server that looks at its store; the clock is this test's."""

    store: object
    names: list
    now: int = AT
    seq: int = 0

    def __post_init__(self):
        self.told = []
        self.alerting = Alerting(self.store, Rules(topic="ek/alerts"), self.publish)
        self.store.commit([], [birth(name, received=self.now) for name in self.names])

    def publish(self, topic, payload, *, receipt):
        message = json.loads(payload)
        self.told.append((message["event"], message["key"], message["text"]))
        receipt(True)
        return True

    def minutes(self, how_many, window=lambda name, minute: {}):
        """window: what a board reports in that minute; None for nothing."""
        for _ in range(how_many):
            self.now, self.seq = self.now + 60_000, self.seq + 1
            said = {name: window(name, self.seq) for name in self.names}
            sent = []
            for name, figures in said.items():
                if figures is None:
                    continue
                refused = figures.pop("refused", 0)
                one = arrival(self.seq, name, at=self.now, received=self.now, **({"ms": [20.0] * 10} | figures))
                sent.append(replace(one, window=replace(one.window, refused_by_budget=refused)))
            self.store.commit(sent, [])
            self.store.look_for_silence(self.now)
            self.alerting.step(self.now)
        return [(event, key) for event, key, _ in self.told]


BAD = {
    "errors": ({"ms": (), "errors": 10, "error_codes": {"engine": 10}}, "errors", " requests failed (engine "),
    "refusals": ({"ms": (), "errors": 10, "refused": 10}, "refusals", " requests were refused by their budget"),
    "late": ({"ms": [20.0] * 6 + [45.0] * 4}, "late", " answers came after their budget"),
}


@pytest.mark.parametrize(("window", "kind", "text"), BAD.values(), ids=BAD)
def test_a_model_whose_requests_fail_are_refused_or_come_late_is_an_alert_and_its_end(open_store, window, kind, text):
    """On 40 boards: 40 % of the answers at 1.5 times the budget are enough, and p99 alone would never say so."""
    fleet = Reporting(open_store(), [f"porch-{n}" for n in range(40)])
    assert fleet.minutes(6) == []
    told = fleet.minutes(12, lambda name, minute: dict(window))
    key = f"{kind}:digits:1:raspberry-pi-4"
    boards = [event for event in told if event[1] == "failing:site:"]
    assert boards == [("opened", "failing:site:"), ("cleared", "failing:site:")] * (kind != "late")
    assert [event for event in told if event not in boards] == [("opened", key)]
    assert text in fleet.alerting.tables.list()[0].text
    assert "; 95% interval " in fleet.alerting.tables.list()[0].text
    assert fleet.minutes(60)[len(told) :] == [("cleared", key)]


def test_a_fifth_of_the_boards_that_flap_are_an_alert(open_store):
    """20 of 100 are silent for six minutes of seven: never long enough to be offline."""
    names = [f"porch-{n:03}" for n in range(100)]
    fleet = Reporting(open_store(), names)
    told = fleet.minutes(60, lambda name, minute: {} if name > "porch-019" or minute % 7 == 1 else None)
    assert told == [("opened", "flapping:site:")]
    assert fleet.told[0][2] == "boards without a site: 20 of 100 boards go offline again and again"
    assert fleet.minutes(61)[1:] == [("cleared", "flapping:site:")]
    replayed = [(event, one.key) for _, event, one in replay(fleet.store, Rules(), AT, fleet.now)]
    assert replayed == [("opened", "flapping:site:"), ("cleared", "flapping:site:")]


def test_a_board_that_restarts_now_and_then_does_not_flap(open_store):
    fleet = Reporting(open_store(), ["porch-1", "porch-2"])
    assert fleet.minutes(60, lambda name, minute: {} if name == "porch-2" or minute % 20 > 3 else None) == []


def test_door_bells_with_an_answer_a_minute_are_judged(open_store):
    """Ten boards: 50 answers in five minutes, so two windows of 100 take 20; and a well one is no alert."""
    fleet = Reporting(open_store(), [f"bell-{n}" for n in range(10)])
    assert fleet.minutes(60, lambda *_: {"ms": [20.0]}) == []
    told = fleet.minutes(31, lambda *_: {"ms": [600.0]})
    assert told == [("opened", "p99:digits:1:raspberry-pi-4")]
    assert "20.1 times the budget of 30 ms, over " in fleet.told[0][2]
    assert fleet.told[0][2].endswith(" answers of 20 minutes")
    assert fleet.minutes(60, lambda *_: {"ms": [20.0]})[1:] == [("cleared", "p99:digits:1:raspberry-pi-4")]


def test_one_door_bell_is_judged_within_its_hours(open_store):
    """Every fifth request fails: three in a quarter of an hour may be chance, twenty of 100 are not."""
    fleet = Reporting(open_store(), ["bell-1"])
    told = fleet.minutes(120, lambda _, minute: {"ms": [20.0]} if minute % 5 else {"ms": (), "errors": 1})
    assert told == [("opened", "errors:digits:1:raspberry-pi-4")]


TOGETHER = {
    "failing": "give no answer to many of their requests", "flapping": "go offline again and again",
    "offline": "are offline", "lag": "report late", "throttling": "are throttled or hot", "loss": "gave up windows",
}  # fmt: skip


@pytest.mark.parametrize("kind", TOGETHER)
def test_two_hundred_boards_of_a_site_are_one_alert(kind):
    def troubled(n, site):
        return [Trouble(kind, f"{site or 'board'}-{i:03}", site, "for 9 minutes") for i in range(n)]

    troubles = [*troubled(200, "north"), *troubled(2, "south"), *troubled(1, "")]
    found = evaluate(Rules(), seen(troubles=troubles, sites={"north": 400, "south": 9}))
    assert [one.key for one in found] == [
        f"{kind}:board:board-000", f"{kind}:site:north", f"{kind}:board:south-000", f"{kind}:board:south-001",
    ]  # fmt: skip
    assert found[1].text == f"site north: 200 of 400 boards {TOGETHER[kind]}"


def test_ten_boards_of_a_site_are_one_alert_however_many_it_has():
    troubles = [Trouble("offline", f"north-{n:03}", "north", "for 9 minutes") for n in range(200)]
    (found,) = evaluate(Rules(), seen(troubles=troubles, sites={"north": 2000}))
    assert found.text == "site north: 200 of 2000 boards are offline"
    nine = evaluate(Rules(), seen(troubles=troubles[:9], sites={"north": 2000}))
    assert len(nine) == 9


def test_no_board_sets_the_budget_drift_or_names_of_the_others(store):
    """One says a budget of a microsecond and a PSI of 9 for the build of thirty, then a new build with each window."""
    names = [f"porch-{n}" for n in range(30)]
    store.commit([], [birth(name, received=AT) for name in [*names, "hostile-1"]])
    bad = store.builds()[0].budget_ms
    store.commit([arrival(1, name, at=AT, received=AT) for name in names], [])
    (build,) = store.builds()
    assert build.budget_ms == bad == 30.0
    for seq in range(1, 41):
        one = arrival(seq, "hostile-1", at=AT, received=AT)
        store.commit([replace(one, window=replace(one.window, version=f"v{seq}", psi=9.0))], [])
    rows = store.history(None, None, None, AT - FIVE, "5m")
    named = {row.version for row in rows}
    assert len(named) < 25
    assert sum(row.n for row in rows if row.model == "(too many names)") > 0, "they are counted, under one name"
    assert sum("reported more than 20 builds" in event.text for event in store.events("hostile-1", 100)) == 1


def test_what_boards_say_of_a_budget_is_what_most_of_them_say(store):
    store.commit([], [birth(f"porch-{n}", received=AT) for n in range(5)])
    odd = birth("hostile-1", received=AT)
    store.commit([], [replace(odd, state=replace(odd.state, birth=structs.replace(odd.state.birth, budget_ms=0.001)))])
    assert [one.budget_ms for one in store.builds()] == [30.0]
    assert store.builds("no such model") == []


def test_lag_below_an_hour_is_found_where_the_rules_ask_for_it(store):
    store.commit([], [birth("porch-1", received=AT)])
    one = arrival(1, "porch-1", at=AT, received=AT)
    store.commit([replace(one, seal=replace(one.seal, spooled=31))], [])
    for lag_s, kinds in ((600.0, ["lag"]), (3600.0, [])):
        alerting = Alerting(store, Rules(lag_s=lag_s, off=("offline", "p99", "throttling")), lambda *_, receipt: True)
        alerting.step(AT + 1000)
        assert [alert.kind for alert in alerting.tables.list()] == kinds


@pytest.mark.parametrize(("kind", "rule"), [("throttling", "hot"), ("lag", "lagging"), ("offline", "offline")])
def test_boards_of_a_site_that_are_hot_late_or_gone_in_the_store_are_one_alert(store, kind, rule):
    """Ten of a site: from what they report to the one alert."""
    names = [f"hall-{n}" for n in range(10)]
    store.commit([], [birth(name, site="hall", received=AT) for name in names])
    windows = [arrival(1, name, at=AT, received=AT, temp=90.0 if rule == "hot" else 50.0) for name in names]
    if rule == "lagging":
        windows = [replace(one, seal=replace(one.seal, spooled=5000))
                   for one in windows]  # fmt: skip
    store.commit(windows, [])
    later = AT + 1000
    if rule == "offline":
        later += 3_600_000
        assert store.look_for_silence(AT + 600_000) == 10
    others = tuple(one for one in ("offline", "lag", "throttling", "p99", "loss") if one != kind)
    alerting = Alerting(store, Rules(off=others), lambda *_, receipt: True)
    alerting.step(later)
    (alert,) = alerting.tables.list()
    assert alert.text == f"site hall: 10 of 10 boards {TOGETHER[kind]}"
    assert alert.key == f"{kind}:site:hall"


def test_how_long_a_board_is_gone_is_said_as_on_the_pages(store):
    store.commit([arrival(1, "porch-1", at=AT, received=AT)], [])
    gone = AT + 600_000
    assert store.look_for_silence(gone) == 1
    alerting = Alerting(store, Rules(offline_s=10), lambda *_, receipt: True)
    said = []
    for minutes in (0.4, 1, 5.1, 119, 121, 60 * 47, 60 * 49):
        alerting.step(gone + int(minutes * 60_000))
        (alert,) = alerting.tables.list()
        said.append(alert.text.removeprefix("porch-1: offline for "))
    assert said == ["24 s", "60 s", "5 min", "119 min", "2 h", "47 h", "2 days"]


def test_shares_drift_and_rollouts_are_found_and_kinds_can_be_left_out():
    rows = [window(1, 20, host=40), window(0, 20, host=40)]
    build = ("net", "7", "raspberry-pi-4")
    snapshot = seen(*rows, rollouts=[(3, "wave 1: slower")], drift={build: (0.01, 0.02, 0.1, 0.4)})
    assert {one.kind for one in evaluate(Rules(), snapshot)} == {"fallback", "drift", "rollout"}
    assert evaluate(Rules(off=("fallback", "drift", "rollout")), snapshot) == []
    one_of_many = replace(snapshot, drift={build: (*[0.01] * 30, 100.0)})
    assert {one.kind for one in evaluate(Rules(), one_of_many)} == {"fallback", "rollout"}, "one board is no drift"


RULES = """
off = ["throttling"]
webhooks = ["https://chat.example/hook"]
[p99]
over = 3
least = 500
[site]
many = 10
"""


def test_rules_are_read_and_every_mistake_is_named(tmp_path):
    file = tmp_path / "alerts.toml"
    file.write_text(RULES)
    rules = read_rules(file)
    assert (rules.p99_over, rules.least, rules.many, rules.off) == (3.0, 500, 10, ("throttling",))
    assert rules.p99_clear == Rules().p99_clear
    file.write_text('off = ["hot"]\nwebhooks = ["ftp://x"]\nrule = 1\n[p99]\nover = 1.2\n')
    with pytest.raises(FleetError) as caught:
        read_rules(file)
    told = str(caught.value) + "".join(map(str, caught.value.mistakes))
    for word in ("hot", "webhooks", "'rule'", "clear"):
        assert word in told
    file.write_text(
        'topic = "$SYS/x"\n[p99]\nleast = 0\n[bounds]\nlag_s = -3\noffline_s = -1\nfallback = 7\n[site]\nshare = 7\n'
    )
    with pytest.raises(FleetError) as caught:
        read_rules(file)
    told = str(caught.value) + "".join(map(str, caught.value.mistakes))
    for word in ("'topic'", "p99.least", "bounds.lag_s", "bounds.offline_s", "bounds.fallback", "site.share"):
        assert word in told
    with pytest.raises(FleetError):
        read_rules(tmp_path / "none.toml")


@pytest.fixture
def store(open_store):
    return open_store()


ONE = AlertFinding("drift:a:1:b", "drift", "a drifts")


def test_an_alert_opens_once_and_clears_once_and_each_is_told(store):
    tables = AlertTables(store)
    assert [one.id for one in tables.take([ONE], ["mqtt:x"], 1000)] == [1]
    assert tables.take([replace(ONE, text="a drifts more")], ["mqtt:x"], 2000) == []
    assert tables.list()[0].text == "a drifts more"
    tables.take([], ["mqtt:x"], 3000)
    assert tables.list() == []
    (opened,) = tables.due(3000)
    assert (opened.event, json.loads(opened.payload)["alert"]) == ("opened", 1)
    tables.settle([(opened, True)], 0)
    assert [one.event for one in tables.due(3000)] == ["cleared"], "never before it began"
    assert [one.id for one in tables.take([ONE], [], 4000)] == [2]
    assert [one.id for one in tables.list(active=False)] == [2, 1]


def test_what_is_silenced_is_kept_and_not_told(store):
    tables = AlertTables(store)
    tables.silence("drift", 5000)
    tables.take([ONE], ["mqtt:x"], 1000)
    assert (len(tables.list()), tables.due(1000)) == (1, [])
    assert tables.acknowledge(1, "anna", 1500).taken_by == "anna"
    for wrong in (lambda: tables.silence("everything", 1), lambda: tables.acknowledge(9, "anna", 1)):
        with pytest.raises(FleetError):
            wrong()


def events_of(tables, now_ms, sink="mqtt:x"):
    """What that receiver is sent, in its order."""
    found = []
    while due := tables.due(now_ms, sink):
        found += [(one.event, json.loads(one.payload)["text"]) for one in due]
        tables.settle([(one, True) for one in due], now_ms)
    return found


def test_what_was_told_is_told_to_be_over_whatever_is_silenced(store):
    tables = AlertTables(store)
    tables.take([ONE], ["mqtt:x"], 1000)
    assert events_of(tables, 1000) == [("opened", "a drifts")]
    tables.silence("drift", 9000)
    tables.take([], ["mqtt:x", "mqtt:new"], 2000)
    assert events_of(tables, 2000) == [("cleared", "a drifts")]
    assert events_of(tables, 2000, "mqtt:new") == [], "it was never told of it"


def test_what_begins_and_ends_in_a_silence_or_ends_untold_is_told_to_nobody(store):
    tables = AlertTables(store)
    tables.silence("drift", 3000)
    tables.take([ONE], ["mqtt:x"], 1000)
    tables.take([], ["mqtt:x"], 2000)
    tables.take([ONE], ["mqtt:x"], 2500)
    tables.take([], ["mqtt:x"], 5000)
    assert events_of(tables, 9000) == []
    assert store.select("SELECT * FROM alert_told") == []


def test_what_outlasts_its_silence_is_told_then(store):
    tables = AlertTables(store)
    tables.silence("drift", 3000)
    tables.take([ONE], ["mqtt:x"], 1000)
    assert events_of(tables, 2000) == []
    for now in (4000, 5000):
        tables.take([replace(ONE, text="a drifts more")], ["mqtt:x"], now)
    assert events_of(tables, 5000) == [("opened", "a drifts more")]
    tables.take([], ["mqtt:x"], 6000)
    assert events_of(tables, 6000) == [("cleared", "a drifts more")]


def test_a_message_is_tried_again_and_survives_a_restart(store):
    AlertTables(store).take([ONE], ["mqtt:x"], 1000)
    tables = AlertTables(store)
    for now in (1000, 6000, 16_000):
        (message,) = tables.due(now)
        tables.settle([(message, False)], now)
        assert tables.due(now + 1000) == []
    tables.settle([(message, True)], 0)
    assert tables.due(10**12) == []


@pytest.fixture
def hook():
    """A webhook that refuses the first message."""
    taken = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(503 if len(taken) == 1 else 204)
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", taken
    server.shutdown()
    server.server_close()


def test_from_windows_of_boards_to_a_webhook(store, hook):
    """Two windows of five minutes, 70 ms against a budget of 30: found, told, told again, and cleared."""
    url, taken = hook
    slow = [70.0] * 60
    store.commit([], [birth("porch-1", received=AT - 4 * FIVE)])
    arrivals = [
        arrival(seq, at=AT - FIVE * 2 + seq * 60_000, received=AT, ms=slow) for seq in range(1, 11)
    ]  # fmt: skip
    store.commit(arrivals, [])
    published = []

    def publish(topic, payload, *, receipt):
        published.append((topic, json.loads(payload)["event"]))
        receipt(True)
        return True

    rules = Rules(webhooks=(url,), topic="ek/alerts", off=("offline",))
    alerting = Alerting(store, rules, publish)

    def step(at, posts):
        """And wait for the posts that follow from it."""
        alerting.step(at)
        until = time.monotonic() + 20
        while len(taken) < posts or any(thread.is_alive() for thread in alerting._calling.values()):
            assert time.monotonic() < until
            time.sleep(0.01)
        return [one["event"] for one in taken]

    assert step(AT + 1000, 1) == ["opened"]
    assert [one.kind for one in alerting.tables.list()] == ["p99"]
    assert published == [("ek/alerts", "opened")]
    assert step(AT + 2000, 1) == ["opened"], "it was refused, and waits"
    assert step(AT + 10_000, 2) == ["opened", "opened"]
    assert "digits 1 on raspberry-pi-4: p99" in taken[1]["text"]
    assert step(AT + 3 * FIVE, 3) == ["opened", "opened", "cleared"]
    assert published[1:] == [("ek/alerts", "cleared")]
    told = [(event, finding.key) for _, event, finding in replay(store, rules, AT - 6 * FIVE, AT + 3 * FIVE)]
    assert told == [("opened", "p99:digits:1:raspberry-pi-4"), ("cleared", "p99:digits:1:raspberry-pi-4")]


@pytest.mark.parametrize("command", ["check", "alerts", "rollouts"])
def test_a_store_that_is_not_there_is_not_made_by_a_look_at_it(in_process, tmp_path, command):
    ran = in_process("fleet", command, "--store", f"sqlite:///{tmp_path / 'none.db'}")
    assert ran.code == 1
    assert "no such store. Pass the URL that `edgekit fleet serve --store` uses" in ran.err
    assert not (tmp_path / "none.db").exists()


def test_a_webhook_that_takes_nothing_holds_up_no_other_receiver_and_waits_as_a_whole(store):
    tables = AlertTables(store)
    many = [replace(ONE, key=f"drift:a:{n}:b") for n in range(300)]
    tables.take(many, ["http://127.0.0.1:9/dead"], 1000)
    tables.take([*many, replace(ONE, key="lag:board:x")], ["mqtt:ek/alerts"], 2000)
    assert tables.sinks(2000) == ["http://127.0.0.1:9/dead", "mqtt:ek/alerts"]
    assert [one.alert for one in tables.due(2000, "mqtt:ek/alerts")] == [301]
    first = tables.due(2000, "http://127.0.0.1:9/dead")[0]
    tables.settle([(first, False)], 2000)
    assert tables.sinks(3000) == ["mqtt:ek/alerts"]
    assert tables.due(8000, "http://127.0.0.1:9/dead")[0].key == first.key, "and begins where it stopped"


def test_commits_that_fail_count_no_names_of_builds(store, monkeypatch):
    store.commit([], [birth("porch-1", received=AT)])
    one = arrival(1, "porch-1", at=AT, received=AT)
    named = replace(one, window=replace(one.window, version="2"))
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.fleet.store.writing.Batch.finish", lambda _: 1 / 0)
        for _ in range(25):
            with contextlib.suppress(Exception):
                store.commit([named], [])
    store.commit([replace(named, seal=replace(named.seal, seq=2))], [])
    assert "2" in {row.version for row in store.history(None, None, None, AT - FIVE, "5m")}

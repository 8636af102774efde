"""Lists, groups, models, events, files and metrics: what a page, a script and Prometheus read is what the store has."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fleet.asgi import Client
from fleet.boards import arrival, birth
from prometheus_client.parser import text_string_to_metric_families

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.app import Facts, make_app
from edgekit.fleet.pages.charts import (
    compare,
    device_charts,
    finest,
    fleet_charts,
    mean_ms,
    model_charts,
    spans_of,
)
from edgekit.fleet.pages.lists import ListQuery
from edgekit.fleet.pages.live import Live, Part
from edgekit.fleet.pages.metrics import COUNTERS, FleetMetrics
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables
from edgekit.fleet.rollouts.waves import RolloutPlan
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.records import FleetDevice, Query, Rollup
from edgekit_runtime.cache.bounded import BoundStats, interval
from edgekit_runtime.telemetry.histogram import Histogram

DASHBOARD = Path(__file__).parents[2] / "edgekit" / "fleet" / "grafana.json"
NOW = int(time.time() * 1000)


INTAKE = {"windows_per_s": 5.5, "repeated_per_s": 0.5, "busy": 0.12, "commit_s": 0.41}
BUILD = {"model", "version", "profile"}


def fill(store, boards=25, now=NOW):
    """b-00 to b-24: two versions, two sites; every fifth slow, b-03 gone."""
    for i in range(boards):
        name, version = f"b-{i:02d}", "2" if i % 3 == 0 else "1"
        store.commit([], [birth(name, received=now, ver=version, site=("east", "west")[i % 2])])
        ms = [90.0 if i % 5 == 0 else 10.0 + i / 10] * 100
        store.commit([arrival(1, name, at=now, received=now, ms=ms, version=version, temp=40.0 + i, psi=0.02)], [])
    store.commit([], [birth("b-03", on=False, received=now)])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = SqliteStore.open(tmp_path_factory.mktemp("lists") / "fleet.db")
    fill(opened)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(store):
    health = {"connected": True, "messages": 7, "intake": INTAKE}
    app = make_app(store, Facts(lambda: {"json": 3}, lambda: health, "mqtt://127.0.0.1"))
    return Client(app)


def ids(text):
    return re.findall(r'<tr id="device-([a-z0-9-]+)"', text)


def count_of(text, state):
    return int(re.search(rf'data-count="{state}">([\d,]+)<', text)[1].replace(",", ""))


# The address.


def test_an_address_keeps_what_makes_sense():
    asked = ListQuery.read(
        {"q": "x" * 300, "state": "nonsense", "sort": "-; drop", "by": "sql", "page": "-3", "site": ""}
    )
    assert asked.query == Query(text="x" * 100, site="")
    assert asked.by is None


def test_links_change_one_part_and_begin_at_the_first_page():
    asked = ListQuery.read({"q": "a b", "state": "late", "sort": "-p99", "page": "7", "site": ""})
    assert asked.link(state="hot") == "?q=a+b&state=hot&site=&sort=-p99"
    assert asked.link(site=None, page=8) == "?q=a+b&state=late&sort=-p99&page=8"
    assert asked.sorted_by("p99") == "?q=a+b&state=late&site=&sort=p99"
    assert asked.sorted_by("temp") == "?q=a+b&state=late&site=&sort=-temp"
    assert asked.sorted_by("model") == "?q=a+b&state=late&site=&sort=model"
    assert (asked.direction("p99"), asked.direction("id")) == ("descending", "none")


# The list.


def test_the_list_is_sorted_by_any_column(client):
    assert ids(client.get("/?sort=-temp").text)[0] == "b-24"
    assert ids(client.get("/?sort=temp").text)[0] == "b-00"
    assert ids(client.get("/?sort=-p99").text)[:5] == ["b-00", "b-05", "b-10", "b-15", "b-20"]
    page = client.get("/?sort=-temp").text
    linked = set(re.findall(r'<th scope="col"[^>]*aria-sort="\w+"[^>]*><a href="\?sort=-?(\w+)"', page))
    assert linked == {"id", "online", "model", "p50", "p95", "p99", "rate", "host", "over", "errors", "temp"}
    for column in linked:
        assert len(ids(client.get(f"/?sort=-{column}").text)) == 25


def test_counts_are_filters_that_show_as_many_boards(client):
    page = client.get("/").text
    assert (count_of(page, "all"), count_of(page, "late"), count_of(page, "offline")) == (25, 5, 1)
    for state in ("late", "offline", "online", "hot", "drifting", "lagging", "failing", "losing"):
        assert len(ids(client.get(f"/?state={state}").text)) == count_of(page, state), state
    narrowed = client.get("/?state=late&site=east").text
    assert (count_of(narrowed, "all"), count_of(narrowed, "late"), len(ids(narrowed))) == (13, 3, 3)
    assert "site: east" in narrowed


def test_what_is_wrong_is_written_and_not_only_coloured(client):
    row = client.get("/?q=b-05").text
    assert '<span class="mark late">over budget</span>' in row


@pytest.mark.parametrize(("over", "mark", "p99", "said"), [
    (0, "", "", "0 %"), (5, "", "", "0.5 %"), (20, "slightly", "slightly", "2.0 %"), (600, "late", "late", "60 %"),
])  # fmt: skip
def test_what_is_said_of_a_budget_is_one_figure_by_degrees_and_grey_where_a_board_is_gone(
    tmp_path, over, mark, p99, said
):
    """Whatever the callers' budgets are: 40 ms are above the board's 30, and late where a caller said so."""
    store = SqliteStore.open(tmp_path / "fleet.db")
    store.commit([], [birth(name, received=NOW, sla=sla) for name, sla in (("all-1", 30.0), ("none-1", None))])
    store.commit([arrival(1, name, at=NOW, received=NOW, ms=[40.0] * 1000, over=over) for name in ("all-1", "none-1")],
                 [])  # fmt: skip
    client = Client(make_app(store, Facts(dict, dict, "")))
    for gone in (False, True):
        page, board = client.get("/?q=all-1").text, client.get("/device/all-1").text
        for text in (page, board):
            assert f'class="{p99}" title' in text if p99 else 'their budget"' not in text
            assert ('class="gone"' in text or 'class="figures gone"' in text) == gone
        assert (count_of(page, "late"), "over budget" in page.split("<tbody")[1]) == (1 if mark else 0, bool(mark))
        assert not mark or f'<span class="mark {mark}">over budget</span>' in page
        assert f"<small>Over budget</small><b>{said}</b><small>the callers' budgets, or 30.0 ms</small>" in board
        assert f'data-label="late">{said}<' in client.get("/model?name=digits").text
        without = client.get("/device/none-1").text
        assert f"<small>Over budget</small><b>{said if over else '–'}</b>" in without
        store.commit([], [birth("all-1", on=False, received=NOW)])
    store.close()


@pytest.mark.parametrize("by", ["model", "build", "profile", "site", "group"])
def test_groups_count_every_board_and_link_to_them(client, by):
    page = client.get(f"/?by={by}").text
    boards = [int(n) for n in re.findall(r'data-label="boards">(\d+)<', page)]
    assert sum(boards) == 25
    for link, n in zip(re.findall(r'<th scope="row"><a href="([^"]+)"', page), boards, strict=True):
        assert len(ids(client.get("/" + link.replace("&amp;", "&")).text)) == n


def test_a_list_of_many_is_shown_in_pages(tmp_path):
    many = SqliteStore.open(tmp_path / "many.db")
    for i in range(230):
        many.commit([], [birth(f"b-{i:03d}", received=NOW)])
    client = Client(make_app(many, Facts(dict, dict, "")))
    seen = [ids(client.get(f"/?page={page}").text) for page in (1, 2, 3, 99)]
    assert [len(page) for page in seen] == [100, 100, 30, 30]
    assert len({name for page in seen for name in page}) == 230
    assert "101 to 200 of 230" in client.get("/?page=2").text
    assert 'href="?page=3" rel="next"' in client.get("/?page=2").text
    many.close()


# Models, events, forgetting.


def test_versions_stand_beside_each_other(client):
    page = client.get("/model?name=digits").text
    assert re.findall(r'<tr><th scope="row">(\d)</th>', page) == ["1", "2"]
    assert re.search('aria-label="p99 by version: digits; version 1 .*; version 2 ', page)
    assert client.get("/model?name=nothing").status_code == 404
    assert "version 2" in client.get("/models").text


def test_events_of_the_fleet_in_pages_and_by_kind(client, store):
    page = client.get("/events?kind=offline").text
    assert re.findall(r'href="/device/([a-z0-9-]+)"', page) == ["b-03"]
    assert client.get("/events?kind=nonsense&before=x").status_code == 200
    first = store.events(None, 1)[0].id
    assert "disconnected" in client.get("/events").text
    assert "disconnected" not in client.get(f"/events?before={first}").text


def test_a_board_is_forgotten_by_its_form_alone(tmp_path):
    """S27"""
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 3)
    client = Client(make_app(own, Facts(dict, dict, "")))
    token = re.search('name="csrf" value="([0-9a-f]+)"', client.get("/device/b-01").text)[1]
    here = {"origin": "http://localhost"}
    assert client.post("/device/b-01/forget", {"csrf": token}).status_code == 403
    assert client.post("/device/b-01/forget", {"csrf": "0" * 64}, **here).status_code == 403
    assert client.get("/device/b-01/forget").status_code == 405
    assert own.device("b-01") is not None
    assert client.post("/device/b-01/forget", {"csrf": token}, **here).status_code == 303
    assert own.device("b-01") is None
    assert client.post("/device/b-01/forget", {"csrf": token}, **here).status_code == 404
    assert ids(client.get("/").text) == ["b-00", "b-02"]
    own.close()


def test_the_servers_own_page_says_what_is_stored_and_refused(client):
    page = client.get("/health").text
    assert re.search(r'<span class="kind">json</span> 3', page)
    assert "connected" in page
    for figure, text in {"Windows ingested": "5.5 /s", "Ingest busy": "12 %", "Resent": "30.0 /min",
                         "Refused": "3"}.items():  # fmt: skip
        assert re.search(rf"<small>{figure}</small><b[^>]*>{text}</b>", page), figure
    said = client.get("/healthz").json()
    assert said["intake"] == INTAKE
    assert 0 <= said["lag_s"] < 3600


# Charts.


QUARTER = 900_000
AT = 1_800_000_000_000 - 1_800_000_000_000 % QUARTER


def rollup(start, version="1", profile="p", ms=10.0, n=100, stages=(), dur=QUARTER, length=QUARTER):
    latency = Histogram()
    for _ in range(n):
        latency.record(ms)
    held = {}
    for name, value in stages:
        held[name] = Histogram()
        held[name].record(value)
    sums = (15, dur, n, 0, 0, 0, 0, 0)
    return Rollup(AT + start, length, "digits", version, profile, *sums, latency={"device": latency}, stages=held)


def read(chart):
    """(name, unit, steps) of each line, with its ends in per cent of the time axis."""
    return json.loads(html.unescape(re.search('data-read="([^"]*)"', chart.__html__())[1]))


def test_a_device_is_drawn_in_steps_with_its_stages_and_where_a_version_began():
    rollups = [
        rollup(0, stages=[("queue", 1.0), ("inference", 8.0)]),
        rollup(QUARTER, "2", ms=20.0, stages=[("inference", 16.0)]),
    ]
    seen = AT + 2 * QUARTER
    drawn = device_charts(FleetDevice("porch-1", budget_ms=30.0, seen_ms=seen), rollups, at_ms=seen)
    assert list(drawn) == ["Latency", "Mean time per stage", "Rate"]
    p99 = read(drawn["Latency"])[2]
    assert p99[:2] == ["p99", " ms"]
    assert p99[2] == [[0, 50, pytest.approx(10, rel=0.02)], [50, 100, pytest.approx(20, rel=0.02)]]
    assert ">digits 2</text>" in drawn["Latency"].__html__()
    assert ">digits 2</text>" not in drawn["Rate"].__html__()
    queue, inference = read(drawn["Mean time per stage"])
    assert (queue[0], queue[2]) == ("queue", [[0, 50, pytest.approx(1, rel=0.02)]])
    assert inference[2][1] == [50, 100, pytest.approx(16, rel=0.02)]
    assert device_charts(FleetDevice("porch-1"), [], at_ms=seen) == {}
    assert mean_ms(Histogram()) is None


def test_a_device_is_drawn_with_its_drift_its_input_and_its_errors_by_code():
    said = {"psi": 0.3, "clipped": 5, "values": 50, "compared": 8, "differed": 2, "cpu": 31.0, "mem": 44.0}
    failing = {"errors": 7, "error_codes": {"timeout": 4, "memory": 1}}
    rollups = [replace(rollup(0), **said), replace(rollup(QUARTER), **failing)]
    seen = AT + 2 * QUARTER
    drawn = device_charts(FleetDevice("porch-1", seen_ms=seen), rollups, at_ms=seen)
    values = {name: {line[0]: [step[2] for step in line[2]] for line in read(chart)} for name, chart in drawn.items()}
    assert values["Drift of the top scores: PSI"] == {"PSI": [0.3], "drifting": [0.2]}
    assert values["Clipped input, answers differing from the host"] == {"clipped": [10], "differs from the host": [25]}
    assert values["CPU and memory"] == {"processor": [31], "memory": [44]}
    assert values["Errors by code"] == {"timeout": [4], "without a code": [2], "memory": [1]}
    assert "Errors by code" not in device_charts(FleetDevice("porch-1"), [rollup(0)], at_ms=seen)


def test_a_value_ends_where_the_board_went_off_and_begins_where_it_came():
    """It came five minutes before the end of a quarter, was away for two, and went off two minutes after its return."""
    minute = 60_000
    rollups = [rollup(0, dur=5 * minute), rollup(QUARTER, dur=4 * minute), rollup(4 * QUARTER, dur=2 * minute)]
    spans = [(begin - AT, end - AT) for begin, end, _ in spans_of(rollups, AT + 4 * QUARTER + 2 * minute)]
    assert spans == [
        (10 * minute, QUARTER), (QUARTER, QUARTER + 4 * minute), (4 * QUARTER, 4 * QUARTER + 2 * minute)
    ]  # fmt: skip


def test_versions_of_one_quarter_are_one_value_because_nothing_says_when_each_ran():
    """Version 1, 2 and 1 again, maybe: the quarter has the latency of both."""
    rollups = [rollup(0, "1"), rollup(QUARTER, "2", n=300, ms=90.0, dur=300_000), rollup(QUARTER, "1", dur=600_000)]
    spans = spans_of([*rollups, rollup(2 * QUARTER, "1")], AT + 9 * QUARTER)
    assert [(begin - AT, end - AT, one.n) for begin, end, one in spans] == [
        (0, QUARTER, 100), (QUARTER, 2 * QUARTER, 400), (2 * QUARTER, 3 * QUARTER, 100)
    ]  # fmt: skip
    assert spans[1][2].quantiles(0.5)[0] == pytest.approx(90, rel=0.02)


def test_finer_roll_ups_take_the_place_of_one_all_of_whose_windows_they_have():
    five = 300_000
    fine = [replace(rollup(at, length=five), windows=5) for at in range(QUARTER + five, 3 * QUARTER, five)]
    coarse = [rollup(at) for at in (0, QUARTER, 2 * QUARTER)]
    assert [one.length_ms for one in finest(coarse, fine)] == [QUARTER, QUARTER, five, five, five]
    coarse[1] = replace(coarse[1], windows=10)
    assert finest(coarse, fine) == [coarse[0], *fine]
    assert finest(coarse, []) == coarse


def test_the_last_windows_follow_the_roll_ups_and_each_ends_at_its_moment():
    row = FleetDevice("porch-1", window_s=60.0, seen_ms=AT + QUARTER + 120_000, recent=[
        [AT + QUARTER + 60_000, 1.0, 2.0, 3.0, 4.0, None], [AT + QUARTER + 120_000, 1.0, 2.0, 5.0, 4.0, None],
    ])  # fmt: skip
    p99 = read(device_charts(row, [rollup(0)], at_ms=row.seen_ms)["Latency"])[2][2]
    assert [step[2] for step in p99] == [pytest.approx(10, rel=0.02), 3, 5]
    assert p99[0][1] == p99[1][0]
    assert p99[1][1] == p99[2][0]
    assert p99[2][1] == 100


def test_a_boards_page_shows_what_its_windows_say(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    own.commit([], [birth("porch-1", received=NOW)])
    more = {"psi": 0.31, "clipped": 30, "values": 1000, "compared": 8, "differed": 2}
    window = arrival(1, at=NOW, received=NOW, ms=[10.0] * 90, errors=10, error_codes={"timeout": 9}, **more)
    own.commit([replace(window, window=replace(window.window, refused_by_budget=4))], [])
    client = Client(make_app(own, Facts(dict, lambda: {"connected": True}, "mqtt://127.0.0.1")))
    page = client.get("/device/porch-1").text
    for name, figure, below in (
        ("Drift", "0.31", "PSI of the top scores"), ("Clipped input", "3.0 %", "of the values"),
        ("Differs from the host", "25 %", "of 8 compared"), ("Errors", "10", "4 refused by budget"),
    ):  # fmt: skip
        assert re.search(rf"<small>{name}</small><b[^>]*>{figure}</b><small>{below}</small>", page), name
    assert 'aria-label="Errors by code: porch-1; timeout 9 to 9; without a code 1 to 1"' in page
    assert 'aria-label="Drift of the top scores: PSI: porch-1; PSI 0.31 to 0.31; drifting 0.2 to 0.2"' in page
    own.close()


FALSE_ANSWERS = {
    "learning": ((0.0, 0, 300, 0, 0), r"<b>–</b><small>at most 2 %; 0 given, closed now</small>"),
    "open": ((0.06, 900, 80, 100, 1), r"<b>1.0 %</b><small>0.025 % to 5.48 %, 100 compared; at most 2 %; 900 given</s"),
    "false": ((0.0, 900, 80, 100, 9), r'<b class="late">9.0 %</b><small>.*, closed now</small>'),
}  # fmt: skip


@pytest.mark.parametrize(("known", "shown"), FALSE_ANSWERS.values(), ids=FALSE_ANSWERS)
def test_a_boards_page_says_how_many_answers_of_its_semantic_cache_were_false(tmp_path, known, shown):
    cut, given, withheld, sampled, wrong = known
    ci95 = interval(wrong, sampled) if sampled else None
    bound = BoundStats(0.02, cut > 0, cut, given, withheld, sampled, wrong, None, ci95)
    own = SqliteStore.open(tmp_path / "own.db")
    client = Client(make_app(own, Facts(dict, lambda: {"connected": True}, "mqtt://127.0.0.1")))
    own.commit([arrival(1, at=NOW - 60_000, received=NOW)], [birth("porch-1", received=NOW)])
    assert "Semantic cache" not in client.get("/device/porch-1").text
    own.commit([arrival(2, at=NOW, received=NOW, semantic=bound)], [])
    assert re.search(f"<small>Semantic cache, false answers</small>{shown}", client.get("/device/porch-1").text)
    own.close()


def test_pages_of_a_board_and_a_version_have_the_tokens_a_second_of_generated_text(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    client = Client(make_app(own, Facts(dict, lambda: {"connected": True}, "mqtt://127.0.0.1")))
    now = int(time.time() * 1e3)
    own.commit([arrival(1, at=now - 60_000, received=now)], [birth("porch-1", received=now)])
    assert "Tokens" not in client.get("/device/porch-1").text + client.get("/model?name=digits").text
    own.commit([arrival(2, at=now, received=now, version="2", token_ms=[40.0] * 5)], [])
    assert re.search(r"<small>Tokens</small><b>2[45]\.. /s</b>", client.get("/device/porch-1").text)
    page = client.get("/model?name=digits").text
    assert re.findall(r'data-label="tokens">([^<]*)<', page)[0] == "–"
    assert re.search(r'data-label="tokens">2[45]\.. /s<', page)
    own.close()


def test_versions_are_compared_over_profiles_and_time():
    rollups = [rollup(0, "1", "p"), rollup(0, "1", "q", ms=30.0, n=300), rollup(QUARTER, "2", "p", ms=20.0)]
    lines = compare(rollups)
    assert [(line["version"], line["profile"], line["n"]) for line in lines] == [
        ("1", "p", 100),
        ("1", "q", 300),
        ("2", "p", 100),
    ]
    p99, shares = (read(chart) for chart in model_charts(rollups, AT + 2 * QUARTER).values())
    assert p99[0] == ["version 1", " ms", [[0, 50, pytest.approx(30, rel=0.02)]]]
    assert [line[2] for line in shares] == [[[0, 50, 100]], [[50, 100, 100]]]


def test_the_fleets_curves_sum_all_builds_and_show_the_busiest_versions():
    rollups = [rollup(0, "1", "p"), rollup(0, "1", "q", n=300, dur=2 * QUARTER)]
    rollups += [rollup(QUARTER, f"{n}", n=n, dur=QUARTER // 3) for n in range(1, 8)]
    at = AT + QUARTER + QUARTER // 3
    drawn = fleet_charts(rollups, online=7, at_ms=at)
    (answers,), (boards,), lines = (
        read(drawn[name]) for name in ("Answers per second", "Boards reporting", "p99 by version")
    )
    assert [step[2] for step in boards[2]] == [3, 7]
    assert [step[2] for step in answers[2]] == pytest.approx([400 / 900, 28 / 300], rel=0.001)
    assert [line[0] for line in lines] == ["digits 1", "digits 4", "digits 5", "digits 6", "digits 7"]
    assert fleet_charts([], 0, at) == {}


# Files.


def test_json_and_csv_have_the_same_boards(client, store):
    found = client.get("/api/v1/devices?state=late&sort=-p99").json()
    assert found["count"] == 5
    assert found["devices"][0]["id"] == "b-00"
    assert found["devices"][0]["conditions"] == ["late"]
    rows = list(csv.DictReader(io.StringIO(client.get("/api/v1/devices.csv?state=late&sort=-p99").text)))
    assert [row["id"] for row in rows] == [row["id"] for row in found["devices"]]
    assert float(rows[0]["p99"]) == pytest.approx(found["devices"][0]["p99"])
    assert client.get("/api/v1/devices?limit=2&offset=1").json()["devices"][0]["id"] == "b-01"


def test_a_file_has_every_board_and_a_page_as_many_as_are_asked_for(client, monkeypatch):
    monkeypatch.setattr("edgekit.fleet.pages.api.MOST", 2)
    monkeypatch.setattr("edgekit.fleet.pages.api._USUAL", 2)
    count = client.get("/api/v1/devices").json()["count"]
    assert count > 2
    assert len(client.get("/api/v1/devices").json()["devices"]) == 2
    assert len(client.get("/api/v1/devices.csv").text.splitlines()) == 1 + count
    assert len(client.get("/api/v1/devices.csv?limit=1").text.splitlines()) == 2
    page = client.get("/?by=model&state=late").text
    assert "/api/v1/counts.csv?state=late&amp;by=model" in page


def test_every_address_of_the_index_answers(client):
    index = client.get("/api/v1").json()
    assert len(index) == 9
    for path in index:
        path = path.replace("{id}", "b-01")
        assert client.get(path).status_code == 200, path
        table = not path.endswith(("totals", "devices/b-01"))
        answer = client.get(f"{path}.csv")
        assert (answer.status_code == 200) == table, path
        assert not table or answer.headers["content-type"].startswith("text/csv")
    for typo in ("devices?state=typo", "devices.csv?sort=-p98", "counts?by=models", "history?range=2d"):
        answer = client.get(f"/api/v1/{typo}")
        assert (answer.status_code, answer.json()["error"].split()[0]) == (400, "unknown")
    assert client.get("/api/v1/devices/nobody-1").status_code == 404
    assert client.get("/api/v1/devices/nobody-1/history.csv").status_code == 404


def test_a_cell_that_would_be_a_formula_is_text(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    own.commit([], [birth("b-01", received=NOW, model="=1+1", hw="a\u202eb")])
    client = Client(make_app(own, Facts(dict, dict, "")))
    (row,) = csv.DictReader(io.StringIO(client.get("/api/v1/devices.csv").text))
    assert (row["model"], row["hardware"]) == ("'=1+1", "a\\u202eb")
    assert client.get("/api/v1/devices").json()["devices"][0]["model"] == "=1+1"
    assert client.get("/api/v1/devices").text.isascii()
    own.close()


# Metrics.


def test_prometheus_reads_the_page(client):
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    boards = {(s.labels["version"], s.labels["state"]): s.value for s in families["edgekit_fleet_devices"].samples}
    assert (boards["1", "online"], boards["1", "offline"], boards["2", "offline"]) == (16, 0, 1)
    assert families["edgekit_fleet_payloads_refused"].samples[0].value == 3
    assert families["edgekit_fleet_ingest_busy_ratio"].samples[0].value == 0.12
    assert 0 <= families["edgekit_fleet_ingest_lag_seconds"].samples[0].value < 3600
    assert families["edgekit_fleet_latency_seconds"].type == "histogram"
    for name in ("devices", "budget_seconds", "drift_psi", "latency_seconds", *(c.removesuffix("_total") for c, _ in
                 COUNTERS.values())):  # fmt: skip
        for sample in families[f"edgekit_fleet_{name}"].samples:
            assert set(sample.labels) >= BUILD, sample.name
    assert not any("b-0" in value for f in families.values() for s in f.samples for value in s.labels.values())


def test_counters_grow_by_what_came_since(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 2)
    page = FleetMetrics(own, dict, dict)
    assert value(page, "edgekit_fleet_answers_total", "2") == 0
    own.commit([arrival(2, "b-00", at=NOW, received=NOW, ms=[100.0] * 40, version="2")], [])
    assert value(page, "edgekit_fleet_answers_total", "2") == 40
    assert value(page, "edgekit_fleet_answers_total", "2") == 40
    assert value(page, "edgekit_fleet_answers_total", "1") == 0
    assert value(page, "edgekit_fleet_latency_seconds_count", "2") == 40
    assert value(page, "edgekit_fleet_latency_seconds_sum", "2") == pytest.approx(4.0, rel=0.02)
    assert value(page, "edgekit_fleet_latency_seconds_bucket", "2", le="0.064") == 0
    assert value(page, "edgekit_fleet_latency_seconds_bucket", "2", le="0.128") == 40
    own.close()


def value(page, name, version, **labels):
    (found,) = [
        sample.value
        for family in text_string_to_metric_families(page.text(NOW + 1000))
        for sample in family.samples
        if sample.name == name and sample.labels["version"] == version
        and all(sample.labels[label] == wanted for label, wanted in labels.items())
    ]  # fmt: skip
    return found


def test_boards_of_one_version_on_two_profiles_are_two_series(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    for name, profile, budget, psi in (("a-1", "jetson", 8.0, 0.5), ("b-1", "raspberry-pi-4", 30.0, None),
                                       ("b-2", "raspberry-pi-4", 30.0, 0.1)):  # fmt: skip
        own.commit([], [birth(name, received=NOW, profile=profile, sla=budget)])
        own.commit([arrival(1, name, at=NOW, received=NOW, profile=profile, psi=psi)], [])
    text = FleetMetrics(own, dict, dict).text(NOW + 1000)

    def of(name, **more):
        return {s.labels["profile"]: s.value for f in text_string_to_metric_families(text) for s in f.samples
                if s.name == f"edgekit_fleet_{name}" and more.items() <= s.labels.items()}  # fmt: skip

    assert of("devices", state="online") == {"jetson": 1, "raspberry-pi-4": 2}
    assert of("budget_seconds") == {"jetson": 0.008, "raspberry-pi-4": 0.03}
    assert of("drift_psi") == {"jetson": 0.5, "raspberry-pi-4": 0.1}
    own.close()


# The stream.


class Drawn:
    def row(self, row):
        return f"<{row.id}>"

    def totals(self, totals):
        return "totals"

    def device(self, row):
        return f"<{row.id} {row.boot}>"


class Counted:
    """A store whose calls are counted."""

    def __init__(self, store):
        self._store, self.calls = store, {}

    def __getattr__(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self._store, name)


def follow(store, *, change, of=Query(state="offline"), viewers=1, wanted="list", every_s=0.02):  # noqa: B008
    """What each viewer is sent after `change()`, until `wanted` came; the calls that it took."""
    counted = Counted(store)

    async def one(live, started, got):
        events = live.follow(of, store.totals().changed, lambda: True)
        try:
            got.append(await anext(events))
            started.release()
            async for event in events:
                got.append(event)
                if event.startswith(f"event: {wanted}"):
                    return
        finally:
            await events.aclose()

    async def all_of_them():
        live = Live(counted, Drawn(), every_s)
        started, sent = asyncio.Semaphore(0), [[] for _ in range(viewers)]
        tasks = [asyncio.create_task(one(live, started, got)) for got in sent]
        for _ in tasks:
            await started.acquire()
        counted.calls.clear()
        change()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        return sent

    return asyncio.run(all_of_them()), counted.calls


def parsed(event):
    return json.loads(event.partition("data: ")[2])


def test_boards_that_enter_and_leave_a_list_are_sent(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 10)

    def change():
        own.commit([], [birth("b-05", on=False, received=NOW), birth("b-03", boot=2, received=NOW)])

    (sent,), _ = follow(own, change=change)
    assert parsed(sent[0])["ids"] == ["b-03"]
    final = parsed(sent[-1])
    assert (final["ids"], final["count"], final["rows"]) == (["b-05"], 1, "<b-05>")
    own.close()


def test_a_viewer_is_sent_the_rows_of_its_list_alone(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 10)

    def change():
        own.commit([arrival(2, name, received=NOW, at=NOW) for name in ("b-01", "b-02", "b-03")], [])

    (sent,), _ = follow(own, change=change, of=Query(text="b-02"), wanted="replace")
    assert [parsed(event) for event in sent if event.startswith("event: replace")] == ["<b-02>"]
    own.close()


def test_many_viewers_of_one_list_cost_one_question_a_round(tmp_path):
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 10)

    def change():
        own.commit([], [birth("b-05", on=False, received=NOW)])

    sent, calls = follow(own, change=change, viewers=20)
    assert all(parsed(got[-1])["ids"] == ["b-03", "b-05"] for got in sent)
    assert calls["devices"] <= calls["totals"] + 1
    assert calls["changed"] < 60
    own.close()


def test_a_part_is_drawn_once_for_all_who_look_at_it(store):
    drawn = []

    def part():
        def draw():
            drawn.append(1)
            if len(drawn) == 3:
                raise ValueError("one that fails ends nothing")
            return f"<p id=x>{len(drawn) // 5}</p>"

        return Part("x", draw)

    (sent, _) = follow(store, change=lambda: None, of=part(), viewers=20, wanted="replace")
    assert len({tuple(got) for got in sent}) == 1, "all are sent the same"
    assert [parsed(event) for event in sent[0]] == ["<p id=x>0</p>", "<p id=x>1</p>"], "and only what changed"
    assert len(drawn) <= 7


PARTS = {"/alerts": "all-alerts", "/rollouts": "all-rollouts", "/health": "server", "/events": "events",
         "/events?kind=online": "events", "/?by=site": "board-groups", "/rollouts/1": "one-rollout"}  # fmt: skip


@pytest.mark.parametrize("path", PARTS)
def test_pages_that_are_drawn_as_a_whole_follow_one_stream_with_no_viewers_token(tmp_path, path):
    own = SqliteStore.open(tmp_path / "own.db")
    fill(own, 3)
    alerts, rollouts = AlertTables(own), RolloutTables(own)
    alerts.take([AlertFinding("lag:board:b-01", "lag", "b-01 is late")], [], NOW)
    bundle = RolloutBundle("digits", "3", "raspberry-pi-4", ("raspberry-pi-4",), "a" * 64, "a" * 12, 1000)
    rollouts.make(bundle, "https://fleet.example/x.ekb", RolloutPlan(), ["b-01"], NOW)
    facts = Facts(dict, lambda: {"connected": True}, "mqtt://127.0.0.1")
    app = make_app(own, facts, rollouts=rollouts, alerts=alerts)
    page = Client(app).get(path).text
    address = re.search(r'<body data-stream="([^"]+)"', page)[1].replace("&amp;", "&")
    sent = Client(app).first_event(address)
    assert sent.startswith("event: replace")
    html = parsed(sent)
    assert f'id="{PARTS[path]}"' in html
    assert f'id="{PARTS[path]}"' in page
    tokens = re.findall(r'name="csrf" value="([^"]*)"', html)
    assert set(tokens) <= {""}
    assert page.count('name="csrf"') == len(tokens)
    own.close()


def test_a_viewer_who_may_no_longer_look_is_sent_nothing_more(store):
    async def ended():
        live = Live(store, Drawn(), 0.02)
        return [event async for event in live.follow(Query(), store.totals().changed, lambda: False)]

    assert len(asyncio.run(ended())) == 1


def test_after_a_lost_connection_only_what_changed_since_is_sent(client, store):
    latest = store.totals().changed

    async def first(after):
        events = Live(store, Drawn(), 0.02).follow(Query(), after, lambda: False)
        return [event async for event in events]

    assert len(asyncio.run(first(latest))) == 1
    assert sum(event.startswith("event: replace") for event in asyncio.run(first(latest - 1))) == 1


# Grafana.


def test_every_query_of_the_dashboard_names_metrics_and_labels_that_exist(client):
    samples = [s for f in text_string_to_metric_families(client.get("/metrics").text) for s in f.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    made = json.loads(DASHBOARD.read_text())
    for panel in made["panels"]:
        (target,) = panel["targets"]
        named = re.findall(r"(edgekit_\w+)(?:\{(.*?)\})?", target["expr"])
        assert named, panel["title"]
        for name, picked in named:
            assert name in labels, name
            assert set(re.findall(r"(\w+)=~", picked)) <= labels[name], panel["title"]
        groups = re.findall(r"by \(([^)]*)\) \((?:rate\()?(edgekit_\w+)", target["expr"])
        assert len(groups) == target["expr"].count(" by ("), panel["title"]
        for group, name in groups:
            assert set(group.split(", ")) <= labels[name], panel["title"]
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= {label for group, _ in groups for label in group.split(", ")}, panel["title"]
    (errors,) = (one["targets"][0]["expr"] for one in made["panels"] if one["title"] == "Errors")
    above, below = errors.split(" / ", 1)
    answers = above.replace("errors_total", "answers_total")
    assert below == f"({answers} + {above})", "half of the requests are 50 %, all of them 100 %"
    variables = [one["query"]["query"] for one in made["templating"]["list"] if one["type"] == "query"]
    for name, label in (re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for query in variables):
        assert label in labels[name], name

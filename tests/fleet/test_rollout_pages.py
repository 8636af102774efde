"""The pages of roll-outs: what stands there, and what their forms do."""

from __future__ import annotations

import re

import pytest
from fleet.asgi import Client

from edgekit.fleet.pages.access import Access
from edgekit.fleet.pages.app import Facts, make_app
from edgekit.fleet.rollouts.comparison import Verdict
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables
from edgekit.fleet.rollouts.waves import RolloutPlan, decide, possible
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.install.orders import Former, OrderReport

NOW = 1_790_000_000_000
BUNDLE = RolloutBundle("digits", "1.1", "raspberry-pi-4", ("raspberry-pi-4",), "a" * 64, "a" * 12, 1000)
HERE = {"origin": "http://localhost"}


@pytest.fixture
def tables(tmp_path):
    store = SqliteStore.open(tmp_path / "fleet.db")
    made = RolloutTables(store)
    made.store = store
    yield made
    store.close()


@pytest.fixture
def client(tables):
    return Client(make_app(tables.store, Facts(dict, dict, ""), Access.open(), rollouts=tables))


@pytest.fixture
def number(tables):
    devices = [f"b-{i:02d}" for i in range(20)]
    made = tables.make(BUNDLE, "https://x/y.ekb", RolloutPlan((0.25, 1.0)), devices, NOW)
    first = sorted(row.device for row in tables.boards(made.id) if row.wave == 0)
    tables.report([(first[0], OrderReport(made.rev, "committed", "1.1", "", ""))], NOW + 1)
    tables.report([(first[1], OrderReport(made.rev, "refused", "1.0", "it is <older>", "bundle-older"))], NOW + 2)
    return made.id


def test_without_roll_outs_the_page_says_how_to_begin(client):
    assert "edgekit fleet rollout BUNDLE.ekb" in client.get("/rollouts").text
    assert 'href="/rollouts"' in client.get("/").text
    assert client.get("/rollouts/7").status_code == 404


def test_a_roll_out_shows_its_waves_and_troubled_boards_first(client, number):
    assert f'<a href="/rollouts/{number}">{number}: digits 1.1</a>' in client.get("/rollouts").text
    page = client.get(f"/rollouts/{number}").text
    assert "1 committed" in page
    assert "15 not yet" in page
    assert '<p class="verdict on" role="status"><b>In progress.</b>' in page
    assert page.count('<rect class="on"') == page.count('<rect class="bad"') == 1
    rows = page[page.index("<h2>Boards</h2>") :]
    assert "bundle-older" in rows.split("</tr>")[1]
    assert "it is &lt;older&gt;" in rows


def test_an_undone_roll_out_says_so_in_words_and_colour(client, tables, number):
    """One board of the first wave had moved, and is back; its bar is not empty."""
    former = Former("1.0", "f" * 64)
    moved = sorted(row.device for row in tables.boards(number) if row.wave == 0)[2]
    tables.report([(moved, OrderReport(tables.get(number).rev, "committed", "1.1", "", "", former=former))], NOW + 5)
    tables.speak(number, "undo", NOW + 10)
    assert (
        "<b>Going back: boards that moved return to their former version.</b> by the operator"
        in client.get(f"/rollouts/{number}").text
    )
    tables.report([(moved, OrderReport(tables.get(number).undo_rev, "committed", "1.0", "", ""))], NOW + 20)
    found = tables.get(number)
    tally = tables.tally(found, NOW + 30)
    tables.step(found, decide(found.plan, found.standing, tally, Verdict("unknown"), NOW + 30), NOW + 30)
    page = client.get(f"/rollouts/{number}").text
    assert (
        '<p class="verdict bad" role="status"><b>Rolled back: boards that moved have their former version again.'
        in page
    )
    assert "1 back on the former version" in page
    assert '<span class="state bad" title="Rolled back' in client.get("/rollouts").text


def test_a_word_is_a_form_with_the_viewers_token(client, tables, number):
    token = re.search('name="csrf" value="([0-9a-f]+)"', client.get(f"/rollouts/{number}").text)[1]
    pause = f"/rollouts/{number}/pause"
    assert client.post(pause, {"csrf": token}).status_code == 403
    assert client.post(pause, {"csrf": "0" * 64}, **HERE).status_code == 403
    assert tables.get(number).standing.state == "running"
    assert client.post(pause, {"csrf": token}, **HERE).status_code == 303
    assert tables.get(number).standing.state == "paused"
    refused = client.post(pause, {"csrf": token}, **HERE)
    assert refused.status_code == 409
    assert client.post(f"/rollouts/{number}/explode", {"csrf": token}, **HERE).status_code == 404
    assert client.post("/rollouts/99/pause", {"csrf": token}, **HERE).status_code == 409


def test_only_words_that_make_sense_are_offered(client, tables, number):
    for word in ("pause", "resume", "abort"):
        state = tables.get(number).standing.state
        page = client.get(f"/rollouts/{number}").text
        assert re.findall(rf'action="/rollouts/{number}/(\w+)"', page) == possible(state)
        tables.speak(number, word, NOW + 10)

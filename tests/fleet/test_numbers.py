"""A number in an address that no database holds is an address of nothing, never the server's fault."""

from __future__ import annotations

import re

import pytest
from fleet.asgi import Client

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.access import Access
from edgekit.fleet.pages.app import Facts, make_app
from edgekit.fleet.pages.lists import whole_number
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.databases import SqliteStore

HUGE = ("9" * 16, "9" * 19, "9" * 23, "9" * 5000)
QUERIES = (
    "/events?before={}",
    "/api/v1/devices?limit={0}&offset={0}",
    "/api/v1/events?before={0}&limit={0}",
    "/?page={}",
)
HERE = {"origin": "http://localhost"}


@pytest.fixture
def app(tmp_path):
    store = SqliteStore.open(tmp_path / "fleet.db")
    alerts = AlertTables(store)
    alerts.take([AlertFinding("offline:b-01", "offline", "b-01 is offline", {})], [], 1)
    yield make_app(store, Facts(dict, dict, ""), Access.open(), alerts=alerts, rollouts=RolloutTables(store))
    store.close()


@pytest.mark.parametrize("number", HUGE, ids=lambda text: f"{len(text)} digits")
def test_a_number_beyond_the_databases_names_nothing(app, number):
    client = Client(app)
    token = re.search('name="csrf" value="([0-9a-f]+)"', client.get("/alerts").text)[1]
    named = [route for route in app.routes if "{number" in route.path]
    assert len(named) >= 4
    for route in named:
        path = re.sub(r"\{number[^}]*\}", number, route.path).replace("{word}", "pause")
        answer = client.post(path, {"csrf": token}, **HERE) if "POST" in route.methods else client.get(path)
        assert answer.status_code == 404, path
    for query in QUERIES:
        assert client.get(query.format(number)).status_code == 200, query
    assert client.first_event(f"/stream/events?after={number}")


@pytest.mark.parametrize("text", ["", "-1", "1.0", "²", "٣", " 1", "1e3", *HUGE])
def test_what_is_no_number_of_fifteen_digits_is_none(text):
    assert whole_number(text, 7) == 7


def test_a_number_of_fifteen_digits_is_one():
    assert whole_number("9" * 15, 7) == 10**15 - 1

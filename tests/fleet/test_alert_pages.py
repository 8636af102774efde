"""The page of alerts: what lasts, what was, who has it, and what is quiet."""

from __future__ import annotations

import re
import time

import pytest
from fleet.asgi import Client
from fleet.boards import birth

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.access import Access
from edgekit.fleet.pages.app import Facts, make_app
from edgekit.fleet.store.databases import SqliteStore

NOW = int(time.time() * 1000)
SLOW = AlertFinding("p99:digits:2:raspberry-pi-4", "p99", "digits 2 <b>slow</b>: inference grew", {"model": "digits"})
GONE = AlertFinding("offline:b-01", "offline", "b-01 is offline", {})
HERE = {"origin": "http://localhost"}


@pytest.fixture
def tables(tmp_path):
    store = SqliteStore.open(tmp_path / "fleet.db")
    store.commit([], [birth("b-01", received=NOW)])
    made = AlertTables(store)
    made.store = store
    yield made
    store.close()


def asked(tables, access=None):
    return Client(make_app(tables.store, Facts(dict, dict, ""), access or Access.open(), alerts=tables))


def token(client, **headers):
    return re.search('name="csrf" value="([0-9a-f]+)"', client.get("/alerts", **headers).text)[1]


def test_what_lasts_stands_on_the_front_page_and_on_its_own(tables):
    client = asked(tables)
    assert "No active alerts" in client.get("/alerts").text
    assert '<ul class="alerts" id="alerts" aria-label="Alerts" hidden></ul>' in client.get("/").text
    tables.take([SLOW, GONE], [], NOW)
    for path in ("/", "/?by=model", "/alerts"):
        page = client.get(path).text
        assert "digits 2 &lt;b&gt;slow&lt;/b&gt;: inference grew" in page
        assert "b-01 is offline" in page
    tables.take([SLOW], [], NOW + 1)
    page = client.get("/alerts").text
    assert "b-01 is offline" in page[page.index("<h2>Cleared</h2>") :]
    found = client.get("/api/v1/alerts").json()["alerts"]
    assert [(one["kind"], one["cleared_ms"] > 0) for one in found] == [("offline", True), ("p99", False)]
    assert "inference grew" in client.get("/api/v1/alerts.csv").text


def test_what_is_wrong_with_many_boards_stands_above_single_ones(tables):
    tables.take([SLOW, *(AlertFinding(f"lag:board:b-{n}", "lag", f"b-{n} is late", {"device": f"b-{n}"})
                         for n in range(7))], [], NOW)  # fmt: skip
    client = asked(tables)
    for path in ("/", "/alerts"):
        page = client.get(path).text
        assert page.index("inference grew") < page.index("b-6 is late") < page.index("b-5 is late")
    assert "5 more alerts" in client.get("/").text


def test_an_acknowledgement_bears_the_viewers_name(tables):
    tables.take([SLOW], [], NOW)
    (alert,) = tables.list()
    client = asked(tables, Access.by_proxy("X-Forwarded-User", ["127.0.0.1"]))
    ada, eve = {"x-forwarded-user": "ada"}, {"x-forwarded-user": "eve"}
    path = f"/alerts/{alert.id}/acknowledge"
    assert client.post(path, {"csrf": token(client, **eve)}, **ada, **HERE).status_code == 403
    assert client.post(path, {"csrf": token(client, **ada)}, **ada).status_code == 403
    assert tables.list()[0].taken_by == ""
    assert client.post(path, {"csrf": token(client, **ada)}, **ada, **HERE).status_code == 303
    assert tables.list()[0].taken_by == "ada"
    page = client.get("/alerts", **ada).text
    assert "acknowledged by ada" in page
    assert "Acknowledge" not in page
    assert client.post("/alerts/99/acknowledge", {"csrf": token(client, **ada)}, **ada, **HERE).status_code == 404


def test_a_silence_is_for_one_alert_or_a_kind_and_ends(tables):
    tables.take([SLOW], [], NOW)
    client = asked(tables)
    csrf = token(client)
    for what, hours, status in ((SLOW.key, "8", 303), ("p99", "1", 303), ("nonsense", "1", 404), ("p99", "9999", 400)):
        form = {"csrf": csrf, "what": what, "hours": hours}
        assert client.post("/alerts/silence", form, **HERE).status_code == status
    assert [what for what, _ in tables.silences(NOW)] == ["p99", SLOW.key]
    assert tables.silences(NOW + 9 * 3_600_000) == []
    assert "Silenced: p99 until" in client.get("/alerts").text
    tables.take([], ["https://x/"], NOW + 1)
    assert tables.due(NOW + 2) == []

"""`edgekit fleet alerts`, `acknowledge`, `silence`, `check`: as a person and as a script read them."""

from __future__ import annotations

import re
import time

import pytest
from fleet.boards import arrival, birth

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.store.databases import SqliteStore

SLOW = AlertFinding("p99:net:7:jetson", "p99", "net 7 on jetson: p99 80 ms", {"model": "net"})
GONE = AlertFinding("offline:board:porch-1", "offline", "porch-1: offline for 9 minutes", {"device": "porch-1"})
FIVE = 300_000


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore.open(tmp_path / "fleet.db")
    yield opened
    opened.close()


@pytest.fixture
def tables(store):
    return AlertTables(store)


def test_what_is_wrong_is_listed_and_is_the_exit_code(in_process, tables):
    ran = in_process("fleet", "alerts")
    assert (ran.code, ran.out) == (0, "no open alerts\n")
    tables.take([SLOW, GONE], [], 1_790_000_000_000)
    ran = in_process("fleet", "alerts")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "   2  2026-09-21 14:13 UTC  porch-1: offline for 9 minutes",
        "   1  2026-09-21 14:13 UTC  net 7 on jetson: p99 80 ms",
    ]
    tables.take([SLOW], [], 1_790_000_060_000)
    assert "porch-1" not in in_process("fleet", "alerts").out
    ran = in_process("fleet", "alerts", "--all", "--json")
    assert ran.code == 1
    assert [(one["event"], one["key"]) for one in ran.json["alerts"]] == [("cleared", GONE.key), ("opened", SLOW.key)]
    assert "until 2026-09-21 14:14 UTC" in in_process("fleet", "alerts", "--all").out
    tables.take([], [], 1_790_000_120_000)
    assert in_process("fleet", "alerts", "--all").code == 0


def test_an_alert_that_ended_for_want_of_answers_says_so(in_process, tables):
    tables.take([SLOW], [], 1000)
    tables.take([], [], 2000, {SLOW.key})
    assert "so recovery is unknown" in in_process("fleet", "alerts", "--all").out
    assert in_process("fleet", "alerts", "--all", "--json").json["alerts"][0]["facts"]["no_data"] is True


def test_who_looks_after_an_alert_is_kept(in_process, tables):
    tables.take([SLOW], [], 1000)
    ran = in_process("fleet", "acknowledge", "1", "--by", "anna")
    assert (ran.code, ran.out) == (0, "anna is handling alert 1: net 7 on jetson: p99 80 ms\n")
    assert in_process("fleet", "alerts").out.endswith("handled by anna\n")
    assert in_process("fleet", "acknowledge", "1", "--by", "ben", "--json").json == {"alert": 1, "by": "ben"}
    assert tables.list()[0].taken_by == "ben"
    ran = in_process("fleet", "acknowledge", "9", "--json")
    assert ran.code == 1
    assert ran.json["error"]["what"] == "no such alert: 9"
    assert ran.json["error"]["do"] == "List them: edgekit fleet alerts"


@pytest.mark.parametrize("what", ["offline", "offline:board:porch-1"])
def test_a_silence_is_of_a_kind_or_of_one_alert(in_process, tables, what):
    now = int(time.time() * 1000)
    ran = in_process("fleet", "silence", what, "--hours", "8", "--json")
    assert ran.code == 0
    assert ran.json["silenced"] == what
    assert ran.json["until_ms"] == pytest.approx(now + 8 * 3_600_000, abs=60_000)
    assert tables.silences(now) == [(what, ran.json["until_ms"])]
    assert f"no messages about {what} until 20" in in_process("fleet", "silence", what).out
    tables.take([SLOW, GONE], ["mqtt:x"], now)
    assert [one.alert for one in tables.due(now)] == [1]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["silence", "everything"], 1, "unknown kind of alert"),
        (["silence", "offline", "--hours", "-1"], 2, "--hours"),
        (["acknowledge", "one"], 2, "is not a valid integer"),
        (["check", "--hours", "49"], 2, "--hours"),
        (["check", "none.toml"], 1, "cannot read the rules"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(in_process, tables, arguments, code, told):
    ran = in_process("fleet", *arguments)
    assert ran.code == code
    assert told in ran.err


def test_rules_are_tried_on_what_is_stored(in_process, store, tmp_path):
    """A version that was slow for ten minutes, an hour ago."""
    now = int(time.time() * 1000)
    at = now - now % FIVE - 12 * FIVE
    store.commit([], [birth("porch-1", received=at)])
    slow = [arrival(n, at=at + n * 60_000, received=at + n * 60_000, ms=[70.0] * 60) for n in range(1, 11)]
    well = [arrival(n, at=at + n * 60_000, received=at + n * 60_000, ms=[10.0] * 60) for n in range(11, 21)]
    store.commit([*slow, *well], [])
    ran = in_process("fleet", "check", "--hours", "3", "--json")
    assert ran.code == 0
    found = [(one["event"], one["key"]) for one in ran.json["told"] if one["key"].startswith("p99")]
    assert found == [("opened", "p99:digits:1:raspberry-pi-4"), ("cleared", "p99:digits:1:raspberry-pi-4")]
    assert at < ran.json["told"][0]["at_ms"] < now
    (tmp_path / "alerts.toml").write_text('off = ["offline", "late"]\n[p99]\nover = 3.0\n')
    ran = in_process("fleet", "check", "alerts.toml", "--hours", "3")
    assert ran.code == 0
    alerts, *files = ran.out.splitlines()
    assert alerts == ("alerts in 3 hours: 0; lag, throttling, failing boards and each board's own p99 are not stored")
    assert files
    assert all(re.match(r"open files: .+ may have [\d,]+, for [\d,]+ connections of boards", one) for one in files)
    assert "2.4 times the budget" in in_process("fleet", "check", "--hours", "3").out

"""What goes wrong with the server itself: a full disk, a forgotten board, open files."""

from __future__ import annotations

import http.server
import json
import resource
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from fleet.boards import EPOCH, NOW, birth, payload
from listener import Listener
from mosquitto import Mosquitto

from edgekit.fleet.alert_runner import Alerting
from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.ingest import Pace
from edgekit.fleet.open_files import bearing
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import StoreError
from edgekit_runtime.telemetry.messages import encode_state
from edgekit_runtime.telemetry.window import About


def wait_until(condition, timeout_s=30):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def hook():
    """A webhook: its URL, and what came."""
    taken = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", taken
    server.shutdown()
    server.server_close()


@pytest.fixture
def fleet(tmp_path, hook):
    """A broker, and `fleet(...)` starts a server on it; all of them end with the test."""
    running = []
    with Mosquitto(tmp_path) as broker:

        def start():
            server = FleetServer(Settings(
                broker.url, 0, f"sqlite:///{tmp_path / 'fleet.db'}", "127.0.0.1:0", Pace(wait_s=0.05, chores_s=0.1),
                rolling=RollingPace(0.1, 0.1, 0.5), rules=Rules(webhooks=(hook[0],), off=("offline",)),
            ))  # fmt: skip
            server.start()
            running.append(server)
            wait_until(lambda: server.ingest.link.subscribed)
            return server

        start.broker = broker
        yield start
        for server in running:
            server.close()


def healthz(server):
    try:
        with urllib.request.urlopen(f"{server.url}healthz", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def fill_disk(*stores, full=True):
    """As if the disk had no page left: SQLite's own limit, and its own error."""
    for store in stores:
        (pages,) = store.execute("PRAGMA page_count").fetchone()
        store.execute(f"PRAGMA max_page_count = {pages if full else 2**30}")


def test_a_full_disk_is_told_by_healthz_and_by_an_alert_of_the_server_itself(fleet, hook):
    """Neither windows nor alerts can be stored; and both ends are told."""
    server = fleet()
    assert healthz(server)[0] == 200
    board = Listener(fleet.broker.port, topic="ek/v1/+/ack")
    fill_disk(server.store, server.rolling._store)
    seq = 0

    def send():
        nonlocal seq
        for n in range(20):
            seq += 1
            board.say("ek/v1/porch-1/m", payload(seq, at=NOW + seq * 60_000, version=str(n)), qos=1)

    until = time.monotonic() + 30
    while healthz(server)[0] == 200:
        send()
        assert time.monotonic() < until
        time.sleep(0.1)
    status, said = healthz(server)
    assert (status, said["ok"], said["connected"]) == (503, False, True)
    assert "full" in said["store_error"]
    wait_until(lambda: hook[1])
    assert (hook[1][0]["event"], hook[1][0]["key"], hook[1][0]["kind"]) == ("opened", "server:store", "server")
    assert hook[1][0]["text"].startswith("the server cannot store what boards send: ")
    assert "the store failed (database or disk is full)" in hook[1][0]["text"]
    fill_disk(server.store, server.rolling._store, full=False)
    send()
    wait_until(lambda: healthz(server)[0] == 200)
    wait_until(lambda: hook[1][-1]["event"] == "cleared")
    assert [one["key"] for one in hook[1]] == ["server:store"] * len(hook[1])
    board.close()


def test_where_no_alert_can_be_stored_the_servers_own_is_sent_all_the_same(open_store, monkeypatch):
    store, told, trouble = open_store(), [], []

    def publish(topic, payload, *, receipt):
        told.append(json.loads(payload))
        receipt(len(told) > 1)  # the first is not taken, and tried again
        return len(told) > 1

    alerting = Alerting(store, Rules(topic="ek/alerts"), publish, lambda: " ".join(trouble))
    alerting.step(NOW)
    execute = store.execute

    def full(statement, given=()):
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            raise next(iter(store.down))("disk full")
        return execute(statement, given)

    monkeypatch.setattr(store, "execute", full)
    for n in range(1, 5):
        with pytest.raises(StoreError):
            alerting.step(NOW + n * 15_000)
        assert len(told) == max(0, min(2, n - 1)), "a lock of a moment is no alert, and one alert is one message"
    monkeypatch.undo()
    alerting.step(NOW + 75_000)
    alerting.step(NOW + 90_000)
    assert [(one["event"], one["alert"], one["opened_ms"]) for one in told] == [
        ("opened", 0, NOW + 30_000), ("opened", 0, NOW + 30_000), ("cleared", 0, NOW + 30_000)
    ]  # fmt: skip
    trouble.append("no space left")
    alerting.step(NOW + 105_000)
    alerting.step(NOW + 106_000)
    (stored,) = alerting.tables.list()
    assert (stored.key, stored.text) == ("server:store", "the server cannot store what boards send: no space left")


def retained(broker, topic):
    """What the broker keeps under a topic."""
    listener = Listener(broker.port, topic=topic)
    listener.say("ek/v1/end-mark/state", b"x", qos=1)
    listener.wait(lambda heard: any(payload == b"x" for _, payload, _ in heard.heard))
    listener.close()
    return [name for name, payload, kept in listener.heard if kept and payload]


def test_a_forgotten_board_does_not_come_back_with_the_next_start(fleet):
    """Its birth is retained on the broker, which a server reads whenever it connects."""
    board = Listener(fleet.broker.port, topic="nothing")
    for name in ("porch-1", "porch-2"):
        board.say(f"ek/v1/{name}/state", encode_state(EPOCH, 1, About(name, "m", "1", "0" * 12, "pi", 30.0), 60.0),
                  qos=1, retain=True)  # fmt: skip
    server = fleet()
    wait_until(lambda: len(server.store.fleet()) == 2)
    assert server.store.forget("porch-1")
    wait_until(lambda: server.store.to_clear() == [])
    assert retained(fleet.broker, "ek/v1/+/state") == ["ek/v1/porch-2/state"]
    server.close()
    again = fleet()
    wait_until(lambda: again.ingest.counts["messages"])
    board.say("ek/v1/porch-3/state", encode_state(EPOCH, 1, About("porch-3", "m", "1", "0" * 12, "pi", 30.0), 60.0))
    wait_until(lambda: any(row.id == "porch-3" for row in again.store.fleet()))
    assert [row.id for row in again.store.fleet()] == ["porch-2", "porch-3"]
    board.close()


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one():
    """In a child, as under Debian's 1,024."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 500)); "
        "from edgekit.fleet.open_files import bearing, raise_limit; own = bearing()[-1].limit; "
        "print(own, raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split()[1:] == ["500", "500", "500"]


def test_the_limit_of_a_broker_here_says_how_many_boards_it_bears(tmp_path, in_process):
    store = tmp_path / "fleet.db"
    opened = SqliteStore.open(store)
    opened.commit([], [birth(f"porch-{n}") for n in range(30)])
    opened.close()
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()  # amqtt is a process of Python
        pid = broker._process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (50, 1000))
        (mine,) = (one for one in bearing() if one.process == f"mosquitto {pid}")
        assert (mine.limit, mine.boards) == (50, 26)
        ran = in_process("fleet", "check", "--store", f"sqlite:///{store}")
        line = f"open files: mosquitto {pid} may have 50, for 26 connections of boards, and the store has 30"
        assert f"{line}: raise its LimitNOFILE" in ran.out
        ran = in_process("fleet", "check", "--store", f"sqlite:///{store}", "--json")
        said = json.loads(ran.out)
        assert {"process": f"mosquitto {pid}", "limit": 50, "boards": 26} in said["open_files"]
        assert said["boards"] == 30
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "limits").write_text("Limit  Soft Limit  Hard Limit\nMax open files  1024  524288  files\n")
    (alone,) = bearing(tmp_path)
    assert (alone.process, alone.limit, alone.boards) == ("a broker started from here", 1024, 1000)

"""Many boards on one event loop are boards: what they cut is stored, and a backlog drains without being sent twice."""

from __future__ import annotations

import pytest
from mosquitto import Mosquitto
from ports import free_port

from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.simulated import BoardLoad, BoardLoadPlan
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.telemetry.link import Broker


@pytest.fixture
def served(tmp_path):
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()
        store = SqliteStore.open(tmp_path / "fleet.db")
        ingest = Ingest(Broker.parse(broker.url), store, Pace(wait_s=0.1, chores_s=0.2))
        ingest.start()
        yield broker, store
        ingest.close()
        store.close()


def test_boards_that_come_back_are_live_and_drained_and_send_everything_about_once(served):
    broker, store = served
    plan = BoardLoadPlan(devices=20, seconds=60.0, window_s=30.0, connect_s=0.5, backlog=40, sites=2)
    found = BoardLoad(Broker.parse(broker.url), plan).run()
    assert (found.live, found.losses) == (20, 0)
    assert found.live_s is not None
    assert found.drained_s is not None
    assert found.windows >= found.confirmed >= 20 * 39
    assert found.sends_a_window < 1.2
    assert {row.site for row in store.fleet()} == {"site-0", "site-1"}
    assert sum(row.over for row in store.fleet()) > 0
    assert store.totals().lost == 0


def test_boards_whose_broker_is_killed_connect_again_and_send_what_waits(served):
    broker, store = served

    def kill(now):
        if not killed and now.confirmed > 20:
            broker.kill()
            broker.start()
            killed.append(now.confirmed)

    killed = []
    found = BoardLoad(
        Broker.parse(broker.url), BoardLoadPlan(devices=20, seconds=25.0, window_s=1.0, connect_s=0.5)
    ).run(kill)
    assert found.losses >= 20
    assert found.confirmed > killed[0] + 20 * 5, "not those of before the kill alone"
    assert store.totals().windows >= found.confirmed


def test_boards_without_a_broker_end_in_their_time(in_process):
    ran = in_process("fleet", "simulate", "--broker", f"mqtt://127.0.0.1:{free_port()}", "--devices", "2",
                     "--minutes", "0.02", "--json")  # fmt: skip
    assert ran.code == 1
    assert (ran.json["live"], ran.json["sent"]) == (0, 0)

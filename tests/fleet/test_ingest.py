"""From a real broker into the store, with payloads that are right, wrong and hostile."""

from __future__ import annotations

import json
import time

import pytest
from fleet.boards import EPOCH, payload
from listener import Listener
from mosquitto import Mosquitto

from edgekit.fleet import Ingest, Pace, SqliteStore
from edgekit.fleet.store import quantiles
from edgekit_runtime.telemetry import Broker, Histogram


@pytest.fixture
def running(tmp_path):
    with Mosquitto(tmp_path, most_bytes=2_000_000) as broker:
        store = SqliteStore.open(tmp_path / "fleet.db")
        ingest = Ingest(Broker.parse(broker.url), store, Pace(chores_s=0.2))
        ingest.start()
        board = Listener(broker.port, topic="ek/v1/+/ack")
        wait_until(lambda: ingest.link.connected)
        yield ingest, store, board
        board.close()
        ingest.close()
        store.close()


def wait_until(condition, timeout_s=30):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_is_committed_is_acknowledged_with_its_mark(running):
    _, store, board = running
    for seq in (1, 2, 4):
        board.say("ek/v1/porch-1/m", payload(seq), qos=1)
    board.wait(lambda heard: heard.heard and json.loads(heard.heard[-1][1])["hwm"] == 2)
    board.say("ek/v1/porch-1/m", payload(3), qos=1)
    board.wait(lambda heard: json.loads(heard.heard[-1][1]) == {"epoch": EPOCH, "hwm": 4})
    assert [seq for _, seq in store.windows("porch-1")] == [1, 2, 3, 4]


def test_a_window_already_stored_is_acknowledged_again(running):
    _, store, board = running
    for _ in range(2):
        board.say("ek/v1/porch-1/m", payload(1), qos=1)
        seen = len(board.heard)
        board.wait(lambda heard, seen=seen: len(heard.heard) > seen)
    assert store.totals().windows == 1


HOSTILE = {
    "text": ("ek/v1/porch-1/m", b"hello", "json"),
    "nothing": ("ek/v1/porch-1/m", b"", "json"),
    "a megabyte": ("ek/v1/porch-1/m", b"x" * 1_000_000, "size"),
    "another device's id": ("ek/v1/porch-1/m", payload(1, "porch-2"), "device"),
    "a hash in the id": ("ek/v1/por%23ch/m", payload(1), "device"),
    "capitals in the id": ("ek/v1/PORCH/m", payload(1), "device"),
    "a long id": ("ek/v1/" + "a" * 500 + "/m", payload(1), "device"),
    "HTML for an id": ("ek/v1/<script>/m", payload(1), "device"),
    "a state that is none": ("ek/v1/porch-1/state", b'{"on":7}', "shape"),
    "a state that is true": ("ek/v1/porch-1/state", b'{"on":true}', "shape"),
    "a state of a megabyte": ("ek/v1/porch-1/state", b" " * 1_000_000, "size"),
    "a deep nest": ("ek/v1/porch-1/m", b"[" * 15_000, "json"),
}


def test_hostile_payloads_are_counted_under_their_word_and_everything_else_lives(running):
    ingest, store, board = running
    wanted = {}
    for topic, data, word in HOSTILE.values():
        board.say(topic, data, qos=1)
        wanted[word] = wanted.get(word, 0) + 1
    board.say("ek/v1/porch-3/m", payload(1, "porch-3"), qos=1)
    board.wait(lambda heard: heard.heard)
    assert dict(ingest.refused) == wanted
    assert [row.id for row in store.fleet()] == ["porch-3"]


def test_a_window_of_a_later_format_is_refused_and_does_not_block_its_board(running):
    ingest, store, board = running
    later = json.dumps(json.loads(payload(1)) | {"v": 9}).encode()
    for data in (later, payload(2)):
        board.say("ek/v1/porch-1/m", data, qos=1)
    board.wait(lambda heard: heard.heard and json.loads(heard.heard[-1][1])["hwm"] == 2)
    assert dict(ingest.refused) == {"version": 1}
    assert store.device("porch-1").refused == 1


def test_a_store_that_fails_acknowledges_nothing_and_is_used_again_when_it_works(running, monkeypatch):
    from edgekit.fleet import StoreError

    ingest, store, board = running
    commit = store.commit

    def broken(*_):
        raise StoreError("the disk is full", where="fleet.db")

    monkeypatch.setattr(store, "commit", broken)
    board.say("ek/v1/porch-1/m", payload(1), qos=1)
    wait_until(lambda: ingest.counts["store"] >= 1)
    assert board.heard == []
    monkeypatch.setattr(store, "commit", commit)
    board.say("ek/v1/porch-1/m", payload(1), qos=1)
    board.wait(lambda heard: heard.heard)


def test_silence_is_noticed_without_a_message(running):
    _, store, board = running
    state = {"on": 1, "epoch": EPOCH, "boot": 1, "sw": "x", "model": "m", "ver": "1", "sha": "0", "profile": "p",
        "hw": "h",
             "sla": None, "win": 0.5}  # fmt: skip
    board.say("ek/v1/porch-1/state", state, qos=1)
    wait_until(lambda: store.device("porch-1") is not None)
    assert store.device("porch-1").online
    wait_until(lambda: not store.device("porch-1").online)


def test_percentiles_over_sources_of_different_scales_are_those_of_all_values():
    device, cache = Histogram(), Histogram()
    for value in range(1, 101):
        device.record(float(value))
    for _ in range(100):
        cache.record(0.01)
    cache.downscale(1)
    p25, p75, p995 = quantiles({"device": device, "cache": cache}, (0.25, 0.75, 0.995))
    assert p25 < 0.02
    assert p75 == pytest.approx(50.0, rel=0.011)
    assert p995 == pytest.approx(99.0, rel=0.011)
    assert quantiles({}, (0.5,)) == [None]

"""From a real broker into the store, with payloads that are right, wrong and hostile."""

from __future__ import annotations

import json
import time

import pytest
from fleet.boards import EPOCH, NOW, body, payload, windows
from listener import Listener
from mosquitto import Mosquitto

from edgekit.fleet.ingest import Credits, Ingest, Pace, WindowIntake
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.records import Mark, quantiles
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.link import Broker
from edgekit_runtime.telemetry.messages import encode_event
from edgekit_runtime.telemetry.window import Seal, sealed_payload


@pytest.fixture
def running(tmp_path):
    with Mosquitto(tmp_path, most_bytes=2_000_000) as broker:
        store = SqliteStore.open(tmp_path / "fleet.db")
        ingest = Ingest(Broker.parse(broker.url), store, Pace(wait_s=0.1, chores_s=0.2))
        ingest.start()
        board = Listener(broker.port, topic="ek/v1/+/ack")
        wait_until(lambda: ingest.link.subscribed)
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
    board.wait(lambda heard: json.loads(heard.heard[-1][1])["hwm"] == 4)
    assert json.loads(board.heard[-1][1]) == {
        "epoch": EPOCH,
        "hwm": 4,
        "credit": 0,
        "known": json.loads(board.heard[0][1])["known"],
    }
    assert [seq for _, seq in windows(store, "porch-1")] == [1, 2, 3, 4]


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


def test_a_board_with_a_backlog_gets_credit_for_it(running):
    _, _, board = running
    waiting = sealed_payload(body(), Seal(EPOCH, 40, 10, 0, 31, 12_000))
    board.say("ek/v1/porch-1/m", waiting, qos=1)
    board.wait(lambda heard: heard.heard)
    assert json.loads(board.heard[0][1])["credit"] == 20


def test_what_all_credit_was_for_is_committed_at_once(tmp_path):
    """Ten boards with a backlog send what they may, and do not wait for the end of a long transaction."""
    with Mosquitto(tmp_path) as broker:
        store = SqliteStore.open(tmp_path / "fleet.db")
        ingest = Ingest(Broker.parse(broker.url), store, Pace(most=10, wait_s=60.0))
        ingest.start()
        board = Listener(broker.port, topic="ek/v1/+/ack")
        wait_until(lambda: ingest.link.subscribed)
        names = [f"porch-{n}" for n in range(10)]
        for name in names:
            board.say(f"ek/v1/{name}/m", sealed_payload(body(name), Seal(EPOCH, 40, 20, 0, 21, 9000)), qos=1)
        board.wait(lambda heard: len(heard.heard) == 10)
        assert [json.loads(data)["credit"] for _, data, _ in board.heard] == [20] * 10
        ingest._pace = Pace(most=1_000_000, wait_s=60.0)
        for name in names:
            for seq in range(20, 40):
                board.say(f"ek/v1/{name}/m", sealed_payload(body(name), Seal(EPOCH, seq, 20, 0, 21, 9000)), qos=1)
        board.wait(lambda heard: len(heard.heard) == 20, timeout_s=20)
        assert store.totals().windows == 10 * 21
        board.close()
        ingest.close()
        store.close()


def test_credit_is_bounded_for_all_together_and_taken_back_when_it_is_not_used():
    given = Credits(most=50, most_each=20, lasts_s=6.0)
    assert [given.grant(mark(n), 100, 0.0) for n in range(4)] == [20, 20, 10, 0]
    given.arrived("b-0", 15)
    assert given.grant(mark(3), 100, 1.0) == 15
    assert given.grant(mark(0), 2, 1.0) == 2, "another grant replaces what is left of the last one"
    given.arrived("b-9", 3)
    given.arrived("b-1", 99)
    assert given.out == 2 + 10 + 15
    assert given.grant(mark(5), 100, 6.5) == 20, "b-2 is silent"
    assert given.out == 2 + 15 + 20
    assert given.grant(mark(5), 0, 7.5) == 0
    assert given.out == 0


def mark(n, hwm=1):
    return Mark(f"b-{n}", EPOCH, hwm)


def test_a_board_that_got_no_credit_hears_of_it_as_soon_as_there_is_some():
    """Without a window to send it has no other reason to ask within half a minute."""
    given = Credits(most=40, most_each=20, lasts_s=6.0)
    assert [given.grant(mark(n), 30, 0.0) for n in range(5)] == [20, 20, 0, 0, 0]
    assert given.wanted
    assert given.freed(0.1) == []
    given.arrived("b-0", 20)
    assert given.freed(0.2) == [(mark(2), 20)]
    assert given.grant(mark(3, hwm=9), 0, 0.3) == 0, "it has sent all it had by itself"
    given.arrived("b-1", 15)
    assert given.freed(0.4) == [], "five are not worth a message"
    assert given.freed(6.1) == [(mark(4), 20)], "what was not used in time is taken back"
    assert not given.wanted


def test_a_board_with_a_hole_gets_credit_for_the_hole_and_not_for_what_is_stored_above_it(running):
    """Otherwise boards that have nothing to send hold the credit of those that have."""
    _, store, board = running
    for seq in (1, 3, 4, 5, 6):
        seal = Seal(EPOCH, seq, 1, 0, seq, 600)
        board.say("ek/v1/porch-1/m", sealed_payload(body("porch-1"), seal), qos=1)
        board.wait(lambda heard, seq=seq: len(heard.heard) == (1, 3, 4, 5, 6).index(seq) + 1)
    assert [json.loads(ack)["hwm"] for _, ack, *_ in board.heard] == [1, 1, 1, 1, 1]
    assert [json.loads(ack)["credit"] for _, ack, *_ in board.heard] == [0, 1, 1, 1, 1]
    assert store.device("porch-1").waiting == 1


def test_events_are_stored_in_the_sequence_of_windows(running):
    ingest, _, board = running
    happened = encode_event("throttling", "<b>hot</b>", device="porch-1", boot=1, t0_ms=NOW, clock_ok=False)
    board.say("ek/v1/porch-1/m", payload(1), qos=1)
    board.say("ek/v1/porch-1/ev", sealed_payload(happened, Seal(EPOCH, 2, 1)), qos=1)
    board.say("ek/v1/porch-1/ev", sealed_payload(happened.replace(b"throttling", b"tea"), Seal(EPOCH, 3, 1)), qos=1)
    board.wait(lambda heard: heard.heard and json.loads(heard.heard[-1][1])["hwm"] == 3)
    assert dict(ingest.refused) == {"shape": 1}


def test_windows_events_and_what_came_before_are_counted_apart(running):
    ingest, _, board = running
    happened = encode_event("install", "2 is active", device="porch-1", boot=1, t0_ms=NOW, clock_ok=False)
    event = sealed_payload(happened, Seal(EPOCH, 2, 1))
    for topic, data in (("m", payload(1)), ("ev", event), ("m", payload(3)), ("m", b"{")):
        board.say(f"ek/v1/porch-1/{topic}", data, qos=1)
    wait_until(lambda: ingest.counts["windows"] == 2)
    for topic, data in (("m", payload(1)), ("ev", event), ("m", payload(4))):
        board.say(f"ek/v1/porch-1/{topic}", data, qos=1)
    wait_until(lambda: ingest.counts["windows"] == 3)
    assert (ingest.counts["messages"], ingest.counts["repeated"], dict(ingest.refused)) == (7, 2, {"json": 1})
    figures = ingest.intake.figures()
    assert figures["windows_per_s"] > 0 < figures["repeated_per_s"]
    assert 0 <= figures["commit_s"] < 20


def test_a_minute_of_what_came_in_is_kept_and_no_more():
    now, worked = [0.0], [0.0]
    intake = WindowIntake(lambda: now[0], lambda: worked[0])
    assert set(intake.figures().values()) == {0.0}
    for _ in range(1200):  # ten a second for two minutes, half of the time at work
        now[0], worked[0] = now[0] + 0.1, worked[0] + 0.05
        intake.note(windows=3, repeated=1, waited_s=0.4 if now[0] < 30 else 0.2)
    assert len(intake._seconds) <= 63
    assert intake.figures() == {
        "windows_per_s": pytest.approx(30, rel=0.02), "repeated_per_s": pytest.approx(10, rel=0.02),
        "busy": pytest.approx(0.5, rel=0.03), "commit_s": 0.2,
    }  # fmt: skip
    now[0] += 120
    assert set(intake.figures().values()) == {0.0}, "and nothing of it once it has stopped"


def test_boards_that_are_known_hear_of_an_ingestor_that_comes(running, tmp_path):
    ingest, store, board = running
    board.say("ek/v1/porch-1/m", payload(1), qos=1)
    board.wait(lambda heard: heard.heard)
    ingest.close()
    again = Ingest(ingest.link.broker, store, Pace(wait_s=0.1, chores_s=0.2))
    again.start()
    board.wait(lambda heard: len(heard.heard) == 2)
    assert json.loads(board.heard[1][1]) == {"epoch": EPOCH, "hwm": 0, "credit": 0, "known": 1}
    again.close()


def test_two_ingestors_that_share_take_every_window_in_once(tmp_path):
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()
        url, store = Broker.parse(broker.url), SqliteStore.open(tmp_path / "fleet.db")
        both = [Ingest(url, store, Pace(wait_s=0.1, chores_s=0.2), f"ingest-{n}", share="fleet") for n in range(2)]
        for one in both:
            one.start()
        board = Listener(broker.port, topic="ek/v1/+/ack")
        wait_until(lambda: all(one.link.subscribed for one in both))
        for seq in range(1, 41):
            board.say("ek/v1/porch-1/m", payload(seq), qos=1)
        board.wait(lambda heard: any(json.loads(data)["hwm"] == 40 for _, data, _ in heard.heard))
        assert [one.counts["messages"] for one in both] == [20, 20]
        assert store.totals().windows == 40
        board.close()
        for one in both:
            one.close()
        store.close()


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "x" * 65])
def test_a_group_has_a_name_that_is_one(in_process, tmp_path, name):
    store = f"sqlite:///{tmp_path}/x.db"
    ran = in_process("fleet", "ingest", "--broker", "mqtt://127.0.0.1:1", "--store", store, "--share", name)
    assert ran.code == 1
    assert "invalid group name" in ran.err


def test_a_store_that_fails_acknowledges_nothing_and_is_used_again_when_it_works(running, monkeypatch):
    from edgekit.fleet.store.fleet_errors import StoreError

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
    board.say("ek/v1/porch-1/state", state, qos=1, retain=True)  # as boards do: no subscription is too late for it
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

"""From the meter to a real broker and back: what arrives, what is kept, and that an inference never notices."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import tiny
from mosquitto import Mosquitto
from ports import free_port

from edgekit.fleet.store.messages import parse_event, parse_window

pytest.importorskip("paho.mqtt.client")

from listener import Listener

from edgekit_runtime import CacheOptions, Semantic, TelemetryOptions, open_bundle
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.system.errors import MissingExtraError, TelemetryError, install_command
from edgekit_runtime.telemetry.link import Broker
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter
from edgekit_runtime.telemetry.spool import Spool, is_event
from edgekit_runtime.telemetry.window import About

FORMAT = Path(__file__).parents[3] / "docs" / "telemetry-format.md"
LONG = 30


@pytest.fixture
def broker(tmp_path):
    with Mosquitto(tmp_path) as running:
        yield running


@pytest.fixture
def mqtt5(broker):
    broker.need_mqtt5()


@pytest.fixture
def ingestor(broker):
    listener = Listener(broker.port, acknowledge=True)
    yield listener
    listener.close()


def reporter(url, path, *, meter=None, device="porch-1", window_s=0.2, most_wait_s=0.3):
    about = About(device, "digits", "1.2", "9f3c01ab77de", "raspberry-pi-4", 20.0)
    made = Reporter(meter or Meter(), about, TelemetryOptions(url, device, window_s, path, most_wait_s))
    made.start()
    return made


def wait_until(condition, timeout_s=LONG):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def waiting_in(path):
    spool = Spool.open(path)
    windows = [json.loads(body) for _, body in spool.after(0, 10_000) if not is_event(body)]
    spool.close()
    return windows


def test_a_model_that_reports_is_seen_by_its_answers(broker, ingestor, tmp_path):
    path = tiny.bundle(tmp_path)
    with open_bundle(
        path, telemetry=TelemetryOptions(broker.url, device="porch-1", window_s=0.2, spool=tmp_path / "s.db")
    ) as model:
        for picture in (tiny.RED, tiny.RED, tiny.GREEN):
            model.predict(picture, budget_ms=60_000)
        model.predict(tiny.GREEN, budget_ms=1e-9)  # out of the cache, and late all the same
        ingestor.wait(lambda heard: sum(w["n"] for w in heard.windows()) == 4)
        wait_until(lambda: model.stats().telemetry.waiting == 0)
        stats = model.stats().telemetry
        assert (stats.connected, stats.trouble, stats.dropped, stats.on_disk) == (True, "", 0, True)
        assert model.stats().meter.requests == 4
    window = {name: sum(w[name] for w in ingestor.windows()) for name in ("n", "ch", "cm", "bv", "err", "fb")}
    assert window == {"n": 4, "ch": 2, "cm": 2, "bv": 1, "err": 0, "fb": 0}
    ingestor.wait(lambda heard: heard.states()[-1]["on"] == 0)  # a goodbye comes in its own time
    born, gone = ingestor.states()[0], ingestor.states()[-1]
    assert (born["on"], born["model"], born["profile"], born["win"]) == (1, "tiny", "x86-64", 0.2)
    assert gone == {"on": 0, "epoch": born["epoch"], "boot": 1}


def test_a_window_says_how_often_a_semantic_cache_was_false(broker, ingestor, tmp_path):
    options = TelemetryOptions(broker.url, device="porch-1", window_s=0.2, spool=tmp_path / "s.db")
    cache = CacheOptions(memory_mb=0, semantic=Semantic(lambda item: [1.0], error=0.4, sample=1.0))
    with open_bundle(tiny.bundle(tmp_path), telemetry=options, cache=cache) as model:
        for _ in range(40):
            model.predict(tiny.RED)
        bound = None
        while bound is None or not bound.wrong:  # on a busy machine a comparison may not be worth its time
            model.predict(tiny.GREEN)
            bound = model.stats().cache.semantic.bound
        assert (bound.open, bound.sampled > 0, bound.wrong) == (True, True, 1)
        ingestor.wait(lambda heard: heard.windows() and heard.windows()[-1]["se"][4] == bound.sampled)
    known = [0.4, bound.cut, bound.given, bound.withheld, bound.sampled, 1, *bound.ci95]
    assert ingestor.windows()[-1]["se"] == pytest.approx(known, abs=1e-5)


def test_closing_sends_the_last_window_before_its_time(mqtt5, broker, ingestor, tmp_path):
    path = tiny.bundle(tmp_path)
    with open_bundle(
        path, telemetry=TelemetryOptions(broker.url, device="porch-1", window_s=3600, spool=tmp_path / "s.db")
    ) as model:
        model.predict(tiny.RED)
    ingestor.wait(lambda heard: sum(w["n"] for w in heard.windows()) == 1)
    assert waiting_in(tmp_path / "s.db") == []


def test_a_window_tells_of_the_bundle_that_answered_in_it(tmp_path):
    """Across a swap, with no broker in reach: what was spooled names each version with its own answers."""
    (tmp_path / "next").mkdir()
    first, second = tiny.bundle(tmp_path), tiny.bundle(tmp_path / "next", version="2")
    url, spool = f"mqtt://127.0.0.1:{free_port()}", tmp_path / "s.db"
    with open_bundle(
        first, telemetry=TelemetryOptions(url, device="porch-1", window_s=3600, spool=spool), cache=False
    ) as model:
        for _ in range(3):
            model.predict(tiny.RED)
        model.swap(second)
        model.predict(tiny.RED)
    assert [(window["model"]["ver"], window["n"]) for window in waiting_in(spool)] == [("1", 3), ("2", 1)]


@pytest.mark.parametrize(("opened_with", "asked", "late", "sla"), [
    (None, None, 1, 0.001), (60_000, None, 0, 60_000), (None, 60_000, 0, 0.001), (60_000, 0.001, 1, 60_000),
    (float("inf"), None, 0, None),
])  # fmt: skip
def test_an_answer_is_late_by_the_callers_budget_else_by_what_it_was_opened_with_else_by_the_bundles(
    mqtt5, broker, ingestor, tmp_path, opened_with, asked, late, sla
):
    path = tiny.bundle(tmp_path, target=Target("x86-64", "x86_64", 1, 0.001))
    options = TelemetryOptions(broker.url, device="porch-1", window_s=3600, spool=tmp_path / "s.db")
    with open_bundle(path, telemetry=options, budget_ms=opened_with) as model:
        model.predict(tiny.RED, budget_ms=60_000)
        model.predict(tiny.RED, budget_ms=asked)
        stats = model.stats().meter
    assert (stats.over_budget, stats.refused) == (int(asked == 0.001), 0), "of the budgets that callers gave"
    ingestor.wait(lambda heard: sum(w["n"] for w in heard.windows()) == 2)
    assert sum(w["bv"] for w in ingestor.windows()) == late
    assert ingestor.states()[0]["sla"] == sla


def test_nothing_but_the_documented_fields_leaves_the_board(mqtt5, broker, ingestor, tmp_path):
    """On the wire, of a model that reads a file, has labels and fails on an input."""
    from PIL import Image

    secret = tmp_path / "aunt-mary-at-the-door.png"
    Image.fromarray(tiny.RED).save(secret)
    path = tiny.bundle(tmp_path)
    with open_bundle(
        path, telemetry=TelemetryOptions(broker.url, device="porch-1", window_s=3600, spool=tmp_path / "s.db")
    ) as model:
        model.predict(secret)
        with pytest.raises(Exception, match=r"decode|picture|image"):
            model.predict(b"no picture of mary")
    ingestor.wait(lambda heard: len(heard.states()) >= 2)
    documented = set(re.findall(r"^\| `([a-z0-9.]+)`", FORMAT.read_text(), re.MULTILINE))
    for topic, payload, _ in ingestor.heard:
        assert topic in ("ek/v1/porch-1/m", "ek/v1/porch-1/state", "ek/v1/porch-1/ack")
        assert not re.search(rb"mary|red|png|/tmp|\.db", payload), payload
        if not topic.endswith("/ack"):
            assert set(json.loads(payload)) <= documented


def test_what_is_not_acknowledged_is_kept_and_sent_again_after_a_restart(broker, tmp_path):
    silent = Listener(broker.port)
    first = reporter(broker.url, tmp_path / "s.db")
    silent.wait(lambda heard: len(heard.windows()) >= 3)
    first.close(timeout_s=0.1)
    silent.close()
    kept = waiting_in(tmp_path / "s.db")
    assert len(kept) >= 3
    ingestor = Listener(broker.port, acknowledge=True)
    second = reporter(broker.url, tmp_path / "s.db", window_s=3600)
    ingestor.wait(lambda heard: {w["seq"] for w in heard.windows()} >= set(range(1, len(kept) + 1)))
    second.close()
    assert waiting_in(tmp_path / "s.db") == []
    ingestor.close()


def test_a_broker_that_dies_and_comes_back_loses_nothing_and_no_inference_notices(tmp_path):
    """predict() goes on while the broker is killed, stays away, and returns."""
    broker = Mosquitto(tmp_path)
    broker.start()
    listener = Listener(broker.port, acknowledge=True)
    path, answers, stop = tiny.bundle(tmp_path), [], threading.Event()
    with open_bundle(
        path,
        telemetry=TelemetryOptions(broker.url, device="porch-1", window_s=0.2, spool=tmp_path / "s.db"),
        cache=False,
    ) as model:

        def ask():
            while not stop.is_set():
                answers.append(model.predict(tiny.RED))
                time.sleep(0.001)

        asking = threading.Thread(target=ask)
        asking.start()
        listener.wait(lambda heard: len(heard.windows()) >= 2)
        broker.kill()
        before = len(answers)
        wait_until(lambda: model.stats().telemetry.trouble and model.stats().telemetry.waiting >= 3)
        wait_until(lambda: len(answers) >= before + 50)  # none waits for the broker, which stays away till then
        broker.start()
        wait_until(lambda: model.stats().telemetry.connected and model.stats().telemetry.waiting == 0)
        stop.set()
        asking.join()
        wait_until(lambda: sum({w["seq"]: w["n"] for w in listener.windows()}.values()) >= len(answers))
        assert not model.stats().meter.errors
    seqs = {w["seq"] for w in listener.windows()}
    assert seqs == set(range(1, max(seqs) + 1))
    listener.close()
    broker.kill()


def filled(path, n):
    """A spool with n windows, as a board has after a while without its broker."""
    kept = reporter("mqtt://127.0.0.1:1", path.with_suffix(".first"), window_s=3600)
    kept.close(0.0)
    (window,) = waiting_in(path.with_suffix(".first"))
    spool = Spool.open(path)
    for _ in range(n):
        spool.append(json.dumps(window).encode())
    spool.close()
    return spool.epoch


def test_a_backlog_follows_the_newest_window_by_credit(broker, tmp_path):
    epoch = filled(tmp_path / "s.db", 100)
    fleet = Listener(broker.port)
    sending = reporter(broker.url, tmp_path / "s.db", window_s=3600)
    fleet.wait(lambda heard: [w["seq"] for w in heard.windows()] == [100])
    fleet.say("ek/v1/porch-1/ack", {"epoch": epoch, "hwm": 0, "credit": 3, "known": 1})
    fleet.wait(lambda heard: [w["seq"] for w in heard.windows()] == [100, 1, 2, 3])
    fleet.say("ek/v1/porch-1/ack", {"epoch": epoch, "hwm": 3})  # as an older fleet says it
    fleet.wait(lambda heard: len(heard.windows()) >= 24)
    assert [w["seq"] for w in fleet.windows()] == [100, *range(1, 24)]
    sending.close(0.1)
    fleet.close()


def test_a_fleet_that_does_not_know_a_board_gets_its_birth_again(broker, tmp_path):
    fleet = Listener(broker.port)
    reporting = reporter(broker.url, tmp_path / "s.db", window_s=0.2)
    fleet.wait(lambda heard: heard.windows() and len(heard.states()) == 1)
    epoch = fleet.states()[0]["epoch"]
    began = time.monotonic()
    while len(fleet.states()) < 3:
        fleet.say("ek/v1/porch-1/ack", {"epoch": epoch, "hwm": 0, "credit": 0, "known": 0})
        assert time.monotonic() < began + 60
        time.sleep(0.01)
    assert fleet.states()[2] == fleet.states()[0]
    assert time.monotonic() - began >= 0.2, "once a window at most"
    reporting.close(0.1)
    fleet.close()


def test_another_bundle_is_an_event_in_the_sequence(broker, ingestor, tmp_path):
    meter, options = Meter(), TelemetryOptions(broker.url, "porch-1", 3600, tmp_path / "s.db")
    for sha, generation, trial in (("aa", 1, False), ("bb", 2, True), ("aa", 1, False)):
        about = About("porch-1", "digits", sha, sha, "raspberry-pi-4", generation=generation, trial=trial)
        reporting = Reporter(meter, about, options)
        reporting.start()
        wait_until(lambda reporting=reporting: reporting.stats().connected)
        reporting.close(10.0)
    ingestor.wait(lambda heard: len(heard.windows()) == 3)
    told = [parse_event(payload, "porch-1") for topic, payload, _ in ingestor.heard if topic.endswith("/ev")]
    assert [(event.kind, event.text) for event in told] == [
        ("trial", "runs digits bb instead of digits aa"),
        ("rollback", "runs digits aa instead of digits bb"),
    ]
    assert sorted([event.seal.seq for event in told] + [w["seq"] for w in ingestor.windows()]) == [1, 2, 3, 4, 5]
    assert waiting_in(tmp_path / "s.db") == []


def test_a_board_that_may_not_publish_under_its_id_says_so_and_what_to_do(mqtt5, tmp_path, caplog):
    rights = tmp_path / "acl"
    rights.write_text("pattern write ek/v1/%c/never\ntopic read ek/#\n")
    (tmp_path / "strict").mkdir()
    with Mosquitto(tmp_path / "strict", f"acl_file {rights}") as broker:
        reporting = reporter(broker.url, tmp_path / "s.db")
        wait_until(lambda: reporting.stats().troubles.get("forbidden", 0) >= 2)
        wait_until(lambda: caplog.records)
        seen = reporting.stats()
        reporting.close(0.1)
    assert (seen.connected, seen.trouble) == (True, "forbidden")
    assert "porch-1 may not publish ek/v1/porch-1/" in seen.advice
    assert "broker-config" in seen.advice
    assert "forbidden" in caplog.text


def test_windows_that_a_broker_takes_not_are_told_of_and_hold_up_nothing_that_it_takes(mqtt5, tmp_path, caplog):
    """mosquitto answers the first with what MQTT 5 does not have. The event after them arrives."""
    (tmp_path / "strict").mkdir()
    with Mosquitto(tmp_path / "strict", "message_size_limit 250") as broker:
        listener = Listener(broker.port, acknowledge=True)
        reporting = reporter(broker.url, tmp_path / "s.db")
        wait_until(lambda: reporting.stats().windows >= 8)
        reporting._link.wake()
        reporting._happened("warn", "small")
        wait_until(lambda: any(topic.endswith("/ev") and b'"small"' in payload for topic, payload, _ in listener.heard))
        wait_until(lambda: caplog.records)
        seen = reporting.stats()
        reporting.close(0.1)
        listener.close()
        log = (tmp_path / "strict" / f"mosquitto-{broker.port}.log").read_text()
    assert (seen.connected, seen.trouble) == (True, "too-large")
    assert re.search(r"the broker ends the connection for \d{3,4} bytes to ek/v1/porch-1/m", seen.advice)
    assert "Raise the broker's limit" in seen.advice
    assert "too-large" in caplog.text
    assert log.count("as porch-1") <= 3


@pytest.mark.parametrize("line", ["allow_anonymous false"])
def test_a_broker_that_refuses_the_password_is_one_word(tmp_path, line):
    with Mosquitto(tmp_path, line) as broker:
        reporting = reporter(f"mqtt://user:wrong@127.0.0.1:{broker.port}", tmp_path / "s.db")
        wait_until(lambda: reporting.stats().troubles.get("password", 0) >= 2)
        assert reporting.stats().trouble == "password"
        reporting.close()
    assert len(waiting_in(tmp_path / "s.db")) >= 1


class Refusing:
    """A TCP server that answers the first bytes of every connection with the same few, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.levels: list[int] = []
        self.greetings: list[bytes] = []
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                data = connection.recv(1000)
                if len(data) > 8:
                    self.levels.append(data[8])
                    self.greetings.append(data)
                    connection.sendall(self._answer)

    def close(self):
        self._server.close()


@pytest.mark.parametrize("answer", [b"", b"\x20\x02\x00\x01"], ids=["hangs up", "refuses as 3.1.1 does"])
def test_a_broker_without_mqtt_5_is_asked_for_3_1_1_at_once(tmp_path, answer):
    server = Refusing(answer)
    reporting = reporter(f"mqtt://127.0.0.1:{server.port}", tmp_path / "s.db")
    wait_until(lambda: len(server.levels) >= 2)
    assert server.levels[:2] == [5, 4]
    for greeting in server.greetings:
        assert b"porch-1" in greeting
        assert not re.search(rb"\.db|/tmp|" + socket.gethostname().encode(), greeting)
    assert "version" in reporting.stats().troubles
    reporting.close()
    server.close()


def test_nobody_there_is_one_word_and_closing_does_not_wait(tmp_path):
    reporting = reporter(f"mqtt://127.0.0.1:{free_port()}", tmp_path / "s.db")
    wait_until(lambda: reporting.stats().troubles.get("unreachable", 0) >= 2)
    start = time.monotonic()
    reporting.close(timeout_s=20)
    assert time.monotonic() - start < 10  # of the 20 that it may take
    assert waiting_in(tmp_path / "s.db")


def test_a_disk_that_cannot_be_written_is_replaced_by_memory(broker, ingestor, tmp_path):
    (tmp_path / "file").write_text("")
    reporting = reporter(broker.url, tmp_path / "file" / "s.db")
    ingestor.wait(lambda heard: len(heard.windows()) >= 2)
    assert (reporting.stats().trouble, reporting.stats().on_disk) == ("disk", False)
    assert spool_events(ingestor) == ["its disk fails: reports are kept in memory"]
    reporting.close()


def spool_events(heard):
    said = [json.loads(payload) for topic, payload, _ in heard.heard if topic.endswith("/ev")]
    return [event["text"] for event in said if event["kind"] == "spool"]


def test_a_disk_that_works_again_is_taken_back(broker, ingestor, tmp_path):
    (tmp_path / "file").write_text("")
    reporting = reporter(broker.url, tmp_path / "file" / "s.db", window_s=0.1)
    ingestor.wait(lambda heard: len(heard.windows()) >= 1)
    (tmp_path / "file").unlink()
    wait_until(lambda: reporting.stats().on_disk)
    ingestor.wait(lambda heard: len({w["epoch"] for w in heard.windows()}) == 2)
    ingestor.wait(lambda heard: "reports are kept on its disk again" in spool_events(heard))
    reporting.close()
    assert reporting.stats().trouble == ""


def test_two_that_share_a_spool_both_report(broker, ingestor, tmp_path):
    """Of two devices: one has the file, the other memory."""
    one, other = (reporter(broker.url, tmp_path / "s.db", device=name) for name in ("porch-1", "porch-2"))
    ingestor.wait(lambda heard: len({w["dev"] for w in heard.windows()}) == 2)
    # Opening it at the same instant, both may find it locked at first; one gets it when its memory is empty.
    wait_until(lambda: {one.stats().on_disk, other.stats().on_disk} == {True, False})
    one.close()
    other.close()


def test_two_with_one_id_are_told_and_both_deliver(mqtt5, broker, ingestor, tmp_path):
    one, other = (reporter(broker.url, tmp_path / f"{name}.db") for name in "ab")
    wait_until(lambda: {"taken-over", "lost"} & {*one.stats().troubles, *other.stats().troubles})
    ingestor.wait(lambda heard: len({w["epoch"] for w in heard.windows()}) == 2)
    one.close()
    other.close()


def test_a_spool_put_back_from_a_copy_begins_another_epoch(broker, tmp_path):
    listener = Listener(broker.port)
    reporting = reporter(broker.url, tmp_path / "s.db")
    listener.wait(lambda heard: heard.windows())
    epoch = listener.windows()[0]["epoch"]
    listener.say("ek/v1/porch-1/ack", {"epoch": epoch, "hwm": 500})
    listener.wait(lambda heard: heard.windows()[-1]["epoch"] != epoch)
    reporting.close(0.1)
    listener.close()


def test_an_acknowledgement_that_is_none_changes_nothing(broker, tmp_path):
    listener = Listener(broker.port)
    reporting = reporter(broker.url, tmp_path / "s.db", window_s=0.1)
    listener.wait(lambda heard: heard.windows())
    junk = [b"junk", b"[]", b"null", b'{"epoch":1}', b'{"epoch":"x","hwm":1}', b'{"hwm":"9"}', b"[" * 50_000]
    for payload in junk:
        listener.say("ek/v1/porch-1/ack", payload)
    seen = len(listener.windows())
    listener.wait(lambda heard: len(heard.windows()) > seen + 1)
    assert reporting.stats().connected
    assert "fault" not in reporting.stats().troubles
    reporting.close(0.1)
    listener.close()


def test_a_clock_in_1970_is_told_and_survived(broker, ingestor, tmp_path, monkeypatch):
    monkeypatch.setattr("edgekit_runtime.telemetry.reporter.time.time", lambda: 42.0)
    monkeypatch.setattr("edgekit_runtime.telemetry.reporter.time.time", lambda: 42.0)
    reporting = reporter(broker.url, tmp_path / "s.db")
    ingestor.wait(lambda heard: heard.windows())
    reporting.close()
    _, payload, _ = next(found for found in ingestor.heard if found[0].endswith("/m"))
    window = parse_window(payload, "porch-1")
    assert (window.t0_ms, window.clock_ok) == (42_000, False)


def test_closing_twice_and_leaving_no_thread(broker, ingestor, tmp_path):
    before = set(threading.enumerate())
    reporting = reporter(broker.url, tmp_path / "s.db")
    reporting.close()
    reporting.close()
    assert set(threading.enumerate()) <= before


WRONG = {
    "no device": (("mqtt://h", None), "device"),
    "an empty device": (("mqtt://h", ""), "device"),
    "a device with a slash": (("mqtt://h", "a/b/c"), "device"),
    "a wildcard": (("mqtt://h", "abc#"), "device"),
    "another scheme": (("http://h", "porch-1"), "URL"),
    "no URL, and no device": (("foo", None), "foo: not a broker URL"),
    "no text": ((True, "porch-1"), "True is not a broker URL"),
    "no host": (("mqtt://", "porch-1"), "URL"),
    "a port that is none": (("mqtt://h:99999", "porch-1"), "URL"),
    "no window": (("mqtt://h", "porch-1", 0), "window"),
    "not a number": (("mqtt://h", "porch-1", float("nan")), "window"),
    "a window in words": (("mqtt://h", "porch-1", "60"), "window of '60' seconds"),
}


@pytest.mark.parametrize(("given", "word"), WRONG.values(), ids=WRONG)
def test_options_that_make_no_sense_are_refused(given, word):
    with pytest.raises(TelemetryError, match=word):
        TelemetryOptions(*given)


def test_a_password_is_never_printed():
    broker = Broker.parse("mqtts://user:s%3Acret@host")
    assert (broker.user, broker.password, broker.port, broker.tls) == ("user", "s:cret", 8883, True)
    assert "cret" not in f"{broker} {broker!r} {TelemetryOptions('mqtts://user:s%3Acret@host', 'porch-1')!r}"
    with pytest.raises(TelemetryError) as caught:
        Broker.parse("tcp://user:secret@host")
    assert "secret" not in str(caught.value)


def test_without_paho_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "paho", None)
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("telemetry"))):
        open_bundle(
            tiny.bundle(tmp_path),
            telemetry=TelemetryOptions("mqtt://127.0.0.1:1", device="porch-1", spool=tmp_path / "s.db"),
        )


@pytest.mark.parametrize("wrong", [-1, "x", None, float("nan"), 1e9])
def test_seconds_that_make_no_sense_are_refused(wrong):
    for name in ("window_s", "most_wait_s"):
        with pytest.raises(TelemetryError, match="out of range"):
            TelemetryOptions("mqtt://127.0.0.1:1", device="porch-1", **{name: wrong})

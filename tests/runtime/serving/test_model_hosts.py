"""A device that would be late asks a real host, hears a clear word where nobody would make it, and comes home."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import tiny
from scripted import Scripted, http
from tiny_host import TinyHost

from edgekit_runtime import BudgetExceeded, CacheOptions, QueueFull, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.serving import fallback as comparison
from edgekit_runtime.system.breaker import Breaker

served = pytest.importorskip("served")
LONG = 30
HOT_S = 0.5
BUDGET_MS = 400.0
SLACK_S = 5.0
"""For a machine under load: what is late here is later by this."""

pytestmark = pytest.mark.skipif("litert" not in available(), reason="the host's engine here is LiteRT")


@pytest.fixture
def host(tmp_path):
    with served.Serving(tiny.bundle(tmp_path)) as running:
        yield running


@pytest.fixture
def device(host, tmp_path):
    """A model that was opened with the host, and has measured it."""
    with open_bundle(tiny.bundle(tmp_path), hosts=[host.url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        yield model


def wait_for(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def heat(model):
    """Make the device slow, and let it find out."""
    model.throttle(HOT_S * 1e3)
    while (model.stats().device_p90_ms or 0) < BUDGET_MS:
        model.predict(tiny.RED)


def test_a_device_that_fits_answers_itself(device):
    model = device
    assert [model.predict(tiny.RED, budget_ms=BUDGET_MS).source for _ in range(5)] == ["device"] * 5


def test_a_device_that_would_be_late_asks_the_host(device):
    model = device
    heat(model)
    answer = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
    assert (answer.source, answer.met_budget) == ("host", True)
    assert answer.top(1)[0].label == "blue"
    assert answer.timings["network"] >= 0
    assert answer.timings["host"] >= 0
    with pytest.raises(ValueError, match="read-only"):
        answer.outputs["probs"][0] = 0


def test_host_and_device_agree_on_what_they_see(device):
    model = device
    at_home = {name: model.predict(getattr(tiny, name)).outputs["probs"] for name in ("RED", "GREEN", "BLUE", "DARK")}
    heat(model)
    for name, expected in at_home.items():
        answer = model.predict(getattr(tiny, name), budget_ms=BUDGET_MS)
        assert answer.source == "host"
        np.testing.assert_array_equal(answer.outputs["probs"], expected)


@pytest.mark.parametrize("budget_ms", [1e12, 1e300, float("inf")])
def test_a_budget_beyond_all_clocks_is_a_budget(device, budget_ms):
    assert device.predict(tiny.RED, budget_ms=budget_ms).source == "device"
    assert device.submit(tiny.RED, budget_ms=budget_ms).result(LONG).source == "device"


def test_a_request_without_a_budget_stays_at_home(device):
    model = device
    heat(model)
    assert model.predict(tiny.RED).source == "device"


def test_it_comes_home_when_the_device_is_fast_again(device):
    model = device
    heat(model)
    assert model.predict(tiny.RED, budget_ms=BUDGET_MS).source == "host"
    model.throttle(0)
    sources = []

    def at_home():
        try:
            sources.append(model.predict(tiny.RED, budget_ms=BUDGET_MS).source)
        except BudgetExceeded:
            sources.append("refused")
        return sources[-10:] == ["device"] * 10

    wait_for(at_home)


@pytest.mark.parametrize("ask", ["submit", "apredict"])
def test_futures_and_awaited_answers_go_there_too(device, ask):
    model = device
    heat(model)
    frame = tiny.BLUE.copy()
    if ask == "submit":
        future = model.submit(frame, budget_ms=BUDGET_MS)
        frame[:] = 0  # the frame may be reused at once, also when it travels
        answer = future.result(LONG)
    else:
        answer = asyncio.run(model.apredict(frame, budget_ms=BUDGET_MS))
    assert answer.source == "host"
    assert answer.top(1)[0].label == "blue"


def test_what_was_made_ready_for_this_artifact_never_travels(device):
    model = device
    heat(model)
    ready = (tiny.RED ^ 0x80).view(np.int8)
    with pytest.raises(BudgetExceeded):
        model.predict(ready, budget_ms=BUDGET_MS)
    answer = model.predict(ready)
    assert answer.source == "device"
    assert answer.top(1)[0].label == "red"


def test_a_hosts_answer_is_cached(host, tmp_path):
    with open_bundle(tiny.bundle(tmp_path), hosts=[host.url]) as model:
        model.throttle(HOT_S * 1e3)
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        for fill in range(3):
            model.predict(tiny.colour(fill, fill, fill))
        sources = [model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source for _ in range(2)]
    assert sources == ["host", "cache"]


NEW = itertools.count()


def hot(bundle, host, **options):
    """A device that was opened with the host, has measured it, and is known to be slow."""
    model = open_bundle(bundle, hosts=[host.url], **options)
    wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
    model.throttle(HOT_S * 1e3)
    while (model.stats().device_p90_ms or 0) < BUDGET_MS:
        model.predict(tiny.colour(next(NEW), 0, 0))  # never seen before, so that no cache answers
    return model


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_hosts_answer_is_never_taken_for_the_devices(tier, tmp_path):
    """The host runs another artifact of the same model, so its scores are other numbers."""
    bundle, cache = tiny.bundle(tmp_path), CacheOptions(disk=tmp_path / "answers.db") if tier == "disk" else True
    with served.Serving(tiny.bundle(tmp_path, "tflite-f32")) as host:
        with hot(bundle, host, cache=cache) as model:
            first = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
            assert first.source == "host"
            if tier == "memory":
                again = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
                own = model.predict(tiny.BLUE)
        if tier == "disk":
            with hot(bundle, host, cache=cache) as model:
                again = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
                own = model.predict(tiny.BLUE)
    assert (again.source, own.source) == ("cache", "device")
    np.testing.assert_array_equal(again.outputs["probs"], first.outputs["probs"])
    assert not np.array_equal(own.outputs["probs"], first.outputs["probs"])


def test_a_hosts_answer_is_no_answer_to_a_similar_picture(host, tmp_path):
    with hot(tiny.bundle(tmp_path), host, cache=CacheOptions(similar=4.0)) as model:
        assert model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source == "host"
        assert model.predict(tiny.BLUE ^ 1).source == "device"
        assert model.predict(tiny.BLUE ^ 2).source == "similar"


def test_a_hosts_kept_answer_is_given_where_nobody_would_make_it(host, tmp_path):
    with hot(tiny.bundle(tmp_path), host) as model:
        kept = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
        assert kept.source == "host"
        host.stop()
        model._journey.opened.hosts._hosts[0].record.breaker = opened_breaker()
        assert model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source == "cache"
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)


def opened_breaker():
    breaker = Breaker(threshold=1, longest_s=60.0, shortest_s=60.0)
    breaker.failed()
    return breaker


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_hosts_answer_that_is_no_number_is_no_answer(value, tmp_path):
    with (
        served.Serving(tiny.bundle(tmp_path, "tflite-f32"), cache=False) as host,
        hot(tiny.bundle(tmp_path), host, cache=False) as model,
    ):
        engine = host.model._journey.device.engine
        run = engine.run
        engine.run = lambda tensors: [np.full_like(array, value) for array in run(tensors)]
        with pytest.raises(BudgetExceeded, match="output 'probs' holds NaN or infinity"):
            model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
        assert "output 'probs' holds NaN or infinity" in model.describe()["hosts"][0]["last_error"]


@pytest.mark.parametrize("differs", [False, True])
def test_some_answers_of_hosts_are_computed_here_too_and_those_that_differ_counted(differs, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "COMPARE_EVERY", 2)
    with (
        served.Serving(tiny.bundle(tmp_path, "tflite-f32"), cache=False) as host,
        hot(tiny.bundle(tmp_path), host, cache=False) as model,
    ):
        engine = host.model._journey.device.engine
        run = engine.run
        if differs:  # for what no golden example shows
            engine.run = lambda tensors: [np.roll(out, int(tensors[0][0, 0, 0, 1] > 0.5)) for out in run(tensors)]

        def compared():
            with contextlib.suppress(BudgetExceeded):
                model.predict(tiny.GREEN, budget_ms=BUDGET_MS)  # the device compares when it is idle
            return model.stats().meter.compared

        wait_for(compared)
        meter = model.stats().meter
    assert meter.differed == (meter.compared if differs else 0)


def test_a_host_that_turns_wrong_in_mid_run_is_found_out_within_about_twenty_answers(tmp_path):
    """Its golden example is asked for while it answers. What it had answered since is found no more."""
    with (
        served.Serving(tiny.bundle(tmp_path, "tflite-f32"), cache=False) as host,
        hot(tiny.bundle(tmp_path), host) as model,
    ):
        engine = host.model._journey.device.engine
        run = engine.run

        def ask(count):
            """Best classes, "refused" where nobody answered in time."""
            found = []
            for _ in range(count):
                picture = tiny.colour(200 + next(NEW) % 50, next(NEW) % 40, next(NEW) % 40)
                with contextlib.suppress(BudgetExceeded):
                    answer = model.predict(picture, budget_ms=BUDGET_MS)
                    found.append((picture, answer.source, answer.top(1)[0].label))
            return found

        assert {label for _, _, label in ask(30)} == {"red"}
        engine.run = lambda tensors: [np.roll(out, 1, axis=-1) for out in run(tensors)]
        wrong = [picture for picture, _, label in ask(100) if label != "red"]
        assert 0 < len(wrong) <= 60  # 20 or a few more; the golden answer takes its time under load
        assert not model.describe()["hosts"][0]["proven"]
        assert "golden" in model.describe()["hosts"][0]["last_error"]
        engine.run = run
        wait_for(lambda: ask(1) and model.describe()["hosts"][0]["proven"])
        again = [model.predict(picture, budget_ms=10 * BUDGET_MS).top(1)[0].label for picture in wrong]
        assert set(again) == {"red"}


def test_where_nobody_would_make_it_the_caller_hears_at_once(device):
    model = device
    heat(model)
    model._journey.device.engine.run = None  # asked, it would be another error
    with pytest.raises(BudgetExceeded, match=r"no answer expected within 0\.01 ms: "):
        model.predict(tiny.RED, budget_ms=0.01)
    assert model.stats().meter.errors["budget"] == 1


@pytest.fixture
def process(tmp_path):
    """`edgekit host serve` in a process of its own: (process, url). Killed at the end, if it still lives."""
    command = [
        sys.executable,
        "-c",
        "from edgekit.cli import main; main()",
        "host",
        "serve",
        str(tiny.bundle(tmp_path)),
    ]
    started = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield started, json.loads(started.stdout.readline())["listening"]
    finally:
        started.kill()
        started.wait(LONG)
        started.stdout.close()


@pytest.mark.skipif(os.name == "nt", reason="stopping a process is POSIX")
def test_a_host_killed_mid_request_keeps_no_caller_and_leaves_no_thread(process, tmp_path):
    running, url = process
    before = set(threading.enumerate())
    with open_bundle(tiny.bundle(tmp_path), hosts=[url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model)
        running.send_signal(signal.SIGSTOP)  # it takes requests from now on and answers none
        began = time.perf_counter()
        futures = [model.submit(picture, budget_ms=BUDGET_MS) for picture in (tiny.RED, tiny.BLUE, tiny.DARK)]
        errors = [future.exception(LONG) for future in futures]
        took_s = time.perf_counter() - began
        running.kill()
        assert model.predict(tiny.RED).source == "device"
    assert all(isinstance(error, BudgetExceeded) for error in errors)
    assert took_s < BUDGET_MS / 1e3 + SLACK_S
    assert set(threading.enumerate()) <= before


def test_a_dead_host_opens_the_breaker_and_callers_hear_at_once(tmp_path):
    bundle = tiny.bundle(tmp_path)
    others = threading.enumerate()
    running = served.Serving(bundle).__enter__()
    with open_bundle(bundle, hosts=[running.url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model)
        running.stop()
        running.repository.close()
        while model.describe()["hosts"][0]["breaker"] == "closed":
            with pytest.raises(BudgetExceeded):
                model.predict(tiny.RED, budget_ms=BUDGET_MS)
        with pytest.raises(BudgetExceeded, match="no answer expected"):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("edgekit-") and t not in others]


OTHERS = {
    "another contract": {"contract": replace(tiny.CONTRACT, labels=("a", "b", "c", "d"))},
    "another model": {"model_id": "1" * 64},
    "no version '1'; versions: 2": {"version": "2"},
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_host_that_serves_something_else_is_never_asked(why, tmp_path):
    (tmp_path / "other").mkdir()
    other = tiny.bundle(tmp_path / "other", **OTHERS[why])
    with served.Serving(other) as wrong, open_bundle(tiny.bundle(tmp_path), hosts=[wrong.url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["last_error"])
        assert why in model.describe()["hosts"][0]["last_error"]
        heat(model)
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)


def test_opening_with_a_host_that_is_not_there_waits_for_nothing(tmp_path):
    start = time.perf_counter()
    with open_bundle(tiny.bundle(tmp_path), hosts=["http://127.0.0.1:9"], cache=False) as model:
        assert model.predict(tiny.RED, budget_ms=1000).source == "device"
    assert time.perf_counter() - start < LONG


@pytest.mark.parametrize("delay_ms", [-1, float("nan"), float("inf")])
def test_an_impossible_throttle_is_the_callers_bug(device, delay_ms):
    with pytest.raises(ValueError, match="delay_ms"):
        device.throttle(delay_ms)


def trickle(sock):
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n" * 40:
        try:
            sock.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.01)


FAULTS = {
    "hangs": lambda sock: time.sleep(1.0),
    "trickles": trickle,
    "cuts": lambda sock: None,
    "503": lambda sock: http(503, {"error": "busy"}),
    "500": lambda sock: http(500, {"error": "bad"}),
}


@contextlib.contextmanager
def waking():
    """How late this machine wakes a thread that sleeps, while the block runs: seconds, one each 20 ms."""
    late_s, over = [0.0], threading.Event()

    def sleep():
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(0.02)
            late_s.append(time.perf_counter() - began - 0.02)

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        yield late_s
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("fault", FAULTS)
def test_no_caller_is_kept_beyond_its_budget_by_a_host_that(fault, tmp_path):
    path = tiny.bundle(tmp_path)
    faulty = TinyHost(read_bundle(path).manifest)
    with Scripted(faulty) as server, hot(path, server, cache=False) as model, waking() as late_s:
        faulty.fault = FAULTS[fault]
        futures, ends = [], []
        for _ in range(12):
            began = time.perf_counter()
            try:
                future = model.submit(tiny.RED, budget_ms=BUDGET_MS)
            except BudgetExceeded:  # at once
                continue
            future.add_done_callback(lambda _, began=began: ends.append(time.perf_counter() - began))
            futures.append(future)
        ended = [future.exception(LONG) for future in futures]
        began = time.perf_counter()
        with contextlib.suppress(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)
        ends.append(time.perf_counter() - began)
    assert all(error is None or isinstance(error, (BudgetExceeded, QueueFull)) for error in ended)
    assert max(ends) < BUDGET_MS / 1e3 + SLACK_S
    assert sorted(ends)[len(ends) // 2] < BUDGET_MS / 1e3 + 0.1 + max(late_s), "later than this machine wakes threads"


def test_an_answer_past_its_time_is_taken_at_the_deadline_too(tmp_path):
    path = tiny.bundle(tmp_path)
    faulty = TinyHost(read_bundle(path).manifest)
    with Scripted(faulty) as server, hot(path, server, cache=CacheOptions(ttl_s=0.001)) as model:
        kept = model.predict(tiny.RED)

        def of_the_host():
            with contextlib.suppress(BudgetExceeded):
                return model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source == "host"

        wait_for(of_the_host)
        time.sleep(0.002)
        faulty.fault = FAULTS["hangs"]
        answer = model.predict(tiny.RED, budget_ms=BUDGET_MS, stale_ok=True)
        hosts = model.predict(tiny.BLUE, budget_ms=BUDGET_MS, stale_ok=True)
    assert (answer.source, answer.artifact) == ("stale", "tflite-int8")
    assert (hosts.source, hosts.artifact, hosts.engine) == ("stale", None, None)
    assert np.array_equal(answer.outputs["probs"], kept.outputs["probs"])


def test_what_came_too_late_is_kept_for_the_next_who_asks(tmp_path):
    path = tiny.bundle(tmp_path)
    faulty = TinyHost(read_bundle(path).manifest)
    with Scripted(faulty) as server, hot(path, server) as model:
        late = threading.Event()

        def slow(sock):
            late.wait(LONG)
            return faulty._answer()

        faulty.fault = slow
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
        late.set()
        sources = []

        def again():
            with contextlib.suppress(BudgetExceeded):
                sources.append(model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source)
            return sources

        wait_for(again)
    assert sources[0] in ("cache", "host")


def test_closing_ends_what_is_on_its_way(tmp_path):
    path = tiny.bundle(tmp_path)
    faulty = TinyHost(read_bundle(path).manifest)
    with Scripted(faulty) as server:
        model = hot(path, server, cache=False)
        faulty.fault = FAULTS["hangs"]
        futures = [model.submit(tiny.RED, budget_ms=1e5) for _ in range(3)]
        model.throttle(0)
        model.close(timeout_s=0.1)
        assert all(future.exception(LONG) is None or future.exception(0) for future in futures)

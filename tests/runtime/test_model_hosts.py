"""A device that would be late asks a real host, hears a clear word where nobody would make it, and comes home."""

from __future__ import annotations

import asyncio
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

from edgekit_runtime import BudgetExceeded, CacheOptions, open_bundle
from edgekit_runtime.engines import available
from edgekit_runtime.remote.hosts import Breaker

served = pytest.importorskip("served")
LONG = 30
HOT_S = 0.25
BUDGET_MS = 200.0

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


def test_a_request_without_a_budget_stays_at_home(device):
    model = device
    heat(model)
    assert model.predict(tiny.RED).source == "device"


def test_it_comes_home_when_the_device_is_fast_again(device):
    model = device
    heat(model)
    model.throttle(0)
    sources = []
    wait_for(lambda: sources.append(model.predict(tiny.RED, budget_ms=BUDGET_MS).source) or sources[-1] == "device")
    assert sources[0] == "host"


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
        model._journey.opened.hosts._hosts[0].breaker = opened_breaker()
        assert model.predict(tiny.BLUE, budget_ms=BUDGET_MS).source == "cache"
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)


def opened_breaker():
    breaker = Breaker(threshold=1, longest_s=60.0, shortest_s=60.0)
    breaker.failed()
    return breaker


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_hosts_answer_that_is_no_number_is_refused_and_the_device_answers(value, tmp_path):
    with (
        served.Serving(tiny.bundle(tmp_path, "tflite-f32"), cache=False) as host,
        hot(tiny.bundle(tmp_path), host, cache=False) as model,
    ):
        engine = host.model._journey.device.engine
        run = engine.run
        engine.run = lambda tensors: [np.full_like(array, value) for array in run(tensors)]
        answer = model.predict(tiny.BLUE, budget_ms=BUDGET_MS)
        assert answer.source == "device"
        assert answer.top(1)[0].label == "blue"
        assert "output 'probs' holds NaN or infinity" in model.describe()["hosts"][0]["last_error"]


def test_where_nobody_would_make_it_the_caller_hears_at_once(device):
    model = device
    heat(model)
    model._journey.device.engine.run = None  # asked, it would be another error
    with pytest.raises(BudgetExceeded, match=r"nobody is expected to answer within 0\.01 ms"):
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
def test_a_host_killed_mid_request_costs_no_answer_and_no_thread(process, tmp_path):
    running, url = process
    before = set(threading.enumerate())
    with open_bundle(tiny.bundle(tmp_path), hosts=[url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model)
        running.send_signal(signal.SIGSTOP)  # it takes requests from now on and answers none
        futures = [model.submit(picture, budget_ms=BUDGET_MS) for picture in (tiny.RED, tiny.BLUE, tiny.DARK)]
        running.kill()
        answers = [future.result(LONG) for future in futures]
    assert [answer.top(1)[0].label for answer in answers] == ["red", "blue", "dark"]
    assert {answer.source for answer in answers} == {"device"}
    assert all("host_failed" in answer.timings for answer in answers)
    assert set(threading.enumerate()) <= before


def test_a_dead_host_opens_the_breaker_and_is_found_again(tmp_path):
    bundle = tiny.bundle(tmp_path)
    running = served.Serving(bundle).__enter__()
    with open_bundle(bundle, hosts=[running.url], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model)
        running.stop()
        running.repository.close()
        answers = refused = 0
        while model.describe()["hosts"][0]["breaker"] == "closed":
            try:
                model.predict(tiny.RED, budget_ms=BUDGET_MS)
                answers += 1
            except BudgetExceeded:
                refused += 1
        assert answers >= 1  # each failure on the way was answered by the device
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("edgekit-")]


OTHERS = {
    "another contract": {"contract": replace(tiny.CONTRACT, labels=("a", "b", "c", "d"))},
    "another model": {"model_id": "1" * 64},
    "no version '1'; versions: 2": {"version": "2"},
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_host_that_serves_something_else_is_never_asked(why, tmp_path):
    (tmp_path / "other").mkdir()
    other = tiny.bundle(tmp_path / "other", **OTHERS[why])
    with (
        served.Serving(other) as wrong,
        open_bundle(tiny.bundle(tmp_path), hosts=[wrong.url], cache=False) as model,
    ):
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

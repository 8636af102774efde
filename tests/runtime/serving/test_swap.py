"""Another bundle between two requests: each is answered by one bundle alone, and none is lost."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import BundleError, ClosedError, ContractError
from edgekit_runtime.system.memory import MemoryBudget

ENGINE = min(available())
RECIPE = tiny.RECIPE_OF_ENGINE[ENGINE]
PRIMED = tuple(f"{label}'" for label in tiny.LABELS)


@pytest.fixture
def first(tmp_path):
    return tiny.bundle(tmp_path, RECIPE, engine=ENGINE)


@pytest.fixture
def second(tmp_path):
    """The same network, other labels: an answer shows which bundle gave it."""
    (tmp_path / "second").mkdir()
    contract = replace(tiny.CONTRACT, labels=PRIMED)
    return tiny.bundle(tmp_path / "second", RECIPE, engine=ENGINE, contract=contract, version="2")


def test_new_requests_go_to_the_new_bundle(first, second):
    with open_bundle(first) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"
        model.swap(second)
        answer = model.predict(tiny.RED)
        assert (answer.top(1)[0].label, answer.source) == ("red'", "device")  # not the other bundle's cached answer
        assert model.describe()["version"] == "2"
        assert model.stats().meter.requests == 2


def test_what_names_a_bundle_tells_of_that_bundle_alone(first, second):
    with open_bundle(first, cache=False) as model:
        for _ in range(3):
            model.predict(tiny.RED, budget_ms=10_000)
        assert 'edgekit_requests_total{model="tiny",version="1",source="device"} 3' in model.metrics_text()
        model.swap(second)
        model.predict(tiny.RED, budget_ms=10_000)
        page, meter = model.metrics_text(), model.stats().meter
    assert 'edgekit_requests_total{model="tiny",version="2",source="device"} 1' in page
    assert 'version="1"' not in page
    assert (meter.requests, meter.met, meter.device_ms.p50 is not None) == (4, 4, True)  # the model's, of both


def test_in_a_tight_budget_the_caches_make_room_and_grow_again(first, second):
    budget = MemoryBudget(20)
    with open_bundle(first, limits=ModelLimits(batching=False, memory=budget)) as model:
        assert sum(budget.held().values()) == pytest.approx(20)
        with open_bundle(second, limits=ModelLimits(batching=False, memory=budget)) as other:
            halves = [one.describe()["degraded"] for one in (model, other)]
            assert halves[0] == halves[1]
            assert halves[0][0].startswith("cache of ")
            assert sum(budget.held().values()) == pytest.approx(20)
        assert sum(budget.held().values()) == pytest.approx(20)
        model.swap(second)
        assert sum(budget.held().values()) == pytest.approx(20)
        bound = model._journey.cache._memory._max_bytes
        assert bound == pytest.approx(20e6, rel=0.05)
        assert model.predict(tiny.RED).source == "device"
        assert model.predict(tiny.RED).source == "cache"
    assert budget.left_mb == 20


def test_the_line_about_slow_answers_names_the_bundle_that_gave_them(first, tmp_path, caplog, monkeypatch):
    from edgekit_runtime.telemetry import slow

    now, watch = [0.0], slow.SlowWatch
    monkeypatch.setattr("edgekit_runtime.serving.model.SlowWatch", lambda *given: watch(*given, clock=lambda: now[0]))
    (tmp_path / "other").mkdir()
    target = Target("x86-64", "x86_64", budget_ms=1e-6, threads=1)  # a promise that no machine keeps
    other = tiny.bundle(tmp_path / "other", RECIPE, engine=ENGINE, name="other", target=target)
    with open_bundle(first, cache=False) as model, caplog.at_level(logging.WARNING, logger="edgekit_runtime"):
        model.swap(other)
        for _ in range(120):
            model.predict(tiny.RED)
        now[0] += 10.0
        model.stats()
        model.swap(first)  # which promises nothing
        for _ in range(120):
            model.predict(tiny.RED)
        now[0] += 100.0
        model.stats()
    (record,) = caplog.records
    assert record.getMessage().startswith("other: p99 was ")
    assert "twice the budget of 1e-06 ms" in record.getMessage()


def test_no_request_is_lost_while_bundles_are_swapped(first, second):
    done, stop = [], threading.Event()
    with open_bundle(first, cache=False) as model:

        def ask(number):
            draw, answers = np.random.default_rng(number), []
            while not stop.is_set():
                picture = draw.integers(0, 256, tiny.RED.shape, np.uint8)
                answers.append(model.predict(picture) if number % 2 else model.submit(picture).result(30))
            return answers

        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, number) for number in range(8)]
            for path in (second, first, second):
                model.swap(path)
            stop.set()
            done = [answer for future in asking for answer in future.result(30)]
        assert {answer.contract.labels for answer in done} == {tiny.LABELS, PRIMED}
        assert model.stats().meter.answers == {"device": len(done)}
        assert model.stats().meter.errors == {}


def test_what_was_submitted_before_is_answered_by_the_old_bundle(first, second):
    with open_bundle(first, cache=False) as model:
        model.throttle(20)
        futures = [model.submit(tiny.RED) for _ in range(5)]
        model.swap(second)
        assert [future.result(30).top(1)[0].label for future in futures] == ["red"] * 5


def test_a_bundle_that_fails_changes_nothing(first, tmp_path):
    (tmp_path / "broken.ekb").write_bytes(b"no bundle")
    with open_bundle(first) as model:
        with pytest.raises(BundleError):
            model.swap(tmp_path / "broken.ekb")
        assert model.predict(tiny.RED).top(1)[0].label == "red"


def test_a_bundle_for_another_use_is_refused(first, tmp_path):
    (tmp_path / "other").mkdir()
    other = tiny.bundle(
        tmp_path / "other", RECIPE, engine=ENGINE, contract=replace(tiny.CONTRACT, task="raw", labels=None, scores=None)
    )
    with open_bundle(first) as model:
        with pytest.raises(ContractError, match="its task, inputs or outputs differ"):
            model.swap(other)
        assert model.predict(tiny.RED).top(1)[0].label == "red"


def test_a_closed_model_cannot_be_swapped(first, second):
    model = open_bundle(first)
    model.close()
    with pytest.raises(ClosedError):
        model.swap(second)
    assert not model.health().ok
    assert model.health().state == "closed"


def test_no_thread_is_left(first, second):
    before = set(threading.enumerate())
    with open_bundle(first, cache=False) as model:
        model.submit(tiny.RED).result(30)
        model.swap(second)
        model.submit(tiny.RED).result(30)
    assert set(threading.enumerate()) <= before

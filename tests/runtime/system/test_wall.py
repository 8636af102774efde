"""Fault injection: whatever the cache, the meter, telemetry or metrics raise, every request is answered and the fault
is seen.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request

import memory
import numpy as np
import pytest
import tiny

from edgekit_runtime import CacheOptions, TelemetryOptions, open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.serving import journey as journey_module
from edgekit_runtime.system.errors import InputError
from edgekit_runtime.system.faults import Faults
from edgekit_runtime.telemetry import histogram as histogram_module
from edgekit_runtime.telemetry import meter as meter_module
from edgekit_runtime.telemetry.metrics import serve_metrics

ENGINE = min(available())
LONG = 30


class BrokenError(Exception):
    """What no part is expected to raise."""


def broken(*_args, **_options):
    raise BrokenError("injected")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wall")
    return tiny.bundle(folder, tiny.RECIPE_OF_ENGINE[ENGINE], engine=ENGINE)


@pytest.fixture
def model(path, tmp_path):
    with open_bundle(path, cache=CacheOptions(disk=tmp_path / "answers.db", similar=0.5), budget_ms=60_000) as opened:
        yield opened


@pytest.fixture
def reporting(path, tmp_path):
    spool = tmp_path / "spool.db"
    with open_bundle(path, telemetry=TelemetryOptions("mqtt://127.0.0.1:1", device="wall-1", spool=spool)) as opened:
        yield opened


CACHE_FAULTS = {
    "whether to look": lambda cache: (cache.worth, "pays"),
    "lookup": lambda cache: (cache, "lookup"),
    "memory lookup": lambda cache: (cache._memory, "get"),
    "memory store": lambda cache: (cache._memory, "put"),
    "disk lookup": lambda cache: (cache._disk, "find"),
    "disk store": lambda cache: (cache._disk, "put"),
    "similar lookup": lambda cache: (cache._alike["similar"].tier, "mark"),
    "similar store": lambda cache: (cache._alike["similar"].tier, "remember"),
}


def every_way(model):
    """The labels of the answers to one picture each, asked in every way there is."""
    joined = [model.submit(tiny.RED) for _ in range(3)]
    return [
        model.predict(tiny.RED).top(1)[0].label,
        *(future.result(LONG).top(1)[0].label for future in joined),
        asyncio.run(model.apredict(tiny.BLUE)).top(1)[0].label,
        model.predict(tiny.GREEN, budget_ms=60_000, stale_ok=True).top(1)[0].label,
    ]


ANSWERS = ["red", "red", "red", "red", "blue", "green"]


@pytest.mark.parametrize("fault", CACHE_FAULTS)
def test_a_fault_of_the_cache_takes_no_answer_away(model, monkeypatch, caplog, fault):
    place, name = CACHE_FAULTS[fault](model._journey.cache)
    monkeypatch.setattr(place, name, broken)
    with caplog.at_level(logging.ERROR, "edgekit_runtime"):
        assert every_way(model) == ANSWERS
    assert model.stats().faults["cache"] >= 1
    assert [record.getMessage() for record in caplog.records] == [
        "tiny: the cache raised BrokenError; requests are answered without it"
    ], "logged once"


def test_a_fault_of_the_key_takes_no_answer_away(model, monkeypatch):
    monkeypatch.setattr(journey_module, "identify", broken)
    assert every_way(model) == ANSWERS


def test_what_is_wrong_with_the_input_is_no_fault_of_the_cache(model, tmp_path):
    with pytest.raises(InputError):
        model.predict(tmp_path / "no-such.png")
    assert model.stats().faults == {}


def test_a_fault_of_the_cache_s_figures_leaves_the_other_figures(model, monkeypatch):
    monkeypatch.setattr(model._journey.cache, "stats", broken)
    model.predict(tiny.RED)
    stats = model.stats()
    assert stats.cache is None
    assert (stats.meter.requests, stats.faults) == (1, {"cache": 1})


@pytest.mark.parametrize("name", ["record", "error", "refused"])
def test_a_fault_of_the_meter_takes_no_answer_away(model, monkeypatch, name):
    monkeypatch.setattr(model._journey.meter, name, broken)
    assert every_way(model) == ANSWERS
    with pytest.raises(InputError):
        model.predict(np.zeros(3, np.float32))
    assert name == "refused" or model.stats().faults["meter"] >= 1


def test_a_fault_while_counting_takes_neither_answers_nor_figures_away(model, monkeypatch):
    """What 32-bit boards met: answers were put down, and counting them raised in one of many, and in stats()."""
    monkeypatch.setattr(meter_module, "PACK_EVERY", 4)
    monkeypatch.setattr(meter_module, "FOLD_EVERY", 4)
    monkeypatch.setattr(histogram_module, "record_table", broken)
    assert every_way(model) * 3 == ANSWERS * 3
    assert model.stats().faults["meter"] >= 1
    monkeypatch.undo()
    counted = model.stats().meter.requests
    model.predict(tiny.DARK)
    assert model.stats().meter.requests == counted + 1, "counting continues"


def test_a_fault_of_the_slow_log_takes_no_answer_away(model, monkeypatch):
    monkeypatch.setattr(model._journey.meter._watch, "write_log", broken)
    monkeypatch.setattr(meter_module, "PACK_EVERY", 2)
    monkeypatch.setattr(meter_module, "FOLD_EVERY", 2)
    assert every_way(model) == ANSWERS
    assert model.stats().faults["meter"] >= 1


def test_a_log_handler_that_raises_takes_no_answer_away(model, monkeypatch):
    class Broken(logging.Handler):
        emit = broken

    handler = Broken()
    logger = logging.getLogger("edgekit_runtime")
    logger.addHandler(handler)
    try:
        monkeypatch.setattr(model._journey.cache, "lookup", broken)
        assert every_way(model) == ANSWERS
    finally:
        logger.removeHandler(handler)


def test_a_fault_of_telemetry_takes_no_answer_away(reporting, monkeypatch):
    model, reporter = reporting, reporting._reporter
    monkeypatch.setattr(reporter, "stats", broken)
    monkeypatch.setattr(reporter, "_close_window", broken)
    monkeypatch.setattr(reporter._link, "step", broken)
    reporter._link.wake()
    assert every_way(model) == ANSWERS
    stats = model.stats()
    assert stats.telemetry is None
    assert stats.faults == {"telemetry": 1}


def test_a_fault_of_telemetry_neither_stops_a_swap_nor_a_close(path, reporting, monkeypatch):
    model = reporting
    monkeypatch.setattr(model._reporter, "close", broken)
    model.swap(path)
    assert every_way(model) == ANSWERS
    model.close()
    assert model.health().state == "closed"


def test_a_fault_of_the_metrics_page_takes_no_answer_away(model, monkeypatch):
    monkeypatch.setattr(model, "metrics_text", broken)
    with serve_metrics(model) as server:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(server.url, timeout=LONG)
        assert every_way(model) == ANSWERS


def test_the_page_counts_the_faults(model, monkeypatch):
    assert 'edgekit_faults_total{model="tiny",version="1",part="cache"} 0' in model.metrics_text()
    monkeypatch.setattr(model._journey.cache, "lookup", broken)
    model.predict(tiny.RED)
    assert 'edgekit_faults_total{model="tiny",version="1",part="cache"} 1' in model.metrics_text()


def test_a_session_answers_though_the_meter_faults(tmp_path, monkeypatch):
    with open_bundle(memory.bundle(tmp_path, memory.HERE[0])) as model, model.session() as session:
        monkeypatch.setattr(model._journey.meter, "record", broken)
        monkeypatch.setattr(model._journey.meter, "error", broken)
        frame = memory.frames(2)[0]
        assert session.predict(frame).source == "device"
        assert session.submit(frame).result(LONG).source == "device"
        with pytest.raises(InputError):
            session.predict(np.zeros(1, np.float32))
        assert model.stats().faults == {"meter": 3}


def test_faults_are_counted_by_part():
    faults = Faults("tiny")
    assert faults.shield("cache", lambda: 3) == 3
    assert faults.shield("cache", broken) is None
    assert faults.shield("meter", broken) is None
    assert faults.counts() == {"cache": 1, "meter": 1}


class Narrow:
    """NumPy 1.24 where a pointer has 32 bits, as far as the runtime counts with it."""

    intp = np.int32

    def __getattr__(self, name):
        return getattr(np, name)

    def bincount(self, values, **options):
        if not np.can_cast(values.dtype, np.int32, "safe"):
            raise TypeError(
                f"Cannot cast array data from {values.dtype!r} to dtype('int32') according to the rule 'safe'"
            )
        return np.bincount(values, **options).astype(np.int32)

    def arange(self, *args):
        return np.arange(*args, dtype=np.int32)


def test_the_meter_counts_where_a_pointer_has_32_bits(monkeypatch):
    expected = meter_module.Meter()
    expected.record("device", 4.0, met_budget=True, timings={"engine": 3.5})
    expected = expected.stats()
    monkeypatch.setattr(histogram_module, "np", Narrow())
    meter = meter_module.Meter()
    meter.record("device", 4.0, met_budget=True, timings={"engine": 3.5})
    assert meter.stats() == expected

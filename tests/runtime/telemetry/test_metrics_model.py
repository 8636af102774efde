"""A model's own page: what it did is what the page says."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
import tiny

from edgekit_runtime import BudgetExceeded, open_bundle
from edgekit_runtime.contract.adapt import CLIP_EVERY
from edgekit_runtime.system.errors import InputError
from edgekit_runtime.telemetry.metrics import metrics_text


@pytest.fixture
def model(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as opened:
        yield opened


def value(page: str, name: str, **labels: str) -> float:
    wanted = "".join(rf'(?=[^}}]*\b{key}="{re.escape(text)}")' for key, text in labels.items())
    (found,) = re.findall(rf"^{name}\{{{wanted}[^}}]*\}} (\S+)$", page, re.MULTILINE)
    return float(found)


def test_requests_errors_budgets_stages_cache_and_batches_are_on_it(model):
    for _ in range(3):
        model.predict(tiny.RED, budget_ms=60_000)
    model.predict(tiny.BLUE)
    with pytest.raises(InputError):
        model.predict(b"no picture")
    with pytest.raises(BudgetExceeded):
        model.predict(tiny.GREEN, budget_ms=1e-6)
    page = model.metrics_text()
    assert value(page, "edgekit_requests_total", source="device") == 2
    assert value(page, "edgekit_requests_total", source="cache") == 2
    assert value(page, "edgekit_errors_total", code="input") == 1
    assert value(page, "edgekit_budget_total", outcome="met") == 3
    assert value(page, "edgekit_budget_total", outcome="refused") == 1
    assert value(page, "edgekit_stage_seconds_count", stage="infer") == 2
    assert value(page, "edgekit_stage_seconds_count", stage="prepare") == 4
    assert value(page, "edgekit_cache_hits_total", tier="memory") == 2
    assert value(page, "edgekit_batch_size_sum") >= 2
    assert value(page, "edgekit_healthy") == 1
    assert value(page, "edgekit_model_info", recipe="tflite-int8") == 1


def test_input_values_at_the_limits_are_counted_in_a_sample_of_the_requests(model):
    inside, beyond = np.full((8, 8, 3), 0.5, np.float32), np.full((8, 8, 3), 100.0, np.float32)
    for n in range(CLIP_EVERY):
        model.predict(inside + np.float32(n / 1000))
    page = model.metrics_text()
    looked_at = value(page, "edgekit_input_values_total")
    assert looked_at > 0
    assert value(page, "edgekit_input_values_clipped_total") == 0
    for n in range(CLIP_EVERY):
        model.predict(beyond + np.float32(n))
    assert value(model.metrics_text(), "edgekit_input_values_clipped_total") == looked_at
    assert model.stats().meter.clipped_share == 0.5


def test_an_engine_in_this_process_has_no_restarts(model):
    assert model.stats().engine_restarts is None
    assert "edgekit_engine_restarts_total{" not in model.metrics_text()


def test_several_models_share_a_page(tmp_path, model):
    with open_bundle(tiny.bundle(tmp_path)) as other:
        page = metrics_text([model.measured(), other.measured()])
    assert 'copy="2"' in page


def test_a_closed_model_still_tells_what_it_did(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as model:
        model.predict(tiny.RED)
    page = model.metrics_text()
    assert value(page, "edgekit_requests_total", source="device") == 1
    assert value(page, "edgekit_healthy") == 0


def test_a_budget_that_is_missed_by_far_is_a_line_in_the_log(tmp_path, caplog, monkeypatch):
    """The whole way: a budget, answers, one line. The clock is made up, and a budget that no machine can keep."""
    from edgekit_runtime.telemetry import slow

    now = [0.0]
    watch = slow.SlowWatch
    monkeypatch.setattr("edgekit_runtime.serving.model.SlowWatch", lambda *given: watch(*given, clock=lambda: now[0]))
    with open_bundle(tiny.bundle(tmp_path), cache=False, budget_ms=2000.0) as model:
        for _ in range(120):
            model.predict(tiny.RED)
        now[0] += 10.0
        model.stats()
        model._journey.meter._watch._budget_ms = 0.001  # what a promise would be that this machine cannot keep
        for _ in range(120):
            model.predict(tiny.RED)
        now[0] += 10.0
        with caplog.at_level(logging.WARNING, logger="edgekit_runtime"):
            model.stats()
            model.stats()
    (record,) = caplog.records
    assert record.getMessage().startswith("tiny: p99 was ")
    assert "more than twice the budget of 0.001 ms" in record.getMessage()

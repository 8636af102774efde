"""A model whose engine has a process of its own.

What happens to that process is an error for one caller, not the end.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import tiny

from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.engines.isolated import MOST_DEATHS
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import EngineError, EngineHung


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    path = tiny.bundle_for(min(available()), tmp_path)
    with open_bundle(path, cache=False, isolate=True, limits=ModelLimits(hang_s=0.5)) as opened:
        yield opened


def child_of(model):
    return model._journey.device.engine._single.host.pid


def test_a_hang_is_an_error_for_its_caller_and_the_next_is_answered(model):
    before = model.predict(tiny.RED).top(1)
    os.kill(child_of(model), signal.SIGSTOP)
    with pytest.raises(EngineHung, match=r"did not answer within 0\.5 s"):
        model.predict(tiny.RED)
    assert model.predict(tiny.RED).top(1) == before
    assert model.health().state == "ready"


def test_it_says_that_it_is_isolated(model):
    assert model.describe()["isolated"] is True


def test_one_that_is_not_started_again_is_not_healthy(model):
    assert "edgekit_healthy" in model.metrics_text()
    for _ in range(MOST_DEATHS):
        host = model._journey.device.engine._single.host
        host._running()
        os.kill(host.pid, signal.SIGSTOP)
        with pytest.raises(EngineHung):
            model.predict(tiny.RED)
    health = model.health()
    assert (health.state, health.ok) == ("dead", False)
    assert "died 5 times in a row" in health.reason
    with pytest.raises(EngineError, match="not be restarted"):
        model.predict(tiny.RED)
    (line,) = [one for one in model.metrics_text().splitlines() if one.startswith("edgekit_healthy{")]
    assert line.endswith(" 0")


def test_a_process_that_cannot_load_the_model_again_is_ended_and_tried_again(model):
    before = model.predict(tiny.RED).top(1)
    host = model._journey.device.engine._single.host
    artifacts, host._artifacts = host._artifacts, [replace(host._artifacts[0], data=b"no model")]
    host.kill()
    with pytest.raises(EngineError):
        for _ in range(2):  # the first may still meet the dying process
            model.predict(tiny.RED)
    with pytest.raises(EngineError):
        model.predict(tiny.RED)
    host._artifacts = artifacts
    assert model.predict(tiny.RED).top(1) == before

"""A model whose engine has a process of its own: what happens to that process is an error for one caller, not the end."""

from __future__ import annotations

import os
import signal

import pytest
import tiny

from edgekit_runtime import EngineHung, open_bundle
from edgekit_runtime.engines import available


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    path = tiny.bundle_for(min(available()), tmp_path)
    with open_bundle(path, cache_mb=0, isolate=True, hang_s=0.5) as opened:
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

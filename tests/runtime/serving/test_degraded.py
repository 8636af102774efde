"""A bundle's degraded artifact, on real engines: it answers what would be late, says so, and nothing of it is kept."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import BudgetExceeded, CacheOptions, ModelLimits, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.install.prove import prove
from edgekit_runtime.loading.candidates import TuningOptions, candidates
from edgekit_runtime.policy.budget import SURE
from edgekit_runtime.system.errors import BundleError, SelfTestError

LONG = 30.0
BUDGET_MS = 1000.0
SMALL = "degraded-onnx-f32"
pytestmark = pytest.mark.skipif(not {"litert", "onnxruntime"} <= set(available()), reason="needs both engines")


def small():
    made = tiny.artifact("onnx-f32")
    return BundleArtifact(replace(made, recipe=replace(made.recipe, name=SMALL)), settings={"made": "before"})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("degraded")
    return tiny.bundle(folder, degraded=small())


def opened(path, **options):
    return open_bundle(path, limits=ModelLimits(degraded=True), **{"cache": False, **options})


def slow(model):
    """The device takes twice the budget, and knows it."""
    model.throttle(2000)
    for _ in range(50):
        model._journey.device.learned.add(10_000.0)


def test_the_degraded_artifact_answers_in_time_what_the_device_would_not(path):
    with opened(path) as model:
        full = model.predict(tiny.RED, budget_ms=60_000)
        slow(model)
        small = model.predict(tiny.RED, budget_ms=BUDGET_MS)
        assert model.submit(tiny.BLUE, budget_ms=BUDGET_MS).result(LONG).source == "degraded"
        stats = model.stats()
        page = model.metrics_text()
    assert (full.source, full.degraded, full.artifact) == ("device", False, "tflite-int8")
    assert (small.source, small.degraded, small.artifact) == ("degraded", True, SMALL)
    assert small.engine.startswith("onnxruntime ")
    assert {"queue", "engine", "total"} <= set(small.timings)
    assert small.top(1)[0].label == "red"
    assert stats.meter.answers == {"device": 1, "degraded": 2}
    assert 'edgekit_requests_total{model="tiny",version="1",source="degraded"} 2' in page


def test_a_device_that_is_late_against_all_expectation_has_the_degraded_answer_at_the_deadline(path):
    with opened(path) as model:

        def at_the_deadline():
            """False where this machine was too busy to be in time."""
            model.throttle(0)
            while model._journey.device.outlook().chance(500) < SURE:
                model.predict(tiny.RED)
            model.throttle(1500)  # it learns of it too late
            try:
                answer = model.predict(tiny.BLUE, budget_ms=500)
            except BudgetExceeded:
                return False
            assert (answer.source, answer.top(1)[0].label) == ("degraded", "blue")
            return True

        assert any(at_the_deadline() for _ in range(20))


def test_only_who_has_a_budget_gets_a_degraded_answer(path):
    with opened(path) as model:
        model.throttle(20)
        assert model.predict(tiny.RED).source == "device"
    with open_bundle(path, cache=False) as model:  # not asked for: nothing is loaded
        assert model.describe()["degraded_artifact"] is None
        slow(model)
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=BUDGET_MS)


def test_a_degraded_answer_is_never_kept_and_an_answer_past_its_time_comes_before_it(path):
    with opened(path, cache=CacheOptions(ttl_s=0.001)) as model:
        slow(model)
        assert [model.predict(tiny.RED, budget_ms=BUDGET_MS).source for _ in range(3)] == ["degraded"] * 3
        model.throttle(0)
        kept = model.predict(tiny.RED)
        time.sleep(0.002)
        slow(model)
        stale = model.predict(tiny.RED, budget_ms=BUDGET_MS, stale_ok=True)
        assert (kept.source, stale.source, stale.degraded) == ("device", "stale", True)


def test_who_joins_a_request_with_a_degraded_answer_gets_one_of_its_own(path):
    with opened(path, cache=CacheOptions()) as model:
        slow(model)
        watch, joined = model._journey.device.watch, []

        def joining(items):  # the leader is on its way: now the other one comes, who has more time
            model._journey.device.watch = watch
            model.throttle(0)
            joined.append(model.submit(tiny.RED))

        model._journey.device.watch = joining
        leader = model.predict(tiny.RED, budget_ms=BUDGET_MS)
        assert (leader.source, joined[0].result(LONG).source) == ("degraded", "device")


def test_a_closed_model_answers_nothing_and_a_bundle_without_one_says_how_to_pack_it(path, tmp_path):
    with opened(path) as model:
        described = model.describe()["degraded_artifact"]
    assert described["recipe"] == SMALL
    with pytest.raises(BundleError, match="no degraded artifact", check=lambda error: "--degraded" in error.do):
        opened(tiny.bundle(tmp_path))


def test_it_is_no_candidate_and_no_other_answers_for_it(path):
    manifest = read_bundle(path).manifest
    roles = [(entry.role, entry.recipe) for entry in manifest.artifacts]
    assert roles == [("primary", "tflite-int8"), ("degraded", SMALL)]
    assert manifest.artifacts[1].settings == {"made": "before"}
    assert manifest.min_runtime is None or manifest.min_runtime == "0.1.0"  # older readers leave it alone
    for golden in manifest.golden:
        assert [answer.recipe for answer in golden.answers] == ["tflite-int8", SMALL]
    offer = candidates(manifest, available(), TuningOptions(), cores=1)
    assert {one.recipe for one in offer} == {"tflite-int8"}
    assert {one.recipe for one in candidates(manifest, available(), TuningOptions(pin=SMALL), cores=1)} == {SMALL}


def test_an_install_refuses_a_bundle_whose_degraded_artifact_answers_otherwise(tmp_path):
    draft, manifest = assemble(tiny.content(degraded=small()))
    golden = manifest.golden[0]
    wrong = draft.add(np.array([0, 0, 0, 1], np.float32).tobytes())
    own, other = golden.answers
    other = replace(other, outputs={"probs": wrong})
    first = replace(golden, answers=(own, other))
    write_bundle(tmp_path / "wrong.ekb", draft, replace(manifest, golden=(first, *manifest.golden[1:])))
    with pytest.raises(SelfTestError):
        prove("selftest", read_bundle(tmp_path / "wrong.ekb"))

"""From a checked bundle to a warm engine: batches that are right, memory that is kept, trouble that is told."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled

from edgekit.packaging.assemble import BundleArtifact
from edgekit_runtime.bundle.jobs import bundle_job
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter, Finisher
from edgekit_runtime.engines.registry import ENGINES, available
from edgekit_runtime.install.prove_child import run_trial
from edgekit_runtime.loading import readiness, warming
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.readiness import Preparation, prepare
from edgekit_runtime.loading.selftest import last_verdict, verdict_file
from edgekit_runtime.loading.tuning import Tuner
from edgekit_runtime.loading.warming import batches_offered
from edgekit_runtime.system.errors import BundleError, EngineError, MemoryExceeded, MissingExtraError, SelfTestError
from edgekit_runtime.system.memory import MemoryBudget
from edgekit_runtime.system.sealed import SEAL_BYTES, write_sealed

INSTALLED = sorted(available())
TFLITE = min((name for name in INSTALLED if "tflite" in ENGINES[name].formats), default="")
PICTURES = (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK)
needs_tflite = pytest.mark.skipif(not TFLITE, reason="no TFLite engine is installed")


@pytest.fixture(scope="module")
def with_batch(tmp_path_factory):
    """The tiny classifier with a variant for 4 items at once."""
    batches = [BundleArtifact(tiny.artifact("tflite-int8, 4 at once", TFLITE))]
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("batch"), engine=TFLITE, batches=batches))


@pytest.fixture(scope="module", params=INSTALLED)
def bundle(request, tmp_path_factory):
    return read_bundle(tiny.bundle_for(request.param, tmp_path_factory.mktemp("ready")))


def how(**options):
    """Quick: the bundle's default, nothing measured but the batches."""
    return Preparation(**{"tuning": Tuner(0.0), **options})


def best_of(prepared, items):
    finisher = Finisher(tiny.CONTRACT, prepared.entry.outputs)
    return [int(finisher(raw)["probs"].argmax()) for raw in prepared.engine.run_batch(items)]


def tensors(prepared, pictures):
    adapter = Adapter(tiny.CONTRACT.inputs[0], prepared.entry.inputs[0])
    return [[adapter(picture)] for picture in pictures]


def test_is_tested_warm_and_measured(bundle):
    prepared = prepare(bundle, how())
    assert prepared.tested.examples == 2
    assert prepared.ready.first_ms > 0
    assert prepared.ready.total_ms >= prepared.ready.warm_ms >= prepared.ready.first_ms
    assert prepared.costs[1] > 0
    assert set(prepared.costs) == set(prepared.engine.sizes)
    assert best_of(prepared, tensors(prepared, PICTURES)) == [0, 1, 2, 3]
    prepared.close()
    with pytest.raises(EngineError, match="closed"):
        best_of(prepared, tensors(prepared, PICTURES[:1]))


@needs_tflite
def test_a_variant_for_a_batch_gives_each_item_its_own_answer(with_batch):
    assert {size: entry.role for size, entry in batches_offered(with_batch, with_batch.artifact()).items()} == {
        4: "batch"
    }
    prepared = prepare(with_batch, how())
    assert prepared.engine.sizes == (1, 4) or any("batches of 4 do not pay" in note for note in prepared.notes)
    for count in range(1, 10):
        pictures = [PICTURES[n % 4] for n in range(count)]
        assert best_of(prepared, tensors(prepared, pictures)) == [n % 4 for n in range(count)]
    prepared.close()


@needs_tflite
def test_a_variant_that_mixes_its_items_up_is_dropped_and_told(with_batch, monkeypatch):
    from edgekit_runtime.engines.litert import TFLiteEngine

    honest = TFLiteEngine.run
    monkeypatch.setattr(TFLiteEngine, "run", lambda self, inputs: [out[::-1] for out in honest(self, inputs)])
    prepared = prepare(with_batch, how())
    assert prepared.engine.sizes == (1,)
    assert any("in a batch of 4" in note for note in prepared.notes)
    prepared.close()


@needs_tflite
@pytest.mark.parametrize(("what", "offered"), [("selftest", [4]), ("trial", [])])
def test_a_trial_whose_memory_is_judged_tries_no_batches(with_batch, monkeypatch, what, offered):
    """The better they pay on a machine, the larger are those tried: a process of 103 MB took up to 333."""
    offers, real = [], readiness.warm_up

    def warm_up(bundle, entry, single, offer, load):
        offers.append(sorted(offer))
        return real(bundle, entry, single, offer, load)

    monkeypatch.setattr(readiness, "warm_up", warm_up)
    job = {"what": what, **bundle_job(with_batch), "answers": 5, "most_s": 5.0, "least": 5, "p99_ms": None}
    run_trial({**job, "recipe": None, "engine": None}, lambda fact: None)
    assert offers == [offered]


@needs_tflite
def test_without_batching_no_variant_is_loaded(with_batch):
    prepared = prepare(with_batch, how(batching=False))
    assert (prepared.engine.sizes, prepared.notes) == ((1,), ())
    prepared.close()


@needs_tflite
def test_a_tight_budget_goes_without_batches_and_with_a_smaller_cache(with_batch):
    budget = MemoryBudget(8)
    prepared = prepare(with_batch, how(memory=budget, cache_mb=64))
    assert prepared.engine.sizes == (1,) or prepared.engine.sizes == (1, 4)
    assert prepared.cache_mb < 8
    assert any(what.startswith("cache of") for what in prepared.degraded)
    assert prepared.describe()["degraded"] == list(prepared.degraded)
    prepared.close()
    assert budget.left_mb == 8


def test_a_model_that_does_not_fit_is_refused_and_takes_nothing(bundle):
    budget = MemoryBudget(0.001)
    with pytest.raises(MemoryExceeded, match="Allow"):
        prepare(bundle, how(memory=budget))
    assert budget.held() == {}


def test_models_count_with_what_they_need_and_not_with_what_the_process_grew_by(bundle):
    budget, begun = MemoryBudget(4000), threading.Barrier(4)

    def opened(_):
        begun.wait(60)
        return prepare(bundle, how(memory=budget, batching=False))

    with ThreadPoolExecutor(4) as pool:
        prepared = list(pool.map(opened, range(4)))
    one = 3 * bundle.artifact().bytes / 1e6  # not measured: the estimate
    assert sum(budget.held().values()) == pytest.approx(4 * one)
    for each in prepared:
        each.close()
    assert budget.left_mb == 4000


def test_a_process_of_its_own_counts_whole(bundle, monkeypatch):
    with pytest.raises(MemoryExceeded, match="an isolated process takes 40 MB"):
        prepare(bundle, how(memory=MemoryBudget(30), isolate=True))
    budget = MemoryBudget(1000)
    prepared = prepare(bundle, how(memory=budget, isolate=True))
    assert sum(budget.held().values()) == pytest.approx(prepared.ready.memory_mb)
    assert prepared.ready.memory_mb > 10
    prepared.close()
    # What a process with an engine takes is the machine's affair; here it is more than was expected on any of them.
    monkeypatch.setattr(readiness, "PROCESS_MB", 1.0)
    tight = MemoryBudget(2)
    with pytest.raises(MemoryExceeded, match=r"it needs \d+ MB without cache"):
        prepare(bundle, how(memory=tight, isolate=True, cache_mb=64))
    assert tight.held() == {}


def test_in_a_process_of_its_own_it_answers_alike(bundle):
    here, there = prepare(bundle, how()), prepare(bundle, how(isolate=True))
    pictures = [*PICTURES, *PICTURES]
    for mine, theirs in zip(
        here.engine.run_batch(tensors(here, pictures)), there.engine.run_batch(tensors(there, pictures)), strict=True
    ):
        np.testing.assert_allclose(theirs[0], mine[0], atol=1e-6)
    here.close()
    there.close()


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Items of every run in this process, where nothing is known of any bundle yet."""
    from edgekit_runtime.engines.litert import TFLiteEngine
    from edgekit_runtime.engines.ncnn import NcnnEngine
    from edgekit_runtime.engines.onnxruntime import OnnxEngine

    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    found = []
    for kind in (TFLiteEngine, OnnxEngine, NcnnEngine):
        honest = kind.run
        monkeypatch.setattr(kind, "run", lambda self, xs, honest=honest: found.append(len(xs[0])) or honest(self, xs))
    return found


def opened_again(bundle, runs, **options):
    """What a later opening ran, and its engine."""
    runs.clear()
    prepared = prepare(bundle, how(**options))
    return list(runs), prepared


def test_once_all_examples_agreed_one_is_enough_and_no_batch_is_tried_again(bundle, runs, monkeypatch):
    monkeypatch.setattr(warming, "_seconds", lambda run: run() is None or 1e-9)  # no run will be faster than that
    first, prepared = opened_again(bundle, runs)
    assert prepared.tested.examples == 2
    assert len(first) > 2
    costs = prepared.costs
    prepared.close()
    for batching in (True, False):
        again, prepared = opened_again(bundle, runs, batching=batching)
        assert (again, prepared.tested.examples) == ([1], 2)
        assert prepared.costs == (costs if batching else {1: costs[1]})
        prepared.close()


@needs_tflite
def test_a_later_opening_loads_the_variants_that_paid_and_proves_each_once(with_batch, runs, monkeypatch):
    monkeypatch.setattr(warming, "_seconds", lambda run: run() is None or 1e-9)
    monkeypatch.setattr(warming, "LEAST_GAIN", -1000.0)  # every size pays
    for expected in (None, [1, 4]):
        ran, prepared = opened_again(with_batch, runs)
        assert prepared.engine.sizes == (1, 4)
        assert expected in (None, ran)
        assert best_of(prepared, tensors(prepared, PICTURES)) == [0, 1, 2, 3]
        prepared.close()


@pytest.mark.parametrize(
    "seconds", ["{}", '{"1": 1000.0}', '{"1": 0.0}', '{"1": -1.0}', '{"1": 1e9}', '{"x": 1.0}', '{"2": 1.0}']
)
def test_what_a_slower_opening_measured_or_nobody_could_have_is_measured_again(bundle, runs, seconds):
    ran, prepared = opened_again(bundle, runs)
    kept = verdict_file(bundle, prepared.entry, prepared.engine.info, None)
    prepared.close()
    value = json.loads(kept.read_bytes()[SEAL_BYTES:]) | {"seconds": json.loads(seconds)}
    write_sealed(kept, json.dumps(value).encode())
    again, prepared = opened_again(bundle, runs)
    assert len(again) >= min(len(ran), 6)
    assert 0 < prepared.costs[1] < 1
    assert last_verdict(bundle, prepared.entry, prepared.engine.info).seconds == pytest.approx(prepared.costs)
    prepared.close()


@needs_tflite
def test_a_delegate_that_does_not_load_makes_way_and_is_told(with_batch, tmp_path):
    prepared = prepare(with_batch, how(wanted=TuningOptions(delegate=str(tmp_path / "absent.so"))))
    assert prepared.engine.info.delegate is None
    assert any("absent.so" in note for note in prepared.notes)
    prepared.close()


@needs_tflite
def test_a_delegate_that_loads_is_used(with_batch, tmp_path):
    library = compiled(Path(__file__).parents[1] / "engines" / "delegate.c", tmp_path / "libnothing.so")
    prepared = prepare(with_batch, how(wanted=TuningOptions(delegate=str(library))))
    assert prepared.engine.info.delegate == str(library)
    assert best_of(prepared, tensors(prepared, PICTURES)) == [0, 1, 2, 3]
    prepared.close()


def test_what_was_measured_is_what_runs(bundle, tmp_path):
    preparation = Preparation(tuning=Tuner(1.0, folder=tmp_path))
    first, second = prepare(bundle, preparation), prepare(bundle, preparation)
    assert (first.verdict.how, second.verdict.how) == ("measured", "stored")
    info, chosen = second.engine.info, second.verdict.chosen
    assert (info.name, info.threads, info.kernels) == (chosen.engine, chosen.threads, chosen.kernels)
    assert second.describe()["tuning"]["why"]
    first.close()
    second.close()


@needs_tflite
def test_a_manifest_that_speaks_of_other_tensors_is_refused(with_batch):
    entry = with_batch.artifact()
    other = replace(entry, inputs=(replace(entry.inputs[0], dtype="uint8"),))
    manifest = replace(with_batch.manifest, artifacts=(other,))
    with pytest.raises(BundleError, match="the manifest says uint8"):
        prepare(replace(with_batch, manifest=manifest), how())


def test_an_unknown_or_unfit_engine_is_a_typed_error(bundle):
    with pytest.raises(EngineError, match="no engine 'tpu'"):
        prepare(bundle, how(wanted=TuningOptions(engine="tpu")))
    other = "onnxruntime" if bundle.artifact().format == "tflite" else "litert"
    with pytest.raises((BundleError, MissingExtraError), match=r"nothing in it runs on|needs the"):
        prepare(bundle, how(wanted=TuningOptions(engine=other)))


def test_a_golden_answer_that_differs_is_refused_and_frees_all(bundle, monkeypatch):
    budget = MemoryBudget(1000)
    from edgekit_runtime.engines.litert import TFLiteEngine
    from edgekit_runtime.engines.ncnn import NcnnEngine
    from edgekit_runtime.engines.onnxruntime import OnnxEngine

    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    for kind in (TFLiteEngine, OnnxEngine, NcnnEngine):
        monkeypatch.setattr(kind, "run", lambda self, inputs: [np.full((1, 4), 3, self.outputs[0].dtype)])
    with pytest.raises(SelfTestError, match="golden example 0"):
        prepare(bundle, how(memory=budget))
    assert budget.held() == {}


@needs_tflite
@pytest.mark.parametrize("own_below", [10**6, 0], ids=["an interpreter for each size", "one for all"])
def test_a_tflite_file_with_a_free_batch_axis_answers_any_number(tmp_path, monkeypatch, own_below):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(warming, "OWN_BELOW_BYTES", own_below)
    monkeypatch.setattr(warming, "LEAST_GAIN", -1000.0)  # every size stays, whatever this machine's clock says
    opened = read_bundle(tiny.bundle(tmp_path, "tflite-f32, any number", engine=TFLITE))
    prepared = prepare(opened, how())
    assert prepared.engine.sizes == (1, 2, 4, 8, 16, 32)
    assert prepared.engine.largest == 32
    for count in (1, 3, 4, 31, 33):
        pictures = [PICTURES[n % 4] for n in range(count)]
        assert best_of(prepared, tensors(prepared, pictures)) == [n % 4 for n in range(count)]
    prepared.close()


def test_a_busy_processor_does_not_make_a_batch_seem_slow(monkeypatch):
    """Long runs are interrupted more often than short ones: the fastest of a few counts, of which four of five were
    here.
    """
    now, takes = [0.0], iter([0.030, 0.011, 0.011, 0.0025, *[0.011] * 17])
    monkeypatch.setattr(warming, "perf_counter", lambda: now[0])

    def run():
        now[0] += next(takes)

    assert warming._seconds(run) == pytest.approx(0.0025)

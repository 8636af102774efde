"""Engines of a GPU as candidates: what they may take, what is refused of them, and what they never get."""

from __future__ import annotations

import sys
from time import sleep

import pytest
import tiny

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import EngineSetup, available, load_with
from edgekit_runtime.loading import readiness
from edgekit_runtime.loading import tuning_trial as trial
from edgekit_runtime.loading.candidates import TuningOptions, candidates
from edgekit_runtime.loading.tuning import Tuner, tune
from edgekit_runtime.loading.warming import batches_offered, warm_up
from edgekit_runtime.system.errors import EngineError, MemoryExceeded, SelfTestError
from edgekit_runtime.system.records import replace

pytestmark = pytest.mark.skipif("onnxruntime" not in available(), reason="only ONNX artifacts run on a GPU")
HERE = {"onnxruntime": available().get("onnxruntime", ""), "torch-cuda": "2.11.0", "tensorrt-rtx": "1.7.1"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("gpu"), "onnx-f32", engine="onnxruntime"))


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(sys.modules["edgekit_runtime.loading.tuning"], "available", lambda: HERE)


class Loads:
    """In place of `load_with`: the processor answers for every engine, and building for a GPU takes 100 s."""

    def __init__(self, refuses=()):
        self.now, self.setups, self.refuses = 0.0, [], refuses

    def clock(self):
        return self.now

    def __call__(self, name, form, data, setup):
        self.setups.append(setup)
        self.now += 100.0 if name != "onnxruntime" else 0.0
        if name in self.refuses:
            raise EngineError(f"{name} refuses the artifact")
        return load_with("onnxruntime", form, data, setup)


def tried(bundle, monkeypatch, refuses=()):
    loads, facts = Loads(refuses), []
    monkeypatch.setattr(trial, "load_with", loads)
    monkeypatch.setattr(trial, "import_engine", lambda name: None)
    offer = candidates(bundle.manifest, HERE, TuningOptions(threads=1), cores=1)
    trial.Trial(bundle, offer, facts.append, loads.clock).run(0.5)
    return loads, facts


def test_what_is_built_for_a_gpu_takes_no_time_from_the_others(bundle, monkeypatch):
    _, facts = tried(bundle, monkeypatch)
    assert [fact["entered"] for fact in facts if "entered" in fact] == [0, 1, 2]


def test_what_a_gpu_refuses_takes_no_time_from_the_others_either(bundle, monkeypatch):
    """PyTorch is imported for 8 s before it refuses INT8: nothing else had a turn."""
    _, facts = tried(bundle, monkeypatch, {"torch-cuda"})
    assert [fact["refused"] for fact in facts if "refused" in fact] == [1]
    assert [fact["entered"] for fact in facts if "entered" in fact] == [0, 2]


def test_nothing_that_is_built_of_an_encrypted_bundle_may_be_kept(bundle, tmp_path, monkeypatch):
    key = bytes(range(32))
    path = tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime", secret=Secret([key]))
    encrypted, _ = tried(read_bundle(path, secret=key), monkeypatch)
    plain, _ = tried(bundle, monkeypatch)
    assert {setup.keep for setup in encrypted.setups} == {False}
    assert {setup.keep for setup in plain.setups} == {True}


@pytest.mark.parametrize(
    ("name", "kernels"), [("torch-cuda", "default"), ("onnxruntime", "vulkan"), ("onnxruntime", "default")]
)
def test_a_later_opening_runs_each_size_of_a_gpus_engine_before_a_request_does(bundle, name, kernels):
    """A graph is captured at a size's first run: behind 64 callers it took a request 0.3 s."""
    entry, ran = bundle.manifest.artifacts[0], []

    def engine():
        made = load_with("onnxruntime", entry.format, bundle.blob(entry.blob), EngineSetup())
        made.info, run = replace(made.info, name=name, kernels=kernels), made.run

        def slow(inputs):
            ran.append(len(inputs[0]))
            sleep(0.001)  # of each run: batches pay
            return run(inputs)

        made.run = slow
        return made

    offer = batches_offered(bundle, entry)
    with engine() as first:
        largest = warm_up(bundle, entry, first, offer, None).engine.largest
    ran.clear()
    with engine() as later:
        assert warm_up(bundle, entry, later, offer, None).engine.largest == largest > 1
    assert {*ran} == (
        {1} if (name, kernels) == ("onnxruntime", "default") else {1, *(size for size in offer if size <= largest)}
    )


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
@pytest.mark.usefixtures("installed")
def test_without_a_gpu_each_is_refused_with_the_reason_and_the_processor_answers(bundle, tmp_path):
    verdict = tune(bundle, TuningOptions(), Tuner(0.2, folder=tmp_path))
    refused = {one["engine"]: one["refused"] for one in verdict.describe()["candidates"] if one["refused"]}
    assert verdict.chosen.engine == "onnxruntime"
    assert refused.keys() == {"tensorrt-rtx", "torch-cuda"}
    assert all("no NVIDIA driver is installed" in why for why in refused.values())


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
@pytest.mark.usefixtures("installed")
def test_asked_for_a_gpu_the_error_has_every_reason(bundle, tmp_path):
    with pytest.raises(EngineError, match=r"no engine of a GPU runs it: tensorrt-rtx: no NV.*; torch-cuda: no NV"):
        tune(bundle, TuningOptions(engine="gpu"), Tuner(0.2, folder=tmp_path))


@pytest.mark.usefixtures("installed")
def test_unmeasured_the_processor_answers(bundle):
    assert tune(bundle, TuningOptions(), Tuner(0)).chosen.engine == "onnxruntime"
    assert tune(bundle, TuningOptions(engine="torch-cuda"), Tuner(0)).chosen.engine == "torch-cuda"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("error", [MemoryExceeded("too much"), SelfTestError("differs"), EngineError("no GPU")])
def test_an_engine_of_a_gpu_that_does_not_load_makes_way_for_the_next(bundle, monkeypatch, error):
    asked = []

    def first_open(bundle, entry, info):
        asked.append(info.name)
        if len(asked) == 1:
            raise error
        return True

    monkeypatch.setattr(readiness, "first_open", first_open)
    monkeypatch.setattr(readiness, "load_with", lambda name, *rest: load_with("onnxruntime", *rest))
    how = readiness.Preparation(TuningOptions(engine="gpu"), batching=False, tuning=Tuner(0))
    prepared = readiness.prepare(bundle, how)
    prepared.close()
    assert asked == ["tensorrt-rtx", "torch-cuda"]
    assert any(str(error) in note for note in prepared.notes)


@pytest.mark.usefixtures("installed")
def test_a_verdict_is_good_for_one_gpu_and_driver(bundle, tmp_path, monkeypatch):
    for gpu, how in (("L4, driver 13.0", "measured"), ("L4, driver 13.0", "stored"), ("H200, driver 13.0", "measured")):
        monkeypatch.setattr(cuda, "identity", lambda gpu=gpu: gpu)
        assert tune(bundle, TuningOptions(threads=1), Tuner(0.2, folder=tmp_path)).how == how


def test_of_a_gpu_no_memory_but_the_machines_is_a_limit():
    from edgekit_runtime.system import children

    limits = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(children, "_limit", lambda *_: None)
        patched.setattr(children, "machine_bytes", lambda: 64 << 30)
        patched.setattr(children, "limit_memory", limits.append)
        children.limit_this_process(1000)
        children.limit_this_process(1000, gpu=True)
    assert limits == [children.allowed_bytes(1000, 64 << 30), 64 << 30]


@pytest.mark.parametrize("confidential", [True, False])
def test_in_a_process_of_its_own_what_was_encrypted_is_not_kept_either(monkeypatch, confidential):
    asked = []
    host = IsolatedHost(confidential=confidential)
    ask = host._ask
    monkeypatch.setattr(
        host, "_ask", lambda child, request, limit_s: asked.append(request) or ask(child, request, limit_s)
    )
    host.load("onnxruntime", "onnx", tiny.model_bytes("onnx-f32"), EngineSetup())
    host.close()
    assert (b'"keep": false' in asked[0]) == confidential

"""Engines on a GPU by its Vulkan driver: SwiftShader, and SwiftShader with faults (tests/support/vulkan.py)."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tiny
import vulkan

from edgekit.packaging.assemble import BundleArtifact
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, load_with, with_vulkan
from edgekit_runtime.engines.variants import FallbackEngine
from edgekit_runtime.system.board import vulkan_drivers
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.errors import EngineError, MissingExtraError

RECIPES = {
    recipe: engine
    for recipe in ("ncnn-f32", "tflite-f32", "tflite-int8", "onnx-f32")
    for engine in with_vulkan()
    if recipe.startswith(ENGINES[engine].formats[0])
}
pytestmark = pytest.mark.skipif(not RECIPES, reason="no engine with Vulkan kernels is installed")
each = pytest.mark.parametrize("recipe", RECIPES)
BY_ENGINE = [recipe for recipe in RECIPES if recipe != "tflite-f32"]
each_engine = pytest.mark.parametrize("recipe", BY_ENGINE)
QUICK = [recipe for recipe in BY_ENGINE if recipe != "ncnn-f32"]  # whose shaders SwiftShader compiles for seconds
GPU = EngineSetup(kernels="vulkan")
NO_DEVICE = {"ncnn": "no Vulkan driver offers a GPU", "litert": "finds no GPU", "onnxruntime": "No supported adapters"}


@pytest.fixture
def software(tmp_path, monkeypatch):
    vulkan.use_drivers(monkeypatch, tmp_path, vulkan.swiftshader())


@pytest.fixture
def fault(tmp_path, monkeypatch):
    return vulkan.faulty_gpu(monkeypatch, tmp_path)


@pytest.fixture
def host():
    made = IsolatedHost(lambda: 5.0)
    yield made
    made.close()


def pixels(recipe):
    random = np.random.default_rng(0)
    if "int8" in recipe:
        return random.integers(-128, 128, (1, 8, 8, 3), np.int8)
    return random.random((1, 8, 8, 3) if "tflite" in recipe else (1, 3, 8, 8), np.float32)


def form(recipe):
    return tiny.RECIPES[recipe][1].format


def on_cpu(recipe):
    with load_with(RECIPES[recipe], form(recipe), tiny.model_bytes(recipe), EngineSetup()) as engine:
        return engine.run([pixels(recipe)])[0]


def check(recipe, outputs):
    """One step apart at most, or 1e-5 of a probability."""
    apart = np.abs(outputs[0].astype(np.float64) - on_cpu(recipe)).max()
    assert apart <= (1 if "int8" in recipe else 1e-5)


def on_gpu(recipe, host):
    return host.load(RECIPES[recipe], form(recipe), tiny.model_bytes(recipe), GPU)


@each
def test_the_gpu_answers_as_the_cpu_does(recipe, software, host):
    loaded = on_gpu(recipe, host)
    assert loaded.info.kernels == "vulkan"
    assert loaded.info.gpu.startswith("SwiftShader")
    check(recipe, loaded.run([pixels(recipe)]))
    assert not host.leave_gpu(loaded).info.gpu


@each_engine
def test_without_a_device_that_is_said(recipe, tmp_path, monkeypatch, host):
    vulkan.use_drivers(monkeypatch, tmp_path, tmp_path / "gone.so")
    with pytest.raises(EngineError, match=NO_DEVICE[RECIPES[recipe]]):
        on_gpu(recipe, host)


@each_engine
def test_of_two_gpus_one_is_used_and_a_driver_that_is_gone_is_not_missed(recipe, tmp_path, monkeypatch, host):
    library = vulkan.swiftshader()
    vulkan.use_drivers(monkeypatch, tmp_path, tmp_path / "gone.so", library, library)
    check(recipe, on_gpu(recipe, host).run([pixels(recipe)]))


def test_a_gpu_without_16_bit_floats_refuses_an_onnx_artifact_of_them(software, host):
    onnx = pytest.importorskip("onnx")
    if "onnx-f32" not in RECIPES:
        pytest.skip("onnxruntime-ep-webgpu is not installed")
    model = onnx.load_from_string(tiny.model_bytes("onnx-f32"))
    for one in model.graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT:
            half = onnx.numpy_helper.to_array(one).astype(np.float16)
            one.CopyFrom(onnx.numpy_helper.from_array(half, one.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    data = model.SerializeToString()
    assert host.load("onnxruntime", "onnx", data, EngineSetup()).outputs[0].dtype == "float16"
    with pytest.raises(EngineError, match="requires f16 but the device does not support it"):
        host.load("onnxruntime", "onnx", data, GPU)


def scripted(folder, text, *arguments, tune_s=60):
    """What the script prints as JSON, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**environment(), "EDGEKIT_STATE_DIR": str(folder / "state"), "EDGEKIT_TUNE": str(tune_s)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # a library may say something before


LOST = """
import json, logging, sys
from pathlib import Path
import numpy as np
from edgekit_runtime.engines.registry import EngineSetup, load_with
from edgekit_runtime.engines.variants import with_spare
name, form, model, inputs, fault, kind = sys.argv[1:]
said = []
logging.getLogger("edgekit_runtime.engines").addFilter(lambda record: said.append(record.getMessage()))
x = np.load(inputs)
data = Path(model).read_bytes()
loaded = load_with(name, form, data, EngineSetup(kernels="vulkan"))
with with_spare(loaded, lambda: load_with(name, form, data, EngineSetup())) as engine:
    answers, kernels = [engine.run([x])[0].tolist()], [engine.info.kernels]
    try:
        engine.run([x[:, :2]])
    except Exception as error:
        kernels.append(f"{engine.info.kernels} after {type(error).__name__}")
    Path(fault).write_text(kind)
    answers += [engine.run([x])[0].tolist() for _ in range(2)]
    kernels.append(engine.info.kernels)
print(json.dumps({"answers": answers, "kernels": kernels, "said": said}))
"""


@pytest.mark.parametrize(
    ("recipe", "kind"), [*((recipe, "lost") for recipe in BY_ENGINE), *((recipe, "full") for recipe in QUICK)]
)
def test_a_gpu_that_fails_during_a_request_loses_no_request(recipe, kind, fault, tmp_path):
    np.save(tmp_path / "x.npy", pixels(recipe))
    name, model = RECIPES[recipe], tiny.MODELS / tiny.RECIPES[recipe][0]
    found = scripted(tmp_path, LOST, name, form(recipe), model, tmp_path / "x.npy", fault, kind)
    for answer in found["answers"]:
        check(recipe, [np.array(answer)])
    assert found["kernels"] == ["vulkan", "vulkan after EngineError", "default"]
    (said,) = found["said"]
    assert said.startswith(f"{name} answers on the CPU from now on: the GPU failed: ")


@pytest.mark.parametrize("recipe", QUICK)
@pytest.mark.parametrize("kind", ["dies", "hangs"])
def test_a_driver_that_ends_or_blocks_its_own_process_loses_no_request(recipe, kind, fault, host):
    loaded = on_gpu(recipe, host)
    with FallbackEngine(loaded, lambda: host.leave_gpu(loaded)) as engine:
        check(recipe, engine.run([pixels(recipe)]))
        fault.write_text(kind)
        check(recipe, engine.run([pixels(recipe)]))
        assert (engine.info.kernels, host.restarts) == ("default", 1)


OPENED = """
import json, sys
import numpy as np
from edgekit_runtime import open_bundle
from edgekit_runtime.loading import tuning
tuning.GRACE_S, tuning.BUILD_S = 3.0, 0.0
with open_bundle(sys.argv[1], allow_unsigned=True, threads=1) as model:
    top = model.predict(np.full((8, 8, 3), (20, 20, 230), np.uint8)).top(1)[0].label
    described = model.describe()
tried = [one for one in described["tuning"]["candidates"] if "Vulkan" in one["candidate"]]
print(json.dumps({"top": top, "device": described["engine"]["device"], "tried": tried}))
"""


def opened(folder, first, *others, tune_s=60):
    bundle = tiny.bundle(folder, first, alternates=[BundleArtifact(tiny.artifact(recipe)) for recipe in others])
    return scripted(folder, OPENED, bundle, tune_s=tune_s)


def test_opening_measures_the_gpu_beside_the_cpu_and_says_what_it_found(software, tmp_path):
    found = opened(tmp_path, *BY_ENGINE)
    assert found["top"] == "blue"
    assert len(found["tried"]) == len(BY_ENGINE)
    for one in found["tried"]:
        assert one["candidate"].endswith(", GPU, Vulkan")
        assert one["p50_ms"] is not None or "a run takes" in one["refused"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("lost", ""),
        ("full", ""),
        ("dies", "crashed with SIGABRT"),
        ("exits", "ended its process"),
        ("wrong", "differs"),
    ],
)
def test_a_faulty_gpu_costs_its_trial_alone(kind, why, fault, tmp_path):
    fault.write_text(kind)
    recipes = BY_ENGINE if kind == "wrong" else QUICK
    found = opened(tmp_path, *recipes)
    assert (found["top"], found["device"]) == ("blue", "cpu")
    assert len(found["tried"]) == len(recipes)
    assert all(one["p50_ms"] is None and why in one["refused"] for one in found["tried"])


def test_a_gpu_that_hangs_costs_its_trial_alone(fault, tmp_path):
    fault.write_text("hangs")
    found = opened(tmp_path, BY_ENGINE[-1], tune_s=3)
    (gpu,) = found["tried"]
    assert (found["top"], found["device"]) == ("blue", "cpu")
    assert "did not respond within 6 s" in gpu["refused"]


SERVED = """
import json, sys
from time import sleep
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from edgekit_runtime import ModelLimits, QueueFull, open_bundle
from edgekit_runtime.loading import readiness
from edgekit_runtime.loading.candidates import TuningVerdict
from edgekit_runtime.loading.tuning import offered_candidates

def elected(bundle, wanted, tuning):
    offer = offered_candidates(bundle, wanted)
    return TuningVerdict(next(one for one in offer if one.kernels == "vulkan"), "stored", "the test says so")

readiness.tune = elected
pictures = [np.full((8, 8, 3), colour, np.uint8) for colour in ((230, 20, 20), (20, 230, 20), (20, 20, 230), (5, 5, 5))]
bundle, isolate, fault, kind = sys.argv[1], sys.argv[2] == "isolate", Path(sys.argv[3]), sys.argv[4]
options = {"isolate": isolate, "cache": False, "limits": ModelLimits(queue=4, hang_s=3.0)}
devices, full = [], []
with open_bundle(bundle, allow_unsigned=True, **options) as model:
    def ask(number):
        if number == 20:
            fault.write_text(kind)
        while True:
            try:
                return number % 4, model.predict(pictures[number % 4]).top(1)[0].index
            except QueueFull:
                full.append(number)
                sleep(0.05)
    devices.append(model.describe()["engine"]["device"])
    with ThreadPoolExecutor(12) as pool:  # more than a batch of four and the queue behind it
        answers = list(pool.map(ask, range(80)))
    after = ask(0)
    devices.append(model.describe()["engine"]["device"])
    health = model.health()
wrong = sum(best != wanted for wanted, best in [*answers, after])
found = {"devices": devices, "answered": len(answers), "wrong": wrong, "full": len(full), "state": health.state}
print(json.dumps(found))
"""


@pytest.mark.parametrize(("how", "kind"), [("here", "lost"), ("isolate", "hangs")])
def test_with_a_full_queue_a_gpu_that_fails_loses_none_of_the_requests_that_it_took(how, kind, fault, tmp_path):
    found = scripted(tmp_path, SERVED, tiny.bundle(tmp_path, QUICK[0]), how, fault, kind)
    assert (found["devices"], found["answered"], found["wrong"]) == (["gpu", "cpu"], 80, 0)
    assert found["full"] > 0
    assert found["state"] == "ready"


def test_drivers_are_those_that_the_variable_names(tmp_path, monkeypatch):
    vulkan.use_drivers(monkeypatch, tmp_path, tmp_path / "gone.so")
    (found,) = vulkan_drivers()
    assert found.startswith(str(tmp_path / "driver-0.json"))
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "other.json"))
    assert vulkan_drivers() == ()


def test_a_plugin_that_is_not_installed_is_named(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)
    with pytest.raises(MissingExtraError, match="onnx-webgpu"):
        load_with("onnxruntime", "onnx", tiny.model_bytes("onnx-f32"), GPU)

"""OpenVINO answers as the other engines do, keeps to itself what it would send home, and never saturates unasked."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.engines.registry import EngineSetup, available, load_with
from edgekit_runtime.system.children import environment, python_code
from edgekit_runtime.system.errors import EngineError

pytestmark = pytest.mark.skipif("openvino" not in available(), reason="openvino is not installed: make test-openvino")
with_litert = pytest.mark.skipif("litert" not in available(), reason="it is compared with LiteRT")
MISREAD = "rows_int8.tflite"
"""OpenVINO 2026 gives one answer to every input of this network of dense layers alone."""
FILES = sorted(
    path.name for path in tiny.MODELS.glob("*.tflite") if path.name not in ("memory_inside_f32.tflite", MISREAD)
)


def load(form, data, **setup):
    return load_with("openvino", form, data, EngineSetup(**setup))


@with_litert
@pytest.mark.parametrize("name", FILES)
def test_a_tflite_file_has_the_tensors_that_litert_describes_and_gives_its_answers(name):
    data = (tiny.MODELS / name).read_bytes()
    draw = np.random.default_rng(0)
    with load("tflite", data) as ours, load_with("litert", "tflite", data, EngineSetup()) as theirs:
        assert (ours.inputs, ours.outputs) == (theirs.inputs, theirs.outputs)
        for _ in range(20):
            items = [
                draw.integers(-128, 128, [abs(side) for side in spec.shape]).astype(spec.dtype)
                if spec.quantization
                else draw.random([abs(side) for side in spec.shape], np.float32)
                for spec in ours.inputs
            ]
            for spec, got, wanted in zip(ours.outputs, ours.run(items), theirs.run(items), strict=True):
                one_step = 1 if spec.quantization else 1e-5
                np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), atol=one_step)


def test_a_file_with_variables_of_tflite_is_refused_with_the_reason():
    with pytest.raises(EngineError, match=r"openvino .* refuses the artifact: Unexpected type: RESOURCE"):
        load("tflite", (tiny.MODELS / "memory_inside_f32.tflite").read_bytes())


@pytest.mark.parametrize("threads", [1, 2])
def test_it_runs_with_the_threads_that_were_asked_for(threads):
    with load("onnx", tiny.model_bytes("onnx-f32"), threads=threads) as engine:
        compiled = engine._request.get_compiled_model()
        assert (engine.info.threads, compiled.get_property("INFERENCE_NUM_THREADS")) == (threads, threads)


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-f32"])
def test_a_bundle_that_another_engine_answered_passes_its_self_test(tmp_path, recipe):
    with open_bundle(tiny.bundle(tmp_path, recipe), engine="openvino", allow_unsigned=True) as model:
        told = model.describe()
        assert told["engine"]["name"] == "openvino"
        assert told["selftest"]["worst_steps"] <= 1
        assert model.predict(tiny.GREEN).top(1)[0].label == "green"


OPENS = """
import sys
reached = []
sys.addaudithook(lambda event, args: reached.append(event) \
if event in ("socket.connect", "socket.getaddrinfo") else None)
from edgekit_runtime.engines.registry import EngineSetup, load_with
with load_with("openvino", sys.argv[1], open(sys.argv[2], "rb").read(), EngineSetup()):
    pass
import threading
assert not reached, reached
assert threading.active_count() == 1, threading.enumerate()
import openvino, openvino_telemetry
assert openvino.convert_model, "an application can still convert"
"""


@pytest.mark.parametrize("form", ["onnx", "tflite"])
def test_nothing_is_sent_and_nothing_is_written_at_home(tmp_path, form):
    model = tiny.MODELS / tiny.RECIPES[tiny.RECIPE_OF_FORMAT[form]][0]
    env = {**environment(), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    subprocess.run(python_code(OPENS, form, str(model)), env=env, check=True, timeout=120)
    assert list(tmp_path.rglob("*")) == []


TUNES = """
import sys
from edgekit_runtime import open_bundle
with open_bundle(sys.argv[1], allow_unsigned=True, engine="openvino") as model:
    assert model.describe()["tuning"]["how"] == "measured", model.describe()["tuning"]
"""


def test_tuning_writes_nothing_but_its_verdict_at_home(tmp_path):
    bundle = tiny.bundle(tmp_path, "onnx-f32")
    home = tmp_path / "home"
    home.mkdir()
    env = {**environment(), "HOME": str(home), "XDG_CACHE_HOME": "", "EDGEKIT_TUNE": "0.2", "EDGEKIT_STATE_DIR": ""}
    subprocess.run(python_code(TUNES, str(bundle)), env=env, check=True, timeout=120)
    written = [path.relative_to(home).parts[:2] for path in home.rglob("*") if path.is_file()]
    assert set(written) == {(".cache", "edgekit")}


SATURATES = """
import json, sys
import numpy as np
import saturating
from edgekit_runtime.engines.registry import EngineSetup, load_with
from edgekit_runtime.engines import openvino
openvino.cpu = lambda: saturating.AVX2_ONLY
picture = np.full((1, 3, 8, 8), 0.9, np.float32)
said = {}
for kernels in ("default", "fast"):
    with load_with("openvino", "onnx", saturating.model_bytes(127), EngineSetup(kernels=kernels)) as engine:
        said[kernels] = engine.run([picture])[0].tolist()
print(json.dumps(said))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="oneDNN is held to AVX2 on x86 Linux alone")
def test_without_vnni_sums_are_exact_unless_fast_ones_are_asked_for():
    pytest.importorskip("onnx", reason="it makes the model")
    import platform

    import saturating

    if platform.machine() != "x86_64":
        pytest.skip("oneDNN is held to AVX2 on x86 Linux alone")
    tests = str(tiny.MODELS.parent / "support")
    env = {**environment(), "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": tests}
    command = [sys.executable, "-c", SATURATES]
    done = subprocess.run(command, env=env, check=True, timeout=120, capture_output=True, text=True)
    said = json.loads(done.stdout)
    with load("onnx", saturating.model_bytes(127)) as engine:
        wanted = engine.run([np.full((1, 3, 8, 8), 0.9, np.float32)])[0]
    np.testing.assert_allclose(said["default"], wanted, atol=0.2)
    assert np.abs(np.array(said["fast"]) - wanted).max() > 1

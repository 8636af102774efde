"""ncnn on a GPU, which here is SwiftShader of Debian's chromium: it proves answers and faults, and no speed.

Each test has a process of its own: Vulkan's loader looks for drivers once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled
from parts import missing

from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import EngineSetup, load_with
from edgekit_runtime.system.board import vulkan_drivers
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.errors import EngineError

pytest.importorskip("ncnn", reason="pip install ncnn")

LIBRARY = Path("/usr/lib/chromium/libvk_swiftshader.so")
PIXELS = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
GPU = EngineSetup(kernels="vulkan")


def driver(folder: Path, library: Path, monkeypatch) -> None:
    """The one driver that Vulkan's loader finds from now on."""
    file = folder / "driver.json"
    icd = {"library_path": str(library), "api_version": "1.1.0"}
    file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    monkeypatch.setenv("VK_DRIVER_FILES", str(file))


@pytest.fixture
def software(tmp_path, monkeypatch):
    if not LIBRARY.is_file():
        missing("SwiftShader", "apt-get install chromium")
    driver(tmp_path, LIBRARY, monkeypatch)


@pytest.fixture
def host():
    made = IsolatedHost()
    yield made
    made.close()


def scripted(folder: Path, text: str) -> dict:
    """What the script prints as JSON. `bundle` and `data` are its arguments."""
    bundle = tiny.bundle(folder, "ncnn-f32")
    head = (
        "import json, logging, sys, numpy as np\n"
        "from edgekit_runtime import open_bundle\n"
        "from edgekit_runtime.engines.registry import EngineSetup, load_with\n"
        "bundle, data = sys.argv[1], open(sys.argv[2], 'rb').read()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + text, str(bundle), str(tiny.MODELS / "tiny_f32.ncnn")],
        env={**environment(), "EDGEKIT_STATE_DIR": str(folder / "state"), "EDGEKIT_TUNE": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPENED = """
with open_bundle(bundle, allow_unsigned=True) as model:
    top = model.predict(np.full((8, 8, 3), (20, 20, 230), np.uint8)).top(1)[0].label
    described = model.describe()
print(json.dumps({"top": top, "engine": described["engine"], "tried": described["tuning"]["candidates"]}))
"""


def test_the_gpu_answers_as_the_cpu_does(software, host):
    data = tiny.model_bytes("ncnn-f32")
    with load_with("ncnn", "ncnn", data, EngineSetup()) as engine:
        wanted = engine.run([PIXELS])[0]
    loaded = host.load("ncnn", "ncnn", data, GPU)
    assert loaded.info.kernels == "vulkan"
    np.testing.assert_allclose(loaded.run([PIXELS])[0], wanted, atol=1e-5)


def test_without_a_device_that_is_said(tmp_path, monkeypatch, host):
    driver(tmp_path, tmp_path / "gone.so", monkeypatch)
    with pytest.raises(EngineError, match="no Vulkan driver offers a GPU here"):
        host.load("ncnn", "ncnn", tiny.model_bytes("ncnn-f32"), GPU)


def test_opening_measures_the_gpu_beside_the_cpu_and_says_what_it_found(software, tmp_path):
    found = scripted(tmp_path, OPENED)
    assert found["top"] == "blue"
    (gpu,) = [one for one in found["tried"] if "Vulkan" in one["candidate"]]
    assert gpu["refused"] is None
    assert gpu["candidate"] == "ncnn-f32 on ncnn " + found["engine"]["version"] + ", GPU, Vulkan"
    assert found["engine"]["device"] in ("cpu", "gpu")


def test_a_driver_that_dies_costs_its_trial_alone(tmp_path, monkeypatch):
    source = "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n"
    (tmp_path / "dying.c").write_text(source)
    driver(tmp_path, compiled(tmp_path / "dying.c", tmp_path / "dying.so"), monkeypatch)
    found = scripted(tmp_path, OPENED)
    assert (found["top"], found["engine"]["device"]) == ("blue", "cpu")
    (gpu,) = [one for one in found["tried"] if "Vulkan" in one["candidate"]]
    assert gpu["p50_ms"] is None


LOST = """
from edgekit_runtime.engines import ncnn
from edgekit_runtime.system.errors import EngineError
honest = ncnn.NcnnEngine._answer

def lost(self, inputs):
    if self.info.kernels == "vulkan":
        raise EngineError("the device is lost")
    return honest(self, inputs)

ncnn.NcnnEngine._answer = lost
said = []
logging.getLogger("edgekit_runtime.engines").addFilter(lambda record: said.append(record.getMessage()))
with load_with("ncnn", "ncnn", data, EngineSetup(kernels="vulkan")) as engine:
    before = engine.info.kernels
    answers = [engine.run([np.zeros((1, 3, 8, 8), np.float32)])[0].argmax() for _ in range(2)]
    found = {"answers": [int(one) for one in answers], "kernels": [before, engine.info.kernels], "said": said}
    print(json.dumps(found))
"""


def test_a_gpu_that_is_lost_during_a_request_loses_no_request(software, tmp_path):
    found = scripted(tmp_path, LOST)
    assert found["answers"] == [3, 3]
    assert found["kernels"] == ["vulkan", "default"]
    assert found["said"] == ["ncnn answers on the CPU from now on: the GPU failed: the device is lost"]


def test_drivers_are_those_that_the_variable_names(tmp_path, monkeypatch):
    driver(tmp_path, LIBRARY, monkeypatch)
    (found,) = vulkan_drivers()
    assert found.startswith(str(tmp_path / "driver.json"))
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "other.json"))
    assert vulkan_drivers() == ()

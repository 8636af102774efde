"""ONNX Runtime as edgekit loads it: its telemetry stays off, whichever module imports it first."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
from linear import onnx_bytes

from edgekit_runtime.engines.onnxruntime import session_options
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.children import python_code
from edgekit_runtime.system.errors import EngineError

pytest.importorskip("onnxruntime", reason="comes with the extra 'onnx'")

TUNED = """
import sys
import numpy
from edgekit_runtime import open_bundle
with open_bundle(sys.argv[1], allow_unsigned=True, engine="onnxruntime") as model:
    assert model.describe()["tuning"]["how"] == "measured", model.describe()["tuning"]
    model.predict(numpy.zeros((8, 8, 3), numpy.uint8))
"""
ISOLATED = """
import sys
from pathlib import Path
from edgekit_runtime.engines.registry import EngineSetup
from edgekit_runtime.engines.isolated import IsolatedHost
with IsolatedHost().load("onnxruntime", "onnx", Path(sys.argv[1]).read_bytes(), EngineSetup()):
    pass
"""
CONVERTER = """
import sys
from pathlib import Path
from edgekit_converters.formats.onnx_graph import session
session(Path(sys.argv[1]).read_bytes(), plain=True)
"""
PEER = "import edgekit_runtime.system.errors, onnxruntime"
COMMAND = "from edgekit.cli import main; main()"


def in_a_fresh_home(home: Path, program: str, *arguments: str | Path) -> set[str]:
    """Run it without CI's variables, under which ONNX Runtime keeps quiet by itself.

    Returns the files it left in HOME.
    """
    kept = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
    environ = {name: value for name, value in os.environ.items() if name in kept}
    environ |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "EDGEKIT_TUNE": "0.2"}
    environ |= {"KERAS_HOME": str(home.with_name("keras")), "TF_CPP_MIN_LOG_LEVEL": "3"}
    home.mkdir()
    command = python_code(program, *map(str, arguments))
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, cwd=home.parent, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def test_opening_and_tuning_write_nothing_but_verdicts_into_a_fresh_home(tmp_path):
    bundle = tiny.bundle(tmp_path, "onnx-f32")
    written = in_a_fresh_home(tmp_path / "home", TUNED, bundle)
    assert any(name.startswith(".cache/edgekit/tuning/") for name in written)
    assert [name for name in written if not name.startswith(".cache/edgekit/")] == []


@pytest.mark.parametrize("program", [ISOLATED, CONVERTER, PEER], ids=["isolated child", "converter", "plain import"])
def test_every_import_path_leaves_a_fresh_home_empty(tmp_path, program):
    model = tmp_path / "model.onnx"
    model.write_bytes(tiny.model_bytes("onnx-f32"))
    assert in_a_fresh_home(tmp_path / "home", program, model) == set()


@pytest.mark.convert
def test_a_build_writes_nothing_but_its_cache_into_a_fresh_home(tmp_path):
    pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    model = tmp_path / "linear.onnx"
    model.write_bytes(onnx_bytes(rng.normal(size=(16, 4)).astype(np.float32), np.zeros(4, np.float32), (-1, 16)))
    for name in ("calibration", "evaluation"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(80, 16)).astype(np.float32))
    written = in_a_fresh_home(
        tmp_path / "home", COMMAND, "build", model, "--profile", "x86-64", "--recipe", "onnx-f32",
        "--calibration", "calibration.npz", "--evaluation", "evaluation.npz", "-o", "out",
    )  # fmt: skip
    assert list((tmp_path / "out").glob("*.ekb"))
    assert [name for name in written if not name.startswith(".cache/edgekit/")] == []


def test_a_user_who_set_the_variable_keeps_it():
    program = "import edgekit_runtime, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environ = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_the_threads_of_every_session_sleep_between_two_requests():
    options = session_options(pytest.importorskip("onnxruntime"), 2)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_run_that_fails_is_one_error_and_nothing_beside_it_on_stderr(capfd):
    onnx = pytest.importorskip("onnx")
    sides = onnx.numpy_helper.from_array(np.array([-1, 5]), "sides")
    tensor = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Reshape", ["x", "sides"], ["y"])], "g", [tensor("x", shape=["N", 3])],
        [tensor("y", shape=["M", 5])], [sides],
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    with (
        load_engine("onnx", made.SerializeToString(), engine="onnxruntime") as engine,
        pytest.raises(EngineError, match=r"the inference failed: .*Reshape"),
    ):
        engine.run([np.zeros((1, 3), np.float32)])
    assert capfd.readouterr().err == ""

"""ONNX Runtime as it is imported: what it would write and send by itself stays off."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime", reason="comes with the extra 'onnx'")

ENGINE = "from edgekit_runtime.engines.onnx import import_onnxruntime; import_onnxruntime()"
CONVERTER = """
from onnx import TensorProto, helper
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
from edgekit_converters.graph.onnx_file import session
session(data, plain=True).run(None, {"x": [1.0]})
"""


@pytest.mark.parametrize("program", [ENGINE, CONVERTER], ids=["the engine", "a converter"])
def test_nothing_is_written_into_a_fresh_home(tmp_path, program):
    if program is CONVERTER:
        pytest.importorskip("onnx", reason="comes with the extra 'dev'")
    environ = {key: value for key, value in os.environ.items() if key in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")}
    environ |= {"HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}  # no CI, under which it keeps still by itself
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_who_set_the_variable_is_obeyed(monkeypatch):
    from edgekit_runtime.engines.onnx import import_onnxruntime

    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    import_onnxruntime()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"

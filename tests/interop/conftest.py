"""The servers, once for the whole suite: each serves `dbl` (y = 2 x), the tiny classifier's ONNX artifact, or both."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import tiny
from others import Started, Triton, environment
from ports import free_port

HERE = Path(__file__).parent
ONNX = tiny.MODELS / tiny.RECIPES["onnx-f32"][0]
TINY_CONFIG = """
name: "tiny" backend: "python" max_batch_size: 8
input [{name: 'image' data_type: TYPE_FP32 dims: [3, 8, 8]}]
output [{name: 'probs' data_type: TYPE_FP32 dims: [4]}]
instance_group [{kind: KIND_CPU}]
"""
DOUBLE_CONFIG = """
name: "dbl" backend: "python" max_batch_size: 8
input [{name: 'x' data_type: TYPE_FP32 dims: [-1]}]
output [{name: 'y' data_type: TYPE_FP32 dims: [-1]}]
instance_group [{kind: KIND_CPU}]
dynamic_batching {default_queue_policy {max_queue_size: 1 default_timeout_microseconds: 5000000
allow_timeout_override: true}}
"""


def pytest_collection_modifyitems(items):
    if sys.platform != "linux":
        for item in items:
            item.add_marker(pytest.mark.skip("these servers have wheels for Linux only"))


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    server, repository = Triton(folder), folder / "repository"
    put(repository / "dbl", DOUBLE_CONFIG, {"model.py": HERE / "served" / "triton_double.py"})
    put(repository / "tiny", TINY_CONFIG, {"model.py": HERE / "served" / "triton_onnx.py", "model.onnx": ONNX})
    with server.serve(repository, "tiny") as started:
        yield started


def put(model: Path, config: str, files: dict[str, Path]) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)
    for name, source in files.items():
        shutil.copy(source, model / "1" / name)


@pytest.fixture(scope="session")
def mlserver(tmp_path_factory):
    """It has no binary tensors and says so by hanging up."""
    folder = tmp_path_factory.mktemp("mlserver")
    python = environment(folder, sys.executable, "mlserver==1.7.1", "onnxruntime")
    port = free_port()
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    (folder / "models").mkdir()
    (folder / "models" / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    shutil.copy(HERE / "served" / "mlserver_models.py", folder / "models")
    image = {"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}
    for name, settings in (
        ("dbl", {"implementation": "mlserver_models.Double"}),
        (
            "tiny",
            {"implementation": "mlserver_models.Onnx", "parameters": {"uri": str(ONNX)}, "inputs": [image]},
        ),
    ):
        (folder / "models" / name).mkdir()
        (folder / "models" / name / "model-settings.json").write_text(json.dumps({"name": name, **settings}))
    command = [python.with_name("mlserver"), "start", folder / "models"]
    with Started(command, "tiny", folder / "log", port, cwd=folder / "models") as started:
        yield started


@pytest.fixture(scope="session")
def kserve(tmp_path_factory):
    """KServe's SDK server: it takes binary tensors and does not say so."""
    folder = tmp_path_factory.mktemp("kserve")
    python = environment(folder, sys.executable, "kserve==0.21.0", "onnxruntime")
    port = free_port()
    command = [python, HERE / "served" / "kserve_onnx.py", port, ONNX]
    with Started(command, "tiny", folder / "log", port, cwd=folder) as started:
        yield started

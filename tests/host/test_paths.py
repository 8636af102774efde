"""What `host serve` and `doctor` say about engines of a GPU, on machines that have them and on those that do not."""

from __future__ import annotations

import pytest

from edgekit.cli.doctor import doctor_lines, examine
from edgekit.host.models import not_taken
from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.gpu import gpu_paths, try_engine
from edgekit_runtime.engines.registry import ENGINES, available, on_gpu
from edgekit_runtime.system.board import Cpu
from edgekit_runtime.system.errors import EngineError, install_command

GPU = [name for name in ENGINES if on_gpu(name)]
HERE = {"onnxruntime": "1.31.1", "tensorrt-rtx": "1.7.1", "torch-cuda": "2.11.0"}


def tried(engine, p50_ms=None, refused=None):
    return {"candidate": f"onnx-f16 on {engine}", "engine": engine, "p50_ms": p50_ms, "refused": refused}


def described(runs, *candidates):
    return {"engine": {"name": runs}, "tuning": {"candidates": list(candidates)}}


def test_each_engine_that_does_not_answer_has_its_reason():
    told = described("onnxruntime", tried("tensorrt-rtx", refused="does not run on H200"), tried("torch-cuda", 1.25))
    assert not_taken(told, lambda: HERE, lambda: "") == (
        ("tensorrt", f"not installed: {install_command('tensorrt')}"),
        ("tensorrt-rtx", "does not run on H200"),
        ("onnxruntime-cuda", f"not installed: {install_command('onnx-cuda')}"),
        ("torch-cuda", "slower: 1.25 ms"),
    )


def test_the_one_that_answers_is_not_among_them():
    told = described("torch-cuda", tried("torch-cuda", 1.25))
    assert [engine for engine, _ in not_taken(told, lambda: HERE, lambda: "")] == GPU[:-1]
    assert dict(not_taken(told, lambda: HERE, lambda: ""))["tensorrt-rtx"] == "not measured"


def test_a_machine_without_a_gpu_and_its_engines_has_nothing_to_say():
    assert not_taken(described("onnxruntime"), lambda: {"onnxruntime": "1"}, lambda: "no driver") == ()


def test_every_engine_is_tried_in_order_and_says_why_it_does_not_run():
    asked = []

    def attempt(name):
        asked.append(name)
        if name == "tensorrt-rtx":
            raise EngineError("it does not run on H200")

    found = gpu_paths(HERE.get, lambda: "", attempt)
    assert [path.engine for path in found] == GPU
    assert asked == ["tensorrt-rtx", "torch-cuda"]
    assert [(path.engine, path.why) for path in found if path.version] == [
        ("tensorrt-rtx", "it does not run on H200"),
        ("torch-cuda", ""),
    ]


def test_a_real_engine_runs_the_small_model_in_a_process_of_its_own():
    if "onnxruntime" not in available():
        pytest.skip("it runs ONNX")
    try_engine("onnxruntime")


def test_without_a_driver_nothing_is_started():
    found = gpu_paths(HERE.get, lambda: "no NVIDIA driver", lambda name: pytest.fail(name))
    assert {path.why for path in found if path.version} == {"no NVIDIA driver"}


def test_doctor_names_the_gpu_the_path_that_runs_and_why_not_the_others():
    paths = [path.as_json() for path in gpu_paths(HERE.get, lambda: "", lambda name: None)]
    told = examine({"numpy": "2"}.get, Cpu("x86_64"), (), {"name": "NVIDIA H200", "why_none": "", "paths": paths})
    lines = doctor_lines(told)
    assert "  GPU: NVIDIA H200" in lines
    assert "    torch-cuda 2.11.0 runs" in lines
    assert f"    tensorrt does not run: not installed: {install_command('tensorrt')}" in lines


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_serving_on_a_gpu_alone_is_refused_without_one(edgekit, tmp_path):
    import tiny

    bundle = tiny.bundle(tmp_path, "onnx-f32")
    ran = edgekit("host", "serve", bundle, "--listen", "127.0.0.1:0", "--require-gpu", "--allow-unsigned")
    assert ran.code == 1
    assert any(why in ran.err for why in ("[host-gpu]", "no engine of a GPU runs it", "the NVIDIA driver"))

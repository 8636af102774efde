"""Engines of a GPU that are installed and broken: each way has its reason, and none answers from the processor."""

from __future__ import annotations

import sys

import pytest
import tiny

from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, available, load_with
from edgekit_runtime.system.errors import EngineError


@pytest.fixture(autouse=True)
def _gpu(monkeypatch, tmp_path_factory):
    """A GPU that is only said to be there; and every package is installed, by its metadata."""
    monkeypatch.setattr(cuda, "gpu", lambda: cuda.Gpu("said to be there", (9, 0), "13.0"))
    installed = tmp_path_factory.mktemp("installed")
    for kind in ENGINES.values():
        (installed / f"{kind.distribution.replace('-', '_')}-9.9.dist-info").mkdir()
    monkeypatch.syspath_prepend(installed)


@pytest.mark.parametrize(
    ("name", "module", "library"),
    [("tensorrt", "tensorrt", "libnvinfer.so.11"), ("tensorrt-rtx", "tensorrt_rtx_bindings", "libtensorrt_rtx.so.1")],
)
def test_a_missing_library_is_named_with_its_engine(tmp_path, monkeypatch, name, module, library):
    (tmp_path / f"{module}.py").write_text(f"raise ImportError('{library}: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(EngineError, match=rf"engine '{name}' is installed and cannot be imported: {library}"):
        load_with(name, "onnx", tiny.model_bytes("onnx-f32"), EngineSetup())


@pytest.mark.skipif("onnxruntime" not in available(), reason="onnxruntime is not installed")
def test_onnx_runtime_that_falls_back_to_the_processor_is_refused():
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this one has CUDA")
    with pytest.raises(EngineError, match="with CPUExecutionProvider, not with CUDAExecutionProvider"):
        load_with("onnxruntime-cuda", "onnx", tiny.model_bytes("onnx-f32"), EngineSetup())


def test_pytorch_for_the_processor_is_refused(tmp_path, monkeypatch):
    stand_in = "__version__ = '9.9'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    (tmp_path / "torch.py").write_text(stand_in)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        with pytest.raises(EngineError, match=r"torch-cuda .* finds no GPU"):
            load_with("torch-cuda", "onnx", tiny.model_bytes("onnx-f32"), EngineSetup())
    finally:
        sys.modules.pop("torch", None)

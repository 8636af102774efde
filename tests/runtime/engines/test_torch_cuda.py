"""PyTorch's engine on the processor, where the same traced graph runs that a GPU would replay.

`make test-torch` runs it. What needs a GPU is marked `gpu`.
"""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.engines import cuda
from edgekit_runtime.engines import torch_cuda as ours
from edgekit_runtime.engines.registry import EngineInfo, EngineSetup, available, load_with
from edgekit_runtime.system.errors import EngineError, MissingExtraError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("onnx", reason="it reads the file")
INFO = EngineInfo("torch-cuda", "0", 1)


@pytest.fixture(autouse=True, scope="module")
def _torchvision():
    """onnx2pytorch imports it for detectors' operators; its wheels are for PyTorch with CUDA alone."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in ("torchvision", "torchvision.ops", "torchvision.io"):
            sys.modules[name] = module = types.ModuleType(name)
            module.__getattr__ = lambda wanted: None
        sys.modules["torchvision"].ops = sys.modules["torchvision.ops"]
        sys.modules["torchvision"].io = sys.modules["torchvision.io"]
    pytest.importorskip("onnx2pytorch", reason="it makes PyTorch of ONNX")


def load(data):
    return ours.TorchEngine(torch, INFO, "onnx", data, EngineSetup(), device="cpu")


def network(kind="FLOAT", shape=("N", 3, 8, 8)):
    """A convolution with unequal pads, as Keras exports strides, a residual, a mean and a dense layer."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    dtype = np.float16 if kind == "FLOAT16" else np.float32
    arrays = {
        "w": draw.normal(size=(4, 3, 3, 3)),
        "v": draw.normal(size=(4, 4, 3, 3)) / 6,
        "d": draw.normal(size=(4, 5)),
        "b": draw.normal(size=5),
    }
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=getattr(TensorProto, kind)),
        helper.make_node("Conv", ["h", "w"], ["c"], pads=[0, 0, 2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["e"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r", "e"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "d", "b"], ["g"]),
        helper.make_node("Softmax", ["g"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (shape[0], 5))
    constants = [numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize(("kind", "apart"), [("FLOAT", 1e-5), ("FLOAT16", 5e-3)])
@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 40])
def test_any_number_of_items_gives_the_answers_of_onnx_runtime(kind, apart, count):
    data = network(kind)
    x = np.random.default_rng(count).random((count, 3, 8, 8), np.float32)
    with load(data) as engine, load_with("onnxruntime", "onnx", data, EngineSetup()) as theirs:
        assert (engine.inputs, engine.outputs) == (theirs.inputs, theirs.outputs)
        (got,), (wanted,) = engine.run([x]), theirs.run([x])
        np.testing.assert_allclose(got, wanted, atol=apart)
        assert got.flags.c_contiguous
        engine.run([np.zeros_like(x)])
        np.testing.assert_allclose(got, wanted, atol=apart)


def test_a_file_of_a_fixed_batch_runs_its_own():
    data = network(shape=(2, 3, 8, 8))
    x = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    with load(data) as engine, load_with("onnxruntime", "onnx", data, EngineSetup()) as theirs:
        np.testing.assert_allclose(engine.run([x])[0], theirs.run([x])[0], atol=1e-5)
        with pytest.raises(EngineError, match=r"'x' is float32 \[2, 3, 8, 8\], not float32 \[1, 3, 8, 8\]"):
            engine.run([x[:1]])


def test_a_captured_size_is_captured_once():
    with load(network()) as engine:
        for count in (1, 3, 4, 3):
            engine.run([np.zeros((count, 3, 8, 8), np.float32)])
        assert sorted(engine._graphs) == [1, 4]
    with pytest.raises(EngineError, match="closed"):
        engine.run([np.zeros((1, 3, 8, 8), np.float32)])


def test_a_free_axis_that_is_not_the_batch_is_refused():
    with pytest.raises(EngineError, match="'x' has free axes"):
        load(network(shape=("N", 3, "H", 8)))


@pytest.mark.parametrize("data", [b"not a model", b"\0" * 4096], ids=["text", "zeros"])
def test_bytes_that_are_no_model_are_an_engine_error(data):
    with pytest.raises(EngineError):
        load(data)


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_without_a_driver_it_is_refused_before_pytorch_is_asked(tmp_path):
    assert "torch-cuda" in available()
    with pytest.raises(EngineError, match="NVIDIA driver"):
        load_with("torch-cuda", "onnx", network(), EngineSetup())


def test_without_the_converter_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx2pytorch", None)
    with pytest.raises(MissingExtraError, match="torch-cuda"):
        load(network())


def test_a_failing_run_is_an_engine_error(monkeypatch):
    """As where the GPU is lost, or its memory is full."""
    engine = load(network())
    monkeypatch.setattr(torch, "from_numpy", lambda array: torch.zeros(3, 3, 3, 3, 3))
    with pytest.raises(EngineError, match="the inference failed: RuntimeError"):
        engine.run([np.zeros((1, 3, 8, 8), np.float32)])


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "apart"), [("FLOAT", 5e-3), ("FLOAT16", 5e-3)])
@pytest.mark.parametrize("count", [1, 3, 16, 17])
def test_on_a_gpu_a_replayed_graph_gives_the_answers_of_onnx_runtime(kind, apart, count):
    data = network(kind)
    with load_with("torch-cuda", "onnx", data, EngineSetup()) as engine:
        for seed in range(3):
            x = np.random.default_rng(seed).random((count, 3, 8, 8), np.float32)
            with load_with("onnxruntime", "onnx", data, EngineSetup()) as theirs:
                np.testing.assert_allclose(engine.run([x])[0], theirs.run([x])[0], atol=apart)


@pytest.mark.gpu
def test_on_a_gpu_it_gives_the_golden_answers(tmp_path):
    bundle = tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime")
    with open_bundle(bundle, engine="torch-cuda", allow_unsigned=True) as model:
        assert model.describe()["engine"]["device"] == "gpu"
        assert model.predict(tiny.GREEN).top(1)[0].label == "green"


@pytest.mark.gpu
def test_on_a_gpu_engines_answer_while_another_captures_a_graph():
    """As `host serve --instances 4` does: a capture of the default mode failed the others' requests."""
    data, x = network(), np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
    stopped, failed = threading.Event(), []

    def ask(engine):
        while not stopped.is_set():
            try:
                engine.run([x])
            except EngineError as error:
                failed.append(error)

    with load_with("torch-cuda", "onnx", data, EngineSetup()) as busy:
        thread = threading.Thread(target=ask, args=(busy,))
        thread.start()
        try:
            for _ in range(5):
                with load_with("torch-cuda", "onnx", data, EngineSetup()) as other:
                    for count in ours.BATCHES:
                        other.run([np.repeat(x, count, axis=0)])
        finally:
            stopped.set()
            thread.join()
    assert failed == []

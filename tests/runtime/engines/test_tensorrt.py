"""TensorRT for RTX without a GPU: it parses, builds, keeps what it built, and is refused with the reason.

`make test-tensorrt-rtx` runs it. What needs a GPU is marked `gpu`.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled

from edgekit_runtime import open_bundle
from edgekit_runtime.engines import cuda, registry
from edgekit_runtime.engines import tensorrt as ours
from edgekit_runtime.engines.registry import EngineSetup, available, load_with
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.tuning import Tuner, tune
from edgekit_runtime.system.children import environment, python_code
from edgekit_runtime.system.errors import EngineError

NAME = "tensorrt-rtx"
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(NAME not in available(), reason="TensorRT is not installed: make test-tensorrt-rtx")
LABEL = f"{NAME} {available().get(NAME)}"


@pytest.fixture(scope="module")
def rtx():
    import tensorrt_rtx_bindings

    return tensorrt_rtx_bindings


def graph(nodes, shape=("N", 4), constants=(), kind=None):
    """An ONNX file: `x` in, `y` out."""
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT if kind is None else kind
    values = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    made = helper.make_graph(nodes, "g", values[:1], values[1:], list(constants))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def node(kind, inputs, output="y", **attributes):
    from onnx import helper

    return helper.make_node(kind, inputs, [output], name=f"the_{kind}", **attributes)


def test_a_file_is_built_with_the_names_and_order_of_its_tensors(rtx):
    head, _, plan = ours.build(rtx, LABEL, tiny.model_bytes("onnx-f32")).partition(b"\n")
    names = json.loads(head)
    with load_with("onnxruntime", "onnx", tiny.model_bytes("onnx-f32"), EngineSetup()) as theirs:
        assert names["inputs"] == [one.tensor for one in theirs.inputs]
        assert names["outputs"] == [one.tensor for one in theirs.outputs]
    assert len(plan) > 1000


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16"])
def test_precision_is_the_files(rtx, kind):
    from onnx import TensorProto, numpy_helper

    wide = np.ones((256, 256), np.float16 if kind == "FLOAT16" else np.float32)
    data = graph(
        [node("MatMul", ["x", "w"])], ("N", 256), [numpy_helper.from_array(wide, "w")], getattr(TensorProto, kind)
    )
    assert ours.build(rtx, LABEL, data)


def test_an_operator_that_it_does_not_know_is_named(rtx):
    data = graph([node("Det", ["x"])], ("N", 4, 4))
    with pytest.raises(EngineError, match=r"refuses the artifact: Det 'the_Det'"):
        ours.build(rtx, LABEL, data)


def test_quantization_around_another_zero_is_refused_with_its_node(rtx):
    from onnx import numpy_helper

    scale, zero = numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(3), "z")
    quantized = [node("QuantizeLinear", ["x", "s", "z"], "q"), node("DequantizeLinear", ["q", "s", "z"])]
    with pytest.raises(EngineError, match=r"QuantizeLinear 'the_QuantizeLinear': .*zero point"):
        ours.build(rtx, LABEL, graph(quantized, constants=[scale, zero]))


@pytest.mark.parametrize("shape", [("N", "M"), (1, "M")])
def test_a_free_axis_that_is_not_the_batch_is_refused(rtx, shape):
    with pytest.raises(EngineError, match="accepts a free batch axis only; 'x' is"):
        ours.build(rtx, LABEL, graph([node("Relu", ["x"])], shape))


@pytest.mark.parametrize("data", [b"", b"not a model", b"\0" * 4096], ids=["empty", "text", "zeros"])
def test_bytes_that_are_no_model_are_an_engine_error(rtx, data):
    with pytest.raises(EngineError, match="refuses the artifact"):
        ours.build(rtx, LABEL, data)


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_without_a_driver_it_is_refused_before_anything_is_imported(tmp_path):
    with pytest.raises(EngineError, match=r"NVIDIA driver"):
        load_with(NAME, "onnx", tiny.model_bytes("onnx-f32"), EngineSetup())
    verdict = tune(tiny_bundle(tmp_path), TuningOptions(), Tuner(0.5, folder=tmp_path))
    (tried,) = [one for one in verdict.tried if one.candidate.on_gpu]
    assert (verdict.how, verdict.chosen.engine) == ("measured", "onnxruntime")
    assert "NVIDIA driver" in tried.refused["what"]


def tiny_bundle(folder):
    from edgekit_runtime.bundle.reader import read_bundle

    return read_bundle(tiny.bundle(folder, "onnx-f32", engine="onnxruntime"))


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_asked_for_a_gpu_nothing_else_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "0.5")
    with pytest.raises(EngineError, match=rf"no engine of a GPU runs it: {NAME}: .*NVIDIA driver"):
        open_bundle(tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime"), engine="gpu", allow_unsigned=True)


BUILDS = """
import json, sys
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines import cuda
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.tuning_trial import Trial
from edgekit_runtime.loading.tuning import offered_candidates
cuda._DRIVER = sys.argv[2]
said = []
bundle = read_bundle(sys.argv[1])
Trial(bundle, offered_candidates(bundle, TuningOptions()), said.append).run(0.5)
print(json.dumps(said))
"""


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_what_is_built_and_does_not_run_on_this_gpu_is_refused_and_the_next_answers(tmp_path):
    """The driver is a stand-in that shows an SM 9.0, which TensorRT for RTX does not list."""
    driver = compiled(HERE / "driver.c", tmp_path / "libcuda.so.1")
    bundle = tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime")
    env = {**environment(), "EDGEKIT_STATE_DIR": str(tmp_path / "state")}
    command = python_code(BUILDS, str(bundle), str(driver))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    (refused,) = [fact["error"]["what"] for fact in said if "refused" in fact]
    assert refused.startswith(f"{LABEL} does not run on Stub H200, SM 9.0: ")
    assert said[-1]["champion"] >= 1
    (kept,) = (tmp_path / "state" / "engines").glob("*.engine")
    assert kept.stat().st_size > 1000


class Context:
    """In place of an execution context: y = 2 x in the stand-in's memory. Which shapes it was made for is `index`."""

    def __init__(self):
        self.shapes, self.addresses, self.index = {}, {}, None

    def set_optimization_profile_async(self, index, stream):
        self.index = index
        return True

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def set_input_shape(self, name, shape):
        self.shapes[name] = tuple(shape)

    def execute_async_v3(self, stream):
        count = int(np.prod(self.shapes["x"]))
        x, y = (np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.addresses[one])) for one in "xy")
        y[:] = 2 * x
        return True


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_each_batch_runs_in_the_context_of_its_shapes_and_outputs_are_the_callers(rtx, tmp_path, monkeypatch):
    """Only the library's own execution is a stand-in: it needs a GPU."""
    monkeypatch.setattr(cuda, "_DRIVER", str(compiled(HERE / "driver.c", tmp_path / "libcuda.so.1")))
    cuda.gpu.cache_clear()
    cuda._driver.cache_clear()

    class Deserialized:
        def get_tensor_dtype(self, name):
            return rtx.DataType.FLOAT

        def get_tensor_shape(self, name):
            return (-1, 4)

        def create_runtime_config(self):
            return self

        def create_runtime_cache(self):
            return self

        def deserialize(self, known):
            self.known = known

        def serialize(self):
            return b"kernels"

        def set_runtime_cache(self, cache):
            pass

        def create_execution_context(self, *settings):
            return Context()

    class Module:
        def __getattr__(self, name):
            return getattr(rtx, name)

        class Runtime:
            def __init__(self, logger):
                pass

            def deserialize_cuda_engine(self, plan):
                return Deserialized()

    monkeypatch.setattr(registry, "import_engine", lambda name: Module())
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    data = graph([node("Relu", ["x"])])
    try:
        with load_with(NAME, "onnx", data, EngineSetup()) as engine:
            assert [(one.name, one.dtype, one.shape) for one in engine.inputs] == [("x", "float32", (-1, 4))]
            for count in (1, 2, 32):
                x = np.random.default_rng(count).random((count, 4), np.float32)
                (first,) = engine.run([x])
                engine.run([np.zeros_like(x)])
                np.testing.assert_array_equal(first, 2 * x)
            assert [one.index for one in engine._contexts] == [0, 1]
            for wrong in ([], [np.zeros((1, 4))], [np.zeros((1, 5), np.float32)], [np.zeros((33, 4), np.float32)]):
                with pytest.raises(EngineError):
                    engine.run(wrong)
        with pytest.raises(EngineError, match="closed"):
            engine.run([x])
        folder = tmp_path / "state" / "engines"
        assert sorted(one.suffix for one in folder.iterdir() if one.suffix) == [".engine", ".kernels"]
        with load_with(NAME, "onnx", data + b"", EngineSetup(keep=False)):
            pass
        assert len(list(folder.iterdir())) == 3
    finally:
        cuda.gpu.cache_clear()
        cuda._driver.cache_clear()


@pytest.mark.gpu
def test_on_a_gpu_that_it_runs_on_it_gives_the_golden_answers(tmp_path):
    """TensorRT for RTX builds for an H100 or H200 (SM 9.0) and refuses to run there."""
    path = tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime")
    if cuda.gpu().sm == (9, 0):
        with pytest.raises(EngineError, match="does not run on NVIDIA"):
            open_bundle(path, engine=NAME, allow_unsigned=True)
        return
    with open_bundle(path, engine=NAME, allow_unsigned=True) as model:
        assert model.describe()["engine"]["device"] == "gpu"
        assert model.predict(tiny.GREEN).top(1)[0].label == "green"

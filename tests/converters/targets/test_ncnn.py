"""ncnn artifacts through pnnx: they answer as the ONNX file does, and hold nothing that the runtime cannot check."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.fidelity.compare import size_breakdown
from edgekit_converters.formats.needs import read_needs
from edgekit_converters.formats.workload import memory_bytes, read_workload
from edgekit_converters.recipe.artifact import recipe
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.sandbox import missing_parts
from edgekit_converters.targets import ncnn_float
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.modelfile.ncnn_structure import read_network
from edgekit_runtime.system.children import environment

needs_pnnx = pytest.mark.skipif(
    importlib.util.find_spec("pnnx") is None and not os.environ.get("CI"),
    reason="pnnx is missing: pip install --no-deps pnnx",
)
pytestmark = [pytest.mark.convert, needs_pnnx]
WORDS = np.random.default_rng(3)


def saved(folder: Path, nodes, shape, output, constants=(), name="net.onnx", kind=TensorProto.FLOAT) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, ["batch", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *output])],
        [numpy_helper.from_array(values, label) for label, values in constants],
    )
    path = folder / name
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return path


@pytest.fixture(scope="module")
def workspace():
    return Workspace(load(tiny.MODELS / "tiny_f32.onnx", LoadOptions()))


def test_the_float_recipe_answers_as_the_original(workspace):
    made = workspace.make(recipe("ncnn-f32"))
    assert [(one.name, one.shape, one.layout) for one in made.inputs] == [("image", (1, 3, 8, 8), "NCHW")]
    assert [(one.name, one.shape) for one in made.outputs] == [("probs", (1, 4))]
    assert "pnnx" in made.tools
    item = WORDS.random((1, 3, 8, 8), np.float32)
    with load_engine("ncnn", made.data) as engine:
        np.testing.assert_allclose(engine.run([item])[0], workspace.source.predict([item])[0], atol=1e-6)


def test_the_same_source_gives_the_same_bytes(workspace):
    again = Workspace(load(tiny.MODELS / "tiny_f32.onnx", LoadOptions()))
    assert again.make(recipe("ncnn-f32")).data == workspace.make(recipe("ncnn-f32")).data


def test_the_half_recipe_rounds_kernels_and_nothing_else(workspace):
    whole, half = (read_network(workspace.make(recipe(f"ncnn-{kind}")).data) for kind in ("f32", "f16"))
    assert (whole.half, half.half) == (False, True)
    assert half.layers == whole.layers
    # kernels of 81 and 12, the bias of 4, two tags
    assert (len(whole.weights), len(half.weights)) == (4 * 97 + 8, 164 + 24 + 16 + 8)
    assert half.weights[-16:] == whole.weights[-16:]


def test_a_weight_that_16_bits_cannot_hold_is_refused(tmp_path):
    kernel = np.array([[1e6, 1.0], [0.5, 2.0]], np.float32)
    path = saved(tmp_path, [helper.make_node("Gemm", ["x", "w"], ["y"])], [2], [2], [("w", kernel)])
    made = Workspace(load(path, LoadOptions()))
    assert made.make(recipe("ncnn-f32")).data
    with pytest.raises(ConversionError, match=r"16-bit floats cannot hold a weight of .*: 1e\+06"):
        made.make(recipe("ncnn-f16"))


def test_dense_layers_without_a_bias_are_taken(tmp_path):
    weights = [(name, WORDS.standard_normal((5, 5)).astype(np.float32)) for name in ("v", "w")]
    nodes = [helper.make_node("Gemm", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    made = Workspace(load(saved(tmp_path, nodes, [5], [5], weights), LoadOptions())).make(recipe("ncnn-f32"))
    assert [layer.kind for layer in read_network(made.data).layers] == ["Input", "InnerProduct", "InnerProduct"]


def test_its_work_is_that_of_the_onnx_file(workspace):
    work = read_workload("ncnn", workspace.make(recipe("ncnn-f32")).data, "float32")
    assert work.macs == read_workload("onnx", workspace.float_model("onnx").data, "float32").macs
    assert work.weights == 81 + 12
    assert not work.unknown


def test_memory_and_needs_are_known(workspace):
    data = workspace.make(recipe("ncnn-f32")).data
    assert memory_bytes("ncnn", data) > len(data)
    assert {use.op for use in read_needs("ncnn", data).ops} >= {"Convolution", "Softmax"}
    assert size_breakdown("ncnn", data).other_weights == 4 * 97 + 8


def test_a_layer_that_ncnn_lacks_is_named(tmp_path):
    path = saved(tmp_path, [helper.make_node("Erf", ["x"], ["e"]), helper.make_node("Det", ["e"], ["y"])], [3, 3], [])
    with pytest.raises(ConversionError, match=r"net\.onnx") as raised:
        Workspace(load(path, LoadOptions())).make(recipe("ncnn-f32"))
    assert raised.value.do


def test_whole_numbers_are_refused_before_pnnx_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(ncnn_float, "_run", lambda *_: pytest.fail("pnnx ran"))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    path = saved(tmp_path, nodes, [4], [4], kind=TensorProto.INT32)
    with pytest.raises(ConversionError, match=r"ncnn takes and gives 32-bit floats of 1 to 4 axes; 'x' is int32"):
        Workspace(load(path, LoadOptions())).make(recipe("ncnn-f32"))


def test_without_pnnx_the_command_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(ncnn_float, "find_pnnx", lambda: None)
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [4], [4])
    with pytest.raises(MissingToolsError, match=r"needs the package pnnx.* pip install --no-deps pnnx"):
        Workspace(load(path, LoadOptions())).make(recipe("ncnn-f32"))


@pytest.fixture
def relu(tmp_path):
    return Workspace(load(saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [4], [4]), LoadOptions()))


def test_answers_that_differ_are_refused(relu, monkeypatch):
    lines = ["7767517", "2 2", "Input i 0 1 in0", "Sigmoid s 1 1 in0 out0", ""]
    monkeypatch.setattr(ncnn_float, "_run", lambda *_: ("\n".join(lines), b""))
    with pytest.raises(ConversionError, match="other answers: the output 'y' moved by"):
        relu.make(recipe("ncnn-f32"))


def test_a_converter_that_hangs_is_ended(relu, monkeypatch):
    def silent(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(ncnn_float.subprocess, "run", silent)
    with pytest.raises(ConversionError, match="pnnx took longer than 600 s"):
        relu.make(recipe("ncnn-f32"))


def test_pnnx_reaches_no_file_outside_its_folder_and_no_network(tmp_path):
    if missing_parts():
        pytest.skip("this kernel lacks a part of the sandbox")
    work = tmp_path / "work"
    work.mkdir()
    script = (
        "import os, socket, sys\n"
        "from pathlib import Path\n"
        "from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox\n"
        "opened = os.open(sys.executable, os.O_RDONLY)\n"
        "enter_sandbox(Sandbox(writable=[Path(sys.argv[1])], executes=True))\n"
        'code = \'import socket, os\\nfor act in (socket.socket, lambda: open("../other", "w"), os.fork):\\n'
        ' try: act(); print("reached")\\n except OSError as error: print(error.errno)\'\n'
        "os.execve(opened, ['python3', '-S', '-c', code], {})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(work)],
        cwd=work,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["13", "13", "13"], done.stderr
    assert not (tmp_path / "other").exists()


def test_a_sandbox_that_executes_nothing_starts_no_program():
    if missing_parts():
        pytest.skip("this kernel lacks a part of the sandbox")
    script = (
        "import os, sys\nfrom edgekit_converters.sources.sandbox import Sandbox, enter_sandbox\n"
        "opened = os.open(sys.executable, os.O_RDONLY)\nenter_sandbox(Sandbox())\n"
        "try: os.execve(opened, ['python3', '-c', 'print(1)'], {})\nexcept OSError as error: print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["13"], done.stderr

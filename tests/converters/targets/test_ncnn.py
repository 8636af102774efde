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
from edgekit_converters.formats.ncnn_graph import NcnnGraph
from edgekit_converters.formats.needs import read_needs
from edgekit_converters.formats.workload import memory_bytes, precision_of, read_workload
from edgekit_converters.recipe.artifact import QuantizationPlan, recipe
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.sandbox import missing_parts
from edgekit_converters.targets import ncnn_float
from edgekit_converters.targets.equalise import as_matrix
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


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """A network with every kind of product that ncnn computes in 8 bits, and calibration samples."""
    shapes = {"a": (8, 3, 3, 3), "b": (8, 1, 3, 3), "c": (12, 4, 1, 1), "d": (12, 5)}
    constants = [(name, WORDS.normal(0, 0.3, shape).astype(np.float32)) for name, shape in shapes.items()]
    constants += [("e", WORDS.normal(0, 0.3, 8).astype(np.float32)), ("f", np.zeros(5, np.float32))]
    nodes = [
        helper.make_node("Conv", ["x", "a", "e"], ["1"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["3"], group=8, strides=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("Conv", ["3", "c"], ["4"], group=2), helper.make_node("GlobalAveragePool", ["4"], ["5"]),
        helper.make_node("Flatten", ["5"], ["6"]), helper.make_node("Gemm", ["6", "d", "f"], ["y"]),
    ]  # fmt: skip
    path = saved(tmp_path_factory.mktemp("products"), nodes, [3, 10, 10], [5], constants)
    samples = [[array] for array in WORDS.random((24, 1, 3, 10, 10), np.float32)]
    return Workspace(load(path, LoadOptions()), samples)


def test_8_bits_answer_nearly_as_floats(products):
    made = products.make(recipe("ncnn-int8"))
    grouped = 12 * 4 * 25  # ncnn has no sound kernel for it
    assert (made.quantized_macs, made.samples) == (
        pytest.approx(1 - grouped / (8 * 27 * 100 + 72 * 25 + grouped + 60)),
        24,
    )
    assert precision_of("ncnn", made.data) == "int8"
    whole = products.make(recipe("ncnn-f32")).data
    assert len(made.data) < len(whole)
    items = [[array] for array in WORDS.random((16, 1, 3, 10, 10), np.float32)]
    with load_engine("ncnn", made.data) as eight, load_engine("ncnn", whole) as floats:
        got, want = (np.concatenate([engine.run(item)[0] for item in items]) for engine in (eight, floats))
    assert 0 < np.abs(got - want).max() < 0.05 * np.ptp(want)


def test_layers_that_stay_in_float_keep_their_weights(products):
    graph = products.graph("ncnn")
    kept, *others = [layer for layer in graph.layers if layer.weight is not None]
    plan = QuantizationPlan(float_layers=frozenset({kept.name}))
    made = NcnnGraph(products.make(recipe("ncnn-int8-mixed"), plan).data)
    assert np.array_equal(made.constant(kept.weight), graph.constant(kept.weight))
    assert kept.inputs[0] not in made.grids
    for layer in (layer for layer in others if layer.window is None or layer.window.groups != 2):
        values, steps = graph.constant(layer.weight), made.constant(layer.weight)
        assert 0 < np.abs(values - steps).max() <= np.abs(values).max() / 254 * 1.001
        assert layer.inputs[0] in made.grids


def test_its_graph_computes_what_its_layers_say(products):
    """Kernel, window and bias of each layer, on the watched input, give the watched output."""
    graph = products.graph("ncnn")
    named = {layer.bias: np.full(graph.constant(layer.bias).shape, 0.1) for layer in graph.layers if layer.bias}
    graph = graph.with_constants(named)
    with graph.watch() as watched:
        seen = watched.run([WORDS.random((1, 3, 10, 10), np.float32)])
    assert set(seen) == set(graph.tensors)
    matrices = [matrix for layer in graph.layers if (matrix := as_matrix(graph, layer)) is not None]
    assert [matrix.groups for matrix in matrices] == [1, 8, 2, 1]
    for matrix in matrices:
        layer = matrix.layer
        patches = matrix.patches(seen[layer.inputs[0]], 10_000, WORDS)
        made = matrix.weights(graph.constant(layer.weight)) @ patches.transpose(0, 2, 1)
        made = made.reshape(seen[layer.outputs[0]].shape[1:]) + (0.1 if layer.bias else 0.0)
        made = np.maximum(made, 0) if layer.fused == "relu" else made
        np.testing.assert_allclose(seen[layer.outputs[0]][0], made, atol=1e-5)


def test_a_network_without_products_has_no_8_bits(relu):
    with pytest.raises(ConversionError, match="none of the model's layers has an 8-bit kernel: Input, ReLU"):
        relu.make(recipe("ncnn-int8"))


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

"""A float16 ONNX file is a model in float32, everywhere in its graph, and answers as the file does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import checked_onnx, float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert

HALF, FLOAT, BOOL = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BOOL
RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((16, 4)).astype(np.float16)


def value(name: str, dtype: int, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def half(*values: float):
    return numpy_helper.from_array(np.array(values, np.float16), "")


def branch(name: str, factor: float):
    """A graph inside a node: y = l * factor."""
    nodes = [
        helper.make_node("Constant", [], [f"{name}_k"], value=half(factor)),
        helper.make_node("Mul", ["l", f"{name}_k"], [name]),
    ]
    return helper.make_graph(nodes, name, [], [value(name, HALF, None)])


def net(nodes, *, ends=HALF, opset: int = 17):
    """x [N, 16] -> y [N, 4], with the half weights `kernel`."""
    initializers = [numpy_helper.from_array(KERNEL, "kernel")]
    graph = helper.make_graph(nodes, "net", [value("x", ends, ["N", 16])], [value("y", ends, ["N", 4])], initializers)
    graph.value_info.append(value("l", HALF, ["N", 4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


PRODUCT = helper.make_node("MatMul", ["x", "kernel"], ["l"])
NETS = {
    "weights": [helper.make_node("MatMul", ["x", "kernel"], ["y"])],
    "a constant node": [
        PRODUCT,
        helper.make_node("Constant", [], ["k"], value=half(3.0)),
        helper.make_node("Mul", ["l", "k"], ["y"]),
    ],
    "a filled tensor": [
        PRODUCT,
        helper.make_node("Shape", ["l"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["f"], value=half(2.0)),
        helper.make_node("Add", ["l", "f"], ["y"]),
    ],
    "a cast": [
        PRODUCT,
        helper.make_node("Cast", ["l"], ["w"], to=FLOAT),
        helper.make_node("Softmax", ["w"], ["p"]),
        helper.make_node("Cast", ["p"], ["y"], to=HALF),
    ],
    "inner graphs": [
        PRODUCT,
        helper.make_node("ReduceSum", ["l"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["c"], to=BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("then", 2.0), else_branch=branch("other", 3.0)),
    ],
}


@pytest.mark.parametrize("nodes", NETS.values(), ids=NETS)
def test_a_float16_file_is_a_float32_model_that_answers_as_the_file_does(tmp_path: Path, nodes) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(nodes), path)
    source = load(path)
    assert {spec.dtype for spec in (*source.inputs, *source.outputs)} == {"float32"}
    assert [note.code for note in source.notes] == ["float16-weights"]
    x = float_onnx.random_inputs(source.inputs, 3, seed=4)[0].astype(np.float16)
    with load_engine("onnx", path.read_bytes(), engine="onnxruntime") as original:
        want = original.run([x])[0].astype(np.float32)
    np.testing.assert_allclose(source.predict([x])[0], want, atol=0.02, rtol=0.01)
    graph = onnx.load_from_string(source.onnx()).graph
    assert HALF not in {tensor.data_type for tensor in graph.initializer}
    with load_engine("onnx", source.onnx(), engine="onnxruntime") as engine:
        np.testing.assert_allclose(engine.run([x.astype(np.float32)])[0], source.predict([x])[0], atol=1e-4)


def test_float16_between_float32_ends_is_widened_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=HALF),
        helper.make_node("MatMul", ["h", "kernel"], ["l"]),
        helper.make_node("Cast", ["l"], ["y"], to=FLOAT),
    ]
    onnx.save(net(nodes, ends=FLOAT), tmp_path / "net.onnx")
    source = load(tmp_path / "net.onnx", LoadOptions(shapes={"x": (1, 16)}))
    x = np.ones((2, 16), np.float32)
    np.testing.assert_allclose(source.predict([x])[0], x @ KERNEL.astype(np.float32), rtol=1e-5)


def test_a_float32_file_is_left_as_it_is() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "net", [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["N", 4])])
    model = helper.make_model(graph)
    before = model.SerializeToString()
    assert checked_onnx.widen(model) == b""
    assert model.SerializeToString() == before


def test_a_graph_that_lives_by_float16s_rounding_is_refused(tmp_path: Path) -> None:
    """x + 60000, told to be float16, less 60000 is a multiple of 32, and x itself in float32."""
    large = numpy_helper.from_array(np.array([60000.0], np.float32), "")
    nodes = [
        helper.make_node("Constant", [], ["k"], value=large),
        helper.make_node("Add", ["x", "k"], ["a"]),
        helper.make_node("Cast", ["a"], ["h"], to=HALF),
        helper.make_node("Cast", ["h"], ["w"], to=FLOAT),
        helper.make_node("Sub", ["w", "k"], ["s"]),
        helper.make_node("Cast", ["kernel"], ["kernel_32"], to=FLOAT),
        helper.make_node("MatMul", ["s", "kernel_32"], ["y"]),
    ]
    onnx.save(net(nodes, ends=FLOAT), tmp_path / "net.onnx")
    with pytest.raises(SourceError, match="its float16 cannot be widened to float32: output 0 is"):
        load(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([[1.0, 2.0]], [[1.001, 2.0]], ""),
        ([[1.0, 2.0]], [[1.1, 2.0]], "output 0 is 0.1 off"),
        ([[1.0, 2.0]], [[np.nan, 2.0]], "output 0 is nan off"),
        ([[np.inf, 2.0]], [[70000.0, 3.0]], ""),
        ([[1.0, 2.0]], [[1.0]], "output 0 is [1, 1] and not [1, 2]"),
    ],
)
def test_answers_are_compared_as_far_as_float16_can_tell(before, after, says: str) -> None:
    assert checked_onnx.differs([np.array(before, np.float16)], [np.array(after, np.float32)]) == says

"""The one reader of .onnx files: its views of a graph, its edits, and that no other module decodes one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import ConversionError

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.formats.onnx_file import (
    FoldedView,
    GraphView,
    constants,
    new_constant,
    new_node,
    nodes,
    parse,
    reads,
    replace_values,
    tensors,
)

ROOT = Path(__file__).parents[3]


def branching():
    """y = x + a where `flag`, else x - b; a is a weight, b a Constant node in the branch."""
    value = helper.make_tensor_value_info
    one = numpy_helper.from_array(np.ones(3, np.float32), "one")
    plus = helper.make_graph(
        [new_node("Add", ["x", "a"], ["p"])], "plus", [], [value("p", TensorProto.FLOAT, [None, 3])]
    )
    minus = helper.make_graph(
        [new_node("Constant", [], ["b"], value=one), new_node("Sub", ["x", "b"], ["m"])],
        "minus",
        [],
        [value("m", TensorProto.FLOAT, [None, 3])],
    )
    choice = new_node("If", ["flag"], ["y"], then_branch=plus, else_branch=minus)
    graph = helper.make_graph(
        [choice, new_node("Relu", ["y"], ["z"])],
        "net",
        [value("x", TensorProto.FLOAT, ["n", 3]), value("flag", TensorProto.BOOL, [])],
        [value("z", TensorProto.FLOAT, ["n", 3])],
        [new_constant("a", np.zeros(3, np.float32))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_a_branch_names_is_read_by_its_node_and_walked_behind_it():
    model = branching()
    view = GraphView(model)
    assert [node.op_type for node in nodes(model.graph)] == ["If", "Constant", "Sub", "Add", "Relu"]
    assert {"flag", "x", "a", "b"} <= set(reads(view.nodes[0]))
    assert [node.op_type for node in view.users("x")] == ["If"]
    assert view.only_user("y").op_type == "Relu"
    assert view.only_user("z") is None
    assert sorted(tensor.name for tensor in tensors(model)) == ["a", "one"]


def test_shapes_are_known_as_far_as_they_follow():
    view = GraphView(branching())
    assert (view.inputs, view.outputs) == (("x", "flag"), ("z",))
    assert (view.shape("x"), view.shape("a"), view.shape("z")) == ((-1, 3), (3,), (-1, 3))
    assert view.shape("nothing") is None
    assert (view.is_float("x"), view.is_float("flag"), view.kind("nothing")) == (True, False, 0)


def test_integers_behind_dequantizelinear_are_a_constant_in_the_folded_view():
    value = helper.make_tensor_value_info
    weights = {"w": np.array([[1, -2], [3, 4]], np.int8), "scale": np.float32(0.5), "zero": np.int8(0)}
    graph = helper.make_graph(
        [new_node("DequantizeLinear", ["w", "scale", "zero"], ["f"]), new_node("MatMul", ["x", "f"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, [1, 2])],
        [value("y", TensorProto.FLOAT, [1, 2])],
        [new_constant(name, np.asarray(array)) for name, array in weights.items()],
    )
    view = FoldedView(helper.make_model(graph))
    assert [node.op_type for node in view.layers] == ["MatMul"]
    np.testing.assert_array_equal(view.constants["f"].array(), [[0.5, -1], [1.5, 2]])
    view.constants["f"].overwrite(np.array([[2, 2], [2, 2]], np.float32))
    assert dict(constants(view.graph))["w"].dims == [2, 2]
    np.testing.assert_array_equal(view.constants["f"].array(), [[2, 2], [2, 2]])


def test_a_field_is_replaced_by_some_of_its_own_items():
    model = branching()
    replace_values(model.graph.node, list(model.graph.node)[::-1])
    assert [node.op_type for node in model.graph.node] == ["Relu", "If"]


@pytest.mark.parametrize(
    "data", [b"", b"no model", helper.make_model(helper.make_graph([], "", [], [])).SerializeToString()]
)
def test_what_is_no_model_or_computes_nothing_is_refused(data: bytes):
    with pytest.raises(ConversionError, match="not an ONNX model"):
        parse(data)


def test_no_other_module_decodes_a_model_or_its_tensors():
    decodes = re.compile(r"load_model_from_string|onnx\.load\b|load_from_string|numpy_helper|ModelProto\.FromString")
    rooms = [ROOT / "converters", ROOT / "edgekit"]
    found = {
        str(path.relative_to(ROOT)).removeprefix("converters/edgekit_converters/")
        for room in rooms
        for path in room.rglob("*.py")
        if decodes.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"formats/onnx_file.py"}

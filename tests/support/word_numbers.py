"""A network that takes word numbers, as exporters of transformers write it."""

from __future__ import annotations

from onnx import TensorProto, helper


def words() -> bytes:
    """Word numbers of 64 bits, looked up and added up: an embedding as exporters write it."""
    table = helper.make_tensor("table", TensorProto.FLOAT, (4, 3), [0.5] * 12)
    sides = helper.make_tensor("sides", TensorProto.INT64, (2,), [1, -1])
    nodes = [
        helper.make_node("Add", ["words", "words"], ["twice"]),
        helper.make_node("Gather", ["table", "twice"], ["looked"]),
        helper.make_node("Reshape", ["looked", "sides"], ["y"]),
    ]
    given = helper.make_tensor_value_info("words", TensorProto.INT64, ("batch", "length"))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, None))
    graph = helper.make_graph(nodes, "words", [given], [made], [table, sides])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

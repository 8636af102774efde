"""How an ONNX graph is made ready for onnx2tf."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.targets.onnx_to_tf import _complaint, _drop_whole_slices, _plain_names

pytestmark = pytest.mark.convert

FAR = 2**31 - 1


def sliced(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Any:
    """x [?, 8, 4] -> Relu -> Slice -> Relu."""
    arguments = zip("saep", (starts, axes, ends, steps), strict=True)
    weights = [numpy_helper.from_array(np.array(values, np.int64), name) for name, values in arguments]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("Slice", ["r", "s", "e", "a", "p"], ["t"], name="Slice@0"),
        helper.make_node("Relu", ["t"], ["y"], name="first"),
    ]
    ends_of = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends_of[:1], ends_of[1:], weights)
    return onnx.shape_inference.infer_shapes(helper.make_model(graph)).graph


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "dropped"),
    [
        ([0, 0], [8, FAR], [1, 2], [1, 1], True),
        ([0], [FAR], [0], [1], True),  # all of an axis whose size is not known
        ([0], [8], [0], [1], False),
        ([0], [7], [1], [1], False),
        ([1], [FAR], [1], [1], False),
        ([0], [8], [1], [2], False),
        ([-1], [-FAR], [1], [-1], False),  # the order turned round keeps the shape
    ],
)
def test_a_slice_is_dropped_only_when_it_takes_everything(starts, ends, axes, steps, dropped: bool) -> None:
    graph = sliced(starts, ends, axes, steps)
    _drop_whole_slices(graph)
    assert [node.op_type for node in graph.node] == (["Relu", "Relu"] if dropped else ["Relu", "Slice", "Relu"])
    assert graph.node[-1].input[0] == ("r" if dropped else "t")


def test_operators_get_names_that_tensorflow_takes_each_its_own() -> None:
    graph = sliced([0], [7], [1], [1])
    _plain_names(graph)
    names = [node.name for node in graph.node]
    assert names == ["first", "Slice_0", "first_1"]


def test_what_python_raised_is_the_complaint() -> None:
    text = "INFO: start\nERROR: The trace log is below.\nTraceback (most recent call last):\nValueError: no such axis\n"
    assert _complaint(text) == "ValueError: no such axis"
    assert _complaint("ERROR: OP is not supported\n") == "OP is not supported"
    assert _complaint("") == "it ended without a word"
    crash = "F0000 Check failed: a == b\n*** Check failure stack trace: ***\n    @     0x7f6a2cbc1461  (unknown)\n"
    assert _complaint(crash) == "F0000 Check failed: a == b"

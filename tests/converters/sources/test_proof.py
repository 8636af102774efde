"""What a conversion is proved with, and when two answers agree."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from linear import linear
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.formats.onnx_file import array, parse
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.float_onnx import agreement
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.targets.onnx_to_tf import _FailedError, _output_axes
from edgekit_converters.targets.onnx_to_tf_worker import output_name
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import EdgekitError

pytestmark = pytest.mark.convert


def saved(path: Path, nodes: list, constants: dict, batch: int | str = "N") -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 4]) for name in "xy"]
    weights = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("batch", ["N", 1])
@pytest.mark.parametrize("first", ["Log", "Sqrt", "Pow"])
def test_a_spectrum_is_converted_though_half_of_all_random_numbers_have_no_answer(
    tmp_path: Path, first: str, batch: int | str
) -> None:
    inputs = ["x", "power"] if first == "Pow" else ["x"]
    nodes = [helper.make_node(first, inputs, ["h"]), helper.make_node("Div", ["h", "spread"], ["y"])]
    constants = {"power": 0.3, "spread": [0.1, 2, 3, 4]}
    source = load(saved(tmp_path / "net.onnx", nodes, constants, batch))
    float_model = Workspace(source).float_model("onnx").data
    assert [node.op_type for node in parse(float_model).graph.node] == [first, "Mul"]  # the rewritten graph, proved too
    spectrum = np.random.default_rng(1).uniform(0.1, 9, (1, 4)).astype(np.float32)
    with load_engine("onnx", float_model) as engine:
        np.testing.assert_allclose(engine.run([spectrum])[0], source.predict([spectrum])[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("given", [False, True])
def test_a_rewriting_is_proved_with_the_items_that_a_workspace_has(tmp_path: Path, monkeypatch, given: bool) -> None:
    """A folding that goes wrong above 100, where no random number is."""
    clip = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    source = load(saved(tmp_path / "net.onnx", clip, {"low": 0, "high": 1000}))

    def wrong(model):
        model = onnx.ModelProto.FromString(model.SerializeToString())
        model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(100), "high"))
        return model

    monkeypatch.setattr(float_onnx, "slim", wrong)
    items = [[np.full((1, 4), level, np.float32)] for level in (1, 500, 20)]
    made = parse(Workspace(source, items if given else None).float_model("onnx").data)
    assert float(array(made.graph.initializer[1])) == (1000 if given else 100)


@pytest.mark.slow
def test_the_items_reach_a_model_that_was_opened_behind_the_wall(digits_model) -> None:
    from edgekit_converters.sources.isolated import open_isolated

    there = open_isolated(digits_model.model, LoadOptions())
    items = [[item[None]] for item in np.load(digits_model.calibration)["x"][:6]]
    there.items[:] = [items[0][0].astype(np.float64)[:, :4]]  # no item of this model
    with pytest.raises(EdgekitError):
        there.float_model("onnx", 1)
    there.items.clear()
    Workspace(there, items).float_model("onnx")
    np.testing.assert_array_equal(there.items[0], np.concatenate([item for [item] in items[:4]]))


def test_two_answers_agree_within_a_thousandth_of_the_largest_whatever_its_size() -> None:
    answer = np.array([[1.0, -3.0], [2.0, 0.5]])
    for scale in (1e-4, 1, 1e6):
        assert agreement(scale * answer * 1.0005, scale * answer) == 0
        assert agreement(scale * answer * 1.01, scale * answer) == pytest.approx(0.03 * scale)
    assert agreement(answer[:1], answer) == np.inf


def test_a_nan_agrees_with_a_nan_and_with_nothing_else() -> None:
    answer = np.array([1.0, np.nan, np.inf])
    assert agreement(answer.copy(), answer) == 0
    for other in ([1.0, 2.0, np.inf], [np.nan, np.nan, np.inf], [1.0, np.nan, -np.inf], [1.0, np.nan, 3.0]):
        assert agreement(np.array(other), answer) == np.inf


@pytest.mark.parametrize("right", [False, True])
def test_tensorflow_code_with_other_answers_is_refused_though_they_are_small(right: bool) -> None:
    source = linear(weights=np.full((4, 3), 1e-5))
    source.items[:] = [np.random.default_rng(0).uniform(0, 1, (4, 4)).astype(np.float32)]
    found = SimpleNamespace(infer=lambda x: {output_name(0): (1 if right else 0.3) * source.predict([x])[0]})
    if right:
        assert _output_axes(source, found, frozenset(), 1) == [None]
    else:
        with pytest.raises(_FailedError, match="other answers"):
            _output_axes(source, found, frozenset(), 1)

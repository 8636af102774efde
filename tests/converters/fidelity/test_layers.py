"""A float ONNX graph against copies of it that were damaged in one known place; the engine is real."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit_converters.fidelity.layers import layer_errors, layer_histograms, worst
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.conversion_errors import CalibrationError

FEEDS = [[np.random.default_rng(seed).normal(size=(1, 64)).astype(np.float32)] for seed in range(4)]


def chain(*, rounded: str | None = None, levels: int = 256, rename=None):
    """x -> MatMul -> h -> Relu -> r -> MatMul -> y.

    rounded: the tensor that is quantized and dequantized on its way.
    """
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(7)
    weights = {name: generator.normal(size=(64, 64)).astype(np.float32) for name in ("w1", "w2")}
    h = (rename or {}).get("h", "h")
    nodes = [("MatMul", ["x", "w1"], h), ("Relu", [h], "r"), ("MatMul", ["r", "w2"], "y")]
    made = []
    for op, inputs, output in nodes:
        made.append(helper.make_node(op, [f"{n}_q" if n == rounded else n for n in inputs], [output]))
        if output == rounded:
            made.append(helper.make_node("QuantizeLinear", [output, "scale", "zero"], ["codes"]))
            made.append(helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], [f"{output}_q"]))
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    constants.append(numpy_helper.from_array(np.float32(64 * 256 / levels / 256), "scale"))
    constants.append(numpy_helper.from_array(np.int8(0), "zero"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        made,
        "chain",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 64])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return open_graph("onnx", model.SerializeToString())


def test_what_the_grid_costs_by_itself_is_tried_on_the_float_values():
    exact, cut = (
        {error.layer: error for error in layer_errors(chain(), chain(rounded="r", levels=levels), FEEDS)}["r"]
        for levels in (16, 4096)
    )
    assert exact.cut_sqnr_db is None  # 4 x 127 is above all values
    assert exact.rounded_sqnr_db == pytest.approx(exact.sqnr_db)
    assert (exact.grid_low, exact.grid_high) == (-128 * exact.scale, 127 * exact.scale)
    assert cut.grid_high < cut.float_high
    assert cut.cut_sqnr_db == pytest.approx(cut.sqnr_db, abs=0.1)  # all that is lost is lost at the ends


def test_values_that_lie_on_a_grid_by_chance_are_float_where_the_file_has_no_integers():
    whole = [[np.rint(feed[0])] for feed in FEEDS]
    assert not any(error.quantized for error in layer_errors(chain(), chain(), whole))


def test_a_layer_stands_where_it_stands_in_the_float_graph_whatever_the_artifact_shows_of_it():
    all_of_it = layer_errors(chain(), chain(rounded="r"), FEEDS)
    assert [(error.layer, error.depth) for error in all_of_it] == [("h", 0.0), ("r", 0.5), ("y", 1.0)]
    fused = layer_errors(chain(), chain(rounded="r", rename={"h": "inner"}), FEEDS)
    assert [(error.layer, error.depth) for error in fused] == [("h", 0.0), ("y", 1.0)]


def test_nothing_differs_between_a_graph_and_itself():
    errors = layer_errors(chain(), chain(), FEEDS)
    assert [error.op for error in errors] == ["MatMul", "Relu", "MatMul"]
    assert all(error.sqnr_db is None and error.own_sqnr_db is None and not error.quantized for error in errors)
    assert all(error.fall_db == 0 for error in errors)
    assert worst(errors) == []


def test_the_layer_that_is_rounded_is_the_one_that_is_blamed():
    errors = {error.layer: error for error in layer_errors(chain(), chain(rounded="r"), FEEDS)}
    assert errors["h"].sqnr_db is None
    rounded, after = errors["r"], errors["y"]
    assert rounded.quantized
    assert rounded.scale == pytest.approx(0.25)
    assert rounded.sqnr_db == pytest.approx(rounded.grid_sqnr_db, abs=3)  # half of the values are exact: they are zero
    assert after.inputs_sqnr_db == rounded.sqnr_db
    assert after.fall_db == pytest.approx(0, abs=2)
    assert worst(list(errors.values()))[0].layer == "r"


def test_ranges_of_both_runs_are_told():
    errors = {error.layer: error for error in layer_errors(chain(), chain(rounded="r", levels=16), FEEDS)}
    relu = errors["r"]
    assert relu.float_low == relu.quantized_low == 0
    assert relu.float_high == pytest.approx(relu.quantized_high, abs=4)
    assert relu.middle_low <= relu.middle_high <= relu.float_high * 1.01
    assert relu.values == 64


def test_only_the_first_samples_are_run():
    told = []
    layer_errors(chain(), chain(), FEEDS, 2, lambda stage, done, total: told.append((stage, done, total)))
    assert told == [("comparing layers", 1, 2), ("comparing layers", 2, 2)]


def test_without_a_sample_there_is_nothing_to_tell():
    with pytest.raises(CalibrationError, match="no sample"):
        layer_errors(chain(), chain(), [])


def test_histograms_count_every_value_of_both_in_the_same_bins():
    original, rounded = chain(), chain(rounded="r", levels=16)
    errors = worst(layer_errors(original, rounded, FEEDS), 1)
    (found,) = layer_histograms(original, rounded, FEEDS, errors, bins=32)
    assert found.layer == "r"
    assert len(found.edges) == 33
    assert list(found.edges) == sorted(found.edges)
    assert sum(found.original) == sum(found.quantized) == 4 * 64
    assert sum(count > 0 for count in found.quantized) < sum(count > 0 for count in found.original)
    assert math.isclose(found.edges[0], 0)


def test_an_activation_that_a_quantizer_fused_into_its_layer_is_seen_at_the_layer():
    """Only `r` is left of MatMul and Relu in the quantized file: the MatMul has to answer for it."""
    without_h = chain(rounded="r", rename={"h": "inner"})
    errors = layer_errors(chain(), without_h, FEEDS)
    assert [(error.layer, error.tensor) for error in errors] == [("h", "r"), ("y", "y")]
    assert errors[0].quantized
    assert errors[0].kind == "dense"


@pytest.mark.filterwarnings("error")
def test_an_attention_mask_of_minus_infinity_is_a_large_number():
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    mask = np.where(np.arange(64) < 32, 0, -np.inf).astype(np.float32)
    nodes = [helper.make_node("Add", ["x", "mask"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    ends = ([value("x", TensorProto.FLOAT, [1, 64])], [value("y", TensorProto.FLOAT, [1, 64])])
    made = helper.make_graph(nodes, "masked", *ends, [numpy_helper.from_array(mask, "mask")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    graph = open_graph("onnx", model.SerializeToString())
    for error in layer_errors(graph, graph, FEEDS):
        assert error.sqnr_db is None
        assert math.isfinite(error.float_low)

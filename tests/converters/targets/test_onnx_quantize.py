"""What ONNX recipes make of small graphs: which operators run in 8 bits in ONNX Runtime, and that the answers stay."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.data.statistics import observe
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.formats.onnx_file import GraphView
from edgekit_converters.formats.workload import quantized_fraction
from edgekit_converters.recipe.artifact import RECIPES, FloatModel, QuantizationPlan
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.targets.onnx_float import apply_edits
from edgekit_converters.targets.onnx_qdq import int8_layers, step
from edgekit_converters.targets.onnx_quantize import make
from edgekit_runtime.engines.registry import load_engine

RNG = np.random.default_rng(0)
QUANTIZED = ("onnx-int8-qdq", "onnx-int8-qdq-symmetric", "onnx-int8-qdq-mixed")


def net(nodes: list[Any], weights: dict[str, Any], shape: tuple[int, ...], out: str = "y", dtype: int = 1) -> Any:
    """A model of one input `x` [N, *shape] and one output."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", dtype, ["N", *shape])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normal(*shape: int, scale: float = 0.2) -> Any:
    return RNG.normal(0, scale, shape).astype(np.float32)


@functools.cache
def mobile() -> Any:
    """First convolution, hard swish spelt out, depthwise, squeeze-excite, a residual sum, mean, dense, softmax."""
    node = helper.make_node
    weights = {
        "w1": normal(16, 3, 3, 3),
        "b1": normal(16),
        "w2": normal(16, 1, 3, 3),
        "w3": normal(4, 16, 1, 1),
        "w4": normal(16, 4, 1, 1),
        "w5": normal(16, 16, 3, 3),
        "w6": normal(16, 70),
        "b6": normal(70),
        "three": np.float32(3),
        "zero": np.float32(0),
        "six": np.float32(6),
        "axes": np.array([2, 3]),
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("Add", ["c1", "three"], ["a1"]),
        node("Clip", ["a1", "zero", "six"], ["k1"]),
        node("Mul", ["c1", "k1"], ["m1"]),
        node("Div", ["m1", "six"], ["h1"]),
        node("Conv", ["h1", "w2"], ["c2"], pads=[1] * 4, group=16),
        node("HardSwish", ["c2"], ["h2"]),
        node("GlobalAveragePool", ["h2"], ["g"]),
        node("Conv", ["g", "w3"], ["c3"]),
        node("Relu", ["c3"], ["r3"]),
        node("Conv", ["r3", "w4"], ["c4"]),
        node("HardSigmoid", ["c4"], ["s"], alpha=0.2, beta=0.5),
        node("Mul", ["h2", "s"], ["e"]),
        node("Conv", ["e", "w5"], ["c5"], pads=[1] * 4),
        node("Add", ["c5", "h1"], ["sum"]),
        node("ReduceMean", ["sum"], ["mean"], axes=[2, 3], keepdims=0),
        node("MatMul", ["mean", "w6"], ["mm"]),
        node("Add", ["mm", "b6"], ["logits"]),
        node("Softmax", ["logits"], ["y"]),
    ]
    return net(nodes, weights, (3, 12, 12))


def float_model(model: Any) -> FloatModel:
    better = apply_edits(model)
    return FloatModel("onnx", better.SerializeToString(deterministic=True), ("x",), ("y",), {})


def samples(count: int = 40, shape: tuple[int, ...] = (3, 12, 12)) -> list[list[Any]]:
    return [[RNG.normal(0, 1, (1, *shape)).astype(np.float32)] for _ in range(count)]


def statistics(model: FloatModel, feeds: list[list[Any]]) -> Any:
    return observe(open_graph("onnx", model.data), feeds, len(feeds))


def run(data: bytes, arrays: list[Any]) -> Any:
    with load_engine("onnx", data, engine="onnxruntime") as engine:
        return engine.run(arrays)[0]


def fused(data: bytes, tmp_path: Path) -> Counter[str]:
    """Operators of the graph as ONNX Runtime runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)


@pytest.fixture(scope="module")
def mobile_model() -> FloatModel:
    return float_model(mobile())


@pytest.fixture(scope="module")
def mobile_statistics(mobile_model: FloatModel) -> Any:
    return statistics(mobile_model, samples())


def test_the_rewritten_graph_computes_the_same_with_fewer_operators(mobile_model: FloatModel) -> None:
    [array] = samples(1)[0]
    before = mobile().SerializeToString()
    np.testing.assert_allclose(run(before, [array]), run(mobile_model.data, [array]), atol=1e-6)
    kinds = Counter(node.op_type for node in onnx.load_model_from_string(mobile_model.data).graph.node)
    assert kinds["HardSigmoid"] == 3  # two hard swishes and the gate of squeeze-excite
    assert kinds["GlobalAveragePool"] == 2
    assert kinds["Gemm"] == 1
    assert not kinds.keys() & {"Div", "Clip", "ReduceMean", "MatMul", "HardSwish", "Constant"}


def test_hard_swish_and_squeeze_excite_run_in_8_bits_without_conversions_in_between(
    mobile_model: FloatModel, mobile_statistics: Any, tmp_path: Path
) -> None:
    data = make(mobile_model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), mobile_statistics)
    kinds = fused(data, tmp_path)
    assert kinds["QLinearConv"] == 4
    assert kinds["Conv"] + kinds["FusedConv"] == 1  # the first one: its 8-bit kernel is the slower
    assert kinds["QGemm"] == 1
    assert kinds["QLinearGlobalAveragePool"] == 2
    assert kinds["HardSigmoid"] == kinds["Mul"] == kinds["Relu"] == kinds["Add"] == 0
    assert kinds["QuantizeLinear"] <= 2


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_answers_stay_close(name: str, method: Any, mobile_model: FloatModel, mobile_statistics: Any) -> None:
    data = make(mobile_model, RECIPES[name], QuantizationPlan(ranges=method), mobile_statistics)
    arrays = [item[0] for item in samples(20)]
    worst = max(float(np.abs(run(data, [a]) - run(mobile_model.data, [a])).max()) for a in arrays)
    assert worst < (0.03 if "symmetric" in name else 0.02)
    macs, weights = quantized_fraction("onnx", data)
    assert macs > 0.4  # the first convolution is half of this little net
    assert weights > 0.7


def test_the_layers_of_the_plan_stay_float_and_the_rest_does_not(
    mobile_model: FloatModel, mobile_statistics: Any, tmp_path: Path
) -> None:
    plan = QuantizationPlan(float_layers=frozenset({"c2", "c5"}))
    data = make(mobile_model, RECIPES["onnx-int8-qdq-mixed"], plan, mobile_statistics)
    kinds = fused(data, tmp_path)
    assert kinds["QLinearConv"] == 2
    assert kinds["Conv"] + kinds["FusedConv"] == 3
    whole = make(mobile_model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), mobile_statistics)
    assert quantized_fraction("onnx", data)[0] < quantized_fraction("onnx", whole)[0]


def test_every_layer_float_is_the_float_model(mobile_model: FloatModel, mobile_statistics: Any) -> None:
    names = frozenset(layer.name for layer in open_graph("onnx", mobile_model.data).layers)
    data = make(mobile_model, RECIPES["onnx-int8-qdq-mixed"], QuantizationPlan(float_layers=names), mobile_statistics)
    [array] = samples(1)[0]
    np.testing.assert_array_equal(run(data, [array]), run(mobile_model.data, [array]))


def test_a_fixed_range_outranks_what_calibration_saw(mobile_model: FloatModel, mobile_statistics: Any) -> None:
    plan = QuantizationPlan(fixed_ranges=(("sum", -2.0, 2.0),))
    model = onnx.load_model_from_string(make(mobile_model, RECIPES["onnx-int8-qdq"], plan, mobile_statistics))
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    quantize = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "sum")
    assert float(scales[quantize.input[1]]) == pytest.approx(4 / 255)


def test_symmetric_activations_have_zero_points_of_0_and_float_biases(
    mobile_model: FloatModel, mobile_statistics: Any
) -> None:
    data = make(mobile_model, RECIPES["onnx-int8-qdq-symmetric"], QuantizationPlan(), mobile_statistics)
    model = onnx.load_model_from_string(data)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    zero_points = [numpy_helper.to_array(tensors[n.input[2]]) for n in pairs]
    assert {array.dtype.name for array in zero_points} == {"int8"}
    assert not any(array.any() for array in zero_points)
    convolution = next(n for n in model.graph.node if n.op_type == "Conv" and len(n.input) == 3)
    assert tensors[convolution.input[2]].data_type == TensorProto.FLOAT


def test_a_quantized_graph_shows_the_float_graphs_tensors(mobile_model: FloatModel, mobile_statistics: Any) -> None:
    data = make(mobile_model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), mobile_statistics)
    graphs = open_graph("onnx", mobile_model.data), open_graph("onnx", data)
    seen = []
    [array] = samples(1)[0]
    for graph in graphs:
        with graph.watch() as watched:
            seen.append(watched.run([array]))
    for name in ("c1", "h1", "h2", "e", "sum", "logits"):
        assert np.corrcoef(seen[0][name].ravel(), seen[1][name].ravel())[0, 1] > 0.99, name


def test_the_same_model_and_plan_give_the_same_bytes(mobile_model: FloatModel, mobile_statistics: Any) -> None:
    for name in (*QUANTIZED, "onnx-int8-dynamic", "onnx-f16", "onnx-f32"):
        given = mobile_statistics if RECIPES[name].needs_calibration else None
        first, second = (make(mobile_model, RECIPES[name], QuantizationPlan(), given) for _ in range(2))
        assert first == second, name


def test_silent_and_constant_inputs_do_not_crash_an_artifact(mobile_model: FloatModel) -> None:
    silent = [[np.zeros((1, 3, 12, 12), np.float32)]] * 4
    data = make(mobile_model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(mobile_model, silent))
    for array in (np.zeros((1, 3, 12, 12), np.float32), np.full((1, 3, 12, 12), 1e6, np.float32)):
        assert np.isfinite(run(data, [array])).all()


def test_a_dead_channel_with_a_bias_keeps_it() -> None:
    weight = normal(8, 8, 1, 1)
    weight[3] = 0
    bias = np.linspace(-4, 4, 8).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    model = float_model(net(nodes, {"w": weight, "b": bias}, (8, 4, 4)))
    feeds = samples(8, (8, 4, 4))
    data = make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(model, feeds))
    np.testing.assert_allclose(run(data, feeds[0]), run(model.data, feeds[0]), atol=0.1)


def test_weights_in_constant_nodes_are_quantized_too() -> None:
    weight = numpy_helper.from_array(normal(16, 16, 3, 3), "w")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
    ]
    model = float_model(net(nodes, {}, (16, 6, 6)))
    feeds = samples(4, (16, 6, 6))
    data = make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(model, feeds))
    assert quantized_fraction("onnx", data) == (1.0, 1.0)


def test_dynamic_stores_convolutions_in_8_bits_and_runs_them_as_fast_as_float(
    mobile_model: FloatModel, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    weights = {"w": normal(32, 16, 3, 3), "v": normal(10, 32 * 36), "b": normal(10)}
    model = float_model(net(nodes, weights, (16, 6, 6)))
    data = make(model, RECIPES["onnx-int8-dynamic"], QuantizationPlan(), None)
    kinds = fused(data, tmp_path)
    assert kinds["ConvInteger"] == kinds["DequantizeLinear"] == kinds["Mul"] == kinds["Cast"] == 0  # folded at loading
    assert kinds["DynamicQuantizeMatMul"] == 1
    assert len(data) < 0.4 * len(model.data)
    macs, stored = quantized_fraction("onnx", data)
    assert stored > 0.99  # scales are no weights
    assert 0 < macs < 0.1  # the convolution runs in float, and nothing says otherwise
    [array] = samples(1, (16, 6, 6))[0]
    want = run(model.data, [array])
    assert np.abs(run(data, [array]) - want).max() < 0.03 * np.abs(want).max()


def test_embedding_tables_are_stored_in_8_bits_a_scale_a_row() -> None:
    table = normal(100, 16) * np.logspace(-2, 1, 100, dtype=np.float32)[:, None]
    nodes = [
        helper.make_node("Gather", ["t", "x"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    model = float_model(net(nodes, {"t": table, "w": normal(16, 70)}, (12,), dtype=TensorProto.INT32))
    feeds = [[RNG.integers(0, 100, (1, 12)).astype(np.int32)] for _ in range(30)]
    for name in ("onnx-int8-qdq", "onnx-int8-dynamic"):
        data = make(model, RECIPES[name], QuantizationPlan(), statistics(model, feeds))
        assert quantized_fraction("onnx", data)[1] > 0.95, name
        want = run(model.data, feeds[0])
        assert np.abs(run(data, feeds[0]) - want).max() < 0.05 * max(1, np.abs(want).max()), name


def test_where_nothing_can_be_quantized_the_error_says_so() -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Softmax", ["t"], ["y"])]
    model = float_model(net(nodes, {}, (4,)))
    feeds = samples(2, (4,))
    with pytest.raises(ConversionError, match="nothing in it can be quantized"):
        make(model, RECIPES["onnx-int8-dynamic"], QuantizationPlan(), None)
    with pytest.raises(ConversionError, match=r"8-bit kernel: Softmax, Tanh"):
        make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(model, feeds))


def test_float16_halves_the_file_and_keeps_float32_at_its_ends(mobile_model: FloatModel) -> None:
    data = make(mobile_model, RECIPES["onnx-f16"], QuantizationPlan(), None)
    model = onnx.load_model_from_string(data)
    assert {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} == {TensorProto.FLOAT}
    assert {t.data_type for t in model.graph.initializer if len(t.dims) > 1} == {TensorProto.FLOAT16}
    [array] = samples(1)[0]
    np.testing.assert_allclose(run(data, [array]), run(mobile_model.data, [array]), atol=0.01)


def test_no_recipe_needs_sympy(
    mobile_model: FloatModel, mobile_statistics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    for recipe in RECIPES.values():
        if recipe.format == "onnx":
            assert make(mobile_model, recipe, QuantizationPlan(), mobile_statistics)


def test_ir_and_opset_are_what_boards_take(mobile_model: FloatModel, mobile_statistics: Any) -> None:
    for recipe in RECIPES.values():
        if recipe.format == "onnx":
            model = onnx.load_model_from_string(make(mobile_model, recipe, QuantizationPlan(), mobile_statistics))
            assert model.ir_version <= 10, recipe.name
            assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", 17)}, recipe.name


STEPS = {
    "positive": ((0.5, 2.0), (2.0 / 255, 0)),
    "negative": ((-2.0, -0.5), (2.0 / 255, 255)),
    "around zero": ((-1.0, 1.55), (0.01, 100)),
    "no width": ((0.0, 0.0), (1.0, 0)),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_holds_zero_exactly(case: str) -> None:
    (low, high), (scale, zero_point) = STEPS[case]
    got = step(low, high, symmetric=False)
    assert got.scale == pytest.approx(scale, rel=1e-6)
    assert got.zero_point == zero_point
    assert step(low, high, symmetric=True).zero_point == 0


def test_what_has_no_8_bit_kernel_is_not_wrapped_in_conversions() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Tanh", ["c"], ["t"]),
        helper.make_node("Add", ["t", "t"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"]),
    ]
    view = GraphView(net(nodes, {"w": normal(8, 8, 1, 1)}, (8, 4, 4)))
    assert int8_layers(view, {"x", "c", "t", "a", "y"}).int8 == {"c"}


def test_a_first_convolution_stays_float_where_other_layers_do_most_of_the_work() -> None:
    behind = helper.make_node("Conv", ["c", "v"], ["y"], pads=[1] * 4)
    first = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4)
    weights = {"w": normal(16, 3, 3, 3), "v": normal(32, 16, 3, 3)}
    assert int8_layers(GraphView(net([first, behind], weights, (3, 8, 8))), {"x", "c", "y"}).int8 == {"y"}
    alone = net([first], {"w": weights["w"]}, (3, 8, 8), out="c")
    assert int8_layers(GraphView(alone), {"x", "c"}).int8 == {"c"}


def split_net(case: str) -> Any:
    """A convolution, its output split in two, and what reads the second part."""
    node = helper.make_node
    weights = {
        "w1": normal(16, 8, 3, 3),
        "w2": normal(8, 8, 3, 3),
        "w3": normal(8, 24, 1, 1),
        "parts": np.array([8, 8]),
    }
    reads: dict[str, list[Any]] = {
        "Conv": [node("Conv", ["p2", "w2"], ["d"], pads=[1] * 4), node("Add", ["d", "p1"], ["y"])],
        "Add": [node("Add", ["p2", "p1"], ["a"]), node("Conv", ["a", "w2"], ["y"], pads=[1] * 4)],
        "Concat": [
            node("Conv", ["p2", "w2"], ["d"], pads=[1] * 4),
            node("Concat", ["p1", "p2", "d"], ["e"], axis=1),
            node("Conv", ["e", "w3"], ["y"]),
        ],
        "float": [node("Tanh", ["p1"], ["t"]), node("Conv", ["p2", "w2"], ["d"], pads=[1] * 4),
            node("Add", ["d", "t"], ["y"])],
        "end": [node("Conv", ["p1", "w2"], ["d"], pads=[1] * 4), node("Mul", ["d", "d"], ["m"]),
            node("Concat", ["p2", "m"], ["y"], axis=1)],
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1"], ["c"], pads=[1] * 4),
        node("Split", ["c", "parts"], ["p1", "p2"], axis=1),
        *reads[case],
    ]
    return net(nodes, weights, (8, 6, 6))


@pytest.mark.parametrize("case", ["Conv", "Add", "Concat", "float", "end"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_every_part_of_a_split_is_quantized(name: str, case: str) -> None:
    model = float_model(split_net(case))
    feeds = samples(20, (8, 6, 6))
    data = make(model, RECIPES[name], QuantizationPlan(), statistics(model, feeds))
    assert quantized_fraction("onnx", data)[0] == 1.0
    want = run(model.data, feeds[0])
    assert np.abs(run(data, feeds[0]) - want).max() < 0.05 * np.abs(want).max()


def test_a_split_between_8_bit_layers_copies_integers(tmp_path: Path) -> None:
    model = float_model(split_net("Concat"))
    data = make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(model, samples(20, (8, 6, 6))))
    kinds = fused(data, tmp_path)
    assert kinds["QLinearConv"] == 3
    assert kinds["QuantizeLinear"] == kinds["DequantizeLinear"] == 1  # the model's own ends


def joined_net(activation: str) -> Any:
    """Two convolutions, one of them louder, joined; the louder is read by a third, too."""
    node = helper.make_node
    weights = {"w1": normal(8, 8, 3, 3), "w2": normal(8, 8, 3, 3, scale=0.7), "w3": normal(8, 16, 1, 1)}
    ends = {"": ("c1", "c2"), "Relu": ("r1", "r2"), "Clip": ("r1", "r2")}[activation]
    bounds = ["zero", "half"] if activation == "Clip" else []
    weights |= {"zero": np.float32(0), "half": np.float32(0.5)} if bounds else {}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
        node("Conv", ["x", "w2"], ["c2"], pads=[1] * 4),
        *([node(activation, ["c1", *bounds], ["r1"]), node("Relu", ["c2"], ["r2"])] if activation else []),
        node("Concat", list(ends), ["j"], axis=1),
        node("Conv", ["j", "w3"], ["d"]),
        node("Add", ["d", ends[1]], ["y"]),
    ]
    return net(nodes, weights, (8, 6, 6))


@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
def test_what_a_concat_alone_reads_is_rounded_once_at_its_step(activation: str, tmp_path: Path) -> None:
    model = float_model(joined_net(activation))
    data = make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), statistics(model, samples(20, (8, 6, 6))))
    grids, first, second = open_graph("onnx", data).grids, *("r1 r2" if activation else "c1 c2").split()
    assert (grids[first] == grids["j"]) == (activation != "Clip"), "a range above the clip would not do its work"
    assert activation == "" or grids[second] != grids["j"] or grids[second].high == grids["j"].high
    kinds = fused(data, tmp_path)
    assert kinds["QLinearConv"] == 3
    assert kinds["Conv"] + kinds["FusedConv"] + kinds["Relu"] + kinds["Clip"] == 0


@pytest.mark.parametrize("kept", ["c", "p1", "d"])
def test_a_split_beside_layers_in_float_keeps_its_answers(kept: str) -> None:
    model = float_model(split_net("Concat"))
    feeds = samples(20, (8, 6, 6))
    plan = QuantizationPlan(float_layers=frozenset({kept}))
    data = make(model, RECIPES["onnx-int8-qdq-mixed"], plan, statistics(model, feeds))
    want = run(model.data, feeds[0])
    assert np.abs(run(data, feeds[0]) - want).max() < 0.05 * np.abs(want).max()


def names_in(data: bytes) -> set[str]:
    graph = onnx.load_model_from_string(data).graph
    return {name for node in graph.node for name in (node.name, *node.input, *node.output) if name}


def with_dead_ends(model: Any, names: set[str]) -> Any:
    """The model with a value and a node of each of these names, which nothing reads, and nodes called as outputs."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        node.name = node.output[0]
    copy.graph.node.extend(helper.make_node("Identity", ["x"], [name], name=name) for name in sorted(names))
    return copy


def ends_in_8_bits() -> Any:
    """Lookups, and an output that is handed out rounded."""
    node = helper.make_node
    weights = {"t": normal(64, 32), "w": normal(32, 64), "b": normal(64), "v": normal(64, 64), "one": normal(64)}
    nodes = [
        node("Gather", ["t", "x"], ["g"]),
        node("MatMul", ["g", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("MatMul", ["a", "v"], ["n"]),
        node("Add", ["n", "a"], ["y"]),
    ]
    return net(nodes, weights, (4,), dtype=TensorProto.INT64)


@pytest.mark.parametrize("name", [*QUANTIZED, "onnx-int8-dynamic", "onnx-f16", "onnx-f32"])
@pytest.mark.parametrize("case", ["mobile", "ends_in_8_bits"])
def test_a_model_may_use_every_name_that_the_recipe_would_give(name: str, case: str) -> None:
    original = {"mobile": mobile, "ends_in_8_bits": ends_in_8_bits}[case]()
    feeds = samples(8) if case == "mobile" else [[RNG.integers(0, 64, (1, 4))] for _ in range(8)]

    def made(model: Any) -> bytes:
        better = float_model(model)
        seen = statistics(better, feeds) if name in QUANTIZED else None
        return make(better, RECIPES[name], QuantizationPlan(), seen)

    plain = made(original)
    taken = names_in(plain) - names_in(original.SerializeToString())
    data = made(with_dead_ends(original, taken))
    called = [node.name for node in onnx.load_model_from_string(data).graph.node if node.name]
    assert len(called) == len(set(called))
    for feed in feeds[:3]:
        np.testing.assert_array_equal(run(data, feed), run(plain, feed))


def test_padded_frames_that_divide_by_nothing_inside_and_are_replaced_keep_the_net_in_8_bits() -> None:
    """Frames of zeros are 0/0, which a Where replaces: NaN is in none of the 8 bits, and in no answer."""
    node = helper.make_node
    weights = {
        "w": normal(16, 16), "gain": normal(16), "v": normal(16, 16), "axes": np.array([2]), "zero": np.float32(0),
    }  # fmt: skip
    nodes = [
        node("MatMul", ["x", "w"], ["frames"]),
        node("ReduceSum", ["x", "axes"], ["loud"]),
        node("Div", ["frames", "loud"], ["share"]),
        node("Mul", ["share", "gain"], ["scaled"]),
        node("IsNaN", ["scaled"], ["empty"]),
        node("Where", ["empty", "zero", "scaled"], ["filled"]),
        node("MatMul", ["filled", "v"], ["y"]),
    ]
    model = float_model(net(nodes, weights, (6, 16)))
    feeds = [[RNG.uniform(0.5, 1, (1, 6, 16)).astype(np.float32)] for _ in range(20)]
    for place, [frames] in enumerate(feeds):
        frames[:, 6 - place % 4 :] = 0
    seen = statistics(model, feeds)
    assert {name for name, tensor in seen.tensors.items() if tensor.undefined} == {"share", "scaled"}
    assert seen.ranges("mse").keys() == {"x", "frames", "loud", "filled", "y"}
    data = make(model, RECIPES["onnx-int8-qdq"], QuantizationPlan(), seen)
    assert quantized_fraction("onnx", data)[0] == 1
    for [frames] in feeds:
        want, got = run(model.data, [frames]), run(data, [frames])
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_value_outside_of_a_crop_is_what_it_is_in_float(name: str) -> None:
    node = helper.make_node
    weights = {
        "w": normal(8, 8, 3, 3), "v": normal(8, 8, 3, 3), "z": normal(8, 5), "axes": np.array([2, 3]),
        "roi": np.array([0, 0, -0.3, -0.3, 1, 1, 1.3, 1.3], np.float32), "sizes": np.array([1, 8, 10, 10]),
    }  # fmt: skip
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 50.0}
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Resize", ["b", "roi", "", "sizes"], ["c"], mode="nearest", **crop),
        node("Conv", ["c", "v"], ["d"]),
        node("ReduceMean", ["d"], ["e"], axes=[2, 3], keepdims=0),
        node("MatMul", ["e", "z"], ["y"]),
    ]
    model = float_model(net(nodes, weights, (8, 8, 8)))
    feeds = samples(20, (8, 8, 8))
    data = make(model, RECIPES[name], QuantizationPlan(), statistics(model, feeds))
    want, got = (np.concatenate([run(one, feed) for feed in feeds]) for one in (model.data, data))
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
    assert quantized_fraction("onnx", data)[0] == 1


def test_a_float_file_is_no_larger_than_the_float16_weights_that_it_comes_from() -> None:
    draw = np.random.default_rng(0)
    weights = {name: draw.standard_normal((64, 64)).astype(np.float32) for name in "wv"}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    item = [draw.standard_normal((1, 64)).astype(np.float32)]
    for halved in (False, True):
        kept = {name: w.astype(np.float16).astype(np.float32) if halved else w for name, w in weights.items()}
        model = float_model(net(nodes, kept, (64,)))
        data = make(model, RECIPES["onnx-f32"], QuantizationPlan(), None)
        np.testing.assert_array_equal(run(data, item), run(model.data, item))
        if halved:
            assert len(data) < 0.55 * len(model.data)
        else:
            assert data == model.data


def test_the_weights_of_a_float_file_that_were_widened_are_constants_when_it_runs(tmp_path: Path) -> None:
    weights = {"w": normal(64, 64).astype(np.float16).astype(np.float32)}
    model = float_model(net([helper.make_node("MatMul", ["x", "w"], ["y"])], weights, (64,)))
    data = make(model, RECIPES["onnx-f32"], QuantizationPlan(), None)
    assert "Cast" in {node.op_type for node in onnx.load_model_from_string(data).graph.node}
    assert set(fused(data, tmp_path)) == {"MatMul"}
    assert quantized_fraction("onnx", data) == (0.0, 0.0)

"""An ONNX file is a graph of layers whose tensors can be seen and whose constants can be changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.conversion_errors import ConversionError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
MODELS = Path(__file__).parents[2] / "models"


def graph(body: str, inputs: str, outputs: str, **constants: np.ndarray):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return open_graph("onnx", model.SerializeToString())


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = "float[N, 3, 8, 8] x"
KINDS = {
    "convolution": ("y = Conv(x, w)", {"w": (4, 3, 3, 3)}, "conv", 0),
    "depthwise": ("y = Conv <group = 3> (x, w)", {"w": (3, 1, 3, 3)}, "depthwise", 0),
    "transposed": ("y = ConvTranspose(x, w)", {"w": (3, 5, 2, 2)}, "conv", 1),
    "product": ("y = MatMul(x, w)", {"w": (8, 5)}, "dense", 1),
    "product from the left": ("y = MatMul(w, x)", {"w": (5, 8)}, "dense", 0),
    "activation": ("y = Sigmoid(x)", {}, "activation", None),
    "addition": ("y = Add(x, x)", {}, "elementwise", None),
    "pool": ("y = GlobalAveragePool(x)", {}, "pool", None),
    "concat": ("y = Concat <axis = 1> (x, x)", {}, "concat", None),
    "move": ("y = Transpose(x)", {}, "move", None),
    "unknown": ("y = Hardmax(x)", {}, "other", None),
}


@pytest.mark.parametrize("case", KINDS)
def test_an_operator_has_its_kind_and_the_axis_of_its_channels(case: str):
    body, constants, kind, axis = KINDS[case]
    made = graph(body, X, "float[a, b, c, d] y", **{name: numbers(*shape) for name, shape in constants.items()})
    (layer,) = made.layers
    assert (layer.kind, layer.weight_axis) == (kind, axis)
    assert layer.weight == ("w" if constants else None)
    assert set(layer.inputs) == {"x"}


def test_the_bias_of_a_product_is_the_vector_added_behind_it():
    body = "p = MatMul(x, w) y = Add(p, b)"
    made = graph(body, "float[1, 4] x", "float[1, 3] y", w=numbers(4, 3), b=numbers(3))
    assert [layer.bias for layer in made.layers] == ["b", None]


def test_what_is_known_before_anything_runs_is_no_layer():
    body = "w = Constant <value = float[3, 3] {1, 0, 0, 0, 2, 0, 0, 0, 3}> () v = Identity(w) y = MatMul(x, v)"
    made = graph(body, "float[1, 3] x", "float[1, 3] y")
    assert [layer.op for layer in made.layers] == ["MatMul"]
    np.testing.assert_array_equal(made.constant(made.layers[0].weight), np.diag([1, 2, 3]))
    other = made.with_constants({made.layers[0].weight: np.eye(3)})
    with other.watch() as watched:
        np.testing.assert_array_equal(watched.run([np.ones((1, 3), np.float32)])["y"], np.ones((1, 3)))


def test_every_float_tensor_is_in_sight_with_the_batch_left_free():
    body = "a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b) r = Relu(a) s = Shape(r) y = ReduceMean(r)"
    made = graph(body, X, "float[a, b, c, d] y", w=numbers(4, 3, 3, 3), b=numbers(4))
    assert made.tensors == ("x", "a", "r", "y")
    layer = made.layers[0]
    assert layer.window is not None
    assert (layer.window.strides, layer.window.pads, layer.window.channels_last) == ((2, 2), (1, 1, 1, 1), False)
    with made.watch() as every, made.watch(["y"]) as last:
        seen, plain = every.run([numbers(1, 3, 8, 8)]), last.run([numbers(1, 3, 8, 8)])
    assert tuple(seen) == made.tensors
    np.testing.assert_array_equal(seen["r"], np.maximum(seen["a"], 0))
    np.testing.assert_allclose(seen["y"], plain["y"], rtol=1e-5)


@pytest.mark.parametrize(("mode", "pads"), [("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0))])
def test_padding_left_to_the_engine_is_worked_out(mode: str, pads: tuple[int, ...]):
    body = f'y = Conv <auto_pad = "{mode}", strides = [2, 2]> (x, w)'
    window = graph(body, "float[1, 3, 8, 8] x", "float[a, b, c, d] y", w=numbers(4, 3, 3, 3)).layers[0].window
    assert window is not None
    assert window.pads == pads


def test_tensors_inside_a_branch_are_left_out():
    body = """c = Greater(x, z) f = Squeeze(c)
        y = If (f) <then_branch = t () => (float[1] u) { u = Neg(x) }, \
else_branch = e () => (float[1] v) { v = Abs(x) }>"""
    made = graph(body, "float[1] x", "float[1] y", z=np.zeros(1, np.float32))
    assert made.tensors == ("x", "y")
    assert made.layers[-1].kind == "other"
    with made.watch() as watched:
        assert watched.run([np.array([2.0], np.float32)])["y"] == -2


def test_operators_of_other_domains_are_run_to_learn_what_they_give():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[1, 4] x) => (float[1, 4] y)'
        " { a = com.microsoft.Gelu(x) y = Neg(a) }"
    )
    made = open_graph("onnx", model.SerializeToString())
    assert made.tensors == ("x", "a", "y")
    assert made.layers[0].op == "com.microsoft.Gelu"


QDQ = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) w_DequantizeLinear_Output = \
DequantizeLinear(w_quantized, ws, wz)
    a = MatMul(xd, w_DequantizeLinear_Output)
    aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z) y = Relu(ad)"""


def quantized():
    return graph(
        QDQ,
        "float[1, 2] x",
        "float[1, 2] y",
        w_quantized=np.array([[2, 0], [0, 4]], np.int8),
        ws=np.float32(0.5),
        wz=np.int8(0),
        s=np.float32(0.25),
        z=np.int8(0),
    )


def test_a_qdq_file_shows_what_comes_back_and_keeps_the_pairs_out_of_sight():
    made = quantized()
    assert made.tensors == ("x", "a", "y")
    with made.watch() as watched:
        seen = watched.run([np.array([[0.3, -0.6]], np.float32)])
    np.testing.assert_allclose(seen["x"], [[0.25, -0.5]])
    np.testing.assert_allclose(seen["a"], [[0.25, -1.0]])
    np.testing.assert_allclose(seen["y"], [[0.25, 0.0]])


def test_a_quantized_weight_reads_and_writes_as_floats_under_its_float_name():
    made = quantized()
    dense = next(layer for layer in made.layers if layer.kind == "dense")
    assert dense.weight == "w"
    np.testing.assert_array_equal(made.constant("w"), [[1, 0], [0, 2]])
    other = made.with_constants({"w": np.array([[1.5, 0], [0, 0.6]])})
    np.testing.assert_array_equal(other.constant("w"), [[1.5, 0], [0, 0.5]])
    np.testing.assert_array_equal(made.constant("w"), [[1, 0], [0, 2]])


def test_other_constants_make_another_graph_and_leave_this_one():
    made = graph("y = MatMul(x, w)", "float[1, 2] x", "float[1, 2] y", w=np.eye(2, dtype=np.float32))
    other = made.with_constants({"w": 3 * np.eye(2)})
    with made.watch() as first, other.watch() as second:
        assert first.run([np.ones((1, 2), np.float32)])["y"].max() == 1
        assert second.run([np.ones((1, 2), np.float32)])["y"].max() == 3
    assert open_graph("onnx", other.data).layers == made.layers
    with pytest.raises(ValueError, match="has shape"):
        made.with_constants({"w": np.zeros(3)})
    for name in ("x", "gone"):
        with pytest.raises(KeyError):
            made.constant(name)
        with pytest.raises(KeyError):
            made.with_constants({name: np.zeros(3)})


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x0a"])
def test_bytes_that_are_no_model_are_refused(data: bytes):
    with pytest.raises(ConversionError):
        open_graph("onnx", data)


def test_the_same_network_looks_alike_in_both_formats():
    graphs = [open_graph(kind, (MODELS / f"tiny_f32.{kind}").read_bytes()) for kind in ("tflite", "onnx")]
    kernels = [[layer for layer in made.layers if layer.weight] for made in graphs]
    assert [layer.macs for layer in kernels[0]] == [layer.macs for layer in kernels[1]]
    assert [layer.kind for layer in kernels[0]] == [layer.kind for layer in kernels[1]]


def test_integer_products_are_judged_without_int8_weights_which_saturate_on_some_processors():
    """`plain` runs a file node by node, where ONNX Runtime does not apply its own remedy."""
    from edgekit_converters.formats.onnx_graph import session, unsigned_products

    weights = np.random.default_rng(0).integers(-128, 128, (64, 8)).astype(np.int8)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 64] x) => (int32[2, 8] i, uint8[2, 64] q) '
        "{ q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, z, wz) }"
    )
    constants = {"w": weights, "wz": np.int8(3)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    data = model.SerializeToString()
    changed = onnx.ModelProto.FromString(unsigned_products(data)).graph
    read = {tensor.name: tensor.data_type for tensor in changed.initializer}
    assert [read[name] for name in (changed.node[1].input[1], changed.node[1].input[3])] == [onnx.TensorProto.UINT8] * 2
    found, q = session(data, plain=True).run(None, {"x": np.abs(numbers(2, 64))})
    assert np.array_equal(found, q.astype(int) @ (weights.astype(int) - 3))

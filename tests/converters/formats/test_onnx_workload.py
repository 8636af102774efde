"""An ONNX graph is counted as ONNX Runtime runs it: what it fuses, folds or absorbs takes no time of its own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from edgekit_converters.formats.workload import quantized_fraction, read_workload, uncounted_operations
from edgekit_converters.recipe.conversion_errors import ConversionError

onnx = pytest.importorskip("onnx")


def graph(body: str, inputs: str, outputs: str, **constants: np.ndarray) -> bytes:
    """A model from ONNX's text form; `constants` become initializers."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model.SerializeToString()


def kernel(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def kinds(data: bytes) -> dict[str, int]:
    work = read_workload("onnx", data, "float32")
    assert work.unknown == ()
    return dict(Counter(op.kind for op in work.ops))


CONVOLUTIONS = {
    "1x1": ("y = Conv(x, w)", (16, 8, 1, 1), "pw", 16 * 8 * 12 * 12),
    "1x1 of stride 2": ("y = Conv <strides = [2, 2]> (x, w)", (16, 8, 1, 1), "pw", 16 * 8 * 6 * 6),
    "3x3": ("y = Conv <pads = [1, 1, 1, 1]> (x, w)", (16, 8, 3, 3), "c3", 16 * 8 * 9 * 12 * 12),
    "3x3 of stride 2": (
        "y = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)",
        (16, 8, 3, 3),
        "cx",
        16 * 8 * 9 * 36,
    ),
    "3x3 dilated": ("y = Conv <dilations = [2, 2]> (x, w)", (16, 8, 3, 3), "cx", 16 * 8 * 9 * 64),
    "5x5": ("y = Conv <pads = [2, 2, 2, 2]> (x, w)", (16, 8, 5, 5), "cx", 16 * 8 * 25 * 144),
    "depthwise": ("y = Conv <group = 8, pads = [1, 1, 1, 1]> (x, w)", (8, 1, 3, 3), "dw", 8 * 9 * 144),
    "grouped": ("y = Conv <group = 2, pads = [1, 1, 1, 1]> (x, w)", (16, 4, 3, 3), "cx", 16 * 4 * 9 * 144),
    "transposed": ("y = ConvTranspose <strides = [2, 2]> (x, w)", (8, 16, 2, 2), "cx", 8 * 144 * 16 * 4),
}


@pytest.mark.parametrize(("body", "shape", "kind", "macs"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_are_classed_and_counted(body: str, shape: tuple[int, ...], kind: str, macs: int):
    work = read_workload("onnx", graph(body, "float[1,8,12,12] x", "float[a,b,c,d] y", w=kernel(*shape)), "float32")
    assert [(op.kind, op.macs, op.weight_elements) for op in work.ops] == [(kind, macs, np.prod(shape))]


DENSE = {
    "Gemm": ("y = Gemm(x, w)", "float[1,8] x", (8, 5), "fc", 40),
    "Gemm transposed": ("y = Gemm <transB = 1> (x, w)", "float[1,8] x", (5, 8), "fc", 40),
    "MatMul": ("y = MatMul(x, w)", "float[1,8] x", (8, 5), "fc", 40),
    "MatMul of many rows is a 1x1 convolution": ("y = MatMul(x, w)", "float[1,7,8] x", (8, 5), "pw", 280),
}


@pytest.mark.parametrize(("body", "inputs", "shape", "kind", "macs"), DENSE.values(), ids=DENSE)
def test_products_are_classed_and_counted(body: str, inputs: str, shape: tuple[int, ...], kind: str, macs: int):
    outputs = "float[a,b,c] y" if "7" in inputs else "float[a,b] y"
    work = read_workload("onnx", graph(body, inputs, outputs, w=kernel(*shape)), "float32")
    assert [(op.kind, op.macs) for op in work.ops] == [(kind, macs)]


def test_activations_scales_and_biases_behind_a_product_are_fused():
    body = "a = Conv(x, w) b = Mul(a, s) c = Add(b, s) d = Relu(c) e = Sigmoid(d) y = Relu(e)"
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", w=kernel(4, 4, 1, 1), s=kernel(4, 1, 1))
    assert kinds(data) == {"pw": 1, "ew": 2}


def test_an_activation_whose_input_is_used_twice_is_not_fused():
    body = "a = Conv(x, w) b = Relu(a) y = Add(a, b)"
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", w=kernel(4, 4, 1, 1))
    assert kinds(data) == {"pw": 1, "ew": 2}


def test_traffic_is_what_is_read_and_written():
    data = graph("y = Add(x, x)", "float[1,4,6,6] x", "float[a,b,c,d] y")
    assert [op.activation_elements for op in read_workload("onnx", data, "float32").ops] == [3 * 144]


def test_constants_reshapes_and_shape_arithmetic_take_no_time():
    body = """v = Transpose <perm = [1, 0]> (w) n = Shape(x) f = Reshape(x, n) y = MatMul(f, v)"""
    assert kinds(graph(body, "float[1,8] x", "float[a,b] y", w=kernel(5, 8))) == {"fc": 1}


def test_a_free_batch_counts_as_one_and_a_fixed_one_is_kept():
    for side, batch in (("N", 1), ("4", 4)):
        data = graph("y = Relu(x)", f"float[{side},8] x", "float[a,b] y")
        assert read_workload("onnx", data, "float32").batch == batch


def moved(body: str, inputs: str, **constants: np.ndarray) -> int:
    """Elements that one operation counts as moving, whatever it makes."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => (float[a,b,c,d] y) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    (op,) = read_workload("onnx", model.SerializeToString(), "float32").ops
    assert (op.kind, op.macs) == ("ew", 0)
    return op.activation_elements


def test_the_largest_of_a_row_are_found_in_many_times_the_time_of_moving_it():
    row = "float[1,1,1,8400] x"
    plain = moved("y = Sigmoid(x)", row)
    chosen = moved("y, i = TopK(x, k)", row, k=np.array([300]))
    assert plain == 2 * 8400
    assert chosen == 16 * (8400 + 300 + 300)


# name -> (operation, inputs, elements read and written): what exporters write beside products
EXPORTED = {
    "Trilu": ("y = Trilu(x)", "float[1,1,8,8] x", 2 * 64),
    "CumSum": ("y = CumSum(x, a)", "float[1,1,8,8] x", 2 * 64),
    "ScatterND": ("y = ScatterND(x, i, u)", "float[1,1,8,8] x, int64[1,1,2,3] i, float[1,1,2,8] u", 2 * 64 + 6 + 16),
    "ScatterElements": (
        "y = ScatterElements <axis = 3> (x, i, u)",
        "float[1,1,8,8] x, int64[1,1,8,8] i, float[1,1,8,8] u",
        24 * 4 * 64,
    ),
    "GridSample": ("y = GridSample(x, g)", "float[1,4,8,8] x, float[1,2,2,2] g", 8 * (256 + 8 + 16)),
}


@pytest.mark.parametrize(("body", "inputs", "elements"), EXPORTED.values(), ids=EXPORTED)
def test_what_exporters_write_beside_products_is_counted(body: str, inputs: str, elements: int):
    assert moved(body, inputs, a=np.array(3)) == elements


EINSUMS = {
    "attention": ('y = Einsum <equation = "bhqd,bhkd->bhqk"> (x, x)', "pw", 2 * 8 * 4 * 8, 0, True),
    "a kernel": ('y = Einsum <equation = "bhqd, de -> bhqe"> (x, w)', "pw", 2 * 8 * 4 * 5, 20, False),
    "one row": ('y = Einsum <equation = "bhqd,bhqd->"> (x, x)', "fc", 2 * 8 * 4, 0, True),
}


@pytest.mark.parametrize(("body", "kind", "macs", "weights", "computed"), EINSUMS.values(), ids=EINSUMS)
def test_an_einsum_of_two_tensors_counts_its_products(body: str, kind: str, macs: int, weights: int, computed: bool):
    work = read_workload("onnx", graph(body, "float[1,2,8,4] x", "float[a,b,c,d] y", w=kernel(4, 5)), "float32")
    assert [(op.kind, op.macs, op.weight_elements, op.computed) for op in work.ops] == [(kind, macs, weights, computed)]


UNKNOWN = {
    "an einsum of three": ('y = Einsum <equation = "abc,acd,ade->abe"> (x, x, x)', "float[1,8,8] x", "Einsum"),
    "an einsum with dots": ('y = Einsum <equation = "...c,...d->...c"> (x, x)', "float[1,8,8] x", "Einsum"),
    "an operation without a rule": ("y = Det(x)", "float[1,8,8] x", "Det"),
    "a recurrent layer whose steps are free": (
        "y, h = GRU <hidden_size = 2> (x, w, w)",
        "float[1,A,8] x",
        "GRU of a shape known only at run time",
    ),
    "a free axis": ("y = Relu(x)", "float[1,A,8] x", "input 'x' of a shape known only at run time"),
    "another domain": ("y = com.example.Magic(x)", "float[1,8,8] x", "com.example.Magic"),
}


@pytest.mark.parametrize(("body", "inputs", "name"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_counted_is_named(body: str, inputs: str, name: str):
    imports = '"" : 17, "com.example" : 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{imports}]> g ({inputs}) => (float[a,b,c] y) {{ {body} }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel(1, 6, 8), "w"))
    assert name in read_workload("onnx", model.SerializeToString(), "float32").unknown


def test_a_product_of_two_computed_tensors_is_counted_and_marked():
    """Attention's: 2 heads of 4 x 8 times 8 x 4, then a row times a matrix."""
    body = "t = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul(x, t)"
    work = read_workload("onnx", graph(body, "float[1,2,4,8] x", "float[a,b,c,d] y"), "float32")
    (product,) = [op for op in work.ops if op.macs]
    assert (product.kind, product.computed, product.weight_elements) == ("pw", True, 0)
    assert product.macs == work.computed_macs == 2 * 4 * 4 * 8
    assert product.activation_elements == 2 * 4 * 8 + 2 * 8 * 4 + 2 * 4 * 4
    assert work.unknown == ()
    row = read_workload("onnx", graph("y = MatMul(x, k)", "float[1,8] x, float[8,5] k", "float[a,b] y"), "float32")
    assert [(op.kind, op.macs) for op in row.ops if op.macs] == [("fc", 40)]
    plain = graph("y = MatMul(x, w)", "float[1,8] x", "float[a,b] y", w=kernel(8, 5))
    assert read_workload("onnx", plain, "float32").computed_macs == 0


def test_sizes_that_are_worked_out_in_the_graph_are_worked_out_here():
    """Positions of a text encoder: a row of its table for each token."""
    body = """n = Shape <start = 1, end = 2> (x) s = Squeeze(n) r = Range(zero, s, one) e = Gather(w, r)
              y = MatMul(x, e)"""
    scalars = {"zero": np.int64(0), "one": np.int64(1)}
    work = read_workload("onnx", graph(body, "float[1,6] x", "float[a,b] y", w=kernel(9, 5), **scalars), "float32")
    assert work.unknown == ()
    assert [op.macs for op in work.ops if op.macs] == [6 * 5]


def test_sizes_without_an_end_are_no_numbers_to_fill_the_memory_with():
    body = "r = Range(zero, end, one) y = Cast <to = 1> (r)"
    scalars = {"zero": np.int64(0), "end": np.int64(2**60), "one": np.int64(1)}
    work = read_workload("onnx", graph(body + " z = Relu(x)", "float[1,6] x", "float[a,b] y", **scalars), "float32")
    assert "Range" in work.unknown


def test_a_convolution_with_a_computed_kernel_stays_unknown():
    body = "y = Conv(x, k)"
    work = read_workload("onnx", graph(body, "float[1,4,6,6] x, float[4,4,1,1] k", "float[a,b,c,d] y"), "float32")
    assert work.unknown == ("Conv of two computed tensors",)


QDQ = """
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, s, z)
    a = Conv(xd, wd) b = Relu(a)
    bq = QuantizeLinear(b, s, z) bd = DequantizeLinear(bq, s, z)
    p = GlobalAveragePool(bd) pq = QuantizeLinear(p, s, z) y = DequantizeLinear(pq, s, z)
"""
SCALE = {"s": np.float32(0.1), "z": np.int8(0)}


def test_quantize_pairs_around_an_operation_are_absorbed_and_those_at_the_edges_are_not():
    data = graph(QDQ, "float[1,4,6,6] x", "float[a,b,c,d] y", w=kernel(4, 4, 1, 1, dtype=np.int8), **SCALE)
    work = read_workload("onnx", data, "int8")
    assert [op.kind for op in work.ops] == ["ew", "pw", "ew", "ew"]
    assert [op.name for op in work.ops] == ["xq", "a", "p", "y"]
    assert quantized_fraction("onnx", data) == (1.0, 1.0)


def test_a_float_island_is_not_eight_bit_and_pays_for_its_edges():
    body = QDQ.replace("p = GlobalAveragePool(bd)", "c = Conv(bd, v) p = Sigmoid(c)")
    weights = {"w": kernel(4, 4, 1, 1, dtype=np.int8), "v": kernel(12, 4, 1, 1)}
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", **weights, **SCALE)
    assert quantized_fraction("onnx", data) == (0.25, 0.25)
    assert "bd" in [op.name for op in read_workload("onnx", data, "int8").ops]


@pytest.mark.parametrize(("layer", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_recurrent_layer_multiplies_its_weights_once_a_step(layer: str, gates: int):
    weights = {"w": kernel(2, gates * 4, 8), "r": kernel(2, gates * 4, 4)}
    body = f'y, h = {layer} <hidden_size = 4, direction = "bidirectional"> (x, w, r)'
    work = read_workload("onnx", graph(body, "float[12,1,8] x", "float[a,b,c,d] y", **weights), "float32")
    held = 2 * gates * 4 * (8 + 4)
    [op] = work.ops
    assert (work.unknown, work.macs, work.recurrent_macs) == ((), 12 * held, 12 * held)
    assert (op.kind, op.weight_elements, op.activation_elements) == ("fc", held, 12 * 8 + 12 * 2 * 4)


def test_a_recurrent_layer_is_in_the_share_of_eight_bits():
    recurrent = (
        "f = DequantizeLinear(pq, s, z) l = Flatten(f) u = Unsqueeze(l, at) y, h = LSTM <hidden_size = 4> (u, k, r)"
    )
    body = QDQ.replace("y = DequantizeLinear(pq, s, z)", recurrent)
    weights = {
        "w": kernel(4, 4, 1, 1, dtype=np.int8),
        "k": kernel(1, 16, 4),
        "r": kernel(1, 16, 4),
        "at": np.array([0]),
    }
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", **weights, **SCALE)
    products, steps = 4 * 4 * 36, 2 * 16 * 4
    assert quantized_fraction("onnx", data)[0] == pytest.approx(products / (products + steps))
    assert uncounted_operations("onnx", data) == ()


def test_a_product_of_two_computed_tensors_counts_as_what_it_is():
    data = graph("a = Relu(x) b = MatMul(a, x) y = MatMul(b, w)", "float[1,8,8] x", "float[a,b,c] y", w=kernel(8, 4))
    assert quantized_fraction("onnx", data)[0] == 0.0
    assert uncounted_operations("onnx", data) == ()
    eight = """
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) m = MatMul(xd, xd)
        mq = QuantizeLinear(m, s, z) md = DequantizeLinear(mq, s, z) y = MatMul(md, w)
    """
    data = graph(eight, "float[1,8,8] x", "float[a,b,c] y", w=kernel(8, 4), **SCALE)
    assert quantized_fraction("onnx", data)[0] == pytest.approx(8 * 64 / (8 * 64 + 8 * 32))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("y = com.example.Magic(x)", "com.example.Magic"),
        ('y = Einsum <equation = "abc->acb"> (x)', "Einsum"),
        ("y = Det(x)", None),
    ],
)
def test_work_that_nobody_can_count_is_named_where_it_may_multiply(body, name):
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17, "com.example" : 1]> g (float[1,8,8] x) => (float[a,b,c] y) {{ '
        f"{body} }}"
    )
    assert uncounted_operations("onnx", model.SerializeToString()) == (() if name is None else (name,))


def test_weights_in_eight_bits_with_float_arithmetic_count_as_stored_only():
    body = "wd = DequantizeLinear(w, s, z) y = Conv(x, wd)"
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", w=kernel(4, 4, 1, 1, dtype=np.int8), **SCALE)
    assert quantized_fraction("onnx", data) == (0.0, 1.0)


def test_dynamic_quantization_counts_like_the_float_network_it_came_from():
    body = """
        q, s, z = DynamicQuantizeLinear(x) i = ConvInteger(q, w, z, k) f = Cast <to = 1> (i)
        t = Mul(s, r) g = Mul(f, t) h = Add(g, b) y = Relu(h)
    """
    constants = {"w": kernel(4, 4, 1, 1, dtype=np.int8), "k": np.int8(0), "r": np.float32(0.1), "b": kernel(1, 4, 1, 1)}
    data = graph(body, "float[1,4,6,6] x", "float[a,b,c,d] y", **constants)
    assert kinds(data) == {"pw": 1}
    assert quantized_fraction("onnx", data)[0] == 1.0


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x0a", b"\xff" * 64])
def test_bytes_that_are_no_model_are_refused(data: bytes):
    with pytest.raises(ConversionError, match="not an ONNX model"):
        read_workload("onnx", data, "float32")


def test_a_format_without_a_reader_is_refused():
    with pytest.raises(ConversionError, match=r"format 'tensorrt'.*Known: tflite, onnx"):
        read_workload("tensorrt", b"", "float32")


LOOP = """{more} h, ys = Loop <body = step (int64 i, bool go, float[1,4] s) => (bool on, float[1,4] t, float[1,4] u) {{
    p = MatMul(s, w) q = Gather(x, i) r = Add(p, q) t = Tanh(r) u = Identity(t) {condition} }}> ({trips}, {entry}, s0)
    v = Squeeze(ys, one) y = MatMul(v, w)"""
"""A recurrent layer of 4 over x [steps, 1, 4]; `ys` are its answers of all steps."""

CONSTANTS = {
    "w": kernel(4, 4),
    "s0": kernel(1, 4),
    "one": np.array([1]),
    "true": np.bool_(True),
    **{f"n{number}": np.int64(number) for number in (0, 1, 2, 12)},
}


def looped(condition: str, *, trips: str = "n12", entry: str = "true", more: str = "", rows: str = "12") -> bytes:
    body = LOOP.format(condition=condition, trips=trips, entry=entry, more=more)
    return graph(body, f"float[{rows},1,4] x", "float[a,b] y", **CONSTANTS)


# (condition after a step, arguments) -> steps
COUNTED_LOOPS = {
    "as often as it says": ("on = Identity(go)", {}, 12),
    "a condition that is always true": ("on = Identity(true)", {}, 12),
    "no condition at first": ("on = Identity(go)", {"entry": ""}, 12),
    "its own number below a limit": ("on = Less(i, n2)", {}, 3),
    "a limit that is reached": ("on = LessOrEqual(i, n2)", {}, 4),
    "the limit first": ("on = GreaterOrEqual(n2, i)", {}, 4),
    "the next number": ("j = Add(i, n1) k = Cast <to = 7> (j) on = Less(k, n2)", {"trips": ""}, 2),
    "two limits": ("a = Less(i, n12) b = Less(i, n1) on = And(a, b)", {}, 2),
    "a limit that is passed at once": ("on = Less(i, n0)", {}, 1),
    "the sequence's length": (
        "on = Identity(go)",
        {"more": "size = Shape(x) first = Gather(size, n0)", "trips": "first", "rows": "7"},
        7,
    ),
}


@pytest.mark.parametrize(("condition", "given", "steps"), COUNTED_LOOPS.values(), ids=COUNTED_LOOPS)
def test_a_loop_is_its_body_as_often_as_the_file_says(condition: str, given: dict[str, str], steps: int):
    data = looped(condition, **given)
    work = read_workload("onnx", data, "float32")
    assert (work.unknown, uncounted_operations("onnx", data)) == ((), ())
    assert (work.recurrent_macs, work.macs) == (steps * 16, 2 * steps * 16)  # what follows knows its rows
    steps_of = [(op.kind, op.name, op.macs, op.dispatches) for op in work.ops if op.recurrent]
    assert steps_of == [("fc", "h", steps * 16, 1), ("ew", "h", 0, 2 * steps)]
    [moving] = [op for op in work.ops if op.recurrent and not op.macs]
    assert moving.activation_elements == steps * (8 + 12 + 8)  # gather reads its row, not the sequence


UNCOUNTED_LOOPS = {
    "a condition on the answers": ("z = ReduceSum <keepdims = 0> (t) n = Cast <to = 7> (z) on = Less(n, n12)", {}),
    "another kind of condition": ("a = Less(i, n2) on = Not(a)", {}),
    "no end": ("on = Identity(go)", {"trips": ""}),
    "steps that are made at run time": (
        "on = Identity(go)",
        {"more": "z = ReduceSum <keepdims = 0> (x) many = Cast <to = 7> (z)", "trips": "many"},
    ),
    "a limit that is made at run time": (
        "z = ReduceSum <keepdims = 0> (x) many = Cast <to = 7> (z) on = Less(i, many)",
        {},
    ),
    "a start that is made at run time": (
        "on = Identity(go)",
        {"more": "z = ReduceSum <keepdims = 0> (x) may = Cast <to = 9> (z)", "entry": "may"},
    ),
}


@pytest.mark.parametrize(("condition", "given"), UNCOUNTED_LOOPS.values(), ids=UNCOUNTED_LOOPS)
def test_a_loop_whose_steps_the_file_does_not_say_is_named(condition: str, given: dict[str, str]):
    data = looped(condition, **given)
    assert read_workload("onnx", data, "float32").unknown[0] == "Loop"
    assert uncounted_operations("onnx", data)[0] == "Loop"


STATE = """c, ys = Loop <body = step (int64 i, bool go, int64 n) => (bool on, int64 m, float[1,4] u) {{
    u = MatMul(x, w) m = Add(n, {by}) on = Less({read}, n12) }}> (, true, {start}) y = Squeeze(ys, one)"""


@pytest.mark.parametrize(
    ("by", "read", "start", "steps"),
    [
        ("n1", "m", "n0", 12),
        ("n1", "n", "n0", 13),
        ("n2", "m", "n1", 6),
        ("n0", "m", "n0", None),
        ("x0", "m", "n0", None),
    ],
)
def test_a_counter_of_the_state_may_end_a_loop(by: str, read: str, start: str, steps: int | None):
    more = "z = ReduceSum <keepdims = 0> (x) x0 = Cast <to = 7> (z) "
    data = graph(more + STATE.format(by=by, read=read, start=start), "float[1,4] x", "float[a,b] y", **CONSTANTS)
    work = read_workload("onnx", data, "float32")
    assert (work.macs, "Loop" in work.unknown) == ((steps or 0) * 16, steps is None)


SCAN = """h, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
    body = step (float[1,4] s, float[1,4] e) => (float[1,4] t, float[1,4] u) {
    p = MatMul(s, w) r = Add(p, e) t = Tanh(r) u = Identity(t) }> (s0, x) y = Relu(ys)"""


def test_a_scan_has_as_many_steps_as_its_sequence():
    data = graph(SCAN, "float[1,9,4] x", "float[a,b,c] y", **CONSTANTS)
    work = read_workload("onnx", data, "float32")
    assert (work.unknown, work.macs, work.recurrent_macs) == ((), 9 * 16, 9 * 16)
    [relu] = [op for op in work.ops if not op.recurrent]
    assert relu.activation_elements == 2 * 1 * 4 * 9
    free = read_workload("onnx", graph(SCAN, "float[1,N,4] x", "float[a,b,c] y", **CONSTANTS), "float32")
    assert "Scan" in free.unknown


def test_a_loop_in_a_loop_is_carried_out_as_often_as_both():
    inner = """Loop <body = inner (int64 j, bool f, float[1,4] a) => (bool g, float[1,4] b) {
        b = MatMul(a, w) g = Identity(f) }> (n12, true, s)"""
    body = f"""y = Loop <body = outer (int64 i, bool go, float[1,4] s) => (bool on, float[1,4] t) {{
        t = {inner} on = Identity(go) }}> (n2, true, x)"""
    work = read_workload("onnx", graph(body, "float[1,4] x", "float[a,b] y", **CONSTANTS), "float32")
    assert (work.unknown, work.macs) == ((), 2 * 12 * 16)


def test_a_state_that_grows_is_not_counted():
    body = """y = Loop <body = step (int64 i, bool go, float[a,4] s) => (bool on, float[b,4] t) {
        t = Concat <axis = 0> (s, s0) on = Identity(go) }> (n12, true, x)"""
    assert "Loop" in read_workload("onnx", graph(body, "float[1,4] x", "float[a,b] y", **CONSTANTS), "float32").unknown


def test_weights_inside_a_loop_are_weights_of_the_file():
    body = """y = Loop <body = step (int64 i, bool go, float[1,4] s) => (bool on, float[1,4] t) {
        t = MatMul(s, v) on = Identity(go) }> (n12, true, x)"""
    model = onnx.load_model_from_string(graph(body, "float[1,4] x", "float[a,b] y", **CONSTANTS))
    inner = next(item.g for item in model.graph.node[0].attribute if item.name == "body")
    inner.initializer.append(onnx.numpy_helper.from_array(kernel(4, 4, dtype=np.int8), "q"))
    inner.initializer.append(onnx.numpy_helper.from_array(kernel(4, 4), "v"))
    work = read_workload("onnx", model.SerializeToString(), "float32")
    assert (work.unknown, work.macs) == ((), 12 * 16)
    assert quantized_fraction("onnx", model.SerializeToString())[1] == pytest.approx(16 / (3 * 16 + 4))


@pytest.mark.parametrize("change", [lambda loop: loop.ClearField("attribute"), lambda loop: loop.ClearField("input")])
def test_a_loop_without_a_body_or_inputs_is_refused(change):
    model = onnx.load_model_from_string(looped("on = Identity(go)"))
    change(next(node for node in model.graph.node if node.op_type == "Loop"))
    with pytest.raises(ConversionError, match=r"shapes in the ONNX model|malformed"):
        read_workload("onnx", model.SerializeToString(), "float32")


def test_each_loop_is_tried_once_though_another_becomes_known_beside_it(monkeypatch):
    """Fourteen levels, each a loop that is counted before one that is not."""
    step, calls, real = "t = MatMul(s, w) on = Identity(go)", [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda model: calls.append(1) or real(model))
    for level in range(14):
        names = f"(int64 i{level}, bool go, float[1,4] s) => (bool on, float[1,4] t)"
        counted = f"Loop <body = c{level} {names} {{ t = MatMul(s, w) on = Identity(go) }}> (n2, true, s)"
        step = f"a = {counted} t = Loop <body = b{level} {names} {{ {step} }}> (, true, a) on = Identity(go)"
    body = f"y = Loop <body = b (int64 i, bool go, float[1,4] s) => (bool on, float[1,4] t) {{ {step} }}> (n2, true, x)"
    work = read_workload("onnx", graph(body, "float[1,4] x", "float[a,b] y", **CONSTANTS), "float32")
    assert ("Loop" in work.unknown, work.macs) == (True, 2 * 2 * 16)
    assert len(calls) < 14 * 14

"""A graph whose damage has a known cause, run by a real engine: the cause is named, and taking it away mends the
damage.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.fidelity.explain import examine, explain
from edgekit_converters.formats.graph import open_graph

FEEDS = [
    [(10 + np.random.default_rng(seed).normal(size=(1, 64)) * (0.3 + 0.3 * (seed % 5))).astype(np.float32)]
    for seed in range(8)
]


def variance(quantized: frozenset[str] = frozenset()):
    """var = mean(x^2) - mean(x)^2, as decomposed normalisations have it. quantized: tensors that go through 8 bits."""
    from onnx import TensorProto, helper, numpy_helper

    def read(name):
        return f"{name}_dq" if name in quantized else name

    made, constants = [], [numpy_helper.from_array(np.array([1], np.int64), "axis")]
    steps = [
        ("Mul", ["x", "x"], "square"),
        ("ReduceSum", ["square", "axis"], "squares"),
        ("ReduceSum", ["x", "axis"], "sum"),
        ("Mul", ["squares", "inverse"], "mean_square"),
        ("Mul", ["sum", "inverse"], "mean"),
        ("Mul", ["mean", "mean"], "square_mean"),
        ("Sub", ["mean_square", "square_mean"], "variance"),
    ]
    constants.append(numpy_helper.from_array(np.float32(1 / 64), "inverse"))
    for op, inputs, output in steps:
        made.append(helper.make_node(op, [read(name) for name in inputs], [output]))
        if output in quantized:
            scale, zero = f"{output}_scale", f"{output}_zero"
            constants += [
                numpy_helper.from_array(np.float32(130 / 255), scale),
                numpy_helper.from_array(np.uint8(0), zero),
            ]
            made.append(helper.make_node("QuantizeLinear", [output, scale, zero], [f"{output}_q"]))
            made.append(helper.make_node("DequantizeLinear", [f"{output}_q", scale, zero], [f"{output}_dq"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        made,
        "variance",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("variance", TensorProto.FLOAT, [1, 1])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return open_graph("onnx", model.SerializeToString())


def test_a_variance_of_quantized_means_is_cancellation_and_float_means_mend_it():
    quantized = frozenset({"mean_square", "square_mean"})
    case = examine(variance(), variance(quantized), FEEDS)
    assert case.by_layer["mean_square"].sqnr_db > 40  # its terms are as good as 8 bits make them
    found = {cause.layer: cause for cause in explain(case)}
    cause = found["variance"]
    assert cause.code == "cancellation"
    assert cause.evidence["ratio"] > 4
    assert quantized <= {*cause.float_layers}
    mended = examine(variance(), variance(quantized - {*cause.float_layers}), FEEDS)
    assert not [cause for cause in explain(mended) if cause.layer]


def test_the_ranges_of_the_inputs_are_measured_on_the_way():
    case = examine(variance(), variance(), FEEDS, 2)
    low, high = case.input_ranges["x"]
    assert low == pytest.approx(min(feed[0].min() for feed in FEEDS[:2]))
    assert high == pytest.approx(max(feed[0].max() for feed in FEEDS[:2]))

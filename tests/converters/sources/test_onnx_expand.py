"""What tf2onnx leaves in TensorFlow's or TFLite's own words is said in ONNX's, and answers the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit_converters.sources.tensorflow_to_onnx import expand, unknown

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

X = np.linspace(0.0, 3.0, 13, dtype=np.float32)
Y = X[::-1].copy()
erf = np.vectorize(math.erf)

COMPOSED = {
    "Erfc": ((X,), {}, 1 - erf(X)),
    "Expm1": ((X,), {}, np.expm1(X)),
    "Log1p": ((X,), {}, np.log1p(X)),
    "TFL_GELU": ((X,), {"approximate": 0}, X * 0.5 * (1 + erf(X / math.sqrt(2)))),
    "TFL_GELU by tanh": ((X,), {"approximate": 1},
        X / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)))),
    "Xlogy": ((X, Y + 1), {}, X * np.log(Y + 1)),
    "Xlogy of nothing": ((X * 0, Y), {}, X * 0),
    "Xdivy": ((X, Y + 1), {}, X / (Y + 1)),
    "MulNoNan": ((X, Y), {}, X * Y),
}  # fmt: skip


def model(op, inputs, attributes):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = [f"x{place}" for place in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], "node", **attributes)],
        "net",
        [helper.make_tensor_value_info(name, kind, [13]) for name in names],
        [helper.make_tensor_value_info("y", kind, [13])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composition_answers_as_the_operator(name):
    inputs, attributes, expected = COMPOSED[name]
    made = model(name.split()[0], inputs, attributes)
    expand(made)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {f"x{place}": value for place, value in enumerate(inputs)})
    np.testing.assert_allclose(answer, expected, atol=2e-6)


@pytest.mark.parametrize("name", ["Expm1", "TFL_GELU", "Xlogy"])
def test_a_model_may_use_the_names_of_a_composition(name):
    inputs, attributes, expected = COMPOSED[name]
    made = model(name, inputs, attributes)
    expand(made)
    graph = made.graph
    taken = {*(n for node in graph.node for n in (node.name, *node.output)), *(t.name for t in graph.initializer)}
    other = model(name, inputs, attributes)
    other.graph.node.extend(onnx.helper.make_node("Neg", ["x0"], [value], value) for value in sorted(taken - {"y"}))
    expand(other)
    session = ort.InferenceSession(other.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {f"x{place}": value for place, value in enumerate(inputs)})
    np.testing.assert_allclose(answer, expected, atol=2e-6)


def test_what_has_no_composition_stays_and_is_named():
    made = model("BesselI0e", (X,), {})
    before = made.SerializeToString()
    expand(made)
    assert made.SerializeToString() == before
    with pytest.raises(Exception, match="No Op registered") as error:
        ort.InferenceSession(before)
    assert unknown(str(error.value)) == "BesselI0e"
    assert unknown("No Op registered for TFL_SIGN with domain_version of 17") == "SIGN"
    assert unknown("out of memory") == ""

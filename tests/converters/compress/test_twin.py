"""The Keras model that is made of an ONNX graph, beside the graph itself in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.compress.network import read_network
from edgekit_converters.compress.twin import keras_twin
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.load import load

pytestmark = pytest.mark.convert


class Drawn:
    """An ONNX graph that grows node by node; weights are random."""

    def __init__(self, *shape: int) -> None:
        self.rng, self.nodes, self.weights = np.random.default_rng(0), [], []
        self.value, self.shape = "x", shape

    def constant(self, values: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def random(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.3).astype(np.float32))

    def put(self, op: str, *others: str, of: tuple[str, ...] = (), **attributes) -> str:
        from onnx import helper

        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*(of or (self.value,)), *others], [name], f"{op}_{name}", **attributes))
        self.value = name
        return name

    def load(self, path):
        from onnx import TensorProto, helper, save, shape_inference

        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *self.shape])]
        outputs = [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        save(shape_inference.infer_shapes(model), path)
        return load(path)


def _convolutions(net: Drawn) -> None:
    """As PyTorch exports them: padding on both sides of a strided window, batch norm behind, ReLU6 as Clip."""
    net.put("Conv", net.random(8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    net.put("BatchNormalization", *(net.constant(np.linspace(0.5, 1.5, 8, dtype=np.float32)) for _ in range(4)))
    net.put("Clip", net.constant(np.float32(0)), net.constant(np.float32(6)))
    net.put("Conv", net.random(16, 1, 3, 3), net.random(16), group=8, pads=[1, 1, 1, 1])
    net.put("Relu")
    net.put("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.put("Conv", net.random(8, 16, 3, 3), net.random(8), dilations=[2, 2], pads=[2, 2, 2, 2])
    net.put("GlobalAveragePool")
    net.put("Flatten", axis=1)
    net.put("Gemm", net.random(5, 8), net.random(5), transB=1)


def _branches(net: Drawn) -> None:
    stem = net.put("Conv", net.random(8, 3, 1, 1), net.random(8))
    gate = net.put("Sigmoid")
    net.put("Mul", of=(stem, gate))
    left = net.put("Conv", net.random(8, 8, 1, 1), net.random(8))
    net.put("Add", of=(left, stem))
    right = net.put("Relu")
    net.put("Concat", of=(right, left), axis=1)
    net.put("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    net.put("Resize", "", "", net.constant(np.array([1, 16, 16, 16], np.int64)), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    net.put("ReduceMean", axes=[2, 3], keepdims=0)
    net.put("Softmax", axis=1)


def _flattened(net: Drawn) -> None:
    """The order of a flattened picture is the graph's, channels first."""
    net.put("Mul", net.constant(np.float32(2.0)))
    net.put("Sub", net.constant(np.float32(1.0)))
    net.put("Pad", net.constant(np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64)))
    net.put("Conv", net.random(4, 3, 3, 3), net.random(4), strides=[2, 2])
    net.put("Tanh")
    net.put("Reshape", net.constant(np.array([-1, 4 * 8 * 8], np.int64)))
    net.put("MatMul", net.random(4 * 8 * 8, 6))
    net.put("Add", net.random(6))


def _picture_out(net: Drawn) -> None:
    net.put("Conv", net.random(4, 3, 3, 3), net.random(4), auto_pad="SAME_UPPER", strides=[2, 2])
    net.put("Transpose", perm=[0, 1, 3, 2])
    net.put("Conv", net.random(2, 4, 1, 1))


@pytest.mark.parametrize("draw", [_convolutions, _branches, _flattened, _picture_out])
def test_a_twin_answers_as_its_graph(draw, tmp_path):
    net = Drawn(3, 16, 16)
    draw(net)
    source = net.load(tmp_path / "net.onnx")
    twin = keras_twin(source)
    x = np.random.default_rng(7).standard_normal((3, 3, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(twin(x)), source.predict([x])[0], rtol=1e-3, atol=1e-4)
    assert tuple(twin.inputs[0].shape[1:]) == (3, 16, 16)
    assert read_network(twin).weights, "what is made is what can be trained"


def test_rows_need_no_picture(tmp_path):
    net = Drawn(12)
    net.put("Gemm", net.random(12, 6), net.random(6))
    net.put("Relu")
    net.put("Gemm", net.random(6, 3), net.random(3))
    assert len(read_network(keras_twin(net.load(tmp_path / "net.onnx"))).weights) == 2


REFUSED = {
    "LeakyRelu": (lambda net: net.put("LeakyRelu", alpha=0.1), "is a LeakyRelu whose 8-bit form is not simulated"),
    "groups": (lambda net: net.put("Conv", net.random(6, 1, 1, 1), group=3), None),
    "two groups": (
        lambda net: (net.put("Conv", net.random(4, 3, 1, 1)), net.put("Conv", net.random(4, 2, 1, 1), group=2)),
        "with 2 groups",
    ),
    "padded pool": (
        lambda net: net.put("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        "whose padding Keras does not have",
    ),
    "clip": (lambda net: net.put("Clip", net.constant(np.float32(-1)), net.constant(np.float32(1))), r"to -1.0..1.0"),
    "reflect": (
        lambda net: net.put("Pad", net.constant(np.array([0, 0, 1, 1] * 2, np.int64)), mode="reflect"),
        "zeros",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_operator_that_keras_has_not_is_refused_by_name(kind, tmp_path):
    draw, message = REFUSED[kind]
    net = Drawn(3, 16, 16)
    draw(net)
    net.put("Conv", net.random(2, 6 if kind == "groups" else 4 if kind == "two groups" else 3, 1, 1))
    source = net.load(tmp_path / "net.onnx")
    if message is None:
        keras_twin(source)
        return
    with pytest.raises(CompressError, match=message) as caught:
        keras_twin(source)
    assert caught.value.where == "net.onnx"
    assert "docs/compress.md" in caught.value.do

"""A linear classifier: a whole SourceModel in NumPy, and the same as an ONNX artifact. Real parts, no training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.contract.spec import TensorSpec


@dataclass(frozen=True)
class Linear:
    """scores = flatten(x) @ weights + bias. weights: [values, classes]."""

    weights: np.ndarray
    bias: np.ndarray
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    path: Path = Path("linear.model")
    format: str = "linear"
    sha256: str = hashlib.sha256(b"linear").hexdigest()
    state: str = "none"
    state_pairs: tuple[tuple[str, str], ...] = ()
    stated: str = ""
    items: list[np.ndarray] = field(default_factory=list)

    def predict(self, inputs):
        (x,) = inputs
        assert x.dtype == self.inputs[0].dtype
        assert len(x) == self.inputs[0].shape[0] or self.inputs[0].free_batch
        return [(x.reshape(len(x), -1) @ self.weights + self.bias).astype(np.float32)]

    def confirm(self, inputs, answers):
        """Nothing was taken for granted."""

    def onnx(self) -> bytes:
        return onnx_bytes(self.weights, self.bias, self.inputs[0].shape)


def linear(shape=(-1, 4), classes=3, *, layout=None, seed=0, weights=None) -> Linear:
    """A Linear with random weights. shape: of its one input `x`, batch first; its output is `scores`."""
    values = int(np.prod(shape[1:]))
    weights = np.random.default_rng(seed).normal(size=(values, classes)) if weights is None else weights
    return Linear(
        np.asarray(weights, np.float32),
        np.zeros(classes, np.float32),
        (TensorSpec("x", "x", "float32", tuple(shape), layout),),
        (TensorSpec("scores", "scores", "float32", (shape[0], classes)),),
    )


def onnx_artifact(source: Linear, weights=None) -> Artifact:
    """The source as an ONNX artifact, with other weights where given."""
    weights = source.weights if weights is None else np.asarray(weights, np.float32)
    data = onnx_bytes(weights, source.bias, source.inputs[0].shape)
    return Artifact(Recipe("onnx-f32", "onnx", "float32"), data, source.inputs, source.outputs, 0.0, 0.0, {})


def onnx_bytes(weights: np.ndarray, bias: np.ndarray, shape: tuple[int, ...]) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    dims = ["batch" if n == -1 else n for n in shape]
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [dims[0], weights.shape[1]])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return model.SerializeToString()

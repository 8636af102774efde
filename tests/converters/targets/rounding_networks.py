"""Small ONNX networks for these tests, made without any framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.formats.graph import Graph, open_graph


class Drawn:
    """Nodes and constants, one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, name: str, *shape: int, spread: float = 1.0) -> str:
        self.constants[name] = (self.random.normal(size=shape) * spread).astype(np.float32)
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def conv(self, data: str, output: str, shape: tuple[int, ...], **attributes: Any) -> str:
        names = [data, self.constant(f"{output}.w", *shape), self.constant(f"{output}.b", shape[0])]
        return self.add("Conv", names, output, **attributes)

    def graph(self, shape: tuple[int, ...], *outputs: str) -> Graph:
        made = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return open_graph("onnx", onnx.shape_inference.infer_shapes(model).SerializeToString())


def separable(seed: int = 0) -> Graph:
    """conv, ReLU, depthwise, ReLU, linear conv, sum, conv with ReLU6, rest of a classifier.

    The sum is with an earlier tensor.
    """
    drawn = Drawn(seed)
    drawn.add("Relu", [drawn.conv("x", "stem", (8, 3, 3, 3), pads=[1] * 4, strides=[2, 2])], "a")
    drawn.add("Relu", [drawn.conv("a", "depthwise", (8, 1, 3, 3), group=8, pads=[1] * 4)], "b")
    drawn.conv("b", "project", (8, 8, 1, 1))
    drawn.conv("b", "other", (8, 8, 1, 1))
    drawn.add("Add", ["project", "other"], "sum")
    drawn.conv("sum", "expand", (12, 8, 1, 1))
    drawn.constants |= {"zero": np.float32(0.0), "six": np.float32(6.0)}
    drawn.add("Clip", ["expand", "zero", "six"], "c")
    drawn.conv("c", "last", (5, 12, 3, 3))
    drawn.add("GlobalAveragePool", ["last"], "pooled")
    drawn.add("Flatten", ["pooled"], "flat")
    names = ["flat", drawn.constant("dense.w", 4, 5), drawn.constant("dense.b", 4)]
    drawn.add("Gemm", names, "y", transB=1)
    return drawn.graph((1, 3, 16, 16), "y")


def inputs(count: int, shape: tuple[int, ...] = (1, 3, 16, 16), seed: int = 1) -> list[list[np.ndarray]]:
    """Smooth pictures: neighbouring pixels are alike, as in photographs."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(count, *shape))
    smooth = sum(np.roll(noise, (i, j), (-1, -2)) for i in range(3) for j in range(3)) / 3
    return [[sample.astype(np.float32) + 0.5] for sample in smooth]


def outputs_of(graph: Graph, feeds: list[list[np.ndarray]]) -> np.ndarray:
    with graph.watch(graph.outputs) as watched:
        return np.concatenate([watched.run(feed)[graph.outputs[0]] for feed in feeds])

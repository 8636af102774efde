"""The model of the host benchmarks: an ONNX network of a few milliseconds, as a file and as a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgekit.packaging.assemble import BundleContent, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec

SHAPE = (3, 96, 96)
CLASSES = 100


def network(blocks: int = 4, channels: int = 64) -> bytes:
    """Convolutions of 3 x 3 on half the picture's side, then the mean and a dense layer; x: float32 [n, 3, 96, 96]."""
    from onnx import TensorProto, helper, numpy_helper

    rng, nodes, weights, at, width = np.random.default_rng(0), [], [], "x", SHAPE[0]
    for number in range(blocks + 1):
        value = rng.normal(0, 1.4 / np.sqrt(9 * width), (channels, width, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(value, f"w{number}"))
        stride = 2 if number == 0 else 1
        nodes.append(
            helper.make_node("Conv", [at, f"w{number}"], [f"c{number}"], strides=[stride] * 2, pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        at, width = f"r{number}", channels
    weights.append(numpy_helper.from_array(rng.normal(0, 0.1, (channels, CLASSES)).astype(np.float32), "dense"))
    nodes.append(helper.make_node("ReduceMean", [at], ["mean"], axes=[2, 3], keepdims=0))
    nodes.append(helper.make_node("MatMul", ["mean", "dense"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def bundle(folder: Path, data: bytes, threads: int = 1) -> Path:
    """The network as a bundle named `net`."""
    content = BundleContent(
        name="net",
        version="1",
        model_id="0" * 64,
        contract=Contract(
            "raw", (InputContract("x", SHAPE, "float32"),), (OutputContract("y", (CLASSES,), "float32"),)
        ),
        target=Target("host-cpu", "x86_64", threads=threads),
        artifact=Artifact(
            Recipe("onnx-f32", "onnx", "float32"),
            data,
            (TensorSpec("x", "x", "float32", (-1, *SHAPE), "NCHW"),),
            (TensorSpec("y", "y", "float32", (-1, CLASSES)),),
            0.0,
            0.0,
            {},
        ),
        golden=[{"x": np.full(SHAPE, 0.1, np.float32)}],
    )
    path = folder / "net.ekb"
    write_bundle(path, *assemble(content), [])
    return path

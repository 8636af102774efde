"""An INT8 ONNX classifier whose products saturate in 16 bits, or cannot, and an x86 processor without VNNI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import avx2_only
import numpy as np
import tiny

from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.board import Cpu
from edgekit_runtime.system.children import environment, python_code

AVX2_ONLY = Cpu("x86_64", frozenset({"avx", "avx2", "fma"}))
WITH_VNNI = Cpu("x86_64", frozenset({"avx2", "avx512f", "avx512_vnni"}))
ARM = Cpu("aarch64", frozenset())
YELLOW = tiny.colour(230, 230, 20)


def model_bytes(largest: int) -> bytes:
    """A convolution in QDQ form. largest: of the int8 weights; two products of 255 with 127 do not fit into 16 bits,
    with 60 they do.
    """
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).integers(largest // 2, largest + 1, (4, 3, 3, 3)).astype(np.int8)
    weights[:, 2] *= -1
    constants = {
        "w": weights, "ws": np.float32(0.01), "wz": np.int8(0), "xs": np.float32(1 / 255), "xz": np.uint8(0),
        "ys": np.float32(0.2), "yz": np.uint8(128),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["image", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("Conv", ["xd", "wd"], ["c"]),
        node("QuantizeLinear", ["c", "ys", "yz"], ["cq"]),
        node("DequantizeLinear", ["cq", "ys", "yz"], ["y"]),
        node("ReduceMean", ["y"], ["probs"], axes=[2, 3], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "saturating",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("probs", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def bundle(folder: Path, largest: int) -> Path:
    data = model_bytes(largest)
    with load_engine("onnx", data) as engine:
        inputs, outputs = engine.inputs, engine.outputs
    inputs = (type(inputs[0])(**{**vars(inputs[0]), "layout": "NCHW"}),)
    made = Artifact(Recipe("onnx-int8-qdq", "onnx", "int8"), data, inputs, outputs, 1.0, 1.0, {})
    folder.mkdir(exist_ok=True)
    golden = [{"image": YELLOW}, {"image": tiny.BLUE}]
    return tiny.bundle(folder, "onnx-f32", artifact=made, golden=golden)


def without_vnni(program: str, *arguments: str | Path) -> str:
    """Run a Python program as on an x86 with AVX2 alone: `avx2_only.missing` says where that cannot be. Returns what it
    printed.
    """
    line = avx2_only.command(python_code(program, *map(str, arguments)))
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""Models whose answers are their own input, so that a picture of noise is a detector's boxes: no weights are needed.

path = detector(folder, row="box scores", candidates="last")
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.contract.spec import (
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    OutputContract,
    Quantization,
    TensorSpec,
)

SIDE = 24
CLASSES = 5
LABELS = ("a, b", 'Jürgen\'s "Käse"', "日本 %s%n", "*/ int x; </script>", "\\ ??/ ${x} __WIDTH__")


DETECTORS = {
    "yolo, last": {"candidates": "last", "score_threshold": 0.93, "max_boxes": 7},
    "any class suppresses": {"candidates": "last", "score_threshold": 0.9, "class_aware": False, "iou_threshold": 0.1},
    "objectness": {"row": "box objectness scores", "format": "xywh", "score_threshold": 0.6},
    "objectness of logits": {"row": "box objectness scores", "activation": "sigmoid", "score_threshold": 0.5},
    "softmax": {"activation": "softmax", "background": "last", "format": "xyxy", "score_threshold": 0.24},
    "background first": {"background": "first", "format": "yxyx", "score_threshold": 0.9},
    "rows with classes": {"row": "box score class", "span": (24.0, 24.0), "score_threshold": 0.5, "suppressed": True},
    "scores apart": {"row": "box", "scores": "scores", "format": "yxyx", "score_threshold": 0.9},
    "scores apart, last": {"row": "box", "scores": "scores", "candidates": "last", "score_threshold": 0.95},
    "ssd": {
        "row": "box", "scores": "scores", "classes": "classes", "count": "count", "suppressed": True, "format": "yxyx",
        "background": "first", "score_threshold": 0.4,
    },
}  # fmt: skip
"""Detectors of each kind that a contract can describe: what `detector` takes."""


def write(folder, contract, inputs, outputs, nodes, constants=(), golden=None, **changes) -> Path:
    """A bundle of an ONNX graph."""
    kinds = {
        "float32": TensorProto.FLOAT,
        "int8": TensorProto.INT8,
        "uint8": TensorProto.UINT8,
        "int64": TensorProto.INT64,
    }
    ends = [
        [helper.make_tensor_value_info(t.tensor, kinds[t.dtype], t.shape) for t in end] for end in (inputs, outputs)
    ]
    graph = helper.make_graph(
        nodes, "mirrored", *ends, [numpy_helper.from_array(array, name) for name, array in constants]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    recipe = Recipe("onnx-f32", "onnx", "float32")
    artifact = Artifact(recipe, model.SerializeToString(), tuple(inputs), tuple(outputs), 0.0, 0.0, {})
    return tiny.bundle(folder, "onnx-f32", contract=contract, artifact=artifact, golden=golden, **changes)


def picture(seed: int, width: int = SIDE, height: int = SIDE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def image(**changes) -> ImageSpec:
    return ImageSpec(**{"height": SIDE, "width": SIDE, "mean": (0.0,) * 3, "std": (255.0,) * 3, **changes})


def input_of(spec: ImageSpec) -> InputContract:
    return InputContract("image", (spec.height, spec.width, spec.channels), "float32", spec)


def detector(
    folder: Path, spec: ImageSpec | None = None, counted: bool = False, stated: bool = False, **changes
) -> Path:
    """A detector whose candidates are the picture's numbers, in order."""
    spec = spec or image(resize="letterbox")
    detection = DetectionSpec(
        **{"boxes": "out", "row": "box scores", "format": "cxcywh", "span": (1.0, 1.0), **changes}
    )
    background = int(detection.background != "none")
    columns = {"box": 4, "box scores": 4 + CLASSES + background, "box objectness scores": 5 + CLASSES + background}
    width = columns.get(detection.row, 6)
    scores = CLASSES + background if detection.row == "box" and detection.scores else 0
    rows = SIDE * SIDE * 3 // (width + scores + int(stated) + 1)
    outputs, nodes, constants, at = [], [], [], 0
    parts = [
        ("out", width),
        ("scores", (1 if stated else scores) if detection.row == "box" else 0),
        ("classes", int(stated)),
    ]
    nodes.append(helper.make_node("Reshape", ["image", "flat"], ["numbers"]))
    constants.append(("flat", np.int64([1, -1])))
    for name, size in parts:
        if not size:
            continue
        shape = (rows, size) if detection.candidates == "first" else (size, rows)
        shape = (rows,) if name == "classes" or (name == "scores" and stated) else shape
        end = at + rows * size
        constants += [
            (f"{name}_from", np.int64([at])),
            (f"{name}_to", np.int64([end])),
            (f"{name}_axis", np.int64([1])),
        ]
        constants.append((f"{name}_shape", np.int64([1, *shape])))
        nodes.append(
            helper.make_node("Slice", ["numbers", f"{name}_from", f"{name}_to", f"{name}_axis"], [f"{name}_part"])
        )
        reshaped = name if name != "classes" else "classes_share"
        nodes.append(helper.make_node("Reshape", [f"{name}_part", f"{name}_shape"], [reshaped]))
        if name == "classes":  # whole numbers
            constants.append(("many", np.float32(CLASSES + 1)))
            nodes += [
                helper.make_node("Mul", ["classes_share", "many"], ["classes_real"]),
                helper.make_node("Floor", ["classes_real"], ["classes"]),
            ]
        outputs.append(TensorSpec(name, name, "float32", (1, *shape)))
        at = end
    if counted:
        constants += [
            ("count_from", np.int64([0])),
            ("count_to", np.int64([1])),
            ("count_axis", np.int64([1])),
            ("rows", np.float32(rows)),
        ]
        nodes.append(helper.make_node("Slice", ["numbers", "count_from", "count_to", "count_axis"], ["share"]))
        nodes += [
            helper.make_node("Mul", ["share", "rows"], ["count_real"]),
            helper.make_node("Floor", ["count_real"], ["count"]),
        ]
        outputs.append(TensorSpec("count", "count", "float32", (1, 1)))
    contract = Contract(
        "detection", (input_of(spec),), tuple(OutputContract(o.name, o.shape[1:], "float32") for o in outputs),
        labels=None if detection.row == "box score class" else LABELS[:CLASSES], detection=detection,
    )  # fmt: skip
    inputs = [TensorSpec("image", "image", "float32", (1, 3, SIDE, SIDE), "NCHW")]
    return write(folder, contract, inputs, outputs, nodes, constants, [{"image": picture(1)}])


def vector(
    folder: Path, spec: ImageSpec, dtype: str = "float32", layout: str = "NHWC", *, normalize: bool = False
) -> Path:
    """An embedding that is the tensor itself, as the file takes it: floats, or 8 bits with a scale."""
    shape = (spec.height, spec.width, spec.channels)
    size = int(np.prod(shape))
    quantization = None if dtype == "float32" else Quantization(1 / 127, 3 if dtype == "int8" else 120)
    lying = (1, *shape) if layout == "NHWC" else (1, shape[2], *shape[:2])
    inputs = [TensorSpec("image", "image", dtype, lying, layout, quantization)]
    outputs = [TensorSpec("vector", "vector:0", dtype, (1, size), None, quantization)]
    contract = Contract(
        "embedding", (input_of(spec),), (OutputContract("vector", (size,), "float32"),),
        embedding=EmbeddingSpec("vector", normalize),
    )  # fmt: skip
    nodes = [helper.make_node("Reshape", ["image", "flat"], ["vector:0"])]
    golden = [{"image": np.random.default_rng(3).integers(0, 256, shape, np.uint8)}]
    return write(folder, contract, inputs, outputs, nodes, [("flat", np.int64([1, size]))], golden)


def floats(
    folder: Path, *, quantized: bool = False, dtype: str = "float32", inputs: int = 1, free: bool = False
) -> Path:
    """A raw model without pictures: six numbers, and their place as an int64."""
    side = -1 if free else 6
    quantization = Quantization(0.05, -3) if quantized else None
    kind = "int8" if quantized else dtype
    taken = [TensorSpec(f"x{n}", f"x{n}", kind, (1, side), None, quantization) for n in range(inputs)]
    given = [TensorSpec("y", "y", kind, (1, side), None, quantization), TensorSpec("place", "place", "int64", (1, 1))]
    contract = Contract(
        "raw", tuple(InputContract(one.name, (6,), dtype) for one in taken),
        (OutputContract("y", (6,), dtype), OutputContract("place", (1,), "int64")),
    )  # fmt: skip
    nodes = [helper.make_node("Identity", ["x0"], ["y"]), helper.make_node("ArgMax", ["real"], ["place"], axis=1)]
    nodes.append(helper.make_node("Cast", ["x0"], ["real"], to=TensorProto.FLOAT))
    nodes = [nodes[0], nodes[2], nodes[1]]
    items = [{one.name: np.array([0.3, -7.0, 0.125, 2.0, 5.5, -0.1]).astype(dtype) for one in taken}]
    return write(folder, contract, taken, given, nodes, (), items)


def assert_printed(text, wanted):
    """The lines that an exported program prints of boxes: a label, its score, four sides."""
    found = [line.rsplit(" ", 5) for line in text.splitlines()]
    assert [label for label, *_ in found] == [one.label for one in wanted]
    for (_, *numbers), other in zip(found, wanted, strict=True):
        sides = (other.score, other.left, other.top, other.right, other.bottom)
        assert tuple(map(float, numbers)) == pytest.approx(sides, abs=0.051)

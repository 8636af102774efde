"""A contract file to begin with: the model's shapes, a family's usual values, what to check.

    draft(source, "torchvision")            # text that `describe` reads back as it is

Rules:
- a draft is accepted as it is, whatever the model; what it cannot know, or guesses from the shape alone, is a comment;
- a family is what its exporters write by default, and each such line says so; without a family nothing is said of
  pixels that the model file does not say itself;
- a vector is an embedding, not class scores, if it is called so, if made-up items give length 1, or if it is pooled
  over positions with no product behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.describe_contract import detect_scores
from edgekit_converters.data.output_kinds import FEW
from edgekit_converters.formats.graph import Layer, open_graph
from edgekit_converters.recipe.conversion_errors import ContractFileError, ConversionError
from edgekit_converters.sources.float_onnx import random_inputs
from edgekit_converters.sources.onnx_stated import detection_head
from edgekit_converters.sources.source_model import SourceModel, toml_key, toml_text
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.contract.spec import Contract, TensorSpec

Family = Literal["yolo", "ssd", "torchvision", "keras-app"]

_IMAGE = """
# kind = "image" takes photos and paths. Say what the model was trained on:
#   color = "rgb"                 or "bgr", "gray"
#   resize = "stretch"            or "center-crop" (with crop = 0.875), "letterbox"
#   mean = 0, std = 255           for pixels as 0..1; 0 and 1 for 0..255; 127.5 and 127.5 for -1..1"""
_PIXELS: dict[Family, tuple[str, dict[str, Any]]] = {
    "yolo": ("YOLO: the picture fits inside, grey around it; pixels as 0..1.", {"resize": "letterbox", "std": 255}),
    "ssd": ("SSD of TensorFlow: stretched; pixels as -1..1.", {"mean": 127.5, "std": 127.5}),
    "torchvision": (
        "torchvision: the middle of the picture; the mean and spread of ImageNet.",
        {"resize": "center-crop", "crop": 0.875, "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
    ),
    "keras-app": (
        "Keras Applications: MobileNet, Inception and Xception take -1..1. EfficientNet and MobileNetV3 take 0..255\n"
        '# (mean = 0, std = 1); VGG and ResNet color = "bgr", mean = [103.939, 116.779, 123.68], std = 1.',
        {"mean": 127.5, "std": 127.5},
    ),
}


def families() -> tuple[str, ...]:
    return get_args(Family)


def draft(source: SourceModel, like: Family | None = None, answered: Contract | None = None) -> str:
    """The text of a contract file.
    answered: the contract as `settle` leaves it, by answers to real items: nothing is a guess then.
    Raises ContractFileError for a family of picture models if no input is a picture."""
    said = parse_toml(source.stated)
    if like is None and said:
        return f"{_HEAD}# The model file itself says this:\n\n{source.stated}"
    task, tables = _task(source, like)
    if answered is not None and answered.task != task:
        comment, table = tables.get("classification", ("", {}))
        task, tables = answered.task, {"embedding": (comment, table)} if table and answered.embedding else {}
    lines = [f'task = "{task}"', *_labels(source, task, tables, said)]
    if answered is None and task == "classification" and like is None and not tables and not said:
        lines[0] = "# " + lines[0] + "   # by its shape: without this line the build looks at the answers"
    if task == "classification":
        scores = {"torchvision": '"logits"', "keras-app": '"probabilities"'}.get(like or "")
        why = "a softmax is taken of logits; left out, edgekit looks at the answers"
        if answered is not None and answered.scores is not None:
            scores, why = f'"{answered.scores}"', "by its answers"
        lines.append(f"scores = {scores}   # {why}" if scores else f'# scores = "logits"   # or "probabilities": {why}')
    lines += ["", *_inputs(source, like)]
    for name, (comment, table) in tables.items():
        lines += ["", f"# {comment}", toml_text({name: table}).strip()]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


_HEAD = "# What the numbers of this model mean. A draft: check each line.\n"


def left_to_say(source: SourceModel, text: str) -> tuple[str, ...]:
    """What a person should add before a build with photos or labels accepts it, a clause each."""
    document = parse_toml(text)
    found, task = [], document.get("task")
    if task is None:
        found.append("write `task`, which is a guess")
    if task in (None, "classification") and "labels" not in document:
        found.append("name the classes in `labels`, in the model's order")
    pictures = any(_channels(spec) in (1, 3) for spec in source.inputs)
    if task == "raw" and pictures and _ssd(source.outputs) is not None:
        found.append("if its outputs are boxes and scores, draft it again with --like ssd")
    scores = _scores(source) if task == "raw" else []
    if len(scores) > 1:
        names = " or ".join(f"'{spec.name}'" for spec in scores)
        found.append(f'if {names} names a class, write task = "classification" and [classification] with its `output`')
    inputs = document.get("inputs") or dict.fromkeys((spec.name for spec in source.inputs), document.get("input", {}))
    for spec in source.inputs:
        if _channels(spec) in (1, 3) and inputs.get(spec.name, {}).get("kind") == "tensor":
            found.append(f"if '{spec.name}' takes photos, replace kind = \"tensor\" as its comment says")
    return tuple(found)


def _labels(source: SourceModel, task: str, tables: Mapping[str, Any], said: Mapping[str, Any]) -> list[str]:
    if task not in ("classification", "detection"):
        return []
    chosen = tables.get("classification", ("", {}))[1].get("output")
    spec = next((one for one in source.outputs if one.name == chosen), source.outputs[0])
    count = f"{math.prod(spec.shape[1:])} names" if task == "classification" else "names"
    found = said.get("labels")
    fits = found and (task == "detection" or len(found) == math.prod(spec.shape[1:]))
    if fits:
        return [toml_text({"labels": found}).strip()]
    return [f'# labels = "labels.txt"   # {count}, one a line, in the order of the classes']


def _inputs(source: SourceModel, like: Family | None) -> list[str]:
    pictures = [spec for spec in source.inputs if _channels(spec) in (1, 3)]
    if like is not None and not pictures:
        what = f"no input of the model is a picture, and models like {like} take one"
        raise ContractFileError(what, where=str(source.path), do="Leave --like out")
    lines: list[str] = []
    for spec in source.inputs:
        shape = "[" + ", ".join(map(str, spec.shape[1:])) + "]"
        table: dict[str, Any] = {"kind": "tensor"}
        comment = f"# '{spec.name}' is {spec.dtype} {shape}."
        if spec in pictures[:1] and like is not None:
            why, pixels = _PIXELS[like]
            table = {"kind": "image", **_fitting(spec, pixels)}
            comment += f" {why}"
        elif spec in pictures:
            comment += _IMAGE
        header = "[input]" if len(source.inputs) == 1 else f"[inputs.{toml_key(spec.name)}]"
        lines += [comment, header, toml_text(table).strip(), ""]
    return lines[:-1]


def _channels(spec: TensorSpec) -> int:
    if spec.layout is None or len(spec.shape) != 4:
        return 0
    return spec.shape[3] if spec.layout == "NHWC" else spec.shape[1]


def _fitting(spec: TensorSpec, pixels: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of [input] that an input of this dtype and so many channels may have."""
    found = dict(pixels)
    scale = {"mean": found.pop("mean", 0), "std": found.pop("std")}
    if np.dtype(spec.dtype).kind in "iu":  # it takes pixels as they are
        return found
    if _channels(spec) == 1:
        scale = {key: round(sum(value) / 3, 3) if isinstance(value, list) else value for key, value in scale.items()}
    return {**found, **scale}


def _task(source: SourceModel, like: Family | None) -> tuple[str, dict[str, tuple[str, dict[str, Any]]]]:
    """(task, table -> (comment, keys))."""
    outputs = _outputs(source)
    shown = ", ".join(f"'{spec.name}' {list(spec.shape[1:])}" for spec in outputs)
    if like in ("yolo", "ssd"):
        head = _yolo(outputs) if like == "yolo" else _ssd(outputs)
        if head is not None:
            usual = "" if like == "yolo" else " Boxes as TensorFlow's: PyTorch's are mostly xyxy, in pixels."
            return "detection", {"detection": (f"The outputs: {shown}.{usual}", dict(head))}
        return "raw", {}
    classes = _scores(source)
    if not classes or (like is None and len(classes) > 1):
        return "raw", {}
    embeds = _is_vector(source, classes[0])
    if len(outputs) == 1:
        return ("embedding" if embeds else "classification"), {}
    if embeds:
        return "embedding", {"embedding": (f"Which output has the vector: {shown}.", {"output": classes[0].name})}
    return "classification", {"classification": (f"Which output has the scores: {shown}.", {"output": classes[0].name})}


def _is_vector(source: SourceModel, spec: TensorSpec) -> bool:
    """Whether a row of numbers is an embedding.
    By its name, by the answers to made-up items, or by the graph."""
    if any(word in spec.name.lower() for word in _VECTORS):
        return True
    if math.prod(spec.shape[1:]) < FEW:
        return False
    rows = _asked(source, spec)
    if rows is not None:
        if detect_scores(rows) == "probabilities":
            return False
        if bool((np.abs(np.linalg.norm(rows, axis=1) - 1) <= _UNIT).all()):
            return True
    if source.format not in ("onnx", "tflite"):  # others would have to be converted first
        return False
    try:
        data = source.onnx() if source.format == "onnx" else source.path.read_bytes()
        return _pooled(source.format, data, [one.name for one in source.outputs].index(spec.name))
    except (ConversionError, OSError):
        return False


_VECTORS = ("embed", "pool", "feature", "latent")
_UNIT = 1e-3


def _asked(source: SourceModel, spec: TensorSpec) -> NDArray[np.float64] | None:
    """[4, values] of one output for made-up items; None where the model takes more than them."""
    if source.state != "none":
        return None
    at = source.outputs.index(spec)
    batches = 1 if all(one.free_batch for one in source.inputs) else 4
    try:
        answers = [
            source.predict(random_inputs(source.inputs, 4 if batches == 1 else source.inputs[0].shape[0], seed))[at]
            for seed in range(batches)
        ]
    except Exception:  # noqa: BLE001  a model that refuses made-up items says nothing, by whatever error
        return None
    rows = np.concatenate([np.asarray(answer, np.float64).reshape(len(answer), -1) for answer in answers])
    return rows if np.isfinite(rows).all() and rows.any() else None


def _pooled(format: str, data: bytes, output: int) -> bool:  # noqa: A002
    """Whether an output is a mean, maximum or pick over positions, and no product follows.
    What is pooled is not a product's bare result either: a network of convolutions alone averages its scores."""
    graph = open_graph(format, data)
    made = {tensor: layer for layer in graph.layers for tensor in layer.outputs}

    def source_of(tensor: str) -> Layer | None:
        """The layer that computed a value, past what only moves or scales it."""
        layer = made.get(tensor)
        while layer is not None and layer.kind == "move" and layer.op not in _PICKS and layer.inputs:
            layer = made.get(layer.inputs[0])
        return layer

    layer = source_of(graph.outputs[output])
    if layer is not None and layer.op in ("Div", "DIV") and layer.inputs:  # a sum over a mask's
        layer = source_of(layer.inputs[0])
    if layer is None or not (layer.kind == "pool" or layer.op in _PICKS) or not layer.inputs:
        return False
    before = source_of(layer.inputs[0])
    if before is not None and before.op in ("Add", "ADD") and len(before.inputs) == 1:  # a product's bias
        before = source_of(before.inputs[0])
    return before is not None and not (before.kind in ("conv", "depthwise", "dense") and before.fused is None)


_PICKS = ("Gather", "Slice", "Split", "GATHER", "STRIDED_SLICE", "SLICE", "SPLIT")


def _outputs(source: SourceModel) -> list[TensorSpec]:
    """Without those that are a state."""
    carried = {output for _, output in source.state_pairs}
    return [spec for spec in source.outputs if spec.name not in carried]


def _scores(source: SourceModel) -> list[TensorSpec]:
    """Outputs that may have one score a class: rows of floats, not shaped as an input sequence.

    Not one number for each row of another output: a score beside each box.
    """
    given = {spec.shape[1:] for spec in source.inputs if len(spec.shape) > 2}
    given |= {
        spec.shape[1:2] + rest
        for spec in source.outputs
        if len(spec.shape) == 3 and spec.shape[2] > 1
        for rest in ((), (1,))
    }
    sizes = [(spec, max(spec.shape[1:], default=0)) for spec in _outputs(source) if np.dtype(spec.dtype).kind == "f"]
    return [
        spec for spec, most in sizes if most >= 2 and math.prod(spec.shape[1:]) == most and spec.shape[1:] not in given
    ]


def _yolo(outputs: Sequence[TensorSpec]) -> Mapping[str, Any] | None:
    """A YOLO head by its shape: the shorter of two axes holds the box and the classes."""
    if len(outputs) != 1 or len(outputs[0].shape) != 3:
        return None
    classes = min(outputs[0].shape[1:]) - 4
    return detection_head("detect", classes, outputs) if classes >= 1 else None


def _ssd(outputs: Sequence[TensorSpec]) -> Mapping[str, Any] | None:
    """An SSD head: boxes [N, 4], scores and classes [N], by their names.
    Else in the order of TFLite_Detection_PostProcess."""
    boxes = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[2] == 4]
    if len(boxes) != 1:
        return None
    rows = boxes[0].shape[1]
    keys = {"boxes": boxes[0].name, "row": "box"}
    common = {"format": "yxyx", "unit": "fraction"}
    tables = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[1] == rows and spec is not boxes[0]]
    if len(tables) == 1 and tables[0].shape[2] >= 2:
        return {**keys, "scores": tables[0].name, "candidates": "first", **common}
    columns = [spec for spec in outputs if spec.shape[1:] == (rows,)]
    scores = [spec for spec in columns if "score" in spec.name.lower()]
    if len(columns) != 2 or len(scores) > 1:
        return None
    first = scores[0] if scores else columns[1]
    other = next(spec for spec in columns if spec is not first)
    count = next((spec for spec in outputs if spec.shape[1:] in ((), (1,))), None)
    filled = {"count": count.name} if count is not None and rows > 1 else {}
    return {**keys, "scores": first.name, "classes": other.name, **filled, **common, "suppressed": True}

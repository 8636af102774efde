"""What a contract says, as the names and facts of a template: the same for JavaScript and C.

Rules:
- pixels are those of the Pillow here: 13 begins with the columns of a picture whose height shrinks far more;
- a program takes one input, a picture or floats of a fixed shape, and keeps no state;
- strides say where a detector's scores and boxes lie, so that a program has no layouts;
- the program's own picture arithmetic is checked by pictures that a rule makes: their pixels' Adler-32 is in it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.shipping.programs.artifact import FLOAT_STEP, ExportedArtifact
from edgekit_runtime.contract.kinds import kind_of, pictures
from edgekit_runtime.contract.picture import PADDING, pillow, render
from edgekit_runtime.contract.spec import DetectionSpec, ImageSpec, TensorSpec

NUMBERS = ("float32", "int8", "uint8")
"""Types of an input tensor."""
ANSWERS = (*NUMBERS, "int32", "int64")
"""Types of an output tensor."""
_CORNERS = {
    "xyxy": ("a", "b", "c", "d"),
    "yxyx": ("b", "a", "d", "c"),
    "xywh": ("a", "b", "a + c", "b + d"),
    "cxcywh": ("a - c / 2", "b - d / 2", "a + c / 2", "b + d / 2"),
}
Texts = dict[str, str]
Facts = dict[str, bool]
Literal = Callable[[Any], str]


def refusals(artifact: ExportedArtifact) -> Iterator[str]:
    """Why no program of one fixed input can be written."""
    contract, entry = artifact.contract, artifact.entry
    if contract.state != "none":
        yield "the model keeps a state"
    if len(entry.inputs) != 1:
        yield f"it has {len(entry.inputs)} inputs, and the program takes one"
    tensor, spec = entry.inputs[0], contract.input(entry.inputs[0].name)
    for one in (*entry.inputs, *entry.outputs):
        if any(side < 0 for side in one.shape[1:]):
            yield f"'{one.name}' has a free axis: {list(one.shape)}"
    if tensor.dtype not in NUMBERS:
        yield f"'{tensor.name}' is {tensor.dtype}, and the program gives {', '.join(NUMBERS)}"
    if not pictures([spec]) and (spec.dtype != "float32" or kind_of(spec).axes(spec, tensor, fits=_fits(artifact))):
        yield f"'{spec.name}' is {spec.dtype} {list(spec.shape)}, and the program takes a picture or floats as they lie"
    for one in entry.outputs:
        if one.dtype not in ANSWERS:
            yield f"'{one.name}' is {one.dtype}, and the program reads {', '.join(ANSWERS)}"


def golden_bin(artifact: ExportedArtifact) -> tuple[bytes, int]:
    """The examples one behind the other, and how many.
    An item, then each output as float32, little-endian."""
    data, count = b"", 0
    tensor = artifact.entry.inputs[0]
    dtype = np.dtype("uint8" if pictures(artifact.contract.inputs) else "<f4")
    for items, answers in artifact.golden():
        if items[tensor.name].dtype == dtype and len(answers) == len(artifact.entry.outputs):
            parts = [items[tensor.name], *(answers[one.name].astype("<f4") for one in artifact.entry.outputs)]
            data, count = data + b"".join(np.ascontiguousarray(part).tobytes() for part in parts), count + 1
    return data, count


def size_of(tensor: TensorSpec) -> int:
    return math.prod(tensor.shape[1:])


def allowed(artifact: ExportedArtifact, tensor: TensorSpec) -> float:
    """How far a value may lie from its golden one; 0 for a share of the largest."""
    return tensor.quantization.scale * artifact.steps if tensor.quantization else 0.0


def fillings(
    artifact: ExportedArtifact, literal: Literal, texts_of: Callable[[str], str], *, resizes: bool = True
) -> tuple[Texts, Facts]:
    """Texts and facts for a template.

    literal: of a name in the answer. texts_of: of a sentence.
    resizes: whether the program resizes pictures by itself, as Pillow here does, and checks that."""
    contract, tensor = artifact.contract, artifact.entry.inputs[0]
    picture, quantization = artifact.picture, tensor.quantization
    embedding, labels = contract.embedding, contract.labels or ()
    texts = {
        "TITLE": artifact.title,
        "EXAMPLES": str(golden_bin(artifact)[1]),
        "FLOAT_STEPS": repr(artifact.steps * FLOAT_STEP),
        "COSINE": repr(artifact.cosine),
        "DIFFERS": texts_of(f"differs: the golden answers are of {artifact.maker}"),
        "LABELS_SUM": str(zlib.adler32("\n".join(labels).encode())),
        "SCORES": literal(contract.outputs[0].name),
        "VECTOR": literal(embedding.output if embedding else contract.outputs[0].name),
    }
    if quantization is not None:
        limits = np.iinfo(tensor.dtype)
        texts |= {"LEAST": str(limits.min), "MOST": str(limits.max), "ZERO": str(quantization.zero_point)}
        texts |= {"SCALE": float32(quantization.scale)}
    facts = {
        "tflite": artifact.entry.format == "tflite",
        "onnx": artifact.entry.format == "onnx",
        "ncnn": artifact.entry.format == "ncnn",
        "picture": picture is not None,
        "quantized": quantization is not None,
        "labels": contract.labels is not None,
        "sums": contract.labels is not None or picture is not None,
        "classes": contract.task == "classification",
        "named": contract.task in ("classification", "detection"),
        "logits": contract.scores == "logits",
        "boxes": contract.task == "detection",
        "vector": contract.task == "embedding",
        "raw": contract.task == "raw",
        "normalize": embedding is not None and embedding.normalize,
    }
    if picture is not None:
        more, also = _picture(picture, tensor.layout == "NCHW")
        texts, facts = texts | more | (_resizing(picture) if resizes else {}), facts | also
    if contract.detection is not None:
        more, also = detection(artifact, contract.detection, literal)
        texts, facts = texts | more, facts | also
    return texts, facts


def float32(value: float) -> str:
    """A float32 in as many digits as it needs; a C compiler and JavaScript read the same number."""
    return repr(float(np.float32(value)))


def _fits(artifact: ExportedArtifact) -> bool:
    tensor = artifact.entry.inputs[0]
    return tuple(tensor.shape[1:]) == artifact.contract.input(tensor.name).shape


def _floats(values: NDArray[Any]) -> str:
    return ", ".join(float32(value) for value in values)


def _picture(image: ImageSpec, planar: bool) -> tuple[Texts, Facts]:
    mean, std = np.asarray(image.mean, np.float32), np.asarray(image.std, np.float32)
    texts = {
        "WIDTH": str(image.width),
        "HEIGHT": str(image.height),
        "CHANNELS": str(image.channels),
        "CROP": repr(image.crop),
        "PADDING": str(PADDING),
        "CHANNEL_STEP": str(image.width * image.height if planar else 1),
        "PIXEL_STEP": str(1 if planar else image.channels),
        "INTERPOLATION": image.interpolation,
        "REACH": "2" if image.interpolation == "bicubic" else "1",
        "MEAN": _floats(mean),
        "STD": _floats(std),
        "FACTOR": _floats((1.0 / std).astype(np.float32)),  # as `contract.pixels` rounds it
        "TERM": _floats((-mean / std).astype(np.float32)),
    }
    facts = {name: image.resize == name for name in ("stretch", "letterbox")}
    facts |= {"crop": image.resize == "center-crop"}
    facts |= {name: image.interpolation == name for name in ("nearest", "bilinear", "bicubic")}
    facts |= {name: image.color == name for name in ("gray", "rgb", "bgr")}
    return texts, facts


def _resizing(image: ImageSpec) -> Texts:
    tried = [(2 * image.width + 37, image.height // 2 + 11), (image.width + image.width // 3 + 1, 2 * image.height + 3)]
    return {
        "TALL_FIRST": str(int(int(pillow().__version__.partition(".")[0]) >= 13)),  # earlier ones scale rows first
        **{f"PICTURE_{n}": f"{w}, {h}, {_sum_of_pixels(w, h, image)}" for n, (w, h) in enumerate(tried, 1)},
    }


def _sum_of_pixels(width: int, height: int, image: ImageSpec) -> int:
    """The Adler-32 of the network's pixels of a picture that a rule makes."""
    y, x, c = np.mgrid[:height, :width, :3]
    drawn = (x * (3 + c) + y * (5 + 2 * c) + ((x * y) >> 4)).astype(np.uint8)
    return zlib.adler32(render(pillow().fromarray(drawn), image)[0].tobytes())


def detection(artifact: ExportedArtifact, spec: DetectionSpec, literal: Literal) -> tuple[Texts, Facts]:
    picture, outputs = artifact.picture, {output.name: output for output in artifact.contract.outputs}
    assert picture is not None
    boxes = outputs[spec.boxes].shape
    count, columns, step, following = _strides(boxes, spec)
    scores, at, first = spec.boxes, 4, int(spec.background == "first")
    score_step, score_next = step, following
    if spec.row == "box":
        assert spec.scores is not None
        scores, at = spec.scores, 0
        shape = outputs[spec.scores].shape
        single = spec.classes is not None or math.prod(shape) * 4 == math.prod(boxes)
        _, columns, score_step, score_next = (count, 1, 1, 1) if single else _strides(shape, spec)
    elif spec.row == "box objectness scores":
        at, columns = 5, columns - 5
    else:
        columns -= 4
    texts = {
        "BOXES": literal(spec.boxes),
        "SCORES": literal(scores),
        "COUNT": literal(spec.count) if spec.count else "",
        "CLASSES": literal(spec.classes or spec.boxes),
        "CLASS_AT": str(0 if spec.classes else 5 * following),
        "CLASS_STEP": str(1 if spec.classes else step),
        "CANDIDATES": str(count),
        "BOX_STEP": str(step),
        "BOX_NEXT": str(following),
        "SCORE_AT": str(at * (following if spec.row != "box" else 0)),
        "SCORE_STEP": str(score_step),
        "SCORE_NEXT": str(score_next),
        "COLUMNS": str(columns),
        "FIRST": str(first),
        "END": str(columns - int(spec.background == "last")),
        "SHIFT": str(first),
        "THRESHOLD": float32(spec.score_threshold),
        "IOU": repr(1.0 if spec.suppressed else float(spec.iou_threshold)),  # nothing overlaps by more than all
        "MOST_BOXES": str(spec.max_boxes),
        "SPAN_X": repr(picture.width / spec.span[0]),
        "SPAN_Y": repr(picture.height / spec.span[1]),
        "CORNERS": ", ".join(_CORNERS[spec.format]),
    }
    facts = {
        "count": spec.count is not None,
        "stated": spec.classes is not None or spec.row == "box score class",
        "softmax": spec.activation == "softmax",
        "sigmoid": spec.activation == "sigmoid",
        "objectness": spec.row == "box objectness scores",
        "class_aware": spec.class_aware,
    }
    return texts, facts


def _strides(shape: tuple[int, ...], spec: DetectionSpec) -> tuple[int, int, int, int]:
    """Candidates, their columns, the steps to the next candidate and to the next column.
    As `detect.rows_of` reads them."""
    if spec.candidates == "first":
        return math.prod(shape[:-1]), shape[-1], shape[-1], 1
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    rows = math.prod(shape[1:])
    return rows, shape[0], 1, rows

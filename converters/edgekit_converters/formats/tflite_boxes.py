"""A detector's raw outputs made TensorFlow's four inside its TFLite file.

    end_in_boxes(model, contract.detection, ["found"], classes=80)

Rules:
- the boxes are those of `edgekit_runtime.contract.detect`: one class a candidate, the same thresholds, the same most;
- TFLite_Detection_PostProcess, which TFLite, MediaPipe and Frigate know, suppresses: its anchors leave boxes as they
  are, and as it takes the exponential of sizes, it gets their logarithm;
- boxes are clipped to the network's picture; a candidate without width or height scores nothing, because that operator
  refuses negative sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats.tflite_file import schema
from edgekit_converters.formats.tflite_sides import append
from edgekit_runtime.contract.spec import DetectionSpec

_CENTRES = {  # y, x, height, width of a row's four numbers
    "cxcywh": ((0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)),
    "xywh": ((0, 1, 0, 0.5), (1, 0, 0.5, 0), (0, 0, 0, 1), (0, 0, 1, 0)),
    "xyxy": ((0, 0.5, 0, 0.5), (0.5, 0, 0.5, 0), (0, -1, 0, 1), (-1, 0, 1, 0)),
    "yxyx": ((0.5, 0, 0.5, 0), (0, 0.5, 0, 0.5), (-1, 0, 1, 0), (0, -1, 0, 1)),
}


def end_in_boxes(model: Any, spec: DetectionSpec, outputs: Sequence[str], classes: int) -> None:
    """Replace float32 outputs by TensorFlow's four.

    They are boxes [1, M, 4] as fractions y, x, y, x; classes [1, M]; scores [1, M]; count [1].

    outputs: their names in the contract, in the file's order.
    classes: how many there are where an output states them."""
    add, ends = partial(append, model), dict(zip(outputs, map(int, model.subgraphs[0].outputs), strict=True))
    rows, count, columns = _rows(model, ends[spec.boxes], spec)

    def part(table: int, begin: int, width: int) -> int:
        return add("SLICE", [table, [0, 0, begin], [1, count, width]], (1, count, width))

    stated = objectness = None
    if spec.row == "box":
        boxes, scores = rows, ends[str(spec.scores)]
        table = _reshape(model, scores, 1, count, 1)
        wide = prod(map(int, model.subgraphs[0].tensors[scores].shape)) // count
        if wide > 1:
            table, _, _ = _rows(model, scores, spec)
        if spec.classes is not None:
            stated = ends[spec.classes]
    else:
        boxes, begin = part(rows, 0, 4), 5 if spec.row == "box objectness scores" else 4
        objectness = part(rows, 4, 1) if begin == 5 else None
        stated = part(rows, 5, 1) if spec.row == "box score class" else None
        wide = columns - begin if stated is None else 1
        table = part(rows, begin, wide)
    if spec.activation == "sigmoid":
        table = add("LOGISTIC", [table])
        objectness = None if objectness is None else add("LOGISTIC", [objectness])
    elif spec.activation == "softmax":
        table = add("SOFTMAX", [table], beta=1.0)
    shift = int(spec.background == "first")
    if stated is None and spec.background != "none":
        wide -= 1
        table = part(table, shift, wide)
    if objectness is not None:
        table = add("MUL", [table, objectness])
    best = None  # a candidate has one class
    if stated is not None:
        wide = classes + shift
        best = add("CAST", [add("ADD", [_reshape(model, stated, 1, count), [0.5]])], dtype="INT32")
    elif wide > 1:
        best = add("ARG_MAX", [table, [2]], (1, count), "INT32", outputType=schema().TensorType.INT32)
    if best is not None:
        table = add("MUL", [add("ONE_HOT", [best, [wide], [1.0], [0.0]], (1, count, wide), axis=-1), table])
    if stated is not None and shift:
        wide, table = classes, part(table, shift, classes)
    matrix = np.array(_CENTRES[spec.format]) / np.array([spec.span[::-1] * 2]).T
    centre, size = (
        add("FULLY_CONNECTED", [boxes, half], (1, count, 2), version=5, keepNumDims=True)
        for half in (matrix[:2], matrix[2:])
    )
    seen = add("GREATER", [add("MINIMUM", [part(size, 0, 1), part(size, 1, 1)]), [0.0]], dtype="BOOL")
    table = add("MUL", [table, add("CAST", [seen])])
    size = add("LOG", [add("MAXIMUM", [size, [1e-6]])])
    _suppress(model, spec, add("CONCATENATION", [centre, size], (1, count, 4), axis=2), table, (count, wide))


def _reshape(model: Any, index: int, *shape: int) -> int:
    return append(model, "RESHAPE", [index, shape], shape)


def _rows(model: Any, index: int, spec: DetectionSpec) -> tuple[int, int, int]:
    """An output as [1, N, D], with N and D: see `detect.rows_of`."""
    shape = [int(side) for side in model.subgraphs[0].tensors[index].shape]
    if spec.candidates == "first":
        count, columns = prod(shape[:-1]), shape[-1]
        return _reshape(model, index, 1, count, columns), count, columns
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    columns, count = shape[0], prod(shape[1:])
    index = _reshape(model, index, 1, columns, count)
    return append(model, "TRANSPOSE", [index, [0, 2, 1]], (1, count, columns)), count, columns


def _suppress(model: Any, spec: DetectionSpec, boxes: int, table: int, shape: tuple[int, int]) -> None:
    from flatbuffers import flexbuffers  # type: ignore[import-untyped,unused-ignore]

    anchors = np.tile([0.0, 0.0, 1.0, 1.0], (shape[0], 1))
    most = spec.max_boxes
    first = append(model, "TFLite_Detection_PostProcess", [boxes, table, anchors], (1, most, 4))
    graph = model.subgraphs[0]
    operator = graph.operators[-1]
    for name, sides in (("classes", (1, most)), ("scores", (1, most)), ("count", (1,))):
        made = tfl.copied(graph.tensors[first], f"/{name}")
        made.shape = np.array(sides, np.int32)
        operator.outputs.append(tfl.add_tensor(graph, made))
    options = {
        "max_detections": most, "max_classes_per_detection": 1, "detections_per_class": most,
        "use_regular_nms": spec.class_aware and not spec.suppressed and shape[1] > 1, "num_classes": shape[1],
        "nms_score_threshold": max(float(spec.score_threshold), 1e-9),
        "nms_iou_threshold": 1.0 if spec.suppressed else max(float(spec.iou_threshold), 1e-9),
        **{f"{side}_scale": 1.0 for side in "yxhw"},
    }  # fmt: skip
    operator.customOptions = np.frombuffer(bytes(flexbuffers.Dumps(options)), np.uint8)
    inside = append(model, "MINIMUM", [append(model, "MAXIMUM", [first, [0.0]]), [1.0]])
    graph.outputs, model.signatureDefs = [inside, *operator.outputs[1:]], []

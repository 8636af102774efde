"""What an artifact asks of a processor, by its format."""

from __future__ import annotations

import importlib
from collections import Counter

from edgekit_converters.errors import ConversionError
from edgekit_converters.formats.onnx import parse
from edgekit_converters.workload.reading import WorkloadReading
from edgekit_profiles.workload import Precision, Workload

READERS = {
    "tflite": "edgekit_converters.workload.tflite:read",
    "onnx": "edgekit_converters.workload.onnx:read",
}


def read_workload(format: str, data: bytes, precision: Precision) -> Workload:  # noqa: A002
    """The operations of a model file, batch 1 where the file leaves the batch free.

    format: `tflite` or `onnx`. Raises ConversionError when the bytes are not such a model.
    """
    reading = _read(format, data)
    return Workload(precision, tuple(item.op for item in reading.counted), reading.unknown, reading.batch)


def quantized_fraction(format: str, data: bytes) -> tuple[float, float]:  # noqa: A002
    """Fractions (0..1) of multiply-accumulates and of weights in 8 bits or fewer.

    Work that cannot be counted is in neither part of the first: `uncounted_operations` names it. A model without
    such work or weights has 0.0. Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    macs = sum(item.op.macs for item in reading.counted)
    eight = sum(item.op.macs for item in reading.counted if item.eight_bit)
    return (eight / macs if macs else 0.0, reading.eight_bit_weights / reading.weights if reading.weights else 0.0)


def uncounted_operations(format: str, data: bytes) -> tuple[str, ...]:  # noqa: A002
    """Operations that multiply, how often the file does not say.
    These are loops, custom ones, and shapes that are free.

    Raises ConversionError as `read_workload` does.
    """
    return _read(format, data).uncounted


def _read(format: str, data: bytes) -> WorkloadReading:  # noqa: A002
    target = READERS.get(format)
    if target is None:
        what = f"nothing reads the operations of the format '{format}'"
        raise ConversionError(what, do=f"Known: {', '.join(READERS)}")
    module, function = target.split(":")
    reading: WorkloadReading = getattr(importlib.import_module(module), function)(data)
    return reading


def precision_of(format: str, data: bytes) -> str:  # noqa: A002
    """`float32`, `int8`, `dynamic` or `int16x8`: the precision of most of the work.

    8-bit weights times activations of the same kind are `int8`; times floats, which the engine quantizes on the way,
    `dynamic`; times 16 bits `int16x8`. Weights that are stored in 16-bit floats are multiplied in 32 (XNNPACK and ONNX
    Runtime unpack them first). Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    eight = [item for item in reading.counted if item.eight_bit and item.op.macs]
    if 2 * sum(item.op.macs for item in eight) <= sum(item.op.macs for item in reading.counted):
        return "float32"
    if format == "onnx":
        nodes = parse(data).graph.node
        return "dynamic" if any(node.op_type == "DynamicQuantizeLinear" for node in nodes) else "int8"
    work: Counter[str] = Counter()
    for item in eight:
        work[item.activation] += item.op.macs
    return {"INT8": "int8", "UINT8": "int8", "INT16": "int16x8"}.get(work.most_common(1)[0][0], "dynamic")

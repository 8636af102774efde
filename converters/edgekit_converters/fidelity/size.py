"""Where an artifact's bytes are: in 8-bit weights, in other constants, or in the graph around them.

size_breakdown("tflite", artifact.data).int8_weights
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekit_converters.fidelity.result import SizeBreakdown
from edgekit_converters.formats import onnx as onnx_file
from edgekit_converters.formats import tflite

__all__ = ["growth", "size_breakdown"]

_SMALL = {"tflite": {"INT8", "UINT8", "INT4", "UINT4", "INT2", "BOOL"}, "onnx": {"INT8", "UINT8", "INT4", "UINT4"}}


def size_breakdown(format: str, data: bytes) -> SizeBreakdown | None:  # noqa: A002
    """None for bytes that are no model of that format: a size is no reason to fail."""
    try:
        sizes = list(_tflite(data) if format == "tflite" else _onnx(data))
    except Exception:  # noqa: BLE001  a damaged file raises whatever its parser does
        return None
    small = sum(size for kind, size in sizes if kind in _SMALL[format])
    other = sum(size for kind, size in sizes if kind not in _SMALL[format])
    return SizeBreakdown(small, other, max(0, len(data) - small - other))


def growth(format: str, before: bytes, after: bytes) -> str:  # noqa: A002
    """How much larger a file is than the float file it was made from, and which part grew; "" below 5 % or 10 kB."""
    if len(after) <= max(1.05 * len(before), len(before) + 10_000):
        return ""
    old, new = size_breakdown(format, before), size_breakdown(format, after)
    text = f"{len(after) / len(before):.1f}x the size of the float file ({_kb(len(before))} to {_kb(len(after))})"
    if old is None or new is None:
        return text
    parts = {
        "operators, names and scales": new.graph - old.graph,
        "numbers wider than 8 bits": new.other_weights - old.other_weights,
        "8-bit numbers": new.int8_weights - old.int8_weights,
    }
    part = max(parts, key=lambda name: parts[name])
    return f"{text}: {part} take {_kb(parts[part])} more"


def _kb(size: int) -> str:
    return f"{size / 1000:.0f} kB"


def _tflite(data: bytes) -> Iterator[tuple[str, int]]:
    """(type, bytes) of every buffer that a tensor reads."""
    read_by = {tensor.buffer: tensor for graph in tflite.read(data).subgraphs for tensor in graph.tensors}
    for tensor in read_by.values():
        yield tensor.dtype, tensor.nbytes


def _onnx(data: bytes) -> Iterator[tuple[str, int]]:
    import onnx

    for tensor in onnx_file.tensors(onnx_file.parse(data)):
        yield onnx.TensorProto.DataType.Name(tensor.data_type), tensor.ByteSize()

"""What the engine's fast path takes of a file: asked of the engine itself, on this machine.

pieces, outside = fast_path("tflite", artifact.data)         # 22, ("HARD_SWISH", ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["fast_path"]

_DELEGATE = "DELEGATE"


def fast_path(format: str, data: bytes) -> tuple[int | None, tuple[str, ...]]:  # noqa: A002
    """(parts that XNNPACK runs as one, operators that it left to the plain kernels, one entry each).

    (None, ()) for ONNX, whose runtime does not tell, and where the engine cannot be asked.
    """
    if format != "tflite":
        return None, ()
    try:
        nodes = _nodes(data)
    except Exception:  # noqa: BLE001  the call is not public, and an engine without it is no fault of the file
        return None, ()
    pieces = [node for node in nodes if node["op_name"] == _DELEGATE]
    inside = {index for piece in pieces for index in _inside(piece, nodes)}
    plain = [node for node in nodes if node["op_name"] != _DELEGATE and node["index"] not in inside]
    return len(pieces), tuple(str(node["op_name"]) for node in plain)


def _nodes(data: bytes) -> Sequence[Mapping[str, Any]]:
    from ai_edge_litert.interpreter import Interpreter

    from edgekit_converters.sources.quiet import quiet

    with quiet():
        interpreter = Interpreter(model_content=data, num_threads=1)
        interpreter.allocate_tensors()
        nodes: Sequence[Mapping[str, Any]] = interpreter._get_ops_details()
    return nodes


def _inside(piece: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> set[int]:
    """The nodes between a piece's inputs and its outputs: the engine keeps those that it replaced in its list."""
    makers = {int(tensor): node for node in nodes if node["op_name"] != _DELEGATE for tensor in node["outputs"]}
    known = {int(tensor) for tensor in piece["inputs"]}
    left, found = [int(tensor) for tensor in piece["outputs"]], set()
    while left:
        tensor = left.pop()
        node = makers.get(tensor)
        if tensor in known or node is None or node["index"] in found:
            continue
        found.add(int(node["index"]))
        left.extend(int(source) for source in node["inputs"])
    return found

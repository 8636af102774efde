"""What an .onnx file asks of ONNX Runtime: the IR version, the operator sets, operators of other domains, shapes.

Rules: operators of ONNX Runtime's own domain and of ai.onnx.ml are no custom ones; an axis is empty where the file says 0,
and free where it says nothing or a name, the batch aside.
"""

from __future__ import annotations

from typing import Any

from edgekit_converters.needs.asked import Needs, Use
from edgekit_converters.onnx_bytes import parse

__all__ = ["read"]

_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})


def read(data: bytes) -> Needs:
    """Raises ConversionError when the bytes are not an ONNX model."""
    model = parse(data)
    opsets = {entry.domain if entry.domain != "ai.onnx" else "": int(entry.version) for entry in model.opset_import}
    own = {function.name for function in model.functions}
    ops: dict[str, Use] = {}
    custom: dict[str, Use] = {}
    for node in _nodes(model.graph):
        layer = node.name or (node.output[0] if node.output else node.op_type)
        if node.domain in _KNOWN:
            ops.setdefault(node.op_type, Use(node.op_type, opsets.get("", 1), layer))
        elif node.op_type not in own:
            name = f"{node.domain}.{node.op_type}"
            custom.setdefault(name, Use(name, opsets.get(node.domain, 1), layer))
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    constants = {tensor.name for tensor in model.graph.initializer}
    return Needs(
        "onnx",
        ops=tuple(ops.values()),
        custom=tuple(custom.values()),
        free_axes=tuple(value.name for value in model.graph.input if value.name not in constants and _free(value)),
        empty=tuple(dict.fromkeys(value.name for value in values if value.name not in constants and _empty(value))),
        ir=int(model.ir_version),
        opsets=opsets,
    )


def _nodes(graph: Any) -> list[Any]:
    """Those of the bodies of loops and branches too."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _nodes(attribute.g)
    return found


def _free(value: Any) -> bool:
    return any(not axis.HasField("dim_value") for axis in value.type.tensor_type.shape.dim[1:])


def _empty(value: Any) -> bool:
    return any(axis.HasField("dim_value") and axis.dim_value == 0 for axis in value.type.tensor_type.shape.dim)

"""What a .tflite file asks of its runtime: every subgraph, nothing run.

Rules: a dense layer's kernel counts as per channel where it has more than one scale, whatever version the operator
claims; an axis is empty where something is computed into it, so that the optional inputs that converters leave empty do
not count.
"""

from __future__ import annotations

from edgekit_converters.formats import tflite
from edgekit_converters.needs.rules import Needs, Use

__all__ = ["read"]

_BYTES = frozenset({"INT8", "UINT8", "INT4", "UINT4"})


def read(data: bytes) -> Needs:
    """Raises ConversionError when the bytes are not a TFLite model."""
    file = tflite.read(data)
    ops: dict[tuple[str, int], Use] = {}
    custom: dict[str, Use] = {}
    per_channel, hybrid, matmul, computed = list[str](), list[str](), list[str](), list[tflite.Tensor]()
    for graph in file.subgraphs:
        computed += [graph.tensors[index] for index in graph.inputs]
        for operator in graph.operators:
            inputs = [graph.tensors[index] if index >= 0 else None for index in operator.inputs]
            outputs = [graph.tensors[index] for index in operator.outputs]
            computed += outputs
            layer = outputs[0].name if outputs else operator.op
            use = Use(operator.op, operator.version, layer)
            if operator.custom:
                custom.setdefault(operator.op, use)
            else:
                ops.setdefault((operator.op, operator.version), use)
            types = [tensor.dtype if tensor is not None else "" for tensor in inputs[:2]]
            if operator.op == "FULLY_CONNECTED":
                kernel = inputs[1] if len(inputs) > 1 else None
                if (
                    kernel is not None
                    and kernel.affine is not None
                    and kernel.affine.scale.size > 1
                    and types[1] in _BYTES
                ):
                    if types[0] in _BYTES:
                        per_channel.append(layer)
                    elif types[0] == "FLOAT32":
                        hybrid.append(layer)
            elif operator.op == "BATCH_MATMUL" and types == ["INT8", "INT8"]:
                matmul.append(layer)
    return Needs(
        "tflite",
        ops=tuple(ops.values()),
        custom=tuple(custom.values()),
        per_channel_dense=tuple(per_channel),
        hybrid_dense=tuple(hybrid),
        int8_matmul=tuple(matmul),
        free_axes=tuple(dict.fromkeys(tensor.name for tensor in computed if not tensor.fixed)),
        empty=tuple(dict.fromkeys(tensor.name for tensor in computed if 0 in tensor.shape)),
        claimed=file.claimed,
    )

"""What a .tflite file asks of its runtime, from its flatbuffer: every subgraph, nothing run.

Rules: a dense layer's kernel counts as per channel where it has more than one scale, whatever version the operator claims;
an axis is empty where something is computed into it, so that the optional inputs that converters leave empty do not count.
"""

from __future__ import annotations

import struct
from typing import Any

from edgekit_converters.errors import ConversionError
from edgekit_converters.needs.asked import Needs, Use

__all__ = ["read"]

_CLAIM = b"min_runtime_version"
_BYTES = frozenset({"INT8", "UINT8", "INT4", "UINT4"})


def read(data: bytes) -> Needs:
    """Raises ConversionError when the bytes are not a TFLite model."""
    if data[4:8] != b"TFL3":
        raise ConversionError("these bytes are not a TFLite model")
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ConversionError(f"the TFLite model cannot be read: {error}") from error


def _read(data: bytes) -> Needs:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    found = _Found(model, _names(schema.BuiltinOperator), _names(schema.TensorType))
    for index in range(model.SubgraphsLength()):
        found.walk(model.Subgraphs(index))
    return Needs(
        "tflite",
        ops=tuple(found.ops.values()),
        custom=tuple(found.custom.values()),
        per_channel_dense=tuple(found.per_channel),
        hybrid_dense=tuple(found.hybrid),
        int8_matmul=tuple(found.matmul),
        free_axes=tuple(dict.fromkeys(found.free)),
        empty=tuple(dict.fromkeys(found.empty)),
        claimed=_claimed(model),
    )


class _Found:
    """What was seen so far, in the file's order."""

    def __init__(self, model: Any, ops: dict[int, str], types: dict[int, str]) -> None:
        self._types = types
        self._codes = [_code(model.OperatorCodes(index), ops) for index in range(model.OperatorCodesLength())]
        self.ops: dict[tuple[str, int], Use] = {}
        self.custom: dict[str, Use] = {}
        self.per_channel: list[str] = []
        self.hybrid: list[str] = []
        self.matmul: list[str] = []
        self.free: list[str] = []
        self.empty: list[str] = []

    def walk(self, graph: Any) -> None:
        for index in (graph.Inputs(i) for i in range(graph.InputsLength())):
            self._shape(graph.Tensors(index))
        for index in range(graph.OperatorsLength()):
            operator = graph.Operators(index)
            op, version, custom = self._codes[operator.OpcodeIndex()]
            inputs = [_tensor(graph, operator.Inputs(i)) for i in range(operator.InputsLength())]
            outputs = [graph.Tensors(operator.Outputs(i)) for i in range(operator.OutputsLength())]
            layer = _name(outputs[0]) if outputs else op
            use = Use(op, version, layer)
            if custom:
                self.custom.setdefault(op, use)
            else:
                self.ops.setdefault((op, version), use)
            for tensor in outputs:
                self._shape(tensor)
            if op == "FULLY_CONNECTED":
                self._dense(layer, inputs)
            elif op == "BATCH_MATMUL" and all(self._type(tensor) == "INT8" for tensor in inputs[:2]):
                self.matmul.append(layer)

    def _dense(self, layer: str, inputs: list[Any]) -> None:
        source, kernel = inputs[0], inputs[1]
        quantization = kernel.Quantization() if kernel is not None else None
        if quantization is None or quantization.ScaleLength() < 2 or self._type(kernel) not in _BYTES:
            return
        if self._type(source) in _BYTES:
            self.per_channel.append(layer)
        elif self._type(source) == "FLOAT32":
            self.hybrid.append(layer)

    def _shape(self, tensor: Any) -> None:
        sides = [tensor.Shape(axis) for axis in range(tensor.ShapeLength())]
        signature = [tensor.ShapeSignature(axis) for axis in range(tensor.ShapeSignatureLength())]
        if any(side < 0 for side in signature[1:]):
            self.free.append(_name(tensor))
        if 0 in sides:
            self.empty.append(_name(tensor))

    def _type(self, tensor: Any) -> str:
        return "" if tensor is None else self._types.get(tensor.Type(), "?")


def _code(entry: Any, ops: dict[int, str]) -> tuple[str, int, bool]:
    """Name, version, and whether it is no built-in operator."""
    custom = entry.CustomCode()
    if custom:
        return custom.decode("utf-8", "replace"), entry.Version(), True
    # Codes up to 127 stand in the older field, all of them in the newer; the larger is right either way.
    number = max(entry.DeprecatedBuiltinCode(), entry.BuiltinCode())
    return ops.get(number, f"operator {number}"), entry.Version(), False


def _tensor(graph: Any, index: int) -> Any:
    return graph.Tensors(index) if index >= 0 else None


def _name(tensor: Any) -> str:
    return str((tensor.Name() or b"").decode("utf-8", "replace"))


def _claimed(model: Any) -> str | None:
    for entry in (model.Metadata(index) for index in range(model.MetadataLength())):
        if entry.Name() == _CLAIM:
            buffer = model.Buffers(entry.Buffer())
            text = buffer.DataAsNumpy().tobytes() if buffer.DataLength() else b""
            return text.rstrip(b"\0").decode("ascii", "replace") or None
    return None


def _names(constants: Any) -> dict[int, str]:
    return {value: name for name, value in vars(constants).items() if isinstance(value, int)}

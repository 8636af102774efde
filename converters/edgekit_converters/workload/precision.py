"""In which precision a finished file computes: what its recipe would say, had it one.

    precision_of("tflite", data, reading)         # "int8", "dynamic", "float32" or "int16x8"

Rules: what most multiply-accumulates are done in decides. 8-bit weights times activations of the same kind are `int8`;
times floats, which the engine quantizes on the way, `dynamic`; times 16 bits `int16x8`. Weights that are stored in 16-bit
floats are multiplied in 32 (XNNPACK and ONNX Runtime unpack them first).
"""

from __future__ import annotations

from collections import Counter

from edgekit_converters.workload.reading import Reading
from edgekit_converters.workload.tflite import KERNELS, _names

__all__ = ["precision_of"]


def precision_of(format: str, data: bytes, reading: Reading) -> str:  # noqa: A002
    """reading: of these bytes. Raises ConversionError when they are not a model of that format."""
    eight = sum(item.op.macs for item in reading.counted if item.eight_bit)
    total = sum(item.op.macs for item in reading.counted)
    if 2 * eight <= total:
        return "float32"
    return _tflite(data, reading) if format == "tflite" else _onnx(data)


def _tflite(data: bytes, reading: Reading) -> str:
    """By the activations that the 8-bit kernels read."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    main = model.Subgraphs(0)
    types, names = _names(schema.TensorType), _names(schema.BuiltinOperator)
    macs = {item.op.name: item.op.macs for item in reading.counted if item.eight_bit}
    work: Counter[str] = Counter()
    for index in range(main.OperatorsLength()):
        operator = main.Operators(index)
        made = main.Tensors(operator.Outputs(0)).Name() if operator.OutputsLength() else None
        count = macs.get((made or b"").decode("utf-8", "replace"))
        code = model.OperatorCodes(operator.OpcodeIndex())
        kernel = KERNELS.get(names.get(max(code.DeprecatedBuiltinCode(), code.BuiltinCode()), "?"))
        if count and kernel is not None:
            work[types.get(main.Tensors(operator.Inputs(kernel[0])).Type(), "?")] += count
    kind = work.most_common(1)[0][0] if work else "?"
    return {"INT8": "int8", "UINT8": "int8", "INT16": "int16x8"}.get(kind, "dynamic")


def _onnx(data: bytes) -> str:
    import onnx

    nodes = onnx.load_model_from_string(data).graph.node
    return "dynamic" if any(node.op_type == "DynamicQuantizeLinear" for node in nodes) else "int8"

"""A .tflite file as a compiler for an accelerator leaves it, and a delegate that runs it: compiled here, no accelerator
at hand.
"""

from __future__ import annotations

from pathlib import Path

from native import compiled

from edgekit_converters.formats import tflite_edit as tfl

SOURCE = Path(__file__).parents[1] / "runtime/engines/accelerator.c"


def model_bytes(operator: str = "edgetpu-custom-op") -> bytes:
    """int8 [1, 4] -> int8 [1, 4], all of it in one custom operator."""
    schema = tfl.schema()
    model, graph, code, node = schema.ModelT(), schema.SubGraphT(), schema.OperatorCodeT(), schema.OperatorT()
    graph.tensors = []
    for name in (b"x", b"y"):
        tensor, quantization = schema.TensorT(), schema.QuantizationParametersT()
        tensor.shape, tensor.type, tensor.name, tensor.buffer = [1, 4], schema.TensorType.INT8, name, 0
        quantization.scale, quantization.zeroPoint = [0.1], [0]
        tensor.quantization = quantization
        graph.tensors.append(tensor)
    code.builtinCode, code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM, schema.BuiltinOperator.CUSTOM
    code.customCode, code.version = operator.encode(), 1
    node.opcodeIndex, node.inputs, node.outputs, node.customOptions = 0, [0], [1], list(b"compiled program")
    graph.inputs, graph.outputs, graph.operators = [0], [1], [node]
    model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], [schema.BufferT()], [code]
    return tfl.write(model)


def delegate(folder: Path) -> Path:
    return compiled(SOURCE, folder / "libedgetpu.so.1")

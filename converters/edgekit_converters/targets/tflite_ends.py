"""The inputs and outputs of a quantized .tflite file: integers wherever the graph itself begins or ends in integers.

A quantizer leaves float ends with QUANTIZE and DEQUANTIZE inside; here these go, and the caller's contract does the
scaling. An end that a float layer reads or makes stays float: scaling it to 8 bits would cost accuracy and save nothing.

    integer_ends(model)         # a ModelT, in place
"""

from __future__ import annotations

from typing import Any

from edgekit_converters.formats import tflite_edit as tfl

__all__ = ["integer_ends"]


def integer_ends(model: Any) -> None:
    """Change the main subgraph in place. Tensors that nothing names any more are left to `compact`."""
    graph = model.subgraphs[0]
    moved: dict[int, int] = {}
    for index in [int(index) for index in graph.inputs]:
        new = _integer_input(model, graph, index)
        if new is not None:
            moved[index] = new
    graph.inputs = [moved.get(int(index), int(index)) for index in graph.inputs]
    for index in [int(index) for index in graph.outputs]:
        new = _integer_output(model, graph, index)
        if new is not None and new not in moved.values():
            moved[index] = new
            graph.operators = [op for op in graph.operators if list(op.outputs) != [index]]
    graph.outputs = [moved.get(int(index), int(index)) for index in graph.outputs]
    for old, new in moved.items():
        graph.tensors[new].name = graph.tensors[old].name
    for signature in model.signatureDefs or ():
        if signature.subgraphIndex == 0:
            for end in (*(signature.inputs or ()), *(signature.outputs or ())):
                end.tensorIndex = moved.get(int(end.tensorIndex), int(end.tensorIndex))


def _integer_input(model: Any, graph: Any, index: int) -> int | None:
    """The integer tensor that takes the place of a float input; its QUANTIZE operators are removed."""
    if tfl.type_of(graph.tensors[index]) != "FLOAT32" or index in graph.outputs:
        return None
    readers = [op for op in graph.operators if index in op.inputs]
    if not readers or any(tfl.op_of(model, op) != "QUANTIZE" for op in readers):
        return None
    made = [int(op.outputs[0]) for op in readers]
    if len({_form(graph.tensors[tensor]) for tensor in made}) != 1 or any(tensor in graph.outputs for tensor in made):
        return None
    graph.operators = [op for op in graph.operators if all(op is not reader for reader in readers)]
    tfl.swap(graph, dict.fromkeys(made, made[0]))
    return made[0]


def _integer_output(model: Any, graph: Any, index: int) -> int | None:
    if tfl.type_of(graph.tensors[index]) != "FLOAT32" or any(index in op.inputs for op in graph.operators):
        return None
    maker = next((op for op in graph.operators if index in op.outputs), None)
    if maker is None or tfl.op_of(model, maker) != "DEQUANTIZE":
        return None
    source = int(maker.inputs[0])
    plain = tfl.type_of(graph.tensors[source]) in ("INT8", "INT16") and not tfl.is_constant(
        model, graph.tensors[source]
    )
    return source if plain and source not in graph.inputs and source not in graph.outputs else None


def _form(tensor: Any) -> tuple[Any, ...]:
    quantization = tensor.quantization
    return (tfl.type_of(tensor), *(float(x) for x in quantization.scale), *(int(x) for x in quantization.zeroPoint))

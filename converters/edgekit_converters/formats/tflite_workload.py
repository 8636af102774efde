"""The operations of a .tflite file, without running it.

Rules:
- reshapes, shape arithmetic and whatever has only constant inputs take no time;
- a product of two computed tensors, as in attention, has no kernel;
- a WHILE is recurrent: its body's operations times its trips, if its condition compares a counter with a constant;
- other control flow and custom operations are unknown;
- a kernel in 8 bits makes 8-bit arithmetic, also with float activations, unless it is dequantized first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.tflite_file import Operator, Subgraph, Tensor, TfliteFile
from edgekit_converters.formats.workload import (
    WorkloadReading,
    convolution_kind,
    dense_kind,
    operators,
    recurrent,
    repeated,
)
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.workload import Op, OpKind

OPERATORS = operators("tflite")
# Where an operation that multiplies keeps its input and its kernel.
KERNELS = {"CONV_2D": (0, 1), "DEPTHWISE_CONV_2D": (0, 1), "FULLY_CONNECTED": (0, 1), "TRANSPOSE_CONV": (2, 1)}
SEQUENCES = frozenset(f"{ways}DIRECTIONAL_SEQUENCE_{cell}" for ways in ("UNI", "BI") for cell in ("LSTM", "RNN"))
# LESS and the like with the counter first -> (which operand is the counter, how much is added to the limit)
COMPARISONS = {"LESS": (0, 0), "LESS_EQUAL": (0, 1), "GREATER": (1, 0), "GREATER_EQUAL": (1, 1)}
EIGHT_BITS = frozenset({"INT8", "UINT8", "INT4", "UINT4", "INT2"})
WEIGHT_TYPES = EIGHT_BITS | {"FLOAT32", "FLOAT16", "BFLOAT16", "INT16"}


class _TFLiteCounter(WorkloadReading):
    """Counts a subgraph.

    constants: index -> the type it is stored in. bodies: of the loops counted. loop: the WHILE it belongs to.
    """

    def __init__(self, data: bytes, file: TfliteFile, graph: Subgraph, loop: Operator | None = None) -> None:
        super().__init__()
        self.data, self.file, self.graph, self.loop, self.tensors = data, file, graph, loop, graph.tensors
        self.constants = {index: item.dtype for index, item in enumerate(graph.tensors) if item.constant}
        self.bodies: dict[int, Subgraph] = {}


def read(data: bytes) -> WorkloadReading:
    """Count a .tflite model. Raises ConversionError for other bytes."""
    file = tflite.read(data)
    main = file.main
    graph = _TFLiteCounter(data, file, main)
    try:
        for operator in main.operators:
            _count(graph, operator)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise ConversionError(f"an operation of the TFLite model is malformed: {error}") from error
    tensors = [tensor for one in (main, *graph.bodies.values()) for tensor in one.tensors]
    weights = [t for t in tensors if t.constant and len(t.shape) > 1 and t.dtype in WEIGHT_TYPES]
    # The first axis of the first input with two axes or more; 1 where the file leaves it free.
    first = next((main.tensors[index] for index in main.inputs if len(main.tensors[index].shape) > 1), None)
    free = first is None or any(side < 0 for side in first.signature[:1])
    eight = sum(item.elements for item in weights if item.dtype in EIGHT_BITS)
    graph.batch = 1 if first is None or free else first.shape[0]
    graph.weights, graph.eight_bit_weights = sum(item.elements for item in weights), eight
    return graph


def _count(graph: _TFLiteCounter, operator: Operator) -> None:
    name = f"custom {operator.op}" if operator.custom else operator.op
    inputs, outputs = [index for index in operator.inputs if index >= 0], operator.outputs
    if name == "SHAPE" or (inputs and all(index in graph.constants for index in inputs)):
        stored = graph.constants.get(inputs[0], "INT32") if inputs else "INT32"
        graph.constants.update(dict.fromkeys(outputs, stored))
    elif name in OPERATORS.free:
        return
    elif name in KERNELS:
        _count_kernel(graph, operator, name)
    elif name in OPERATORS.moving:
        read = outputs if name == "GATHER" else inputs
        moved = sum(graph.tensors[index].elements for index in (*read, *outputs) if index not in graph.constants)
        moved *= OPERATORS.slower.get(name, 1)
        graph.counted.append(Op("ew", 0, moved, 0, graph.tensors[outputs[0]].name))
    elif name in SEQUENCES:
        # the rows of the input are its steps
        source = graph.tensors[operator.inputs[0]]
        weights = [graph.tensors[at] for at in operator.inputs[1:] if at >= 0 and len(graph.tensors[at].shape) > 1]
        constants = [item for item in weights if item.constant]
        if not source.fixed or not constants:
            graph.unknown.append(f"{name} of a shape known only at run time")
            return
        result = graph.tensors[outputs[0]]
        held = sum(item.elements for item in constants)
        moved = source.elements + result.elements
        op = recurrent(source.elements // source.shape[-1], moved, held, result.name)
        eight_bits = source.dtype in EIGHT_BITS and all(item.dtype in EIGHT_BITS for item in constants)
        graph.counted.append(replace(op, eight_bit=eight_bits, activation=source.dtype))
    elif name == "BATCH_MATMUL":
        one, other, result = (graph.tensors[index] for index in (inputs[0], inputs[1], outputs[0]))
        if one.fixed and other.fixed and result.fixed and len(one.shape) > 1:
            # [.., n, k] x [.., k, m] -> [.., n, m]: n k / n = k, whichever is transposed
            depth = one.elements // max(1, prod(one.shape[:-2]) * result.shape[-2])
            graph.counted.append(_product(graph, inputs, result, result.elements * depth))
        else:
            graph.unknown.append(f"{name} of a shape known only at run time")
    elif operator.loop is not None and graph.loop is None and (trips := _trips(graph, operator)) is not None:
        _count_loop(graph, operator, trips)
    else:
        graph.unknown.append(name)


def _trips(graph: _TFLiteCounter, loop: Operator) -> int | None:
    """Return how often a WHILE runs its body, None if unknown.

    Its condition is a comparison of a counter, which the body increments by one, with a constant, or several such.
    """
    condition, body = (graph.file.subgraphs[index] for index in loop.loop or ())
    makers = {output: one for one in condition.operators for output in one.outputs}
    steps = {one.outputs[0]: one.inputs for one in body.operators if one.op == "ADD"}
    trips, pending = [], list(condition.outputs)
    while pending:
        maker = makers.pop(pending.pop(), None)  # each once, also in a file whose condition reads itself
        if maker is not None and maker.op == "LOGICAL_AND":
            pending += maker.inputs
            continue
        if maker is None or maker.op not in COMPARISONS:
            return None
        at, beyond = COMPARISONS[maker.op]
        counter, limit = maker.inputs[at], maker.inputs[1 - at]
        if counter not in condition.inputs:
            return None
        place = condition.inputs.index(counter)
        start, last = _integer(graph, graph.graph, loop.inputs[place]), _integer(graph, condition, limit)
        if last is None and limit in condition.inputs:
            kept = condition.inputs.index(limit)
            if body.outputs[kept] == body.inputs[kept]:
                last = _integer(graph, graph.graph, loop.inputs[kept])
        added = [index for index in steps.get(body.outputs[place], ()) if index != body.inputs[place]]
        if start is None or last is None or [_integer(graph, body, index) for index in added] != [1]:
            return None
        trips.append(max(0, last + beyond - start))
    return min(trips, default=None)


def _integer(graph: _TFLiteCounter, where: Subgraph, index: int) -> int | None:
    tensor = where.tensors[index]
    if not tensor.constant or tensor.elements != 1 or tensor.dtype not in ("INT32", "INT64"):
        return None
    return int(tflite.stored_values(graph.data, tensor).reshape(-1)[0])


def _count_loop(graph: _TFLiteCounter, loop: Operator, trips: int) -> None:
    """Count a WHILE: one operation for each kind in its body.

    A step costs one dispatch, though it has some twenty operations: those inside a loop wake no other threads. With
    LiteRT 2.3 on x86-64 a step of a GRU of 16 took 1/6 of a dispatch as fitted, beside MobileNetV1.
    """
    condition, body = (graph.file.subgraphs[index] for index in loop.loop or ())
    # What the body passes on as it came keeps the type of a constant given to the loop.
    kept = {
        place: graph.constants[index]
        for place, index in enumerate(loop.inputs)
        if body.outputs[place] == body.inputs[place] and index in graph.constants
    }
    counted: list[Op] = []
    for part in (condition, body):
        inner = _TFLiteCounter(graph.data, graph.file, part, loop)
        inner.constants.update({part.inputs[place]: dtype for place, dtype in kept.items()})
        for operator in part.operators:
            _count(inner, operator)
        graph.unknown += inner.unknown
        counted += inner.counted
    graph.bodies[(loop.loop or (0, 0))[1]] = body
    graph.counted += repeated(counted, trips, graph.tensors[loop.outputs[0]].name)


def _count_kernel(graph: _TFLiteCounter, operator: Operator, name: str) -> None:
    """Count a layer with a kernel.
    Kernels are [out, height, width, in], depthwise [1, height, width, out], dense [out, in]."""
    at, kernel_at = KERNELS[name]
    source, result = graph.tensors[operator.inputs[at]], graph.tensors[operator.outputs[0]]
    index = operator.inputs[kernel_at]
    kernel = graph.tensors[index]
    fixed = source.fixed and result.fixed
    if index not in graph.constants:
        if name == "FULLY_CONNECTED" and fixed and kernel.fixed:
            macs = result.elements * kernel.shape[-1]
            graph.counted.append(_product(graph, operator.inputs[:2], result, macs))
        else:
            graph.unknown.append(f"{name} of two computed tensors")
        return
    if not fixed:
        graph.unknown.append(f"{name} of a shape known only at run time")
        return
    kind: OpKind
    if name == "DEPTHWISE_CONV_2D":
        kind, macs = "dw", result.elements * prod(kernel.shape[1:3])
    elif name == "TRANSPOSE_CONV":
        kind, macs = "cx", source.elements * prod(kernel.shape[:3])
    else:
        macs = result.elements * prod(kernel.shape[1:])
        if name == "FULLY_CONNECTED":
            kind = dense_kind(result.elements // kernel.shape[0])
        else:
            kind = convolution_kind(kernel.shape[1:3], operator.strides, operator.dilations)
    # A kernel that is constant only after DEQUANTIZE is float by the time it multiplies.
    integers, moved = kernel.constant and kernel.dtype in EIGHT_BITS, source.elements + result.elements
    op = Op(kind, macs, moved, kernel.elements, result.name, eight_bit=integers, activation=source.dtype)
    graph.counted.append(op)


def _product(counter: _TFLiteCounter, factors: Sequence[int], result: Tensor, macs: int) -> Op:
    """Count a matrix product whose factors are not a kernel."""
    one, other = (counter.tensors[index] for index in factors)
    constant = sum(counter.tensors[index].elements for index in factors if index in counter.constants)
    moved = one.elements + other.elements + result.elements - constant
    rows = result.shape[-2] if len(result.shape) > 1 else 1
    op = Op(dense_kind(rows), macs, moved, constant, result.name, computed=not constant)
    return replace(op, eight_bit={one.dtype, other.dtype} <= EIGHT_BITS, activation=one.dtype)

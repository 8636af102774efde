"""The operations of a .tflite file. Nothing is run, and only the main graph is read.

Rules: reshapes, shape arithmetic and whatever has only constant inputs take no time; a product of two computed tensors,
as in attention, has no kernel; control flow and custom operations are unknown; a kernel in 8 bits
makes 8-bit arithmetic (with float activations too: the hybrid kernels quantize them on the fly), unless it is
dequantized first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.tflite_file import Operator, Tensor
from edgekit_converters.formats.workload import (
    CountedOperation,
    WorkloadReading,
    convolution_kind,
    dense_kind,
    multiplies,
    recurrent,
)
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.workload import Op, OpKind

FREE = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})
_ELEMENTWISE = """ABS ADD ADD_N ARG_MAX ARG_MIN ATAN2 AVERAGE_POOL_2D BATCH_TO_SPACE_ND BROADCAST_TO CAST CEIL
    CONCATENATION COS DEPTH_TO_SPACE DEQUANTIZE DIV ELU EQUAL EXP FILL FLOOR FLOOR_DIV FLOOR_MOD GATHER GATHER_ND GELU
    GREATER GREATER_EQUAL HARD_SWISH L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOCAL_RESPONSE_NORMALIZATION LOG
    LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG
    NOT_EQUAL ONE_HOT PACK PAD PADV2 POW PRELU QUANTIZE RANGE REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD
    RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE REVERSE_V2 ROUND RSQRT
    SCATTER_ND SELECT SELECT_V2 SIGN SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE
    SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE UNPACK ZEROS_LIKE"""
# What takes as many times longer for each element that it moves; measured beside MUL with LiteRT 2.3 on x86-64.
SLOWER = {"CUMSUM": 5, "TOPK_V2": 40}
ELEMENTWISE = frozenset([*_ELEMENTWISE.split(), *SLOWER])
# Where an operation that multiplies keeps its input and its kernel.
KERNELS = {"CONV_2D": (0, 1), "DEPTHWISE_CONV_2D": (0, 1), "FULLY_CONNECTED": (0, 1), "TRANSPOSE_CONV": (2, 1)}
SEQUENCES = frozenset({"UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN"})
EIGHT_BITS = frozenset({"INT8", "UINT8", "INT4", "UINT4", "INT2"})
WEIGHT_TYPES = EIGHT_BITS | {"FLOAT32", "FLOAT16", "BFLOAT16", "INT16"}


@dataclass
class _TFLiteCounter:
    """What is known so far while the operators are walked in order.
    constants: index -> the type it is stored in."""

    tensors: Sequence[Tensor]
    constants: dict[int, str]
    counted: list[CountedOperation] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)

    def give_up(self, name: str) -> None:
        """An operation whose time is not known."""
        self.unknown.append(name)
        if multiplies(name):
            self.uncounted.append(name)


def read(data: bytes) -> WorkloadReading:
    """Raises ConversionError when the bytes are not a TFLite model."""
    main = tflite.read(data).main
    graph = _TFLiteCounter(
        main.tensors, {index: item.dtype for index, item in enumerate(main.tensors) if item.constant}
    )
    try:
        for operator in main.operators:
            _count(graph, operator)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise ConversionError(f"an operation of the TFLite model is malformed: {error}") from error
    weights = [t for t in main.tensors if t.constant and len(t.shape) > 1 and t.dtype in WEIGHT_TYPES]
    # The first axis of the first input with two axes or more; 1 where the file leaves it free.
    first = next((main.tensors[index] for index in main.inputs if len(main.tensors[index].shape) > 1), None)
    free = first is None or any(side < 0 for side in first.signature[:1])
    return WorkloadReading(
        tuple(graph.counted),
        tuple(dict.fromkeys(graph.unknown)),
        1 if first is None or free else first.shape[0],
        sum(item.elements for item in weights),
        sum(item.elements for item in weights if item.dtype in EIGHT_BITS),
        tuple(dict.fromkeys(graph.uncounted)),
    )


def _count(graph: _TFLiteCounter, operator: Operator) -> None:
    name = f"custom {operator.op}" if operator.custom else operator.op
    inputs, outputs = [index for index in operator.inputs if index >= 0], operator.outputs
    if name == "SHAPE" or (inputs and all(index in graph.constants for index in inputs)):
        stored = graph.constants.get(inputs[0], "INT32") if inputs else "INT32"
        graph.constants.update(dict.fromkeys(outputs, stored))
    elif name in FREE:
        return
    elif name in KERNELS:
        _count_kernel(graph, operator, name)
    elif name in ELEMENTWISE:
        moved = sum(graph.tensors[index].elements for index in (*inputs, *outputs) if index not in graph.constants)
        moved *= SLOWER.get(name, 1)
        graph.counted.append(CountedOperation(Op("ew", 0, moved, 0, graph.tensors[outputs[0]].name)))
    elif name in SEQUENCES:
        # the rows of the input are its steps
        source = graph.tensors[operator.inputs[0]]
        weights = [graph.tensors[at] for at in operator.inputs[1:] if at >= 0 and len(graph.tensors[at].shape) > 1]
        constants = [item for item in weights if item.constant]
        if not source.fixed or not constants:
            graph.give_up(f"{name} of a shape known only at run time")
            return
        result = graph.tensors[outputs[0]]
        held = sum(item.elements for item in constants)
        moved = source.elements + result.elements
        op = recurrent(source.elements // source.shape[-1], moved, held, result.name)
        eight_bits = source.dtype in EIGHT_BITS and all(item.dtype in EIGHT_BITS for item in constants)
        graph.counted.append(CountedOperation(op, eight_bits, source.dtype))
    elif name == "BATCH_MATMUL":
        one, other, result = (graph.tensors[index] for index in (inputs[0], inputs[1], outputs[0]))
        if one.fixed and other.fixed and result.fixed and len(one.shape) > 1:
            # [.., n, k] x [.., k, m] -> [.., n, m]: n k / n = k, whichever is transposed
            depth = one.elements // max(1, prod(one.shape[:-2]) * result.shape[-2])
            graph.counted.append(_product(graph, inputs, result, result.elements * depth))
        else:
            graph.give_up(f"{name} of a shape known only at run time")
    else:
        graph.give_up(name)


def _count_kernel(graph: _TFLiteCounter, operator: Operator, name: str) -> None:
    """Kernels are [out, height, width, in], depthwise [1, height, width, out], dense [out, in]."""
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
            graph.give_up(f"{name} of two computed tensors")
        return
    if not fixed:
        graph.give_up(f"{name} of a shape known only at run time")
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
    op = Op(kind, macs, source.elements + result.elements, kernel.elements, result.name)
    # A kernel that is constant only after DEQUANTIZE is float by the time it multiplies.
    graph.counted.append(CountedOperation(op, kernel.constant and kernel.dtype in EIGHT_BITS, source.dtype))


def _product(counter: _TFLiteCounter, factors: Sequence[int], result: Tensor, macs: int) -> CountedOperation:
    """A matrix product without a kernel of its own, but where one factor is a constant."""
    one, other = (counter.tensors[index] for index in factors)
    constant = sum(counter.tensors[index].elements for index in factors if index in counter.constants)
    moved = one.elements + other.elements + result.elements - constant
    rows = result.shape[-2] if len(result.shape) > 1 else 1
    op = Op(dense_kind(rows), macs, moved, constant, result.name, computed=not constant)
    return CountedOperation(op, {one.dtype, other.dtype} <= EIGHT_BITS, one.dtype)

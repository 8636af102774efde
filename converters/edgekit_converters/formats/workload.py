"""What an artifact asks of a processor, by its format.

What the readers of both formats find in a model file, and the memory it will need.

    memory_bytes("tflite", artifact.data)        # for one item: the interpreter, the file, packed weights, the arena

Rules: the activations that are alive at the busiest operator, in the file's order, are the arena; LiteRT keeps the file
and a copy of its weights packed for the kernels, ONNX Runtime several while it rewrites the graph; the process itself
is Python, NumPy and the engine. The constants are largest resident sizes measured on x86-64 with EfficientNet-Lite0 in
float32 (17 MiB): 91 MiB with LiteRT 2.3, 192 with ONNX Runtime 1.31. None where the shapes are not known.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.onnx_file import GraphView, parse
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.workload import Op, OpKind, Precision, Workload

_MULTIPLY = ("LSTM", "GRU", "RNN", "SVDF", "MATMUL", "EINSUM", "CONV", "GEMM", "ATTENTION", "FULLY_CONNECTED")
_HOLD_GRAPHS = ("WHILE", "IF", "LOOP", "SCAN", "CALL", "CALL_ONCE", "STABLEHLO_WHILE")


@dataclass(frozen=True)
class CountedOperation:
    """An operation, its precision, and the type of what it multiplies where known."""

    op: Op
    eight_bit: bool = False
    activation: str = ""


@dataclass(frozen=True)
class WorkloadReading:
    """unknown: what could not be counted.

    batch: items at once, 1 where the file leaves it free.
    uncounted: of the unknown, names of those that multiply.

    weights: elements of the constants with two axes or more; eight_bit_weights: of those, the ones stored in 8 bits
    or fewer. (Biases and scales have one axis; every kernel, matrix and embedding has more.)
    """

    counted: tuple[CountedOperation, ...]
    unknown: tuple[str, ...]
    batch: int
    weights: int
    eight_bit_weights: int
    uncounted: tuple[str, ...] = ()


class WorkloadCounter:
    """What was counted so far."""

    def __init__(self) -> None:
        self.counted: list[CountedOperation] = []
        self.unknown: list[str] = []
        self.uncounted: list[str] = []

    def give_up(self, name: str) -> None:
        """An operation whose time is not known."""
        self.unknown.append(name)
        if multiplies(name):
            self.uncounted.append(name)

    def reading(self, batch: int, weights: int, eight_bit_weights: int) -> WorkloadReading:
        unknown, uncounted = (tuple(dict.fromkeys(names)) for names in (self.unknown, self.uncounted))
        return WorkloadReading(tuple(self.counted), unknown, batch, weights, eight_bit_weights, uncounted)


def convolution_kind(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> OpKind:
    """The class of a convolution that is not depthwise.

    kernel, strides, dilations: spatial axes only.
    """
    if all(side == 1 for side in kernel):
        return "pw"
    plain = all(step == 1 for step in (*strides, *dilations))
    return "c3" if plain and tuple(kernel) == (3, 3) else "cx"


def dense_kind(rows: int) -> OpKind:
    """A matrix times one vector is a dense layer.
    Times many it does what a 1x1 convolution does."""
    return "fc" if rows == 1 else "pw"


def multiplies(name: str) -> bool:
    """Whether an uncounted operation may hold products, by its name as in `unknown`."""
    op = name.split(" of ")[0]
    foreign = op.startswith("custom ") or "." in op
    return foreign or op.upper() in _HOLD_GRAPHS or any(part in op.upper() for part in _MULTIPLY)


PROCESS_BYTES = {"tflite": 54 << 20, "onnx": 69 << 20}
"""Python with NumPy, the runtime and the engine's library, with a model of 2 KB: 56.3 and 71.9 MB were measured."""

COPIES = {"tflite": 2, "onnx": 7}
"""Of the file, at the worst moment."""


def recurrent(rows: int, moved: int, weights: int, name: str) -> Op:
    """A layer that multiplies every weight once for each step of each item, step after step.

    rows: steps times items. moved: elements of its input and output. With ONNX Runtime 1.32 on x86-64 GRUs and LSTMs of
    96 to 512 took 0.55 to 1.2 times as long as a dense layer of their weights, once a step.
    """
    return Op("fc", rows * weights, moved + moved_again(rows, weights), weights, name, recurrent=True)


def moved_again(steps: int, weights: int) -> int:
    """Elements of weights that later steps fetch again: those beyond 1 MB of float32.

    Beside MobileNetV1, LiteRT 2.3 on x86-64 took 5 times as long for each product of a GRU of 512 as for one of 96.
    """
    return max(0, steps - 1) * max(0, weights - (1 << 18))


Step = tuple[Iterable[Any], Iterable[Any]]
"""(tensors that an operator reads, tensors that it makes)"""


def memory_bytes(format: str, data: bytes) -> int | None:  # noqa: A002
    """Bytes for one process that answers one item at a time, None where the graph does not say."""
    arena = arena_bytes(format, data)
    return None if arena is None else PROCESS_BYTES[format] + COPIES[format] * len(data) + arena


def arena_bytes(format: str, data: bytes) -> int | None:  # noqa: A002
    """The activations that are alive at once, at most."""
    sizes: dict[Any, int] = {}
    try:
        if format == "tflite":
            main = tflite.read(data).main
            widths = {"FLOAT32": 4, "INT32": 4, "FLOAT16": 2, "INT16": 2, "INT64": 8, "FLOAT64": 8, "UINT32": 4}
            for index, tensor in enumerate(main.tensors):
                if not tensor.constant:
                    sizes[index] = prod(max(1, size) for size in tensor.shape) * widths.get(tensor.dtype, 1)
            return peak([(operator.inputs, operator.outputs) for operator in main.operators], sizes)
        import onnx

        view = GraphView(parse(data))
        for name, value in view.values.items():
            if name in view.initializers or value.shape is None:
                continue
            if any(side < 1 for side in value.shape[1:]):
                return None
            width = onnx.helper.tensor_dtype_to_np_dtype(value.kind).itemsize
            sizes[name] = prod(max(1, side) for side in value.shape) * width
        return peak([(node.input, node.output) for node in view.nodes], sizes)
    except (ConversionError, ValueError, TypeError, AttributeError, KeyError):
        return None


def peak(steps: Sequence[Step], sizes: dict[Any, int]) -> int:
    """The largest sum of sizes that are alive during one step.

    A tensor lives from the step that makes it, or the first, to the last that reads it, or the end if none does.
    Tensors without a size take nothing.
    """
    last: dict[Any, int] = {}
    born: dict[Any, int] = {}
    for place, (reads, makes) in enumerate(steps):
        for tensor in reads:
            last[tensor] = place
            born.setdefault(tensor, 0)
        for tensor in makes:
            born[tensor] = place
    change = [0] * (len(steps) + 1)
    for tensor, start in born.items():
        change[start] += sizes.get(tensor, 0)
        change[last.get(tensor, len(steps) - 1) + 1] -= sizes.get(tensor, 0)
    alive = most = 0
    for step in change:
        alive += step
        most = max(most, alive)
    return most


READERS = {
    "tflite": "edgekit_converters.formats.tflite_workload:read",
    "onnx": "edgekit_converters.formats.onnx_workload:read",
}


def read_workload(format: str, data: bytes, precision: Precision) -> Workload:  # noqa: A002
    """The operations of a model file, batch 1 where the file leaves the batch free.

    format: `tflite` or `onnx`. Raises ConversionError when the bytes are not such a model.
    """
    reading = _read(format, data)
    return Workload(precision, tuple(item.op for item in reading.counted), reading.unknown, reading.batch)


def quantized_fraction(format: str, data: bytes) -> tuple[float, float]:  # noqa: A002
    """Fractions (0..1) of multiply-accumulates and of weights in 8 bits or fewer.

    Work that cannot be counted is in neither part of the first: `uncounted_operations` names it. A model without
    such work or weights has 0.0. Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    macs = sum(item.op.macs for item in reading.counted)
    eight = sum(item.op.macs for item in reading.counted if item.eight_bit)
    return (eight / macs if macs else 0.0, reading.eight_bit_weights / reading.weights if reading.weights else 0.0)


def uncounted_operations(format: str, data: bytes) -> tuple[str, ...]:  # noqa: A002
    """Operations that multiply, how often the file does not say.
    These are loops, custom ones, and shapes that are free.

    Raises ConversionError as `read_workload` does.
    """
    return _read(format, data).uncounted


def _read(format: str, data: bytes) -> WorkloadReading:  # noqa: A002
    target = READERS.get(format)
    if target is None:
        what = f"nothing reads the operations of the format '{format}'"
        raise ConversionError(what, do=f"Known: {', '.join(READERS)}")
    module, function = target.split(":")
    reading: WorkloadReading = getattr(importlib.import_module(module), function)(data)
    return reading


def precision_of(format: str, data: bytes) -> str:  # noqa: A002
    """`float32`, `int8`, `dynamic` or `int16x8`: the precision of most of the work.

    8-bit weights times activations of the same kind are `int8`; times floats, which the engine quantizes on the way,
    `dynamic`; times 16 bits `int16x8`. Weights that are stored in 16-bit floats are multiplied in 32 (XNNPACK and ONNX
    Runtime unpack them first). Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    eight = [item for item in reading.counted if item.eight_bit and item.op.macs]
    if 2 * sum(item.op.macs for item in eight) <= sum(item.op.macs for item in reading.counted):
        return "float32"
    if format == "onnx":
        nodes = parse(data).graph.node
        return "dynamic" if any(node.op_type == "DynamicQuantizeLinear" for node in nodes) else "int8"
    work: Counter[str] = Counter()
    for item in eight:
        work[item.activation] += item.op.macs
    return {"INT8": "int8", "UINT8": "int8", "INT16": "int16x8"}.get(work.most_common(1)[0][0], "dynamic")

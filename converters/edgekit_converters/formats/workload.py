"""What an artifact asks of a processor, by its format.

What the readers of both formats find in a model file, and the memory it will need.

    memory_bytes("tflite", artifact.data)        # for one item: the interpreter, the file, packed weights, the arena

Rules: the activations that are alive at the busiest operator, in the file's order, are the arena; LiteRT keeps the file
and a copy of its weights packed for the kernels, ONNX Runtime several while it rewrites the graph; the process itself
is Python, NumPy and the engine. The constants are largest resident sizes measured on x86-64 with EfficientNet-Lite0 in
float32 (17 MiB): 91 MiB with LiteRT 2.3, 192 with ONNX Runtime 1.31. None where the shapes are not known.
"""

from __future__ import annotations

import importlib.resources
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal, get_args

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.onnx_file import GraphView, parse
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.schema import parse_toml
from edgekit_profiles.workload import Op, OpKind, Precision, Workload
from edgekit_runtime.modelfile.ncnn_structure import read_network
from edgekit_runtime.system.errors import ModelFileError

Kind = Literal[
    "conv", "depthwise", "dense", "recurrent", "activation", "elementwise", "pool", "concat", "move", "other"
]
"""What an operator does, see `operators.toml`."""


@dataclass(frozen=True)
class OperatorTable:
    """kinds: operator -> what it does.
    moving: its time follows from the elements that it reads and makes.
    free: takes no time.
    slower: takes as many times longer for each element."""

    kinds: Mapping[str, Kind]
    moving: frozenset[str]
    free: frozenset[str]
    slower: Mapping[str, int]


@cache
def operators(format: str) -> OperatorTable:  # noqa: A002
    text = (importlib.resources.files("edgekit_converters.formats") / "operators.toml").read_text(encoding="utf-8")
    table = parse_toml(text)[format]
    kinds: dict[str, Kind] = {name: kind for kind in get_args(Kind) for name in table.get(kind, "").split()}
    free = frozenset(table["free"].split())
    products = ("conv", "depthwise", "dense", "recurrent")
    moving = frozenset(name for name, kind in kinds.items() if kind not in products)
    return OperatorTable(kinds, moving - free, free, table["slower"])


_MULTIPLY = ("LSTM", "GRU", "RNN", "SVDF", "MATMUL", "EINSUM", "CONV", "GEMM", "ATTENTION", "FULLY_CONNECTED")
_HOLD_GRAPHS = ("WHILE", "IF", "LOOP", "SCAN", "CALL", "CALL_ONCE", "STABLEHLO_WHILE")


class WorkloadReading:
    """What a model computes; the readers of both formats fill it.
    unknown: what could not be counted.
    batch: items at once, 1 where the file leaves it free.
    weights: elements of the constants with two axes or more; eight_bit_weights: of those, the ones stored in 8 bits
        or fewer. (Biases and scales have one axis; every kernel, matrix and embedding has more.)"""

    def __init__(self) -> None:
        self.counted: list[Op] = []
        self.unknown: list[str] = []
        self.batch, self.weights, self.eight_bit_weights = 1, 0, 0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Of the unknown, those that multiply."""
        return tuple(dict.fromkeys(filter(multiplies, self.unknown)))


def convolution_kind(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> OpKind:
    """Return the kind of a convolution that is not depthwise.

    kernel, strides, dilations: spatial axes only.
    """
    if all(side == 1 for side in kernel):
        return "pw"
    plain = all(step == 1 for step in (*strides, *dilations))
    return "c3" if plain and tuple(kernel) == (3, 3) else "cx"


def dense_kind(rows: int) -> OpKind:
    """Return `fc` for a matrix times one vector.
    Times many it does what a 1x1 convolution does."""
    return "fc" if rows == 1 else "pw"


def multiplies(name: str) -> bool:
    """Whether an uncounted operation may contain products. name: as in `unknown`."""
    op = name.split(" of ")[0]
    if op.startswith("input '"):
        return False
    foreign = op.startswith("custom ") or "." in op
    return foreign or op.upper() in _HOLD_GRAPHS or any(part in op.upper() for part in _MULTIPLY)


PROCESS_BYTES = {"tflite": 54 << 20, "onnx": 69 << 20, "ncnn": 54 << 20}
"""Python with NumPy, the runtime and the engine's library, with a model of 2 KB: 56.3 and 71.9 MB were measured."""

COPIES = {"tflite": 2, "onnx": 7, "ncnn": 3}
"""Of the file, at the worst moment."""


def recurrent(rows: int, moved: int, weights: int, name: str) -> Op:
    """Make a recurrent layer: every weight multiplies once per step and item.

    rows: steps times items. moved: elements of its input and output. With ONNX Runtime 1.32 on x86-64 GRUs and LSTMs of
    96 to 512 took 0.55 to 1.2 times as long as a dense layer of their weights, once a step.
    """
    return Op("fc", rows * weights, moved + moved_again(rows, weights), weights, name, recurrent=True)


def moved_again(steps: int, weights: int) -> int:
    """Return weight elements that later steps fetch again: beyond 1 MB of float32.

    Beside MobileNetV1, LiteRT 2.3 on x86-64 took 5 times as long for each product of a GRU of 512 as for one of 96.
    """
    return max(0, steps - 1) * max(0, weights - (1 << 18))


def repeated(counted: Iterable[Op], trips: int, name: str, dispatches: int = 1) -> Iterator[Op]:
    """One operation for each kind in a loop's body, repeated `trips` times.
    dispatches: per step."""
    groups: dict[tuple[OpKind, bool, bool, str], list[Op]] = {}
    for item in counted:
        groups.setdefault((item.kind, item.computed, item.eight_bit, item.activation), []).append(item)
    for (kind, computed, eight_bit, activation), ops in groups.items():
        macs, held = sum(op.macs for op in ops), sum(op.weight_elements for op in ops)
        moved = trips * sum(op.activation_elements for op in ops) + moved_again(trips, held)
        each = trips * dispatches if kind == "ew" else 1
        yield Op(kind, trips * macs, moved, held, name, computed, True, each, eight_bit, activation)


Step = tuple[Iterable[Any], Iterable[Any]]
"""(tensors that an operator reads, tensors that it makes)"""


def memory_bytes(format: str, data: bytes) -> int | None:  # noqa: A002
    """Return the bytes of a process that answers one item at a time, None if unknown."""
    arena = arena_bytes(format, data)
    return None if arena is None else PROCESS_BYTES[format] + COPIES[format] * len(data) + arena


def arena_bytes(format: str, data: bytes) -> int | None:  # noqa: A002
    """Return the peak bytes of live activations, None if unknown."""
    sizes: dict[Any, int] = {}
    try:
        if format == "tflite":
            main = tflite.read(data).main
            widths = {"FLOAT32": 4, "INT32": 4, "FLOAT16": 2, "INT16": 2, "INT64": 8, "FLOAT64": 8, "UINT32": 4}
            for index, tensor in enumerate(main.tensors):
                if not tensor.constant:
                    sizes[index] = prod(max(1, size) for size in tensor.shape) * widths.get(tensor.dtype, 1)
            return peak([(operator.inputs, operator.outputs) for operator in main.operators], sizes)
        if format == "ncnn":
            layers = read_network(data).layers
            sizes = {name: 4 * prod(shape) for one in layers for name, shape in zip(one.tops, one.outputs, strict=True)}
            return peak([(layer.bottoms, layer.tops) for layer in layers], sizes)
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
    except (ConversionError, ModelFileError, ValueError, TypeError, AttributeError, KeyError):
        return None


def peak(steps: Sequence[Step], sizes: dict[Any, int]) -> int:
    """Return the largest sum of sizes that are live during one step.

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
    "ncnn": "edgekit_converters.formats.ncnn_file:read",
}


def read_workload(format: str, data: bytes, precision: Precision) -> Workload:  # noqa: A002
    """Read a model file's operations, with batch 1 if the file leaves it free.

    format: `tflite` or `onnx`. Raises ConversionError when the bytes are not such a model.
    """
    reading = _read(format, data)
    unknown = tuple(dict.fromkeys(reading.unknown))
    return Workload(precision, tuple(reading.counted), unknown, reading.batch)


def quantized_fraction(format: str, data: bytes) -> tuple[float, float]:  # noqa: A002
    """Return the fractions (0..1) of MACs and weights in 8 bits or fewer.

    Work that cannot be counted is in neither part of the first: `uncounted_operations` names it. A model without
    such work or weights has 0.0. Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    macs = sum(item.macs for item in reading.counted)
    eight = sum(item.macs for item in reading.counted if item.eight_bit)
    return (eight / macs if macs else 0.0, reading.eight_bit_weights / reading.weights if reading.weights else 0.0)


def uncounted_operations(format: str, data: bytes) -> tuple[str, ...]:  # noqa: A002
    """Return operations that multiply an unknown number of times.
    These are loops, custom ones, and shapes that are free.

    Raises ConversionError as `read_workload` does.
    """
    return _read(format, data).uncounted


def _read(format: str, data: bytes) -> WorkloadReading:  # noqa: A002
    target = READERS.get(format)
    if target is None:
        what = f"cannot count operations of the format '{format}'"
        raise ConversionError(what, do=f"Known: {', '.join(READERS)}")
    reading: WorkloadReading = pkgutil.resolve_name(target)(data)
    return reading


def precision_of(format: str, data: bytes) -> str:  # noqa: A002
    """Return the precision of most of the work: float32, int8, dynamic or int16x8.

    8-bit weights times activations of the same kind are `int8`; times floats, which the engine quantizes on the way,
    `dynamic`; times 16 bits `int16x8`. Weights that are stored in 16-bit floats are multiplied in 32 (XNNPACK and ONNX
    Runtime unpack them first). Raises ConversionError as `read_workload` does.
    """
    reading = _read(format, data)
    eight = [item for item in reading.counted if item.eight_bit and item.macs]
    if 2 * sum(item.macs for item in eight) <= sum(item.macs for item in reading.counted):
        return "float32"
    if format == "onnx":
        nodes = parse(data).graph.node
        return "dynamic" if any(node.op_type == "DynamicQuantizeLinear" for node in nodes) else "int8"
    work: Counter[str] = Counter()
    for item in eight:
        work[item.activation] += item.macs
    return {"INT8": "int8", "UINT8": "int8", "INT16": "int16x8"}.get(work.most_common(1)[0][0], "dynamic")

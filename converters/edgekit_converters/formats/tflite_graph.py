"""A .tflite file as a graph: its main subgraph, read from the flatbuffer and run by LiteRT.

    graph = TfliteGraph(Path("model.tflite").read_bytes())

Rules:
- an operator with only constant inputs is not a layer: a weight of 16 bits behind DEQUANTIZE is a constant;
- `with_constants` overwrites bytes in one copy of the file; a buffer that two tensors share is split first;
- with only outputs in sight the graph runs as boards run it (XNNPACK); with inner tensors in sight, without delegates;
- a tensor without values in the interpreter, such as a fused LSTM's scratch space, is not in sight; nor is a result
  that nothing reads, which loops leave unwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.graph import KernelWindow, Layer, WatchedGraph, macs_by_tensor, same_pads
from edgekit_converters.formats.grid import Grid
from edgekit_converters.formats.tflite_edit import split_buffers
from edgekit_converters.formats.tflite_file import DTYPES, QUANTIZED, Operator, Tensor, overwrite, read, stored_values
from edgekit_converters.formats.workload import operators
from edgekit_converters.recipe.conversion_errors import ConversionError

KINDS = operators("tflite").kinds
# Where an operation that multiplies keeps its kernel and its bias, and the kernel's axis of output channels.
WEIGHTS = {
    "CONV_2D": (1, 2, 0),
    "DEPTHWISE_CONV_2D": (1, 2, -1),
    "FULLY_CONNECTED": (1, 2, 0),
    "TRANSPOSE_CONV": (1, 3, 0),
    "CONV_3D": (1, 2, -1),
    "CONV_3D_TRANSPOSE": (1, 3, -2),
}


class TfliteGraph:
    """The Graph of a .tflite file. Raises ConversionError for other bytes."""

    format: Literal["tflite", "onnx", "ncnn"] = "tflite"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._file = read(data).main
        tensors = self._file.tensors
        self._indexes = {tensor.name: index for index, tensor in enumerate(tensors)}
        self.inputs = tuple(tensors[index].name for index in self._file.inputs)
        self.outputs = tuple(tensors[index].name for index in self._file.outputs)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        macs = macs_by_tensor("tflite", self.data)
        return tuple(self._layer(operator, macs) for operator in self._computed())

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        made = [index for op in self._computed() if op.op not in ("QUANTIZE", "DEQUANTIZE") for index in op.outputs]
        found = dict.fromkeys([*self._file.inputs, *made, *self._file.outputs])
        tensors = self._file.tensors
        return tuple(tensors[i].name for i in found if tensors[i].once_float and i in self._written)

    @cached_property
    def _written(self) -> frozenset[int]:
        """Indexes of tensors that hold values of this run."""
        read = {index for operator in self._file.operators for index in operator.inputs}
        return frozenset({*self._file.inputs, *self._file.outputs, *read})

    @cached_property
    def grids(self) -> Mapping[str, Grid]:
        """The grid of each quantized tensor.
        Also of an input that only becomes integers."""
        tensors = self._file.tensors
        found: dict[int, Grid] = {}
        for index, tensor in enumerate(tensors):
            if tensor.dtype in QUANTIZED and tensor.affine is not None and not tensor.constant:
                grid = tensor.affine.grid(np.dtype(DTYPES[tensor.dtype]))
                if grid is not None:
                    found[index] = grid
        for operator in self._computed():
            first, last = operator.inputs[0] if operator.inputs else -1, operator.outputs[0]
            if operator.op == "DEQUANTIZE" and first in found:
                found.setdefault(last, found[first])
            elif operator.op == "QUANTIZE" and first in self._file.inputs and last in found:
                found.setdefault(first, found[last])
        return {tensors[index].name: grid for index, grid in found.items()}

    def constant(self, name: str) -> NDArray[Any]:
        tensor = self._constant(name)
        values = stored_values(self.data, tensor)
        if tensor.affine is not None:
            return tensor.affine.to_float(values)
        return values.astype(np.float32) if tensor.dtype in ("FLOAT16", "BFLOAT16") else values.copy()

    def with_constants(self, values: Mapping[str, NDArray[Any]]) -> TfliteGraph:
        found = {name: self._constant(name) for name in values}
        shared = Counter(tensor.buffer for tensor in self._file.tensors if tensor.constant)
        if any(shared[tensor.buffer] > 1 for tensor in found.values()):
            return TfliteGraph(split_buffers(self.data)).with_constants(values)
        data = bytearray(self.data)
        for name, tensor in found.items():
            overwrite(data, tensor, np.asarray(values[name]))
        copy = TfliteGraph.__new__(TfliteGraph)
        copy.__dict__.update(self.__dict__)  # names, layers and costs stay as they are
        copy.data = bytes(data)
        return copy

    @contextmanager
    def watch(self, tensors: Sequence[str] | None = None) -> Iterator[WatchedGraph]:
        names = self.tensors if tensors is None else tensors
        indexes = {name: self._indexes[name] for name in names if self._indexes.get(name) in self._written}
        yield _TfliteTensorReader(self, indexes, inner=not set(indexes) <= {*self.inputs, *self.outputs})

    def _computed(self) -> list[Operator]:
        folded = self._file.folded
        return [operator for operator in self._file.operators if not all(index in folded for index in operator.outputs)]

    def _layer(self, operator: Operator, macs: Mapping[str, int]) -> Layer:
        tensors, folded = self._file.tensors, self._file.folded
        weight, bias, axis = self._weights(operator)
        return Layer(
            name=tensors[operator.outputs[0]].name,
            op=operator.op,
            kind=KINDS.get(operator.op, "other"),
            inputs=tuple(tensors[index].name for index in operator.inputs if index >= 0 and index not in folded),
            outputs=tuple(tensors[index].name for index in operator.outputs),
            weight=weight,
            bias=bias,
            weight_axis=axis,
            macs=macs.get(tensors[operator.outputs[0]].name, 0),
            window=self._window(operator),
            fused=operator.fused,
        )

    def _weights(self, operator: Operator) -> tuple[str | None, str | None, int | None]:
        if operator.op == "BATCH_MATMUL":
            weight = self._known(operator, 1)
            if weight is None:
                return None, None, None
            rank = len(self._file.tensors[operator.inputs[1]].shape)
            return weight, None, rank - 2 if operator.transposed else rank - 1
        places = WEIGHTS.get(operator.op)
        weight = self._known(operator, places[0]) if places else None
        if places is None or weight is None:
            return None, None, None
        rank = len(self._file.tensors[operator.inputs[places[0]]].shape)
        return weight, self._known(operator, places[1]), places[2] % rank if rank else None

    def _window(self, operator: Operator) -> KernelWindow | None:
        if operator.op not in ("CONV_2D", "DEPTHWISE_CONV_2D") or len(operator.inputs) < 2 or min(operator.strides) < 1:
            return None
        source, kernel = (self._file.tensors[index].shape for index in operator.inputs[:2])
        if len(source) != 4 or len(kernel) != 4:
            return None
        pads = same_pads(source[1:3], kernel[1:3], operator.strides, operator.dilations) if operator.same else (0,) * 4
        groups = source[3] if operator.op == "DEPTHWISE_CONV_2D" else source[3] // max(kernel[3], 1)
        return KernelWindow(
            (kernel[1], kernel[2]), operator.strides, operator.dilations, pads, groups, channels_last=True
        )

    def _known(self, operator: Operator, place: int) -> str | None:
        """Return the constant at that place of an operator's inputs, or None."""
        if place >= len(operator.inputs) or operator.inputs[place] < 0:
            return None
        tensor = self._file.tensors[operator.inputs[place]]
        return tensor.name if tensor.constant or operator.inputs[place] in self._file.aliases else None

    def _constant(self, name: str) -> Tensor:
        index = self._indexes[name]
        tensor = self._file.tensors[self._file.aliases.get(index, index)]
        if not tensor.constant:
            raise KeyError(name)
        return tensor


class _TfliteTensorReader:
    def __init__(self, graph: TfliteGraph, indexes: Mapping[str, int], *, inner: bool) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        from edgekit_converters.recipe.foreign_code import quiet

        resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if inner else OpResolverType.AUTO
        self._tensors = graph._file.tensors
        self._indexes = indexes
        with quiet():
            try:
                options = {"experimental_op_resolver_type": resolver, "experimental_preserve_all_tensors": inner}
                self._interpreter = Interpreter(model_content=graph.data, num_threads=1, **options)
                self._interpreter.allocate_tensors()
            except (RuntimeError, ValueError) as error:
                raise _failed(error) from error
        self._inputs = graph._file.inputs
        self._shapes = {detail["index"]: tuple(detail["shape"]) for detail in self._interpreter.get_input_details()}

    def run(self, inputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if len(inputs) != len(self._inputs):
            raise ValueError(f"{len(inputs)} arrays for {len(self._inputs)} inputs")
        given = {index: array.shape for index, array in zip(self._inputs, inputs, strict=True)}
        if given != {index: self._shapes[index] for index in given}:  # the file leaves a shape free
            for index, shape in given.items():
                self._interpreter.resize_tensor_input(index, shape)
            self._shapes |= given
            try:
                self._interpreter.allocate_tensors()
            except (RuntimeError, ValueError) as error:
                raise _failed(error) from error
        for index, array in zip(self._inputs, inputs, strict=True):
            tensor = self._tensors[index]
            dtype = np.dtype(DTYPES.get(tensor.dtype, array.dtype))
            if tensor.affine is not None and dtype.kind in "iu" and array.dtype.kind == "f":
                stored = tensor.affine.to_integer(array, dtype)
            else:
                stored = np.ascontiguousarray(array, dtype)
            self._interpreter.set_tensor(index, stored)
        try:
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise _failed(error) from error
        seen = {}
        for name, index in self._indexes.items():
            try:
                values = self._interpreter.get_tensor(index)
            except ValueError:  # not kept
                continue
            affine = self._tensors[index].affine
            integers = affine is not None and values.dtype.kind in "iu"
            seen[name] = affine.to_float(values) if affine is not None and integers else np.asarray(values, np.float32)
        return seen


def _failed(error: Exception) -> ConversionError:
    lines = str(error).strip().splitlines()
    return ConversionError(f"LiteRT cannot run the model: {lines[-1] if lines else type(error).__name__}")

"""Every TFLite recipe: a float .tflite file and a recipe in, the recipe's bytes out.

    data = make(float_model(source), recipe("tflite-int8"), QuantizationPlan(), statistics)

Rules: nothing is converted again; every recipe honours `plan.float_layers`, those that quantize activations also
`plan.ranges` and `plan.fixed_ranges`; the same arguments give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.statistics import Statistics
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.grid import come_from_float16, fits_float16, symmetric
from edgekit_converters.formats.tflite_file import schema as tflite_schema
from edgekit_converters.formats.workload import read_workload, uncounted_operations
from edgekit_converters.recipe.artifact import FloatModel, QuantizationPlan, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError


def make(model: FloatModel, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics | None = None) -> bytes:
    """Carry out a recipe. statistics: of `model.data`, for recipes that calibrate.

    Raises ConversionError, naming operators and layers, if the recipe cannot be carried out.
    """
    if recipe.needs_calibration:
        if statistics is None:
            raise ConversionError(
                "an int8 recipe needs calibration data, and none was given",
                where=recipe.name,
                do="Pass a calibration set: --calibration DIR",
            )
        from edgekit_converters.targets.tflite_static import static

        ranges = {name: (float(low), float(high)) for name, (low, high) in statistics.ranges(plan.ranges).items()}
        ranges |= {name: (low, high) for name, low, high in plan.fixed_ranges}
        return static(model.data, recipe, plan, ranges)
    if recipe.precision == "dynamic":
        return dynamic(model.data, plan.float_layers)
    if recipe.precision == "float16":
        return float16(model.data, plan.float_layers)
    return halves(model.data)


def check_possible(model: FloatModel, recipe: Recipe) -> None:
    """Raise ConversionError if nothing multiplies, so that integers save no time."""
    counted = read_workload("tflite", model.data, "float32").macs
    if not counted and not uncounted_operations("tflite", model.data):
        raise ConversionError(
            "none of the model's operators multiplies by weights, which is what integers make faster",
            where=recipe.name,
            do="Choose tflite-f32",
        )


_LEAST_FACTOR = np.float32(1e-6)  # of a channel's range by the largest: a bias is divided by it
_SMALLEST = 1024  # numbers: smaller kernels stay in float, as TensorFlow's converter does


@dataclass(frozen=True)
class _Kernel:
    """How an operator's kernel is quantized.
    place: where the operator keeps its kernel.
    axis: of its output channels, None for one scale for all of it.
    version: of the operator with 8-bit weights and float activations.
    """

    place: int
    axis: int | None
    version: int


_KERNELS = {
    "CONV_2D": _Kernel(1, 0, 5),
    "DEPTHWISE_CONV_2D": _Kernel(1, 3, 6),
    "FULLY_CONNECTED": _Kernel(1, None, 9),
}


def dynamic(data: bytes, float_layers: frozenset[str] = frozenset()) -> bytes:
    """`tflite-dynamic`: kernels in 8 bits, everything else in float.

    Convolutions have a scale a channel. Dense layers have one, and a MUL that scales their channels: with a scale a
    channel FULLY_CONNECTED becomes version 12, which no tflite-runtime loads, or which it runs wrongly under an older
    number. Embedding tables are dequantized after the lookup. Transposed convolutions stay in float: tflite-runtime
    2.14 has no such kernel.

    float_layers: names of layers (of their first output) whose kernels stay in float.
    """
    model = tfl.read(data)
    for graph in model.subgraphs:
        writer = _KernelWriter(model, graph, {}, {})
        for operator in list(graph.operators):
            if tfl.layer_of(graph, operator) not in float_layers:
                writer.quantize(operator)
    tfl.compact(model)
    return tfl.write(model)


@dataclass
class _KernelWriter:
    """Quantizes the kernels of one subgraph; shared kernels stay shared.

    done: (tensor, axis) -> the tensor that holds it in 8 bits.
    even: kernel of a dense layer -> the kernel with channels of one range, and what they were divided by.
    """

    model: Any
    graph: Any
    done: dict[tuple[int, int | None], int]
    even: dict[int, tuple[int, int]]

    def quantize(self, operator: Any) -> None:
        op = tfl.op_of(self.model, operator)
        if op == "GATHER":
            # looks up in 8 bits, then dequantizes what was found into the tensor that was there before
            if not self._heavy(self.graph.tensors[operator.inputs[0]]):
                return
            tfl.set_input(operator, 0, self._eight_bits(int(operator.inputs[0]), None))
            operator.opcodeIndex = tfl.code(self.model, "GATHER", 2)
            table, found = self.graph.tensors[operator.inputs[0]], int(operator.outputs[0])
            small = tfl.copied(self.graph.tensors[found], "/int8")
            small.type, small.quantization = table.type, table.quantization
            operator.outputs = [tfl.add_tensor(self.graph, small)]
            back = tfl.new_operator(self.model, "DEQUANTIZE", 2, operator.outputs[0], found)
            self.graph.operators.insert(self.graph.operators.index(operator) + 1, back)
            return
        kernel = _KERNELS.get(op)
        if kernel is None:
            return
        source, weights = (self.graph.tensors[operator.inputs[place]] for place in (0, kernel.place))
        if tfl.type_of(source) != "FLOAT32" or not self._heavy(weights):
            return
        if op == "CONV_2D" and int(source.shape[3]) != int(weights.shape[3]):
            return  # no engine has a kernel for grouped convolutions with 8-bit weights and float activations
        if op == "FULLY_CONNECTED":
            self._even_out(operator)
        index = int(operator.inputs[kernel.place])
        tfl.set_input(operator, kernel.place, self._eight_bits(index, kernel.axis))
        operator.opcodeIndex = tfl.code(self.model, op, kernel.version)
        if op == "FULLY_CONNECTED":
            operator.builtinOptions.asymmetricQuantizeInputs = True

    def _even_out(self, operator: Any) -> None:
        """Give a dense layer's channels one range, and multiply its output in return."""
        kernel, output = int(operator.inputs[1]), int(operator.outputs[0])
        bias = int(operator.inputs[2]) if len(operator.inputs) > 2 else -1
        weights = tfl.constant(self.model, self.graph.tensors[kernel])
        peaks = np.abs(weights).max(axis=1)
        if peaks.min() == peaks.max() or (bias >= 0 and not tfl.is_constant(self.model, self.graph.tensors[bias])):
            return
        factors = np.maximum(peaks / peaks.max(), _LEAST_FACTOR)
        if kernel not in self.even:
            self.even[kernel] = (
                self._floats(kernel, weights / factors[:, None]),
                self._floats(output, factors, "/factors"),
            )
        tfl.set_input(operator, 1, self.even[kernel][0])
        if bias >= 0:
            values = tfl.constant(self.model, self.graph.tensors[bias])
            tfl.set_input(operator, 2, self._floats(bias, values / factors))
        operator.outputs = [tfl.add_tensor(self.graph, tfl.copied(self.graph.tensors[output], "/even"))]
        after, schema = tfl.new_operator(self.model, "MUL", 1, operator.outputs[0], output), tflite_schema()
        after.inputs = [operator.outputs[0], self.even[kernel][1]]
        after.builtinOptionsType, after.builtinOptions = schema.BuiltinOptions.MulOptions, schema.MulOptionsT()
        after.builtinOptions.fusedActivationFunction = operator.builtinOptions.fusedActivationFunction
        operator.builtinOptions.fusedActivationFunction = schema.ActivationFunctionType.NONE
        self.graph.operators.insert(self.graph.operators.index(operator) + 1, after)

    def _floats(self, like: int, values: NDArray[np.float32], suffix: str = "/even") -> int:
        """Add a constant. Its name is new, so that no one compares it with the float model's."""
        made = tfl.copied(self.graph.tensors[like], suffix)
        made.shape, made.shapeSignature, made.buffer = list(values.shape), None, tfl.add_constant(self.model, values)
        return tfl.add_tensor(self.graph, made)

    def _heavy(self, tensor: Any) -> bool:
        return (
            tfl.type_of(tensor) == "FLOAT32"
            and tfl.is_constant(self.model, tensor)
            and int(np.prod(tensor.shape)) >= _SMALLEST
        )

    def _eight_bits(self, index: int, axis: int | None) -> int:
        if (index, axis) not in self.done:
            values, scales = symmetric(tfl.constant(self.model, self.graph.tensors[index]), axis)
            # The float tensor is dropped unless something else reads it, so its name is free.
            self.done[index, axis] = _integers(self.model, self.graph, index, values, scales.reshape(-1), axis or 0)
        return self.done[index, axis]


def _integers(model: Any, graph: Any, index: int, values: NDArray[Any], scales: NDArray[Any], axis: int = 0) -> int:
    """Add a tensor of the same name with these integers."""
    made = tfl.copied(graph.tensors[index])
    made.type = getattr(tflite_schema().TensorType, values.dtype.name.upper())
    made.buffer = tfl.add_constant(model, values)
    made.quantization = tfl.quantization(scales, axis)
    return tfl.add_tensor(graph, made)


_LARGEST = float(np.finfo(np.float16).max)
# Operators that read buffers by themselves, or need their arguments as the file has them.
_LEFT = frozenset({"WHILE", "IF", "CALL", "CALL_ONCE", "VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "DEQUANTIZE"})


def halves(data: bytes) -> bytes:
    """Store weights in 16 bits where that is exact; the answers stay the same."""
    graph = tflite.read(data).main
    constants = [tensor for tensor in graph.tensors if tensor.constant and tensor.dtype == "FLOAT32"]
    narrow = come_from_float16(tflite.stored_values(data, one) for one in constants)
    return float16(data, exact=True) if narrow else data


def float16(data: bytes, float_layers: frozenset[str] = frozenset(), *, exact: bool = False) -> bytes:
    """`tflite-f16`: constants in 16-bit floats, each widened by a DEQUANTIZE.

    The widened tensor keeps the constant's name. 32 bits keep constants beyond 65,504 and single numbers, such as an
    epsilon of 1e-7, and the bodies of loops, in which tflite-runtime 2.14 answered wrongly for an LSTM.

    float_layers: names of layers (of their first output) whose constants stay in 32 bits.
    exact: so do those that 16 bits do not hold exactly.
    """
    model = tfl.read(data)
    graph = model.subgraphs[0]
    found: dict[int, None] = {}  # float constants in the order in which ordinary operators read them first
    left = {int(index) for index in graph.outputs}
    for operator in graph.operators:
        skip = tfl.op_of(model, operator) in _LEFT or tfl.layer_of(graph, operator) in float_layers
        for index in (int(index) for index in operator.inputs if index >= 0):
            tensor = graph.tensors[index]
            if tfl.type_of(tensor) == "FLOAT32" and tfl.is_constant(model, tensor):
                if skip:
                    left.add(index)
                else:
                    found[index] = None
    widened: list[Any] = []
    buffers: dict[int, int] = {}
    for index in (index for index in found if index not in left):
        tensor = graph.tensors[index]
        values = tfl.constant(model, tensor)
        if values.size < 2 or not np.all(np.abs(values) <= _LARGEST) or (exact and not fits_float16(values)):
            continue
        if tensor.buffer not in buffers:
            buffers[tensor.buffer] = tfl.add_constant(model, values.astype(np.float16))
        half = tfl.copied(tensor, "/float16")
        half.type, half.buffer = tflite_schema().TensorType.FLOAT16, buffers[tensor.buffer]
        tensor.buffer = 0
        widened.append(tfl.new_operator(model, "DEQUANTIZE", 3, tfl.add_tensor(graph, half), index))
    graph.operators = widened + list(graph.operators)
    tfl.compact(model)
    return tfl.write(model)


_OLD = 9  # version of FULLY_CONNECTED that these files need, in every runtime since 2.3
_CLAIM = b"min_runtime_version"


def per_tensor_dense(data: bytes) -> bytes:
    """Give dense layers of a finished .tflite file one scale instead of one per channel.

    Runtimes without scales a channel for dense layers refuse such a file or answer wrongly. Kernels are rounded a
    second time, integer biases scaled to match, and the file's claim of its oldest runtime is dropped. Returns `data`
    if no dense layer has more than one scale.

    Raises ConversionError for weights of 4 bits.
    """
    model = tfl.read(data)
    dense = [(graph, operator) for graph, operator, op in tfl.operators(model) if op == "FULLY_CONNECTED"]
    made: dict[tuple[int, int, bytes], int] = {}
    for graph, operator in dense:
        quantization = graph.tensors[operator.inputs[1]].quantization
        if quantization is not None and quantization.scale is not None and len(quantization.scale) > 1:
            _give_one_scale(model, graph, operator, made)
    if not made:
        return data
    for graph, operator in dense:  # a converter gives all dense layers the version that one of them needs
        if {tfl.type_of(graph.tensors[operator.inputs[place]]) for place in (0, 1)} <= {"FLOAT32", "INT8"}:
            version = int(model.operatorCodes[operator.opcodeIndex].version)
            operator.opcodeIndex = tfl.code(model, "FULLY_CONNECTED", min(version, _OLD))
    model.metadata = [entry for entry in model.metadata or () if bytes(entry.name or b"") != _CLAIM]
    tfl.compact(model)
    return tfl.write(model)


def _give_one_scale(model: Any, graph: Any, operator: Any, made: dict[tuple[int, int, bytes], int]) -> None:
    """Give one dense layer one scale. made: (subgraph, tensor, scale) -> the new tensor."""
    source, kernel = (graph.tensors[operator.inputs[place]] for place in (0, 1))
    layer = tfl.layer_of(graph, operator)
    if tfl.type_of(kernel) != "INT8":
        raise ConversionError(
            f"the weights of '{layer}' are {tfl.type_of(kernel)}, and only int8 is given one scale",
            do="Convert the model that it was made from",
        )

    def give(place: int, values: NDArray[Any], scale: NDArray[np.float32]) -> None:
        index = int(operator.inputs[place])
        key = (id(graph), index, scale.tobytes())
        if key not in made:
            made[key] = _integers(model, graph, index, values, scale)
        tfl.set_input(operator, place, made[key])

    scales = np.asarray(kernel.quantization.scale, np.float32)
    values = tfl.constant(model, kernel).astype(np.float32) * scales[:, None]
    small, one = symmetric(values, None)
    give(1, small, one.reshape(-1))
    if tfl.type_of(source) != "FLOAT32" and len(operator.inputs) > 2 and operator.inputs[2] >= 0:
        first = np.float64(source.quantization.scale[0])
        steps, step = first * scales.astype(np.float64), np.float32(first * float(one.reshape(-1)[0]))
        bias = tfl.constant(model, graph.tensors[int(operator.inputs[2])])
        give(2, np.rint(bias * steps / float(step)).astype(bias.dtype), np.asarray([step]))

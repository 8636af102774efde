"""The operations of an ONNX model, counted as ONNX Runtime runs them after its own fusions.

Rules:
- nothing is run; what has only constant inputs, or computes a shape, is folded and takes no time;
- activations and batch normalisation behind a product are fused into it;
- a (De)QuantizeLinear beside an operation between the two is absorbed by its 8-bit kernel, any other is counted;
- a product of two computed tensors, as in attention, has no kernel;
- a Loop or Scan is recurrent: its body's operations times its trips, if these are constant;
- other control flow and other domains are unknown, as is what follows an answer of a free size (NonMaxSuppression).
"""

from __future__ import annotations

import contextlib
import math
from math import prod
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx_file import (
    GraphView,
    array,
    attribute,
    constants,
    copy_model,
    new_constant,
    parse,
    reads,
    replace_values,
    subgraphs,
)
from edgekit_converters.formats.onnx_loops import follow, number, trips_of
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

OPERATORS = operators("onnx")
# What ONNX Runtime fuses into a product before it: always, and where no quantization stands between.
ACTIVATIONS = frozenset({"Relu", "Clip"})
FOLDED = frozenset({"BatchNormalization", "Mul", "Add", "Cast"})
# Where an operation that multiplies keeps its input and its kernel.
INTEGER = frozenset({"ConvInteger", "QLinearConv", "MatMulInteger", "QLinearMatMul"})
KERNELS = {
    name: (0, 3 if name.startswith("QLinear") else 1) for name in {"Conv", "ConvTranspose", "MatMul", "Gemm", *INTEGER}
}
STEP_DISPATCHES = 1 / 3
"""Of an operation in a loop: with ONNX Runtime 1.32 on x86-64 a step of a GRU's 18 operations took 6.4 dispatches as
fitted, beside MobileNetV1, and one of a SimpleRNN's 6 took 2.6."""
_SIZES = frozenset({6, 7, 9})
"""int32, int64 and bool in TensorProto.DataType."""
_MOST_SIZES = 1024
_SIZE_NAMES = """Add And Cast Concat ConstantOfShape Div Equal Expand Gather Max Min Mod Mul Range ReduceProd Reshape
    Size Slice Squeeze Sub Unsqueeze Where"""
_SIZE_ARITHMETIC = frozenset(_SIZE_NAMES.split())
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
LOOPS = frozenset({"Loop", "Scan"})


def read(data: bytes) -> WorkloadReading:
    """Count an ONNX model.
    Raises ConversionError when the bytes are none, or its shapes cannot be worked out."""
    import onnx

    model = parse(data)
    # Elements of the constants with two axes or more, and of those the ones in 8 bits or fewer.
    held = [tensor for graph in subgraphs(model.graph) for _, tensor in constants(graph) if len(tensor.dims) > 1]
    eight = sum(prod(tensor.dims) for tensor in held if _eight_bit(tensor.data_type))
    weights = eight + sum(prod(tensor.dims) for tensor in held if tensor.data_type in (1, 10, 16))
    batch, free = _fix_batch(model.graph)
    try:
        counter = _counted(model)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise ConversionError(f"the shapes in the ONNX model cannot be worked out: {error}") from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConversionError(f"an operation of the ONNX model is malformed: {error}") from error
    counter.unknown[:0] = free
    counter.batch, counter.weights, counter.eight_bit_weights = batch, weights, eight
    return counter


def _counted(model: Any) -> _OnnxCounter:
    """Its main graph. The results of loops that were counted become inputs."""
    import onnx

    counted: list[Op] = []
    unknown: list[str] = []
    tried = set[str]()
    while True:
        model = onnx.shape_inference.infer_shapes(model)
        while _compute_sizes(model):  # each pass may make shapes known that the next one starts from
            model = onnx.shape_inference.infer_shapes(model)
        counter = _OnnxCounter(GraphView(model, infer=False))
        loops = [node for node in model.graph.node if node.op_type in LOOPS and tried.isdisjoint(node.output)]
        if not loops:
            break
        tried.update(loops[0].output)
        found = _count_loop(counter, loops[0])
        if found is not None:
            body, trips, results = found
            each = math.ceil(STEP_DISPATCHES * len(body.counted))
            counted += repeated(body.counted, trips, next(filter(None, loops[0].output), ""), each)
            unknown += body.unknown
            model.graph.node.remove(loops[0])
            model.graph.input.extend(results)
            del model.graph.value_info[:]
    counter.counted, counter.unknown = counted, unknown
    for node in counter.view.nodes:
        counter.count(node)
    return counter


def _count_loop(outer: _OnnxCounter, loop: Any) -> tuple[_OnnxCounter, int, list[Any]] | None:
    """(what a step counts, steps, the results with their sizes); None if the file is silent.

    A Loop's body gets the step's number, the condition and the state; a Scan's the state and a slice of each sequence.
    """
    from onnx import helper

    of = outer.view.model
    part = helper.make_model(attribute(loop, "body", None), opset_imports=of.opset_import, ir_version=of.ir_version)
    graph, scan = part.graph, loop.op_type == "Scan"
    own, sequences = (0, attribute(loop, "num_scan_inputs", 0)) if scan else (2, 0)
    states = len(loop.input) - own - sequences
    backs = graph.output[own // 2 :]
    if len(graph.input) != len(loop.input) or not 0 <= states <= len(backs) or len(backs) != len(loop.output):
        return None
    del graph.value_info[:]
    inside, stored = GraphView(part, infer=False), dict(constants(outer.view.graph))
    starts: dict[str, float | None] = {}
    steps, shapes, kept = list[int](), list[tuple[int, ...]](), list[Any]()
    for place, (value, name) in enumerate(zip(graph.input, loop.input, strict=True)):
        shape = () if place < own else outer.shape(name)
        if shape is None:
            return None
        if place >= own + states:
            axis = attribute(loop, "scan_input_axes", [0] * sequences)[place - own - states]
            steps.append(shape[axis])
            shape = tuple(int(side) for side in np.delete(shape, axis))
        elif place >= own:
            shapes.append(shape)
            starts[value.name] = number(stored.get(name))
            if name in stored and follow(inside, backs[place - own].name)[0] == value.name:  # passed on as it came
                kept.append(new_constant(value.name, array(stored[name])))
        kind = value.type.tensor_type.elem_type or outer.view.kind(name)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    made = {*inside.inputs, *inside.initializers, *(name for node in graph.node for name in node.output)}
    for name in sorted({name for node in graph.node for name in reads(node)} - made):  # of the graph around it
        if name in stored:
            kept.append(new_constant(name, array(stored[name])))
        elif name in outer.view.values:
            graph.input.append(helper.make_tensor_value_info(name, outer.view.kind(name), outer.shape(name)))
    graph.initializer.extend(kept)
    ends = [copy_model(value) for value in graph.output]
    passed = {value.name for value in graph.input}
    replace_values(graph.output, [value for value in ends if value.name not in passed])
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    body = _counted(part)
    names = [value.name for value in ends]
    trips = min(steps, default=None) if scan else trips_of(body.view, loop, (stored, starts), names)
    if trips is None:
        return None
    results = []
    for place, (name, value) in enumerate(zip(loop.output, ends[own // 2 :], strict=True)):
        shape = body.shape(value.name)
        if place < states and shape is not None and shape != shapes[place]:
            return None  # it grows
        if place < states:
            shape = shapes[place]
        elif shape is not None:
            axis = attribute(loop, "scan_output_axes", [0] * len(backs))[place - states] % (len(shape) + 1)
            shape = (*shape[:axis], trips, *shape[axis:])
        kind = body.view.kind(value.name) or value.type.tensor_type.elem_type
        results.append(helper.make_tensor_value_info(name, kind, shape))
    return body, trips, [value for value in results if value.name]


class _OnnxCounter(WorkloadReading):
    """Counts an ONNX graph. constants: name -> stored element type."""

    def __init__(self, view: GraphView) -> None:
        super().__init__()
        self.view = view
        self.constants = {name: int(tensor.data_type) for name, tensor in view.initializers.items()}
        self._shapes = {name: tuple(tensor.dims) for name, tensor in constants(view.graph)}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape, None if an axis is known only at run time."""
        if name in self._shapes:
            return self._shapes[name]
        shape = self.view.shape(name)
        return shape if shape is not None and all(side > 0 for side in shape) else None

    def count(self, node: Any) -> None:
        name = node.op_type
        if node.domain not in ("", "ai.onnx"):
            self.unknown.append(f"{node.domain}.{name}")
        elif self._folds(node) or name in OPERATORS.free or self._fuses(node) or self._absorbed(node):
            return
        elif name in KERNELS:
            self._count_kernel(node)
        elif name in OPERATORS.moving and all(map(self._single, (*node.input, *node.output))):
            return
        elif name in OPERATORS.moving:
            read = node.output if name == "Gather" and node.input[0] not in self.constants else node.input
            tensors = [item for item in (*read, *node.output) if item and item not in self.constants]
            shapes = [self.shape(item) for item in tensors]
            if any(shape is None for shape in shapes):
                self.unknown.append(f"{name} of a shape known only at run time")
                return
            moved = sum(prod(shape) for shape in shapes if shape is not None) * OPERATORS.slower.get(name, 1)
            self.counted.append(Op("ew", 0, moved, 0, node.output[0]))
        elif name == "Einsum":
            self._count_einsum(node)
        elif name in RECURRENT:
            # X [steps, batch, n] or [batch, steps, n], W and R [directions, gates x hidden, n or hidden]. No
            # engine runs it in 8 bits.
            made = next(filter(None, node.output), "")
            source, result, *weights = (self.shape(item) for item in (node.input[0], made, *node.input[1:3]))
            if source is None or result is None or None in weights:
                self.unknown.append(f"{name} of a shape known only at run time")
                return
            held = sum(prod(shape) for shape in weights if shape is not None)
            op = recurrent(prod(source[:-1]), prod(source) + prod(result), held, made)
            self.counted.append(op)
        else:
            self.unknown.append(name)

    def _count_kernel(self, node: Any) -> None:
        at, kernel_at = KERNELS[node.op_type]
        stored = self.constants.get(node.input[kernel_at])
        if stored is None:
            one, other, result = map(self.shape, (*node.input[:2], node.output[0]))
            if not one or not other or result is None or node.op_type not in ("MatMul", "Gemm"):
                self.unknown.append(f"{node.op_type} of two computed tensors")
                return
            transposed = any(item.name == "transA" and item.i for item in node.attribute)
            macs = prod(result) * (one[0] if transposed else one[-1])
            kind, moved = dense_kind(result[-2] if len(result) > 1 else 1), sum(map(prod, (one, other, result)))
            quantized = all(self.view.made_by(name, "DequantizeLinear") for name in node.input[:2])
            eight_bits = quantized and all(map(self._feeds_quantize, node.output))
            self.counted.append(Op(kind, macs, moved, 0, node.output[0], computed=True, eight_bit=eight_bits))
            return
        source, kernel, result = map(self.shape, (node.input[at], node.input[kernel_at], node.output[0]))
        if source is None or kernel is None or result is None:
            self.unknown.append(f"{node.op_type} of a shape known only at run time")
            return
        kind, macs = _work(node, source, kernel, result)
        dequantized = self.view.made_by(node.input[at], "DequantizeLinear")
        integers = _eight_bit(stored) and (node.op_type in INTEGER or dequantized)
        moved = prod(source) + prod(result)
        self.counted.append(Op(kind, macs, moved, prod(kernel), node.output[0], eight_bit=integers))

    def _count_einsum(self, node: Any) -> None:
        """Count an Einsum of two tensors, each letter a loop; others are unknown."""
        equation = next((item.s for item in node.attribute if item.name == "equation"), b"").decode(errors="replace")
        terms, arrow, result = equation.replace(" ", "").partition("->")
        factors, shapes = terms.split(","), [self.shape(name) for name in node.input]
        known = [shape for shape in shapes if shape]
        if not arrow or "." in equation or len(known) != 2 or [*map(len, factors)] != [*map(len, known)]:
            self.unknown.append("Einsum")
            return
        sizes = dict(zip("".join(factors), (side for shape in known for side in shape), strict=True))
        made = prod(sizes[letter] for letter in result)
        constant = [name in self.constants for name in node.input]
        moved = made + sum(prod(shape) for shape, held in zip(known, constant, strict=True) if not held)
        held = sum(prod(shape) for shape, stored in zip(known, constant, strict=True) if stored)
        rows = made // sizes[result[-1]] if result else 1
        op = Op(dense_kind(rows), prod(sizes.values()), moved, held, node.output[0], computed=not any(constant))
        self.counted.append(op)

    def _folds(self, node: Any) -> bool:
        """Whether the output is known before anything runs.
        Its storage type is then its first input's."""
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            # The forms that hold no tensor are small, and counted as int64.
            stored = next((item.t.data_type for item in node.attribute if item.name == "value"), 7)
            self._shapes.setdefault(node.output[0], ())
        elif node.op_type == "Shape":
            stored = 7
        elif (
            inputs
            and node.op_type in OPERATORS.moving | OPERATORS.free
            and all(name in self.constants for name in inputs)
        ):
            stored = self.constants[inputs[0]]
        else:
            return False
        self.constants.update(dict.fromkeys(node.output, stored))
        return True

    def _fuses(self, node: Any) -> bool:
        """Whether an operation fuses into the product before it.
        An activation, normalisation, scale or bias does, also behind one that is fused."""
        computed = [name for name in node.input if name and name not in self.constants and not self._single(name)]
        if len(computed) != 1:
            return False
        name = computed[0]
        if node.op_type in ACTIVATIONS:
            while self.view.made_by(name, "DequantizeLinear") or self.view.made_by(name, "QuantizeLinear"):
                name = self.view.maker(name).input[0]
        elif node.op_type not in FOLDED:
            return False
        maker = self.view.maker(name)
        if maker is None or len(self.view.users(name)) > 1:
            return False
        sum_behind = node.op_type in ACTIVATIONS and maker.op_type == "Add"
        return maker.op_type in KERNELS or sum_behind or self._fuses(maker)

    def _absorbed(self, node: Any) -> bool:
        if node.op_type == "DequantizeLinear":
            users = self.view.users(node.output[0])
            return bool(users) and all(self._between(user) for user in users)
        if node.op_type == "QuantizeLinear":
            maker = self.view.maker(node.input[0])
            return maker is not None and (self._between(maker) or self._fuses(maker))
        return False

    def _between(self, node: Any) -> bool:
        """Whether an operation is only between dequantization and quantization.
        An 8-bit kernel replaces it."""
        computed = [name for name in node.input if name and name not in self.constants]
        return all(self.view.made_by(name, "DequantizeLinear") for name in computed) and all(
            self._feeds_quantize(name) for name in node.output
        )

    def _feeds_quantize(self, name: str) -> bool:
        users = self.view.users(name)
        return bool(users) and all(
            user.op_type == "QuantizeLinear" or (self._fuses(user) and self._feeds_quantize(user.output[0]))
            for user in users
        )

    def _single(self, name: str) -> bool:
        """Whether a value is one number, such as a scale computed at run time."""
        shape = self.shape(name)
        return shape is not None and prod(shape) == 1


def _work(node: Any, source: tuple[int, ...], kernel: tuple[int, ...], result: tuple[int, ...]) -> tuple[OpKind, int]:
    """Return the kind and multiply-accumulates.
    Kernels are [out, in / groups, ...], transposed [in, out / groups, ...]."""
    attributes = {item.name: item for item in node.attribute}
    if node.op_type == "ConvTranspose":
        return "cx", prod(source) * prod(kernel[1:])
    if "Conv" in node.op_type:
        groups = attributes["group"].i if "group" in attributes else 1
        macs = prod(result) * prod(kernel[1:])
        if groups > 1:
            return ("dw" if kernel[1] == 1 and groups == source[1] else "cx"), macs
        steps = {key: tuple(item.ints) for key, item in attributes.items() if key in ("strides", "dilations")}
        return convolution_kind(kernel[2:], steps.get("strides", ()), steps.get("dilations", ())), macs
    transposed = node.op_type == "Gemm" and "transB" in attributes and attributes["transB"].i == 1
    depth, width = (kernel[1], kernel[0]) if transposed else (kernel[-2] if len(kernel) > 1 else kernel[0], kernel[-1])
    macs = prod(result) * depth
    return dense_kind(prod(result) // width if len(kernel) > 1 else prod(result)), macs


def _compute_sizes(model: Any) -> bool:
    """Compute sizes that shape inference leaves open, such as Range's.
    Whether any was left."""
    import onnx

    view = GraphView(model, infer=False)
    known = {
        name: tensor
        for name, tensor in constants(model.graph)
        if tensor.data_type in _SIZES and prod(tensor.dims) <= _MOST_SIZES
    }
    found, kept = dict[str, Any](), []
    for node in model.graph.node:
        names = [name for name in node.input if name]
        shape = view.shape(names[0]) if node.op_type == "Shape" else None
        if shape is not None and all(side > 0 for side in shape):
            values = {names[0]: np.broadcast_to(np.float32(0), shape)}
        elif node.op_type in _SIZE_ARITHMETIC and names and all(name in known for name in names):
            values = {name: array(known[name]) for name in names}
        else:
            kept.append(node)
            continue
        makes = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
        takes = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
        single = onnx.helper.make_graph([node], "size", takes, makes)
        alone = onnx.helper.make_model(single, opset_imports=model.opset_import, ir_version=model.ir_version)
        results: Any = ()
        with contextlib.suppress(Exception):  # whatever the reference raises, the node stays as it is
            if _result_size(node.op_type, [*values.values()]) <= _MOST_SIZES:
                from onnx.reference import ReferenceEvaluator

                results = ReferenceEvaluator(alone).run(None, values)
        if not results or any(np.size(value) > _MOST_SIZES for value in results):
            kept.append(node)
            continue
        for name, value in zip(node.output, results, strict=True):
            found[name] = known[name] = new_constant(name, np.asarray(value))
    replace_values(model.graph.node, kept)
    if found:
        del model.graph.value_info[:]  # what was inferred without them
    model.graph.initializer.extend(found.values())
    return bool(found)


def _result_size(op: str, values: list[Any]) -> int:
    """Return how many elements Range, Expand and the like make.
    0 for the others."""
    match op:
        case "Range":
            start, limit, delta = (int(value) for value in values)
            return max(0, (limit - start) // delta)
        case "Expand":
            return prod(map(int, values[1]))
        case "ConstantOfShape":
            return prod(map(int, values[0]))
    return 0


def _fix_batch(graph: Any) -> tuple[int, list[str]]:
    """Set a free first axis of every input to 1.
    Returns the batch and the inputs with other free axes.

    Shapes noted in the file are dropped: they may hold names for axes that are now known.
    """
    constants = {tensor.name for tensor in graph.initializer}
    batch, free = 0, []
    for value in graph.input:
        if value.name in constants:
            continue
        axes = value.type.tensor_type.shape.dim
        if axes and axes[0].dim_value < 1:
            axes[0].dim_value = 1
        if any(axis.dim_value < 1 for axis in axes):
            free.append(f"input '{value.name}' of a shape known only at run time")
        if len(axes) > 1:
            batch = batch or axes[0].dim_value
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return batch or 1, free


def _eight_bit(kind: int) -> bool:
    """Whether a TensorProto.DataType is uint8, int8, uint4 or int4."""
    return kind in (2, 3, 21, 22)

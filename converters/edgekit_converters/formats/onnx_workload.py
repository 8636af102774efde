"""The operations of an ONNX model, counted as ONNX Runtime runs them after its own fusions.

Rules:
- nothing is run; what has only constant inputs, or computes a shape, is folded and takes no time;
- activations and batch normalisation behind a product are fused into it;
- a (De)QuantizeLinear beside an operation between the two is absorbed by its 8-bit kernel, any other is counted;
- a product of two computed tensors, as in attention, has no kernel;
- control flow and other domains are unknown, as is what follows an answer of a free size (NonMaxSuppression).
"""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx_file import GraphView, array, constants, new_constant, parse, replace_values
from edgekit_converters.formats.workload import (
    CountedOperation,
    WorkloadCounter,
    WorkloadReading,
    convolution_kind,
    dense_kind,
    recurrent,
)
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.workload import Op, OpKind

# What moves nothing; and what dynamic quantization adds in front of a product, which is in its factor against float.
FREE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "DynamicQuantizeLinear"})
# What ONNX Runtime fuses into a product before it: always, and where no quantization stands between.
ACTIVATIONS = frozenset({"Relu", "Clip"})
FOLDED = frozenset({"BatchNormalization", "Mul", "Add", "Cast"})
# Where an operation that multiplies keeps its input and its kernel.
INTEGER = frozenset({"ConvInteger", "QLinearConv", "MatMulInteger", "QLinearMatMul"})
KERNELS = {
    name: (0, 3 if name.startswith("QLinear") else 1) for name in {"Conv", "ConvTranspose", "MatMul", "Gemm", *INTEGER}
}
_ELEMENTWISE = """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Cos Cosh CumSum DepthToSpace
    DequantizeLinear Div Elu Equal Erf Exp Expand Floor Gather GatherElements GatherND Gelu GlobalAveragePool
    GlobalLpPool GlobalMaxPool Greater GreaterOrEqual Hardmax HardSigmoid HardSwish InstanceNormalization IsInf
    IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool LRN Max MaxPool Mean
    MeanVarianceNormalization Min Mish Mod Mul Neg Not OneHot Or Pad Pow PRelu QuantizeLinear Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Resize ReverseSequence RMSNormalization Round ScatterND Selu Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus
    Softsign SpaceToDepth Split Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Tile Transpose Trilu Upsample Where Xor"""
# What takes as many times longer for each element that it moves; measured beside Mul with ONNX Runtime 1.32 on x86-64.
SLOWER = {"GridSample": 8, "ScatterElements": 24, "TopK": 16}
ELEMENTWISE = frozenset([*_ELEMENTWISE.split(), *SLOWER])
_SIZES = frozenset({6, 7, 9})
"""int32, int64 and bool in TensorProto.DataType."""
_MOST_SIZES = 1024
_SIZE_NAMES = """Add And Cast Concat ConstantOfShape Div Equal Expand Gather Max Min Mod Mul Range ReduceProd Reshape
    Size Slice Squeeze Sub Unsqueeze Where"""
_SIZE_ARITHMETIC = frozenset(_SIZE_NAMES.split())
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


def read(data: bytes) -> WorkloadReading:
    """Count an ONNX model.
    Raises ConversionError when the bytes are none, or its shapes cannot be worked out."""
    import onnx

    model = parse(data)
    batch, free = _fix_batch(model.graph)
    try:
        model = onnx.shape_inference.infer_shapes(model)
        while _compute_sizes(model):  # each pass may make shapes known that the next one starts from
            model = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise ConversionError(f"the shapes in the ONNX model cannot be worked out: {error}") from error
    graph = _OnnxCounter(GraphView(model, infer=False))
    graph.unknown.extend(free)
    try:
        for node in graph.view.nodes:
            graph.count(node)
    except (IndexError, KeyError, ZeroDivisionError) as error:
        raise ConversionError(f"an operation of the ONNX model is malformed: {error}") from error
    # Elements of the constants with two axes or more, and of those the ones in 8 bits or fewer.
    held = [tensor for _, tensor in constants(model.graph) if len(tensor.dims) > 1]
    eight = sum(prod(tensor.dims) for tensor in held if _eight_bit(tensor.data_type))
    return graph.reading(batch, eight + sum(prod(item.dims) for item in held if item.data_type in (1, 10, 16)), eight)


class _OnnxCounter(WorkloadCounter):
    """constants: name -> the element type that it is stored in."""

    def __init__(self, view: GraphView) -> None:
        super().__init__()
        self.view = view
        self.constants = {name: int(tensor.data_type) for name, tensor in view.initializers.items()}
        self._shapes = {name: tuple(tensor.dims) for name, tensor in constants(view.graph)}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None where an axis is known only at run time."""
        if name in self._shapes:
            return self._shapes[name]
        shape = self.view.shape(name)
        return shape if shape is not None and all(side > 0 for side in shape) else None

    def count(self, node: Any) -> None:
        name = node.op_type
        if node.domain not in ("", "ai.onnx"):
            self.give_up(f"{node.domain}.{name}")
        elif self._folds(node) or name in FREE or self._fuses(node) or self._absorbed(node):
            return
        elif name in KERNELS:
            self._count_kernel(node)
        elif name in ELEMENTWISE and all(map(self._single, (*node.input, *node.output))):
            return
        elif name in ELEMENTWISE:
            tensors = [item for item in (*node.input, *node.output) if item and item not in self.constants]
            shapes = [self.shape(item) for item in tensors]
            if any(shape is None for shape in shapes):
                self.unknown.append(f"{name} of a shape known only at run time")
                return
            moved = sum(prod(shape) for shape in shapes if shape is not None) * SLOWER.get(name, 1)
            self.counted.append(CountedOperation(Op("ew", 0, moved, 0, node.output[0])))
        elif name == "Einsum":
            self._count_einsum(node)
        elif name in RECURRENT:
            # X [steps, batch, n] or [batch, steps, n], W and R [directions, gates x hidden, n or hidden]. No
            # engine runs it in 8 bits.
            made = next(filter(None, node.output), "")
            source, result, *weights = (self.shape(item) for item in (node.input[0], made, *node.input[1:3]))
            if source is None or result is None or None in weights:
                self.give_up(f"{name} of a shape known only at run time")
                return
            held = sum(prod(shape) for shape in weights if shape is not None)
            op = recurrent(prod(source[:-1]), prod(source) + prod(result), held, made)
            self.counted.append(CountedOperation(op))
        else:
            self.give_up(name)

    def _count_kernel(self, node: Any) -> None:
        at, kernel_at = KERNELS[node.op_type]
        stored = self.constants.get(node.input[kernel_at])
        if stored is None:
            one, other, result = map(self.shape, (*node.input[:2], node.output[0]))
            if not one or not other or result is None or node.op_type not in ("MatMul", "Gemm"):
                self.give_up(f"{node.op_type} of two computed tensors")
                return
            transposed = any(item.name == "transA" and item.i for item in node.attribute)
            macs = prod(result) * (one[0] if transposed else one[-1])
            kind, moved = dense_kind(result[-2] if len(result) > 1 else 1), sum(map(prod, (one, other, result)))
            quantized = all(self.view.made_by(name, "DequantizeLinear") for name in node.input[:2])
            eight_bits = quantized and all(map(self._feeds_quantize, node.output))
            op = Op(kind, macs, moved, 0, node.output[0], computed=True)
            self.counted.append(CountedOperation(op, eight_bits))
            return
        source, kernel, result = map(self.shape, (node.input[at], node.input[kernel_at], node.output[0]))
        if source is None or kernel is None or result is None:
            self.give_up(f"{node.op_type} of a shape known only at run time")
            return
        kind, macs = _work(node, source, kernel, result)
        op = Op(kind, macs, prod(source) + prod(result), prod(kernel), node.output[0])
        dequantized = self.view.made_by(node.input[at], "DequantizeLinear")
        self.counted.append(CountedOperation(op, _eight_bit(stored) and (node.op_type in INTEGER or dequantized)))

    def _count_einsum(self, node: Any) -> None:
        """A product of two tensors, whose every letter is a loop; any other is unknown."""
        equation = next((item.s for item in node.attribute if item.name == "equation"), b"").decode(errors="replace")
        terms, arrow, result = equation.replace(" ", "").partition("->")
        factors, shapes = terms.split(","), [self.shape(name) for name in node.input]
        known = [shape for shape in shapes if shape]
        if not arrow or "." in equation or len(known) != 2 or [*map(len, factors)] != [*map(len, known)]:
            self.give_up("Einsum")
            return
        sizes = dict(zip("".join(factors), (side for shape in known for side in shape), strict=True))
        made = prod(sizes[letter] for letter in result)
        constant = [name in self.constants for name in node.input]
        moved = made + sum(prod(shape) for shape, held in zip(known, constant, strict=True) if not held)
        held = sum(prod(shape) for shape, stored in zip(known, constant, strict=True) if stored)
        rows = made // sizes[result[-1]] if result else 1
        op = Op(dense_kind(rows), prod(sizes.values()), moved, held, node.output[0], computed=not any(constant))
        self.counted.append(CountedOperation(op))

    def _folds(self, node: Any) -> bool:
        """True when the output is known before anything runs.
        Its storage type is then its first input's."""
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            # The forms that hold no tensor are small, and counted as int64.
            stored = next((item.t.data_type for item in node.attribute if item.name == "value"), 7)
            self._shapes.setdefault(node.output[0], ())
        elif node.op_type == "Shape":
            stored = 7
        elif inputs and node.op_type in ELEMENTWISE | FREE and all(name in self.constants for name in inputs):
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
        """Whether an operation stands between dequantization and quantization only.
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
        """One number, such as a scale worked out at run time."""
        shape = self.shape(name)
        return shape is not None and prod(shape) == 1


def _work(node: Any, source: tuple[int, ...], kernel: tuple[int, ...], result: tuple[int, ...]) -> tuple[OpKind, int]:
    """The class and multiply-accumulates.
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
    """Carry out the arithmetic on sizes that shape inference leaves alone, such as Range's.
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
    """Elements that an operation makes whose numbers of elements are among its values.
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
    """Sets a free first axis of every input to 1.
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
    """uint8, int8, uint4 and int4 in TensorProto.DataType."""
    return kind in (2, 3, 21, 22)

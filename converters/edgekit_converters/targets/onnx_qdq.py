"""QuantizeLinear and DequantizeLinear nodes that make a float ONNX graph an 8-bit one.

    model = quantize_layers(GraphView(model), layers, ranges, symmetric=False)

Rules:
- a value that an 8-bit layer reads or makes has one pair, called `<value>_QuantizeLinear_Output` and
  `<value>_DequantizeLinear_Output`, numbered if taken; a float layer reads a float layer's value itself;
- activations uint8 with a zero-point, or int8 around 0; weights int8 around 0, a scale for each output channel; biases
  int32 at the scale of the products, or float with symmetric activations (TensorRT's explicit quantization);
- values that are only moved keep their scale; a value that only a Concat reads has the Concat's; the result of a Gemm
  or MatMul that only float layers read is not rounded;
- HardSigmoid in 8 bits is a sum whose output saturates at 0 and 1; a hard swish's input has no steps below that.

docs/adr/0019 has the measurements behind these types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import (
    GraphView,
    attribute,
    copy_model,
    drop_unread,
    free_name,
    new_constant,
    new_node,
    replace_values,
    value_names,
)

_FEEDS_FLOAT = frozenset({"Gemm", "MatMul"})
_TINY = 1e-12
_MOST_INT32 = 2.0**30


@dataclass(frozen=True)
class QdqScale:
    """A tensor's quantization: value = scale * (integer - zero_point)."""

    scale: float
    zero_point: int
    dtype: type[np.integer[Any]]

    def integers(self, array: NDArray[Any]) -> NDArray[Any]:
        limits = np.iinfo(self.dtype)
        rounded: NDArray[Any] = np.rint(array / self.scale) + self.zero_point
        return rounded.clip(limits.min, limits.max).astype(self.dtype)


def step(low: float, high: float, *, symmetric: bool) -> QdqScale:
    """Return the scale of a range widened to include 0; 1 for an empty range."""
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        most = max(-low, high)
        return QdqScale(float(np.float32(most / 127)) if most > _TINY else 1.0, 0, np.int8)
    if high - low <= _TINY:
        return QdqScale(1.0, 0, np.uint8)
    scale = float(np.float32((high - low) / 255))
    return QdqScale(scale, round(min(max(-low / scale, 0), 255)), np.uint8)


def quantize_layers(
    view: GraphView, layers: Int8Layers, ranges: Mapping[str, tuple[float, float]], *, symmetric: bool
) -> Any:
    """Quantize a copy of the model. ranges: of each value that an 8-bit layer reads or makes."""
    return _QdqWriter(view, layers, ranges, symmetric).write()


class _QdqWriter:
    def __init__(
        self, view: GraphView, layers: Int8Layers, ranges: Mapping[str, tuple[float, float]], symmetric: bool
    ) -> None:
        self.view, self.layers, self.ranges, self.symmetric = view, layers, ranges, symmetric
        self.clipped = layers.clipped
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.taken = value_names(view.model)
        self.named: dict[tuple[str, str], str] = {}
        self.steps: dict[str, QdqScale] = {}
        for name in view.inputs:
            if self._read_in_int8(name):
                self.steps[name] = self._step_of(name)
        for node in view.nodes:
            for name in filter(None, node.output):
                if name in self.clipped and name in layers.int8:
                    continue  # the value between a layer and its clip
                maker = self._maker_in_int8(name)
                made = maker is not None and (maker.op_type not in _FEEDS_FLOAT or symmetric)
                if made or self._read_in_int8(name):
                    self.steps[name] = self._step_of(name)

    def write(self) -> Any:
        view = self.view
        for value in view.graph.input:
            if value.name in self.steps:
                self._pair(value.name)
        for node in view.nodes:
            out = node.output[0] if node.output else ""
            if out in self.layers.absorbed and self._needless(node):
                continue
            new = copy_model(node)
            end = self.clipped.get(out, out)
            if self._in_int8(node):
                self._int8_inputs(node, new)
                if end != out and self._needless(view.maker(end)):
                    new.output[0] = end
            else:
                for position, name in enumerate(node.input):
                    if name in self.steps and self._maker_in_int8(name) is not None:
                        new.input[position] = self._dequantized(name)
            made = [name for name in new.output if name in self.steps]
            for position, name in enumerate(new.output):
                if name in self.steps and self._ends(name):
                    new.output[position] = self._name(name, "QuantizeLinear_Input")
            self.nodes.append(new)
            for name in made:
                self._pair(name)
        model = copy_model(view.model)
        del model.graph.node[:]
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.constants)
        drop_unread(model.graph)
        del model.graph.value_info[:]
        return model

    def _read_in_int8(self, name: str) -> bool:
        return any(self._in_int8(user) for user in self.view.users(name)) and self.view.is_float(name)

    def _in_int8(self, node: Any) -> bool:
        return bool(node.output) and node.output[0] in self.layers.int8

    def _maker_in_int8(self, name: str) -> Any | None:
        """Return the 8-bit node that makes a value, through an absorbed clip, or None."""
        maker = self.view.maker(self.layers.absorbed.get(name, name))
        return maker if maker is not None and self._in_int8(maker) else None

    def _step_of(self, name: str) -> QdqScale:
        maker = self._maker_in_int8(name)
        if maker is not None and maker.op_type in MOVES and maker.input[0] in self.steps:
            return self.steps[maker.input[0]]
        joins = self.view.only_user(name)
        if joins is not None and joins.op_type == "Concat" and self._in_int8(joins):
            joined, clip = self._step_of(joins.output[0]), name in self.layers.absorbed
            if not clip or self._covers(joined, self.view.maker(name)):
                return joined
        low, high = (0.0, 1.0) if maker is not None and maker.op_type == "HardSigmoid" else self.ranges[name]
        # Without what every reader maps to one value: below -3 a hard swish is 0, whatever the input.
        users = self.view.users(name)
        gates = [user for user in users if user.op_type == "HardSigmoid" and self._in_int8(user)]
        products = [user for user in users if user.op_type == "Mul" and self._in_int8(user)]
        if gates and len(gates) + len(products) == len(users) and name not in self.view.outputs:
            alpha, beta = _slope(gates[0])
            gated = {gate.output[0] for gate in gates}
            if alpha > 0 and all(gated & set(product.input) for product in products):
                low, high = max(low, -beta / alpha), high if products else min(high, (1 - beta) / alpha)
        return step(low, high, symmetric=self.symmetric)

    def _ends(self, name: str) -> bool:
        """Whether the graph returns the rounded value."""
        return name in self.view.outputs and self._maker_in_int8(name) is not None

    def _needless(self, clip: Any) -> bool:
        """Whether the quantized range already does the clipping."""
        name = clip.output[0]
        if name not in self.steps or self.symmetric:
            return False
        return self._covers(self.steps[name], clip)

    def _covers(self, rounding: QdqScale, clip: Any) -> bool:
        """Whether the quantized range lies within a clip's bounds."""
        low, high = -rounding.scale * rounding.zero_point, rounding.scale * (255 - rounding.zero_point)
        if clip.op_type == "Relu":
            return low >= 0
        bounds = [self.view.number(bound) if bound else None for bound in (*clip.input[1:], "", "")]
        slack = rounding.scale / 2
        return (bounds[0] is None or low >= bounds[0] - slack) and (bounds[1] is None or high <= bounds[1] + slack)

    def _int8_inputs(self, node: Any, new: Any) -> None:
        if node.op_type == "HardSigmoid":
            # clip(alpha x + beta, 0, 1): the input read at another scale, plus a constant, rounded to 0..1
            source, out = node.input[0], node.output[0]
            alpha, beta = _slope(node)
            rounding = self.steps[source]
            scaled = QdqScale(float(np.float32(rounding.scale * alpha)), rounding.zero_point, rounding.dtype)
            moved = self._linear("DequantizeLinear", self._integers(source), self._new(f"{out}/scaled"), scaled)
            offset = self._constant(self._new(f"{out}/offset"), np.asarray(beta, np.float32))
            new.CopyFrom(new_node("Add", [moved, offset], [out], node.name))
            return
        for position, name in enumerate(node.input):
            if name in self.steps:
                new.input[position] = self._dequantized(name)
        if node.op_type in ("Conv", "Gemm", "MatMul") and self.view.is_constant(node.input[1]):
            self._weights(node, new)
        elif node.op_type in ("Add", "Mul", "Concat"):
            for position, name in enumerate(node.input):
                array = self.view.constant(name)
                if array is not None:
                    new.input[position] = self._constant(name, array)

    def _weights(self, node: Any, new: Any) -> None:
        weight = self.view.constant(node.input[1])
        bias = self.view.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        assert weight is not None
        axis = 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1
        if node.op_type == "Gemm":
            # alpha and beta go into the weights and the bias, which gets one number an output
            alpha, beta = attribute(new, "alpha", 1.0), attribute(new, "beta", 1.0)
            replace_values(new.attribute, [item for item in new.attribute if item.name not in ("alpha", "beta")])
            if bias is not None:
                bias = np.broadcast_to(bias.reshape(-1) * np.float32(beta), (weight.shape[axis],))
            weight = weight * np.float32(alpha)
        first = self.steps[node.input[0]].scale
        rest = tuple(i for i in range(weight.ndim) if i != axis)
        scale = np.maximum(np.abs(weight).max(axis=rest, initial=0) / 127, _TINY).astype(np.float32)
        if bias is not None:  # a dead channel's scale must leave its bias room
            scale = np.maximum(scale, np.abs(bias) / (first * _MOST_INT32)).astype(np.float32)
        spread = scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        integers = np.clip(np.rint(weight / spread), -127, 127).astype(np.int8)
        name = self._new(f"{node.output[0]}/{node.input[1]}")
        new.input[1] = self._channels(name, integers, scale, axis)
        if bias is None:
            return
        if self.symmetric:
            new.input[2] = self._add(f"{node.output[0]}/bias", bias.astype(np.float32))
            return
        products = (scale.astype(np.float64) * first).astype(np.float32)
        rounded = np.rint(bias.astype(np.float64) / products).astype(np.int32)
        new.input[2] = self._channels(self._new(f"{node.output[0]}/bias"), rounded, products, 0)

    def _channels(self, name: str, integers: NDArray[Any], scale: NDArray[Any], axis: int) -> str:
        names = [
            self._add(f"{name}_quantized", integers),
            self._add(f"{name}_scale", scale),
            self._add(f"{name}_zero_point", np.zeros(scale.shape, integers.dtype)),
        ]
        out = self._dequantized(name)
        self.nodes.append(new_node("DequantizeLinear", names, [out], out, axis=axis))
        return out

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        """Quantize a constant that an elementwise layer reads, to its own range."""
        if (name, "quantized") not in self.named:
            rounding = step(float(array.min(initial=0)), float(array.max(initial=0)), symmetric=self.symmetric)
            self.constants.append(new_constant(self._name(name, "quantized"), rounding.integers(array)))
            self._linear("DequantizeLinear", self._name(name, "quantized"), self._dequantized(name), rounding)
        return self._dequantized(name)

    def _pair(self, name: str) -> None:
        rounding, end = self.steps[name], self._ends(name)
        source, integers = self._name(name, "QuantizeLinear_Input") if end else name, self._integers(name)
        self._linear("QuantizeLinear", source, integers, rounding)
        self._linear("DequantizeLinear", integers, name if end else self._dequantized(name), rounding)

    def _linear(self, op: str, source: str, out: str, rounding: QdqScale) -> str:
        scale = self._add(f"{out}_scale", np.asarray(rounding.scale, np.float32))
        zero_point = self._add(f"{out}_zero_point", np.asarray(rounding.zero_point, rounding.dtype))
        self.nodes.append(new_node(op, [source, scale, zero_point], [out], out))
        return out

    def _add(self, name: str, array: NDArray[Any]) -> str:
        self.constants.append(new_constant(self._new(name), array))
        return str(self.constants[-1].name)

    def _integers(self, name: str) -> str:
        return self._name(name, "QuantizeLinear_Output")

    def _dequantized(self, name: str) -> str:
        return self._name(name, "DequantizeLinear_Output")

    def _name(self, name: str, end: str) -> str:
        """Return the name of that form of a value."""
        if (name, end) not in self.named:
            self.named[name, end] = self._new(f"{name}_{end}")
        return self.named[name, end]

    def _new(self, name: str) -> str:
        return free_name(name, self.taken)


def _slope(node: Any) -> tuple[float, float]:
    return float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))


PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_MOVES = "DepthToSpace Expand Flatten MaxPool Reshape Resize Slice Split Squeeze Tile Transpose Unsqueeze"
MOVES = frozenset(_MOVES.split())
"""Each output has the scale and zero-point of the first input."""
_ELEMENTWISE = "Add AveragePool Concat GlobalAveragePool HardSigmoid LeakyRelu Mul Sigmoid"
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
_CLIPS = frozenset({"Relu", "Clip"})
_FEW_CHANNELS = 8


@dataclass(frozen=True)
class Int8Layers:
    """The layers to quantize.
    int8: first outputs of the nodes in 8 bits.
    absorbed: output of a Relu or Clip -> output of the node that it joins; clipped: the reverse.
    """

    int8: frozenset[str]
    absorbed: dict[str, str] = field(default_factory=dict)

    @property
    def clipped(self) -> dict[str, str]:
        return {product: clip for clip, product in self.absorbed.items()}


def int8_layers(
    view: GraphView, ranged: Collection[str], float_layers: Collection[str] = (), *, symmetric: bool = False
) -> Int8Layers:
    """Choose the layers for which ONNX Runtime's CPU has an 8-bit kernel that pays.

        layers = int8_layers(GraphView(model), ranged=ranges.keys())
        "conv1" in layers.int8, "relu1" in layers.absorbed

    ranged: tensors whose range is known; nothing else can be quantized.
    float_layers: first outputs of nodes that stay.
    symmetric: zero-points of 0, which cost a HardSigmoid half its steps.

    Rules (from the graphs that ONNX Runtime 1.31 makes of `DequantizeLinear -> op -> QuantizeLinear`):
    - products with constant weights (Conv, Gemm, MatMul) and of two computed matrices;
    - not a net's first convolution if it has fewer than 8 channels, is not most of the work and activations are not
      symmetric: its 8-bit kernel is slower (EfficientNet-Lite0: 0.65 ms against 0.33);
    - ELEMENTWISE and MOVES between 8-bit layers: anywhere else conversions around them cost accuracy and time;
    - Relu and Clip after such a layer vanish: the range of its output clips;
    - not a Resize that crops, whose value for the outside is in no input's range;
    - all else is float (HardSwish, Tanh, Div, ReduceMean, Softmax, Pad): it has no 8-bit kernel.
    """
    return _Choice(view, frozenset(ranged), frozenset(float_layers), symmetric).choose()


class _Choice:
    def __init__(self, view: GraphView, ranged: frozenset[str], float_layers: frozenset[str], symmetric: bool) -> None:
        self.view, self.ranged, self.float_layers, self.symmetric = view, ranged, float_layers, symmetric
        self.int8: set[str] = set()
        self.absorbed: dict[str, str] = {}

    def choose(self) -> Int8Layers:
        view = self.view
        able = {node.output[0]: node for node in view.nodes if self._able(node)}
        for name, node in able.items():
            clip = view.only_user(name)
            if node.op_type in MOVES or clip is None or clip.op_type not in _CLIPS:
                continue
            bounds = [view.number(bound) for bound in clip.input[1:] if bound] if clip.op_type == "Clip" else []
            if clip.output[0] not in self.float_layers and None not in bounds:
                self.absorbed[clip.output[0]] = name
        able = {name: node for name, node in able.items() if self._end(name) in self.ranged}
        self.absorbed = {clip: name for clip, name in self.absorbed.items() if name in able}
        products = {name: node for name, node in able.items() if node.op_type in PRODUCTS}
        slow = set()  # first convolutions whose 8-bit kernel loses to the float one
        for name, node in products.items():
            shape = view.shape(node.input[1]) if node.op_type == "Conv" and not self.symmetric else None
            few = shape is not None and shape[1] < _FEW_CHANNELS and attribute(node, "group", 1) == 1
            if few and node.input[0] not in self._behind_products:
                slow.add(name)
        # Of the whole net, whatever stays float: taking one layer out of the 8-bit ones must not bring another in.
        whole = sum(self._work(node) for node in view.nodes if node.op_type in PRODUCTS)
        self.int8 = set(products) - (slow if 2 * sum(self._work(able[name]) for name in slow) <= whole else set())
        others = {name: node for name, node in able.items() if node.op_type not in PRODUCTS}
        for name, node in others.items():  # the graph's order: one pass is enough
            if any(self._is_int8(source) for source in self._sources(node)):
                self.int8.add(name)
        while dropped := {name for name in others if name in self.int8 and not self._saves_conversions(others[name])}:
            self.int8 -= dropped
        absorbed = {clip: name for clip, name in self.absorbed.items() if name in self.int8}
        return Int8Layers(frozenset(self.int8), absorbed)

    def _able(self, node: Any) -> bool:
        view, op = self.view, node.op_type
        if node.domain not in ("", "ai.onnx") or not node.output or node.output[0] in self.float_layers:
            return False
        if op not in PRODUCTS | MOVES | ELEMENTWISE or not view.is_float(node.output[0]):
            return False
        sources = self._sources(node)
        if not sources or not all(name in self.ranged for name in sources):
            return False
        if op in PRODUCTS:
            if not view.is_float(node.input[1]):
                return False
            weight = view.shape(node.input[1]) if view.is_constant(node.input[1]) else None
            if op == "MatMul":
                return not view.is_constant(node.input[0]) and (weight is None or len(weight) == 2)
            bias = node.input[2] if len(node.input) > 2 else ""
            if weight is None or (bias and not view.is_constant(bias)):
                return False
            return not attribute(node, "transA", 0) if op == "Gemm" else len(weight) in (3, 4)
        if op == "HardSigmoid":
            return not self.symmetric
        if op == "Resize":  # what lies outside a crop is a number of its own, which the 8-bit kernel does not scale
            cropped = attribute(node, "coordinate_transformation_mode", b"half_pixel") == b"tf_crop_and_resize"
            return attribute(node, "mode", b"nearest") == b"nearest" and not cropped
        if op == "MaxPool":
            return len(node.output) == 1
        return True

    def _work(self, node: Any) -> int:
        """Count multiply-accumulates for one item, or weights if the shape is unknown."""
        shape = self.view.shape(node.output[0]) or ()
        places = shape[2:] if node.op_type == "Conv" else ()
        return prod(self.view.shape(node.input[1]) or ()) * prod(size for size in places if size > 0)

    @cached_property
    def _behind_products(self) -> frozenset[str]:
        """Return values that depend on a product."""
        found = set[str]()
        for node in self.view.nodes:
            if node.op_type in PRODUCTS or found.intersection(node.input):
                found.update(node.output)
        return frozenset(found)

    def _sources(self, node: Any) -> list[str]:
        """Return the computed float values that it reads."""
        return [name for name in self.view.computed_inputs(node) if self.view.is_float(name)]

    def _end(self, name: str) -> str:
        """Return the value after the clip that a node absorbs."""
        return next((clip for clip, product in self.absorbed.items() if product == name), name)

    def _is_int8(self, name: str) -> bool:
        maker = self.view.maker(self.absorbed.get(name, name))
        return maker is not None and bool(maker.output) and maker.output[0] in self.int8

    def _saves_conversions(self, node: Any) -> bool:
        """Whether quantizing a layer next to products saves conversions.

        It needs 8-bit readers, and 8-bit makers or only such readers.
        """
        ends = [self._end(name) for name in node.output if name]
        readers = [user.output[0] in self.int8 for end in ends for user in self.view.users(end)]
        if not any(readers):
            return False
        if all(self._is_int8(name) for name in self._sources(node)):
            return True
        inner = not any(end in self.view.outputs for end in ends)
        return all(readers) and inner and any(map(self._is_int8, self._sources(node)))

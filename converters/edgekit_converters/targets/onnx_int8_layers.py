"""Which operators of a float ONNX graph run in 8 bits: those for which ONNX Runtime's CPU has an 8-bit kernel, where it pays.

Rules (found by looking at the graph that ONNX Runtime 1.31 makes of `DequantizeLinear -> op -> QuantizeLinear`):
- products with constant weights (Conv, Gemm, MatMul) and of two computed matrices: they are what takes the time;
- but not a convolution of fewer than 8 channels that no product stands before, as a net's first one is: its 8-bit kernel is
  slower than the float one (EfficientNet-Lite0, 3 channels to 32, 112 x 112: 0.65 ms against 0.33), and what it loses no
  later layer brings back. Where it is most of the work, or activations are symmetric, it is in 8 bits like all the rest;
- Add, Mul, Concat, poolings, Sigmoid, LeakyRelu, HardSigmoid, and what only moves values, between 8-bit layers: anywhere
  else they would be wrapped in conversions that cost accuracy and time;
- Relu and Clip behind such a layer vanish: the range that its output is quantized to does their work;
- all else is float: HardSwish, Tanh, Div, ReduceMean, Softmax, Pad and others have no 8-bit kernel, and a quantized one is a
  float one with two conversions.

    layers = int8_layers(GraphView(model), ranged=ranges.keys())
    "conv1" in layers.int8, "relu1" in layers.absorbed
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from edgekit_converters.formats.onnx import GraphView, attribute

__all__ = ["ELEMENTWISE", "MOVES", "PRODUCTS", "Int8Layers", "int8_layers"]

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
    """int8: first outputs of the nodes in 8 bits. absorbed: output of a Relu or Clip -> output of the node that it joins.

    clipped: the reverse of `absorbed`.
    """

    int8: frozenset[str]
    absorbed: dict[str, str] = field(default_factory=dict)

    @property
    def clipped(self) -> dict[str, str]:
        return {product: clip for clip, product in self.absorbed.items()}


def int8_layers(
    view: GraphView, ranged: Collection[str], float_layers: Collection[str] = (), *, symmetric: bool = False
) -> Int8Layers:
    """ranged: tensors whose range is known; nothing else can be quantized. float_layers: first outputs of nodes that stay.

    symmetric: zero-points of 0, where a HardSigmoid's 8-bit form loses half its steps.
    """
    return _Choice(view, frozenset(ranged), frozenset(float_layers), symmetric).made()


class _Choice:
    def __init__(self, view: GraphView, ranged: frozenset[str], float_layers: frozenset[str], symmetric: bool) -> None:
        self.view, self.ranged, self.float_layers, self.symmetric = view, ranged, float_layers, symmetric
        self.int8: set[str] = set()
        self.absorbed: dict[str, str] = {}

    def made(self) -> Int8Layers:
        view = self.view
        able = {node.output[0]: node for node in view.nodes if self._able(node)}
        for name, node in able.items():
            clip = view.only_user(name)
            if node.op_type not in MOVES and clip is not None and self._clips(clip):
                self.absorbed[clip.output[0]] = name
        able = {name: node for name, node in able.items() if self._end(name) in self.ranged}
        self.absorbed = {clip: name for clip, name in self.absorbed.items() if name in able}
        products = {name: node for name, node in able.items() if node.op_type in PRODUCTS}
        slow = {name for name, node in products.items() if self._slow(node)}
        # Of the whole net, whatever stays float: taking one layer out of the 8-bit ones must not bring another in.
        whole = sum(self._work(node) for node in view.nodes if node.op_type in PRODUCTS)
        self.int8 = set(products) - (slow if 2 * sum(self._work(able[name]) for name in slow) <= whole else set())
        others = {name: node for name, node in able.items() if node.op_type not in PRODUCTS}
        for name, node in others.items():  # the graph's order: one pass is enough
            if any(self._made_in_int8(source) for source in self._sources(node)):
                self.int8.add(name)
        while dropped := {name for name, node in others.items() if name in self.int8 and not self._pays(node)}:
            self.int8 -= dropped
        return Int8Layers(
            frozenset(self.int8), {clip: name for clip, name in self.absorbed.items() if name in self.int8}
        )

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
            return _multiplies(node, view)
        if op == "HardSigmoid":
            return not self.symmetric
        if op == "Resize":
            return bool(attribute(node, "mode", b"nearest") == b"nearest")
        if op == "MaxPool":
            return len(node.output) == 1
        return True

    def _slow(self, node: Any) -> bool:
        """A first convolution whose 8-bit kernel loses to the float one."""
        if node.op_type != "Conv" or self.symmetric or attribute(node, "group", 1) != 1:
            return False
        shape = self.view.shape(node.input[1])
        return shape is not None and shape[1] < _FEW_CHANNELS and node.input[0] not in self._behind_products

    def _work(self, node: Any) -> int:
        """Multiply-accumulates for one item, or the number of weights where the shape is not known."""
        shape = self.view.shape(node.output[0]) or ()
        places = shape[2:] if node.op_type == "Conv" else ()
        return prod(self.view.shape(node.input[1]) or ()) * prod(size for size in places if size > 0)

    @cached_property
    def _behind_products(self) -> frozenset[str]:
        """Values that depend on a product."""
        found = set[str]()
        for node in self.view.nodes:
            if node.op_type in PRODUCTS or found.intersection(node.input):
                found.update(node.output)
        return frozenset(found)

    def _clips(self, node: Any) -> bool:
        if node.op_type not in _CLIPS or node.output[0] in self.float_layers:
            return False
        return node.op_type == "Relu" or all(self.view.number(name) is not None for name in node.input[1:] if name)

    def _sources(self, node: Any) -> list[str]:
        """Float values, computed while the model runs, that it reads."""
        return [name for name in self.view.computed(node) if self.view.is_float(name)]

    def _end(self, name: str) -> str:
        """The value that a node hands on: behind the clip that joins it."""
        return next((clip for clip, product in self.absorbed.items() if product == name), name)

    def _made_in_int8(self, name: str) -> bool:
        maker = self.view.maker(self.absorbed.get(name, name))
        return maker is not None and bool(maker.output) and maker.output[0] in self.int8

    def _pays(self, node: Any) -> bool:
        """Whether a layer beside the products saves conversions: it needs 8-bit readers, and makers or only such readers."""
        ends = [self._end(name) for name in node.output if name]
        readers = [user.output[0] in self.int8 for end in ends for user in self.view.users(end)]
        if not any(readers):
            return False
        if all(self._made_in_int8(name) for name in self._sources(node)):
            return True
        inner = not any(end in self.view.outputs for end in ends)
        return all(readers) and inner and any(map(self._made_in_int8, self._sources(node)))


def _multiplies(node: Any, view: GraphView) -> bool:
    """A product for which there is an 8-bit kernel."""
    if not view.is_float(node.input[1]):
        return False
    weight = view.shape(node.input[1]) if view.is_constant(node.input[1]) else None
    if node.op_type == "MatMul":
        return not view.is_constant(node.input[0]) and (weight is None or len(weight) == 2)
    bias = node.input[2] if len(node.input) > 2 else ""
    if weight is None or (bias and not view.is_constant(bias)):
        return False
    if node.op_type == "Gemm":
        return not attribute(node, "transA", 0)
    return len(weight) in (3, 4)

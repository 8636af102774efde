"""A Keras 3 model as the converters see it: batch norm folded, activations fused.

    network = read_network(model)
    [node.op for node in network.nodes]        # ["input", "conv", "depthwise", "add", "move", "dense", "softmax"]
    model = to_keras(network, weights)         # the float model with other kernels and biases, batch norm folded

Rules:
- only listed layers are accepted, and only listed arithmetic between them (`x[..., :4] * 8 + grid`, `keras.ops.exp`);
- batch norm is folded with its moving mean and variance, w' = w * gamma / sqrt(var + epsilon), as converters do, so
  that what is trained is what is quantized;
- a ReLU or ReLU6 that alone reads a product or an addition belongs to it, as in TFLite and ONNX Runtime;
- a square becomes a product: TFLite has no 8-bit kernel for squares.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.foreign_code import quiet

Op = Literal[
    "input", "conv", "depthwise", "dense", "add", "multiply", "concat", "mean", "move", "relu", "sigmoid", "tanh",
    "softmax", "scale", "offset", "exp", "minimum", "maximum",
]  # fmt: skip
PRODUCTS = frozenset({"conv", "depthwise", "dense"})
"""Nodes with a kernel."""

_PRODUCTS: dict[str, Op] = {"Conv2D": "conv", "DepthwiseConv2D": "depthwise", "Dense": "dense"}
_MERGES: dict[str, Op] = {"Add": "add", "Multiply": "multiply", "Concatenate": "concat"}
_MOVES = frozenset(
    "Flatten Reshape Permute ZeroPadding2D Cropping2D MaxPooling2D GlobalMaxPooling2D AveragePooling2D".split()  # noqa: SIM905
)
IDENTITIES = frozenset(
    "Dropout SpatialDropout2D GaussianNoise GaussianDropout ActivityRegularization Identity".split()  # noqa: SIM905
)
"""Layers that act only in training."""
_DEPTHWISE = "_depthwise"
"""Suffix of a separable convolution's name: its first part."""
_FUSED = ("relu", "relu6")
_ALONE: dict[str, Op] = {"sigmoid": "sigmoid", "tanh": "tanh", "softmax": "softmax"}
_BY_ONE: dict[str, Op] = {"Exp": "exp", "Sigmoid": "sigmoid", "Tanh": "tanh"}
_BY_NUMBER: dict[str, Op] = {
    "Multiply": "scale", "Divide": "scale", "TrueDivide": "scale", "Add": "offset", "Subtract": "offset",
    "Minimum": "minimum", "Maximum": "maximum",
}  # fmt: skip
_SYMMETRIC = frozenset({"Multiply", "Add", "Minimum", "Maximum"})
_INSTEAD = "Use the layers that docs/compress.md lists, or build without compress: --recipe tflite-int8-mixed"

Weights = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Name of a product -> (kernel in Keras' shape, bias [channels])."""


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or with the first free number; it is added to `taken`."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


@dataclass(frozen=True)
class Node:
    """One value of the network and how it is made.

    name: of the Keras layer.
    inputs: places of nodes.
    layer: Keras' own, None for parts of one.
    activation: fused, "linear", "relu" or "relu6".
    kernel: in Keras' shape; bias: [channels], zeros if the layer has none.
    number: of `scale`, `offset`, `minimum` and `maximum`: one, or an array that is broadcast.
    """

    name: str
    op: Op
    inputs: tuple[int, ...] = ()
    layer: Any = None
    activation: str = "linear"
    kernel: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    number: NDArray[np.float32] | None = None


@dataclass
class Network:
    """A model as nodes, with what Keras needs to be called again.

    nodes: in the order of execution, the input first.
    outputs: the places of the answers, in the model's order.
    calls: of Keras, for `to_keras`.
    places: id of a Keras tensor -> place of the node that has its values.
    input: Keras' tensor; results: ids of the answers' tensors.
    numbers: whether the answer is predicted numbers, or boxes, and not scores of classes.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    calls: list[Call] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    input: Any = None
    results: tuple[int, ...] = ()
    numbers: bool = False

    @property
    def output(self) -> int:
        """The place of the answer; of several, of the first."""
        return self.outputs[0]

    @property
    def logits(self) -> int:
        return self.heads[0]

    @property
    def heads(self) -> tuple[int, ...]:
        """The places that a loss reads: before a last softmax or sigmoid of classes, or the answers."""
        last = self.nodes[self.outputs[0]]
        if len(self.outputs) > 1 or self.numbers or last.op not in ("softmax", "sigmoid"):
            return self.outputs
        return (last.inputs[0],)

    @property
    def weights(self) -> Weights:
        parts = ((node.name, node.kernel, node.bias) for node in self.nodes)
        return {name: (kernel, bias) for name, kernel, bias in parts if kernel is not None and bias is not None}

    def readers(self, place: int) -> list[int]:
        return [at for at, node in enumerate(self.nodes) if place in node.inputs]


@dataclass(frozen=True)
class Call:
    """A layer that Keras called.

    name: its own, with a number if an earlier layer has that name.
    inputs, output: ids of Keras tensors.
    folded: a batch norm that is in a kernel.
    """

    layer: Any
    name: str
    inputs: tuple[int, ...]
    output: int
    folded: bool = False

    @property
    def is_layer(self) -> bool:
        return not isinstance(self.layer, Operation)


@dataclass(frozen=True)
class Operation:
    """Keras' arithmetic between layers, to be called again with other values.

    arguments, named: as of the call, the computed ones among them.
    """

    operation: Any
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return type(self.operation).__name__

    @property
    def axis(self) -> int:
        """Of a concatenation."""
        return int(self.operation.axis)

    def __call__(self, values: Any) -> Any:
        """values: one, or a list of them in the order of the call."""
        import keras

        given = iter(values if isinstance(values, (list, tuple)) else [values])
        arguments, named = keras.tree.map_structure(
            lambda one: next(given) if isinstance(one, keras.KerasTensor) else one, (self.arguments, dict(self.named))
        )
        return self.operation(*arguments, **named)


def keras_file(model: Any) -> bytes:
    """The model as a `.keras` file."""
    with tempfile.TemporaryDirectory(prefix="edgekit-") as folder, quiet():
        file = Path(folder) / "model.keras"
        model.save(file)
        return file.read_bytes()


def read_network(model: Any, where: str = "") -> Network:
    """model: Keras 3, functional or sequential, one input, channels last.

    Raises CompressError naming the first layer that cannot be simulated.
    """
    return _Reader(where).read(model)


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where
        self._network = Network()
        self._places: dict[int, int] = {}  # id of a Keras tensor -> place
        self._kept: list[Any] = []  # tensors, so that ids stay theirs
        self._called: set[int] = set()
        self._names: set[str] = set()

    def read(self, model: Any) -> Network:
        import keras

        if len(model.inputs) != 1:
            raise self._refusal(f"the model has {len(model.inputs)} inputs, and one can be trained")
        if str(model.inputs[0].dtype) != "float32":
            raise self._refusal(f"the input is {model.inputs[0].dtype}, and a float32 one can be trained")
        first = keras.Input(batch_shape=model.inputs[0].shape, name=model.inputs[0].name)
        self._network.input = first
        self._put(first, self._add(Node(self._unique(str(model.inputs[0].name)), "input")))
        results = self._walk(keras.Model(list(model.inputs), list(model.outputs)), [first])
        self._network.results = tuple(map(id, results))
        self._network.outputs = tuple(self._places[one] for one in self._network.results)
        self._fuse()
        if not any(node.op in PRODUCTS for node in self._network.nodes):
            raise self._refusal("the model has no convolution and no dense layer")
        return self._network

    def _walk(self, model: Any, inputs: Sequence[Any]) -> list[Any]:
        """The results."""
        import keras

        def call(layer: Any, *arguments: Any, **named: Any) -> Any:
            if type(layer).__name__ == "Square":
                layer, arguments = keras.layers.Multiply(name=layer.name), ([*arguments, *arguments],)
            tensors = [one for one in keras.tree.flatten((arguments, named)) if isinstance(one, keras.KerasTensor)]
            if isinstance(layer, keras.Model):
                found = self._walk(keras.Model(list(layer.inputs), list(layer.outputs)), tensors)
                return found[0] if len(found) == 1 else found
            if any(id(one) not in self._places for one in tensors) or not tensors:
                raise self._refusal(f"the layer '{layer.name}' reads something that is not computed from the input")
            plain = isinstance(layer, keras.layers.Layer)
            if id(layer) in self._called and plain:
                raise self._refusal(f"the layer '{layer.name}' is used twice, and it can have one range only")
            self._called.add(id(layer))
            name = self._unique(layer.name)
            out = layer(*arguments, **named)
            self._kept.append(out)
            inputs = [self._places[id(one)] for one in tensors]
            if plain:
                place, folded = self._node(layer, name, inputs)
            else:
                layer = Operation(layer, arguments, named)
                place, folded = self._operation(layer, name, inputs), False
            self._put(out, place)
            self._network.calls.append(Call(layer, name, tuple(map(id, tensors)), id(out), folded))
            return out

        # not clone_model: the tensors of the model that it makes are others where the inputs are a layer's outputs
        return list(model._run_through_graph(list(inputs), operation_fn=lambda layer: layer, call_fn=call))

    def _unique(self, name: str) -> str:
        """A free name: two models inside a model may each have a layer of one name."""
        return free_name(name, self._names)

    def _put(self, tensor: Any, place: int) -> None:
        self._kept.append(tensor)
        self._places[id(tensor)] = place

    def _add(self, node: Node) -> int:
        self._network.nodes.append(node)
        return len(self._network.nodes) - 1

    def _node(self, layer: Any, name: str, inputs: list[int]) -> tuple[int, bool]:
        """(place of the layer's output, whether it is a batch norm that was folded into a kernel)"""
        kind, source = type(layer).__name__, inputs[0]
        if kind in IDENTITIES:
            return source, False
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            raise self._refusal(f"the layer '{name}' has its channels first")
        if kind == "BatchNormalization":
            return self._fold(layer, source), True
        if getattr(layer, "groups", 1) != 1:
            raise self._refusal(f"the layer '{name}' has {layer.groups} groups, whose 8-bit form is not simulated")
        if kind in _PRODUCTS:
            kernel = np.array(layer.kernel, np.float32)
            size = kernel.shape[2] * kernel.shape[3] if kind == "DepthwiseConv2D" else kernel.shape[-1]
            bias = np.array(layer.bias, np.float32) if layer.use_bias else np.zeros(size, np.float32)
            made = self._add(Node(name, _PRODUCTS[kind], (source,), layer, kernel=kernel, bias=bias))
            return self._activate(name, layer.activation.__name__, made), False
        if kind == "SeparableConv2D":
            return self._activate(name, layer.activation.__name__, self._separable(layer, name, source)), False
        if kind == "Activation":
            return self._activate(name, layer.activation.__name__, source), False
        if kind == "Softmax" and layer.axis in (-1, len(layer.output.shape) - 1):
            return self._activate(name, "softmax", source), False
        if kind == "ReLU" and layer.negative_slope == 0 and layer.threshold == 0 and layer.max_value in (None, 6):
            return self._activate(name, "relu" if layer.max_value is None else "relu6", source), False
        if kind in _MERGES and len(inputs) > 1 and (kind == "Concatenate" or len(inputs) == 2):
            return self._add(Node(name, _MERGES[kind], tuple(inputs), layer)), False
        if kind == "GlobalAveragePooling2D":
            return self._add(Node(name, "mean", (source,), layer)), False
        if kind in _MOVES or (kind == "UpSampling2D" and layer.interpolation == "nearest"):
            return self._add(Node(name, "move", (source,), layer)), False
        if kind == "Rescaling":
            scale, offset = (np.asarray(value, np.float32) for value in (layer.scale, layer.offset))
            place = self._add(Node(name, "scale", (source,), number=scale))
            if offset.any():
                place = self._add(Node(f"{name}/offset", "offset", (place,), number=offset))
            return place, False
        raise self._refusal(f"the layer '{name}' is a {kind}, whose 8-bit form is not simulated")

    def _operation(self, made: Operation, name: str, inputs: list[int]) -> int:
        """The place of the result of arithmetic between layers."""
        import keras

        kind, module = made.kind, type(made.operation).__module__
        if re.fullmatch(r"keras\.src\.ops\.(numpy|nn|core)", module) is None:
            raise self._refusal(f"'{name}' is {kind} of {module}, whose 8-bit form is not simulated")
        if kind == "GetItem":
            return self._add(Node(name, "move", tuple(inputs), made))
        if kind == "Concatenate":
            return self._add(Node(name, "concat", tuple(inputs), made))
        if kind in _BY_ONE:
            return self._add(Node(name, _BY_ONE[kind], tuple(inputs)))
        if len(inputs) == 2 and kind in ("Add", "Multiply"):
            return self._add(Node(name, _MERGES[kind], tuple(inputs)))
        given = list(made.arguments) + list(made.named.values())
        numbers = [one for one in given if not isinstance(one, keras.KerasTensor)]
        first = isinstance(given[0], keras.KerasTensor) if given else False
        if kind in _BY_NUMBER and len(inputs) == len(numbers) == 1 and (first or kind in _SYMMETRIC):
            number = np.asarray(keras.ops.convert_to_numpy(numbers[0]), np.float32)
            if kind not in _SYMMETRIC:
                number = np.asarray(-number if kind == "Subtract" else 1 / number, np.float32)
            return self._add(Node(name, _BY_NUMBER[kind], tuple(inputs), number=number))
        raise self._refusal(f"'{name}' is the Keras operation {kind}, whose 8-bit form is not simulated")

    def _separable(self, layer: Any, name: str, source: int) -> int:
        """A depthwise convolution without a bias, then one of 1x1."""
        import keras

        deep, point = (np.array(one, np.float32) for one in (layer.depthwise_kernel, layer.pointwise_kernel))
        window = {"strides": layer.strides, "padding": layer.padding, "dilation_rate": layer.dilation_rate}
        first = keras.layers.DepthwiseConv2D(deep.shape[:2], depth_multiplier=layer.depth_multiplier, **window)
        second = keras.layers.Conv2D(point.shape[-1], 1)
        bias = np.array(layer.bias, np.float32) if layer.use_bias else np.zeros(point.shape[-1], np.float32)
        zeros = np.zeros(point.shape[2], np.float32)
        place = self._add(Node(f"{name}{_DEPTHWISE}", "depthwise", (source,), first, kernel=deep, bias=zeros))
        return self._add(Node(name, "conv", (place,), second, kernel=point, bias=bias))

    def _activate(self, name: str, activation: str, source: int) -> int:
        if activation == "linear":
            return source
        if activation in _FUSED:
            return self._add(Node(name, "relu", (source,), activation=activation))
        if activation in _ALONE:
            return self._add(Node(name, _ALONE[activation], (source,)))
        if activation in ("silu", "swish"):
            gate = self._add(Node(f"{name}/sigmoid", "sigmoid", (source,)))
            return self._add(Node(name, "multiply", (source, gate)))
        raise self._refusal(f"the layer '{name}' has the activation {activation}, whose 8-bit form is not simulated")

    def _fold(self, layer: Any, source: int) -> int:
        before = self._network.nodes[source]
        axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
        if before.op not in PRODUCTS or before.kernel is None or before.bias is None:
            raise self._refusal(f"the batch norm '{layer.name}' follows no convolution or dense layer directly")
        if self._network.readers(source) or axis not in (-1, len(layer.output.shape) - 1):
            raise self._refusal(f"the batch norm '{layer.name}' cannot be folded into '{before.name}'")
        mean, variance = (np.array(value, np.float64) for value in (layer.moving_mean, layer.moving_variance))
        gain = 1.0 / np.sqrt(variance + layer.epsilon)
        if layer.scale:
            gain = gain * np.array(layer.gamma, np.float64)
        shift = np.array(layer.beta, np.float64) if layer.center else 0.0
        spread = gain.reshape(before.kernel.shape[2:]) if before.op == "depthwise" else gain
        self._network.nodes[source] = replace(
            before,
            kernel=(before.kernel * spread).astype(np.float32),
            bias=((before.bias - mean) * gain + shift).astype(np.float32),
        )
        return source

    def _fuse(self) -> None:
        """Make a ReLU that alone reads a product or an addition part of it."""
        network = self._network
        order: dict[int, int] = {}
        kept: list[Node] = []
        for place, node in enumerate(network.nodes):
            source = network.nodes[node.inputs[0]] if node.inputs else None
            plain = source is not None and source.op in PRODUCTS | {"add"} and source.activation == "linear"
            if node.op == "relu" and plain and len(network.readers(node.inputs[0])) == 1:
                at = order[node.inputs[0]]
                kept[at] = replace(kept[at], activation=node.activation)
                order[place] = at
                continue
            order[place] = len(kept)
            kept.append(replace(node, inputs=tuple(order[one] for one in node.inputs)))
        network.nodes, network.outputs = kept, tuple(order[one] for one in network.outputs)
        network.places = {tensor: order[place] for tensor, place in self._places.items()}

    def _refusal(self, what: str) -> CompressError:
        return CompressError(what, where=self._where, do=_INSTEAD)


def to_keras(network: Network, weights: Weights) -> Any:
    """A Keras model that computes the network with these kernels and biases.

    Without batch norm and dropout; the input and the other layers keep their names.
    """
    import keras

    first = keras.Input(batch_shape=network.input.shape, name=network.nodes[0].name)
    values: dict[int, Any] = {id(network.input): first}
    for call in network.calls:
        sources = [values[one] for one in call.inputs]
        names_answer = call.output in network.results and type(call.layer).__name__ == "Identity"
        if call.folded or (type(call.layer).__name__ in IDENTITIES and not names_answer):
            values[call.output] = sources[0]
            continue
        value = sources if len(sources) > 1 else sources[0]
        if not call.is_layer:
            values[call.output] = call.layer(value)
            continue
        for layer, pair in _layers_of(call.layer, call.name, weights):
            value = layer(value)
            if pair is not None:
                layer.set_weights(list(pair))
        values[call.output] = value
    return model_of(network, first, values)


def model_of(network: Network, first: Any, values: Mapping[int, Any]) -> Any:
    """A Keras model with the network's answers.

    first: its input.
    values: by the id of the network's tensor.
    """
    import keras

    answers = [values[one] for one in network.results]
    return keras.Model(first, answers if len(answers) > 1 else answers[0])


def _layers_of(
    layer: Any, name: str, weights: Weights
) -> list[tuple[Any, tuple[NDArray[np.float32], NDArray[np.float32]] | None]]:
    """New layers that compute what this one does, each with a bias if it has a kernel."""
    import keras

    config, pair = layer.get_config() | {"name": name}, weights.get(name)
    if pair is None:
        return [(type(layer).from_config(config), None)]
    if type(layer).__name__ != "SeparableConv2D":
        return [(type(layer).from_config(config | {"use_bias": True}), pair)]
    names = ("kernel_size", "strides", "padding", "dilation_rate", "depth_multiplier")
    window = {one: config[one] for one in names}
    first = keras.layers.DepthwiseConv2D(**window, name=f"{name}{_DEPTHWISE}")
    second = keras.layers.Conv2D(config["filters"], 1, activation=layer.activation, name=name)
    return [(first, weights[f"{name}{_DEPTHWISE}"]), (second, pair)]

"""Channels of a network: which can leave together, the model without them, equalising.

    channels = trace(network)
    [(block.layers, len(block.labels)) for block in channels.blocks]      # [(("stem", "point"), 64), ...]
    model = without(network, channels, leaving)                           # batch norm and dropout still in it
    same = equalised(network, batches)                                    # the same function in float

Rules:
- every channel that a layer makes has a label, which batch norm, activations, depthwise kernels, pooling, concatenation
  and flattening pass on; an addition and a product make two labels one;
- a label stays if it, or one that became one with it, reaches the answer, the input or a layer that mixes or numbers
  channels (Reshape, Permute, softmax, a depth multiplier);
- labels made by the same layers are a block, of which a multiple of 8 stays, and never none;
- equalising divides channel c of a value by s and multiplies the kernels that read c by s, as `targets.equalise` does:
  training moves a weight by some of its own size, and could hardly bring back a channel with two steps of 256.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import PRODUCTS, Network, Node, model_of
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.targets.equalise import Groups, channel_factors

STEP = 8
"""Channels that XNNPACK and ONNX Runtime work on at once; counts in between cost the next multiple."""

Labels = NDArray[np.int64]

_KEEPING = frozenset(
    "ZeroPadding2D Cropping2D MaxPooling2D GlobalMaxPooling2D AveragePooling2D UpSampling2D".split()  # noqa: SIM905
)
_ALONE = frozenset({"mean", "relu", "sigmoid", "tanh"})
_TWO_INPUTS = frozenset({"add", "multiply"})


@dataclass(frozen=True)
class Block:
    """Channels that the same layers make.

    layers: their names.
    labels: of channels that may leave one by one, int64 [n].
    """

    layers: tuple[str, ...]
    labels: Labels


@dataclass(frozen=True)
class Channels:
    """A network's channels: which may leave, and which are one.

    labels: of each node's channels, int64 [channels].
    shapes: of each node, for one item, without the batch.
    count: of labels.
    """

    labels: tuple[Labels, ...]
    shapes: tuple[tuple[int, ...], ...]
    blocks: tuple[Block, ...]
    count: int


class _Labels(Groups[int]):
    """Labels that are one, by the first of them, and those that stay."""

    count = 0

    def new(self, count: int) -> Labels:
        self.count += count
        return np.arange(self.count - count, self.count)

    def join_all(self, one: Labels, other: Labels) -> None:
        for first, second in zip(one.tolist(), other.tolist(), strict=True):
            self.join(first, second)


def trace(network: Network) -> Channels:
    """Labels and blocks of a network."""
    shapes = _shapes(network)
    known, labels = _Labels(), list[Labels]()
    for node, shape in zip(network.nodes, shapes, strict=True):
        labels.append(_labels(known, node, [(labels[at], shapes[at]) for at in node.inputs], shape))
    for place in network.outputs:
        known.fix(labels[place].tolist())
    rooted = tuple(np.array([known.root(label) for label in own.tolist()], np.int64) for own in labels)
    made: dict[int, Counter[str]] = {}
    for node, own in zip(network.nodes, rooted, strict=True):
        if node.op in ("conv", "dense"):
            for label in own:
                made.setdefault(int(label), Counter())[node.name] += 1
    blocks: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for label in known.free_groups(made):
        blocks.setdefault(tuple(sorted(made[label].items())), []).append(label)
    found = (Block(tuple(name for name, _ in key), np.array(sorted(own))) for key, own in blocks.items())
    return Channels(rooted, shapes, tuple(found), known.count)


def _shapes(network: Network) -> tuple[tuple[int, ...], ...]:
    size = [1, *(1 if side is None else int(side) for side in network.input.shape[1:])]
    plain = Simulation(network, None)
    values = plain.values(np.zeros(size, np.float32), plain.variables, ())
    return tuple(tuple(map(int, value.shape[1:])) for value in values)


def _labels(
    known: _Labels, node: Node, sources: Sequence[tuple[Labels, tuple[int, ...]]], shape: tuple[int, ...]
) -> Labels:
    """Of the node's channels. sources: labels and shape of each input."""
    channels = shape[-1]
    if node.op in ("conv", "dense"):
        return known.new(channels)
    if sources and node.op in _TWO_INPUTS and len(sources[0][0]) == len(sources[1][0]):
        known.join_all(sources[0][0], sources[1][0])
        return sources[0][0]
    if node.op == "concat":
        if node.layer.axis in (-1, len(shape)):
            return np.concatenate([labels for labels, _ in sources])
        for labels, _ in sources[1:]:
            known.join_all(sources[0][0], labels)
        return sources[0][0]
    if sources and _passes(node, sources[0][1], shape):
        return sources[0][0]
    if node.op == "move" and type(node.layer).__name__ == "Flatten":
        return np.tile(sources[0][0], prod(sources[0][1][:-1]))
    found = known.new(channels)
    known.fix(found.tolist())
    for labels, _ in sources:
        known.fix(labels.tolist())
    return found


def _passes(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether channel c of the input alone makes channel c of the output."""
    kind = type(node.layer).__name__
    if before[-1] != after[-1]:
        return False
    if node.op in ("scale", "offset"):
        return node.number is not None and node.number.size == 1
    if node.op == "move":
        return kind in _KEEPING or (kind == "Reshape" and before[-1] == after[-1])
    return node.op in _ALONE or node.op == "depthwise"


def batch_norms(network: Network) -> list[str]:
    """Names of the batch norms that training would change."""
    calls = (call for call in network.calls if type(call.layer).__name__ == "BatchNormalization")
    return [call.name for call in calls if call.layer.trainable]


def without(
    network: Network,
    channels: Channels,
    leaving: Labels,
    *,
    seed: int = 0,
    new: bool = False,
    shape: Sequence[int | None] | None = None,
) -> Any:
    """A Keras model of the layers without these channels, in float, to be trained.

    Layers and input keep their names; models inside the model are flattened.

    leaving: labels, none for the model as it is.
    seed: of dropout and of newly drawn values.
    new: draw new weights, instead of those of the channels that stay.
    shape: of another input, with its batch axis.
    """
    import keras

    gone = np.zeros(channels.count, bool)
    gone[leaving] = True
    kept = [~gone[labels] for labels in channels.labels]
    first = keras.Input(batch_shape=shape or network.input.shape, name=network.nodes[0].name)
    values: dict[int, Any] = {id(network.input): first}
    for place, call in enumerate(network.calls):
        sources = [values[one] for one in call.inputs]
        if not call.is_layer:
            values[call.output] = call.layer(sources)
            continue
        config = call.layer.get_config() | {"name": call.name}
        after = kept[network.places[call.output]]
        layer = type(call.layer).from_config(_seeded(_narrowed(config, after), seed + place))
        values[call.output] = layer(sources if len(sources) > 1 else sources[0])
        if not new:
            before = kept[network.places[call.inputs[0]]]
            for old, variable in zip(call.layer.weights, layer.weights, strict=True):
                variable.assign(_part(np.asarray(old), _name_of(call.layer, variable), before, after))
    return model_of(network, first, values)


def _narrowed(config: dict[str, Any], after: NDArray[np.bool_]) -> dict[str, Any]:
    count = int(after.sum())
    for size in ("filters", "units"):
        if size in config:
            config[size] = count
    shape = config.get("target_shape")
    if shape is not None and shape[-1] == len(after):
        config["target_shape"] = [*shape[:-1], count]
    return config


def _seeded(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """With a seed wherever the layer has none, for reproducible runs."""
    if "seed" in config and config["seed"] is None:
        config["seed"] = seed
    for name, value in config.items():
        if name.endswith("_initializer") and isinstance(value, dict):
            own = value.get("config", {})
            if "seed" in own and own["seed"] is None:
                config[name] = value | {"config": own | {"seed": seed}}
    return config


def _name_of(layer: Any, variable: Any) -> str:
    name = str(variable.path.rpartition("/")[2])
    return "depthwise_kernel" if name == "kernel" and type(layer).__name__ == "DepthwiseConv2D" else name


def _part(old: NDArray[Any], name: str, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> NDArray[Any]:
    """The part of a weight that stays.

    name: Keras', of the weight.
    before, after: channels that the layer reads and makes.
    """
    if name == "depthwise_kernel":
        return old[:, :, before]
    if name == "pointwise_kernel":
        return old[:, :, np.repeat(before, old.shape[2] // len(before))][..., after]
    if name == "kernel":
        return old[..., before, :][..., after]
    return old[..., after]


_ROUNDS = 3
"""Each goes half of the way, because the ranges of what is read change."""
_PASSING = frozenset({"MaxPooling2D", "AveragePooling2D", "ZeroPadding2D", "UpSampling2D", "Cropping2D"})


def equalised(network: Network, batches: Sequence[NDArray[np.float32]]) -> Network:
    """The same function with other kernels and biases. batches: float32 [N, ...] of the input."""
    for _ in range(_ROUNDS):
        network = _round(network, batches)
    return network


def _round(network: Network, batches: Sequence[NDArray[np.float32]]) -> Network:
    plain = Simulation(network, None)
    peaks: dict[int, NDArray[np.float64]] = {}
    for batch in batches:
        for place, value in enumerate(plain.values(batch, plain.variables, ())):
            most = np.abs(np.asarray(value, np.float64)).reshape(-1, value.shape[-1]).max(axis=0)
            peaks[place] = np.maximum(peaks.get(place, most), most)
    nodes = list(network.nodes)
    for group in _groups(network):
        most = np.max([peaks[place] for place in group], axis=0)
        factors = channel_factors(most).astype(np.float32)
        for place, node in enumerate(nodes):
            if node.kernel is None or node.bias is None:
                continue
            kernel, bias = node.kernel, node.bias
            if node.inputs[0] in group:
                kernel = kernel * (factors[:, None])
            if place in group:
                kernel = kernel / (factors.reshape(kernel.shape[2:]) if node.op == "depthwise" else factors)
                bias = bias / factors
            nodes[place] = replace(node, kernel=kernel, bias=bias)
    return replace(network, nodes=nodes)


def _groups(network: Network) -> list[list[int]]:
    """Places whose channels share their factors, without those that may have none."""
    places = Groups[int]()
    places.fix({0, *network.outputs, *network.heads})
    for place, node in enumerate(network.nodes):
        if node.op in ("add", "mean", "relu") or (node.op == "move" and type(node.layer).__name__ in _PASSING):
            for source in node.inputs:
                places.join(source, place)
        elif node.op not in PRODUCTS:
            places.fix((place, *node.inputs))
        if node.activation == "relu6":
            places.fix([place])
        if node.op == "depthwise" and node.kernel is not None and node.kernel.shape[3] != 1:
            places.fix((place, node.inputs[0]))
    return list(places.free_groups(range(len(network.nodes))).values())

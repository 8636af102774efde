"""Structured pruning removes channels, unstructured pruning makes weights zero.

    channels = trace(network)
    matters = importance(network, channels, data, options)
    count = Count(network, channels)                              # milliseconds of a network without these channels
    leaving = choose_by_time(channels, matters, count, milliseconds, budget_ms)[0]
    model = without(network, channels, leaving)
    sparsity = Sparsity(kernels_of(model, trainee.variables), 0.9)

Rules:
- a channel matters as much as the loss would change without it, to the first order, squared and summed over batches
  (Molchanov et al., arXiv 1906.10771), with batch norm folded;
- time is the board's estimate of the operations that the converters will make; the block that gains most milliseconds
  for what it loses gives up channels next, so that a multiple of 8 is left, never none;
- a quarter of a block stays while others can give up channels: to the first order the last ones seem to matter little;
- zeroed are the weights of least magnitude, the same share of each kernel but of depthwise ones: at step t of T
  s(1 - (1 - t/T)^3) (Zhu and Gupta, arXiv 1710.01878), T being 60 % of the steps;
- a round before T is never the best one; zeros that a later step holds are zeros from its first round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.channels import STEP, Channels, Labels
from edgekit_converters.compress.losses import TrainingData, TrainingOptions
from edgekit_converters.compress.network import PRODUCTS, Network
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.formats.workload import convolution_kind, dense_kind
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_profiles.workload import Op, OpKind, Workload

_BATCHES = 24
_LEAST = 0.25
"""Share of a block's channels that stays while others can give some up."""
_FREE = frozenset({"Flatten", "Reshape"})

Milliseconds = Callable[[Workload], float]


def importance(
    network: Network, channels: Channels, data: TrainingData, options: TrainingOptions
) -> NDArray[np.float64]:
    """How much the loss depends on each channel, by label, [labels]; 0 without a product."""
    import tensorflow as tf

    plain = Simulation(network, None)
    places = [at for at, node in enumerate(network.nodes) if node.op in PRODUCTS]
    found = np.zeros(channels.count)
    random = np.random.default_rng(options.seed)
    rows = random.permutation(len(data.x))
    gradient = tf.function(lambda x, y: _gradient(tf, plain, data, x, y), reduce_retracing=True)
    for batch in range(min(_BATCHES, len(rows) // options.batch)):
        some = np.sort(rows[batch * options.batch :][: options.batch])
        if data.y is not None:
            labels = data.y[some]
        else:
            answers = np.asarray(plain.answer(data.x[some], training=False))
            labels = data.labels(answers) if data.layout is None else data.layout.drawn(answers, random)
        slopes = gradient(tf.constant(data.x[some]), tf.constant(labels))
        gates = np.zeros(channels.count)
        for at, place in enumerate(places):
            both = zip(slopes[2 * at : 2 * at + 2], plain.variables[2 * at : 2 * at + 2], strict=True)
            kernel, bias = (np.asarray(slope) * variable.numpy() for slope, variable in both)
            if network.nodes[place].op == "depthwise":
                own = kernel.sum(axis=(0, 1)).reshape(-1) + bias
            else:
                own = kernel.reshape(-1, bias.size).sum(axis=0) + bias
            np.add.at(gates, channels.labels[place], own)
        found += np.square(gates)
    return found


def _gradient(tf: Any, plain: Simulation, data: TrainingData, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = data.loss(plain.answer(x, training=False), y)
    return tape.gradient(loss, plain.variables, unconnected_gradients="zero")


class Count:
    """The 8-bit operations of a network without some of its channels."""

    def __init__(self, network: Network, channels: Channels) -> None:
        self._network, self._channels = network, channels

    def __call__(self, leaving: NDArray[np.bool_]) -> Workload:
        """leaving: by label, [labels]."""
        channels = self._channels
        width = [int((~leaving[labels]).sum()) for labels in channels.labels]
        ops = [op for place in range(len(self._network.nodes)) if (op := self._op(place, width)) is not None]
        return Workload("int8", tuple(ops))

    def _op(self, place: int, width: list[int]) -> Op | None:
        node, shapes = self._network.nodes[place], self._channels.shapes
        if node.op == "input" or (node.op == "move" and type(node.layer).__name__ in _FREE):
            return None
        area = [prod(shape[:-1]) for shape in shapes]
        made = area[place] * width[place]
        moved = made + sum(area[at] * width[at] for at in node.inputs)
        if node.op not in PRODUCTS or node.kernel is None:
            return Op("ew", 0, moved, 0, node.name)
        kernel, layer = node.kernel.shape, node.layer
        if node.op == "depthwise":
            weights = prod(kernel[:2]) * width[place]
            return Op("dw", area[place] * weights, moved, weights, node.name)
        weights = prod(kernel[:-2]) * width[node.inputs[0]] * width[place]
        kind: OpKind = dense_kind(area[place])
        if node.op != "dense":
            kind = convolution_kind(kernel[:2], layer.strides, layer.dilation_rate)
        return Op(kind, area[place] * weights, moved, weights, node.name)


def choose_by_time(
    channels: Channels, matters: NDArray[np.float64], count: Count, milliseconds: Milliseconds, budget_ms: float
) -> tuple[Labels, bool]:
    """(labels that leave so that the estimate keeps the budget, whether it does)"""
    order = [block.labels[np.argsort(matters[block.labels], kind="stable")] for block in channels.blocks]
    stay = [len(labels) for labels in order]
    leaving = np.zeros(channels.count, bool)
    now = milliseconds(count(leaving))
    for least in (_LEAST, 0.0):
        while now > budget_ms:
            best: tuple[float, Labels, float, int] | None = None
            for at, labels in enumerate(order):
                step = stay[at] % STEP or STEP
                if stay[at] - step < max(1, least * len(labels)):
                    continue
                part = labels[len(labels) - stay[at] :][:step]
                leaving[part] = True
                after = milliseconds(count(leaving))
                leaving[part] = False
                rate = (now - after) / max(float(matters[part].sum()), 1e-30)
                if after < now and (best is None or rate > best[0]):
                    best = rate, part, after, at
            if best is None:
                break
            _, part, now, at = best
            leaving[part] = True
            stay[at] -= len(part)
    return np.flatnonzero(leaving), now <= budget_ms


def choose_by_width(channels: Channels, matters: NDArray[np.float64], width: float) -> Labels:
    """Labels that leave so that each block keeps that share, a multiple of 8, of its channels.

    Raises CompressError if none may leave.
    """
    found = []
    for block in channels.blocks:
        count = len(block.labels)
        left = min(count, max(STEP, STEP * round(width * count / STEP)))
        found.append(block.labels[np.argsort(matters[block.labels], kind="stable")][: count - left])
    leaving = np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.int64)
    if not leaving.size:
        raise CompressError(
            f"no layer has channels that may leave at a width of {width:g}: {STEP} stay in each",
            do="Give a smaller --width, or a smaller student of your own as the model, and this one as its --teacher",
        )
    return leaving


EVERY = 20
"""Training steps between two choices of weights; it divides a round, so a resumed run chooses the same."""
_RAMP = 0.6
_KERNELS = {"Conv2D": "kernel", "Dense": "kernel", "SeparableConv2D": "pointwise_kernel"}


@dataclass(frozen=True)
class Sparsity:
    """Which weights become zero.

    places: of the trainee's variables that are kernels.
    share: of each, above 0 and below 1; None to keep the zeros that it has.
    """

    places: tuple[int, ...]
    share: float | None

    def at(self, step: int, steps: int) -> float:
        """The share after that many of all steps."""
        assert self.share is not None
        return self.share * (1 - (1 - min(1.0, step / max(1.0, _RAMP * steps))) ** 3)

    def reached(self, step: int, steps: int) -> bool:
        return self.share is None or step >= _RAMP * steps

    def mask(self, kernel: NDArray[np.float32], step: int, steps: int) -> NDArray[np.float32]:
        """0 for what is zero from now on, else 1."""
        if self.share is None:
            return np.asarray(kernel != 0, np.float32)
        found = np.ones(kernel.shape, np.float32)
        found.reshape(-1)[smallest(kernel, self.at(step, steps))] = 0
        return found


def smallest(kernel: NDArray[np.float32], share: float) -> NDArray[np.int64]:
    """Flat places of that share of the weights, by least magnitude; one weight always stays."""
    count = min(round(share * kernel.size), kernel.size - 1)
    return np.argsort(np.abs(kernel), axis=None, kind="stable")[:count].astype(np.int64)


def kernels_of(model: Any, variables: Sequence[Any]) -> tuple[int, ...]:
    """Places of the kernels among a Keras model's trained variables.

    model: flat, as `channels.without` makes it.
    """
    named = [(layer, _KERNELS.get(type(layer).__name__)) for layer in model.layers]
    wanted = {id(getattr(layer, name).value) for layer, name in named if name is not None}
    return tuple(place for place, variable in enumerate(variables) if id(variable) in wanted)


def held_zeros(network: Network) -> Sparsity:
    """Of a `Simulation`'s variables: a kernel and a bias for each product."""
    products = [node.op for node in network.nodes if node.kernel is not None and node.bias is not None]
    return Sparsity(tuple(2 * at for at, op in enumerate(products) if op != "depthwise"), None)

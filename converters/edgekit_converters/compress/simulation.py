"""The network in 8 bits as the targets compute it, in TensorFlow and differentiable.

    simulation = Simulation(network, calibrated(network, batches))
    logits = simulation.run(x, simulation.variables)["logits"]

Rules:
- a kernel is rounded to -127..127 with a scale a channel, max|w| / 127; a bias to 32 bits in steps of input scale times
  kernel scale; an activation to 256 levels with one scale and zero-point a tensor, after the fused activation;
- what only moves values has its input's scale, as TFLite demands, and the parts of a concatenation share one; sigmoid
  and softmax have TFLite's 1/256, tanh 1/128; an array that is added or multiplied is rounded to 256 levels;
- zero-points are fixed and scales are learnt as logarithms: zero stays exact, and no range flips. The gradient ignores
  rounding, and a range's scale gets its own from it (LSQ, arXiv 1902.08153);
- kernels are trained in units of each channel's largest weight, so that channels of unlike ranges learn alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import PRODUCTS, Network, Node, Weights
from edgekit_converters.data.statistics import TensorStatistics

_FIXED = {"sigmoid": (1 / 256, 0), "tanh": (1 / 128, 128), "softmax": (1 / 256, 0)}
_LEAST = 1e-8
_STEPS = 255


@dataclass(frozen=True)
class Grids:
    """The scales of a network in 8 bits.

    group: of each node, the place whose scale it has.
    scales: by such a place.
    zeros: levels below zero, 0..255.
    spread: by place of a product, the standard deviation of its sums, [channels].
    """

    group: tuple[int, ...]
    scales: Mapping[int, float]
    zeros: Mapping[int, int]
    spread: Mapping[int, NDArray[np.float32]]

    def range(self, place: int, scale: float | None = None) -> tuple[float, float]:
        """(low, high) of a node, both of whole steps."""
        at = self.group[place]
        step = self.scales[at] if scale is None else scale
        return -self.zeros[at] * step, (_STEPS - self.zeros[at]) * step


def calibrated(network: Network, batches: Iterable[NDArray[np.float32]]) -> Grids:
    """Ranges of least squared error over these inputs, those of the answer whole.

    batches: float32 [N, ...] of the input.
    """
    import tensorflow as tf

    group = _groups(network)
    seen = {at: TensorStatistics() for at in set(group)}
    sums: dict[int, list[NDArray[np.float64]]] = {}
    plain = Simulation(network, None)
    for batch in batches:
        values = plain.values(tf.constant(batch), plain.variables, frozenset())
        for place, value in enumerate(values):
            seen[group[place]].add(np.asarray(value, np.float32))
            if network.nodes[place].op in PRODUCTS:
                rows = np.asarray(value, np.float64).reshape(-1, value.shape[-1])
                sums.setdefault(place, []).append(np.stack([rows.mean(0), np.square(rows).mean(0)]))
    scales, zeros = {}, {}
    whole = {group[place] for place in network.heads}
    for at, found in seen.items():
        fixed = _FIXED.get(network.nodes[at].op)
        if fixed is not None:
            scales[at], zeros[at] = fixed
            continue
        low, high = found.range("minmax" if at in whole else "mse")
        scales[at] = (high - low) / _STEPS
        zeros[at] = int(np.clip(np.rint(-low / scales[at]), 0, _STEPS))
    spread = {}
    for place, moments in sums.items():
        mean, square = np.mean(moments, axis=0)
        spread[place] = np.sqrt(np.maximum(square - mean**2, _LEAST)).astype(np.float32)
    return Grids(tuple(group), scales, zeros, spread)


def _groups(network: Network) -> list[int]:
    """Of each node, the first place that has the same scale."""
    group: list[int] = []
    for place, node in enumerate(network.nodes):
        parts = [group[one] for one in node.inputs if network.nodes[group[one]].op not in _FIXED]
        if node.op == "move":
            group.append(group[node.inputs[0]])
        elif node.op == "concat" and parts:
            group = [min(parts) if at in parts else at for at in group] + [min(parts)]
        else:
            group.append(place)
    return group


def joined(answers: Sequence[Any]) -> Any:
    """One tensor as it is; several as all their numbers, [N, numbers]."""
    import tensorflow as tf

    if len(answers) == 1:
        return answers[0]
    return tf.concat([tf.reshape(one, [tf.shape(one)[0], -1]) for one in answers], axis=1)


class Simulation:
    """A network that computes as if in 8 bits, and learns.

    grids: None for float.
    variables: TensorFlow's, to train: a kernel and a bias for each product, then the logarithm of each learnt scale.
    """

    def __init__(self, network: Network, grids: Grids | None) -> None:
        import tensorflow as tf

        self._network, self._grids, self._tf = network, grids, tf
        self._units: dict[int, tuple[Any, Any]] = {}
        self._kernel: dict[int, int] = {}
        self._scale: dict[int, int] = {}
        variables: list[Any] = []
        for place, node in enumerate(network.nodes):
            if node.kernel is None or node.bias is None:
                continue
            flat = node.kernel.reshape(-1, node.bias.size)
            unit = np.maximum(np.abs(flat).max(axis=0), _LEAST).astype(np.float32)
            of_bias = unit if grids is None else np.maximum(grids.spread[place], _LEAST).astype(np.float32)
            self._units[place] = (tf.constant(self._shaped(place, unit)), tf.constant(of_bias))
            self._kernel[place] = len(variables)
            variables.append(tf.Variable(node.kernel / self._shaped(place, unit), name=f"{node.name}/kernel"))
            variables.append(tf.Variable(node.bias / of_bias, name=f"{node.name}/bias"))
        for at, scale in (grids.scales if grids else {}).items():
            if network.nodes[at].op not in _FIXED:
                self._scale[at] = len(variables)
                variables.append(tf.Variable(np.float32(np.log(scale)), name=f"{network.nodes[at].name}/scale"))
        self.variables = variables
        self.others: tuple[Any, ...] = ()

    def answer(self, x: Any, *, training: bool) -> Any:
        """What a loss reads, in 8 bits if there are grids."""
        return self.logits(x, self.variables, quantized=self._grids is not None)

    def _shaped(self, place: int, channels: NDArray[Any]) -> NDArray[Any]:
        node = self._network.nodes[place]
        assert node.kernel is not None
        return channels.reshape(node.kernel.shape[2:] if node.op == "depthwise" else (-1,))

    def weights(self, values: Sequence[NDArray[Any]]) -> Weights:
        """values: of `variables`."""
        found = {}
        for place, at in self._kernel.items():
            kernel, bias = (values[at + part] * np.asarray(self._units[place][part]) for part in (0, 1))
            found[self._network.nodes[place].name] = np.asarray(kernel, np.float32), np.asarray(bias, np.float32)
        return found

    def rounded(self, values: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """The same with kernels on their 8-bit grids, which a quantizer does not change."""
        found = [np.asarray(value, np.float32) for value in values]
        for place, at in self._kernel.items():
            depthwise = self._network.nodes[place].op == "depthwise"
            axes = (0, 1) if depthwise else tuple(range(found[at].ndim - 1))
            scale = np.maximum(np.abs(found[at]).max(axis=axes, keepdims=True), _LEAST) / np.float32(127)
            found[at] = np.asarray(np.rint(found[at] / scale) * scale, np.float32)
        return found

    def ranges(self, values: Sequence[NDArray[Any]]) -> list[tuple[float, float]]:
        """(low, high) of each node. values: of `variables`."""
        assert self._grids is not None
        found = []
        for place in range(len(self._network.nodes)):
            at = self._scale.get(self._grids.group[place])
            found.append(self._grids.range(place, None if at is None else float(np.exp(np.float32(values[at])))))
        return found

    def logits(self, x: Any, variables: Sequence[Any], *, quantized: bool = True) -> Any:
        """What a loss reads: the only answer, or [N, numbers] of all. x: float32 [N, ...]."""
        held = frozenset(range(len(self._network.nodes))) if quantized else frozenset[int]()
        values = self.values(x, variables, held)
        return joined([values[place] for place in self._network.heads])

    def values(self, x: Any, variables: Sequence[Any], held: Collection[int]) -> list[Any]:
        """The value of each node.

        held: places whose values are in integers; a product is computed in 8 bits if its input is held.
        """
        tf, nodes = self._tf, self._network.nodes
        values: list[Any] = []
        for place, node in enumerate(nodes):
            sources = [values[one] for one in node.inputs]
            if node.op == "input":
                value = x
            elif node.op in PRODUCTS:
                step = self._step(node.inputs[0], variables) if node.inputs[0] in held else None
                value = self._product(place, sources[0], variables, step)
            elif node.op in ("add", "multiply"):
                value = sources[0] + sources[1] if node.op == "add" else sources[0] * sources[1]
            elif node.op == "mean":
                value = tf.reduce_mean(sources[0], axis=[1, 2], keepdims=bool(node.layer.keepdims))
            elif node.op in ("concat", "move"):
                value = node.layer(sources if len(sources) > 1 else sources[0])
            elif node.number is not None:
                value = self._by_number(node, sources[0], node.inputs[0] in held)
            elif node.op == "relu":
                value = sources[0]
            else:
                function = {"sigmoid": tf.sigmoid, "tanh": tf.tanh, "softmax": tf.nn.softmax, "exp": tf.exp}[node.op]
                value = function(sources[0])
            if node.activation != "linear":
                value = tf.nn.relu(value) if node.activation == "relu" else tf.nn.relu6(value)
            if place in held:
                value = self._rounded(place, value, variables)
            values.append(value)
        return values

    def _by_number(self, node: Node, x: Any, quantized: bool) -> Any:
        number = node.number
        assert number is not None
        if quantized and number.size > 1:
            step = (max(float(number.max()), 0.0) - min(float(number.min()), 0.0)) / _STEPS
            number = np.asarray(np.rint(number / max(step, _LEAST)) * step, np.float32)
        if node.op == "scale":
            return x * number
        if node.op == "offset":
            return x + number
        return (self._tf.minimum if node.op == "minimum" else self._tf.maximum)(x, number)

    def _step(self, place: int, variables: Sequence[Any]) -> Any:
        assert self._grids is not None
        at = self._grids.group[place]
        if at in self._scale:
            return self._tf.exp(variables[self._scale[at]])
        return self._tf.constant(self._grids.scales[at], self._tf.float32)

    def _rounded(self, place: int, value: Any, variables: Sequence[Any]) -> Any:
        assert self._grids is not None
        tf, step = self._tf, self._step(place, variables)
        zero = self._grids.zeros[self._grids.group[place]]
        levels = tf.clip_by_value(value / step, float(-zero), float(_STEPS - zero))
        return (levels + tf.stop_gradient(tf.round(levels) - levels)) * step

    def _product(self, place: int, x: Any, variables: Sequence[Any], step: Any | None) -> Any:
        """step: of the input, None for a product in float."""
        from keras import ops

        tf, node, at = self._tf, self._network.nodes[place], self._kernel[place]
        kernel, bias = variables[at] * self._units[place][0], variables[at + 1] * self._units[place][1]
        if step is not None:
            axes = (0, 1) if node.op == "depthwise" else tuple(range(len(kernel.shape) - 1))
            largest = tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(kernel), axis=axes, keepdims=True), _LEAST))
            scale = largest / 127.0
            kernel += tf.stop_gradient(tf.round(kernel / scale) * scale - kernel)
            unit = tf.reshape(scale, [-1]) * tf.stop_gradient(step)
            bias += tf.stop_gradient(tf.round(bias / unit) * unit - bias)
        layer = node.layer
        if node.op == "dense":
            return tf.matmul(x, kernel) + bias
        convolve = ops.depthwise_conv if node.op == "depthwise" else ops.conv
        return convolve(x, kernel, layer.strides, layer.padding, "channels_last", layer.dilation_rate) + bias

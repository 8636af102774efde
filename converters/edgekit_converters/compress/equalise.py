"""Channels of unlike ranges brought together before training.

Nothing changes in float.

    same = equalised(network, batches)

What `refine.equalise` does to a target's graph, on the network that is trained: channel c of a value is divided by s,
and what reads it multiplies its kernel for c by s. Training moves a weight by some of its own size, and so would take
long to bring back a channel that has two steps of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import PRODUCTS, Network
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.refine.equalise import BOUND, STRENGTH

_ROUNDS = 3
"""Each goes half of the way, and what is read then has other ranges."""
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
        share = most / max(float(most.max()), 1e-30)
        factors = np.where(most > 0, np.clip(share**STRENGTH, 1 / BOUND, 1.0), 1.0).astype(np.float32)
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
    """Places whose channels share their factors; those that may have none are left out."""
    nodes = network.nodes
    parent = list(range(len(nodes)))

    def root(place: int) -> int:
        while parent[place] != place:
            place = parent[place]
        return place

    fixed = {0, *network.outputs, *network.heads}
    for place, node in enumerate(nodes):
        passes = node.op in ("add", "mean", "relu") or (node.op == "move" and type(node.layer).__name__ in _PASSING)
        if passes:
            for source in node.inputs:
                parent[root(source)] = root(place)
        elif node.op not in PRODUCTS:
            fixed |= {place, *node.inputs}
        if node.activation == "relu6":
            fixed.add(place)
        if node.op == "depthwise" and node.kernel is not None and node.kernel.shape[3] != 1:
            fixed |= {place, node.inputs[0]}
    found: dict[int, list[int]] = {}
    for place in range(len(nodes)):
        found.setdefault(root(place), []).append(place)
    barred = {root(place) for place in fixed}
    return [group for at, group in found.items() if at not in barred]

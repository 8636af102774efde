"""Unstructured pruning: the smallest weights of each kernel become zero and stay zero.

They do so while the network trains.

    sparsity = Sparsity(kernels_of(model, trainee.variables), 0.9)
    made = train_float(network, model, data, teaching, replace(run, sparsity=sparsity))

Rules:
- of each kernel the same share becomes zero, the weights of least magnitude; at step t of T it is s(1 - (1 - t/T)^3)
  (Zhu and Gupta, arXiv 1710.01878), T being 60 % of the steps: the rest trains what is left;
- kernels of convolutions and dense layers; a depthwise kernel is a hundredth of the work, and loses most;
- a round before T is never the best one; zeros that a later step holds are zeros from its first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import Network

EVERY = 20
"""Training steps between two choices of weights: rounds are a multiple of it, so a resumed run chooses the same."""
_RAMP = 0.6
_KERNELS = {"Conv2D": "kernel", "Dense": "kernel", "SeparableConv2D": "pointwise_kernel"}


@dataclass(frozen=True)
class Sparsity:
    """Which weights become zero.

    places: of the trainee's variables that are kernels.
    share: of each that becomes zero, above 0 and below 1; None where the zeros that it has are held.
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
    """Flat places of that share of the weights, those of least magnitude.

    One weight always stays.
    """
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

"""A stateful artifact's golden answers, and how far another machine's may lie from them.

    raw = answered(contract, artifact, engine, item)        # every frame's outputs, stacked, from a fresh state
    steps = leeway(contract, artifact, engine, item, raw)

Rules: what another processor rounds otherwise in one frame comes back with the state in the next, and may grow. How much is
found by trying: the sequence is run again with every number that goes in, states too, moved by what kernels differ by (a
step of 8 bits, 1e-5 of the largest float), and the furthest that an answer moves is allowed twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.targets.artifact import Artifact
from edgekit_runtime.contract.finish import dequantize
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import Engine
from edgekit_runtime.stepping import Stepper

__all__ = ["answered", "leeway"]

Item = Mapping[str, NDArray[Any]]
_FLOAT_NUDGE = 1e-5
_FLOAT_STEP = 1e-4  # of the largest golden value, as a bundle's tolerance counts
_MOST = 100_000  # a chaotic network: only the cosine says something then


def answered(contract: Contract, artifact: Artifact, engine: Engine, item: Item) -> list[NDArray[Any]]:
    """[frames, ...] of each of the artifact's outputs. The engine is fresh before and after."""
    stepper = Stepper(contract, artifact.inputs, artifact.outputs, engine)
    count = len(next(iter(item.values())))
    frames = [stepper.raw({name: array[at] for name, array in item.items()}) for at in range(count)]
    stepper.reset()
    return [np.stack([value[0] for value in values]) for values in zip(*frames, strict=True)]


def leeway(contract: Contract, artifact: Artifact, engine: Engine, item: Item, golden: Sequence[NDArray[Any]]) -> int:
    """Steps to allow beside an artifact's own tolerance."""
    told = {spec.name for spec in contract.caller_outputs}
    moved = answered(contract, artifact, _Nudged(engine), item)
    furthest = 0.0
    for spec, first, second in zip(artifact.outputs, golden, moved, strict=True):
        if spec.name in told:
            a, b = (dequantize(value, spec, np.dtype(np.float32)).astype(np.float64) for value in (first, second))
            largest = float(np.abs(a).max(initial=0))
            step = spec.quantization.scale if spec.quantization else max(_FLOAT_STEP * largest, 1e-12)
            furthest = max(furthest, float(np.abs(a - b).max(initial=0)) / step)
    return min(math.ceil(2 * furthest), _MOST) if math.isfinite(furthest) else _MOST


class _Nudged(Engine):
    """Another engine, whose inputs are moved a little before each run. Seeded: the same bundle each time."""

    def __init__(self, engine: Engine) -> None:
        self.info, self.inputs, self.outputs = engine.info, engine.inputs, engine.outputs
        self._engine, self._random = engine, np.random.default_rng(0)

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self._engine.run([self._moved(array) for array in inputs])

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        """The engine is not this one's to close."""

    def _moved(self, array: NDArray[Any]) -> NDArray[Any]:
        sign = self._random.choice((-1, 1), array.shape)
        moved: NDArray[Any] = array
        if array.dtype.kind == "f":
            moved = (array + sign * _FLOAT_NUDGE * np.abs(array).max(initial=0)).astype(array.dtype)
        elif (
            array.dtype.itemsize == 1 and array.dtype.kind != "b"
        ):  # wider ones are indexes, and flags are what they are
            limits = np.iinfo(array.dtype)
            moved = np.clip(array.astype(np.int16) + sign, limits.min, limits.max).astype(array.dtype)
        return moved

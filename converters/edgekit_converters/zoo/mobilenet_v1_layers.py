"""The layers of MobileNetV1 1.0 at 224x224, with seeded weights and batch normalisation folded in.

    layers()[0].name, layers()[-1].kind        # "stem", "dense"

Rules: the network is the paper's (Howard et al., 2017), 569 million multiply-accumulates; its answers mean nothing, and its
time does not depend on the weights; the same weights on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["ANCHOR_SIDE", "Layer", "layers"]

ANCHOR_SIDE = 224
_SEED = 1704_04861
"""The paper's number on arXiv."""
_CLASSES = 1000
_PLAN = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]


@dataclass(frozen=True)
class Layer:
    """kind: `conv`, `depthwise` or `dense`. weight: float32 [out, height, width, in], depthwise [1, height, width, out],
    dense [out, in]. bias: float32 [out]. side: of what comes in."""

    name: str
    kind: Literal["conv", "depthwise", "dense"]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: int
    side: int

    @property
    def scales(self) -> NDArray[np.float32]:
        """Of the int8 weights, one an output channel."""
        axes = (0, 1, 2) if self.kind == "depthwise" else tuple(range(1, self.weight.ndim))
        return np.asarray(np.abs(self.weight).max(axis=axes) / 127, np.float32)

    def quantized(self, input_scale: float) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
        """Weights in int8, and the bias in int32 with the scale of products."""
        scales = self.scales
        shaped = scales if self.kind == "depthwise" else scales.reshape(-1, *[1] * (self.weight.ndim - 1))
        weight = np.clip(np.rint(self.weight / shaped), -127, 127).astype(np.int8)
        return weight, np.rint(self.bias / (scales * input_scale)).astype(np.int32)


def layers() -> list[Layer]:
    """Stem, thirteen pairs of depthwise and 1x1, and the dense layer."""
    return list(_layers(np.random.Generator(np.random.PCG64(_SEED))))


def _layers(random: np.random.Generator) -> Iterator[Layer]:
    def weight(*shape: int, fan_in: int) -> NDArray[np.float32]:
        # Uniform, from the raw stream: the methods that shape it otherwise may change with NumPy's version.
        drawn = random.random(shape) * 2 - 1
        return np.asarray(drawn * np.sqrt(6 / fan_in), np.float32)

    def bias(count: int) -> NDArray[np.float32]:
        return np.asarray(random.random(count) * 0.2 - 0.1, np.float32)

    side, channels = ANCHOR_SIDE, 32
    yield Layer("stem", "conv", weight(32, 3, 3, 3, fan_in=27), bias(32), 2, side)
    side //= 2
    for number, (width, stride) in enumerate(_PLAN, start=1):
        kernel = weight(1, 3, 3, channels, fan_in=9)
        yield Layer(f"depthwise_{number}", "depthwise", kernel, bias(channels), stride, side)
        side //= stride
        yield Layer(f"pointwise_{number}", "conv", weight(width, 1, 1, channels, fan_in=channels), bias(width), 1, side)
        channels = width
    yield Layer("classifier", "dense", weight(_CLASSES, channels, fan_in=channels), bias(_CLASSES), 1, 1)

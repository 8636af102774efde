"""What a number of a quantized tensor stands for, in both formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Grid:
    """The values that a quantized tensor can have: from low to high in steps."""

    step: float
    low: float
    high: float

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round each value to the nearest point, clipped at the ends."""
        steps = values / self.step
        np.rint(steps, out=steps)
        steps *= self.step
        return np.clip(steps, self.low, self.high, out=steps)


@dataclass(frozen=True)
class AffineGrid:
    """float = scale * (integer - zero). Both are one number, or one for each index of `axis`."""

    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    axis: int = 0

    def to_float(self, values: NDArray[Any]) -> NDArray[np.float32]:
        scale, zero = self._spread(values)
        if not zero.any():
            return np.asarray(np.multiply(values, scale, dtype=np.float32))
        return np.asarray(np.multiply(values.astype(np.int32) - zero, scale, dtype=np.float32))

    def to_integer(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Quantize: round half to even, clip to the type."""
        scale, zero = self._spread(values)
        ends = np.iinfo(dtype)
        return np.clip(np.rint(values / scale) + zero, ends.min, ends.max).astype(dtype)

    def grid(self, dtype: np.dtype[Any]) -> Grid | None:
        """Return the grid, None if it differs by channel."""
        if self.scale.size != 1 or not float(self.scale.reshape(-1)[0]) > 0:
            return None
        step, zero, ends = float(self.scale.reshape(-1)[0]), int(self.zero.reshape(-1)[0]), np.iinfo(dtype)
        return Grid(step, (int(ends.min) - zero) * step, (int(ends.max) - zero) * step)

    def _spread(self, values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        scale, zero = self.scale, self.zero.astype(np.int32)
        if scale.size == 1:
            return scale.reshape(()), zero.reshape(-1)[:1].reshape(())
        shape = [1] * values.ndim
        shape[self.axis] = -1
        return scale.reshape(shape), np.broadcast_to(zero, scale.shape).reshape(shape)


def symmetric(values: NDArray[Any], axis: int | None) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round to int8 (-127..127); scale = largest magnitude / 127, per `axis` or for all.
    The scales have the values' rank."""
    rest = tuple(i for i in range(values.ndim) if axis is None or i != axis % values.ndim)
    largest = np.abs(values).max(axis=rest, keepdims=True)
    scales = np.where(largest > 0, largest / 127.0, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scales), -127, 127).astype(np.int8), scales


def fits_float16(values: NDArray[Any]) -> bool:
    """Whether float16 holds each value exactly."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))


def come_from_float16(weights: Iterable[NDArray[Any]]) -> bool:
    """Whether most float32 weights were widened from float16."""
    total = exact = 0
    for values in weights:
        total += values.size
        exact += values.size if values.size >= _LARGE and fits_float16(values) else 0
    return 2 * exact > total


_LARGE = 1024

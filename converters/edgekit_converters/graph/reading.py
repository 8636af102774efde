"""What the views of both formats share: what an operator does, how integers stand for floats, what a product costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.graph.graph import Grid, Kind
from edgekit_converters.workload import read_workload

__all__ = ["Affine", "kinds", "macs_by_tensor"]


@dataclass(frozen=True)
class Affine:
    """float = scale * (integer - zero). scale, zero: one number, or one for each index of `axis`."""

    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    axis: int = 0

    def to_float(self, values: NDArray[Any]) -> NDArray[np.float32]:
        scale, zero = self._spread(values)
        if not zero.any():
            return np.asarray(np.multiply(values, scale, dtype=np.float32))
        return np.asarray(np.multiply(values.astype(np.int32) - zero, scale, dtype=np.float32))

    def to_integer(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rounded half to even and clipped to the type."""
        scale, zero = self._spread(values)
        ends = np.iinfo(dtype)
        return np.clip(np.rint(values / scale) + zero, ends.min, ends.max).astype(dtype)

    def grid(self, dtype: np.dtype[Any]) -> Grid | None:
        """None where each channel has one of its own."""
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


def kinds(table: Mapping[Kind, str]) -> dict[str, Kind]:
    """Operator name -> kind, from kind -> names in one string."""
    return {name: kind for kind, names in table.items() for name in names.split()}


def macs_by_tensor(format: str, data: bytes) -> dict[str, int]:  # noqa: A002
    """By the name of the first tensor that an operation makes; empty for a model whose shapes cannot be worked out."""
    try:
        return {op.name: op.macs for op in read_workload(format, data, "float32").ops if op.macs}
    except ConversionError:
        return {}

"""What was seen of one tensor: its ends, moments, histogram and channels.

tensor = TensorStatistics(axis=1)
tensor.add(values)                      # one sample's, float32
tensor.range("percentile"), tensor.share_used(0.9999)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.histogram import Histogram
from edgekit_converters.calibration.thresholds import chosen_range

if TYPE_CHECKING:  # targets stands on calibration
    from edgekit_converters.targets.artifact import RangeMethod

__all__ = ["Channels", "TensorStatistics"]

_ROWS = 128  # rows that are summed in float32 before float64 takes over
_LARGE = 1e15  # larger values are summed in float64, so that their squares stay finite


class Channels:
    """By index of the channel axis: low, high, total and mean float64 [C]. count: values in each channel."""

    def __init__(self, size: int) -> None:
        self.low: NDArray[np.float64] = np.full(size, np.inf)
        self.high: NDArray[np.float64] = np.full(size, -np.inf)
        self.total: NDArray[np.float64] = np.zeros(size)
        self.count = 0

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.total / max(self.count, 1)

    def add(self, values: NDArray[Any], axis: int) -> None:
        """values: finite, with as many channels on that axis."""
        size = values.shape[axis]
        if axis == values.ndim - 1:
            rows = values.reshape(-1, size)
            whole = len(rows) // _ROWS * _ROWS
            blocks = rows[:whole].reshape(-1, _ROWS, size).sum(axis=1)
            total = blocks.sum(axis=0, dtype=np.float64) + rows[whole:].sum(axis=0, dtype=np.float64)
            low, high = rows.min(axis=0), rows.max(axis=0)
        else:
            planes = np.moveaxis(values, axis, 0).reshape(size, -1)
            total, low, high = planes.sum(axis=1).astype(np.float64), planes.min(axis=1), planes.max(axis=1)
        self.total += total
        np.minimum(self.low, low, out=self.low)
        np.maximum(self.high, high, out=self.high)
        self.count += values.size // size


class TensorStatistics:
    """One tensor over all samples.

    low, high: of its finite values, 0 where there are none yet. count: of finite values; infinite: of the others.
    axis: of the channels; channels: None where the tensor has no such axis or its size changes between samples.
    """

    def __init__(self, axis: int | None = None) -> None:
        self.axis = axis
        self.histogram = Histogram()
        self.channels: Channels | None = None
        self.count = 0
        self.infinite = 0
        self.measured: tuple[float, ...] = (np.inf, -np.inf, 0.0, 0.0)
        """Smallest, largest, sum, sum of squares."""

    @property
    def low(self) -> float:
        return self.measured[0] if self.count else 0.0

    @property
    def high(self) -> float:
        return self.measured[1] if self.count else 0.0

    @property
    def mean(self) -> float:
        return self.measured[2] / max(self.count, 1)

    @property
    def std(self) -> float:
        return float(np.sqrt(max(self.measured[3] / max(self.count, 1) - self.mean**2, 0.0)))

    def range(self, method: RangeMethod) -> tuple[float, float]:
        """Contains zero, is finite and not empty; see `thresholds`."""
        return chosen_range(method, self.low, self.high, self.histogram.bins())

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """Values below which these shares (0..1) lie, within 1 % of themselves."""
        if self.count == 0:
            return (0.0,) * len(shares)
        return tuple(min(max(value, self.low), self.high) for value in self.histogram.quantiles(shares))

    def share_used(self, share: float = 0.9999) -> float:
        """The part (0..1) of low..high that the middle `share` of the values fills: small where outliers stretch it."""
        low, high = self.quantiles((1 - share) / 2, (1 + share) / 2)
        return (high - low) / (self.high - self.low) if self.high > self.low else 1.0

    def add(self, values: NDArray[Any]) -> None:
        """values: of one sample. Raises ValueError for NaN."""
        values = np.ascontiguousarray(values, np.float32)
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if np.isnan(low):
            raise ValueError("NaN among the values")
        if np.isinf(low) or np.isinf(high):
            finite = values[np.isfinite(values)]
            self.infinite += values.size - finite.size
            self.axis = self.channels = None
            self.add(finite)
            return
        exact: NDArray[Any] = values if max(-low, high) < _LARGE else values.astype(np.float64)
        self._add_channels(exact)
        flat = exact.reshape(-1)
        before = self.measured
        sums = before[2] + float(flat.sum()), before[3] + float(np.dot(flat, flat))
        self.measured = (min(before[0], low), max(before[1], high), *sums)
        self.count += values.size
        self.histogram.add(values)

    def _add_channels(self, values: NDArray[Any]) -> None:
        if self.axis is None:
            return
        if values.ndim < 2:
            self.axis = self.channels = None
            return
        axis = self.axis if self.axis >= 0 else values.ndim - 1
        if self.channels is None:
            self.channels = Channels(values.shape[axis])
        if values.shape[axis] != self.channels.low.size:
            self.axis = self.channels = None
            return
        self.channels.add(values, axis)

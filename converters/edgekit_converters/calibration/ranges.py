"""What calibration saw of every tensor, in constant memory, and the ranges that follow from it.

    statistics = observe(graph, feeds, total=500)
    statistics.ranges("mse")["block_1/conv"]            # (-0.31, 5.2)
    statistics.tensors["block_1/conv"].share_used(0.9999)

Rules: how large it is depends on the model and not on the number of samples; every range method reads the same statistics,
so that trying another costs nothing; the order of the samples changes no range.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.tensor_statistics import Channels, TensorStatistics
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.whole_file import write_cache

if TYPE_CHECKING:  # targets stands on calibration
    from edgekit_converters.targets.artifact import RangeMethod

__all__ = ["Channels", "Statistics", "TensorStatistics"]

_NO_AXIS = -9


class Statistics:
    """head: tensors at the graph's end, whose range is never cut. samples: how many were run. settled_at: after how many the ranges stood still and the rest was left unread, None
    where all were read. tensors: by name, in the graph's order. digest: of what they were made from, if the caller said.
    """

    def __init__(self, tensors: Mapping[str, TensorStatistics], head: Collection[str] = ()) -> None:
        self.tensors: dict[str, TensorStatistics] = dict(tensors)
        self.head = frozenset(head)
        self.samples = 0
        self.settled_at: int | None = None
        self.digest = ""
        self._ranges: dict[RangeMethod, tuple[int, dict[str, tuple[float, float]]]] = {}

    def ranges(self, method: RangeMethod) -> dict[str, tuple[float, float]]:
        """For every tensor: contains zero, finite, never empty. In the head it is all that was seen, by any method."""
        known = self._ranges.get(method)
        if known is None or known[0] != self.samples:
            found = {n: t.range("minmax" if n in self.head else method) for n, t in self.tensors.items()}
            known = self.samples, found
            self._ranges[method] = known
        return dict(known[1])

    def add(self, values: Mapping[str, NDArray[Any]]) -> None:
        """One sample. Raises CalibrationError that names the first tensor with NaN in it."""
        for name, tensor in self.tensors.items():
            if name not in values:
                continue  # what control flow left out this time
            try:
                tensor.add(values[name])
            except ValueError as error:
                raise CalibrationError(
                    f"the layer '{name}' gives NaN for sample {self.samples + 1}",
                    do="Check that the model's weights are finite and the sample is one that it was trained for",
                ) from error
        self.samples += 1

    def to_bytes(self) -> bytes:
        """A .npz without Python objects."""
        names = list(self.tensors)
        head = {"samples": self.samples, "settled_at": self.settled_at, "digest": self.digest, "names": names}
        head["head"] = sorted(self.head)
        arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
        arrays.update(_stacked([self.tensors[name] for name in names]))
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Statistics:
        """Raises CalibrationError for bytes that `to_bytes` did not write."""
        try:
            with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
                head = json.loads(arrays["head"].tobytes())
                tensors = _unstacked({key: arrays[key] for key in arrays.files if key != "head"})
            found = cls(dict(zip(head["names"], tensors, strict=True)), head["head"])
            found.samples, found.settled_at, found.digest = head["samples"], head["settled_at"], head["digest"]
        except Exception as error:  # a damaged zip raises BadZipFile, zlib.error, EOFError, KeyError, ...
            raise CalibrationError(
                "these are no calibration statistics", do="Delete the file and calibrate again"
            ) from error
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Whole or not at all."""
        place = Path(path)
        try:
            write_cache(place, [self.to_bytes()])
        except OSError as error:
            raise CalibrationError(f"cannot be written: {error.strerror}", where=str(place)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Raises CalibrationError for a file that is missing or something else."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise CalibrationError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _stacked(tensors: Sequence[TensorStatistics]) -> dict[str, NDArray[Any]]:
    """The tensors side by side. numbers: [T, 10]; histograms: [T, 2, BINS]; channels: [3, all channels]."""
    sizes = [0 if tensor.channels is None else tensor.channels.low.size for tensor in tensors]
    channels = [tensor.channels for tensor in tensors if tensor.channels is not None]
    counted = [
        (
            tensor.count,
            tensor.infinite,
            tensor.histogram.zeros,
            tensor.histogram.top,
            _NO_AXIS if tensor.axis is None else tensor.axis,
            size,
            0 if tensor.channels is None else tensor.channels.count,
        )
        for tensor, size in zip(tensors, sizes, strict=True)
    ]
    return {
        "counted": np.array(counted, np.int64).reshape(-1, 7),
        "measured": np.array([tensor.measured for tensor in tensors], np.float64).reshape(-1, 4),
        "histograms": np.array([tensor.histogram.counts for tensor in tensors], np.int64),
        "channels": np.concatenate([[item.low, item.high, item.total] for item in channels], axis=1)
        if channels
        else np.zeros((3, 0)),
    }


def _unstacked(arrays: Mapping[str, NDArray[Any]]) -> list[TensorStatistics]:
    found = []
    start = 0
    for numbers, measured, counts in zip(arrays["counted"], arrays["measured"], arrays["histograms"], strict=True):
        count, infinite, zeros, top, axis, size, each = (int(number) for number in numbers)
        tensor = TensorStatistics(None if axis == _NO_AXIS else axis)
        tensor.count, tensor.infinite = count, infinite
        tensor.measured = tuple(float(number) for number in measured)
        tensor.histogram.counts, tensor.histogram.zeros, tensor.histogram.top = counts.copy(), zeros, top
        if size:
            tensor.channels = Channels(size)
            low, high, total = arrays["channels"][:, start : start + size]
            tensor.channels.low, tensor.channels.high, tensor.channels.total = low.copy(), high.copy(), total.copy()
            tensor.channels.count = each
            start += size
        found.append(tensor)
    return found

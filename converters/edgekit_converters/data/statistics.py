"""Statistics of tensors over calibration samples, in constant memory; the ranges from them.

    feeds = SourceSamples(dataset, contract, source)          # what the original takes: [float32 [1, 224, 224, 3]]
    statistics = observe(graph, feeds, total=len(dataset), progress=progress)
    statistics.ranges("mse")["block_1/conv"]            # (-0.31, 5.2)

Rules:
- the size depends on the model and not on the number of samples; the order of the samples changes no range;
- a tensor that was ever NaN has no range, so that what reads or makes it stays in float; in an output NaN is an error;
- samples in random order are read only until the ranges have settled: from one checkpoint (every 32 samples, from the
  64th on) to the next the ends of the ranges of every method moved by less than 0.5 % of their width on average, and
  those of 99 in 100 tensors by less than 8 %, twice in a row. In a sorted order all are read;
- with `resume`, an interrupted run continues at the last checkpoint; where nothing can be saved, the run continues.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Dataset, Example
from edgekit_converters.data.ranges import METHODS, ActivationHistogram, chosen_range
from edgekit_converters.formats.graph import Graph, head
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.files import write_cache
from edgekit_runtime.system.strict_json import load_json

if TYPE_CHECKING:
    from edgekit_converters.recipe.artifact import RangeMethod


class TensorStatistics:
    """One tensor over all samples.
    low, high: of its finite values, 0 before the first.
    undefined: whether it was ever NaN.
    axis: of the channels.
    channels: smallest and largest value of each, float32 [2, C]; None without such an axis, or if its size changes
    between samples."""

    def __init__(self, axis: int | None = None) -> None:
        self.axis = axis
        self.histogram = ActivationHistogram()
        self.channels: NDArray[np.float32] | None = None
        self.undefined = False
        self.ends = (np.inf, -np.inf)

    @property
    def low(self) -> float:
        return self.ends[0] if self.ends[0] <= self.ends[1] else 0.0

    @property
    def high(self) -> float:
        return self.ends[1] if self.ends[0] <= self.ends[1] else 0.0

    def range(self, method: RangeMethod) -> tuple[float, float]:
        """Contains zero, is finite and not empty; see `ranges`."""
        return chosen_range(method, self.low, self.high, self.histogram.bins())

    def add(self, values: NDArray[Any]) -> None:
        values = np.ascontiguousarray(values, np.float32)
        if values.size == 0:
            return
        if values.ndim < 2:
            self.axis = self.channels = None
        axes = None if self.axis is None else tuple(i for i in range(values.ndim) if i != self.axis % values.ndim)
        ends = np.stack([values.min(axis=axes), values.max(axis=axes)])
        low, high = float(ends[0].min()), float(ends[1].max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self.undefined = self.undefined or bool(np.isnan(low))
            self.axis = self.channels = None
            self.add(values[np.isfinite(values)])
            return
        seen = ends if self.channels is None else self.channels
        if self.axis is None or seen.shape != ends.shape:
            self.axis = self.channels = None
        else:
            self.channels = np.stack([np.minimum(seen[0], ends[0]), np.maximum(seen[1], ends[1])])
        self.ends = min(self.ends[0], low), max(self.ends[1], high)
        self.histogram.add(values)


_NO_AXIS = -9


class Statistics:
    """All tensors over all samples.
    head: tensors at the graph's end, whose range is never cut.
    samples: how many were run.
    settled_at: after how many the ranges had settled and the rest was left unread, None if all were read.
    tensors: by name, in the graph's order.
    digest: of what they were made from, if the caller gave it."""

    def __init__(self, tensors: Mapping[str, TensorStatistics], head: Collection[str] = ()) -> None:
        self.tensors: dict[str, TensorStatistics] = dict(tensors)
        self.head = frozenset(head)
        self.samples = 0
        self.settled_at: int | None = None
        self.digest = ""
        self._ranges: dict[RangeMethod, tuple[int, dict[str, tuple[float, float]]]] = {}

    def ranges(self, method: RangeMethod) -> dict[str, tuple[float, float]]:
        """For every tensor that was never NaN: contains zero, finite, never empty.
        Tensors in the head have their whole range with any method."""
        known = self._ranges.get(method)
        if known is None or known[0] != self.samples:
            sound = {name: tensor for name, tensor in self.tensors.items() if not tensor.undefined}
            found = {n: t.range("minmax" if n in self.head else method) for n, t in sound.items()}
            known = self.samples, found
            self._ranges[method] = known
        return dict(known[1])

    def add(self, values: Mapping[str, NDArray[Any]], outputs: Collection[str] = ()) -> None:
        """One sample.
        Raises CalibrationError for NaN in one of `outputs`, with the name of the first tensor that has it."""
        for name, tensor in self.tensors.items():
            if name in values:  # control flow leaves some out
                tensor.add(values[name])
        if any(np.isnan(values[name]).any() for name in outputs if name in values):
            first = next(name for name in self.tensors if name in values and np.isnan(values[name]).any())
            do = "Check that the model's weights are finite and the sample is one that it was trained for"
            raise CalibrationError(f"the layer '{first}' gives NaN for sample {self.samples + 1}", do=do)
        self.samples += 1

    def to_bytes(self) -> bytes:
        """A .npz without Python objects."""
        names = list(self.tensors)
        head = {"samples": self.samples, "settled_at": self.settled_at, "digest": self.digest, "names": names}
        head["head"] = sorted(self.head)
        head["undefined"] = [name for name in names if self.tensors[name].undefined]
        arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
        # The tensors side by side. counted: [T, 4]; ends: [T, 2]; histograms: [T, 2, BINS]; channels: [2, all].
        tensors = [self.tensors[name] for name in names]
        channels = [np.zeros((2, 0), np.float32) if one.channels is None else one.channels for one in tensors]
        counted = [
            (t.histogram.zeros, t.histogram.top, _NO_AXIS if t.axis is None else t.axis, own.shape[1])
            for t, own in zip(tensors, channels, strict=True)
        ]
        arrays["counted"] = np.array(counted, np.int64).reshape(-1, 4)
        arrays["ends"] = np.array([tensor.ends for tensor in tensors], np.float64).reshape(-1, 2)
        arrays["histograms"] = np.array([tensor.histogram.counts for tensor in tensors], np.int64)
        arrays["channels"] = np.concatenate([np.zeros((2, 0), np.float32), *channels], axis=1)
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Statistics:
        """Raises CalibrationError for bytes that `to_bytes` did not write."""
        try:
            with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
                head = load_json(arrays["head"].tobytes())
                rows = [arrays[key] for key in ("counted", "ends", "histograms")]
                channels = arrays["channels"]
            found, start = cls({}, head["head"]), 0
            for name, numbers, ends, counts in zip(head["names"], *rows, strict=True):
                zeros, top, axis, size = (int(number) for number in numbers)
                tensor = found.tensors[name] = TensorStatistics(None if axis == _NO_AXIS else axis)
                tensor.undefined, tensor.ends = name in head["undefined"], (float(ends[0]), float(ends[1]))
                tensor.histogram.counts, tensor.histogram.zeros, tensor.histogram.top = counts.copy(), zeros, top
                tensor.channels = channels[:, start : start + size].copy() if size else None
                start += size
            found.samples, found.settled_at, found.digest = head["samples"], head["settled_at"], head["digest"]
        except Exception as error:  # a damaged zip raises BadZipFile, zlib.error, EOFError, KeyError, ...
            do = "Delete the file and calibrate again"
            raise CalibrationError("not calibration statistics", do=do) from error
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises CalibrationError. The file is whole or absent."""
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


CHECKPOINT = 32
"""Samples between two looks at the ranges."""

_LEAST = 64
_MEAN_MOVE = 0.005
_LARGEST_MOVE = 0.08
_QUIET = 2
STAGE = "calibration"

Ends = NDArray[np.float64]


@dataclass(frozen=True)
class ObserveOptions:
    """How feeds are read.
    shuffled: the feeds come in random order, so that reading may stop once ranges have settled.
    resume: a file to save statistics in; removed at the end.
    digest: of model and samples; a file with another one is not used.
    save_every: seconds."""

    shuffled: bool = False
    resume: Path | None = None
    digest: str = ""
    save_every: float = 20.0
    clock: Callable[[], float] = time.monotonic


def visiting_order(count: int, seed: int = 0) -> list[int]:
    """The indexes 0..count-1 in a random order that is the same each time."""
    return [int(index) for index in np.random.default_rng(seed).permutation(count)]


def observe(
    graph: Graph,
    feeds: Iterable[Sequence[NDArray[Any]]],
    total: int,
    progress: Progress = silent,
    options: ObserveOptions | None = None,
) -> Statistics:
    """Run the graph on feeds and record its ranges.
    feeds: arrays in the order of the graph's inputs, batch of 1; at most `total` of them are read.
    Raises CalibrationError for a graph that answers NaN, naming the layer, and for no feeds at all."""
    options = options or ObserveOptions()
    statistics = _resumed(graph, options)
    settling = _RangeConvergence(statistics)
    saved = options.clock()
    with graph.watch() as watched:
        for feed in islice(feeds, statistics.samples, total):
            statistics.add(watched.run(feed), graph.outputs)
            try:
                progress(STAGE, statistics.samples, total)
            except BaseException:  # stopped between two samples
                _save(statistics, options)
                raise
            if statistics.samples % CHECKPOINT:
                continue
            if settling.has_settled() and options.shuffled and statistics.samples < total:
                statistics.settled_at = statistics.samples
                break
            if options.clock() - saved >= options.save_every:
                _save(statistics, options)
                saved = options.clock()
    if statistics.samples == 0:
        raise CalibrationError("there is no calibration sample", do="Pass a calibration set: --calibration DIR")
    if options.resume is not None:
        with contextlib.suppress(OSError):  # nothing was saved where nothing can be written
            options.resume.unlink(missing_ok=True)
    return statistics


def _save(statistics: Statistics, options: ObserveOptions) -> None:
    if options.resume is not None:
        with contextlib.suppress(CalibrationError):
            statistics.save(options.resume)


class _RangeConvergence:
    """Watches how far the ends of all ranges move between checkpoints."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._before = self._ends() if statistics.samples else None
        self._quiet = 0

    def has_settled(self) -> bool:
        """Called once a checkpoint."""
        after = self._ends()
        if self._before is not None and self._before.size and self._before.shape == after.shape:
            width = np.maximum((after[..., 1] - after[..., 0]), np.finfo(float).tiny)
            moved = np.abs(after - self._before).max(axis=-1) / width
            still = (moved.mean(axis=1) < _MEAN_MOVE) & (np.quantile(moved, 0.99, axis=1) < _LARGEST_MOVE)
            self._quiet = self._quiet + 1 if still.all() else 0
        self._before = after
        return self._quiet >= _QUIET and self._statistics.samples >= _LEAST

    def _ends(self) -> Ends:
        """[methods, tensors, 2]"""
        ranges = (self._statistics.ranges(method) for method in METHODS)
        return np.array([list(found.values()) for found in ranges], np.float64).reshape(len(METHODS), -1, 2)


def _resumed(graph: Graph, options: ObserveOptions) -> Statistics:
    """What an interrupted run left, or nothing yet."""
    axis = -1 if graph.format == "tflite" else 1
    fresh = Statistics({name: TensorStatistics(axis) for name in graph.tensors}, head(graph))
    fresh.digest = options.digest
    if options.resume is None:
        return fresh
    try:
        found = Statistics.load(options.resume)
    except CalibrationError:
        return fresh  # there is none, or it was cut short; calibrating again is all that is lost
    usable = found.digest == options.digest and list(found.tensors) == list(fresh.tensors)
    return found if usable else fresh


class SourceSamples:
    """Calibration examples as arrays, one a source input, with a batch axis of 1. Re-iterable.
    shuffled: items come in a random order that is the same in every pass, if the dataset can be read so."""

    def __init__(self, dataset: Dataset, contract: Contract, source: SourceModel) -> None:
        self.shuffled = dataset.any_order
        self._dataset = dataset
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in source.inputs]

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[list[NDArray[Any]]]:
        order = visiting_order(len(self)) if self.shuffled else range(len(self))
        return (self.adapt(example) for example in self._dataset.pick(order))

    def adapt(self, example: Example) -> list[NDArray[Any]]:
        """One example as the original takes it."""
        return [adapter(example.inputs[name]) for name, adapter in self._adapters]

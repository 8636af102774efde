"""Run calibration samples through a float graph and keep statistics of every tensor.

    feeds = SourceSamples(dataset, contract, source)          # what the original takes: [float32 [1, 224, 224, 3]]
    statistics = observe(graph, feeds, total=len(dataset), progress=progress)

Rules:
- samples are read one at a time and none is kept: memory does not grow with their number, whatever the range method;
- samples that come in random order are read only until the ranges have settled: when, from one checkpoint to the next
  (every 32 samples, from the 64th on), the ends of the ranges of every method moved by less than 0.5 % of their width
  on average, and those of 99 in 100 tensors by less than 8 %, twice in a row. In a sorted order all are read: the last
  class might be the one that is different;
- with `resume`, the statistics are saved at checkpoints and when the progress callback stops the run, and an
  interrupted run resumes from there; where they cannot be saved, the run continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example
from edgekit_converters.calibration.ranges import METHODS
from edgekit_converters.calibration.statistics import Statistics, TensorStatistics
from edgekit_converters.errors import CalibrationError
from edgekit_converters.graph.graph import Graph, head
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.spec import Contract

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

    Raises CalibrationError for a graph that answers NaN, naming the layer, and for no feeds at all.
    """
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
    """Re-iterable, with a length.
    Each item is one array a source input, in order, with a batch axis of 1.

    shuffled: items come in a random order that is the same at every pass, wherever the set can be read so. Folders come
    sorted by class, and a run that stops early must have seen all of them.
    """

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

"""Several items at once: one engine for each batch size behind one object.

    engine = BatchEngine({1: one, 4: four}, seconds={1: 0.0005, 4: 0.001})
    engine.run_batch([item, item, item])        # one run of the variant for 4, padded: three singles would take longer

Rules:
- a file with a free batch axis runs any number of items on one engine; a file with a fixed one exactly its own;
- other counts are split so that the whole takes the least measured time, and padded only where that pays;
- padding repeats a real item: zeros may fail the run (an int8 division by 0);
- an item's outputs are its own rows, and own their memory together with its batch-mates'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.engines.registry import Engine, EngineInfo, check_inputs
from edgekit_runtime.system.errors import EngineError

Tensors = list[NDArray[Any]]
_LOG = logging.getLogger("edgekit_runtime.engines")


class BatchEngine(Engine):
    """An engine for single items and batches. One thread at a time.

    engines: batch size -> the engine that runs exactly that many; must hold 1.
    any_size: the largest batch that the engine for 1 takes, with a free batch axis; 1 with a fixed one.
    seconds: batch size -> measured time of a run; decides how a batch is split.
    """

    def __init__(
        self, engines: Mapping[int, Engine], *, any_size: int = 1, seconds: Mapping[int, float] | None = None
    ) -> None:
        if 1 not in engines:
            raise ValueError("there must be an engine for a single item")
        self._engines = dict(sorted(engines.items()))
        self._single = self._engines[1]
        self._any_size = any_size
        self._staging: dict[int, list[NDArray[Any]]] = {}
        self._plans: dict[int, tuple[int, ...]] = {}
        self.seconds = dict(seconds or {})
        self.inputs, self.outputs = self._single.inputs, self._single.outputs
        self.run = self._single.run  # type: ignore[method-assign]  # the shortest way for a single item
        self._joinable = all(-1 not in tensor.shape[1:] for tensor in self.inputs)

    @property
    def info(self) -> EngineInfo:  # type: ignore[override]
        return self._single.info

    @property
    def single(self) -> Engine:
        """The engine for one item."""
        return self._single

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that pay. With a free batch axis others run as well."""
        return tuple(self._engines) if self._any_size == 1 else tuple(sorted({1, *self.seconds, self._any_size}))

    @property
    def largest(self) -> int:
        """The most items that one run takes."""
        return max(self._any_size, *self._engines)

    @property
    def restarts(self) -> int | None:
        """How often the isolated engine was started again; None in process."""
        host = getattr(self._single, "host", None)
        return None if host is None else int(host.restarts)

    @property
    def dead(self) -> str | None:
        """Reason the isolated engine died, or None if it is alive or runs in process."""
        host = getattr(self._single, "host", None)
        return None if host is None else host.dead

    def run(self, inputs: Sequence[NDArray[Any]]) -> Tensors:
        """One item, with its batch axis of 1."""
        return self._single.run(inputs)

    def run_batch(self, items: Sequence[Sequence[NDArray[Any]]]) -> list[Tensors]:
        """Run items together, each a list of tensors with a batch axis of 1. Returns their outputs.

        Raises EngineError, without a result for any item.
        """
        if len(items) == 1:
            return [self._single.run(items[0])]
        results: list[Tensors] = []
        for size in self.plan(len(items)):
            results += self._together(items[len(results) : len(results) + size], size)
        return results

    def plan(self, count: int) -> tuple[int, ...]:
        """The runs for `count` items, by size; the last may have room to spare."""
        if self._any_size > 1:
            whole, rest = divmod(count, self._any_size)
            return (self._any_size,) * whole + ((rest,) if rest else ())
        if count not in self._plans:
            self._plans[count] = least_time(count, {size: self.seconds.get(size, size + 0.1) for size in self._engines})
        return self._plans[count]

    def reset(self) -> None:
        """Forget the state that earlier runs left inside the model."""
        for engine in self._engines.values():
            engine.reset()

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _together(self, items: Sequence[Sequence[NDArray[Any]]], size: int) -> list[Tensors]:
        """Run at most `size` items at once."""
        if len(items) == 1 and size == 1:
            return [self._single.run(items[0])]
        if not self._joinable and len({tuple(array.shape for array in item) for item in items}) > 1:
            return [self._single.run(item) for item in items]  # of different lengths: they cannot lie side by side
        outputs = self._engines.get(size, self._single).run(self._joined(items, size))
        return [[output[row : row + 1] for output in outputs] for row in range(len(items))]

    def _joined(self, items: Sequence[Sequence[NDArray[Any]]], size: int) -> list[NDArray[Any]]:
        """Join items in memory kept for this size: an engine has read its inputs after `run`."""
        padded = [*items, *([items[0]] * (size - len(items)))]
        columns = list(zip(*padded, strict=True))
        if not self._joinable or size not in self._engines:
            return [np.concatenate(column) for column in columns]
        if size not in self._staging:
            self._staging[size] = [np.concatenate(column) for column in columns]
            return self._staging[size]
        for column, room in zip(columns, self._staging[size], strict=True):
            np.concatenate(column, out=room)
        return self._staging[size]


def least_time(count: int, seconds: Mapping[int, float]) -> tuple[int, ...]:
    """Serve `count` items with runs of these sizes in the least time, largest runs first.

    best(n) = min over sizes s of seconds(s) + best(n - s), and best(n <= 0) = 0. Of equals the one with fewer runs.
    """
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # seconds, runs, the size taken
    for n in range(1, count + 1):
        ways = []
        for size, takes in seconds.items():
            before = best[max(0, n - size)]
            ways.append((before[0] + takes, before[1] + 1, size))
        best.append(min(ways))
    runs, left = [], count
    while left > 0:
        runs.append(best[left][2])
        left -= best[left][2]
    return tuple(sorted(runs, reverse=True))


class FallbackEngine(Engine):
    """An engine on a GPU; a run that fails is answered by the processor, and all later ones.

    spare: loads the same artifact on the processor.
    """

    def __init__(self, engine: Engine, spare: Callable[[], Engine]) -> None:
        self._engine, self._spare = engine, spare
        self._closed = False
        self._lost: Engine | None = None  # freed at the end: a broken driver may take forever
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self.host = getattr(engine, "host", None)

    @property
    def info(self) -> EngineInfo:  # type: ignore[override]
        return self._engine.info

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        check_inputs(self, inputs)
        try:
            return self._engine.run(inputs)
        except EngineError as error:
            if self._closed or self.info.kernels != "vulkan":
                raise
            _LOG.warning("%s answers on the CPU from now on: the GPU failed: %s", self.info.name, error.what)
            self._lost, self._engine = self._engine, self._spare()
            return self._engine.run(inputs)

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        self._closed = True
        self._engine.close()
        if self._lost is not None:
            self._lost.close()


def with_spare(engine: Engine, spare: Callable[[], Engine]) -> Engine:
    """The engine, with a fallback to the processor if it runs on a GPU by its Vulkan driver."""
    return FallbackEngine(engine, spare) if engine.info.kernels == "vulkan" else engine


class RecordingEngine(Engine):
    """Wraps an engine and keeps the first run's inputs, a real example to measure with.

    given: copies of the first run's inputs.
    first_s, last_s: seconds of the first and the last run.
    on_run: called after each run.
    """

    def __init__(self, engine: Engine, on_run: Callable[[], object] = lambda: None) -> None:
        self._engine, self._on_run = engine, on_run
        self.info, self.inputs, self.outputs = engine.info, engine.inputs, engine.outputs
        self.given: list[NDArray[Any]] = []
        self.first_s = self.last_s = 0.0
        self.runs = 0

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        start = perf_counter()
        outputs = self._engine.run(inputs)
        self.last_s = perf_counter() - start
        self.runs += 1
        if not self.given:
            self.first_s = self.last_s
            self.given = [np.array(array) for array in inputs]
        self._on_run()
        return outputs

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        self._engine.close()

"""Warm an engine up, and measure which batch sizes pay on this board.

    warm = warm_up(bundle, entry, single, offer, load)
    warm.engine.sizes           # (1, 4): a batch of 8 took no less than two of 4, and was freed again

Rules:
- ready means warm: the golden examples are replayed, and every batch size in use has run several times; of a model so
  slow that this takes seconds, no more is run than that takes once all examples agreed here;
- a batch must give each item the answer it gives alone; one that does not is dropped with its reason, the model goes
  on;
- a file with a free batch axis has one engine for all sizes, and what changing the size costs counts as part of the
  batch; a small TFLite file has an interpreter for each instead, where two microseconds count and memory does not;
- a size pays when its run takes less than the same items in the best smaller runs, by more than the noise; the fastest
  of a few runs counts, because a busy processor interrupts long runs more often than short ones, and no run is faster
  than it can be;
- it is given up early: when neither of two sizes in a row pays, larger ones are not tried, and never beyond the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.registry import Engine
from edgekit_runtime.engines.variants import BatchEngine, RecordingEngine, least_time
from edgekit_runtime.loading.replay import SelfTest, replay, replay_batch
from edgekit_runtime.loading.selftest import passed_before, remember
from edgekit_runtime.system.errors import EdgekitError

BATCHES = (2, 4, 8, 16, 32)
"""Batch sizes that are tried where a file leaves its batch axis free."""
LEAST_GAIN = 0.05
"""A batch pays when it takes this share less time than the same items in smaller runs."""
BOUND_S = 2.0
"""Seconds for finding out which batch sizes pay."""
OWN_BELOW_BYTES = 1_000_000
"""TFLite files up to this size get an interpreter for each batch size: it takes little more than the file."""
REPLAY_BOUND_S = 2.0
"""Seconds for replaying examples that all agreed here before."""
_RUNS, _RUNS_S = 5, 0.06
"""What times a size: so many runs at least, and as many more as begin within so many seconds."""
_PATIENCE = 2

Load = Callable[[ArtifactEntry, int], Engine]
"""Loads an artifact for batches of a size."""


@dataclass(frozen=True)
class Warm:
    """first_ms: the very first inference. notes: which batch sizes were given up, and why."""

    engine: BatchEngine
    tested: SelfTest
    first_ms: float
    notes: tuple[str, ...]


def batches_offered(bundle: Bundle, entry: ArtifactEntry) -> dict[int, ArtifactEntry]:
    """Batch size -> the artifact that runs it.

    The variants packed for it, or the file itself where its axis is free.
    """
    if bundle.manifest.contract.state != "none":
        return {}
    if all(tensor.free_batch for tensor in (*entry.inputs, *entry.outputs)):
        return dict.fromkeys(BATCHES, entry)
    offer = {}
    for one in bundle.manifest.artifacts:
        sizes = {tensor.shape[0] for tensor in (*one.inputs, *one.outputs)}
        if one.role == "batch" and one.recipe == entry.recipe and len(sizes) == 1 and min(sizes) > 1:
            offer[min(sizes)] = one
    return dict(sorted(offer.items()))


def shares_one_engine(entry: ArtifactEntry) -> bool:
    """Whether batches run on the single-item engine, so that no variant takes memory."""
    free = all(tensor.free_batch for tensor in (*entry.inputs, *entry.outputs))
    return free and (entry.format == "onnx" or entry.bytes > OWN_BELOW_BYTES)


def warm_up(
    bundle: Bundle, entry: ArtifactEntry, single: Engine, offer: Mapping[int, ArtifactEntry], load: Load
) -> Warm:
    """offer: batch sizes to try, and what runs them.
    Raises SelfTestError, EngineError for the single item only.

    `single` belongs to the result; the variants that do not stay are closed.
    """
    recording = RecordingEngine(single)
    begun = perf_counter()
    proved = passed_before(bundle, entry, single.info)
    tested = replay(bundle, entry, recording, (lambda: perf_counter() - begun > REPLAY_BOUND_S) if proved else None)
    if not proved and perf_counter() - begun > REPLAY_BOUND_S:
        remember(bundle, entry, single.info, tested)
    slow = recording.last_s > (BOUND_S / 10 if recording.runs > 1 else REPLAY_BOUND_S)
    seconds = {1: recording.last_s if slow else _seconds(lambda: single.run(recording.given))}
    if bundle.manifest.contract.state == "internal":
        single.reset()
    shared = shares_one_engine(entry) and all(one is entry for one in offer.values())
    trying = _BatchTrials(bundle, single, recording.given, seconds, shared)
    for size, one in sorted(offer.items()):
        if not trying.is_promising(size):
            break
        trying.attempt(size, one, load)
    return Warm(trying.engine(), tested, recording.first_s * 1e3, tuple(trying.notes))


class _BatchTrials:
    """The batch sizes so far: those that pay, their time, and why others do not."""

    def __init__(
        self, bundle: Bundle, single: Engine, given: Sequence[NDArray[Any]], seconds: dict[int, float], shared: bool
    ) -> None:
        self._bundle = bundle
        self._single = single
        self._given = given
        self._seconds = seconds
        self._shared = shared
        self._engines: dict[int, Engine] = {1: single}
        self._disappointed = 0
        self._end = perf_counter() + BOUND_S
        self.notes: list[str] = []

    def engine(self) -> BatchEngine:
        any_size = max(self._seconds) if self._shared else 1
        return BatchEngine(self._engines, any_size=any_size, seconds=self._seconds)

    def is_promising(self, size: int) -> bool:
        """Whether to look at this size at all."""
        if self._disappointed >= _PATIENCE:
            return False
        expected_s = 3 * size * self._seconds[1]
        if perf_counter() + expected_s < self._end:
            return True
        self.notes.append(f"batches of {size} and more were not tried: it would take too long to measure")
        return False

    def attempt(self, size: int, entry: ArtifactEntry, load: Load) -> None:
        try:
            engine = self._single if self._shared else load(entry, size)
        except EdgekitError as error:
            self.notes.append(f"no variant for batches of {size}: {error}")
            return
        stays = False
        try:
            stays = self._is_worthwhile(size, entry, engine)
        except EdgekitError as error:
            self.notes.append(f"no variant for batches of {size}: {error}")
        finally:
            if not stays and engine is not self._single:
                engine.close()
        if stays and not self._shared:
            self._engines[size] = engine

    def _is_worthwhile(self, size: int, entry: ArtifactEntry, engine: Engine) -> bool:
        replay_batch(self._bundle, entry, engine, size)
        joined = [np.repeat(tensor, size, axis=0) for tensor in self._given]
        takes = self._time_batch(engine, joined)
        smaller = least_time(size, self._seconds)
        before = sum(self._seconds[one] for one in smaller)
        if takes > (1 - LEAST_GAIN) * before:
            self.notes.append(
                f"batches of {size} do not pay: {takes * 1e3:.3g} ms, in smaller runs {before * 1e3:.3g} ms"
            )
            self._disappointed += 1
            return False
        self._disappointed = 0
        self._seconds[size] = takes
        return True

    def _time_batch(self, engine: Engine, joined: list[NDArray[Any]]) -> float:
        """Seconds of a batch; on a shared engine with the change of size before and after it."""
        if not self._shared:
            return _seconds(lambda: engine.run(joined))

        def both() -> None:
            engine.run(self._given)
            engine.run(joined)

        return max(_seconds(both) - self._seconds[1], self._seconds[1])


def _seconds(run: Callable[[], object]) -> float:
    """The fastest of a few runs, after one that does not count."""
    run()
    taken: list[float] = []
    while len(taken) < _RUNS or (len(taken) < 4 * _RUNS and sum(taken) < _RUNS_S):
        start = perf_counter()
        run()
        taken.append(perf_counter() - start)
        if taken[-1] > BOUND_S / 10:
            break
    return min(taken)

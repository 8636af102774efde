"""Warm an engine up, and measure which batch sizes pay on this board.

    warm = warm_up(bundle, entry, single, offer, load)
    warm.engine.sizes           # (1, 4): a batch of 8 took no less than two of 4, and was freed again

Rules:
- the golden examples are replayed and every batch size in use has run several times; if all examples agreed here
  before, a slow model stops after REPLAY_BOUND_S;
- a batch must give each item the answer it gets alone; a size that does not is dropped with its reason;
- a file with a free batch axis has one engine for all sizes, and a batch's time includes the change of size; a small
  TFLite file has an interpreter for each;
- a size pays if its run takes less than the best smaller runs of the same items, by more than the noise; the fastest of
  a few runs counts;
- after two sizes in a row that do not pay, or beyond the bound, larger ones are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
"""Batch sizes that are tried with a free batch axis."""
LEAST_GAIN = 0.05
"""A batch pays if it takes this share less time than the same items in smaller runs."""
BOUND_S = 2.0
"""Seconds for finding out which batch sizes pay."""
OWN_BELOW_BYTES = 1_000_000
"""TFLite files up to this size get an interpreter for each batch size."""
REPLAY_BOUND_S = 2.0
"""Seconds for replaying examples that all agreed here before."""
_RUNS, _RUNS_S = 5, 0.06
"""A size is timed by so many runs, and as many more as begin within so many seconds."""
_PATIENCE = 2

Load = Callable[[ArtifactEntry, int], Engine]
"""Loads an artifact for batches of a size."""


@dataclass(frozen=True)
class Warm:
    """first_ms: the very first inference.
    notes: which batch sizes were given up, and why.
    """

    engine: BatchEngine
    tested: SelfTest
    first_ms: float
    notes: tuple[str, ...]


def batches_offered(bundle: Bundle, entry: ArtifactEntry) -> dict[int, ArtifactEntry]:
    """Batch size -> its packed variant, or the file itself if its batch axis is free."""
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
    """Raises SelfTestError, EngineError for the single item only.

    offer: batch sizes to try, and the artifacts that run them.
    `single` belongs to the result; the variants that are not used are closed.
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


@dataclass
class _BatchTrials:
    """The batch sizes so far: those that pay, their time, and why others do not."""

    bundle: Bundle
    single: Engine
    given: Sequence[NDArray[Any]]
    seconds: dict[int, float]
    shared: bool
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._engines, self._disappointed, self._end = {1: self.single}, 0, perf_counter() + BOUND_S

    def engine(self) -> BatchEngine:
        any_size = max(self.seconds) if self.shared else 1
        return BatchEngine(self._engines, any_size=any_size, seconds=self.seconds)

    def is_promising(self, size: int) -> bool:
        """Whether to try this size at all."""
        if self._disappointed >= _PATIENCE:
            return False
        expected_s = 3 * size * self.seconds[1]
        if perf_counter() + expected_s < self._end:
            return True
        self.notes.append(f"batches of {size} and more were not tried: it would take too long to measure")
        return False

    def attempt(self, size: int, entry: ArtifactEntry, load: Load) -> None:
        engine, stays = self.single, False
        try:
            if not self.shared:
                engine = load(entry, size)
            stays = self._is_worthwhile(size, entry, engine)
        except EdgekitError as error:
            self.notes.append(f"no variant for batches of {size}: {error}")
        finally:
            if not stays and engine is not self.single:
                engine.close()
        if stays and not self.shared:
            self._engines[size] = engine

    def _is_worthwhile(self, size: int, entry: ArtifactEntry, engine: Engine) -> bool:
        replay_batch(self.bundle, entry, engine, size)
        joined = [np.repeat(tensor, size, axis=0) for tensor in self.given]
        takes = self._time_batch(engine, joined)
        smaller = least_time(size, self.seconds)
        before = sum(self.seconds[one] for one in smaller)
        if takes > (1 - LEAST_GAIN) * before:
            self.notes.append(
                f"batches of {size} do not pay: {takes * 1e3:.3g} ms, in smaller runs {before * 1e3:.3g} ms"
            )
            self._disappointed += 1
            return False
        self._disappointed = 0
        self.seconds[size] = takes
        return True

    def _time_batch(self, engine: Engine, joined: list[NDArray[Any]]) -> float:
        """Seconds of a batch; on a shared engine with the change of size before and after it."""
        if not self.shared:
            return _seconds(lambda: engine.run(joined))

        def both() -> None:
            engine.run(self.given)
            engine.run(joined)

        return max(_seconds(both) - self.seconds[1], self.seconds[1])


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

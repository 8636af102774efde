"""Warm an engine up, and measure which batch sizes pay on this board.

    warm = warm_up(bundle, entry, single, offer, load)
    warm.engine.sizes           # (1, 4): a batch of 8 took no less than two of 4, and was freed again

Rules:
- the golden examples are replayed, and the engine of each batch size in use has run. If all agreed here before, one is
  enough, and what that opening measured holds, unless this one is faster: then others slowed that one;
- a batch must give each item the answer it gets alone; a size that does not is dropped with its reason;
- a file with a free batch axis has one engine for all sizes, and a batch's time includes the change of size; a small
  TFLite file has an interpreter for each;
- so has a TFLite file for one item whose operators work row by row, if its rows then keep their bits;
- a size pays if its run takes less than the best smaller runs of the same items, by more than the noise; than single
  runs, if it takes no memory. The fastest of a few runs counts;
- after two sizes in a row that do not pay, or beyond the bound, larger ones are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.registry import Engine, on_gpu
from edgekit_runtime.engines.variants import BatchEngine, RecordingEngine, least_time
from edgekit_runtime.loading.replay import SelfTest, check_same_rows, replay, replay_batch
from edgekit_runtime.loading.selftest import KeptTest, last_verdict, remember
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.records import asdict, record, replace

BATCHES = (2, 4, 8, 16, 32)
"""Batch sizes that are tried with a free batch axis."""
_ROWS = "FULLY_CONNECTED QUANTIZE DEQUANTIZE RELU RELU6 LEAKY_RELU ELU GELU LOGISTIC TANH HARD_SWISH SOFTMAX"
ROW_BY_ROW = frozenset(_ROWS.split(" "))
"""TFLite operators without a batch axis in a constant. A batch pays where its rows share the reading of weights."""
RESIZED_BYTES = 8_000_000
"""What the activations of a batch may take in a file for one item."""
BRIEF_S = 10e-6
"""A hand-off takes about as long: no batch of a file for one item is tried below."""
LEAST_GAIN = 0.05
"""A batch pays if it takes this share less time than the same items in smaller runs."""
BOUND_S = 2.0
"""Seconds for finding out which batch sizes pay."""
OWN_BELOW_BYTES = 1_000_000
"""TFLite files up to this size get an interpreter for each batch size."""
_LONGEST_S = 3600.0
_RUNS, _RUNS_S = 5, 0.06
"""A size is timed by so many runs, and as many more as begin within so many seconds."""
_PATIENCE = 2

Load = Callable[[ArtifactEntry, int], Engine]
"""Loads an artifact for batches of a size."""


@record(frozen=True)
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
    one_item = all(tensor.shape[0] == 1 and -1 not in tensor.shape for tensor in (*entry.inputs, *entry.outputs))
    if not offer and one_item and entry.format == "tflite" and ROW_BY_ROW.issuperset(entry.ops or ("unknown",)):
        item_bytes = 2 * check_artifact(bundle, entry).largest_tensor_bytes  # of a layer: what it reads and writes
        return dict.fromkeys([size for size in BATCHES if size * item_bytes <= RESIZED_BYTES], entry)
    return dict(sorted(offer.items()))


def shares_one_engine(entry: ArtifactEntry, offer: Mapping[int, ArtifactEntry]) -> bool:
    """Whether batches run on the single-item engine, so that no variant takes memory."""
    own = entry.format != "onnx" and entry.bytes <= OWN_BELOW_BYTES
    return not own and all(one is entry for one in offer.values())


def warm_up(
    bundle: Bundle, entry: ArtifactEntry, single: Engine, offer: Mapping[int, ArtifactEntry], load: Load
) -> Warm:
    """Raises SelfTestError, EngineError for the single item only.

    offer: batch sizes to try, and the artifacts that run them.
    `single` belongs to the result; the variants that are not used are closed.
    """
    recording = RecordingEngine(single)
    kept = last_verdict(bundle, entry, single.info)
    tested = replay(bundle, entry, recording, None if kept is None else lambda: True)
    tested = tested if kept is None else replace(tested, examples=kept.examples)
    known, shared = _known(kept, offer, recording.last_s), shares_one_engine(entry, offer)
    if known:
        single_s = known[1]
        if on_gpu(single.info.name, single.info.kernels) and shared:  # a first run compiles
            for size in (one for one in offer if one <= max(known)):
                single.run([np.repeat(tensor, size, axis=0) for tensor in recording.given])
    else:
        slow = recording.last_s > BOUND_S / (10 if recording.runs > 1 else 1)
        single_s = recording.last_s if slow else _seconds(lambda: single.run(recording.given))
    if bundle.manifest.contract.state == "internal":
        single.reset()
    trial, tried = _BatchTrial(bundle, entry, single, recording.given, load, shared), tuple(offer)
    trial.seconds[1] = single_s
    if single_s < BRIEF_S and not entry.inputs[0].free_batch and entry in offer.values():
        offer = {}
    if known and kept is not None:
        trial.reopen(offer, known)
        trial.notes = [*(kept.notes if offer else ()), *trial.notes]
    else:
        trial.measure(offer)
        found = asdict(tested) if kept is None else asdict(kept)
        fresh = {"seconds": trial.seconds, "tried": tried, "notes": tuple(trial.notes)}
        remember(bundle, entry, single.info, KeptTest(**(found | fresh)))
    return Warm(trial.batched(), tested, recording.first_s * 1e3, tuple(trial.notes))


class _BatchTrial:
    """Batch sizes of one artifact, tried with its first golden example.

    seconds: of a run of each size in use.
    """

    def __init__(
        self, bundle: Bundle, entry: ArtifactEntry, single: Engine, given: list[NDArray[Any]], load: Load, shared: bool
    ) -> None:
        """shared: all sizes run on the engine for a single item."""
        self._bundle, self._entry, self._load = bundle, entry, load
        self._single, self._given = single, given
        self._shared, self._free = shared, entry.inputs[0].free_batch
        self._engines: dict[int, Engine] = {1: single}
        self.seconds: dict[int, float] = {}
        self.notes: list[str] = []

    def batched(self) -> BatchEngine:
        any_size = max(self.seconds) if self._shared and self._free else 1
        return BatchEngine(self._engines, any_size=any_size, seconds=self.seconds)

    def reopen(self, offer: Mapping[int, ArtifactEntry], known: Mapping[int, float]) -> None:
        """Use the sizes that paid at an earlier opening."""

        def answers(size: int, one: ArtifactEntry, engine: Engine) -> bool:
            if not self._shared:
                replay_batch(self._bundle, one, engine, size)
            self.seconds[size] = known[size]
            return True

        for size in sorted(offer.keys() & known.keys()):
            self._try(size, offer[size], answers)

    def measure(self, offer: Mapping[int, ArtifactEntry]) -> None:
        """Use the sizes that pay."""
        disappointed, end = 0, perf_counter() + BOUND_S
        for size, one in sorted(offer.items()):
            if disappointed >= _PATIENCE:
                break
            if perf_counter() + 3 * size * self.seconds[1] >= end:
                self.notes.append(f"batches of {size} and more were not tried: measuring them would take too long")
                break
            disappointed = 0 if self._try(size, one, self._pays) else disappointed + 1

    def _try(self, size: int, one: ArtifactEntry, check: Callable[[int, ArtifactEntry, Engine], bool]) -> bool:
        """Load the engine of a size, and use it if `check` says so; else close it."""
        engine, used = self._single, False
        try:
            if not self._shared:
                engine = self._load(one, size)
            used = check(size, one, engine)
        except EdgekitError as error:
            self.notes.append(f"no variant for batches of {size}: {error}")
        finally:
            if used and not (self._shared and self._free):
                self._engines[size] = engine
            elif engine is not self._single:
                engine.close()
        return used

    def _pays(self, size: int, one: ArtifactEntry, engine: Engine) -> bool:
        """Raises EngineError, SelfTestError if a batch gives an item another answer."""
        if one is self._entry and not self._free:
            check_same_rows(self._bundle, self._entry, self._single, engine, size)
        else:
            replay_batch(self._bundle, one, engine, size)
        single_s, joined = self.seconds[1], [np.repeat(tensor, size, axis=0) for tensor in self._given]
        takes_s = _batch_seconds(engine, self._given if self._shared else None, joined, single_s)
        takes_s *= single_s / _seconds(lambda: self._single.run(self._given))  # others slow both alike
        before_s = sum(self.seconds[part] for part in least_time(size, {1: single_s} if self._shared else self.seconds))
        if takes_s > (1 - LEAST_GAIN) * before_s:
            smaller = f"in smaller runs {before_s * 1e3:.3g} ms"
            self.notes.append(f"batches of {size} do not pay: {takes_s * 1e3:.3g} ms, {smaller}")
            return False
        self.seconds[size] = takes_s
        return True


def _known(kept: KeptTest | None, offer: Mapping[int, ArtifactEntry], took_s: float) -> dict[int, float]:
    """Batch size -> seconds, by an earlier opening; empty if they must be measured."""
    if kept is None or not offer.keys() <= {*kept.tried}:
        return {}
    sound = all(0 < seconds < _LONGEST_S for seconds in kept.seconds.values())
    return kept.seconds if sound and 0 < kept.seconds.get(1, 0.0) <= took_s else {}


def _batch_seconds(
    engine: Engine, single: Sequence[NDArray[Any]] | None, joined: list[NDArray[Any]], single_s: float
) -> float:
    """Seconds of a batch.
    single: an item of the same engine, to count the change of size before and after the batch; None for a variant."""
    if single is None:
        return _seconds(lambda: engine.run(joined))

    def both() -> None:
        engine.run(single)
        engine.run(joined)

    return max(_seconds(both) - single_s, single_s)


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

"""The trial itself: load each candidate, replay its golden examples, time it against the best so far.

It runs in a child process, so that a candidate that crashes is a reason and not the application's end, and what the losers
loaded is gone with it. When the time is over no inference is begun that is not needed to name a winner: a slow model's other
examples are replayed by who opens it. One line of JSON a fact, as soon as it is known:

    {"enter": 0}                       from here to the next line, candidate 0 is to blame for a crash
    {"ran": 0}                         it goes on, for who might think that it hangs
    {"entered": 0, "p50_ms": ...}      it passed its self-test
    {"refused": 1, "error": {...}}     it did not
    {"champion": 0, "tried": [...]}    the end
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.board import private_mb
from edgekit_runtime.bundle import ArtifactEntry, Bundle
from edgekit_runtime.engines import Engine, load_with
from edgekit_runtime.engines.recording import Recording
from edgekit_runtime.engines.registry import import_engine
from edgekit_runtime.errors import EdgekitError, EngineError
from edgekit_runtime.jobs import Say, bundle_of, serve
from edgekit_runtime.modelfile import check_artifact
from edgekit_runtime.rlimits import limit_this_process
from edgekit_runtime.selftest import check_same_bits, replay
from edgekit_runtime.tuning.candidates import Candidate
from edgekit_runtime.tuning.race import HOPELESS, Duel, Enter, Race, Step

__all__ = ["Trial"]
_MOST_RUNS = 400
_TELL_EVERY_S = 1.0
_SMALL_BYTES = 16_000_000
"""Beside a larger file an engine's library is little, and loading it twice would take long."""


@dataclass
class _Runner:
    """A loaded candidate, with inputs to run it on, and every time it took (seconds)."""

    engine: Engine
    inputs: list[NDArray[Any]]
    seconds: list[float] = field(default_factory=list)

    def block(self, block_s: float) -> float:
        """Run for about block_s, once at least; the median of one run."""
        taken: list[float] = []
        end = perf_counter() + block_s
        while len(taken) < _MOST_RUNS:
            start = perf_counter()
            self.engine.run(self.inputs)
            now = perf_counter()
            taken.append(now - start)
            if now >= end:
                break
        self.seconds += taken
        return statistics.median(taken)


class Trial:
    """bundle: what is to run. candidates: most promising first. say: gets every fact as it becomes known.

    clock: seconds, for the bound on all of it; how long an inference takes is always read from the real one.
    """

    def __init__(
        self, bundle: Bundle, candidates: Sequence[Candidate], say: Say, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._bundle = bundle
        self._candidates = candidates
        self._say = say
        self._clock = clock
        self._loaded: dict[int, _Runner] = {}
        self._times: dict[int, list[float]] = {}
        self._end = math.inf
        self._settled: set[str] = set()

    def run(self, bound_s: float) -> None:
        """All of it, within about bound_s: an inference that runs then is not cut short."""
        start = self._clock()
        self._end = start + bound_s
        race = Race(len(self._candidates), bound_s)
        while (step := race.next(self._clock() - start)) is not None:
            self._do(step, race)
        for number in list(self._loaded):
            self._free(number)
        tried = [
            {
                "number": number,
                "p50_ms": statistics.median(times) * 1e3,
                "runs": len(times),
                "ratio": race.ratios.get(number),
            }
            for number, times in self._times.items()
        ]
        self._say({"champion": race.champion, "tried": tried, "seconds": self._clock() - start})

    def _do(self, step: Step, race: Race) -> None:
        if isinstance(step, Duel):
            champion, challenger = self._loaded[step.champion], self._loaded[step.challenger]
            race.dueled(champion.block(step.block_s), challenger.block(step.block_s))
        elif isinstance(step, Enter):
            self._enter(step.candidate, race)
        else:
            self._free(step.candidate)

    def _enter(self, number: int, race: Race) -> None:
        self._say({"enter": number})
        champion = None if race.champion is None else statistics.median(self._times[race.champion])
        try:
            runner, facts = self._load(number, champion)
        except MemoryError:
            race.refused(number)
            told = EngineError("it takes more memory than a model of its size may", where=str(self._bundle.path))
            self._say({"refused": number, "error": told.as_json()})
            return
        except EdgekitError as error:
            race.refused(number)
            self._say({"refused": number, "error": error.as_json()})
            return
        self._loaded[number] = runner
        self._times[number] = runner.seconds
        race.entered(number, min(runner.seconds), champion)
        self._say({"entered": number, **facts})

    def _load(self, number: int, champion_s: float | None) -> tuple[_Runner, dict[str, Any]]:
        """Raises EngineError, SelfTestError, ModelFileError, MissingExtraError, TooSlow."""
        candidate = self._candidates[number]
        entry = _entry(self._bundle, candidate.blob)
        with contextlib.suppress(ImportError):  # what the import takes is not the model's; loading says what is missing
            import_engine(candidate.engine)
        check_artifact(self._bundle, entry)
        self._settle_library(candidate, entry)
        _give_back()
        before, start = private_mb(), perf_counter()
        engine = load_with(candidate.engine, entry.format, self._bundle.blob(entry.blob), candidate.setup)
        loaded = perf_counter()
        recording = _Impatient(engine, champion_s, lambda: self._say({"ran": number}))
        try:
            replay(self._bundle, entry, recording, lambda: self._clock() > self._end)
        except BaseException:
            engine.close()
            raise
        runner = _Runner(engine, recording.given)
        if self._clock() > self._end:
            p50_s = recording.last_s
            runner.seconds.append(p50_s)
        else:
            p50_s = runner.block(0.005)
        after = private_mb()
        if engine.info.arithmetic != "exact":
            self._compare_with_exact(candidate, entry, engine)
        held = sum(one.bytes for one in self._bundle.manifest.artifacts) / 1e6  # a bundle that is open is in memory
        memory = None if before is None or after is None else max(after - before, 0.0) + held
        return runner, {
            "load_ms": (loaded - start) * 1e3,
            "first_ms": recording.first_s * 1e3,
            "p50_ms": p50_s * 1e3,
            "memory_mb": memory,
        }

    def _compare_with_exact(self, candidate: Candidate, entry: ArtifactEntry, engine: Engine) -> None:
        """All golden inputs, however little time is left. Closes the engine and raises SelfTestError where it saturates."""
        exact = replace(candidate.setup, kernels="default")
        try:
            with load_with(candidate.engine, entry.format, self._bundle.blob(entry.blob), exact) as reference:
                check_same_bits(self._bundle, entry, engine, reference)
        except BaseException:
            engine.close()
            raise

    def _settle_library(self, candidate: Candidate, entry: ArtifactEntry) -> None:
        """Load a small file once for nothing: what an engine's library takes at its first use is not the model's."""
        if candidate.engine not in self._settled and entry.bytes <= _SMALL_BYTES:
            data = self._bundle.blob(entry.blob)
            load_with(candidate.engine, entry.format, data, candidate.setup).close()
        self._settled.add(candidate.engine)

    def _free(self, number: int) -> None:
        self._loaded.pop(number).engine.close()


class TooSlow(EdgekitError):  # noqa: N818 - what it is, not that something went wrong
    """A candidate so far behind that its golden examples are not worth the wait."""

    code = "slow"


class _Impatient(Recording):
    """Gives up when the second and the third run both take HOPELESS times what the best one does.

    tell: called after a run, now and then.
    """

    def __init__(self, engine: Engine, champion_s: float | None, tell: Callable[[], object] = lambda: None) -> None:
        super().__init__(engine)
        self._champion_s = champion_s
        self._tell, self._told = tell, perf_counter()
        self._taken: list[float] = []

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        later = bool(self.given)
        outputs = super().run(inputs)
        if perf_counter() - self._told > _TELL_EVERY_S:
            self._told = perf_counter()
            self._tell()
        if not later or self._champion_s is None or len(self._taken) == 2:
            return outputs
        self._taken.append(self.last_s)
        if min(self._taken) > HOPELESS * self._champion_s and len(self._taken) == 2:
            raise TooSlow(f"a run takes {min(self._taken) * 1e3:.3g} ms, the best {self._champion_s * 1e3:.3g} ms")
        return outputs


def _give_back() -> None:
    """What earlier candidates left free goes back to the system, so that the next one is not measured as taking nothing."""
    import ctypes
    import gc

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def _entry(bundle: Bundle, blob: str) -> ArtifactEntry:
    return next(entry for entry in bundle.manifest.artifacts if entry.blob == blob)


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    bundle = bundle_of(job)
    offer = [Candidate(**one) for one in job["candidates"]]
    together = sum(one.bytes for one in bundle.manifest.artifacts)
    limit_this_process(together, max(one.threads for one in offer))
    Trial(bundle, offer, say).run(job["bound_s"])
    return {}


if __name__ == "__main__":
    sys.exit(serve(work))

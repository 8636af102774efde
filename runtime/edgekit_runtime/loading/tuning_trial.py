"""The trial, in a child process: load each candidate, replay its golden examples, race it.

One line of JSON a fact, as soon as it is known:

    {"enter": 0}                       from here to the next line, candidate 0 is to blame for a crash
    {"ran": 0}                         it is alive: slow and not hung
    {"entered": 0, "p50_ms": ...}      it passed its self-test
    {"refused": 1, "error": {...}}     it did not
    {"champion": 0, "tried": [...]}    the end

Rules:
- the first candidate that passes its self-test is the champion; the others challenge it one after another, so that at
  most two are in memory;
- both run in turn within a round, and only ratios count, of medians and of p99: a busy processor slows both;
- processor time is measured alone, some requests with a pause behind each: threads may spin in it;
- clear losers and winners leave after two or three rounds, close ones after MANY runs, contradictory ones after twice
  as many, and all when the duel's share of the time is over;
- a challenger must be faster by more than the noise. One that may be a tenth faster leaves the race unsettled;
- when the bound is over no other candidate enters, and no inference is begun that is not needed to name a winner.
  Building, loading and warming an engine of a GPU does not count;
- fast 8-bit sums are admitted only if they give the very bits of the exact ones.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time, sleep
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.bundle.jobs import Say, bundle_of, serve
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.registry import Engine, import_engine, load_with
from edgekit_runtime.engines.variants import RecordingEngine
from edgekit_runtime.loading.candidates import TuningCandidate
from edgekit_runtime.loading.election import LEAST_GAIN, p99, tail_ratio
from edgekit_runtime.loading.replay import check_same_bits, replay
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.board import private_mb
from edgekit_runtime.system.children import limit_this_process
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.memory import scarce

ROUNDS = 7
HOPELESS = 4.0
"""A candidate that takes this many times as long does not get a round."""
MANY = 300
"""Runs of each in a close duel, as far as time allows: so many show a tail of some per cent."""
PAUSE_S = 0.01
"""Behind a request whose processor time is measured."""
_CLEAR = 0.15
_FEWEST = 3


@dataclass(frozen=True)
class Enter:
    """Load the candidate, replay its golden examples, time a few runs; `add` it if it passed."""

    candidate: int


@dataclass(frozen=True)
class Duel:
    """Run both in turn, each for about `block_s`; then `record_round`."""

    champion: int
    challenger: int
    block_s: float


@dataclass(frozen=True)
class Leave:
    """Free the candidate."""

    candidate: int


Step = Enter | Duel | Leave


class Race:
    """The order of trials and when to stop, without a clock or an engine.

        while (step := race.next(elapsed_s)) is not None:
            ...                                   # Enter, Duel or Leave
        race.champion

    candidates: how many there are, 0 being the most promising.
    bound_s: seconds for all of it.
    """

    def __init__(self, candidates: int, bound_s: float) -> None:
        self._waiting = deque(range(candidates))
        self._bound_s = bound_s
        self._block_s = min(0.02, max(0.002, bound_s / max(1, candidates) / (2 * ROUNDS) / 2))
        self._challenger: int | None = None
        self._entered_s = self._until_s = 0.0
        self._loads_s: list[float] = []
        self._ratios: list[float] = []
        self._runs: tuple[list[float], list[float]] = ([], [])  # the champion's and the challenger's in this duel
        self._leaving: deque[int] = deque()
        self._costs: dict[int, float] = {}  # by the time of the first champion
        self._tails: dict[int, float] = {}  # by its p99
        self.champion: int | None = None
        self.settled = True

    def next(self, elapsed_s: float) -> Step | None:
        """The next step; None at the end."""
        late = elapsed_s >= self._bound_s
        if self._challenger is not None and (late or self._is_decided(elapsed_s)):
            self._settle()
        if self._leaving:
            return Leave(self._leaving.popleft())
        if self._challenger is not None:
            assert self.champion is not None
            if not self._ratios:  # those that wait have to be loaded, too
                self._loads_s.append(elapsed_s - self._entered_s)
                waiting = len(self._waiting)
                left_s = self._bound_s - elapsed_s - waiting * statistics.mean(self._loads_s)
                self._until_s = elapsed_s + max(0.0, left_s) / (waiting + 1)
            return Duel(self.champion, self._challenger, self._block_s)
        if self._waiting and (self.champion is None or not late):
            self._entered_s = elapsed_s
            return Enter(self._waiting.popleft())
        return None

    def add(self, candidate: int, seconds: float, champion_s: float | None = None) -> None:
        """The candidate passed.

        seconds: of one run.
        champion_s: the champion's time before it; a hopeless candidate does not duel.
        """
        if self.champion is None:
            self.champion, self._costs[candidate], self._tails[candidate] = candidate, 1.0, 1.0
            return
        if champion_s is not None and seconds > HOPELESS * champion_s:
            self._leaving.append(candidate)
            return
        self._challenger, self._ratios, self._runs = candidate, [], ([], [])

    def record_round(self, champion_s: Sequence[float], challenger_s: Sequence[float]) -> None:
        """The runs of one round, in seconds."""
        self._ratios.append(statistics.median(challenger_s) / max(statistics.median(champion_s), 1e-9))
        for runs, more in zip(self._runs, (champion_s, challenger_s), strict=True):
            runs.extend(more)

    @property
    def ratios(self) -> dict[int, tuple[float, float]]:
        """Candidate -> its p50 and p99 by the champion's; without those that ran no round."""
        if self.champion is None:
            return {}
        p50, tail = self._costs[self.champion], self._tails[self.champion]
        return {one: (cost / p50, self._tails[one] / tail) for one, cost in self._costs.items()}

    def _range(self) -> tuple[float, float]:
        """Range of the median of all such rounds, with about 90 % (order statistics)."""
        ordered = sorted(self._ratios or [0.0, math.inf])
        outer = (len(ordered) - 1) // 6
        return ordered[outer], ordered[-1 - outer]

    def _is_decided(self, elapsed_s: float) -> bool:
        rounds, (low, high) = len(self._ratios), self._range()
        if rounds < _FEWEST:
            return rounds == 2 and low > 2
        clear = (low > 1 or high < 1) and abs(statistics.median(self._ratios) - 1) > _CLEAR
        enough = rounds >= ROUNDS and min(map(len, self._runs)) >= (2 * MANY if self._is_open() else MANY)
        return clear or enough or elapsed_s >= self._until_s

    def _is_open(self) -> bool:
        """Whether the challenger may be clearly faster, without being certain to be."""
        low, high = self._range()
        return low < 1 - 2 * LEAST_GAIN and not high < 1

    def _settle(self) -> None:
        assert self._challenger is not None
        assert self.champion is not None
        challenger, self._challenger = self._challenger, None
        few = len(self._ratios) < _FEWEST
        self.settled = self.settled and not (self._range()[0] < 1 if few else self._is_open())
        if self._ratios:
            ratio = statistics.median(self._ratios)
            self._costs[challenger] = ratio * self._costs[self.champion]
            self._tails[challenger] = tail_ratio(*self._runs) * self._tails[self.champion]
            if ratio < 1 - LEAST_GAIN and not few and self._range()[1] < 1:
                challenger, self.champion = self.champion, challenger
        self._leaving.append(challenger)


_MOST_RUNS = 400
_TELL_EVERY_S = 1.0
_SMALL_BYTES = 16_000_000
"""Up to this size a file is loaded twice, to tell its memory from the engine library's."""


@dataclass
class _Runner:
    """A loaded candidate, inputs to run it on, and the seconds of all its runs."""

    engine: Engine
    inputs: list[NDArray[Any]]
    seconds: list[float] = field(default_factory=list)

    def block(self, block_s: float) -> list[float]:
        """Run for about block_s, at least once; the seconds of each run."""
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
        return taken

    def processor_s(self, enough_s: float = 0.05) -> float:
        """Processor time of a request and of the pause behind it; tried for about enough_s."""
        sleep(PAUSE_S)  # what the other engine's threads spin is over
        begun, before, runs = perf_counter(), process_time(), 0
        while not runs or perf_counter() - begun < enough_s:
            self.engine.run(self.inputs)
            sleep(PAUSE_S)
            runs += 1
        return (process_time() - before) / runs


class Trial:
    """candidates: most promising first.
    say: gets every fact as it becomes known.
    clock: seconds, for the bound alone; inferences are timed by the real clock.
    """

    def __init__(
        self, bundle: Bundle, candidates: Sequence[TuningCandidate], say: Say, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._bundle = bundle
        self._candidates = candidates
        self._say = say
        self._clock = clock
        self._loaded: dict[int, _Runner] = {}
        self._times: dict[int, list[float]] = {}
        self._end = math.inf
        self._excused_s = 0.0
        self._settled: set[str] = set()

    def run(self, bound_s: float) -> None:
        """All of it, within about bound_s: a running inference is not cut short."""
        start = self._clock()
        self._end = start + bound_s
        race = Race(len(self._candidates), bound_s)
        while (step := race.next(self._clock() - start - self._excused_s)) is not None:
            if isinstance(step, Duel):
                champion, challenger = self._loaded[step.champion], self._loaded[step.challenger]
                race.record_round(champion.block(step.block_s), challenger.block(step.block_s))
            elif isinstance(step, Enter):
                self._enter(step.candidate, race)
            else:
                self._free(step.candidate)
        for number in list(self._loaded):
            self._free(number)
        ratios = race.ratios
        best = [1.0] if race.champion is None else self._times[race.champion]
        p50_ms, p99_ms = statistics.median(best) * 1e3, p99(best) * 1e3
        tried = []
        for number, times in self._times.items():
            found: dict[str, Any] = {"number": number, "runs": len(times)}
            if number in ratios:
                ratio, tail = ratios[number]
                found |= {"p50_ms": p50_ms * ratio, "p99_ms": max(p50_ms * ratio, p99_ms * tail), "ratio": ratio}
            tried.append(found)
        seconds = self._clock() - start
        self._say({"champion": race.champion, "settled": race.settled, "tried": tried, "seconds": seconds})

    def _enter(self, number: int, race: Race) -> None:
        self._say({"enter": number})
        champion = None if race.champion is None else statistics.median(self._times[race.champion])
        begun, excused = self._clock(), self._excused_s
        try:
            with scarce(self._bundle.path):
                runner, facts = self._load(number, champion)
        except EdgekitError as error:
            if self._candidates[number].on_gpu:
                self._excuse(begun + self._excused_s - excused)  # what of it was not yet
            self._say({"refused": number, "error": error.as_json()})
            return
        self._loaded[number] = runner
        self._times[number] = runner.seconds
        race.add(number, min(runner.seconds), champion)
        self._say({"entered": number, **facts})

    def _load(self, number: int, champion_s: float | None) -> tuple[_Runner, dict[str, Any]]:
        """Raises EngineError, SelfTestError, ModelFileError, MissingExtraError, TooSlow."""
        candidate = self._candidates[number]
        entry = next(one for one in self._bundle.manifest.artifacts if one.blob == candidate.blob)
        setup, entered = replace(candidate.setup, keep=self._bundle.secret is None), self._clock()
        with contextlib.suppress(ImportError):  # what the import takes is not the model's; loading says what is missing
            import_engine(candidate.engine)
        check_artifact(self._bundle, entry)
        if candidate.engine not in self._settled and entry.bytes <= _SMALL_BYTES and not candidate.on_gpu:
            # once for nothing: what an engine's library takes at its first use is not the model's
            load_with(candidate.engine, entry.format, self._bundle.blob(entry.blob), setup).close()
        self._settled.add(candidate.engine)
        _give_back()
        before, start = private_mb(), perf_counter()
        engine = load_with(candidate.engine, entry.format, self._bundle.blob(entry.blob), setup)
        with contextlib.ExitStack() as undo:
            undo.callback(engine.close)
            loaded = perf_counter()
            if candidate.on_gpu:
                self._excuse(entered)
                entered = self._clock()
            recording = _EarlyStopEngine(engine, champion_s, lambda: self._say({"ran": number}))
            agreed = replay(self._bundle, entry, recording, lambda: self._clock() > self._end)
            if candidate.on_gpu:  # at its first runs a library compiles
                self._excuse(entered)
            runner, cpu_s = _Runner(engine, recording.given), None
            if self._clock() > self._end:
                p50_s = recording.last_s
                runner.seconds.append(p50_s)
            else:
                p50_s, cpu_s = statistics.median(runner.block(0.005)), runner.processor_s()
            after = private_mb()
            if engine.info.arithmetic != "exact":
                exact = replace(setup, kernels="default")  # all golden inputs, however little time is left
                with load_with(candidate.engine, entry.format, self._bundle.blob(entry.blob), exact) as reference:
                    check_same_bits(self._bundle, entry, engine, reference)
            undo.pop_all()
        held = sum(one.bytes for one in self._bundle.manifest.artifacts) / 1e6  # a bundle that is open is in memory
        memory = None if before is None or after is None else max(after - before, 0.0) + held
        return runner, {
            "load_ms": (loaded - start) * 1e3,
            "first_ms": recording.first_s * 1e3,
            "p50_ms": p50_s * 1e3,
            "memory_mb": memory,
            "cpu_ms": None if cpu_s is None else cpu_s * 1e3,
            "cosine": agreed.worst_cosine,
        }

    def _excuse(self, since: float) -> None:
        """The time since then counts for no candidate."""
        taken = self._clock() - since
        self._excused_s += taken
        self._end += taken

    def _free(self, number: int) -> None:
        self._loaded.pop(number).engine.close()


class TooSlow(EdgekitError):  # noqa: N818 - what it is, not that something went wrong
    """A candidate too slow for its golden examples to be worth the wait."""

    code = "slow"


class _EarlyStopEngine(RecordingEngine):
    """Stops if the second and third run take HOPELESS times as long as the best candidate's.

    on_run: called after a run, at most once per second.
    """

    def __init__(self, engine: Engine, champion_s: float | None, on_run: Callable[[], object] = lambda: None) -> None:
        super().__init__(engine)
        self._champion_s = champion_s
        self._report, self._reported = on_run, perf_counter()
        self._taken: list[float] = []

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        later = bool(self.given)
        outputs = super().run(inputs)
        if perf_counter() - self._reported > _TELL_EVERY_S:
            self._reported = perf_counter()
            self._report()
        if not later or self._champion_s is None or len(self._taken) == 2:
            return outputs
        self._taken.append(self.last_s)
        if min(self._taken) > HOPELESS * self._champion_s and len(self._taken) == 2:
            raise TooSlow(f"a run takes {min(self._taken) * 1e3:.3g} ms, the best {self._champion_s * 1e3:.3g} ms")
        return outputs


def _give_back() -> None:
    """Return freed memory to the system, or the next candidate would seem to take none."""
    import ctypes
    import gc

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    bundle = bundle_of(job)
    offer = [TuningCandidate(**one) for one in job["candidates"]]
    together = sum(one.bytes for one in bundle.manifest.artifacts)
    limit_this_process(together, max(one.threads for one in offer), gpu=any(one.on_gpu for one in offer))
    Trial(bundle, offer, say).run(job["bound_s"])
    return {}


if __name__ == "__main__":
    sys.exit(serve(work))

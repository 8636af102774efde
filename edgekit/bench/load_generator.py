"""Load on a model: callers in a closed loop, or arrivals at their own rate.

    outcome = ask(model, items, Load(concurrency=8, requests=1000))        # closed loop
    outcome = ask(model, items, Load(rate=200.0, duration_s=10.0))         # open loop

Rules:
- a latency is by the caller's clock; in the open loop it counts from the moment at which the request was due, so that a
  stalled model is charged for every request that was due meanwhile;
- the seed alone decides arrivals;
- a request without an answer has no latency: it is counted by its error, or as refused for its budget;
- each caller has a session of its own if the model keeps a state;
- an interruption ends every caller after its request;
- stages of at most MOST_TIMINGS answers are kept, evenly spread.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.progress import Progress, silent
from edgekit_runtime.system.errors import BudgetExceeded, EdgekitError

if TYPE_CHECKING:
    from edgekit_runtime import Answer, Model
    from edgekit_runtime.serving.session import Session

    Sender = Model | Session

MOST_TIMINGS = 4096
_END_S = 1.0
"""How long callers may take to end after an interruption; closing the model fails the rest."""
Item = Mapping[str, NDArray[Any]]


class LoadError(EdgekitError):
    """This machine cannot make so many callers."""

    code = "bench-load"


@dataclass(frozen=True)
class Load:
    """concurrency: callers of the closed loop
    rate: requests a second; if given, the loop is open
    requests, duration_s: the end, whichever comes first
    least_s: least duration, whatever `requests` is
    budget_ms: of every request
    """

    concurrency: int = 1
    rate: float | None = None
    arrivals: Literal["poisson", "fixed"] = "poisson"
    requests: int | None = 200
    duration_s: float | None = None
    least_s: float = 0.0
    budget_ms: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests is None and self.duration_s is None:
            raise ValueError("a load needs an end: requests or duration_s")
        if self.concurrency < 1 or (self.rate is not None and not 0 < self.rate < math.inf):
            raise ValueError("concurrency must be at least 1 and rate more than 0")


@dataclass
class LoadOutcome:
    """The answers of a run.

    latencies_ms, ended_s: of every answer, in order; ended_s counts from the first request
    sources, met, missed: of the answers
    refused, errors: of requests without an answer
    timings: `Answer.timings` of some answers
    late_ms: by how much the requests of an open loop were sent too late
    """

    seconds: float = 0.0
    latencies_ms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ended_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    sources: Counter[str] = field(default_factory=Counter)
    met: int = 0
    missed: int = 0
    refused: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    timings: list[Mapping[str, float]] = field(default_factory=list)
    late_ms: NDArray[np.float64] | None = None


def ask(model: Model, items: Sequence[Item], load: Load, progress: Progress = silent) -> LoadOutcome:
    """Request one item after another, over and over, until the load ends."""
    ended = _RequestNumbers(load, progress)
    return _open_loop(model, items, load, ended) if load.rate is not None else _closed_loop(model, items, load, ended)


def _sender_of(model: Model) -> Sender:
    return model if model.contract.state == "none" else model.session()


class _RequestNumbers:
    """Numbers requests until the load ends, and reports progress."""

    def __init__(self, load: Load, progress: Progress) -> None:
        self._most, self._seconds, self._progress = load.requests, load.duration_s, progress
        self._least_s = load.least_s
        self._numbers = itertools.count()  # `next` on it is atomic
        self.began = self._reported = time.perf_counter()
        self._reporting = threading.Lock()

    def begin(self) -> float:
        self._report(0, 0.0)
        self.began = self._reported = time.perf_counter()
        return self.began

    def number(self, at_s: float | None = None) -> int | None:
        """The next request's, or None at the end. at_s: when it is due, of an open loop."""
        number = next(self._numbers)
        now = time.perf_counter()
        spent_s = now - self.began if at_s is None else at_s
        if self._most is not None and number >= self._most and spent_s >= self._least_s:
            return None
        if self._seconds is not None and spent_s >= self._seconds:
            return None
        # Rarely, because drawing costs more than a small network
        if now - self._reported >= 0.2 and self._reporting.acquire(blocking=False):
            self._reported = now
            self._report(number, now - self.began)
            self._reporting.release()
        return number

    def _report(self, number: int, seconds: float) -> None:
        if self._most is not None:
            self._progress("timing", min(number, self._most - 1), self._most)
        elif self._seconds is not None:
            self._progress("timing, seconds", int(seconds), math.ceil(self._seconds))

    def finish(self) -> None:
        if self._most is not None:
            self._progress("timing", self._most, self._most)


class _CallerTally:
    """One caller's answers and errors."""

    def __init__(self, most_timings: int) -> None:
        self.latencies_ms, self.ended_s = array("d"), array("d")
        self.sources: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.met = self.missed = self.refused = 0
        self.timings: list[Mapping[str, float]] = []
        self._most, self._every = most_timings, 1

    def answered(self, answer: Answer, latency_s: float, ended_s: float) -> None:
        if len(self.latencies_ms) % self._every == 0:
            self.timings.append(answer.timings)
            if len(self.timings) >= self._most:  # keep every second one, and from now on half as many
                del self.timings[1::2]
                self._every *= 2
        self.latencies_ms.append(latency_s * 1e3)
        self.ended_s.append(ended_s)
        self.sources[answer.source] += 1
        self.met += answer.met_budget is True
        self.missed += answer.met_budget is False

    def failed(self, error: BaseException) -> None:
        """Count an error of a request; raise any other."""
        if isinstance(error, BudgetExceeded):
            self.refused += 1
        elif isinstance(error, EdgekitError):
            self.errors[error.code] += 1
        else:
            raise error


def _closed_loop(model: Model, items: Sequence[Item], load: Load, ended: _RequestNumbers) -> LoadOutcome:
    tallies = [_CallerTally(max(64, MOST_TIMINGS // load.concurrency)) for _ in range(load.concurrency)]
    faults: list[BaseException] = []
    askers = [_sender_of(model) for _ in tallies]

    def caller(sender: Sender, tally: _CallerTally) -> None:
        try:
            while not faults and (number := ended.number()) is not None:
                item, start = items[number % len(items)], time.perf_counter()
                try:
                    answer = sender.predict(item, budget_ms=load.budget_ms)
                except EdgekitError as error:
                    tally.failed(error)
                    continue
                now = time.perf_counter()
                tally.answered(answer, now - start, now - ended.began)
        except BaseException as fault:  # noqa: BLE001 - raised below, by the calling thread
            faults.append(fault)

    if load.concurrency == 1:
        ended.begin()
        caller(askers[0], tallies[0])
    else:
        _run_threads([functools.partial(caller, *pair) for pair in zip(askers, tallies, strict=True)], ended, faults)
    if faults:
        raise faults[0]
    seconds = time.perf_counter() - ended.began
    ended.finish()
    return _merge(tallies, seconds)


def _run_threads(callers: Sequence[Callable[[], None]], ended: _RequestNumbers, faults: list[BaseException]) -> None:
    """Run a thread each until all have ended; requests begin when the last one has started.

    A fault ends every caller.
    """
    all_started = threading.Event()

    def run(caller: Callable[[], None]) -> None:
        all_started.wait()
        caller()

    threads = [threading.Thread(target=run, args=(caller,), daemon=True) for caller in callers]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        ended.begin()
        all_started.set()
        for thread in threads:
            thread.join()
    except RuntimeError as error:  # "can't start new thread": too little memory or too many of them
        faults.append(
            LoadError(
                f"only {len(started)} of {len(threads)} callers could be started ({error})",
                do="Use a lower --concurrency, or allow this process more memory and threads",
            )
        )
    except BaseException as error:
        faults.append(error)
        raise
    finally:
        all_started.set()
        end = time.monotonic() + _END_S
        for thread in started:
            thread.join(max(0.0, end - time.monotonic()))


def _open_loop(model: Model, items: Sequence[Item], load: Load, ended: _RequestNumbers) -> LoadOutcome:
    flight, late, sender = _Flight(), array("d"), _sender_of(model)
    began = ended.begin()
    for offset in arrivals(load):
        if flight.faults or ended.number(offset) is None:
            break
        intended = began + offset
        while (left := intended - time.perf_counter()) > 0:
            time.sleep(left)
        late.append((time.perf_counter() - intended) * 1e3)
        try:
            future = sender.submit(items[len(late) % len(items)], budget_ms=load.budget_ms)
        except Exception as error:  # noqa: BLE001 - counted, or raised below
            flight.refused(error)
            continue
        flight.took_off(future, intended, began)
    flight.wait()
    seconds = time.perf_counter() - began
    ended.finish()
    outcome = _merge([flight.tally], seconds)
    outcome.late_ms = np.frombuffer(late) if late else np.zeros(0)
    return outcome


class _Flight:
    """Requests of an open loop that have no answer yet, and the tally of the others."""

    def __init__(self) -> None:
        self.tally = _CallerTally(MOST_TIMINGS)
        self.faults: list[BaseException] = []
        self._changed = threading.Condition()
        self._out = 0

    def took_off(self, future: Future[Answer], intended: float, began: float) -> None:
        def landed(done: Future[Answer]) -> None:
            now = time.perf_counter()
            with self._changed:
                error = done.exception()
                if error is None:
                    self.tally.answered(done.result(), now - intended, now - began)
                else:
                    self._count(error)
                self._out -= 1
                self._changed.notify_all()

        with self._changed:
            self._out += 1
        future.add_done_callback(landed)

    def refused(self, error: BaseException) -> None:
        with self._changed:
            self._count(error)

    def _count(self, error: BaseException) -> None:
        try:
            self.tally.failed(error)
        except BaseException as fault:  # noqa: BLE001 - raised by `wait`
            self.faults.append(fault)

    def wait(self) -> None:
        """Wait for every answer. Raises faults."""
        with self._changed:
            self._changed.wait_for(lambda: not self._out)
        if self.faults:
            raise self.faults[0]


def arrivals(load: Load) -> Iterator[float]:
    """Start times of requests, in seconds: evenly spaced, or with exponential gaps."""
    assert load.rate is not None
    draw: Callable[[], float] = random.Random(load.seed).random
    at = 0.0
    for _ in itertools.count():
        if load.duration_s is not None and at >= load.duration_s:
            return
        yield at
        at += (-math.log(1.0 - draw()) if load.arrivals == "poisson" else 1.0) / load.rate


def _merge(tallies: Sequence[_CallerTally], seconds: float) -> LoadOutcome:
    outcome = LoadOutcome(seconds)
    latencies = np.concatenate([np.frombuffer(t.latencies_ms) if t.latencies_ms else np.zeros(0) for t in tallies])
    ended = np.concatenate([np.frombuffer(t.ended_s) if t.ended_s else np.zeros(0) for t in tallies])
    order = np.argsort(ended, kind="stable")
    outcome.latencies_ms, outcome.ended_s = latencies[order], ended[order]
    for tally in tallies:
        outcome.sources += tally.sources
        outcome.errors += tally.errors
        outcome.met += tally.met
        outcome.missed += tally.missed
        outcome.refused += tally.refused
        outcome.timings += tally.timings
    return outcome

"""Count every answer: its source, stages and time, and whether it met its budget.

    meter.record("device", 4.2, True, {"decode": 0.4, "queue": 0.0, "engine": 3.6})
    meter.stats().latency_ms.p99                    # since the meter was made
    meter.cut().answers["device"].quantile(0.99)    # since the last cut: what a telemetry window reports
    counts.begin(meter); counts.end(meter)          # a bundle begins to answer, and takes no more requests
    counts.stats()                                  # of all bundles since the model was opened

Rules:
- an answer is counted once, in the window that is open when it is folded. Cutting adds that window to the total;
- `record` only appends. Every PACK_EVERY answers one caller packs them into an array, and every FOLD_EVERY it folds
  the arrays into the histograms. A reader folds first, and misses no answer. Beyond MOST_WAITING a caller waits for it;
- a fault during a fold loses these answers' counts and nothing else: it is noted, and counting continues;
- the log line about a slow p99 is written when no lock is held;
- a bundle's counts are its own, and the sum over all bundles never falls.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping

from edgekit_runtime.system.faults import Faults
from edgekit_runtime.system.records import field, record
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram, Recorded, stages_of
from edgekit_runtime.telemetry.slow import SlowWatch

PACK_EVERY, FOLD_EVERY = 128, 2048
MOST_WAITING = 2 * FOLD_EVERY
_KEPT = 4


@record(frozen=True)
class LatencyStats:
    """Milliseconds from the caller's call to the answer; None before the first."""

    p50: float | None
    p90: float | None
    p99: float | None
    maximum: float | None
    mean: float | None

    @classmethod
    def of(cls, histogram: Histogram) -> LatencyStats:
        if not histogram.count:
            return cls(None, None, None, None, None)
        p50, p90, p99 = (histogram.quantile(q) for q in (0.5, 0.9, 0.99))
        return cls(p50, p90, p99, histogram.maximum, histogram.total / histogram.count)


@record(frozen=True)
class MeterStats:
    """requests: answers and errors together.
    answers: by source.
    errors: by error code.
    met, over_budget: answers within and beyond their caller's budget.
    refused: requests that failed at once because their budget cannot be met.
    latency_ms, device_ms: over all answers, and the device's alone.
    stages_ms: by stage (prepare, queue, infer, finish, network, host), over the answers that went through it.
    clipped_share: of sampled input values, those at the limits of the artifact's 8 bits; None without a sample.
    compared, differed: hosts' answers that the device gave, too, and those of them out of tolerance.
    dropped: a camera's frames that a newer one replaced.
    """

    requests: int
    answers: dict[str, int]
    errors: dict[str, int]
    over_budget: int
    latency_ms: LatencyStats
    device_ms: LatencyStats
    met: int = 0
    refused: int = 0
    stages_ms: dict[str, LatencyStats] = field(default_factory=dict)
    clipped_share: float | None = None
    compared: int = 0
    differed: int = 0
    dropped: int = 0

    @classmethod
    def of(cls, counted: CountedWindow) -> MeterStats:
        whole = counted.latency()
        return cls(
            requests=whole.count + sum(counted.errors.values()),
            answers={source: histogram.count for source, histogram in counted.answers.items()},
            errors=dict(counted.errors),
            latency_ms=LatencyStats.of(whole),
            device_ms=LatencyStats.of(counted.answers.get("device", Histogram())),
            stages_ms={stage: LatencyStats.of(histogram) for stage, histogram in counted.stages.items()},
            clipped_share=counted.clipped / counted.values if counted.values else None,
            dropped=counted.dropped,
            **{name: getattr(counted, name) for name in ("over_budget", "met", "refused", "compared", "differed")},
        )


class Meter:
    """Thread-safe; `record` takes about a microsecond, folding included.

    budget_ms: of callers that give none.
    watch: called with every fold, to log a slow p99.
    faults: where a fault of a fold is noted.
    """

    def __init__(
        self, watch: SlowWatch | None = None, faults: Faults | None = None, budget_ms: float | None = None
    ) -> None:
        self._faults, self._budget_ms = faults or Faults("model"), math.inf if budget_ms is None else budget_ms
        self._waiting: deque[Recorded] = deque()
        self._lock = threading.RLock()  # a signal handler may ask for stats while its own thread folds
        self._folding, self._packed = False, 0
        self._before, self._now = CountedWindow(), CountedWindow()
        # What the watch looks at: not yet in _now, and cut already.
        self._spell, self._spell_cut = CountedWindow(), CountedWindow()
        self._watch = watch
        self._late_ms = watch.late_ms if watch is not None else float("inf")

    def record(
        self,
        source: str,
        total_ms: float,
        met_budget: bool | None,
        timings: Mapping[str, float] | None = None,
        clipped: tuple[int, int, float | None] | None = None,
    ) -> None:
        """Record one answer.

        met_budget: None if the caller gave no budget.
        timings: as `Answer.timings`.
        clipped: input values at the limits of 8 bits, values sampled, a classifier's top score; None if not sampled.
        """
        spent = stages_of(timings or {})
        self.add((source, tuple(spent), (total_ms, *spent.values()), met_budget, clipped))

    def add(self, recorded: Recorded) -> None:
        """As `record`, for a caller that knows the stages."""
        waiting = self._waiting
        waiting.append(recorded)
        if len(waiting) >= PACK_EVERY or recorded[2][0] > self._late_ms:
            self._fold_in_passing()

    def error(self, code: str) -> None:
        """Count one request that got no answer."""
        with self._lock:
            self._now.errors[code] = self._now.errors.get(code, 0) + 1

    def refused(self) -> None:
        """Count one request whose budget could not be met; `error` counts it too."""
        with self._lock:
            self._now.refused += 1

    def compared(self, *, differs: bool) -> None:
        """Count one host's answer that the device gave, too."""
        with self._lock:
            self._now.compared += 1
            self._now.differed += differs

    def dropped(self, frames: int) -> None:
        """Count frames of a camera that a newer one replaced."""
        with self._lock:
            self._now.dropped += frames

    def cut(self) -> CountedWindow:
        """What was counted since the last cut. `stats` keeps counting."""
        with self._lock:
            self._fold()
            if self._watch is not None:
                self._now.add(self._spell)
                self._spell_cut.add(self._spell)
                self._spell = CountedWindow()
            done, self._now = self._now, CountedWindow()
            self._before.add(done)
        self._log_slow()
        return done

    def counted(self) -> CountedWindow:
        """A copy of what was counted since the meter was made."""
        with self._lock:
            self._fold()
            seen = CountedWindow()
            for part in (self._before, self._now, self._spell):
                seen.add(part)
        self._log_slow()
        return seen

    def stats(self) -> MeterStats:
        return MeterStats.of(self.counted())

    def _fold_in_passing(self) -> None:
        """Fold if due, unless another thread does; wait for that one only if too much is pending."""
        n, due = len(self._waiting), self._watch is not None and self._watch.is_due()
        if n < PACK_EVERY and not due:
            return
        if not self._lock.acquire(blocking=n >= MOST_WAITING):
            return
        try:
            self._fold(whole=due)
        finally:
            self._lock.release()
        self._log_slow()

    def _fold(self, *, whole: bool = True) -> None:
        """Count the pending answers, taken one by one: no append interferes. The lock is held.

        whole: into the histograms; else they are packed only, until there are enough.
        """
        if self._folding:
            return
        self._folding = True
        try:
            take = self._waiting.popleft
            recorded = [take() for _ in range(len(self._waiting))]
            counted = self._now if self._watch is None else self._spell
            if recorded:
                counted.add_answers(recorded, self._budget_ms)
                self._packed += len(recorded)
            if not whole and self._packed < FOLD_EVERY:
                return
            self._packed = 0
            counted.settle()
            if self._watch is not None:
                seen = self._spell
                if self._spell_cut.answers:
                    seen = CountedWindow()
                    seen.add(self._spell_cut)
                    seen.add(self._spell)
                if self._watch.observe(seen):  # the spell is over: it counts like anything else
                    self._now.add(self._spell)
                    self._spell, self._spell_cut = CountedWindow(), CountedWindow()
        except Exception as error:  # noqa: BLE001 - answering must not fail because counting does
            self._faults.note("meter", error)
        finally:
            self._folding = False

    def _log_slow(self) -> None:
        if self._watch is not None:
            self._faults.shield("meter", self._watch.write_log)


class Counts:
    """A meter for each bundle, and the sum over all that ever answered. Thread-safe.

    A caller may count its answer just after its bundle was closed: the last few meters are read as they are, and only
    older ones are folded into the sum.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a log handler may ask for stats while a meter writes its line
        self._past = CountedWindow()
        self._meters: list[Meter] = []  # those that answer
        self._ended: deque[Meter] = deque()

    def begin(self, meter: Meter) -> None:
        with self._lock:
            self._meters.append(meter)

    def end(self, meter: Meter) -> None:
        """The bundle is closed; what it still counts is in the sum."""
        with self._lock:
            self._meters.remove(meter)
            self._ended.append(meter)
            if len(self._ended) > _KEPT:
                self._past.add(self._ended.popleft().counted())

    def stats(self) -> MeterStats:
        """Over all bundles."""
        with self._lock:
            whole = CountedWindow()
            whole.add(self._past)
            for meter in (*self._ended, *self._meters):
                whole.add(meter.counted())
        return MeterStats.of(whole)

"""Log a warning when the p99 latency is too high, with the stage that grew most.

    watch = SlowWatch("digits", budget_ms=20.0)
    meter = Meter(watch)
    # WARNING digits: p99 was 61 ms over 812 answers in 5 s, more than twice the budget of 20 ms. Of the stages' p99,
    # that of queue 52 ms after 1.98, grew most (infer 7.91 ms after 7.9). Requests come faster than they can be
    # answered

Rules:
- a spell is some seconds with enough answers for a p99; it is judged once, when it ends;
- a spell is slow when its p99 is more than SLOW_TIMES the budget; growth is against the last spell that was not;
- at most one line a minute, a WARNING of the logger `edgekit_runtime`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from edgekit_runtime.system.records import record
from edgekit_runtime.telemetry.histogram import STAGES, CountedWindow

SLOW_TIMES = 2.0
"""How many budgets a p99 may take before it is logged."""

SPELL_S, SPELL_ANSWERS = 5.0, 100
LONG_SPELL_S, LONG_SPELL_ANSWERS = 60.0, 10
BETWEEN_LINES_S = 60.0

_LOG = logging.getLogger("edgekit_runtime")

_MEANS = {
    "prepare": "Inputs are larger or harder to decode than before",
    "queue": "Requests come faster than they can be answered",
    "infer": "The engine itself became slower: look at temperature, throttling and what else runs here",
    "finish": "Something else takes the processor while answers are made",
    "network": "The way to the host became slower",
    "host": "The host became slower",
}


def is_over(seconds: float, answers: int) -> bool:
    """Whether a spell has enough answers for a p99; few answers need a longer spell."""
    return (seconds >= SPELL_S and answers >= SPELL_ANSWERS) or (
        seconds >= LONG_SPELL_S and answers >= LONG_SPELL_ANSWERS
    )


def p99s(counted: CountedWindow) -> dict[str, float]:
    """Stage -> milliseconds, in the order of a request."""
    found = {stage: counted.stages[stage].quantile(0.99) for stage in STAGES if stage in counted.stages}
    return {stage: p99 for stage, p99 in found.items() if p99 is not None}


@record(frozen=True)
class Slow:
    """A spell that was slow.

    before_ms: None if no spell before it was fast.
    stage: None without timings.
    """

    p99_ms: float
    budget_ms: float
    answers: int
    seconds: float
    stage: str | None
    stages_ms: dict[str, float]
    before_ms: dict[str, float] | None


def judge(now: CountedWindow, before_ms: Mapping[str, float] | None, budget_ms: float, seconds: float) -> Slow | None:
    """Judge a finished spell; None unless its p99 exceeds SLOW_TIMES the budget.

    before_ms: the stages' p99 in the last spell that was not slow. The stage named is the one whose p99 grew most, or
    without it takes most.
    """
    total = now.latency()
    p99 = total.quantile(0.99)
    if p99 is None or p99 <= SLOW_TIMES * budget_ms:
        return None
    stages, before = p99s(now), dict(before_ms) if before_ms is not None else None
    grown = {stage: ms - (before or {}).get(stage, 0.0) for stage, ms in stages.items()}
    stage = max(grown, key=lambda name: grown[name]) if grown else None
    return Slow(p99, budget_ms, total.count, seconds, stage, stages, before)


def sentence(name: str, slow: Slow) -> str:
    """The log line: the p99, the stage with its figures, then the other stages."""
    head = (
        f"{name}: p99 was {slow.p99_ms:.3g} ms over {slow.answers:,} answers in {slow.seconds:.0f} s, "
        f"more than twice the budget of {slow.budget_ms:g} ms"
    )
    if slow.stage is None:
        return head
    verb = "takes most" if slow.before_ms is None else "grew most"
    others = ", ".join(_figure(stage, slow) for stage in slow.stages_ms if stage != slow.stage)
    line = f"{head}. Of the stages' p99, that of {_figure(slow.stage, slow)}, {verb}"
    return f"{line}{f' ({others})' if others else ''}. {_MEANS[slow.stage]}"


def _figure(stage: str, slow: Slow) -> str:
    now = f"{stage} {slow.stages_ms[stage]:.3g} ms"
    before = (slow.before_ms or {}).get(stage)
    return now if before is None else f"{now} after {before:.3g}"


class SlowWatch:
    """The meter calls `observe` under its lock, and `write_log` after it.

    budget_ms: what the bundle or the caller promised.
    """

    def __init__(self, name: str, budget_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not budget_ms > 0:
            raise ValueError(f"budget_ms must be more than 0, not {budget_ms}")
        self._name, self._budget_ms, self._clock = name, budget_ms, clock
        self._began_s = self._seen_s = clock()
        self._fast_ms: dict[str, float] | None = None
        self._said_s = float("-inf")
        self._lines: deque[str] = deque()  # each is taken by one caller of `write_log`, and by no other

    @property
    def late_ms(self) -> float:
        """Latency above which the counts are examined early."""
        return SLOW_TIMES * self._budget_ms

    def is_due(self) -> bool:
        """Whether the last look was at least a second ago."""
        return self._clock() - self._seen_s >= 1.0

    def observe(self, spell: CountedWindow) -> bool:
        """Examine the counts since the last spell. True if the spell is over."""
        now = self._seen_s = self._clock()
        seconds = now - self._began_s
        if not is_over(seconds, sum(histogram.count for histogram in spell.answers.values())):
            return False
        self._began_s = now
        slow = judge(spell, self._fast_ms, self._budget_ms, seconds)
        if slow is None:
            self._fast_ms = p99s(spell)
        elif now - self._said_s >= BETWEEN_LINES_S:
            self._said_s = now
            self._lines.append(sentence(self._name, slow))
        return True

    def write_log(self) -> None:
        """Write pending log lines."""
        while self._lines:
            try:
                line = self._lines.popleft()
            except IndexError:  # another caller has it
                return
            _LOG.warning("%s", line)

"""The log line about a slow p99: when it comes, what it names, and that it comes seldom."""

from __future__ import annotations

import logging
import re

import pytest

from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.slow import SlowWatch, is_over, judge, p99s, sentence


def spell(n=200, **stages: float) -> CountedWindow:
    """n answers that took so many milliseconds in each stage."""
    made = CountedWindow(answers={"device": Histogram()}, stages={stage: Histogram() for stage in stages})
    for _ in range(n):
        made.answers["device"].record(sum(stages.values()))
        for stage, ms in stages.items():
            made.stages[stage].record(ms)
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("now", "before", "named"),
    [
        (spell(queue=50.0, infer=8.0), spell(queue=0.1, infer=8.0), "queue"),
        (spell(queue=0.1, infer=48.0), spell(queue=0.1, infer=8.0), "infer"),
        (spell(prepare=45.0, infer=40.0), spell(prepare=1.0, infer=39.0), "prepare"),
        (spell(network=90.0, host=3.0), spell(infer=10.0), "network"),
        (spell(queue=2.0, infer=48.0), None, "infer"),
        (spell(), spell(infer=8.0), None),
    ],
    ids=["overload", "heat", "larger pictures", "a slow network", "slow from the start", "no answers"],
)
def test_the_stage_that_grew_most_is_named(now, before, named):
    slow = judge(now, p99s(before) if before else None, budget_ms=20.0, seconds=10.0)
    assert (slow.stage if slow else None) == named


def test_twice_the_budget_is_the_bound_and_the_bound_is_not_slow():
    assert judge(spell(infer=40.0), None, 20.0, 10.0) is None
    assert judge(spell(infer=41.5), None, 20.0, 10.0) is not None


def test_the_sentence_has_the_figures_before_and_now():
    slow = judge(spell(queue=50.0, infer=8.0), p99s(spell(queue=0.5, infer=8.0)), 20.0, 10.0)
    assert re.fullmatch(
        r"digits: p99 was 5\d(\.\d)? ms over 200 answers in 10 s, more than twice the budget of 20 ms\. "
        r"Of the stages' p99, that of queue [\d.]+ ms after 0\.\d+, grew most \(infer [\d.]+ ms after [\d.]+\)\. "
        r"Requests come faster than they can be answered",
        sentence("digits", slow),
    )


def test_without_timings_there_is_no_stage_to_name():
    now = spell(n=0)
    now.answers["device"].record(100.0)
    told = sentence("digits", judge(now, None, 20.0, 10.0))
    assert told.endswith("more than twice the budget of 20 ms")


@pytest.mark.parametrize(
    ("seconds", "answers", "over"),
    [(4.9, 1000, False), (5.0, 99, False), (5.0, 100, True), (60.0, 9, False), (60.0, 10, True)],
)
def test_a_spell_ends_when_its_p99_means_something(seconds, answers, over):
    assert is_over(seconds, answers) is over


def test_telemetry_that_cuts_often_does_not_hide_what_is_slow(caplog):
    clock = Clock()
    meter, cut = Meter(SlowWatch("digits", 20.0, clock)), CountedWindow()
    with caplog.at_level(logging.WARNING, logger="edgekit_runtime"):
        for _ in range(120):
            clock.now += 0.5
            meter.record("device", 100.0, False, {"engine": 99.0})
            cut.add(meter.cut())
    assert len(caplog.records) == 1
    assert cut.answers["device"].count == meter.stats().answers["device"] == 120


def test_one_line_a_minute_while_it_stays_slow_and_none_while_it_is_fast(caplog):
    clock = Clock()
    meter = Meter(SlowWatch("digits", 20.0, clock))

    def minute(ms: float) -> int:
        caplog.clear()
        for _ in range(60):
            clock.now += 1.0
            for _ in range(30):
                meter.record("device", ms, None, {"queue": ms - 8.0, "engine": 8.0})
            meter.counted()
        return len(caplog.records)

    with caplog.at_level(logging.WARNING, logger="edgekit_runtime"):
        lines = [minute(ms) for ms in (10.0, 60.0, 60.0, 10.0, 10.0)]
    assert lines[:3] == [0, 1, 1]
    assert lines[4] == 0  # the spell in which it became fast again may still be slow


def test_late_answers_are_looked_at_without_anybody_reading(caplog):
    """A slow device answers seldom: it must not take 512 answers until somebody hears of it."""
    clock = Clock()
    meter = Meter(SlowWatch("digits", 20.0, clock))
    with caplog.at_level(logging.WARNING, logger="edgekit_runtime"):
        for _ in range(70):
            clock.now += 1.0
            meter.record("device", 100.0, False, {"engine": 99.0})
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("edgekit_runtime", "WARNING")
    assert "infer" in record.getMessage()


def test_the_line_is_written_when_no_lock_is_held():
    """A handler may ask the very model for its figures, from another thread even."""
    import threading

    clock, asked = Clock(), []
    meter = Meter(SlowWatch("digits", 20.0, clock))

    class Asks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            thread = threading.Thread(target=lambda: asked.append(meter.stats().requests), daemon=True)
            thread.start()
            thread.join(10.0)

    handler, logger = Asks(), logging.getLogger("edgekit_runtime")
    logger.addHandler(handler)
    try:
        for _ in range(200):
            meter.record("device", 100.0, False)
        clock.now += 10.0
        meter.stats()
    finally:
        logger.removeHandler(handler)
    assert asked == [200]


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_that_is_none_is_the_callers_bug(budget):
    with pytest.raises(ValueError, match="budget_ms"):
        SlowWatch("digits", budget)

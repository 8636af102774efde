"""What the meter promises: every answer counted once, in its source, its stages and its budget, whoever asks and
whenever.
"""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.telemetry.histogram import CountedWindow, record_table
from edgekit_runtime.telemetry.meter import FOLD_EVERY, MOST_WAITING, PACK_EVERY, Meter

DEVICE = {"identify": 0.1, "decode": 0.5, "adapt": 0.4, "queue": 2.0, "engine": 8.0, "finish": 0.25, "total": 11.3}
HOST = {"decode": 0.5, "network": 4.0, "host": 3.0, "total": 7.6}
BOUND = 0.011


def counts(cut: CountedWindow) -> dict[str, int]:
    return {source: histogram.count for source, histogram in cut.answers.items()}


def test_counts_by_source_by_budget_and_by_error():
    meter = Meter()
    meter.record("device", 10.0, True)
    meter.record("device", 30.0, met_budget=False)
    meter.record("cache", 0.01, None)
    meter.error("input")
    meter.error("budget")
    meter.refused()
    stats = meter.stats()
    assert stats.answers == {"device": 2, "cache": 1}
    assert (stats.requests, stats.errors) == (5, {"input": 1, "budget": 1})
    assert (stats.met, stats.over_budget, stats.refused) == (1, 1, 1)
    assert stats.device_ms.p50 == pytest.approx(10.0, rel=BOUND)
    assert stats.latency_ms.maximum == 30.0
    assert stats.clipped_share is None


def test_compared_answers_of_hosts_count_once_in_the_window_and_stay_in_the_sum():
    meter = Meter()
    meter.compared(differs=False)
    meter.compared(differs=True)
    cut = meter.cut()
    assert (cut.compared, cut.differed) == (2, 1)
    assert (meter.cut().compared, meter.stats().compared, meter.stats().differed) == (0, 2, 1)


def test_an_answer_counts_in_the_stages_it_went_through_and_in_no_other():
    meter = Meter()
    meter.record("device", 11.3, None, DEVICE)
    meter.record("host", 7.6, None, HOST)
    meter.record("cache", 0.1, None, {"identify": 0.1, "total": 0.1})
    counted = meter.counted().stages
    assert {stage: histogram.count for stage, histogram in counted.items()} == {
        "prepare": 3, "queue": 1, "infer": 1, "finish": 1, "network": 1, "host": 1,
    }  # fmt: skip
    assert counted["prepare"].maximum == pytest.approx(1.0)  # identify, decode and adapt together
    assert (counted["queue"].maximum, counted["infer"].maximum, counted["network"].maximum) == (2.0, 8.0, 4.0)


@pytest.mark.parametrize(
    ("timings", "stages"),
    [
        ({}, {}),
        ({"total": 1.0}, {}),
        ({"something new": 1.0, "engine": 2.0}, {"infer": 2.0}),
        ({"joined": 3.0}, {"queue": 3.0}),
        ({"host_failed": 5.0, "adapt": 1.0, "engine": 2.0}, {"network": 5.0, "prepare": 1.0, "infer": 2.0}),
    ],
    ids=["nothing", "total alone", "a part nobody knows", "joined another", "the host failed"],
)
def test_timings_of_any_parts_are_taken(timings, stages):
    meter = Meter()
    meter.record("device", 9.0, None, timings)
    assert {stage: histogram.maximum for stage, histogram in meter.counted().stages.items()} == stages


def test_answers_of_different_parts_never_mix():
    """As many parts each, but not the same ones: what one getter could read wrongly."""
    meter = Meter()
    meter.record("device", 1.0, None, {"engine": 1.0, "finish": 2.0})
    meter.record("device", 1.0, None, {"queue": 4.0, "finish": 8.0})
    meter.record("device", 1.0, None, {"finish": 16.0, "engine": 32.0})
    totals = {stage: histogram.total for stage, histogram in meter.counted().stages.items()}
    assert totals == {"infer": 33.0, "finish": 26.0, "queue": 4.0}


def test_what_the_caller_does_with_its_timings_later_is_not_counted():
    meter, timings = Meter(), {"engine": 2.0}
    meter.record("device", 2.0, None, timings)
    timings["engine"] = 99.0
    assert meter.counted().stages["infer"].maximum == 2.0


def test_the_share_of_clipped_values_is_over_those_that_were_looked_at():
    meter = Meter()
    for clipped in ((5, 100, None), None, (0, 100, 0.5), (1, 0, None)):
        meter.record("device", 1.0, None, None, clipped)
    assert meter.stats().clipped_share == pytest.approx(0.03)


def test_a_cut_takes_what_was_counted_and_the_totals_stay():
    meter = Meter()
    meter.record("device", 10.0, True, DEVICE, (1, 10, None))
    meter.error("input")
    first = meter.cut()
    meter.record("cache", 1.0, False)
    meter.refused()
    second = meter.cut()
    assert (counts(first), first.errors, first.met, first.over_budget, first.refused) == (
        {"device": 1}, {"input": 1}, 1, 0, 0,
    )  # fmt: skip
    assert (counts(second), second.errors, second.met, second.over_budget, second.refused) == (
        {"cache": 1}, {}, 0, 1, 1,
    )  # fmt: skip
    assert (first.clipped, first.values, second.values) == (1, 10, 0)
    assert meter.stats().requests == 3
    assert meter.cut() == CountedWindow()


@settings(max_examples=examples(30))
@given(st.lists(st.sampled_from(["record", "cut", "read"]), max_size=60), st.integers(1, 3 * FOLD_EVERY))
def test_cuts_add_up_to_everything_however_they_fall(steps, burst):
    meter, cut, recorded = Meter(), CountedWindow(), 0
    for step in steps:
        if step == "record":
            for i in range(burst):
                meter.record("device", 1.0 + i, i % 2 == 0, DEVICE if i % 3 else HOST)
            recorded += burst
        elif step == "cut":
            cut.add(meter.cut())
        else:
            assert meter.stats().answers.get("device", 0) == recorded
    cut.add(meter.cut())
    whole = meter.counted()
    assert counts(cut) == counts(whole) == ({"device": recorded} if recorded else {})
    assert {s: h.buckets for s, h in cut.stages.items()} == {s: h.buckets for s, h in whole.stages.items()}
    assert (cut.met, cut.over_budget) == (whole.met, whole.over_budget)


def test_nothing_is_lost_or_counted_twice_when_threads_record_and_end_while_others_cut():
    meter, cuts, callers, each = Meter(), [], 8, 3 * PACK_EVERY + 7
    recording = threading.Barrier(callers + 1)
    done = threading.Event()

    def record(source: str) -> None:
        recording.wait()
        for i in range(each):
            meter.record(source, 1.0, i % 2 == 0, DEVICE, (1, 2, 0.9))
            if i % 100 == 0:
                meter.error("input")

    def cut() -> None:
        while not done.is_set():
            cuts.append(meter.cut())

    threads = [threading.Thread(target=record, args=(f"source{n % 3}",)) for n in range(callers)]
    cutter = threading.Thread(target=cut)
    for thread in (*threads, cutter):
        thread.start()
    recording.wait()
    for thread in threads:
        thread.join()
    done.set()
    cutter.join()
    whole = CountedWindow()
    for one in (*cuts, meter.cut()):
        whole.add(one)
    assert sum(counts(whole).values()) == callers * each
    assert whole.met + whole.over_budget == callers * each
    assert {histogram.count for histogram in whole.stages.values()} == {callers * each}
    assert (whole.clipped, whole.values) == (callers * each, 2 * callers * each)
    assert whole.errors == {"input": callers * (each // 100 + 1)}
    assert meter.stats().requests == callers * each + callers * (each // 100 + 1)


def test_a_caller_packs_few_answers_and_folds_seldom(monkeypatch):
    """What one caller does for all is bounded, and a reader misses none of it."""
    folded, packed, meter = [], [], Meter()
    add_answers = CountedWindow.add_answers

    def packing(self, recorded, budget_ms):
        packed.append(len(recorded))
        add_answers(self, recorded, budget_ms)

    monkeypatch.setattr(CountedWindow, "add_answers", packing)
    monkeypatch.setattr(
        "edgekit_runtime.telemetry.histogram.record_table",
        lambda histograms, table: (folded.append(len(table)), record_table(histograms, table)),
    )
    for number in range(1, FOLD_EVERY + PACK_EVERY):
        meter.record("device", 1.0, None, DEVICE)
        assert (len(packed), len(folded)) == (number // PACK_EVERY, number // FOLD_EVERY)
    assert meter.stats().answers == {"device": FOLD_EVERY + PACK_EVERY - 1}
    assert max(packed) == PACK_EVERY
    assert folded == [FOLD_EVERY, PACK_EVERY - 1]


def test_what_waits_to_be_folded_is_bounded_while_somebody_holds_the_fold_up():
    meter = Meter()
    with meter._lock:  # a fold that takes long
        callers = [threading.Thread(target=lambda: [meter.record("device", 1.0, None) for _ in range(MOST_WAITING)])]
        callers *= 1
        callers += [threading.Thread(target=lambda: [meter.record("device", 1.0, None) for _ in range(MOST_WAITING)])]
        for caller in callers:
            caller.start()
        for _ in range(2000):
            if len(meter._waiting) >= MOST_WAITING:
                break
            callers[0].join(0.005)
        callers[0].join(0.05)
        assert len(meter._waiting) <= MOST_WAITING + len(callers)
    for caller in callers:
        caller.join()
    assert meter.stats().requests == 2 * MOST_WAITING


def test_a_signal_handler_may_ask_for_stats_in_the_middle_of_a_fold():
    meter = Meter()
    meter.record("device", 1.0, None)
    with meter._lock:
        meter._folding = True
        assert meter.stats().requests == 0  # what is being folded is told the next time
        meter._folding = False
    assert meter.stats().requests == 1

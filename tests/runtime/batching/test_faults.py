"""Engines that hang, hands on Ctrl-C: every caller hears of it, and nobody else does."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
import time

import pytest
from gated import LONG, Gate, assumed, blocked, results

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.batching.queued_request import RequestState, WaitingCaller, for_member, wake_all
from edgekit_runtime.system.errors import ClosedError, EngineError, EngineHung

HUNG = EngineHung("the inference did not end", do="Open the bundle again")


def test_abandoning_a_hung_engine_fails_the_running_and_the_queued_and_refuses_the_rest():
    gate, batcher, first = blocked()
    waiting, told = [batcher.submit(2), batcher.submit(3)], []

    def ask():
        try:
            batcher.call(4)
        except EngineHung as error:
            told.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    while batcher.queued < 3:
        pass
    batcher.abandon(HUNG)
    for future in (first, *waiting):
        with pytest.raises(EngineHung):
            future.result(LONG)
    caller.join(LONG)
    assert len(told) == 1
    for ask_again in (batcher.call, batcher.submit):
        with pytest.raises(EngineHung):
            ask_again(5)
    assert batcher.close(timeout_s=LONG) is False, "the engine is in use, and waiting for it is pointless"
    gate.open.set()


def test_what_a_hung_run_brings_home_late_is_dropped():
    gate, batcher, first = blocked()
    batcher.abandon(HUNG)
    error = first.exception(LONG)
    gate.open.set()
    assert batcher._worker.thread is not None
    batcher._worker.thread.join(LONG)
    assert first.exception() is error
    assert batcher.close(timeout_s=LONG) is True


def test_callers_that_barge_are_freed_from_an_engine_that_hangs():
    """All but the one that is inside: its thread belongs to the engine."""
    gate, told = Gate(closed=True), []
    batcher = Batcher(gate, Costs({1: 2e-6}, hand_off_s=20e-6))

    def ask():
        try:
            batcher.call(1)
        except EngineHung as error:
            told.append(error)

    callers = [threading.Thread(target=ask) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert gate.entered.acquire(timeout=LONG)
    while len(batcher.gate.line) < 4:
        pass
    batcher.abandon(HUNG)
    while len(told) < 4:
        pass
    with pytest.raises(EngineHung):
        batcher.call(2)
    gate.open.set()
    for caller in callers:
        caller.join(LONG)
    assert not any(caller.is_alive() for caller in callers)


def test_without_inline_runs_a_hung_engine_can_be_abandoned_for_every_caller():
    gate, told = Gate(closed=True), []
    batcher = Batcher(gate, assumed(1), inline=False)

    def ask():
        try:
            batcher.call(1)
        except EngineHung as error:
            told.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    assert gate.entered.acquire(timeout=LONG)
    batcher.abandon(HUNG)
    caller.join(LONG)
    assert len(told) == 1
    gate.open.set()


def test_everybody_gets_an_error_of_their_own():
    gate, batcher, first = blocked()
    futures = [first, batcher.submit(2), batcher.submit(3)]
    batcher.abandon(HUNG)
    errors = [future.exception(LONG) for future in futures]
    assert len({id(error) for error in errors}) == 3
    assert {str(error) for error in errors} == {str(HUNG)}
    gate.open.set()


class PickyError(Exception):
    def __init__(self, code, *, why):
        super().__init__(f"{code}: {why}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("no"), RuntimeError),
        (EngineError("no", where="x", do="y"), EngineError),
        (PickyError(3, why="no copy of this can be made"), EngineError),
        (OSError(2, "gone"), FileNotFoundError),
    ],
)
def test_an_error_is_copied_for_each_member_or_said_in_our_words(error, kind):
    first, second = for_member(error, 0), for_member(error, 1)
    assert first is error
    assert type(second) is kind
    assert str(error) in str(second)
    assert second.__cause__ is error


def test_a_broken_engine_that_exits_does_not_take_the_worker_with_it():
    def run(items):
        if items == ["exit"]:
            raise SystemExit(3)
        return items

    batcher = Batcher(run, assumed(4), inline=False)
    with pytest.raises(SystemExit):
        batcher.submit("exit").result(LONG)
    assert batcher.call("fine").result == "fine"
    batcher.close()


def test_a_callers_callback_may_close_the_batcher():
    gate, batcher, first = blocked()
    done = threading.Event()
    first.add_done_callback(lambda _: (batcher.close(1.0), done.set()))
    second = batcher.submit(2)
    gate.open.set()
    assert done.wait(LONG)
    with pytest.raises(ClosedError):
        second.result(LONG)


def test_a_callback_that_raises_harms_nobody():
    gate, batcher, first = blocked()
    first.add_done_callback(lambda _: 1 / 0)
    second = batcher.submit(2)
    gate.open.set()
    assert results([first, second]) == [2, 4]
    batcher.close()


@pytest.mark.parametrize("costs", [Costs({1: 1e-6}), assumed(1), assumed(8)], ids=lambda c: c.mode)
def test_ctrl_c_in_the_engine_reaches_its_thread_alone_and_frees_the_engine(costs):
    def run(items):
        if "interrupt" in items:
            raise KeyboardInterrupt
        return items

    batcher = Batcher(run, costs)
    with pytest.raises(KeyboardInterrupt):
        batcher.call("interrupt")
    assert batcher.call("next").result == "next"
    assert batcher.submit("last").result(LONG).result == "last"
    assert batcher.close()


def ask_in_a_row(batcher, count):
    """Threads that wait for the engine, one behind the other."""
    threads = []
    for _ in range(count):
        there = batcher.queued
        threads.append(threading.Thread(target=batcher.call, args=(1,), daemon=True))
        threads[-1].start()
        while batcher.queued == there:
            time.sleep(0.001)
    return threads


def test_the_main_thread_which_ctrl_c_strikes_is_not_relied_on_to_wake_others(monkeypatch):
    relied = []

    def waking(waiting):
        first = wake_all(waiting)
        relied.extend(request.outcome.result for request in waiting if request.followers)
        return first

    monkeypatch.setattr("edgekit_runtime.batching.queue.wake_all", waking)
    gate, batcher, _ = blocked()

    def others():
        while not batcher.queued:
            time.sleep(0.001)
        ask_in_a_row(batcher, 5)
        gate.open.set()

    threading.Thread(target=others, daemon=True).start()
    assert batcher.call(100).result == 200
    assert batcher.close(LONG)
    assert relied
    assert 200 not in relied


@pytest.mark.parametrize("when", ["its batch runs", "its batch is over"])
def test_a_caller_that_is_interrupted_while_it_waits_strands_nobody(when, monkeypatch):
    """It was to wake two others."""
    wait, struck = WaitingCaller.wait, []

    def interrupted(request, timeout_s):
        if threading.current_thread() not in struck:
            return wait(request, timeout_s)
        while request.state is not RequestState.RUNNING if when == "its batch runs" else not request.followers:
            time.sleep(0.001)
        raise KeyboardInterrupt

    def ask():
        struck.append(threading.current_thread())
        with contextlib.suppress(KeyboardInterrupt):
            batcher.call(1)

    monkeypatch.setattr(WaitingCaller, "wait", interrupted)
    gate, batcher, _ = blocked()
    first = threading.Thread(target=ask, daemon=True)
    first.start()
    while not batcher.queued:
        time.sleep(0.001)
    others = ask_in_a_row(batcher, 5)
    if when == "its batch runs":
        gate.pass_one()
        first.join(LONG)
    gate.open.set()
    for thread in (first, *others):
        thread.join(LONG / 3)
        assert not thread.is_alive()
    assert batcher.close(LONG)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as on POSIX")
@pytest.mark.parametrize("mode", ["barge", "turns", "batch"])
def test_ctrl_c_in_the_main_thread_strands_nobody(mode):
    """The main thread is interrupted in the engine and while it waits, many times; others get every answer all the
    while.
    """
    program = """
import signal, sys, threading, time
sys.path[:0] = %r
from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from gated import assumed
costs = {"barge": Costs({1: 1e-6}), "turns": Costs({1: 1e-3}, hand_off_s=1e-6), "batch": assumed(8)}[%r]
def engine(items):
    time.sleep(0.0002)
    return list(items)
batcher = Batcher(engine, costs)
assert batcher.stats().mode == %r
stop, answers = threading.Event(), [0, 0, 0]
def ask(k):
    while not stop.is_set():
        assert batcher.call(k).result == k
        answers[k] += 1
        time.sleep(0)
threads = [threading.Thread(target=ask, args=(k,), daemon=True) for k in range(3)]
for thread in threads: thread.start()
hits, end = 0, time.monotonic() + 15
def interrupt():
    while not stop.is_set():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.001)
def handler(number, frame):
    code = frame.f_code
    if code.co_name == "engine" or code.co_name == "wait" and "batching" in code.co_filename: raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
threading.Thread(target=interrupt, daemon=True).start()
while hits < 100 and time.monotonic() < end:
    try:
        assert batcher.call("main").result == "main"
    except KeyboardInterrupt:
        hits += 1
before = sum(answers)
deadline = time.monotonic() + 10
while sum(answers) < before + 100 and time.monotonic() < deadline: time.sleep(0.01)
went_on = sum(answers) >= before + 100
stop.set()
for thread in threads: thread.join(10)
print(hits >= 100, went_on, not any(t.is_alive() for t in threads), batcher.close(), flush=True)
import os; os._exit(0)
"""
    path = [p for p in sys.path if p]
    ran = subprocess.run(
        [sys.executable, "-c", program % (path, mode, mode)], capture_output=True, text=True, timeout=LONG
    )
    assert ran.stdout.split() == ["True"] * 4, ran.stdout + ran.stderr


def test_a_served_result_travels():
    batcher = Batcher(Gate(), assumed(1))
    served = batcher.call(4)
    assert pickle.loads(pickle.dumps(served)) == served
    batcher.close()


def run_together(*items):
    batcher = Batcher(lambda items: [item * 2 for item in items], assumed(8))
    return batcher, [WaitingCaller(item, 0.0, LONG, 0) for item in items]


def test_results_of_a_batch_are_finished_once_each_and_single_ones_are_not():
    batcher, requests = run_together(2, 3)
    batcher.runs.finish = lambda result: ("finished", result)
    assert [outcome.result for outcome in batcher.runs.of(requests)] == [("finished", 4), ("finished", 6)]
    assert [outcome.result for outcome in batcher.runs.of(requests[:1])] == [4]


def test_each_member_gets_its_own_error_of_a_batch_that_cannot_be_finished():
    batcher, requests = run_together("bad", 3)
    batcher.runs.finish = lambda result: 1 // 0
    assert [outcome.result for outcome in batcher.runs.of(requests)] == ["badbad", 6], "alone each is its caller's"

    def finish(result):
        raise RuntimeError(f"it cannot be finished: {result}")

    batcher.runs.finish = finish
    errors = batcher.runs._once(requests)
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
    assert errors[0] is not errors[1]

"""An engine that does not come back is noticed once, and nobody is watched longer than needed."""

from __future__ import annotations

import threading

import pytest

from edgekit_runtime.system import watchdog
from edgekit_runtime.system.errors import EngineHung
from edgekit_runtime.system.watchdog import WatchedEngine, limit_s, watch

LONG = 30


@pytest.mark.parametrize(("slowest", "limit"), [(0.0, 10.0), (0.003, 10.0), (0.5, 10.0), (2.0, 40.0)])
def test_ten_seconds_or_twenty_times_the_slowest_run(slowest, limit):
    assert limit_s(slowest) == limit


@pytest.mark.parametrize(
    ("running", "next_look"), [(None, 2.5), (0.0, 2.5), (5.0, 2.5), (9.0, 1.0), (9.99, pytest.approx(0.01))]
)
def test_it_looks_again_before_the_limit_can_pass_unseen(running, next_look):
    bitten = []
    watched = WatchedEngine(lambda: running, lambda: 0.1, bitten.append)
    assert watched.look() == next_look
    assert not bitten


def test_it_bites_once():
    bitten = []
    watched = WatchedEngine(lambda: 10.5, lambda: 0.1, bitten.append)
    assert watched.look() is None
    assert watched.look() is None
    (error,) = bitten
    assert isinstance(error, EngineHung)
    assert "10.5 s" in str(error)
    assert watched.hung is error


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "edgekit-watchdog"]


def test_the_thread_notices_and_ends_with_the_watch():
    bitten = threading.Event()
    running = iter([None, 0.0, 1.0])
    idle = watch(lambda: None, lambda: 0.0, lambda error: None, lambda slowest: 0.01)
    watched = watch(lambda: next(running), lambda: 0.0, lambda error: bitten.set(), lambda slowest: 0.01)
    assert bitten.wait(LONG)
    assert watched.hung is not None
    (thread,) = threads()
    idle.end()
    idle.end()
    watched.end()
    assert not thread.is_alive()


def test_a_new_one_after_the_last_is_watched_too():
    for _ in range(3):
        bitten = threading.Event()
        watched = watch(lambda: 99.0, lambda: 0.0, lambda error, bitten=bitten: bitten.set())
        assert bitten.wait(LONG)
        watched.end()


@pytest.mark.parametrize("limit", [float("inf"), 1e10, float("nan")])
def test_whatever_one_does_the_others_are_watched(limit):
    bitten = threading.Event()
    running = iter([None, 99.0])
    odd = watch(lambda: None, lambda: 0.0, lambda error: None, lambda slowest: limit)
    watched = watch(lambda: next(running), lambda: 0.0, lambda error: bitten.set(), lambda slowest: 0.01)
    assert bitten.wait(LONG)
    watched.end()
    odd.end()


def test_one_that_cannot_be_looked_after_is_told_once_and_ends_nothing(caplog):
    def trouble():
        raise RuntimeError("odd")

    bitten = threading.Event()
    odd = watch(trouble, lambda: 0.0, lambda error: None)
    running = iter([None, None, 99.0])
    watched = watch(lambda: next(running), lambda: 0.0, lambda error: bitten.set(), lambda slowest: 0.01)
    assert bitten.wait(LONG)
    assert [record.getMessage() for record in caplog.records] == [
        "the watchdog cannot look after an engine: RuntimeError('odd')"
    ]
    watched.end()
    odd.end()


def test_one_that_fails_when_it_is_told_is_told_once():
    def bite(error):
        raise RuntimeError("odd")

    watched = WatchedEngine(lambda: 99.0, lambda: 0.0, bite)
    assert watched.look_safely() is not None
    assert watched.look_safely() is None
    assert watched.hung is not None


def test_while_the_interpreter_ends_nobody_waits_for_the_watchdogs_lock(monkeypatch):
    """Its thread stands still then, and may hold the lock: a `predict` of a finalizer used to hang for ever."""
    watched = watch(lambda: None, lambda: 0.0, lambda error: None)
    monkeypatch.setattr(watchdog, "is_exiting", lambda: True)

    def ask():
        watched.end()
        watch(lambda: None, lambda: 0.0, lambda error: None).end()

    with watched._ended._cond:
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(5)
        assert not asking.is_alive()
    monkeypatch.undo()
    watched.end()
    assert threads() == []

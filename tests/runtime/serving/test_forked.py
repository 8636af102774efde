"""A model that was opened before a fork is told from one that was opened after it."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from functools import partial

import memory
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.system.errors import EdgekitError, ForkedError
from edgekit_runtime.system.threads import ForkGuard, fork_safe_future, orphan
from edgekit_runtime.telemetry.metrics import serve_metrics

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(autouse=True)
def untraced():
    """A child is forked with the lock of coverage's tracer as some thread holds it: nothing is traced here."""
    here, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    sys.settrace(here)
    threading.settrace(in_threads)


def in_child(check):
    """Run check in a forked child; its truth, by the exit code. A child that hangs is ended, and fails the test."""
    sys.stdout.flush()
    ended, ends = os.pipe()  # the child holds `ends` for as long as it lives
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if check() else 1
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(ends)
    hung = not select.select([ended], [], [], 20.0)[0]
    os.close(ended)
    if hung:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not hung, "the child hung"
    return code == 0


def test_the_child_knows_and_the_parent_is_not_touched():
    guard = ForkGuard()
    assert in_child(lambda: guard.forked)
    assert not guard.forked


def test_what_is_opened_in_the_child_is_good_there():
    assert in_child(lambda: not ForkGuard().forked)


def test_a_grandchild_knows_too():
    guard = ForkGuard()
    assert in_child(lambda: in_child(lambda: guard.forked))


def test_the_error_says_what_to_do():
    error = ForkGuard().error()
    assert isinstance(error, ForkedError)
    assert error.code == "forked"
    assert "spawn" in error.do


def test_a_guard_that_is_gone_is_forgotten():
    guard = ForkGuard()
    del guard
    assert in_child(lambda: True)


def refused(*asks):
    """Whether each says that the process was forked."""
    for ask in asks:
        try:
            ask()
        except ForkedError:
            continue
        return False
    return True


class Held:
    """Locks that another thread holds, as some thread always may at the moment of a fork."""

    def __init__(self, *locks):
        self._locks, self._held, self._enough = locks, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            self._held.set()
            self._enough.wait(60.0)

    def __enter__(self):
        self._thread.start()
        assert self._held.wait(10.0)

    def __exit__(self, *_):
        self._enough.set()
        self._thread.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_needs_no_lock_that_a_thread_of_the_parent_holds(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as model, serve_metrics(model):
        model.predict(tiny.RED)
        model.throttle(500)
        pending = model.submit(tiny.BLUE)
        journey = model._journey
        locks = (
            model._counts._lock, model._journey.meter._lock, model._swapping, model._accompanying,
            model._sessions._lock, journey.flights._lock,
            journey._counting, journey.device.batcher.queue.mutex, pending._condition,
        )  # fmt: skip
        asks = (
            lambda: model.predict(tiny.RED), lambda: model.submit(tiny.RED), pending.result, model.session, model.stats,
            model.metrics_text, model.flush_cache, lambda: model.swap("x"), lambda: serve_metrics(model),
        )  # fmt: skip

        def child():
            told = refused(*asks)
            health, name = model.health(), model.describe()["name"]
            model.close()
            return told and health.state == "dead" and name == "tiny"

        with Held(*locks):
            assert in_child(child)
        model.throttle(0)
        assert pending.result(30).top(1)[0].label == "blue"
        assert model.predict(tiny.GREEN).top(1)[0].label == "green"


@pytest.mark.parametrize("kind", memory.HERE)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_childs_sessions_need_none_either(tmp_path, kind):
    frame = memory.frames(1)[0]
    with open_bundle(memory.bundle(tmp_path, kind)) as model:
        sessions = [model.session() for _ in range(8)]
        pending = [session.submit(frame) for session in sessions]
        locks = [lock for one in sessions for lock in (one._turns.lock, one._worker._shutdown_lock)]

        def child():
            told = all(refused(partial(one.predict, frame), partial(one.submit, frame), one.reset) for one in sessions)
            for session in sessions:
                session.close()
            model.close()
            return told

        with Held(*locks, *(future._condition for future in pending)):
            assert in_child(child)
        assert [future.result(30).source for future in pending] == ["device"] * 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_while_many_threads_ask_leave_no_child_behind(tmp_path):
    """Chance, on top of the above: what was seen to hang within a few dozen forks."""
    stop = threading.Event()
    with open_bundle(tiny.bundle(tmp_path)) as model:

        def ask(number):
            while not stop.is_set():
                model.predict(tiny.RED) if number % 2 else model.submit(tiny.BLUE).result(30)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        try:
            assert all(
                in_child(lambda: refused(lambda: model.predict(tiny.RED)) and not model.close()) for _ in range(36)
            )
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_a_promised_future_ends_in_the_child_and_its_callbacks_are_not_called():
    heard = []
    future, done = fork_safe_future(), fork_safe_future()
    future.add_done_callback(lambda _: heard.append(1))
    done.set_result(7)
    assert in_child(lambda: isinstance(future.exception(0), ForkedError) and done.result(0) == 7 and not heard)
    assert not future.done()
    orphan(future, ForkGuard().error())
    with pytest.raises(EdgekitError):
        future.result(0)

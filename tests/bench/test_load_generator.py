"""The callers: how many requests they make, when, and from which moment a latency counts."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import memory
import numpy as np
import pytest
import tiny

from edgekit.bench.load_generator import MOST_TIMINGS, Load, arrivals, ask
from edgekit.bench.measure import golden_inputs
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.serving.request import Answer
from edgekit_runtime.system.errors import BudgetExceeded, InputError, QueueFull

ITEMS = [{"image": tiny.RED}, {"image": tiny.BLUE}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with open_bundle(tiny.bundle(tmp_path_factory.mktemp("load")), cache=False) as opened:
        yield opened


@pytest.mark.parametrize(
    "load",
    [Load(requests=60), Load(concurrency=5, requests=60), Load(rate=2000.0, requests=60),
        Load(rate=3000.0, arrivals="fixed", requests=60)],
    ids=["one caller", "five callers", "random arrivals", "even arrivals"],
)  # fmt: skip
def test_every_request_is_answered_and_counted_once(model, load):
    outcome = ask(model, ITEMS, load)
    assert outcome.sources == {"device": 60}
    assert len(outcome.latencies_ms) == len(outcome.ended_s) == len(outcome.timings) == 60
    assert (np.diff(outcome.ended_s) >= 0).all()
    assert (outcome.latencies_ms > 0).all()
    assert outcome.ended_s[-1] <= outcome.seconds


def test_it_ends_after_its_time(model):
    outcome = ask(model, ITEMS, Load(requests=None, duration_s=0.2, concurrency=2))
    assert 0.2 <= outcome.seconds < 5.0
    assert outcome.sources["device"] > 0


def test_met_and_missed_are_the_answers_own_word(model):
    outcome = ask(model, ITEMS, Load(requests=20, budget_ms=60_000))
    assert (outcome.met, outcome.missed, outcome.refused) == (20, 0, 0)


@pytest.mark.parametrize(
    "load", [Load(concurrency=3, requests=60), Load(rate=2000.0, requests=60)], ids=["closed", "open"]
)
def test_a_model_that_keeps_a_state_is_asked_in_sessions(tmp_path, load):
    path = memory.bundle(tmp_path, memory.HERE[0])
    with open_bundle(path) as opened:
        outcome = ask(opened, golden_inputs(read_bundle(path)), load)
    assert outcome.sources == {"device": 60}
    assert outcome.errors == {}


class Scripted:
    """Answers, or fails, as told; what no real model can be made to do at a given moment."""

    contract = tiny.CONTRACT

    def __init__(self, *results) -> None:
        self._results = itertools.cycle(results)
        self._lock = threading.Lock()
        self.asked = 0

    def predict(self, item, *, budget_ms=None):
        with self._lock:
            self.asked += 1
            result = next(self._results)
        if isinstance(result, BaseException):
            raise result
        return result

    def submit(self, item, *, budget_ms=None):
        future = Future()
        try:
            future.set_result(self.predict(item))
        except InputError:
            raise
        except BaseException as error:
            future.set_exception(error)
        return future


def an_answer(source="device", met=None):
    return Answer({}, source, {"engine": 1.0, "total": 1.0}, met, tiny.CONTRACT)


@pytest.mark.parametrize(
    "load", [Load(concurrency=3, requests=60), Load(rate=1e5, requests=60)], ids=["closed", "open"]
)
def test_requests_without_an_answer_are_counted_by_their_error(load):
    script = (
        an_answer(met=True),
        BudgetExceeded("no"),
        QueueFull("full"),
        InputError("bad"),
        an_answer("host", met=False),
    )
    outcome = ask(Scripted(*script), ITEMS, load)
    assert outcome.sources == {"device": 12, "host": 12}
    assert (outcome.met, outcome.missed, outcome.refused) == (12, 12, 12)
    assert outcome.errors == {"queue-full": 12, "input": 12}
    assert len(outcome.latencies_ms) == 24


@pytest.mark.parametrize(
    "load", [Load(concurrency=3, requests=1000), Load(rate=1e5, requests=1000)], ids=["closed", "open"]
)
def test_a_fault_of_the_program_is_no_figure(load):
    scripted = Scripted(an_answer(), ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        ask(scripted, ITEMS, load)
    assert scripted.asked < 1000


def test_a_stall_is_charged_to_everything_that_should_have_been_asked_meanwhile():
    """Without this, a second in which nothing was answered would be one slow request among a thousand fast ones."""

    class Stalls:
        contract = tiny.CONTRACT

        def __init__(self) -> None:
            self.pool, self.first = ThreadPoolExecutor(1), True

        def submit(self, item, *, budget_ms=None):
            if self.first:
                self.first = False
                until = perf_counter() + 0.3
                while perf_counter() < until:
                    pass
            return self.pool.submit(an_answer)

    outcome = ask(Stalls(), ITEMS, Load(rate=100.0, arrivals="fixed", requests=20))
    slow = np.sort(outcome.latencies_ms)[::-1]
    assert slow[0] >= 300
    assert slow[10] >= 150  # the eleventh was meant for 0.1 s and could not be asked before 0.3 s
    assert outcome.late_ms.max() >= 280


def test_arrivals_follow_from_the_seed_and_have_the_rate():
    load = Load(rate=50.0, duration_s=100.0)
    times = list(arrivals(load))
    assert times == list(arrivals(load))
    assert times != list(arrivals(Load(rate=50.0, duration_s=100.0, seed=1)))
    assert len(times) == pytest.approx(5000, rel=0.1)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # exponential
    assert list(arrivals(Load(rate=4.0, arrivals="fixed", duration_s=1.0))) == [0.0, 0.25, 0.5, 0.75]


def test_timings_are_kept_of_a_bounded_number_evenly_over_the_run():
    class Counts:
        contract = tiny.CONTRACT
        n = 0

        def predict(self, item, *, budget_ms=None):
            self.n += 1
            return Answer({}, "device", {"engine": float(self.n)}, None, tiny.CONTRACT)

    total = 5 * MOST_TIMINGS
    outcome = ask(Counts(), ITEMS, Load(requests=total))
    kept = [timings["engine"] for timings in outcome.timings]
    assert MOST_TIMINGS / 4 <= len(kept) <= MOST_TIMINGS
    assert len(set(np.diff(kept))) == 1
    assert kept[-1] > 0.95 * total
    assert len(outcome.latencies_ms) == total


@pytest.mark.parametrize(
    "wrong", [{"requests": None}, {"concurrency": 0}, {"rate": 0.0}, {"rate": float("inf")}, {"rate": float("nan")}]
)
def test_a_load_that_makes_no_sense_is_the_callers_bug(wrong):
    with pytest.raises(ValueError, match=r"a load needs|concurrency must"):
        Load(**wrong)


def test_a_run_goes_on_for_its_least_time_and_no_request_is_counted_twice(model):
    outcome = ask(model, ITEMS, Load(requests=5, least_s=0.2, concurrency=2))
    assert outcome.seconds >= 0.2
    assert outcome.sources["device"] == len(outcome.latencies_ms) > 5


def test_ctrl_c_ends_every_caller_at_once(tmp_path):
    """Sessions of a model that keeps a state, each with a caller that would ask for an hour."""
    path = memory.bundle(tmp_path, memory.HERE[0])
    with open_bundle(path) as opened:
        items, before = golden_inputs(read_bundle(path)), set(threading.enumerate())
        timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        gc.disable()  # an interrupt inside hypothesis' hook of a collection would be lost
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ask(opened, items, Load(requests=None, duration_s=3600.0, concurrency=12))
        finally:
            gc.enable()
        until = time.monotonic() + 30  # each caller ends with the request that it waits for
        while not set(threading.enumerate()) - {timer} <= before:
            assert time.monotonic() < until
            time.sleep(0.01)

"""The fast path answers what the journey answers, to the bit, and leaves to it what it cannot answer."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.policy.options import ModelLimits
from edgekit_runtime.serving.request import Request
from edgekit_runtime.system.errors import BudgetExceeded, ClosedError, InputError

LONG = 30
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
FLOATS = np.random.default_rng(1).random((8, 8, 3), np.float32)
GIVEN = {
    "pixels": PIXELS,
    "pixels, transposed in memory": np.asfortranarray(PIXELS),
    "every other pixel of a larger picture": np.repeat(np.repeat(PIXELS, 2, axis=0), 2, axis=1)[::2, ::2],
    "floats": FLOATS,
    "floats beyond what calibration saw": 40 * FLOATS - 20,
    "floats of 64 bits": FLOATS.astype(np.float64),
    "floats of the other byte order": FLOATS.astype(FLOATS.dtype.newbyteorder()),
}


@pytest.fixture(scope="module", params=sorted(available()))
def path(request, tmp_path_factory):
    return tiny.bundle_for(request.param, tmp_path_factory.mktemp("fast"))


@pytest.fixture(params=[False, True], ids=["without a cache", "with a cache"])
def model(path, request):
    with open_bundle(path, cache=request.param) as opened:
        yield opened


def ready(model):
    """A picture as the artifact takes it, if it takes integers."""
    tensor = model._journey.device.adapters[0][1](PIXELS)[0]
    return tensor if tensor.dtype == np.int8 and tensor.shape == PIXELS.shape else PIXELS


@pytest.mark.parametrize("given", [*GIVEN, "made ready"])
@pytest.mark.parametrize("budget_ms", [None, 10_000])
def test_it_answers_what_the_journey_answers(model, given, budget_ms):
    given = ready(model) if given == "made ready" else GIVEN[given]
    wanted = model._journey.travel(Request(), given).outputs["probs"]
    model.flush_cache()
    for source in ("device", "cache" if model.stats().cache else "device"):
        answer = model.predict(given, budget_ms=budget_ms)
        np.testing.assert_array_equal(answer.outputs["probs"], wanted)
        assert (answer.source, answer.met_budget) == (source, None if budget_ms is None else True)
        assert answer.timings["total"] >= sum(ms for part, ms in answer.timings.items() if part != "total") - 0.01
    assert model.stats().meter.requests == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused_and_leave_nothing_behind(model, bad):
    floats = FLOATS.copy()
    floats[3, 4, 1] = bad
    for _ in range(2):  # the second would wait for ever for the answer to the first
        with pytest.raises(InputError, match="NaN or infinity"):
            model.predict(floats)
    assert model.stats().meter.errors == {"input": 2}


def test_an_error_of_the_engine_is_the_callers_and_counts_once(model):
    engine, run = model._journey.device.engine, model._journey.device.engine.run
    broken = [RuntimeError("a cosmic ray")]

    def struck(tensors):
        if broken:
            raise broken.pop()
        return run(tensors)

    engine.run = struck
    with pytest.raises(RuntimeError, match="a cosmic ray"):
        model.predict(tiny.RED)
    assert model.predict(tiny.RED).top(1)[0].label == "red"
    assert model.stats().meter.errors == {"RuntimeError": 1}


def test_what_would_be_late_is_refused_as_by_the_journey(model):
    model.throttle(60)
    model.predict(tiny.RED)
    with pytest.raises(BudgetExceeded, match="no answer expected within 20 ms"):
        model.predict(tiny.BLUE, budget_ms=20)
    model.throttle(0)
    for _ in range(200):  # quick ones make the slow one forgotten
        model.predict(tiny.GREEN, budget_ms=10_000)
    assert model.stats().meter.errors == {"budget": 1}


def test_identical_requests_share_an_inference(path):
    entered, gate, runs = threading.Event(), threading.Event(), []
    with open_bundle(path) as model:
        run = model._journey.device.engine.run

        def slow(tensors):
            runs.append(1)
            entered.set()
            assert gate.wait(LONG)
            return run(tensors)

        model._journey.device.engine.run = slow
        answers = []
        callers = [threading.Thread(target=lambda: answers.append(model.predict(tiny.RED.copy()))) for _ in range(4)]
        callers[0].start()
        assert entered.wait(LONG)
        for caller in callers[1:]:
            caller.start()
        while model.stats().cache.misses < len(callers):
            callers[1].join(0.01)
        gate.set()
        for caller in callers:
            caller.join(LONG)
    assert [answer.top(1)[0].label for answer in answers] == ["red"] * 4
    assert len(runs) == 1


def test_a_closed_model_refuses(path):
    model = open_bundle(path)
    model.predict(tiny.RED)
    model.close()
    for picture in (tiny.RED, tiny.BLUE):
        with pytest.raises(ClosedError):
            model.predict(picture)


@pytest.mark.parametrize(("seconds", "here"), [(0.0001, True), (0.002, False)])
def test_a_short_inference_is_awaited_on_the_loop_which_goes_on(path, seconds, here):
    ran, turns, over = [], [], threading.Event()
    with open_bundle(
        path, cache=False, limits=ModelLimits(batching=False)
    ) as model:  # who gains by batches waits for one
        device, run = model._journey.device, model._journey.device.engine.run
        device.engine.run = lambda tensors: (ran.append(threading.get_ident()), run(tensors))[1]

        async def beside():
            while not over.is_set():
                turns.append(1)
                await asyncio.sleep(0)

        async def ask():
            other = asyncio.ensure_future(beside())
            for _ in range(12):
                device.batcher.runs.quick_s = seconds / 2  # an inference is expected to take so long
                model._paused = 0.0  # as if the loop had been held for long
                await model.apredict(PIXELS)
            over.set()
            await other

        asyncio.run(ask())
    assert (set(ran) == {threading.get_ident()}) is here
    assert len(turns) >= 12


def test_an_engine_that_is_taken_is_not_waited_for_on_the_loop(path):
    entered, gate = threading.Event(), threading.Event()
    with open_bundle(path, cache=False) as model:
        device, run = model._journey.device, model._journey.device.engine.run

        def slow(tensors):
            entered.set()
            assert gate.wait(LONG)
            return run(tensors)

        device.engine.run = slow
        other = model.submit(tiny.RED)
        assert entered.wait(LONG)

        async def ask():
            waiting = asyncio.ensure_future(model.apredict(tiny.BLUE))
            await asyncio.sleep(0)
            gate.set()  # reached, though the engine is taken
            return await waiting

        assert asyncio.run(ask()).top(1)[0].label == "blue"
        assert other.result(LONG).top(1)[0].label == "red"


def test_a_cancelled_task_leaves_an_answer_to_those_that_joined_its_request(path):
    entered, gate = threading.Event(), threading.Event()
    with open_bundle(path) as model:
        device, run = model._journey.device, model._journey.device.engine.run

        def slow(tensors):
            entered.set()
            assert gate.wait(LONG)
            return run(tensors)

        device.engine.run = slow
        other = model.submit(tiny.RED)
        assert entered.wait(LONG)

        async def ask():
            leading, joined = (asyncio.ensure_future(model.apredict(tiny.BLUE)) for _ in range(2))
            await asyncio.sleep(0)
            leading.cancel()
            await asyncio.sleep(0)
            gate.set()
            return await asyncio.gather(leading, joined, return_exceptions=True)

        gone, answer = asyncio.run(ask())
        assert isinstance(gone, asyncio.CancelledError)
        assert answer.top(1)[0].label == "blue"
        assert other.result(LONG).top(1)[0].label == "red"
        assert model.stats().meter.errors == {}, "no caller waits for the request that was cancelled"

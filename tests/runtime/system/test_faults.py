"""What goes wrong under an application, and what it hears: never nothing, and never twice."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
import tiny

from edgekit_runtime import CacheOptions, EdgekitError, ModelLimits, QueueFull, open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.serving.request import Request
from edgekit_runtime.system.errors import BundleError, ClosedError, EngineError, EngineHung, ForkedError, InputError

ENGINE = min(available())
LONG = 30
STRESS = int(os.environ.get("EDGEKIT_STRESS", "6400"))
"""Futures of the random test; a million takes some minutes."""


@pytest.fixture
def path(tmp_path):
    return tiny.bundle(tmp_path, tiny.RECIPE_OF_ENGINE[ENGINE], engine=ENGINE)


def test_an_engine_that_hangs_frees_every_caller_and_is_not_asked_again(path):
    let_go = threading.Event()
    with open_bundle(path, cache=False, limits=ModelLimits(hang_s=0.5)) as model:
        engine, run = model._journey.device.engine, model._journey.device.engine.run

        def hang(inputs):
            let_go.wait(LONG)
            return run(inputs)

        engine.run = hang
        futures = [model.submit(tiny.RED) for _ in range(3)]
        with pytest.raises(EngineHung, match="has not responded for"):
            model.predict(tiny.BLUE)
        assert [type(future.exception(LONG)) for future in futures] == [EngineHung] * 3
        with pytest.raises(EngineHung):
            model.predict(tiny.BLUE)
        health = model.health()
        assert (health.ok, health.state) == (False, "dead")
        assert "has not responded" in health.reason
        model.swap(path)  # the way out without another process
        assert model.health().ok
        assert model.predict(tiny.RED).top(1)[0].label == "red"
        let_go.set()


@pytest.mark.skipif(os.name == "nt", reason="processes of their own need POSIX")
def test_an_engine_of_its_own_process_that_dies_is_started_again(path):
    with open_bundle(path, cache=False, isolate=True) as model:
        first = model.predict(tiny.RED)
        model._journey.device.engine._single.host.kill()
        deadline = time.monotonic() + LONG
        heard = []
        while True:
            try:
                again = model.predict(tiny.RED)
                break
            except EngineError as error:
                heard.append(error)
                assert time.monotonic() < deadline
        assert len(heard) <= 1
        assert np.array_equal(again.outputs["probs"], first.outputs["probs"])
        assert model.health().ok
        assert model.stats().engine_restarts == 1
        assert 'edgekit_engine_restarts_total{model="tiny",version="1"} 1' in model.metrics_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_hears_that_it_must_open_its_own(path):
    with open_bundle(path) as model:
        model.submit(tiny.RED).result(LONG)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                model.predict(tiny.RED)  # also what is in the cache: nothing of the parent's is used
            except ForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert model.predict(tiny.BLUE).top(1)[0].label == "blue"


def test_one_bad_inference_fails_one_request(path):
    with open_bundle(path, cache=False) as model:
        device = model._journey.device
        engine, run, bad = device.engine, device.engine.run, device.adapt(Request(), {"image": tiny.DARK})[0]

        def picky(inputs):
            if np.array_equal(inputs[0], bad):
                raise EngineError("the inference failed: this one")
            return run(inputs)

        engine.run = picky
        futures = [model.submit(picture) for picture in (tiny.RED, tiny.DARK, tiny.BLUE)]
        ends = [future.exception(LONG) for future in futures]
        assert [type(end) for end in ends] == [type(None), EngineError, type(None)]
        assert model.stats().meter.errors == {"engine": 1}


def test_futures_that_are_withdrawn_at_random_complete_exactly_once(path):
    threads, each = 64, STRESS // 64
    completed = [0] * threads
    pictures = [tiny.colour(fill, 255 - fill, fill) for fill in range(0, 256, 16)]
    with open_bundle(path, cache=CacheOptions(memory_mb=1), limits=ModelLimits(queue=STRESS)) as model:

        def storm(number):
            draw, futures = random.Random(number), []
            for _ in range(each):
                future = model.submit(draw.choice(pictures), priority=draw.choice((0, 0, 1)))
                future.add_done_callback(lambda _: completed.__setitem__(number, completed[number] + 1))
                if draw.random() < 0.3:
                    future.cancel()
                futures.append(future)
            for future in futures:
                with contextlib.suppress(CancelledError):
                    assert future.result(LONG).outputs["probs"].shape == (4,)

        storms = [threading.Thread(target=storm, args=(number,)) for number in range(threads)]
        for one in storms:
            one.start()
        for one in storms:
            one.join()
        assert completed == [each] * threads
        assert model.stats().queued == 0
        assert model.stats().meter.errors == {}


def test_a_model_that_is_closed_in_the_middle_of_it_answers_or_says_so(path):
    model = open_bundle(path, cache=False)
    futures, ends = [], []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            try:
                futures.append(model.submit(tiny.RED))
            except (ClosedError, QueueFull) as error:
                ends.append(error)
                return

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for one in asking:
        one.start()
    time.sleep(0.05)
    model.close(timeout_s=0.05)
    stop.set()
    for one in asking:
        one.join(LONG)
    for future in futures:
        error = future.exception(LONG)
        assert error is None or isinstance(error, EdgekitError)
    with pytest.raises(ClosedError):
        model.predict(tiny.RED)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX")
def test_a_pipe_is_refused_wherever_a_file_is_meant(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match="not a regular file"):
        open_bundle(tmp_path / "pipe")
    with pytest.raises(EdgekitError, match="not a regular file"):
        open_bundle(path, cache=CacheOptions(disk=tmp_path / "pipe"))


@pytest.mark.parametrize("priority", ["high", None, float("nan"), 0.5, 10**400])
def test_an_impossible_priority_is_the_callers_bug_and_harms_nobody(path, priority):
    with open_bundle(path, cache=False) as model:
        model.throttle(20)
        futures = [model.submit(tiny.RED) for _ in range(3)]
        with pytest.raises(ValueError, match="priority must be a whole number"):
            model.submit(tiny.RED, priority=priority)
        assert all(future.result(LONG).top(1) for future in futures)


def test_a_number_that_the_model_cannot_hold_is_refused_before_it_becomes_infinite(path):
    with open_bundle(path, cache=False) as model, pytest.raises(InputError, match="values outside float32"):
        model.predict(np.full((8, 8, 3), 1e300))


def test_who_joined_a_request_that_was_interrupted_goes_on_alone(path):
    with open_bundle(path) as model:
        engine, joined = model._journey.device.engine, []
        run = engine.run

        def struck(tensors):  # Ctrl-C in the thread of the one that leads, while another has joined
            if joined:
                return run(tensors)
            joined.append(model.submit(tiny.RED))
            raise KeyboardInterrupt

        engine.run = struck
        with pytest.raises(KeyboardInterrupt):
            model.predict(tiny.RED)
        assert joined[0].result(LONG).top(1)[0].label == "red"

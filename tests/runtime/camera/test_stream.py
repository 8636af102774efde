"""`stream` answers the newest frame, counts what it drops, and ends cleanly however it ends."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading

import memory
import numpy as np
import pytest
import tiny

from edgekit_runtime import CacheOptions, Frame, Health, OptionError, open_bundle, stream
from edgekit_runtime import camera as camera_module
from edgekit_runtime.system.errors import BudgetExceeded, CameraError, EngineError, InputError

LONG = 60
COLOURS = {"red": tiny.RED, "green": tiny.GREEN, "blue": tiny.BLUE, "dark": tiny.DARK}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def model(bundle):
    with open_bundle(bundle, cache=False) as opened:
        yield opened


@pytest.fixture
def at_once(monkeypatch):
    """A camera that stopped is opened again without a pause."""
    monkeypatch.setattr(camera_module, "_LONGEST_PAUSE_S", 0.0)


def labels(results):
    return [result.answer.top(1)[0].label for result in results]


def readers():
    return [one for one in threading.enumerate() if one.name == "edgekit-camera"]


class Slow:
    """A model that answers a frame once the camera has given `until` of them."""

    def __init__(self, model, until):
        self._model, self._until = model, until
        self.entered, self.given = threading.Event(), 0
        self._changed = threading.Condition()
        self.count_dropped = model.count_dropped

    def camera(self, frames):
        """The first frame, and the others once it is being answered."""
        for at, frame in enumerate(frames):
            if at:
                assert self.entered.wait(LONG)
            yield frame
            with self._changed:  # the stream has taken it, and asks for the next
                self.given = at + 1
                self._changed.notify()

    def predict(self, inputs, *, budget_ms=None):
        self.entered.set()
        with self._changed:
            assert self._changed.wait_for(lambda: self.given >= self._until, LONG)
        return self._model.predict(inputs, budget_ms=budget_ms)


def test_a_slow_model_gets_the_newest_frame_and_the_others_are_counted(model):
    slow = Slow(model, until=4)
    frames = [tiny.RED, tiny.GREEN, tiny.DARK, tiny.BLUE]
    results = list(stream(slow.camera(frames), slow, keep="newest"))
    assert labels(results) == ["red", "blue"]
    assert [(result.number, result.dropped) for result in results] == [(1, 2), (4, 2)]
    assert model.stats().meter.dropped == 2
    assert "edgekit_frames_dropped_total{" in model.metrics_text()


def test_all_frames_are_answered_where_all_are_asked_for(model):
    results = list(stream([*COLOURS.values()], model, keep="all"))
    assert labels(results) == list(COLOURS)
    assert [(result.number, result.dropped) for result in results] == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_an_iterable_may_overwrite_its_frame(model):
    def camera():
        pixels = np.empty_like(tiny.RED)
        for colour in COLOURS.values():
            pixels[:] = colour
            yield Frame(pixels, "rgb")

    assert labels(stream(camera(), model)) == list(COLOURS)


def test_a_camera_that_stops_is_opened_again_logged_and_counted(model, at_once, caplog):
    caplog.set_level(logging.INFO, "edgekit_runtime.camera")
    days = iter([[tiny.RED, tiny.GREEN], OSError("unplugged"), OSError("unplugged"), [tiny.BLUE], [tiny.DARK]])

    def camera():
        day = next(days)
        if isinstance(day, OSError):
            raise day
        return day

    results = []
    with stream(camera, model, keep="all") as frames:
        for result in frames:
            results.append(result)
            if len(results) == 4:
                break
    assert labels(results) == list(COLOURS)
    assert results[-1].stopped >= 2
    said = [record.levelname for record in caplog.records][:5]
    assert said == ["WARNING", "INFO", "INFO", "WARNING", "WARNING"]  # stopped, twice in vain, back, stopped


def test_a_camera_that_never_gave_a_frame_is_an_error_at_once(model):
    with pytest.raises(CameraError):
        list(stream(list, model))

    def broken():
        raise OSError("no such bus")

    with pytest.raises(OSError, match="no such bus"):
        list(stream(broken, model))
    assert not readers()


def test_no_frames_are_no_results(model):
    assert list(stream([], model)) == []


def test_what_a_source_raises_comes_after_its_last_frame(model):
    lost = RuntimeError("the lens cap is on")

    def camera():
        yield tiny.RED
        raise lost

    frames = stream(camera(), model)
    assert labels([next(frames)]) == ["red"]
    with pytest.raises(RuntimeError) as raised:
        next(frames)
    assert raised.value is lost
    assert not readers()


@pytest.mark.parametrize("bad", [np.zeros((8, 8, 3), np.int32), np.zeros((4, 8, 5), np.uint8), "nowhere.png"])
def test_a_frame_that_the_model_cannot_take_ends_the_stream_with_one_error(model, bad):
    frames = stream([tiny.RED, bad, tiny.BLUE], model)
    next(frames)
    with pytest.raises(InputError):
        next(frames)
    with pytest.raises(StopIteration):
        next(frames)
    assert not readers()


def test_a_refused_frame_is_a_result(model):
    results = list(stream([tiny.RED, tiny.BLUE], model, budget_ms=1e-6))
    assert [type(result.error) for result in results] == [BudgetExceeded] * 2
    assert [result.answer for result in results] == [None] * 2
    assert model.stats().meter.refused == 2


def test_a_frame_that_an_engine_lost_is_a_result_while_the_engine_lives(model, monkeypatch):
    answer, died = model.predict, [EngineError("it was restarted")]

    def predict(inputs, *, budget_ms=None):
        if died:
            raise died.pop()
        return answer(inputs, budget_ms=budget_ms)

    monkeypatch.setattr(model, "predict", predict)
    first, second = stream([tiny.RED, tiny.BLUE], model)
    assert isinstance(first.error, EngineError)
    assert labels([second]) == ["blue"]
    died.append(EngineError("for the fifth time"))
    monkeypatch.setattr(model, "health", lambda: Health("dead", "five deaths"))
    with pytest.raises(EngineError):
        list(stream([tiny.RED], model))


def test_a_still_scene_is_answered_by_the_cache(bundle):
    noise = np.random.default_rng(1)
    still = [np.clip(tiny.RED + noise.integers(-1, 2, tiny.RED.shape), 0, 255).astype(np.uint8) for _ in range(20)]
    with open_bundle(bundle, cache=CacheOptions(similar=2.0)) as model:
        sources = [result.answer.source for result in stream(still, model)]
    assert sources[0] == "device"
    assert set(sources[1:]) == {"similar"}


def test_a_model_with_a_state_is_asked_in_its_session(tmp_path):
    xs = memory.frames(6)
    with open_bundle(memory.bundle(tmp_path, memory.HERE[0])) as model, model.session() as session:
        found = [result.answer.outputs["y"] for result in stream(xs, session, keep="all")]
        session.count_dropped(3)
        assert model.stats().meter.dropped == 3
    np.testing.assert_allclose(found, memory.worked_out(xs, memory.begins(memory.HERE[0])), atol=1e-5)


def endless(freed):
    try:
        while True:
            yield tiny.RED
    finally:
        freed.set()


@pytest.mark.parametrize("keep", ["newest", "all"])
@pytest.mark.parametrize("how", ["with", "close", "lost", "an exception in the loop"])
def test_the_end_of_the_loop_frees_the_camera(model, keep, how):
    freed = threading.Event()
    frames = stream(lambda: endless(freed), model, keep=keep)
    if how == "with":
        with frames:
            next(frames)
    elif how == "close":
        next(frames)
        frames.close()
    elif how == "lost":
        next(frames)
        del frames
        gc.collect()
    else:
        with pytest.raises(KeyError), frames:
            for _ in frames:
                raise KeyError
    assert freed.is_set()
    assert not readers()


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_ctrl_c_while_it_waits_frees_the_camera(model):
    freed, answered = threading.Event(), threading.Event()

    def camera():
        yield tiny.RED
        assert answered.wait(LONG)
        os.kill(os.getpid(), signal.SIGINT)
        yield from endless(freed)

    frames = stream(camera, model, keep="all")
    with pytest.raises(KeyboardInterrupt):
        for _ in frames:
            answered.set()
    assert freed.is_set()
    assert not readers()


def test_another_thread_may_close_it(model):
    waits = threading.Event()

    def camera():
        yield tiny.RED
        waits.wait(LONG)

    frames = stream(camera, model)
    next(frames)

    def close():
        frames.close(0.0)
        waits.set()

    closer = threading.Thread(target=close)
    closer.start()
    assert list(frames) == []
    closer.join(LONG)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"keep": "latest"}, "keep"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"source": None}, "source"),
        ({"source": True}, "source"),
        ({"source": ""}, "source"),
        ({"model": "net.ekb"}, "model"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(model, arguments, option):
    given = {"source": [tiny.RED], "model": model} | arguments
    with pytest.raises(OptionError) as refused:
        stream(**given)
    assert refused.value.option == option

"""A stateful bundle that is opened: sessions answer, everything that has no meaning for a state says so."""

from __future__ import annotations

import array
import os
import threading

import memory
import numpy as np
import pytest

from edgekit_runtime import open_bundle
from edgekit_runtime.system.errors import ClosedError, ForkedError, SessionError

KIND = pytest.mark.parametrize("kind", memory.HERE)
ROUGH = {"inside": 1e-5, "onnx": 1e-5, "int8": 0.15}


@pytest.fixture
def opened(tmp_path):
    models = []

    def opening(kind, **options):
        models.append(open_bundle(memory.bundle(tmp_path, kind), **options))
        return models[-1]

    yield opening
    for model in models:
        model.close()


@KIND
def test_it_answers_frame_by_frame_and_again_after_a_reset(opened, kind):
    xs = memory.frames(30)
    with opened(kind).session() as session:
        first = np.array([session.predict(x).outputs["y"] for x in xs])
        session.reset()
        again = [session.predict(x).outputs["y"] for x in xs]
    assert np.abs(first - memory.worked_out(xs, memory.begins(kind))).max() <= ROUGH[kind]
    np.testing.assert_array_equal(first, again)


@KIND
def test_the_warm_up_leaves_no_trace(opened, kind):
    """Golden sequences were replayed and engines timed before; none of that is in a session's state."""
    with opened(kind).session() as session:
        got = session.predict(np.zeros(3, np.float32)).outputs["y"]
    wanted = memory.worked_out(np.zeros((1, 3), np.float32), memory.begins(kind))[0]
    assert np.abs(got - wanted).max() <= 0.02


@KIND
def test_eight_threads_with_a_session_each_never_mix(opened, kind):
    model, inputs = opened(kind), [memory.frames(40, seed) for seed in range(8)]
    wanted = []
    for xs in inputs:
        with model.session() as session:
            wanted.append([session.predict(x).outputs["y"] for x in xs])
    got = [None] * len(inputs)

    def ask(place):
        with model.session() as session:
            got[place] = [future.result(30).outputs["y"] for future in [session.submit(x) for x in inputs[place]]]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(got, wanted)


@KIND
def test_predict_and_submit_name_the_session(opened, kind):
    model = opened(kind)
    for ask in (model.predict, model.submit):
        with pytest.raises(
            SessionError, match=r"keeps a state .* with model\.session\(\) as session: session\.predict"
        ):
            ask(memory.frames(1)[0])
    assert model.stats().meter.errors == {"session": 2}


def test_a_model_without_state_has_no_sessions(tmp_path):
    import tiny

    from edgekit_runtime.engines.registry import available

    with open_bundle(tiny.bundle_for(min(available()), tmp_path)) as model:
        with pytest.raises(SessionError, match="is stateless"):
            model.session()
        model.predict(tiny.RED)


@KIND
def test_the_meter_counts_frames_and_nothing_is_cached(opened, kind):
    model = opened(kind)
    with model.session() as session:
        for _ in range(5):
            session.predict(np.ones(3, np.float32))
    stats = model.stats()
    assert (stats.meter.answers, stats.cache) == ({"device": 5}, None)
    assert stats.max_batch == 1


@KIND
def test_closing_the_model_closes_its_sessions(opened, kind):
    model = opened(kind)
    session = model.session()
    session.predict(np.ones(3, np.float32))
    model.close()
    with pytest.raises(ClosedError):
        session.predict(np.ones(3, np.float32))
    with pytest.raises(ClosedError):
        model.session()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_session_does_not_survive_a_fork(opened):
    with opened(memory.HERE[0]).session() as session:
        session.predict(np.ones(3, np.float32))
        child = os.fork()
        if child == 0:  # only the exit status comes back
            try:
                session.predict(np.ones(3, np.float32))
            except ForkedError:
                os._exit(7)
            except BaseException:
                os._exit(8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        session.predict(np.ones(3, np.float32))


@KIND
def test_describe_tells_that_the_sequences_were_replayed(opened, kind):
    tested = opened(kind).describe()["selftest"]
    assert (tested["examples"], tested["same_engine"], tested["worst_steps"]) == (2, True, 0.0)


def test_a_sessions_own_engine_runs_as_the_one_that_was_proved(opened):
    """The same engine, threads and kernels: what was tuned and tested is what answers."""
    model = opened("inside")
    proved = model._journey.opened.prepared.engine.info
    with model.session() as session:
        assert session._engine.info == proved


@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_a_session_has_the_models_words_for_a_budget_that_makes_no_sense(opened, ask):
    with opened("int8").session() as session:
        with pytest.raises(ValueError, match="budget_ms must be a number of milliseconds above 0, not '5'"):
            getattr(session, ask)(memory.frames(1)[0], budget_ms="5")
        assert session.predict(memory.frames(1)[0]).source == "device"


def test_a_session_feeds_what_the_frame_held_when_it_was_asked_for(opened):
    held = array.array("f", memory.frames(1)[0].tolist())
    with opened("int8").session() as session, opened("int8").session() as other:
        future = session.submit(held)
        held[:] = array.array("f", [9.0, 9.0, 9.0])
        wanted = other.predict(memory.frames(1)[0]).outputs["y"]
        np.testing.assert_array_equal(future.result(10).outputs["y"], wanted)

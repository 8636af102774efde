"""A stateful model answers frame by frame, in order, and two sessions never mix."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace

import memory
import numpy as np
import pytest

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.serving.session import SessionParts, Sessions, Turns, needs_session
from edgekit_runtime.system.errors import ClosedError, EngineError, InputError, SessionError

KIND = pytest.mark.parametrize("kind", memory.HERE)
ROUGH = {"inside": 1e-5, "onnx": 1e-5, "int8": 0.15}  # 8 bits of tanh, through 40 steps


@dataclass
class Served:
    result: list
    queued_s: float = 0.0
    ran_s: float = 0.0


class OpenedBundle:
    """A bundle of the memory with its sessions, as a model wires them."""

    def __init__(self, folder, kind, **changes):
        self.bundle = read_bundle(memory.bundle(folder, kind))
        self.entry = self.bundle.artifact()
        self.engine, self.lock = self.load(), threading.Lock()
        self.told, self.errors = [], []
        parts = SessionParts(
            self.bundle.manifest.contract,
            self.entry,
            self.entry.inputs,
            "an engine 1",
            self.run,
            self.load,
            self.answered,
            self.errors.append,
        )
        self.sessions = Sessions(replace(parts, **changes))

    def load(self):
        return load_engine(self.entry.format, self.bundle.blob(self.entry.blob))

    def run(self, tensors):
        with self.lock:
            return Served(self.engine.run(tensors))

    def answered(self, total_ms, met, timings):
        self.told.append((total_ms, met, dict(timings)))

    def session(self):
        return self.sessions.open()


@pytest.fixture
def opened(tmp_path):
    made = []

    def opening(kind, **changes):
        made.append(OpenedBundle(tmp_path, kind, **changes))
        return made[-1]

    yield opening
    for one in made:
        one.sessions.close()
        one.engine.close()


def answers(session, xs):
    return np.array([session.predict(x).outputs["y"] for x in xs])


@KIND
def test_frames_are_answered_as_the_model_does_with_its_state(opened, kind):
    xs = memory.frames(40)
    with opened(kind).session() as session:
        got = answers(session, xs)
    assert np.abs(got - memory.worked_out(xs, memory.begins(kind))).max() <= ROUGH[kind]


def test_a_state_in_eight_bits_is_requantized_as_by_hand(opened):
    model, xs = opened("int8"), memory.frames(40)
    (h, x), (h_out, y) = model.engine.inputs, model.engine.outputs
    state, wanted = np.full((1, 4), h.quantization.zero_point, np.int8), []
    for frame in xs:
        new, answer = model.engine.run([state, quantized(frame[None], x.quantization)])
        wanted.append(real(answer[0], y.quantization))
        state = quantized(real(new, h_out.quantization), h.quantization)
    assert h.quantization != h_out.quantization
    with model.session() as session:
        np.testing.assert_array_equal(answers(session, xs), np.array(wanted, np.float32))


def quantized(values, q):
    return np.clip(np.rint(values / np.float32(q.scale)) + q.zero_point, -128, 127).astype(np.int8)


def real(values, q):
    return (values.astype(np.float32) - q.zero_point) * np.float32(q.scale)


@KIND
def test_two_sessions_never_mix(opened, kind):
    model, first, second = opened(kind), memory.frames(30, 1), memory.frames(30, 2)
    with model.session() as a:
        alone_a = answers(a, first)
    with model.session() as b:
        alone_b = answers(b, second)
    with model.session() as a, model.session() as b:
        mixed = [(a.predict(x).outputs["y"], b.predict(z).outputs["y"]) for x, z in zip(first, second, strict=True)]
    np.testing.assert_array_equal([left for left, _ in mixed], alone_a)
    np.testing.assert_array_equal([right for _, right in mixed], alone_b)


@KIND
def test_sessions_of_many_threads_never_mix(opened, kind):
    model = opened(kind)
    inputs = [memory.frames(25, seed) for seed in range(6)]
    wanted = []
    for xs in inputs:
        with model.session() as session:
            wanted.append(answers(session, xs))
    got = [None] * len(inputs)

    def ask(place):
        with model.session() as session:
            got[place] = answers(session, inputs[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(got, wanted)


@KIND
def test_after_a_reset_the_next_frame_is_a_first_one(opened, kind):
    xs = memory.frames(8)
    with opened(kind).session() as session:
        first = answers(session, xs)
        again = answers(session, xs)
        session.reset()
        assert session.frames == 0
        after = answers(session, xs)
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(first, after)


def test_the_state_begins_as_the_contract_says(opened):
    kind = next((kind for kind in memory.HERE if kind != "inside"), None)
    contract = replace(memory.CARRIED, carried=(replace(memory.CARRIED.carried[0], initial=(0.5,)),))
    with opened(kind, contract=contract).session() as session:
        got = answers(session, memory.frames(10))
    assert np.abs(got - memory.worked_out(memory.frames(10), 0.5)).max() <= ROUGH[kind]


@KIND
def test_submitted_frames_keep_their_order(opened, kind):
    model, xs = opened(kind), memory.frames(50)
    with model.session() as session:
        wanted = answers(session, xs)
        session.reset()
        futures = [session.submit(x) for x in xs[:30]]
        last = [session.predict(x).outputs["y"] for x in xs[30:]]
        got = [future.result(10).outputs["y"] for future in futures] + last
    np.testing.assert_array_equal(got, wanted)


@KIND
def test_asyncio_callers_keep_their_order(opened, kind):
    model, xs = opened(kind), memory.frames(20)
    with model.session() as session:
        wanted = answers(session, xs)
        session.reset()

        async def ask():
            return await asyncio.gather(*(session.apredict(x) for x in xs))

        got = [answer.outputs["y"] for answer in asyncio.run(ask())]
    np.testing.assert_array_equal(got, wanted)


def test_the_callers_array_may_be_reused_at_once(opened):
    xs = memory.frames(20)
    with opened(memory.HERE[0]).session() as session:
        wanted = answers(session, xs)
        session.reset()
        buffer, futures = np.empty(3, np.float32), []
        for x in xs:
            buffer[:] = x
            futures.append(session.submit(buffer))
        buffer[:] = 99
        np.testing.assert_array_equal([future.result(10).outputs["y"] for future in futures], wanted)


class Held:
    """An engine that waits before each run until it is let go."""

    def __init__(self, engine):
        self._engine, self.running, self.go = engine, threading.Event(), threading.Event()

    def run(self, tensors):
        self.running.set()
        assert self.go.wait(20)
        return self._engine.run(tensors)

    def close(self):
        self._engine.close()


def with_load(model, load):
    model.sessions = Sessions(replace(model.sessions._parts, load=load))
    return model


def test_a_frame_that_is_cancelled_before_its_turn_was_never_fed(opened):
    xs = memory.frames(3)
    model = opened("inside")
    engine = Held(model.load())
    session = with_load(model, lambda: engine).session()
    first, dropped, last = (session.submit(x) for x in xs)
    assert engine.running.wait(10)
    assert dropped.cancel()
    engine.go.set()
    got = [first.result(10).outputs["y"], last.result(10).outputs["y"]]
    np.testing.assert_allclose(got, memory.worked_out(xs[[0, 2]], 0.25), atol=1e-5)
    session.close()


def test_closing_fails_what_waits_and_lets_the_running_frame_end(opened):
    model = opened("inside")
    engine = Held(model.load())
    session = with_load(model, lambda: engine).session()
    running, waiting = session.submit(memory.frames(1)[0]), session.submit(memory.frames(1)[0])
    assert engine.running.wait(10)
    session.close(timeout_s=0)
    with pytest.raises(ClosedError):
        waiting.result(10)
    engine.go.set()
    assert running.result(10).outputs["y"].shape == (2,)
    with pytest.raises(ClosedError, match="session was closed"):
        session.predict(memory.frames(1)[0])


def test_a_caller_that_waits_hears_of_the_closing(opened):
    model = opened("inside")
    engine = Held(model.load())
    session = with_load(model, lambda: engine).session()
    session.submit(memory.frames(1)[0])
    assert engine.running.wait(10)
    heard = []

    def ask():
        try:
            session.predict(memory.frames(1)[0])
        except ClosedError as error:
            heard.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    while not session._turns._waiting:  # it has come to the line
        pass
    session.close(timeout_s=0)
    caller.join(10)
    engine.go.set()
    assert len(heard) == 1


class Failing:
    """An engine that fails at one run."""

    def __init__(self, engine, at):
        self._engine, self._left = engine, at

    def run(self, tensors):
        self._left -= 1
        if self._left == 0:
            raise EngineError("the inference failed: on purpose")
        return self._engine.run(tensors)

    def close(self):
        self._engine.close()


def test_after_a_failed_inference_a_state_inside_is_not_known_until_it_is_reset(opened):
    model, xs = opened("inside"), memory.frames(4)
    engines = [Failing(model.load(), 2), model.load()]
    session = with_load(model, lambda: engines.pop(0)).session()
    session.predict(xs[0])
    with pytest.raises(EngineError, match="on purpose"):
        session.predict(xs[1])
    with pytest.raises(SessionError, match=r"unknown because an inference failed\. Call session\.reset"):
        session.predict(xs[1])
    session.reset()
    np.testing.assert_allclose(answers(session, xs), memory.worked_out(xs, 0.25), atol=1e-5)
    assert [type(error) for error in model.errors] == [EngineError, SessionError]
    session.close()


def test_after_a_failed_inference_a_carried_state_is_as_before_it(opened):
    kind = next((kind for kind in memory.HERE if kind != "inside"), None)
    model, xs = opened(kind), memory.frames(4)
    with model.session() as session:
        wanted = answers(session, xs)
    model.engine = Failing(model.engine, 3)
    with model.session() as session:
        got = [session.predict(x).outputs["y"] for x in xs[:2]]
        with pytest.raises(EngineError):
            session.predict(xs[2])
        got += [session.predict(x).outputs["y"] for x in xs[2:]]
    np.testing.assert_array_equal(got, wanted)


@KIND
@pytest.mark.parametrize("bad", [np.zeros(4, np.float32), np.array([0, np.nan, 0], np.float32)], ids=["shape", "NaN"])
def test_a_frame_that_is_refused_was_never_fed(opened, kind, bad):
    model, xs = opened(kind), memory.frames(6)
    with model.session() as session:
        wanted = answers(session, xs)
        session.reset()
        got = [session.predict(x).outputs["y"] for x in xs[:3]]
        with pytest.raises(InputError):
            session.predict(bad)
        got += [session.predict(x).outputs["y"] for x in xs[3:]]
    np.testing.assert_array_equal(got, wanted)
    assert [error.code for error in model.errors] == ["input"]


def test_the_state_is_no_input_and_no_output(opened):
    kind = next((kind for kind in memory.HERE if kind != "inside"), None)
    with opened(kind).session() as session:
        answer = session.predict({"x": memory.frames(1)[0]})
        assert set(answer.outputs) == {"y"}
        assert [spec.name for spec in session.contract.inputs] == ["x"]
        with pytest.raises(InputError, match=r"'h_in' is the state, which the session carries\. Pass x alone"):
            session.predict({"x": memory.frames(1)[0], "h_in": np.zeros(4, np.float32)})


def test_int8_frames_that_are_ready_are_taken_as_they_are(opened):
    tensor = next(tensor for tensor in memory.artifact("int8").inputs if tensor.name == "x")
    xs = memory.frames(5)
    ready = np.clip(np.rint(xs / tensor.quantization.scale) + tensor.quantization.zero_point, -128, 127).astype(np.int8)
    with opened("int8").session() as session:
        wanted = answers(session, xs)
        session.reset()
        np.testing.assert_array_equal(answers(session, ready), wanted)


@KIND
def test_an_answer_says_what_it_cost_and_the_meter_hears_of_it(opened, kind):
    model = opened(kind)
    with model.session() as session:
        answer = session.predict(memory.frames(1)[0], budget_ms=10_000)
        late = session.predict(memory.frames(1)[0], budget_ms=1e-6)
    assert set(answer.timings) == {"decode", "adapt", "queue", "engine", "finish", "total"}
    assert (answer.source, answer.met_budget, late.met_budget) == ("device", True, False)
    assert [met for _, met, _ in model.told] == [True, False]
    assert not answer.outputs["y"].flags.writeable


def test_sessions_with_engines_of_their_own_are_bounded(opened):
    model = opened("inside", most=2)
    first, _second = model.session(), model.session()
    with pytest.raises(SessionError, match=r"2 sessions are open.*Close one"):
        model.session()
    first.close()
    _third = model.session()
    assert len(model.sessions._open) == 2


def test_a_session_that_nobody_holds_any_more_makes_room(opened):
    model = opened("inside", most=1)
    model.session().predict(memory.frames(1)[0])
    gc.collect()
    model.session()


def test_a_closed_model_closes_its_sessions_and_opens_no_more(opened):
    model = opened(memory.HERE[0])
    session = model.session()
    model.sessions.close()
    with pytest.raises(ClosedError):
        session.predict(memory.frames(1)[0])
    with pytest.raises(ClosedError, match="model was closed"):
        model.session()
    session.close()


def test_a_callback_that_would_hold_up_its_own_session_is_told(opened):
    with opened(memory.HERE[0]).session() as session:
        told, done = [], threading.Event()

        def callback(_):
            try:
                session.predict(memory.frames(1)[0])
            except SessionError as error:
                told.append(str(error))
            session.submit(memory.frames(1)[0]).add_done_callback(lambda _: done.set())

        session.submit(memory.frames(1)[0]).add_done_callback(callback)
        assert done.wait(10)
    # Where the answer was there before the callback was added, it runs in this thread, which may wait.
    assert all("Call session.submit() there" in text for text in told)


def test_every_future_completes_once_under_random_submits_and_cancels(opened):
    model, rng = opened(memory.HERE[0]), np.random.default_rng(0)
    futures, lock = [], threading.Lock()
    with model.session() as session:

        def ask(seed):
            mine = np.random.default_rng(seed)
            for x in memory.frames(60, seed):
                future = session.submit(x)
                with lock:
                    futures.append(future)
                if mine.random() < 0.4:
                    future.cancel()

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in rng.integers(0, 1000, 8).tolist()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answered = cancelled = 0
        for future in futures:
            try:
                answered += future.result(20).outputs["y"].shape == (2,)
            except CancelledError:
                cancelled += 1
        assert answered + cancelled == len(futures) == 480
        assert session.frames == answered


def test_a_stateless_model_has_no_sessions_and_a_stateful_one_no_predict(opened):
    model = opened(memory.HERE[0], contract=replace(memory.INSIDE, state="none"))
    with pytest.raises(SessionError, match=r"is stateless.*model\.predict"):
        model.session()
    for contract in (memory.CARRIED, memory.INSIDE):
        assert "session.predict(frame)" in str(needs_session(contract))
        assert needs_session(contract).code == "session"


def test_lines_of_sessions_share_no_lock():
    """A child that is forked while another thread's frame holds the lock of its own line is not stopped by it."""
    first, second, came = Turns(), Turns(), threading.Event()
    with first.take()._condition:
        waiting = threading.Thread(target=lambda: (second.wait(), came.set()), daemon=True)
        waiting.start()
        assert came.wait(10.0)

"""The first answers do not wait for the measurement: it runs beside the model, and the fastest takes over."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tiny
from heated import wait_for

from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import CacheOptions, MemoryBudget, ModelLimits, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import ENGINES, available
from edgekit_runtime.loading import readiness
from edgekit_runtime.loading.candidates import TuningCandidate, TuningOptions
from edgekit_runtime.loading.readiness import Preparation, choose_beside, prepare
from edgekit_runtime.loading.tuning import Tuner, offered_candidates, tune
from edgekit_runtime.policy.options import Options
from edgekit_runtime.serving.model import Model
from edgekit_runtime.serving.opened import OpenedBundle
from edgekit_runtime.system.children import StoppableRun, environment, python_code
from edgekit_runtime.system.errors import ClosedError, MemoryExceeded
from edgekit_runtime.system.files import in_turn
from edgekit_runtime.system.memory import Room

TFLITE = min((name for name in available() if "tflite" in ENGINES[name].formats), default="")
pytestmark = pytest.mark.skipif(
    not TFLITE or "onnxruntime" not in available(), reason="it takes a TFLite engine and ONNX Runtime"
)
WANTED = TuningOptions(threads=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    alternates = [BundleArtifact(tiny.artifact("onnx-f32"))]
    return tiny.bundle(tmp_path_factory.mktemp("beside"), engine=TFLITE, alternates=alternates)


@pytest.fixture(autouse=True)
def a_roomy_machine(monkeypatch):
    monkeypatch.setattr(readiness, "room_here", lambda: Room(None, 100_000.0))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


class Says(StoppableRun):
    """A child that finds the first candidate with this recipe to be the fastest, once it is let."""

    def __init__(self, recipe):
        super().__init__()
        self.recipe, self.let = recipe, threading.Event()

    def __call__(self, command, *, input, **options):
        if not self.let.wait(30):
            raise TimeoutError
        self.check()
        offer = [TuningCandidate(**one) for one in json.loads(input)["candidates"]]
        best = next(number for number, one in enumerate(offer) if one.recipe == self.recipe)
        tried = [{"number": n, "p50_ms": 1.0 + (n != best), "runs": 9, "ratio": 1.0} for n in range(len(offer))]
        fact = {"champion": best, "settled": True, "tried": tried, "seconds": 1.0}
        return subprocess.CompletedProcess(command, 0, json.dumps(fact), "")


class Opened:
    """A model whose measurement waits for `run.let`."""

    def __init__(self, path, folder, recipe="onnx-f32", *, run=None, batching=False, isolate=False, **options):
        self.run = run or Says(recipe)
        tuner = Tuner(1.0, folder=folder, later=True)
        how = Preparation(WANTED, batching=batching, isolate=isolate, tuning=tuner, later=True)
        bundle = read_bundle(path)
        self.prepared = prepare(bundle, how)
        bundle.release()
        self.model = Model(OpenedBundle(bundle, self.prepared), Options(**options), lambda _: None)
        assert self.prepared.verdict.pending
        self.model.choose_beside(lambda prepared, bundle, _: choose_beside(prepared, bundle, how, self.run))

    def settle(self):
        self.run.let.set()
        assert self.model._beside.wait(60)
        return self.model.describe()["tuning"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run.let.set()
        self.model.close()


@pytest.fixture
def opened(path, tmp_path):
    with Opened(path, tmp_path) as one:
        yield one


def test_the_primary_artifact_answers_first_and_then_the_fastest(opened, caplog):
    caplog.set_level(logging.INFO, logger="edgekit_runtime")
    model = opened.model
    tuning = model.describe()["tuning"]
    assert (tuning["pending"], tuning["how"], tuning["candidates"]) == (True, "default", [])
    assert "measured in the background" in tuning["why"]
    first = model.predict(tiny.RED)
    tuning = opened.settle()
    then = model.predict(tiny.BLUE)
    assert (first.artifact, then.artifact) == ("tflite-int8", "onnx-f32")
    assert (first.top(1)[0].label, then.top(1)[0].label) == ("red", "blue")
    assert (tuning["pending"], tuning["how"]) == (False, "measured")
    assert any("answered until all were measured" in note for note in model.describe()["notes"])
    assert any("onnx-f32 on onnxruntime" in record.getMessage() for record in caplog.records)
    stats = model.stats()
    assert (stats.artifact, stats.meter.requests, stats.faults) == ("onnx-f32", 2, {})
    assert 'edgekit_requests_total{model="tiny",version="1",source="device"} 2' in model.metrics_text()


def test_a_kept_answer_is_of_the_artifact_that_would_answer(path, tmp_path):
    cache = CacheOptions(disk=tmp_path / "answers.db")
    with Opened(path, tmp_path, cache=cache) as opened:
        model = opened.model
        before = [model.predict(tiny.RED) for _ in range(2)]
        opened.settle()
        after = [model.predict(tiny.RED) for _ in range(2)]
    assert [(one.source, one.artifact) for one in before] == [("device", "tflite-int8"), ("cache", "tflite-int8")]
    assert [(one.source, one.artifact) for one in after] == [("device", "onnx-f32"), ("cache", "onnx-f32")]


def test_a_first_choice_that_wins_stays_as_it_is_and_the_next_opening_knows(path, tmp_path):
    with Opened(path, tmp_path, "tflite-int8") as opened:
        engine = opened.model._journey.device.engine
        tuning = opened.settle()
        assert opened.model._journey.device.engine is engine
        assert (tuning["pending"], tuning["how"], tuning["kept"]) == (False, "measured", True)
    known = tune(read_bundle(path), WANTED, Tuner(1.0, folder=tmp_path, later=True))
    assert (known.how, known.pending) == ("stored", False)


def test_no_request_is_lost_while_the_engine_changes(opened):
    stop = threading.Event()

    def ask(number):
        draw, answers = np.random.default_rng(number), []
        while not stop.is_set():
            picture = draw.integers(0, 256, tiny.RED.shape, np.uint8)
            answers.append(opened.model.predict(picture) if number % 2 else opened.model.submit(picture).result(30))
        return answers

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        opened.settle()
        opened.model.predict(tiny.RED)
        stop.set()
        done = [answer for future in asking for answer in future.result(30)]
    assert opened.model.stats().meter.requests == len(done) + 1
    assert opened.model.stats().meter.errors == {}


def test_batches_are_tried_beside_the_first_answers(tmp_path):
    path = tiny.bundle(
        tmp_path, engine=TFLITE, batches=[BundleArtifact(tiny.artifact("tflite-int8, 4 at once", TFLITE))]
    )
    with Opened(path, tmp_path, "tflite-int8", batching=True) as opened:
        assert opened.prepared.engine.sizes == (1,)
        assert opened.prepared.notes == ()
        opened.settle()
        described = opened.model.describe()
        assert 4 in described["batches"] or any("batches of 4" in note for note in described["notes"])
        assert opened.model.predict(tiny.RED).top(1)[0].label == "red"


def test_an_isolated_engine_takes_over_and_outlives_the_thread_that_started_it(path, tmp_path):
    with Opened(path, tmp_path, isolate=True) as opened:
        opened.settle()
        answer = opened.model.predict(tiny.RED)
        assert (answer.artifact, answer.top(1)[0].label) == ("onnx-f32", "red")
        assert opened.model.stats().engine_restarts == 0


def test_a_drill_goes_on(opened):
    opened.model.throttle(7)
    opened.settle()
    assert opened.model._journey.device.throttle_s == pytest.approx(0.007)


def test_a_measurement_that_fails_costs_no_answer(path, tmp_path, caplog):
    class Fails(Says):
        def __call__(self, command, **options):
            raise MemoryExceeded("no room")

    with Opened(path, tmp_path, run=Fails("")) as opened:
        tuning = opened.settle()
        assert not tuning["pending"]
        assert "that failed: no room" in tuning["why"]
        assert opened.model.predict(tiny.RED).artifact == "tflite-int8"
        assert opened.model.stats().faults == {"choice": 1}


def test_another_bundle_in_between_is_not_replaced(path, tmp_path):
    with Opened(path, tmp_path) as opened:
        how = Preparation(WANTED, batching=False, tuning=Tuner(0.0))
        opened.model._opener = lambda again: OpenedBundle(read_bundle(again), prepare(read_bundle(again), how))
        opened.model.swap(path)
        opened.settle()
        assert opened.model.predict(tiny.RED).artifact == "tflite-int8"


def test_closing_ends_the_child_and_the_thread(path, tmp_path):
    started = threading.Event()

    class Sleeps(StoppableRun):
        def __call__(self, command, **options):
            return super().__call__([sys.executable, "-c", "import time; time.sleep(600)"], **options)

        def _begun(self, child):
            super()._begun(child)
            self.child = child
            started.set()

    run = Sleeps()
    run.let = threading.Event()
    opened = Opened(path, tmp_path, run=run)
    assert started.wait(60)
    opened.model._beside._run = run
    opened.model.close()
    assert opened.model._beside.wait(60)
    assert run.child.poll() is not None
    assert not any(thread.name == "edgekit-choice" for thread in threading.enumerate())
    after = tune(read_bundle(path), WANTED, Tuner(1.0, folder=tmp_path, later=True, run=let(Says("onnx-f32"))))
    assert (after.how, after.pending) == ("measured", False), "what was cut short is measured before the next answers"


def let(run):
    run.let.set()
    return run


def test_a_stopped_run_starts_no_child_and_one_that_runs_has_the_lowest_priority():
    run = StoppableRun()
    priority = python_code("import os, sys; sys.stdin.read(); print(os.getpriority(os.PRIO_PROCESS, 0))")
    done = run(priority, input="", text=True, timeout=60.0, env=environment())
    assert int(done.stdout) == 19
    run.stop()
    with pytest.raises(ClosedError):
        run(priority, timeout=60.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_ends_nothing_of_its_parents(opened):
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            opened.model.close()
            opened.model._beside.close()
            code = 0 if not opened.run._stopped else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert opened.settle()["how"] == "measured"
    assert opened.model.predict(tiny.RED).artifact == "onnx-f32"


@pytest.mark.parametrize("end", ["", "model.close()", "os._exit(0)"])
def test_a_process_that_ends_first_ends_well_and_the_next_opening_measures(path, tmp_path, end):
    program = (
        "import os, sys, numpy; from edgekit_runtime import open_bundle\n"
        "model = open_bundle(sys.argv[1], threads=1, cache=False)\n"
        f"print(model.describe()['tuning']['pending'], flush=True)\n{end}"
    )
    env = {name: value for name, value in environment().items() if name != "EDGEKIT_TUNE"}
    env["EDGEKIT_STATE_DIR"] = str(tmp_path)
    done = subprocess.run(python_code(program, str(path)), capture_output=True, text=True, env=env, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")
    kept, begun = (list((tmp_path / "tuning").glob(kind)) for kind in ("*.json", "*.begun"))
    assert bool(kept) != bool(begun), "a machine may halt the process until the child is done"


def test_of_two_openings_at_once_neither_waits(path, tmp_path):
    bundle, tuner = read_bundle(path), Tuner(1.0, folder=tmp_path, later=True)
    assert tune(bundle, WANTED, tuner).pending
    with in_turn(tmp_path / "tuning", 0.0) as alone:  # as the first one's measurement holds it
        assert alone
        assert tune(bundle, WANTED, tuner).pending
    assert tune(bundle, WANTED, replace(tuner, run=let(Says("onnx-f32")))).how == "measured"
    assert not list((tmp_path / "tuning").glob("*.begun"))


def test_what_is_due_again_answers_meanwhile(path, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 0.0, 0.0))
    bundle, tuner = read_bundle(path), Tuner(1.0, folder=tmp_path, run=let(Says("onnx-f32")))
    assert not tune(bundle, WANTED, tuner).settled
    (file,) = (tmp_path / "tuning").glob("*.json")
    os.utime(file, (0, 0))
    meanwhile = tune(bundle, WANTED, replace(tuner, later=True))
    assert (meanwhile.how, meanwhile.pending, meanwhile.chosen.recipe) == ("stored", True, "onnx-f32")


def test_silence_beside_a_model_is_held_against_no_candidate(path, tmp_path):
    def starved(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout, b'{"enter": 0}\n')

    bundle = read_bundle(path)
    verdict = tune(bundle, WANTED, Tuner(1.0, folder=tmp_path, run=starved, beside=True))
    assert (verdict.kept, verdict.how) == (False, "default")
    assert not list((tmp_path / "tuning").glob("*.json")), "an opening that has the processor measures it"


def test_a_primary_artifact_that_fails_here_is_no_first_answer(tmp_path):
    content = tiny.content(engine=TFLITE, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))])
    draft, manifest = assemble(content)
    wrong = draft.add(np.array([3, 100, 3, 3], np.int8).tobytes())
    golden = tuple(
        replace(
            one,
            answers=tuple(
                replace(answer, outputs={"probs": wrong}) if answer.recipe == "tflite-int8" else answer
                for answer in one.answers
            ),
        )
        for one in manifest.golden
    )
    path = tmp_path / "wrong.ekb"
    write_bundle(path, draft, replace(manifest, golden=golden))

    class Refuses(Says):
        def __call__(self, command, *, input, **options):
            if "tuning_trial" not in " ".join(command):
                return StoppableRun.__call__(self, command, input=input, **options)
            return super().__call__(command, input=input, **options)

    tuner = Tuner(1.0, folder=tmp_path, later=True, run=let(Refuses("onnx-f32")))
    prepared = prepare(read_bundle(path), Preparation(WANTED, batching=False, tuning=tuner, later=True))
    assert (prepared.entry.recipe, prepared.verdict.pending) == ("onnx-f32", False)
    prepared.close()


def test_what_cannot_change_later_is_measured_first(path, tmp_path, monkeypatch):
    bundle = read_bundle(path)

    def later(**options):
        how = Preparation(WANTED, tuning=Tuner(1.0, folder=tmp_path, later=True), **{"later": True, **options})
        return readiness._tuning(bundle, how).later

    assert later()
    assert not later(later=False)
    assert not later(memory=MemoryBudget(1000))
    monkeypatch.setattr(readiness, "room_here", lambda: Room(60.0, 100_000.0))
    assert not later(), "the child would not fit beside the model"
    assert not Tuner.from_environment(environ={"EDGEKIT_TUNE": "5"}).later
    assert Tuner.from_environment(environ={}).later
    monkeypatch.setenv("EDGEKIT_TUNE", "0.5")
    with open_bundle(path, threads=1) as model:
        assert model.describe()["tuning"]["how"] == "measured"


@pytest.mark.parametrize("options", [{"settled": True}, {"limits": ModelLimits(memory=MemoryBudget(1000))}])
def test_who_asks_for_it_gets_the_settled_choice(path, tmp_path, monkeypatch, options):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("EDGEKIT_TUNE")
    asked = []
    real = readiness.tune

    def looked(bundle, wanted, tuner):
        asked.append(tuner.later)
        return real(bundle, wanted, replace(tuner, bound_s=0.5, run=let(Says("onnx-f32"))))

    monkeypatch.setattr(readiness, "tune", looked)
    with open_bundle(path, threads=1, **options) as model:
        assert asked == [False]
        assert model.predict(tiny.RED).artifact == "onnx-f32"


def test_the_default_of_open_bundle_is_settled_beside(path, tmp_path, monkeypatch):
    """With the child that measures: whatever it chooses answers, and nothing stays behind."""
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("EDGEKIT_TUNE")
    with open_bundle(path, threads=1) as model:
        assert model.predict(tiny.RED).artifact == "tflite-int8"
        wait_for(lambda: not model.describe()["tuning"]["pending"])
        tuning = model.describe()["tuning"]
        assert tuning["how"] == "measured"
        assert len(tuning["candidates"]) == len(offered_candidates(read_bundle(path), WANTED))
        assert model.predict(tiny.RED).top(1)[0].label == "red"
    assert not any(thread.name == "edgekit-choice" for thread in threading.enumerate())

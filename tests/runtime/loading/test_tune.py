"""Tuning with real engines in a real child process: right, remembered, and robust against what it is pointed at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled

from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, available
from edgekit_runtime.loading.candidates import (
    CandidateTrial,
    TuningCandidate,
    TuningOptions,
    TuningVerdict,
)
from edgekit_runtime.loading.election import read, store
from edgekit_runtime.loading.tuning import Tuner, offered_candidates, tune
from edgekit_runtime.loading.tuning_trial import TooSlow, Trial, _EarlyStopEngine
from edgekit_runtime.system import children
from edgekit_runtime.system.errors import EngineError, MemoryExceeded, SelfTestError
from edgekit_runtime.system.sealed import read_sealed, write_sealed

ENGINE = min(set(available()) & {"litert", "tflite-runtime"}, default="")
pytestmark = pytest.mark.skipif(not ENGINE, reason="no TFLite engine is installed")
QUICK = 1.0
NO_NUMBERS = (float("inf"), float("nan"), 10**400)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    alternates = [BundleArtifact(tiny.artifact("onnx-f32"))] if "onnxruntime" in available() else []
    return tiny.bundle(tmp_path_factory.mktemp("tune"), engine=ENGINE, alternates=alternates)


@pytest.fixture(scope="module")
def bundle(path):
    return read_bundle(path)


class Counting:
    """Starts children as `subprocess.run` does, and counts them."""

    def __init__(self):
        self.started = 0

    def __call__(self, command, **options):
        self.started += 1
        return subprocess.run(command, **options)


def while_time_stands_still(command, *, input, **_):
    """The trial in this process, by a clock that never reaches its bound.

    A busy machine leaves no candidate untried.
    """
    facts, job = [], json.loads(input)
    offer = [TuningCandidate(**one) for one in job["candidates"]]
    Trial(read_bundle(job["path"]), offer, lambda fact: facts.append(json.dumps(fact)), clock=lambda: 0.0).run(
        job["bound_s"]
    )
    return subprocess.CompletedProcess(command, 0, "\n".join(facts), "")


def test_every_candidate_is_tried_and_the_verdict_says_what_was_found(bundle, tmp_path):
    verdict = tune(bundle, TuningOptions(), Tuner(QUICK, folder=tmp_path, run=while_time_stands_still))
    assert (verdict.how, verdict.kept) == ("measured", True)
    assert all(one.p50_ms > 0 or one.refused for one in verdict.tried)
    (measured,) = (one for one in verdict.tried if one.candidate == verdict.chosen)
    assert measured.first_ms > 0
    assert measured.load_ms > 0
    expected = {"tflite-int8"} | ({"onnx-f32"} if "onnxruntime" in available() else set())
    assert {one.candidate.recipe for one in verdict.tried} == expected


def test_it_is_measured_once(bundle, tmp_path):
    run = Counting()
    tuning = Tuner(QUICK, folder=tmp_path, run=run)
    first, second = tune(bundle, TuningOptions(), tuning), tune(bundle, TuningOptions(), tuning)
    assert run.started == 1
    assert (second.how, second.chosen, second.tried) == ("stored", first.chosen, first.tried)
    tune(bundle, TuningOptions(threads=2), tuning)
    assert run.started == 2, "another question is another measurement"


def test_what_a_busy_board_chose_is_measured_again_later_and_three_times_at_most(bundle, tmp_path, monkeypatch):
    if len(offered_candidates(bundle, TuningOptions())) < 2:
        pytest.skip("there is no choice with one candidate")
    ran = []

    def run(command, **options):
        ran.append(1)
        return while_time_stands_still(command, **options)

    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 1.0, 1.0))
    tuning = Tuner(QUICK, folder=tmp_path, run=run)
    for measured in (1, 2, 3, 3):
        verdict = tune(bundle, TuningOptions(), tuning)
        assert (len(ran), verdict.settled, verdict.kept) == (measured, len(ran) == 3, True)
        assert tune(bundle, TuningOptions(), tuning).how == "stored", "for ten minutes it is good"
        (file,) = (tmp_path / "tuning").glob("*.json")
        os.utime(file, (0, 0))


def test_candidates_that_had_no_turn_get_it_at_a_later_opening(bundle, tmp_path, monkeypatch):
    """On a busy board the bound is over after the first two; what they took is not forgotten."""
    offer = offered_candidates(bundle, TuningOptions())
    if len(offer) < 3:
        pytest.skip("two candidates have their turn at once")
    entered = []

    def run(command, *, input, **_):
        numbers = [offer.index(TuningCandidate(**one)) for one in json.loads(input)["candidates"]][:2]
        entered.append(numbers)
        took = [{0: 1.0, 1: 2.0}.get(one, 0.5) for one in numbers]
        tried = [{"number": at, "p50_ms": ms, "runs": 9, "ratio": 1.0} for at, ms in enumerate(took)]
        facts = [{"champion": int(numbers[1] == 2), "settled": True, "tried": tried, "seconds": 1.0}]
        return subprocess.CompletedProcess(command, 0, "\n".join(map(json.dumps, facts)), "")

    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    for measured in range(1, 4):
        verdict = tune(bundle, TuningOptions(), Tuner(QUICK, folder=tmp_path, run=run))
        assert [one.had_turn for one in verdict.tried[: measured + 1]] == [True] * (measured + 1)
        assert verdict.settled == (measured == 3 or measured + 1 == len(offer))
        (file,) = (tmp_path / "tuning").glob("*.json")
        os.utime(file, (0, 0))
        if verdict.settled:
            break
    assert entered[:2] == [[0, 1], [0, 2]]
    assert verdict.chosen == offer[2]


def test_a_damaged_verdict_is_measured_again(bundle, tmp_path):
    run = Counting()
    tuning = Tuner(QUICK, folder=tmp_path, run=run)
    tune(bundle, TuningOptions(threads=1), tuning)
    (file,) = (tmp_path / "tuning").glob("*.json")
    file.write_text("{")
    assert tune(bundle, TuningOptions(threads=1), tuning).how == "measured"
    assert run.started == 2
    assert tune(bundle, TuningOptions(threads=1), tuning).how == "stored"


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name in ("p50_ms", "p99_ms", "memory_mb", "threads", "seconds") for number in NO_NUMBERS]
    + [("runs", NO_NUMBERS[0]), ("runs", NO_NUMBERS[1])],
)
def test_a_verdict_with_a_number_that_is_none_is_measured_again(bundle, tmp_path, name, number):
    candidates = offered_candidates(bundle, TuningOptions(threads=1))
    tried = tuple(CandidateTrial(one, p50_ms=1.0, runs=3) for one in candidates)
    stored = store(tmp_path / "verdict.json", TuningVerdict(candidates[0], "measured", "", tried))
    assert stored.kept
    value = json.loads(read_sealed(tmp_path / "verdict.json", 1 << 20))
    first = value["tried"][0]
    {"seconds": value, "threads": first["candidate"]}.get(name, first)[name] = number
    assert read(tmp_path / "verdict.json", candidates, None) is not None
    write_sealed(tmp_path / "verdict.json", json.dumps(value).encode())
    assert read(tmp_path / "verdict.json", candidates, None) is None


def test_a_folder_that_cannot_be_written_only_means_measuring_again(bundle, tmp_path):
    (tmp_path / "tuning").write_text("a file where a folder should be")
    verdict = tune(bundle, TuningOptions(threads=1), Tuner(QUICK, folder=tmp_path))
    assert (verdict.how, verdict.kept) == ("measured", False)


@pytest.mark.parametrize("pin", [None, "primary"])
@pytest.mark.parametrize("state", ["read-only", "others may write"])
def test_what_each_start_measures_anew_is_said_once_with_what_to_do(bundle, tmp_path, caplog, monkeypatch, state, pin):
    monkeypatch.setattr(sys.modules["edgekit_runtime.loading.tuning"], "_SAID", set())
    folder = Path("/proc/1/task") if state == "read-only" else tmp_path
    if state != "read-only":
        (tmp_path / "tuning").mkdir()
        (tmp_path / "tuning").chmod(0o777)
    tuning = Tuner(QUICK, folder=folder, run=while_time_stands_still)
    for _ in range(2):
        verdict = tune(bundle, TuningOptions(threads=1, pin=pin), tuning)
        assert (verdict.how, verdict.kept) == ("measured", False)
        assert "; not stored, so each start measures: " in verdict.why
    (said,) = [record.getMessage() for record in caplog.records if "each start measures" in record.getMessage()]
    assert "EDGEKIT_STATE_DIR" in said
    several = len({one.blob for one in offered_candidates(bundle, TuningOptions(threads=1, pin=pin))}) > 1
    assert ("pin='primary'" in said) == several
    assert ("cannot be written" if state == "read-only" else "other users may write to it") in said


def test_what_is_kept_is_spoken_of_by_nobody(bundle, tmp_path, caplog):
    for _ in range(2):
        verdict = tune(bundle, TuningOptions(threads=1), Tuner(QUICK, folder=tmp_path, run=while_time_stands_still))
    assert (verdict.how, "not kept" in verdict.why, caplog.records) == ("stored", False, [])


def test_two_that_open_at_once_measure_once(bundle, tmp_path):
    run = Counting()
    tuning = Tuner(QUICK, folder=tmp_path, run=run)
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda _: tune(bundle, TuningOptions(), tuning), range(2)))
    assert run.started == 1
    assert {verdict.how for verdict in verdicts} == {"measured", "stored"}
    assert verdicts[0].chosen == verdicts[1].chosen


@pytest.mark.parametrize("setting", ["off", "OFF", "0", "0.0"])
def test_off_takes_the_bundles_default_and_starts_no_child(bundle, setting):
    run = Counting()
    tuning = replace(Tuner.from_environment(environ={"EDGEKIT_TUNE": setting}), run=run)
    verdict = tune(bundle, TuningOptions(), tuning)
    assert (verdict.how, run.started) == ("default", 0)
    assert (verdict.chosen.recipe, verdict.chosen.engine, verdict.chosen.threads) == ("tflite-int8", ENGINE, 1)


def test_the_bound_can_be_set_and_nonsense_is_a_typed_error():
    assert Tuner.from_environment(environ={}).bound_s == 5.0
    assert Tuner.from_environment(environ={"EDGEKIT_TUNE": "1.5"}).bound_s == 1.5
    for nonsense in ("fast", "-1", "nan"):
        with pytest.raises(EngineError, match=r"EDGEKIT_TUNE: .* nor a number of seconds"):
            Tuner.from_environment(environ={"EDGEKIT_TUNE": nonsense})


def test_no_child_is_started_where_none_can_be(bundle, monkeypatch):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    verdict = tune(bundle, TuningOptions(), Tuner(QUICK))
    assert verdict.how == "default"
    assert "child processes cannot" in verdict.why


def test_a_candidate_that_gives_other_answers_never_wins(tmp_path):
    content = tiny.content(engine=ENGINE)
    draft, manifest = assemble(content)
    wrong = np.full(4, 3, np.int8)
    forged = tuple(
        replace(golden, answers=(replace(golden.answers[0], outputs={"probs": draft.add(wrong.tobytes())}),))
        for golden in manifest.golden
    )
    write_bundle(tmp_path / "forged.ekb", draft, replace(manifest, golden=forged))
    with pytest.raises(SelfTestError, match=r"forged\.ekb.*golden example 0"):
        tune(read_bundle(tmp_path / "forged.ekb"), TuningOptions(), Tuner(QUICK, folder=tmp_path))
    assert not list((tmp_path / "tuning").glob("*.json"))


@pytest.fixture(scope="module")
def delegate(tmp_path_factory):
    source = Path(__file__).parents[1] / "engines" / "delegate.c"
    return compiled(source, tmp_path_factory.mktemp("delegate") / "libnothing.so")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (",mode=crash", "crashed with SIGABRT"),
        (",mode=missing", "no accelerator is plugged in"),
        ("-absent", "cannot be loaded"),
    ],
)
def test_a_delegate_in_trouble_is_a_reason_and_the_next_candidate_answers(bundle, tmp_path, delegate, options, why):
    run = Counting()
    wanted = TuningOptions(engine=ENGINE, threads=1, delegate=f"{delegate}{options}")
    verdict = tune(bundle, wanted, Tuner(QUICK, folder=tmp_path, run=run))
    assert verdict.chosen.delegate is None
    (refused,) = [one["refused"] for one in verdict.describe()["candidates"] if "delegate" in one["candidate"]]
    assert why in refused
    assert run.started == (2 if "crash" in options else 1)


def test_a_delegate_is_tuned_like_any_candidate(bundle, tmp_path, delegate):
    verdict = tune(
        bundle, TuningOptions(engine=ENGINE, threads=1, delegate=str(delegate)), Tuner(QUICK, folder=tmp_path)
    )
    assert verdict.tried[0].candidate.delegate == str(delegate)
    assert verdict.tried[0].p50_ms > 0


def test_a_child_that_hangs_costs_its_candidate_and_the_next_one_goes_on(bundle, tmp_path):
    def hangs(command, *, input, timeout, **options):
        if json.loads(input)["candidates"][0]["kernels"] == "default":
            raise subprocess.TimeoutExpired(command, timeout, b'{"enter": 0}\n')
        return subprocess.run(command, input=input, timeout=timeout, **options)

    verdict = tune(bundle, TuningOptions(engine=ENGINE, threads=1), Tuner(QUICK, folder=tmp_path, run=hangs))
    assert verdict.chosen.kernels == "plain"
    assert "did not respond within" in verdict.tried[0].refused["what"]


class Struck:
    """The first `times` children end by that signal, as soon as they were told of the first candidate."""

    def __init__(self, name, times=1):
        self.code, self.times, self.started = -signal.Signals[name], times, 0

    def __call__(self, command, **options):
        self.started += 1
        if self.started <= self.times:
            return subprocess.CompletedProcess(command, self.code, '{"enter": 0}\n', "")
        return subprocess.run(command, **options)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_a_signal_from_outside_blames_no_candidate_and_what_was_found_then_is_not_kept(bundle, tmp_path, name):
    run = Struck(name)
    tuning = Tuner(QUICK, folder=tmp_path, run=run)
    verdict = tune(bundle, TuningOptions(engine=ENGINE, threads=1), tuning)
    assert not any(one.refused for one in verdict.tried)
    assert verdict.tried[0].p50_ms > 0
    assert not list((tmp_path / "tuning").glob("*.json"))
    assert tune(bundle, TuningOptions(engine=ENGINE, threads=1), tuning).how == "measured", "asked anew"
    assert tune(bundle, TuningOptions(engine=ENGINE, threads=1), tuning).how == "stored"


def test_a_candidate_whose_trial_is_ended_again_and_again_is_left_out_for_that_opening(bundle, tmp_path):
    tuning = Tuner(QUICK, folder=tmp_path, run=Struck("SIGKILL", times=2))
    verdict = tune(bundle, TuningOptions(engine=ENGINE, threads=1), tuning)
    assert (verdict.chosen.kernels, verdict.kept) == ("plain", False)
    assert "killed by SIGKILL 2 times" in verdict.tried[0].refused["what"]
    assert tune(bundle, TuningOptions(engine=ENGINE, threads=1), tuning).tried[0].refused is None


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE"])
def test_a_crash_is_the_candidates_own_and_is_kept(bundle, tmp_path, name):
    verdict = tune(bundle, TuningOptions(engine=ENGINE, threads=1), Tuner(QUICK, folder=tmp_path, run=Struck(name)))
    assert (verdict.chosen.kernels, verdict.kept) == ("plain", True)
    assert f"crashed with {name}" in verdict.tried[0].refused["what"]


def test_a_real_child_that_is_told_to_end_is_started_again(bundle, tmp_path):
    def struck(command, **options):
        if not ended:
            command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
        ended.append(1)
        return children.run(command, **options)

    ended = []
    verdict = tune(bundle, TuningOptions(engine=ENGINE, threads=1), Tuner(QUICK, folder=tmp_path, run=struck))
    assert (verdict.how, verdict.kept, len(ended)) == ("measured", False, 2)


def test_when_the_time_is_over_nothing_is_begun_but_the_inference_that_names_a_winner(bundle):
    facts = []
    Trial(bundle, offered_candidates(bundle, TuningOptions(engine=ENGINE)), facts.append).run(bound_s=0.0)
    assert [fact["enter"] for fact in facts if "enter" in fact] == [0]
    assert facts[-1]["champion"] == 0
    assert [one["runs"] for one in facts[-1]["tried"]] == [1]


def test_a_child_that_comes_to_nothing_leaves_the_default(bundle, tmp_path):
    def nothing(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "ModuleNotFoundError: No module named 'numpy'")

    verdict = tune(bundle, TuningOptions(), Tuner(QUICK, folder=tmp_path, run=nothing))
    assert (verdict.how, verdict.kept) == ("default", False)


def test_a_file_that_was_replaced_meanwhile_is_not_believed(bundle, path, tmp_path):
    copy = tmp_path / "copy.ekb"
    copy.write_bytes(path.read_bytes())
    opened = read_bundle(copy)
    tiny.bundle(tmp_path, engine=ENGINE, name="another").replace(copy)
    verdict = tune(opened, TuningOptions(), Tuner(QUICK, folder=tmp_path))
    assert (verdict.how, verdict.kept) == ("default", False)


def test_where_nothing_fits_into_memory_the_error_says_how_much_would(bundle, tmp_path):
    run = Counting()
    tune(bundle, TuningOptions(threads=1), Tuner(QUICK, folder=tmp_path, run=run))
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(MemoryExceeded, match=r"0 MB are left\. Allow [\d.]+ MB more"):
            tune(bundle, TuningOptions(threads=1), Tuner(QUICK, memory_mb=-1.0, folder=folder, run=run))
    assert run.started == 2, "what was measured before is not measured again to be refused"


def as_if_large(file):
    """Every candidate of this verdict takes 2 GB."""
    value = json.loads(read_sealed(file, 1 << 20))
    for one in value["tried"]:
        one["memory_mb"] = 2000.0
    write_sealed(file, json.dumps(value).encode())


def test_a_measurement_that_refuses_is_made_again_after_ten_minutes(bundle, tmp_path):
    """One that was wrong, on a busy board, must not refuse for ever."""
    tuning = Tuner(QUICK, memory_mb=1000.0, folder=tmp_path)
    tune(bundle, TuningOptions(threads=1), tuning)
    (file,) = (tmp_path / "tuning").glob("*.json")
    as_if_large(file)
    with pytest.raises(MemoryExceeded):
        tune(bundle, TuningOptions(threads=1), tuning)
    os.utime(file, (0, 0))
    assert tune(bundle, TuningOptions(threads=1), tuning).how == "measured"
    assert tune(bundle, TuningOptions(threads=1), tuning).how == "stored"


def test_a_measurement_dated_in_the_future_refuses_nothing(bundle, tmp_path):
    """It would refuse until the clock is there."""
    tuning = Tuner(QUICK, memory_mb=1000.0, folder=tmp_path)
    tune(bundle, TuningOptions(threads=1), tuning)
    (file,) = (tmp_path / "tuning").glob("*.json")
    as_if_large(file)
    os.utime(file, (2**32, 2**32))
    assert tune(bundle, TuningOptions(threads=1), tuning).how == "measured"


class Slow(Engine):
    """Gives back what it gets, and counts."""

    def __init__(self):
        self.info = EngineInfo("slow", "1", 1)
        self.inputs = self.outputs = (TensorSpec("x", "x", "int8", (1, 1)),)
        self.runs = 0

    def run(self, inputs):
        self.runs += 1
        return [np.array(inputs[0])]

    def close(self):
        pass


@pytest.mark.parametrize(("champion_s", "runs"), [(1e-12, 3), (1e6, 9), (None, 9)])
def test_a_hopeless_candidate_is_not_tested_to_the_end(champion_s, runs):
    slow = Slow()
    impatient = _EarlyStopEngine(slow, champion_s)
    with pytest.raises(TooSlow, match="a run takes") if runs == 3 else contextlib.nullcontext():
        for _ in range(9):
            impatient.run([np.zeros((1, 1), np.int8)])
    assert slow.runs == runs


def test_a_candidate_is_not_charged_for_the_engines_library(bundle, tmp_path):
    verdict = tune(bundle, TuningOptions(engine=ENGINE), Tuner(QUICK, folder=tmp_path))
    held = sum(one.bytes for one in bundle.manifest.artifacts) / 1e6
    taken = [one.memory_mb for one in verdict.tried if one.memory_mb is not None]
    assert all(mb >= held for mb in taken), "the bundle is in memory, whoever runs it"
    assert taken[0] < held + 1.5, "the first that an engine loads"

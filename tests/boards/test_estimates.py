"""What an estimate is asked for, what it is answered with, and what a record of the board changes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

from edgekit.boards.anchoring import can_time_here, time_here
from edgekit.boards.estimates import EstimateOptions, answer
from edgekit.boards.subject import EstimateSubject, open_subjects
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.zoo.mobilenet_v1 import anchor_model
from edgekit_profiles import CannotEstimateError, HostTimes, load
from edgekit_runtime.system.errors import BundleError, EdgekitError

PI4 = load("raspberry-pi-4")
PI = {
    "model": "Raspberry Pi 4 Model B Rev 1.4",
    "compatible": ["raspberrypi,4-model-b", "brcm,bcm2711"],
    "machine": "aarch64",
    "cores": [{"type": "cortex-a72", "count": 4, "clock_ghz": 1.5, "generic": "cortex-a72"}],
}
"""What a board says of itself, as `edgekit bench` records it."""
ZERO = {**PI, "model": "Raspberry Pi Zero 2 W Rev 1.0", "compatible": ["raspberrypi,model-zero-2-w", "brcm,bcm2837"]}


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    path = tmp_path / "mobilenet_v1.tflite"
    path.write_bytes(anchor_model("tflite", "int8"))
    return path


def test_a_file_is_read_for_what_it_computes_in(anchor: Path):
    (subject,) = open_subjects(anchor)
    assert (subject.format, subject.precision, subject.profile) == ("tflite", "int8", "")
    told = answer(subject, PI4, EstimateOptions())
    assert told.estimate is not None
    assert told.estimate.mid_ms == pytest.approx(24.0, rel=0.02)
    assert (told.engine, told.threads) == ("litert", 4)


def test_layers_add_up_to_the_middle_and_are_the_files(anchor: Path):
    (subject,) = open_subjects(anchor)
    told = answer(subject, PI4, EstimateOptions(host=HostTimes(3.0, 4.0, "litert")))
    assert told.estimate is not None
    assert sum(layer.ms for layer in told.layers) == pytest.approx(told.estimate.mid_ms)
    assert sum(layer.share for layer in told.layers) == pytest.approx(1.0)
    assert [layer.name for layer in told.layers[:3]] == ["stem", "depthwise_1", "pointwise_1"]
    assert told.layers[1].kind == "depthwise"


def record(subject: EstimateSubject, **given: object) -> dict[str, object]:
    return {
        "artifact_sha256": subject.sha256, "engine": "litert", "engine_version": "2.3.0", "threads": 4, "n": 200,
        "min_ms": 22.0, "p50_ms": 23.0, "p95_ms": 26.0, "stages_ms": {"engine": 21.5},
        "conditions": {"board": PI, "during": {"throttled": False, "throttled_by": []}}, **given,
    }  # fmt: skip


def test_a_record_of_the_board_for_this_artifact_is_measured(anchor: Path):
    (subject,) = open_subjects(anchor)
    told = answer(subject, PI4, EstimateOptions(records=[(Path("pi.json"), record(subject))])).estimate
    assert told is not None
    assert (told.grade, told.low_ms, told.mid_ms, told.high_ms) == ("measured", 22.0, 23.0, 26.0)
    assert "200 requests with litert 2.3.0, pi.json; the engine alone 21.5 ms" in told.source


OTHERS = {
    "of another artifact": {"artifact_sha256": "0" * 64},
    "with other threads": {"threads": 1},
    "by another engine": {"engine": "tflite-runtime"},
    "taken on the workstation": {"conditions": {"board": {**PI, "model": "", "compatible": [], "machine": "x86_64"}}},
    "taken on another board": {"profile": "raspberry-pi-4", "conditions": {"machine": "aarch64", "board": ZERO}},
    "of the board with a 32-bit user land": {
        "conditions": {"machine": "aarch64", "board": {**PI, "machine": "armv7l"}}
    },
    "of a board that did not tell": {"profile": "raspberry-pi-4", "conditions": {"machine": "aarch64"}},
    "of a version that did not tell": {"artifact_sha256": None},
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_a_record_of_something_else_is_not_taken(anchor: Path, given: dict[str, object]):
    (subject,) = open_subjects(anchor)
    told = answer(subject, PI4, EstimateOptions(records=[(Path("pi.json"), record(subject, **given))])).estimate
    assert told is not None
    assert told.grade == "anchored"


def test_a_board_that_was_slowed_down_meanwhile_says_so(anchor: Path):
    (subject,) = open_subjects(anchor)
    during = {"throttled": True, "throttled_by": ["under-voltage"]}
    slow = record(subject, conditions={"board": PI, "during": during})
    told = answer(subject, PI4, EstimateOptions(records=[(Path("pi.json"), slow)])).estimate
    assert told is not None
    assert "under-voltage" in told.notes[0]


def test_a_record_under_load_of_others_says_so(anchor: Path):
    (subject,) = open_subjects(anchor)
    busy = record(
        subject, load={"concurrency": 4}, conditions={"board": PI, "during": {"others_cpu": 0.82}}, errors={"late": 2}
    )
    told = answer(subject, PI4, EstimateOptions(records=[(Path("pi.json"), busy)])).estimate
    assert told is not None
    assert [note.split(":")[0] for note in told.notes] == [
        "other processes took 82% of the cores meanwhile",
        "4 callers asked at once",
        "2 requests failed and are in no figure",
    ]


def test_what_this_machine_records_of_itself_is_read_back():
    from edgekit.bench.conditions import board, facts_of
    from edgekit_profiles.facts import read_facts

    here, facts = facts_of(board()), read_facts()
    assert here is not None
    assert (here.model, here.compatible, here.machine, here.clusters) == (
        facts.model, facts.compatible, facts.machine, facts.clusters,
    )  # fmt: skip
    for told in (None, [], "pi", {}, {**PI, "cores": [1]}, {"model": "", "compatible": [], "machine": "", "cores": []}):
        assert facts_of(told) is None


def test_a_profile_of_ones_own_may_be_the_board(anchor: Path):
    (subject,) = open_subjects(anchor)
    own = replace(
        PI4, name="our-gateway", board="our-gateway", marks=replace(PI4.marks, models=("Gateway 7",), compatible=())
    )
    gateway = record(subject, conditions={"board": {**PI, "model": "Gateway 7 rev B", "compatible": []}})
    for profile, grade in ((own, "measured"), (PI4, "anchored")):
        told = answer(subject, profile, EstimateOptions(records=[(Path("g.json"), gateway)])).estimate
        assert told is not None
        assert told.grade == grade


REFUSED = {
    "more threads than cores": (PI4, EstimateOptions(threads=9), "9 threads on 4 cores"),
    "a machine without rates": (load("x86-64"), EstimateOptions(), "no rate was fitted for x86-64"),
    "a board without an engine": (load("raspberry-pi-zero-w"), EstimateOptions(), "no engine for tflite installs"),
}


@pytest.mark.parametrize(("profile", "given", "what"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_is_refused_with_the_next_step(anchor: Path, profile, given, what: str):
    (subject,) = open_subjects(anchor)
    told = answer(subject, profile, given)
    assert told.estimate is None
    assert told.refused is not None
    assert what in told.refused.what
    assert told.refused.do


@pytest.mark.parametrize(("recipe", "engine"), [("tflite-int8", "litert"), ("onnx-f32", "onnxruntime")])
def test_where_no_engine_installs_the_one_to_name_is_of_the_artifacts_format(tmp_path: Path, recipe, engine):
    (subject,) = open_subjects(tiny.bundle(tmp_path, recipe))
    told = answer(subject, replace(load("pixel-4"), kind="board"), EstimateOptions())
    assert told.refused is not None
    assert told.refused.do.endswith(f"name it: --runtime {engine}")
    assert told.refused.what.count("Android has no glibc") == 1


@pytest.mark.parametrize(("recipe", "engine"), [("tflite-int8", "litert"), ("onnx-f32", "onnxruntime")])
def test_an_application_on_a_phone_brings_its_own_engine(tmp_path: Path, recipe, engine):
    (subject,) = open_subjects(tiny.bundle(tmp_path, recipe))
    told = answer(subject, load("phone-cortex-x4"), EstimateOptions())
    assert told.refused is None
    assert told.engine == engine
    assert any("published of one board alone" in note for note in told.estimate.notes)


def test_a_precision_of_which_nothing_is_known_is_refused(anchor: Path):
    (subject,) = open_subjects(anchor)
    told = answer(replace(subject, precision="int16x8"), PI4, EstimateOptions())
    assert told.refused is not None
    assert "nothing was timed of int16x8" in told.refused.what


def test_a_file_that_is_no_model_is_refused(tmp_path: Path):
    table: tuple[tuple[str, bytes, type[EdgekitError]], ...] = (
        ("note.txt", b"hello", BundleError),
        ("net.onnx", b"hello", ConversionError),
        ("net.tflite", b"1234TFL3", ConversionError),
    )
    for name, data, error in table:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(error, match=name):
            open_subjects(path)


def test_a_bundle_is_known_by_its_bytes_whatever_its_name(tmp_path: Path):
    bundle = tiny.bundle(tmp_path)
    path = tmp_path / "download.bin"
    path.write_bytes(bundle.read_bytes())
    assert [one.name for one in open_subjects(path)] == [one.name for one in open_subjects(bundle)] != []


def test_the_workstation_times_the_artifact_against_mobilenet_v1_in_the_same_run():
    if why := can_time_here("tflite", "int8"):
        pytest.skip(why)
    data = anchor_model("tflite", "int8")
    try:
        (found,) = time_here([("tflite", data, "int8")])
    except CannotEstimateError as error:
        pytest.skip(error.what)
    assert found.engine == "litert"
    assert found.ratio == pytest.approx(1.0, abs=0.3)


def test_a_machine_that_never_runs_the_same_twice_tells_nothing():
    if why := can_time_here("tflite", "int8"):
        pytest.skip(why)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now = 1.1 * now + 0.01
        return now

    with pytest.raises(CannotEstimateError, match="too busy"):
        time_here([("tflite", anchor_model("tflite", "int8"), "int8")], clock)


def test_a_clock_that_stands_still_during_a_run_gives_no_times():
    if why := can_time_here("tflite", "int8"):
        pytest.skip(why)
    ticks = itertools.count()
    with pytest.raises(CannotEstimateError, match="too busy"):
        time_here([("tflite", anchor_model("tflite", "int8"), "int8")], lambda: 0.1 * (next(ticks) // 50))


def test_a_ratio_is_of_the_least_of_many_runs(monkeypatch):
    """A clock of which every second run looks ten times as slow: the least does not see it."""
    if why := can_time_here("tflite", "int8"):
        pytest.skip(why)
    ticks = iter(range(10**9))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.01 if next(ticks) % 4 else 0.1
        return now

    (found,) = time_here([("tflite", anchor_model("tflite", "int8"), "int8")], clock)
    assert found.ratio == pytest.approx(1.0)
    assert found.ms == pytest.approx(10.0)


def test_what_was_never_tested_is_not_timed():
    assert "never tested" in can_time_here("onnx", "int8")
    assert "never tested" in can_time_here("tflite", "dynamic")

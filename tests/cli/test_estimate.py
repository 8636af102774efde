"""edgekit estimate and edgekit profiles measure as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgekit_converters.zoo.mobilenet_v1 import anchor_files, anchor_model


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.tflite"
    path.write_bytes(anchor_model("tflite", "int8"))
    return path


def test_a_range_a_grade_what_dominates_and_the_layers_that_take_longest(edgekit, net: Path):
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("net.tflite on raspberry-pi-4: ")
    assert lines[0].endswith(", anchored")
    assert "engine     litert, 4 threads" in ran.out
    assert "mostly     1x1 convolutions" in ran.out
    assert "google/XNNPACK README" in ran.out
    assert "the 5 of 30 layers that take longest" in ran.out
    assert "hint: --measure-here" in ran.err


def test_all_layers_in_the_files_order_as_one_json_object(edgekit, net: Path):
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--profile", "raspberry-pi-5", "--layers", "--json")
    first, second = ran.json["estimates"]
    assert [found["profile"] for found in (first, second)] == ["raspberry-pi-4", "raspberry-pi-5"]
    assert first["estimate"].keys() >= {"low_ms", "mid_ms", "high_ms", "grade", "dominated_by"}
    assert [layer["name"] for layer in first["layers"]][:2] == ["stem", "depthwise_1"]
    assert sum(layer["ms"] for layer in first["layers"]) == pytest.approx(first["estimate"]["mid_ms"])
    assert first["refused"] is None


def test_a_board_whose_time_cannot_be_told_costs_the_others_nothing_and_exits_1(edgekit, net: Path):
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-zero-w", "--profile", "raspberry-pi-4")
    assert ran.code == 1
    assert "net.tflite on raspberry-pi-zero-w: no estimate" in ran.out
    assert "net.tflite on raspberry-pi-4: " in ran.out
    assert "next       " in ran.out


def test_an_engine_of_another_format_is_refused_with_those_that_run_it(edgekit, net: Path):
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--runtime", "onnxruntime")
    assert ran.code == 1
    assert (
        "onnxruntime runs onnx, and net.tflite is tflite. Name an engine that runs it: litert, tflite-runtime"
        in ran.err
    )


def test_a_model_file_needs_a_board(edgekit, net: Path):
    ran = edgekit("estimate", net)
    assert ran.code == 2
    assert "--profile" in ran.err


def anchor_of(board: str, **given: object) -> str:
    time = {
        "engine": "litert", "engine_version": "2.3.0", "precision": "int8", "threads": 4, "runs": 30,
        "min_ms": 19.0, "p50_ms": 20.0, "p95_ms": 21.0, "clock_ghz": 1.5,
    }  # fmt: skip
    file = {
        "edgekit_anchor": 1, "network": "mobilenet_v1_1.0_224", "measured_at": "2026-05-01T10:00:00+00:00",
        "board": {"profile": board, "model": "", "machine": "aarch64"}, "times": [time], "steady": True, "changed": [],
    }  # fmt: skip
    return json.dumps({**file, **given})


def test_an_anchor_file_is_taken_for_its_board_and_refused_for_another(edgekit, net: Path, tmp_path: Path):
    file = tmp_path / "our-pi.json"
    file.write_text(anchor_of("raspberry-pi-4"))
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--anchor", file)
    assert "measured MobileNetV1, 20 ms by litert 2.3.0" in " ".join(ran.out.split())
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-5", "--anchor", file)
    assert ran.code == 1
    assert "was measured on raspberry-pi-4 (aarch64), not one of raspberry-pi-5" in ran.err
    file.write_text(anchor_of("raspberry-pi-4", steady=False, changed=["slowed down: throttled"]))
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--anchor", file)
    assert "was measured while conditions changed: slowed down: throttled" in ran.err


def test_measuring_writes_what_estimating_reads(edgekit, tmp_path: Path):
    anchor_files(tmp_path / "anchors", ("tflite", "onnx"))
    out = tmp_path / "here.json"
    ran = edgekit("profiles", "measure", "--anchors", tmp_path / "anchors", "--threads", "1", "-o", out, "--json")
    written = json.loads(out.read_text())
    assert ran.json == written
    assert ran.code == (0 if written["steady"] else 1)
    assert {one["precision"] for one in written["times"]} == {"float32", "int8"}


@pytest.mark.parametrize(
    ("board", "next_"),
    [
        ("raspberry-pi-4", "edgekit estimate BUNDLE --profile raspberry-pi-4 --anchor here.json"),
        ("x86-64", "edgekit estimate BUNDLE --profile x86-64 --record RECORD.json"),
    ],
)
def test_what_comes_next_after_measuring_is_what_that_board_can_have(board: str, next_: str):
    """No estimate goes from MobileNetV1's time on x86-64: builds are timed there, and so may a bundle be."""
    from edgekit.cli.profiles import measure_lines
    from edgekit_profiles import load

    during = {"frequency_mhz": None, "temperature_c": None, "throttled": None, "throttled_by": []}
    found = {
        "board": {"profile": board, "model": "", "machine": load(board).arch}, "times": [], "failed": [], "changed": [],
        "conditions": {"during": during, "governor": None, "after": {"power_mode": None}},
    }  # fmt: skip
    assert next_ in "\n".join(measure_lines(found, Path("here.json"), load(board)))


def test_a_file_that_cannot_be_written_is_told_before_anything_is_timed(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "measure", "-o", tmp_path / "nowhere" / "pi.json")
    assert ran.code == 1
    assert "pi.json: cannot be written: no such directory. Name another file with -o" in ran.err
    assert "timing" not in ran.err


def test_measuring_without_the_networks_files_says_where_they_are(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "measure", "--anchors", tmp_path, "--threads", "1")
    assert ran.code == 1
    assert "--anchors DIR" in ran.err


PI = {
    "model": "Raspberry Pi 4 Model B Rev 1.4", "compatible": ["raspberrypi,4-model-b", "brcm,bcm2711"],
    "machine": "aarch64", "cores": [],
}  # fmt: skip


def record_of(net: Path, **given: object) -> str:
    from hashlib import sha256

    record = {
        "bundle": "net.ekb", "profile": "raspberry-pi-4", "recipe": "tflite-int8",
        "artifact_sha256": sha256(net.read_bytes()).hexdigest(),
        "engine": "litert", "engine_version": "2.3.0", "threads": 4, "n": 200, "asked": 200, "errors": {},
        "min_ms": 22.0, "p50_ms": 23.0, "p95_ms": 26.0, "load": {"concurrency": 1}, "conditions": {"board": PI},
    }  # fmt: skip
    return json.dumps({**record, **given})


RECORDS = {
    "of another artifact": ({"artifact_sha256": "0" * 64}, "is of another artifact (tflite-int8 of net.ekb)"),
    "by another engine": ({"engine": "tflite-runtime"}, "was taken with tflite-runtime and 4 threads"),
    "with one thread": ({"threads": 1},
        "was taken with litert and 1 thread, and what is asked for is litert and 4 threads"),
    "of another board": ({"conditions": {"board": {**PI, "model": "Raspberry Pi 5 Model B", "compatible": []}}},
        "was taken on Raspberry Pi 5 Model B (aarch64), which is not raspberry-pi-4"),
    "of a board that did not tell": ({"conditions": {"machine": "aarch64"}},
        "does not say on which board it was taken"),
    "full of errors": ({"n": 20, "asked": 200, "errors": {"engine": 180}},
        "is mostly errors: 180 of 200 requests failed"),
    "without an answer": ({"n": 0, "p50_ms": None}, "has no timings"),
    "out of order": ({"p50_ms": 10.0}, "has impossible timings: least 22, median 10"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "what"), RECORDS.values(), ids=RECORDS)
def test_a_record_that_proves_nothing_of_what_is_asked_is_one_error(in_process, net, tmp_path, given, what):
    file = tmp_path / "pi.json"
    file.write_text(record_of(net, **given))
    ran = in_process("estimate", net, "--profile", "raspberry-pi-4", "--record", file, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "bench-record"
    assert what in ran.json["error"]["what"]
    assert ran.json["error"]["do"]


def test_a_record_of_the_board_is_measured_for_that_board_alone(edgekit, net: Path, tmp_path: Path):
    file = tmp_path / "pi.json"
    file.write_text(record_of(net))
    boards = ("--profile", "raspberry-pi-4", "--profile", "raspberry-pi-3b")
    found = edgekit("estimate", net, *boards, "--record", file, "--json").json["estimates"]
    assert [one["estimate"]["grade"] == "measured" for one in found] == [True, False]


def test_an_anchor_file_that_fits_nothing_is_said(edgekit, net: Path, tmp_path: Path):
    file = tmp_path / "our-pi.json"
    file.write_text(anchor_of("raspberry-pi-4"))
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--anchor", file, "--threads", "1")
    assert ran.code == 0
    told = " ".join(ran.out.split())
    assert "our-pi.json was not used: it holds litert int8 with 4 threads, and 1 is asked for" in told
    file.write_text(anchor_of("raspberry-pi-4").replace('"int8"', '"float32"'))
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--anchor", file)
    assert ran.code == 1
    assert "holds times of litert float32, and what is asked for is litert int8" in ran.err

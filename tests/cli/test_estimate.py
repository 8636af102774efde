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
    assert "was measured on raspberry-pi-4 (aarch64), which is none of raspberry-pi-5" in ran.err
    file.write_text(anchor_of("raspberry-pi-4", steady=False, changed=["slowed down: throttled"]))
    ran = edgekit("estimate", net, "--profile", "raspberry-pi-4", "--anchor", file)
    assert "was made while conditions changed: slowed down: throttled" in ran.err


def test_measuring_writes_what_estimating_reads(edgekit, tmp_path: Path):
    anchor_files(tmp_path / "anchors", ("tflite", "onnx"))
    out = tmp_path / "here.json"
    ran = edgekit("profiles", "measure", "--anchors", tmp_path / "anchors", "--threads", "1", "-o", out, "--json")
    written = json.loads(out.read_text())
    assert ran.json == written
    assert ran.code == (0 if written["steady"] else 1)
    assert {one["precision"] for one in written["times"]} == {"float32", "int8"}


def test_measuring_without_the_networks_files_says_where_they_are(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "measure", "--anchors", tmp_path, "--threads", "1")
    assert ran.code == 1
    assert "--anchors DIR" in ran.err

"""MobileNetV1 timed here as on a board: what is written down, and when the run does not count."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgekit.boards.anchoring import MeasurePlan, default_threads, measure_anchors, power_mode, unsteady_reasons
from edgekit_converters.zoo.mobilenet_v1 import anchor_files
from edgekit_profiles import AnchorError
from edgekit_profiles.anchors import parse_anchor_file
from edgekit_runtime.engines.registry import available


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anchors")
    anchor_files(folder, ("tflite", "onnx"))
    return folder


def test_every_engine_is_timed_in_both_precisions_and_the_workstation_can_read_it(shipped: Path):
    told: list[str] = []
    found = measure_anchors(shipped, MeasurePlan((1,), "raspberry-pi-4", "a board"), told.append)
    wanted = {(engine, precision, 1) for engine in set(available()) - {"ncnn"} for precision in ("float32", "int8")}
    assert {(one["engine"], one["precision"], one["threads"]) for one in found["times"]} == wanted
    assert all(0 < one["min_ms"] <= one["p50_ms"] <= one["p95_ms"] for one in found["times"])
    assert all(5 <= one["runs"] <= 30 for one in found["times"])
    assert len(told) == len(wanted)
    assert found["failed"] == []
    read = parse_anchor_file(json.dumps(found), "pi.json")
    assert len(read.times) == len(wanted)
    assert read.changed == tuple(found["changed"])


def test_files_that_are_not_there_are_told_with_where_they_come_from(tmp_path: Path):
    with pytest.raises(AnchorError, match="cannot be read: No such file or directory") as caught:
        measure_anchors(tmp_path, MeasurePlan((1,)))
    assert f"litert float32: {tmp_path}{os.sep}mobilenet_v1" in caught.value.what
    assert "--anchors DIR" in caught.value.do


def test_one_engine_that_cannot_be_timed_costs_the_others_nothing(shipped: Path, tmp_path: Path):
    for path in shipped.glob("*.tflite"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = measure_anchors(tmp_path, MeasurePlan((1,)))
    assert {one["engine"] for one in found["times"]} == set(available()) - {"onnxruntime", "ncnn"}
    assert [line.split(":")[0] for line in found["failed"]] == ["onnxruntime float32", "onnxruntime int8"]


STATE = {"governor": "performance", "limit_mhz": 1800, "power_mode": None, "frequency_mhz": 1800, "temperature_c": 50.0}
CALM = {
    "throttled": False,
    "throttled_by": [],
    "frequency_mhz": {"min": 1790, "mean": 1798, "max": 1800},
    "others_cpu": 0.02,
}
STEADY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "nothing": ({}, {}, {}, ""),
    "under-voltage": ({}, {}, {"throttled": True, "throttled_by": ["under-voltage"]}, "slowed down: under-voltage"),
    "another governor": ({}, {"governor": "powersave"}, {}, "the governor went from performance to powersave"),
    "another power mode": ({"power_mode": "0"}, {"power_mode": "1"}, {}, "the power mode went from 0 to 1"),
    "a lower limit": ({}, {"limit_mhz": 600}, {}, "the clock's limit went from 1800 to 600"),
    "a clock that fell": ({}, {}, {"frequency_mhz": {"min": 1200, "mean": 1500, "max": 1800}},
        "between 1200 and 1800 MHz"),
    "others at work": ({}, {}, {"others_cpu": 0.5}, "other processes took 50% of the cores"),
    "a board that tells nothing": ({"governor": None}, {"governor": None}, dict.fromkeys(CALM), ""),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "during", "said"), STEADY.values(), ids=STEADY)
def test_a_run_counts_only_where_nothing_changed(
    before: dict[str, Any], after: dict[str, Any], during: dict[str, Any], said: str
):
    found = unsteady_reasons({**STATE, **before}, {**STATE, **after}, {**CALM, **during})
    assert (said in "; ".join(found)) if said else found == []


def test_a_clock_that_sleeps_by_itself_is_no_sign():
    lazy = {**STATE, "governor": "ondemand"}
    during = {**CALM, "frequency_mhz": {"min": 600, "mean": 1500, "max": 1800}}
    assert unsteady_reasons(lazy, lazy, during) == []


def test_the_power_mode_of_a_jetson_is_read(tmp_path: Path):
    assert power_mode(tmp_path) is None
    (tmp_path / "var/lib/nvpmodel").mkdir(parents=True)
    (tmp_path / "var/lib/nvpmodel/status").write_text("pmode:0001\n")
    assert power_mode(tmp_path) == "pmode:0001"


def test_threads_are_one_and_at_most_four():
    assert [default_threads(cores) for cores in (1, 2, 4, 8)] == [(1,), (1, 2), (1, 4), (1, 4)]

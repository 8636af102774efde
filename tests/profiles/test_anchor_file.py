"""The file that a board writes about itself: what it must hold, and whose it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgekit_profiles import AnchorError, EstimateEvidence, load, mobilenet_v1
from edgekit_profiles.anchors import anchors_for, parse_anchor_file, read_anchor_file
from edgekit_profiles.estimate import estimate

PI4, PI5 = load("raspberry-pi-4"), load("raspberry-pi-5")


def time(engine: str = "litert", precision: str = "int8", **given: Any) -> dict[str, Any]:
    least = {"min_ms": 20.0, "p50_ms": 21.0, "p95_ms": 22.0, "clock_ghz": 1.8, "runs": 30, "threads": 4}
    return {"engine": engine, "engine_version": "2.3.0", "precision": precision, **least, **given}


def file(**given: Any) -> dict[str, Any]:
    board = {"profile": "raspberry-pi-4", "model": "Raspberry Pi 4 Model B Rev 1.4", "machine": "aarch64"}
    return {
        "edgekit_anchor": 1, "network": "mobilenet_v1_1.0_224", "measured_at": "2026-05-01T10:00:00+00:00",
        "board": board, "times": [time()], "steady": True, "changed": [], **given,
    }  # fmt: skip


def read(value: Any):
    return parse_anchor_file(json.dumps(value), "pi.json")


def test_the_median_of_the_board_goes_into_the_estimate_with_its_engine_and_version():
    (anchor,) = anchors_for(PI4, [read(file())])
    assert (anchor.ms, anchor.clock_ghz, anchor.grade) == ({"int8": 21.0}, 1.8, "measured")
    faster = replace(PI4, core=replace(PI4.core, clock_ghz=1.8))
    got = estimate(faster, mobilenet_v1("int8"), "litert", known=EstimateEvidence(anchors=(anchor,)))
    assert (got.grade, got.mid_ms) == ("anchored", pytest.approx(21.0))
    assert "measured MobileNetV1, 21 ms by litert 2.3.0 with 4 threads: pi.json, Raspberry Pi 4 Model B" in got.source


# board of the file, profile that it is given for -> is it used
WHOSE = {
    "its own board": ({"profile": "raspberry-pi-4", "machine": "aarch64"}, "raspberry-pi-4", True),
    "the same board in another mode": ({"profile": "jetson-orin-nano@7w", "machine": "aarch64"}, "jetson-orin-nano",
        True),
    "another board": ({"profile": "raspberry-pi-4", "machine": "aarch64"}, "raspberry-pi-5", False),
    "the same board with a 32-bit user land": ({"profile": "raspberry-pi-4", "machine": "armv7l"}, "raspberry-pi-4",
        False),
    "a board that no profile knows": ({"profile": None, "machine": "aarch64"}, "raspberry-pi-5", True),
}  # fmt: skip


@pytest.mark.parametrize(("board", "profile", "used"), WHOSE.values(), ids=WHOSE)
def test_a_file_is_used_for_its_own_board_alone(board: dict[str, Any], profile: str, used: bool):
    assert bool(anchors_for(load(profile), [read(file(board={"model": "", **board}))])) is used


def test_a_clock_that_the_board_did_not_tell_is_the_profiles():
    (anchor,) = anchors_for(PI4, [read(file(times=[time(clock_ghz=None)]))])
    assert anchor.clock_ghz == PI4.core.clock_ghz


def test_a_run_whose_conditions_changed_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "pi.json"
    path.write_text(json.dumps(file(steady=False, changed=["slowed down: throttled"])))
    with pytest.raises(AnchorError, match="conditions changed: slowed down: throttled"):
        read_anchor_file(path)
    path.write_text(json.dumps(file()))
    assert read_anchor_file(path).profile == "raspberry-pi-4"


BROKEN = {
    "not JSON": "{",
    "a list": "[]",
    "nothing": "{}",
    "deep": "[" * 100_000,
    "another version": json.dumps(file(edgekit_anchor=2)),
    "another network": json.dumps(file(network="resnet50_224")),
    "no time": json.dumps(file(times=[])),
    "a time of nothing": json.dumps(file(times=[time(min_ms=0)])),
    "times out of order": json.dumps(file(times=[time(p50_ms=1.0)])),
    "a time that is not a number": json.dumps(file(times=[time(p95_ms="NaN")])),
    "no threads": json.dumps(file(times=[time(threads=0)])),
    "no board": json.dumps({**file(), "board": None}),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_anchor_file_is_refused_with_the_command_that_makes_one(text: str):
    with pytest.raises(AnchorError) as caught:
        parse_anchor_file(text, "pi.json")
    assert "edgekit profiles measure" in caught.value.do


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path):
    with pytest.raises(AnchorError, match="No such file"):
        read_anchor_file(tmp_path / "none.json")

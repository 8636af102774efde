"""Times of the workstation are found in the report beside a bundle, and only where they are that bundle's."""

from __future__ import annotations

import json

import pytest
import tiny

from edgekit.boards.subject import open_subjects
from edgekit.report.html import estimates_beside, times_beside
from edgekit_profiles import HostTimes
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available

pytestmark = pytest.mark.skipif("litert" not in available(), reason="needs LiteRT")
TIMES = {"ms": 2.0, "reference_ms": 4.0, "engine": "litert", "engine_version": "2.3.0", "machine": "here"}


@pytest.fixture
def beside(tmp_path):
    """A bundle, and what writes a report beside it."""
    path = tiny.bundle(tmp_path)
    bundle = read_bundle(path)

    def write(change=lambda report: None):
        report = {
            "model": {"sha256": bundle.manifest.model_id},
            "candidates": [{"recipe": "tflite-int8", "sha256": bundle.artifact().blob}],
            "bundles": [{"candidates": [{"recipe": "tflite-int8", "estimate": {"host": dict(TIMES)}}]}],
        }
        change(report)
        (tmp_path / "tiny-build.json").write_text(json.dumps(report))
        return bundle

    return write


def test_a_time_belongs_to_the_artifact_by_its_digest(beside):
    bundle = beside()
    assert times_beside(bundle) == {bundle.artifact().blob: HostTimes(**TIMES)}
    (subject,) = open_subjects(bundle.path)
    assert subject.host == HostTimes(**TIMES)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["model"].update(sha256="1" * 64),
        lambda r: r["candidates"][0].update(recipe="onnx-f32"),
        lambda r: r["bundles"][0]["candidates"][0].update(estimate=None),
        lambda r: r["bundles"][0]["candidates"][0]["estimate"]["host"].update(ms=0),
        lambda r: r["bundles"][0]["candidates"][0]["estimate"]["host"].update(colour="blue"),
        lambda r: r.update(bundles=7),
        lambda r: r.clear(),
    ],
)
def test_another_models_report_or_a_damaged_one_is_none(beside, change):
    assert times_beside(beside(change)) == {}


def test_no_report_is_no_trouble(tmp_path):
    (tmp_path / "tiny-build.json").mkdir()
    assert times_beside(read_bundle(tiny.bundle(tmp_path))) == {}


ESTIMATE = {"low_ms": 1.0, "mid_ms": 1.5, "high_ms": 2.0, "grade": "anchored", "host": None}


def test_an_estimate_belongs_to_the_bundles_own_board(beside):
    def two_boards(report):
        (board,) = report["bundles"]
        board.update(profile="x86-64", candidates=[{"recipe": "tflite-int8", "estimate": ESTIMATE}])
        other = {"recipe": "tflite-int8", "estimate": {**ESTIMATE, "mid_ms": 1.9}}
        report["bundles"].append({"profile": "raspberry-pi-4", "candidates": [other]})

    bundle = beside(two_boards)
    assert estimates_beside(bundle) == {bundle.artifact().blob: ESTIMATE}


@pytest.mark.parametrize(
    "estimate", [{}, {**ESTIMATE, "mid_ms": "fast"}, {**ESTIMATE, "low_ms": 7.0}, {"low_ms": 1.0}, 7]
)
def test_an_estimate_that_is_none_is_left_out(beside, estimate):
    def change(report):
        report["bundles"][0].update(profile="x86-64", candidates=[{"recipe": "tflite-int8", "estimate": estimate}])

    assert estimates_beside(beside(change)) == {}

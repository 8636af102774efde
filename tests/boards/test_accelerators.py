"""edgekit check --for: what a phone or a browser would leave to its processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from word_numbers import words

from edgekit.boards.accelerators import check_accelerators
from edgekit_runtime.system.errors import BundleError


def test_every_artifact_of_a_bundle_is_divided_by_every_accelerator_of_its_format(tmp_path: Path):
    report = check_accelerators(tiny.bundle(tmp_path), "android")
    (network,) = report.networks
    assert (network.artifact, network.format, network.operators) == ("tflite-int8", "tflite", 4)
    assert [one.delegate.name for one in network.splits] == ["litert-gpu", "litert-qualcomm", "litert-mediatek"]
    assert all(one.taken == 4 for one in network.splits)
    assert report.findings == ()


def test_the_record_has_counts_reasons_and_sources(tmp_path: Path):
    record = check_accelerators(tiny.bundle(tmp_path), "ios").as_json()
    assert (record["for"], record["ok"]) == ("ios", True)
    core_ml = record["artifacts"][0]["accelerators"][1]
    assert (core_ml["name"], core_ml["taken"], core_ml["parts"], core_ml["share"]) == ("litert-coreml", 0, 0, 0.0)
    assert core_ml["left"][0].keys() == {"op", "why", "count", "layer", "types"}
    assert {one["why"] for one in core_ml["left"]} == {"type"}
    assert "google-ai-edge/LiteRT" in core_ml["source"]


def test_a_free_size_and_64_bit_integers_are_findings(tmp_path: Path):
    path = tmp_path / "words.onnx"
    path.write_bytes(words())
    found = check_accelerators(path, "web").findings
    assert [(one.code, one.level) for one in found] == [("free-shape", "warning"), ("wide-integers", "warning")]


def test_another_file_is_refused(tmp_path: Path):
    path = tmp_path / "note.txt"
    path.write_text("hello")
    with pytest.raises(BundleError):
        check_accelerators(path, "web")

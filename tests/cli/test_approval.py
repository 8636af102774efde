"""What is shipped is checked first, for exactly the runtime that the board will get."""

from __future__ import annotations

import shutil

import pytest
import tiny

from edgekit.boards.subject import open_subject
from edgekit.cli.deploy import CheckFailedError, approve
from edgekit.packaging.assemble import BundleArtifact
from edgekit_profiles import load


@pytest.fixture
def dynamic(planted, tmp_path):
    """A bundle with FULLY_CONNECTED version 12, which tflite-runtime 2.14 does not know."""
    with open_subject(planted.version_12) as subject:
        assert subject.bundle is not None
        return shutil.copy(subject.bundle, tmp_path / "dynamic.ekb")


def test_a_bundle_that_will_not_load_there_is_refused_with_the_code(dynamic):
    with pytest.raises(CheckFailedError) as refused:
        approve(dynamic, load("raspberry-pi-4"), "tflite-runtime", "2.14.0")
    assert "FULLY_CONNECTED version 12" in refused.value.what
    assert "(op-version)" in refused.value.what
    assert "edgekit doctor op-version" in refused.value.do


def test_the_same_bundle_is_fine_where_its_runtime_is(dynamic):
    approve(dynamic, load("raspberry-pi-4"), "litert", "2.3.0")


def test_what_is_asked_about_is_the_artifact_that_the_shipped_engine_answers_with(dynamic, tmp_path):
    """On a board without a TFLite engine the ONNX artifact beside the first one."""
    both = tiny.bundle(tmp_path, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))])
    approve(both, load("raspberry-pi-4-trixie-32bit"), "onnxruntime", "1.21.0")
    with pytest.raises(CheckFailedError, match="runtime-unavailable"):
        approve(dynamic, load("jetson-nano"), "onnxruntime", "1.21.0")

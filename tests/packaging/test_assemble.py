"""A bundle with a runner-up beside the chosen artifact."""

from __future__ import annotations

import pytest
import tiny

from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available


@pytest.fixture
def both(tmp_path):
    """tflite-int8 as the primary artifact, onnx-f32 as an alternate."""
    if not {"litert", "onnxruntime"} <= set(available()):
        pytest.skip("needs both engines")
    alternate = BundleArtifact(tiny.artifact("onnx-f32"), {"items": 3}, None)
    path = tmp_path / "both.ekb"
    write_bundle(path, *assemble(tiny.content(alternates=[alternate])))
    return path


def test_the_primary_artifact_is_opened_by_default(both):
    with open_bundle(both) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"
        assert model.describe()["recipe"] == "tflite-int8"


def test_the_alternate_is_opened_where_its_engine_is_asked_for(both):
    with open_bundle(both, engine="onnxruntime") as model:
        assert model.predict(tiny.BLUE).top(1)[0].label == "blue"


def test_every_artifact_answers_every_golden_example(both):
    manifest = read_bundle(both).manifest
    assert [(entry.role, entry.recipe) for entry in manifest.artifacts] == [
        ("primary", "tflite-int8"),
        ("alternate", "onnx-f32"),
    ]
    for golden in manifest.golden:
        assert [answer.recipe for answer in golden.answers] == ["tflite-int8", "onnx-f32"]
    assert manifest.artifacts[1].fidelity == {"items": 3}

"""A bundle with two artifacts: whichever runs, callers pass the same form, and every answer names what computed it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tiny

from edgekit.packaging.assemble import BundleArtifact
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.engines.registry import ENGINES, available

TFLITE = min((name for name in available() if "tflite" in ENGINES[name].formats), default="")
pytestmark = pytest.mark.skipif(
    not TFLITE or "onnxruntime" not in available(), reason="it takes a TFLite engine and ONNX Runtime"
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The primary artifact takes int8, the alternate float32."""
    return tiny.bundle(
        tmp_path_factory.mktemp("both"), engine=TFLITE, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))]
    )


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")


def test_what_the_primary_artifact_takes_as_it_is_may_be_passed_whichever_answers(both):
    manifest = read_bundle(both).manifest
    ready = Adapter(manifest.contract.inputs[0], manifest.artifacts[0].inputs[0])(tiny.RED)[0]
    assert ready.dtype == np.int8
    for engine in (TFLITE, "onnxruntime"):
        with open_bundle(both, engine=engine, cache=False) as model:
            given, drawn = model.predict(ready), model.predict(tiny.RED)
            np.testing.assert_array_equal(given.outputs["probs"], drawn.outputs["probs"])


def test_an_answer_names_its_artifact_and_engine(both):
    for engine, recipe in ((TFLITE, "tflite-int8"), ("onnxruntime", "onnx-f32")):
        with open_bundle(both, engine=engine) as model:
            for source in ("device", "cache"):
                answer = model.predict(tiny.RED)
                assert (answer.source, answer.artifact) == (source, recipe)
                assert answer.engine == f"{engine} {available()[engine]}"
                assert pickle.loads(pickle.dumps(answer)).engine == answer.engine
            stats, described = model.stats(), model.describe()
            assert (stats.artifact, stats.engine) == (answer.artifact, answer.engine)
            assert (described["role"] == "alternate") == bool(described["why_alternate"]) == (engine == "onnxruntime")


def test_pinned_to_the_primary_nothing_else_answers(both):
    with open_bundle(both, pin="primary") as model:
        assert model.predict(tiny.RED).artifact == "tflite-int8"
        assert model.describe()["role"] == "primary"
    with pytest.raises(ValueError, match="pin must be 'primary'"):
        open_bundle(both, pin="fastest")

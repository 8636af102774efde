"""What is made of a recipe, and what is no candidate."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import open_subject
from edgekit.building.making import Maker, RecipeResult, Workers, attempt
from edgekit_converters.recipe.artifact import QuantizationPlan, recipe
from edgekit_converters.recipe.progress import silent
from edgekit_converters.recipe.store import NO_STORE
from edgekit_converters.targets.workspace import describe_artifact


@pytest.mark.convert
def test_an_artifact_that_fails_on_silence_is_no_candidate(divided, tmp_path):
    """TensorFlow's own quantizer makes an int8 division, which fails where its divisor is 0."""
    import keras
    import tensorflow as tf

    samples = np.load(divided / "x.npz")["x"]
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.saving.load_model(divided / "divided.keras"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    data = converter.convert()

    request = BuildRequest(divided / "divided.keras", (), output=tmp_path, calibration=str(divided / "x.npz"))
    with Workers(1, silent) as workers:
        subject = open_subject(request, NO_STORE, workers.progress)
        maker = Maker(subject, subject.workspace(workers.progress), workers)
        entry = recipe("tflite-int8")
        form = maker.workspace.float_model("tflite")
        made = maker.compare(
            RecipeResult(entry, describe_artifact(subject.source, form, entry, QuantizationPlan(), data))
        )
        float32 = maker.make(recipe("tflite-f32"))
    assert made.artifact is None
    assert "which the float file handles" in (made.failed or "")
    assert float32.failed is None


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


class UnsayableError(Exception):
    def __str__(self):
        raise KeyError("no words")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stderr", [closed, Full, lambda: None, object], ids=["closed", "full disk", "none", "no stream"]
)
@pytest.mark.parametrize("error", [ZeroDivisionError("by 0"), UnsayableError()], ids=["a fault", "one without words"])
def test_a_fault_costs_its_recipe_and_not_the_build_wherever_its_traceback_goes(stderr, error, monkeypatch, capsys):
    def fails():
        raise error

    def fallen(**streams):
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        with Workers(1, silent) as workers:
            [(result, lasting)] = workers.run([lambda: attempt(recipe("onnx-f32"), fails)])
        assert (result.artifact, lasting) == (None, False)
        assert f"internal error: {type(error).__name__}" in result.failed

    shown = io.StringIO()
    fallen(stderr=stderr(), __stderr__=shown)
    assert "in fails" in shown.getvalue()
    fallen(stderr=stderr(), __stderr__=stderr())

"""Files of Keras 2 that Keras 3 cannot read: through tf_keras where it is installed (make test-onnx-tflite)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.tensorflow_source import TracedSource
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """A network of Keras 2 with `x * 2`, which Keras 2 wrote as a TFOpLambda and Keras 3 does not know."""
    tf_keras = pytest.importorskip("tf_keras", reason="Keras 2 is not installed: make test-onnx-tflite")
    image = tf_keras.Input((8, 8, 3), name="image")
    t = tf_keras.layers.Conv2D(4, 3, name="conv")(image * 2.0)
    t = tf_keras.layers.GlobalAveragePooling2D(name="pool")(t)
    model = tf_keras.Model(image, tf_keras.layers.Dense(3, activation="softmax", name="probs")(t))
    path = tmp_path_factory.mktemp("keras2") / "old.h5"
    model.save(path)
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    np.savez(path.with_suffix(".npz"), x=x, y=model.predict_on_batch(x))
    return path


def test_a_file_that_keras_3_cannot_read_goes_through_keras_2(old: Path) -> None:
    source = load(old)
    assert isinstance(source, TracedSource)
    assert source.network.tools == ("tf-keras",)
    assert [spec.name for spec in (*source.inputs, *source.outputs)] == ["image", "probs"]
    saved = np.load(old.with_suffix(".npz"))
    np.testing.assert_allclose(source.predict([saved["x"]])[0], saved["y"], atol=1e-6)
    inputs = float_onnx.random_inputs(source.inputs, 2)
    with load_engine("onnx", source.onnx()) as engine:
        got = engine.run([inputs[0].transpose(0, 3, 1, 2).copy()])
    np.testing.assert_allclose(got[0], source.predict(inputs)[0], atol=1e-4)


def test_a_file_of_keras_2_that_nobody_here_reads_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    import importlib.util

    import h5py

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "tf_keras" else found(name, *a))
    config = {
        "class_name": "Functional",
        "config": {"layers": [{"class_name": "TFOpLambda", "config": {"name": "op", "function": "math.multiply"}}]},
    }
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["model_config"], file.attrs["keras_version"] = json.dumps(config), "2.11.0"
        file.create_group("model_weights")
    with pytest.raises(SourceError, match=r"saved with Keras 2\.11\.0.* pip install tf-keras"):
        load(tmp_path / "old.h5")

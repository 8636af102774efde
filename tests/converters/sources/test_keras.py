"""Keras files: code in them runs only where the file is trusted; free axes are pinned; states and damage are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters import sources
from edgekit_converters.errors import SourceError
from edgekit_converters.sources import LoadOptions, TensorFlowSource, onnx_graph
from edgekit_converters.sources.keras_config import code
from edgekit_converters.targets import tflite
from edgekit_runtime.engines import load_engine

pytestmark = pytest.mark.convert

TRUSTED = LoadOptions(trust_model=True)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_lambda_runs_only_in_a_trusted_file_and_it_is_said(tmp_path: Path, suffix: str) -> None:
    import keras

    x = keras.Input((4,), name="x")
    doubled = keras.layers.Lambda(lambda t: t * 2, name="doubler", output_shape=(4,))(x)
    path = tmp_path / f"net{suffix}"
    keras.Model(x, doubled).save(path)
    with pytest.raises(SourceError, match=r"'doubler' is a Lambda: it holds Python code.*--trust-model"):
        sources.load(path)
    source = sources.load(path, TRUSTED)
    assert source.predict([np.ones((2, 4), np.float32)])[0].tolist() == [[2] * 4] * 2
    [note] = source.notes
    assert note.code == "trusted-code"
    assert "doubler" in note.what


def test_trust_changes_nothing_where_there_is_no_code(digits_model) -> None:
    source = sources.load(digits_model.model, TRUSTED)
    assert source.notes == ()
    assert source.sha256 == sources.load(digits_model.model).sha256
    assert isinstance(source, TensorFlowSource)
    assert source.tools == ("keras",)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"class_name": "Lambda", "config": {"name": "f"}}, "'f' is a Lambda"),
        (
            {"class_name": "Dense", "module": "keras.layers", "config": {"activation": {"class_name": "__lambda__"}}},
            "Lambda",
        ),
        ({"class_name": "function", "module": "os", "config": "system"}, "os.function"),
        ({"class_name": "Mine", "module": "kerasx.layers", "config": {"name": "a"}}, "'a' is of kerasx.layers.Mine"),
        ({"class_name": "TFOpLambda", "config": {"name": "w", "function": "io.write_file"}}, "calls tf.io.write_file"),
    ],
)
def test_code_is_found_wherever_it_hides(config: dict, says: str) -> None:
    [piece] = code({"config": {"layers": [{"class_name": "Dense", "module": "keras.layers"}, config]}})
    assert says in piece


@pytest.mark.parametrize("function", ["math.add", "__operators__.getitem", "nn.relu"])
def test_arithmetic_is_no_code(function: str) -> None:
    config = {"class_name": "TFOpLambda", "config": {"name": "op", "function": function}}
    assert list(code({"module": "keras", "class_name": "Functional", "layers": [config]})) == []


def test_free_axes_are_pinned_and_the_batch_stays_free(tmp_path: Path) -> None:
    import keras

    image = keras.Input((None, None, 3), name="image")
    t = keras.layers.Conv2D(4, 3, strides=2, name="conv")(image)
    keras.Model(image, t).save(tmp_path / "net.keras")
    with pytest.raises(SourceError, match=r"--shape image=1,HEIGHT,WIDTH,3, such as --shape image=1,224,224,3"):
        sources.load(tmp_path / "net.keras")
    source = sources.load(tmp_path / "net.keras", LoadOptions(shapes={"image": (1, 11, 9, 3)}))
    assert [spec.shape for spec in (*source.inputs, *source.outputs)] == [(-1, 11, 9, 3), (-1, 5, 4, 4)]
    inputs = onnx_graph.random_inputs(source.inputs, 2)
    with load_engine("onnx", source.onnx()) as engine:
        got = engine.run([inputs[0].transpose(0, 3, 1, 2).copy()])[0]
    np.testing.assert_allclose(got, source.predict(inputs)[0], atol=1e-4)


def test_a_layer_that_remembers_is_refused_with_the_way_out(tmp_path: Path) -> None:
    import keras

    x = keras.Input(batch_shape=(1, 5, 4), name="x")
    keras.Model(x, keras.layers.LSTM(3, stateful=True, name="lstm")(x)).save(tmp_path / "net.keras")
    with pytest.raises(SourceError, match=r"keeps a state inside.*stateful=False"):
        sources.load(tmp_path / "net.keras")


def test_a_recurrent_layer_that_forgets_is_read(tmp_path: Path) -> None:
    import keras

    x = keras.Input((5, 4), name="x")
    keras.Model(x, keras.layers.GRU(3, name="gru")(x)).save(tmp_path / "net.keras")
    source = sources.load(tmp_path / "net.keras")
    assert source.state == "none"
    assert source.predict([np.ones((2, 5, 4), np.float32)])[0].shape == (2, 3)


def test_damaged_weights_are_named_with_their_layer(tmp_path: Path) -> None:
    import keras

    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, name="head")(x))
    model.layers[-1].kernel.assign(np.array([[1, 2], [np.nan, 4], [5, np.nan]]))
    model.save(tmp_path / "net.keras")
    with pytest.raises(SourceError, match=r"the weights 'head/kernel' are damaged: 2 of 6 values are NaN"):
        sources.load(tmp_path / "net.keras")


def test_names_that_tensorflow_does_not_take_are_kept_in_the_contract(tmp_path: Path) -> None:
    """Of inputs, outputs, layers, models inside models, and weights."""
    import keras

    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, name="é"), keras.layers.Dense(5, name="è")], name="in ner"
    )
    image = keras.Input((4,), name="a b")
    made = keras.layers.Dense(3, name="-first")(inner(image))
    model = keras.Model(image, [made, keras.layers.Dense(2, name="out put é")(made)], name="mö del")
    path = tmp_path / "net.keras"
    model.save(path)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    source = sources.load(path)
    assert isinstance(source, TensorFlowSource)
    assert [spec.name for spec in (*source.inputs, *source.outputs)] == ["a b", "-first", "out put é"]
    first, second, third = (np.asarray(variable) for variable in model.variables[:6:2])  # biases are zero
    np.testing.assert_allclose(source.predict([x])[0], x @ first @ second @ third, atol=1e-5)
    assert tflite.float_model(source).outputs == ("-first", "out put é")
    with load_engine("onnx", source.onnx()) as engine:
        np.testing.assert_allclose(engine.run([x])[1], source.predict([x])[1], atol=1e-5)


def test_a_sequential_models_layers_stay_apart_where_their_names_are_replaced(tmp_path: Path) -> None:
    import keras

    layers = [keras.layers.Dense(5, name="é"), keras.layers.Dense(3, name="è"), keras.layers.Dense(2, name="_")]
    keras.Sequential([keras.Input((4,), name="ñ"), *layers]).save(tmp_path / "net.keras")
    source = sources.load(tmp_path / "net.keras")
    assert [spec.name for spec in (*source.inputs, *source.outputs)] == ["ñ", "_"]
    assert tflite.float_model(source).inputs == ("ñ",)


@pytest.mark.parametrize("activation", ["gelu", "celu", "log_sigmoid"])
def test_activations_that_the_exporter_leaves_in_tensorflows_words_answer_the_same_as_onnx(
    tmp_path, activation
) -> None:
    import keras
    import tensorflow as tf

    x = keras.Input((6,), name="x")
    net = keras.Model(x, keras.layers.Dense(4, activation=activation)(x))
    net.save(tmp_path / "net.keras")
    (tmp_path / "net.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(net).convert())
    item = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32)
    expected = np.asarray(net(item))
    for name in ("net.keras", "net.tflite"):
        with load_engine("onnx", sources.load(tmp_path / name).onnx()) as engine:
            np.testing.assert_allclose(engine.run([item])[0], expected, atol=1e-5)

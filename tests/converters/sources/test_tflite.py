"""Float .tflite files are models; quantized and stateful ones are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.artifact import recipe
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources import tflite_source as tflite
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert


def convert(function, signature, *, optimize: str = "", weights=()) -> bytes:
    import tensorflow as tf

    from edgekit_converters.recipe.foreign_code import quiet

    holder = tf.Module()
    holder.weights = list(weights)
    with quiet():
        concrete = tf.function(function, input_signature=signature).get_concrete_function()
        converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
        if optimize:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if optimize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        return bytes(converter.convert())


@pytest.fixture(scope="module")
def kernel():
    return np.random.default_rng(0).standard_normal((3, 3, 3, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def network(kernel):
    """Pictures of any size -> class scores."""
    tf = pytest.importorskip("tensorflow")

    def call(image):
        t = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"))
        return {"probs": tf.nn.softmax(tf.reduce_mean(t, [1, 2])), "peak": tf.reduce_max(t, [1, 2, 3], keepdims=True)}

    return call


def write(folder: Path, data: bytes) -> Path:
    (folder / "net.tflite").write_bytes(data)
    return folder / "net.tflite"


def fixed(size: int | None = 16):
    import tensorflow as tf

    return [tf.TensorSpec([1, size, size, 3], name="image")]


def agree(source) -> None:
    inputs = float_onnx.random_inputs(source.inputs, 2, seed=3)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.outputs] == [spec.name for spec in source.outputs]
        for i in range(2):
            fed = [np.ascontiguousarray(inputs[0][i : i + 1].transpose(0, 3, 1, 2))]
            for got, want in zip(engine.run(fed), source.predict(inputs), strict=True):
                np.testing.assert_allclose(got, want[i : i + 1], atol=1e-4)


def test_a_float_file_is_a_model_with_its_signatures_names(tmp_path: Path, network) -> None:
    data = convert(network, fixed())
    source = load(write(tmp_path, data))
    assert isinstance(source, tflite.TfliteModel)
    assert source.tflite() == data
    [image] = source.inputs
    assert (image.name, image.shape, image.layout) == ("image", (1, 16, 16, 3), "NHWC")
    assert {spec.name: spec.shape for spec in source.outputs} == {"probs": (1, 64), "peak": (1, 1, 1, 1)}
    x = np.random.default_rng(1).standard_normal((3, 16, 16, 3)).astype(np.float32)
    answers = dict(zip([spec.name for spec in source.outputs], source.predict([x]), strict=True))
    np.testing.assert_allclose(answers["probs"], network(x)["probs"].numpy(), atol=1e-5)
    agree(source)


def test_float16_weights_become_float32_and_it_is_said(tmp_path: Path, network) -> None:
    source = load(write(tmp_path, convert(network, fixed(), optimize="float16")))
    assert [note.code for note in source.notes] == ["float16-weights"]
    with load_engine("tflite", source.tflite()) as engine:
        assert engine.inputs[0].dtype == "float32"
    assert len(source.tflite()) > source.path.stat().st_size
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 3)).astype(np.float32)
    answers = dict(zip([spec.name for spec in source.outputs], source.predict([x]), strict=True))
    np.testing.assert_allclose(answers["probs"], network(x)["probs"].numpy(), atol=1e-2)
    assert tflite.read(write(tmp_path, source.tflite())).halved == 0
    agree(source)


def test_an_artifact_in_float_is_no_larger_than_the_float16_file_that_it_comes_from(tmp_path: Path) -> None:
    import tensorflow as tf

    weights = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    signature = [tf.TensorSpec([1, 64], name="x")]
    files = {
        name: convert(lambda x: {"y": tf.nn.relu(x @ weights) @ weights.T}, signature, optimize=name)
        for name in ("", "float16")
    }
    made = {}
    for name, data in files.items():
        source = load(write(tmp_path, data))
        made[name] = Workspace(source).make(recipe("tflite-f32")).data
        inputs = [np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)]
        with load_engine("tflite", made[name]) as engine:
            np.testing.assert_array_equal(engine.run(inputs)[0], source.predict(inputs)[0])
    assert made[""] == files[""]
    assert len(made["float16"]) < 1.02 * len(files["float16"]) < 0.6 * len(files[""])


def test_free_axes_are_pinned_in_the_file_itself(tmp_path: Path, network) -> None:
    path = write(tmp_path, convert(network, fixed(None)))
    with pytest.raises(SourceError, match=r"axis 1 is free.* such as --shape image=1,224,224,3"):
        load(path)
    source = load(path, LoadOptions(shapes={"image": (1, 10, 12, 3)}))
    with load_engine("tflite", source.tflite()) as engine:
        assert engine.inputs[0].shape == (1, 10, 12, 3)
    x = np.random.default_rng(1).standard_normal((2, 10, 12, 3)).astype(np.float32)
    answers = dict(zip([spec.name for spec in source.outputs], source.predict([x]), strict=True))
    np.testing.assert_allclose(answers["probs"], network(x)["probs"].numpy(), atol=1e-5)
    agree(source)


def test_a_quantized_file_is_refused_with_the_way_out(tmp_path: Path, network) -> None:
    with pytest.raises(SourceError, match=r"already quantized \('.*' is int8\).* Pass the float model"):
        load(write(tmp_path, convert(network, fixed(), optimize="dynamic")))


def test_select_tf_operators_are_refused_by_name(tmp_path: Path) -> None:
    import tensorflow as tf

    data = convert(lambda image: {"y": tf.linalg.det(tf.transpose(image, [0, 3, 1, 2]))}, fixed())
    with pytest.raises(SourceError, match="do not have: SELECT-TF MatrixDeterminant"):
        load(write(tmp_path, data))


def test_a_state_kept_inside_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    seen = tf.Variable(np.zeros((1, 16, 16, 3), np.float32))

    def count(image):
        seen.assign_add(image)
        return {"y": seen + 1.0}

    with pytest.raises(SourceError, match=r"keeps a state inside \(ASSIGN_VARIABLE"):
        load(write(tmp_path, convert(count, fixed(), weights=[seen])))


def test_damaged_weights_are_named(tmp_path: Path, kernel) -> None:
    import tensorflow as tf

    broken = kernel.copy()
    broken[0, 0, 0, 0] = np.nan
    data = convert(lambda image: {"y": tf.nn.conv2d(image, broken, 1, "SAME")}, fixed())
    with pytest.raises(SourceError, match="are damaged: 1 of 1,728 values are NaN"):
        load(write(tmp_path, data))


def test_half_a_file_is_refused(tmp_path: Path, network) -> None:
    data = convert(network, fixed())
    for length in (9, 100, len(data) // 2, len(data) - 40):
        with pytest.raises(SourceError, match=r"net\.tflite"):
            load(write(tmp_path, data[:length]))

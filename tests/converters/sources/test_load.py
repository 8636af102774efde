"""What `sources.load` refuses, and that every refusal says what, where and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgekit_converters import sources
from edgekit_converters.errors import SourceError
from edgekit_converters.sources.shapes import image_layout, unique_names

pytestmark = pytest.mark.convert


def refusal(path: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        sources.load(path)
    error = caught.value
    assert error.what
    assert error.where == str(path)
    assert error.do
    return error


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.keras", None, "no such file"),
        ("empty.onnx", b"", "empty"),
        ("text.onnx", b"this is a shopping list\n" * 20, "not an ONNX model"),
        ("noise.onnx", bytes(range(256)) * 8, "not an ONNX model"),
        ("text.keras", b"this is a shopping list", "not a .keras file"),
        ("text.h5", b"this is a shopping list", "not an HDF5 file"),
        ("photo.png", b"\x89PNG", "'.png'"),
        ("no_suffix", b"x", "suffix"),
        ("net.tflite", b"\0\0\0\0TFL3", "already converted"),
        ("net.pt", b"PK", "PyTorch"),
        ("upper.TFLITE", b"x", "already converted"),
    ],
)
def test_what_is_no_model_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert says in refusal(path).what


def test_folders_are_refused_and_a_saved_model_is_called_one(tmp_path: Path) -> None:
    assert "folder" in refusal(tmp_path).what
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert "SavedModel" in refusal(tmp_path).what


def test_truncated_files_are_refused(tmp_path: Path, digits_model, digits_onnx: Path) -> None:
    for whole in (digits_model.model, digits_onnx):
        cut = tmp_path / whole.name
        cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        refusal(cut)


def test_the_batch_is_the_only_axis_that_may_be_free(tmp_path: Path) -> None:
    error = refusal(save_onnx(tmp_path, shape=["N", 3, "height", 8]))
    assert "axis 2 ('height') is free" in error.what
    assert "axis 2" in error.do


def test_a_fixed_batch_above_one_is_refused(tmp_path: Path) -> None:
    assert "fixed batch of 4" in refusal(save_onnx(tmp_path, shape=[4, 3, 8, 8])).what


def test_a_scalar_input_is_refused(tmp_path: Path) -> None:
    assert "scalar" in refusal(save_onnx(tmp_path, shape=[])).what


def test_operators_that_no_engine_has_are_refused_by_name(tmp_path: Path) -> None:
    assert "acme.Magic" in refusal(save_onnx(tmp_path, op="Magic", domain="acme")).what


def test_a_file_made_for_one_machine_is_refused(tmp_path: Path) -> None:
    assert "already optimized or quantized" in refusal(save_onnx(tmp_path, op="FusedConv", domain="com.microsoft")).what


def test_external_data_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    path = save_onnx(tmp_path)
    model = onnx.load(path)
    weight = model.graph.initializer.add()
    weight.name, weight.data_type, weight.data_location = "w", TensorProto.FLOAT, TensorProto.EXTERNAL
    weight.dims[:] = [1]
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    path.write_bytes(model.SerializeToString())
    assert "another file" in refusal(path).what


def test_a_lambda_layer_is_refused_with_the_reason(tmp_path: Path) -> None:
    import keras

    image = keras.Input((4,), name="x")
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.Lambda(lambda t: t * 2, name="doubler", output_shape=(4,))]
    )
    model = keras.Model(image, inner(image))
    for name in ("net.keras", "net.h5"):
        model.save(tmp_path / name)
        error = refusal(tmp_path / name)
        assert "'doubler' is a Lambda" in error.what
        assert "Python code" in error.what


def test_an_unknown_keras_layer_is_refused_without_a_traceback(tmp_path: Path) -> None:
    import keras

    class Mystery(keras.layers.Layer):
        def call(self, x):
            return x * 3

    x = keras.Input((4,))
    keras.Model(x, Mystery()(x)).save(tmp_path / "net.keras")
    assert "cannot read it" in refusal(tmp_path / "net.keras").what


def test_a_keras_axis_left_free_is_named(tmp_path: Path) -> None:
    import keras

    x = keras.Input((None, 8, 3), name="image")
    keras.Model(x, keras.layers.GlobalAveragePooling2D()(x)).save(tmp_path / "net.keras")
    error = refusal(tmp_path / "net.keras")
    assert "input 'image'" in error.what
    assert "axis 1" in error.what


def test_weights_alone_are_no_model(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["kernel"] = np.zeros(3)
    assert "weights only" in refusal(tmp_path / "weights.h5").what


@pytest.mark.parametrize(
    ("shape", "prefer", "layout"),
    [
        ((-1, 224, 224, 3), "NHWC", "NHWC"),
        ((-1, 224, 224, 3), "NCHW", "NHWC"),
        ((-1, 3, 224, 224), "NHWC", "NCHW"),
        ((-1, 3, 5, 3), "NCHW", "NCHW"),
        ((-1, 3, 5, 3), "NHWC", "NHWC"),
        ((-1, 7, 5, 9), "NHWC", None),
        ((-1, 10, 3), "NHWC", None),
    ],
)
def test_a_picture_is_known_by_its_channels(shape, prefer, layout) -> None:
    assert image_layout(shape, prefer=prefer) == layout


def test_names_lose_tensorflows_suffix_and_must_differ() -> None:
    assert unique_names(["image:0", "b"], where="net", kind="input") == ("image", "b")
    with pytest.raises(SourceError, match="two inputs are called 'a'"):
        unique_names(["a:0", "a"], where="net", kind="input")


def save_onnx(folder: Path, *, shape=("N", 3, 8, 8), op: str = "Relu", domain: str = "") -> Path:
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))],
    )
    opsets = [helper.make_opsetid("", 15), *([helper.make_opsetid(domain, 1)] if domain else [])]
    path = folder / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path

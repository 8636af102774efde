"""What `sources.load` refuses, and that every refusal says what, where and what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import tflite_source as tflite
from edgekit_converters.sources.load import LOADERS, load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.shapes import image_layout, unique_names
from edgekit_converters.sources.source_model import refusing

pytestmark = pytest.mark.convert

TINY = Path(__file__).parents[2] / "models" / "tiny_f32.tflite"


def refusal(path: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        load(path)
    error = caught.value
    assert error.what
    assert error.where == str(path)
    assert error.do
    return error


def test_what_a_framework_raises_is_about_the_model_and_a_lack_of_memory_is_not(tmp_path):
    with (
        pytest.raises(SourceError, match="net: it does not run: odd"),
        refusing(tmp_path / "net", "it does not run:", "Save it"),
    ):
        raise ValueError("odd")
    with pytest.raises(MemoryError), refusing(tmp_path / "net", "it does not run:", "Save it again"):
        raise MemoryError


def convolution() -> bytes:
    from onnx import numpy_helper

    weights = np.random.default_rng(2).normal(size=(3, 1, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_a_file_with_flipped_bits_is_read_or_refused_in_one_way(tmp_path: Path, suffix: str) -> None:
    data = convolution() if suffix == ".onnx" else TINY.read_bytes()
    path, drawn, refused = tmp_path / f"net{suffix}", np.random.default_rng(26), 0
    for number in range(250 if suffix == ".onnx" else 60):
        damaged = bytearray(data)
        place = number if suffix == ".onnx" and number < len(data) else int(drawn.integers(len(data)))
        damaged[place] ^= 1 << int(drawn.integers(8))
        path.write_bytes(damaged)
        try:
            load(path)
        except SourceError:
            refused += 1
    assert refused > 20


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
        ("net.tflite", b"\0\0\0\0TFL3", "not a TFLite model"),
        ("upper.TFLITE", b"x", "not a TFLite model"),
        ("net.pt", b"PK", "PyTorch"),
        ("net.pkl", b"\x80", "a pickle runs code"),
        ("net.safetensors", b"x", "weights"),
        ("pointer.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-lfs pointer"),
        ("page.keras", b"<!DOCTYPE html><html><head>", "web page"),
        ("made.ekb", b"x", "bundle"),
    ],
)
def test_what_is_no_model_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert says in refusal(path).what


def test_a_folder_without_a_saved_model_is_refused_and_what_is_in_it_is_offered(tmp_path: Path) -> None:
    assert "has no saved_model.pb" in refusal(tmp_path).what
    (tmp_path / "net.onnx").write_bytes(b"x")
    assert refusal(tmp_path).do == f"Did you mean {tmp_path / 'net.onnx'}?"
    (tmp_path / "config.json").touch()
    assert "edgekit contract" not in refusal(tmp_path).do  # an unpacked .keras
    (tmp_path / "tokenizer.json").touch()
    assert refusal(tmp_path).do.endswith(f"edgekit contract {tmp_path} --length 64")
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert "empty" in refusal(tmp_path).what
    (tmp_path / "saved_model.pb").write_bytes(b"this is a shopping list")
    assert "damaged" in refusal(tmp_path).what


def test_truncated_files_are_refused(tmp_path: Path, digits_model, digits_onnx: Path) -> None:
    for whole in (digits_model.model, digits_onnx):
        cut = tmp_path / whole.name
        cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        refusal(cut)


def test_the_batch_is_the_only_axis_that_may_be_free(tmp_path: Path) -> None:
    error = refusal(save_onnx(tmp_path, shape=["N", 3, "height", 8]))
    assert "axis 2 ('height') is free" in error.what
    assert error.do == "Pin it: --shape x=1,3,HEIGHT,8, such as --shape x=1,3,224,8"


def test_a_fixed_batch_above_one_is_refused(tmp_path: Path) -> None:
    assert "fixed batch of 4" in refusal(save_onnx(tmp_path, shape=[4, 3, 8, 8])).what


def test_a_scalar_input_is_refused(tmp_path: Path) -> None:
    assert "scalar" in refusal(save_onnx(tmp_path, shape=[])).what


def test_operators_that_no_engine_has_are_refused_by_name(tmp_path: Path) -> None:
    assert "acme.Magic" in refusal(save_onnx(tmp_path, op="Magic", domain="acme")).what


def test_a_file_made_for_one_machine_is_refused(tmp_path: Path) -> None:
    assert "already optimized or quantized" in refusal(save_onnx(tmp_path, op="FusedConv", domain="com.microsoft")).what


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin", "", "."])
def test_weights_outside_of_the_models_folder_are_never_opened(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"0000")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    refused = refusal(save_external(folder, location))
    assert "outside the model's folder" in refused.what
    if location == "link.bin":
        assert f"in '{tmp_path.resolve()}/secret.bin' (by the link 'link.bin')" in refused.what
        assert refused.do == f"Copy {tmp_path.resolve()}/secret.bin over the link"


def test_weights_in_a_file_beside_the_model_are_read_and_missed_by_name(tmp_path: Path) -> None:
    path = save_external(tmp_path, "net.data")
    assert "net.data is missing" in refusal(path).what
    (tmp_path / "net.data").write_bytes(b"00")
    assert "truncated" in refusal(path).what
    (tmp_path / "net.data").write_bytes(np.float32(3).tobytes())
    source = load(path)
    assert source.predict([np.ones((1, 3), np.float32)])[0].tolist() == [[3, 3, 3]]
    first = source.sha256
    (tmp_path / "net.data").write_bytes(np.float32(4).tobytes())
    assert load(path).sha256 != first


@pytest.mark.parametrize("name", ["net.onnx", "./net.onnx", "../{folder}/net.onnx"])
def test_a_relative_path_is_the_model_that_its_absolute_path_is(tmp_path: Path, monkeypatch, name: str) -> None:
    path = save_external(tmp_path, "net.data")
    (tmp_path / "net.data").write_bytes(np.float32(3).tobytes())
    monkeypatch.chdir(tmp_path)
    relative = Path(name.format(folder=tmp_path.name))
    assert load(relative).sha256 == load(path).sha256
    (tmp_path / "net.data").unlink()
    assert refusal(relative).where == str(relative)


def test_a_place_with_a_nul_is_refused(tmp_path: Path) -> None:
    assert (
        "the location of the weights 'w' holds a NUL character" in refusal(save_external(tmp_path, "net\0.data")).what
    )


@pytest.mark.parametrize("after", [True, False], ids=["as it was read", "before it was read"])
@pytest.mark.parametrize(
    "content",
    [(TINY.parent / "tiny_int8.tflite").read_bytes(), TINY.read_bytes()[:1000]],
    ids=["another model", "half a file"],
)
def test_a_file_that_is_written_while_it_is_read_is_refused_as_that(
    tmp_path: Path, monkeypatch, content: bytes, after: bool
) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(TINY.read_bytes())

    def overtaken(path: Path, options: LoadOptions):
        source = tflite.load(path, options) if after else None
        path.write_bytes(content)
        return source or tflite.load(path, options)

    monkeypatch.setitem(LOADERS, "tflite", f"{__name__}:_OVERTAKEN")
    monkeypatch.setitem(globals(), "_OVERTAKEN", overtaken)
    error = refusal(path)
    assert "changed while it was read" in error.what
    assert "Run the build again" in error.do


def test_a_folder_that_is_written_while_it_is_read_is_refused_as_that(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"x")

    def overtaken(path: Path, options: LoadOptions):
        (path / "variables").mkdir()
        (path / "variables" / "variables.index").write_bytes(b"x")

    monkeypatch.setitem(LOADERS, "saved-model", f"{__name__}:_OVERTAKEN")
    monkeypatch.setitem(globals(), "_OVERTAKEN", overtaken)
    assert "changed while it was read" in refusal(tmp_path).what


def test_weights_beside_the_model_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch) -> None:
    path = save_external(tmp_path, "net.data")
    (tmp_path / "net.data").write_bytes(np.float32(3).tobytes())
    read = onnx.load_external_data_for_model

    def overtaken(model, folder: str) -> None:
        read(model, folder)
        (tmp_path / "net.data").write_bytes(np.float32(4).tobytes())

    monkeypatch.setattr(onnx, "load_external_data_for_model", overtaken)
    assert "changed while it was read" in refusal(path).what


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "net.onnx"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(os.path.relpath(path))  # the whole path may be longer than a socket's name
        else:
            path = Path(os.devnull)
        assert "not a regular file" in refusal(path).what


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
    error = refusal(tmp_path / "net.keras")
    assert "Mystery: it needs that Python code" in error.what
    assert "--trust-model" in error.do


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
    assert "only weights" in refusal(tmp_path / "weights.h5").what


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


def save_external(folder: Path, location: str) -> Path:
    """y = x * w, with w in another file."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "4")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "net", values[:1], values[1:], [weight])
    path = folder / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


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

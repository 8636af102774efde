"""What `edgekit export` writes runs without edgekit, and gives what the bundle gives."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace

import mirrored
import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.programs.export import export
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec
from edgekit_runtime.system.errors import BundleError

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('edgekit', 'edgekit_runtime', 'edgekit_profiles')));"
"""Python that cannot import edgekit."""


def run_alone(folder, *arguments):
    code = f"{WITHOUT} import runpy; sys.argv = {['run.py', *arguments]!r}; runpy.run_path('run.py')"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def photo(tmp_path):
    """Wider than high, of many colours."""
    rows, columns = np.mgrid[0:30, 0:47]
    pixels = np.stack([255 - rows, columns, (rows * columns) % 64], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-f32", "ncnn-f32", "tflite-f32, any number"])
def test_the_program_gives_the_golden_answers(tmp_path, recipe):
    bundle = read_bundle(tiny.bundle(tmp_path, recipe))
    made = export(bundle, tmp_path / "out")
    assert {path.name for path in made.files} >= {"contract.json", "golden.npz", "labels.txt", "run.py"}
    written = b"".join(path.read_bytes() for path in made.files if path.stem == "model")
    assert tiny.model_bytes(recipe).endswith(written[-200:])
    done = run_alone(tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")
    assert done.stdout.count("example ") == len(bundle.manifest.golden)


def test_a_model_that_answers_otherwise_is_noticed(tmp_path):
    export(read_bundle(tiny.bundle(tmp_path)), tmp_path / "out")
    golden = dict(np.load(tmp_path / "out" / "golden.npz"))
    golden["1.out.probs"] += np.float32(0.1)
    np.savez(tmp_path / "out" / "golden.npz", **golden)
    done = run_alone(tmp_path / "out")
    assert done.returncode == 1
    assert "differs: the golden answers are of" in done.stderr


@pytest.mark.parametrize(
    "way",
    [{"resize": "stretch"}, {"resize": "letterbox"}, {"resize": "center-crop", "crop": 0.875}, {"color": "bgr"}],
    ids=str,
)
@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-f32"])
def test_a_picture_gets_the_answer_that_edgekit_gives(tmp_path, photo, monkeypatch, recipe, way):
    image = replace(tiny.CONTRACT.inputs[0], image=replace(tiny.IMAGE, mean=(3.0, 2.0, 1.0), **way))
    path = tiny.bundle(tmp_path, recipe, contract=replace(tiny.CONTRACT, inputs=(image,)))
    export(read_bundle(path), tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["run.py"])
    program = runpy.run_path(str(tmp_path / "out" / "run.py"))
    with open_bundle(path) as model:
        wanted = model.predict(photo)
    answer = program["run"](program["pixels"](photo))
    np.testing.assert_allclose(answer["probs"].ravel(), wanted.outputs["probs"].ravel(), atol=1e-6)
    printed = dict(line.split() for line in run_alone(tmp_path / "out", str(photo)).stdout.splitlines())
    assert {label: float(score) for label, score in printed.items()} == pytest.approx(
        {one.label: one.score for one in wanted.top(4)}, abs=1e-4
    )


def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(tmp_path):
    export(read_bundle(tiny.bundle(tmp_path, "onnx-f32")), tmp_path / "out")
    (tmp_path / "out" / "words.jpg").write_text("no picture")
    (tmp_path / "out" / "words.npy").write_text("no array")
    for name in ("nowhere.jpg", "nowhere.npy", "words.jpg", "words.npy"):
        done = run_alone(tmp_path / "out", name)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith(f"{name}: cannot be read: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "resize"),
    [*((kind, "letterbox") for kind in mirrored.DETECTORS), ("objectness", "stretch"), ("objectness", "center-crop")],
)
def test_a_detector_prints_the_boxes_that_edgekit_gives(tmp_path, kind, resize):
    spec, counted = mirrored.image(resize=resize), kind == "ssd"
    path = mirrored.detector(tmp_path, spec, counted=counted, stated=counted, **mirrored.DETECTORS[kind])
    export(read_bundle(path), tmp_path / "out")
    seen = 0
    with open_bundle(path) as model:
        for number, size in enumerate([(24, 24), (24, 12), (12, 24)]):  # not smoothed away
            Image.fromarray(mirrored.picture(number, *size)).save(tmp_path / "picture.png")
            wanted = model.predict(tmp_path / "picture.png").boxes
            printed = run_alone(tmp_path / "out", str(tmp_path / "picture.png"))
            assert not printed.stderr
            mirrored.assert_printed(printed.stdout, wanted)
            seen += len(wanted)
    assert seen > 1


def test_vectors_and_raw_outputs_are_summed_up_in_a_line_each(tmp_path):
    vector = mirrored.vector(tmp_path, mirrored.image())
    export(read_bundle(vector), tmp_path / "vector")
    Image.fromarray(mirrored.picture(1)).save(tmp_path / "picture.png")
    with open_bundle(vector) as model:
        wanted = model.predict(tmp_path / "picture.png").vector
    (line,) = run_alone(tmp_path / "vector", str(tmp_path / "picture.png")).stdout.splitlines()
    assert line.startswith(f"a vector of {len(wanted)}, length {np.linalg.norm(wanted):.4g}: {wanted[0]:.4g} ")
    (tmp_path / "raw").mkdir()
    export(read_bundle(mirrored.floats(tmp_path / "raw")), tmp_path / "raw" / "out")
    np.save(tmp_path / "item.npy", np.float32([0, 1, 2, 3, 4, 9]))
    lines = run_alone(tmp_path / "raw" / "out", str(tmp_path / "item.npy")).stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["y [6]", "place [1]"]


def test_the_contract_lies_beside_the_model(tmp_path):
    export(read_bundle(tiny.bundle(tmp_path)), tmp_path / "out")
    contract = json.loads((tmp_path / "out" / "contract.json").read_text())
    assert contract["inputs"][0]["image"]["std"] == [255.0, 255.0, 255.0]
    assert (tmp_path / "out" / "labels.txt").read_text() == "red\ngreen\nblue\ndark\n"


def test_a_folder_that_cannot_be_written_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot be written: File exists\. Make room there, or name .* with -o"):
        export(read_bundle(tiny.bundle(tmp_path, "onnx-f32")), tmp_path / "file" / "out")


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    bundle = read_bundle(tiny.bundle(tmp_path))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(OutputError, match="is not an empty directory"):
        export(bundle, tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is not an empty directory"):
        export(bundle, tmp_path / "file")
    with pytest.raises(BundleError, match="no artifact 'nope'"):
        export(bundle, tmp_path / "new", recipe="nope")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-f32"])
def test_an_array_gets_the_answer_that_edgekit_gives(tmp_path, recipe):
    path = tiny.bundle(tmp_path, recipe)
    export(read_bundle(path), tmp_path / "out")
    np.save(tmp_path / "blue.npy", tiny.BLUE)
    np.savez(tmp_path / "blue.npz", anything=tiny.BLUE)
    with open_bundle(path) as model:
        wanted = {one.label: one.score for one in model.predict(tiny.BLUE).top(4)}
    for name in ("blue.npy", "blue.npz"):
        printed = dict(line.split() for line in run_alone(tmp_path / "out", str(tmp_path / name)).stdout.splitlines())
        assert {label: float(score) for label, score in printed.items()} == pytest.approx(wanted, abs=1e-4)
    np.save(tmp_path / "wide.npy", np.zeros((8, 9, 3), np.uint8))
    refused = run_alone(tmp_path / "out", str(tmp_path / "wide.npy"))
    assert refused.returncode == 1
    assert "wide.npy: 'image' is (8, 9, 3), and an item is (8, 8, 3)" in refused.stderr


def two_inputs(folder):
    """A bundle whose answer is a + 10 b."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Mul", ["b", "ten"], ["c"]), helper.make_node("Add", ["a", "c"], ["y"])]
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "aby"}
    ten = numpy_helper.from_array(np.float32(10), "ten")
    graph = helper.make_graph(nodes, "sum", [tensors["a"], tensors["b"]], [tensors["y"]], [ten])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    a, b, y = (TensorSpec(name, name, "float32", (1, 2)) for name in "aby")
    inputs = tuple(InputContract(name, (2,), "float32") for name in "ab")
    contract = Contract("raw", inputs, (OutputContract("y", (2,), "float32"),))
    recipe = Recipe("onnx-f32", "onnx", "float32")
    made = Artifact(recipe, model.SerializeToString(), (a, b), (y,), 0.0, 0.0, {})
    golden = [{"a": np.float32([1, 2]), "b": np.float32([3, 4])}]
    return tiny.bundle(folder, "onnx-f32", contract=contract, artifact=made, golden=golden)


def test_several_inputs_come_from_one_file_by_their_names(tmp_path):
    export(read_bundle(two_inputs(tmp_path)), tmp_path / "out")
    np.savez(tmp_path / "items.npz", b=np.float32([5, 6]), a=np.float32([1, 2]))
    done = run_alone(tmp_path / "out", str(tmp_path / "items.npz"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "y [2], 51 to 62: 51 62\n"
    np.savez(tmp_path / "fewer.npz", a=np.float32([1, 2]))
    assert "'b' is missing, and an item is (2,)" in run_alone(tmp_path / "out", str(tmp_path / "fewer.npz")).stderr
    assert "cat.jpg: pass a .npy or .npz file" in run_alone(tmp_path / "out", "cat.jpg").stderr


def test_a_detector_that_frigate_decodes_comes_with_its_configuration(tmp_path):
    import yaml

    image = mirrored.image(resize="stretch")
    head = {"candidates": "last", "span": (24.0, 24.0)}
    export(read_bundle(mirrored.detector(tmp_path, image, **head)), tmp_path / "out")
    said = yaml.safe_load((tmp_path / "out/frigate.yml").read_text())
    assert said["detectors"] == {"edgekit": {"type": "onnx"}}
    assert said["model"] == {
        "model_type": "yolo-generic", "path": "/config/model_cache/model.onnx", "width": 24, "height": 24,
        "labelmap_path": "/config/model_cache/labelmap.txt", "input_tensor": "nchw", "input_dtype": "float",
        "input_pixel_format": "rgb",
    }  # fmt: skip
    assert tuple(said["objects"]["track"]) == mirrored.LABELS
    lines = (tmp_path / "out/labelmap.txt").read_text().split("\n")[:-1]
    assert [line.split(" ", 1) for line in lines] == [[str(n), f" {label}"] for n, label in enumerate(mirrored.LABELS)]


@pytest.mark.parametrize(
    "head", [{"format": "xyxy"}, {"candidates": "first"}, {"span": (1.0, 1.0)}, {"activation": "sigmoid"}], ids=str
)
def test_a_head_that_frigate_would_misread_has_a_label_map_alone(tmp_path, head):
    settings = {"candidates": "last", "span": (24.0, 24.0), **head}
    made = export(read_bundle(mirrored.detector(tmp_path, **settings)), tmp_path / "out").files
    names = {one.name for one in made}
    assert "labelmap.txt" in names
    assert "frigate.yml" not in names

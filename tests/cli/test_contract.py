"""`edgekit contract` writes a draft that `edgekit build` takes as it is, and never over a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import open_subject
from edgekit.cli.main import main
from edgekit_converters.recipe.progress import silent
from edgekit_converters.recipe.store import NO_STORE, DiskStore, default_folder, key, put_json
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions, described_json
from edgekit_converters.sources.source_model import content_sha256, description_of

pytestmark = pytest.mark.convert

SAID = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "imgsz": "[16, 16]", "stride": "32", "task": "detect"}


def detector(folder: Path, said: dict[str, str]) -> Path:
    """[1, 7, 21]: the picture's mean times a weight, as a YOLO of three classes would answer."""
    weights = np.random.default_rng(0).uniform(0, 1, [1, 7, 21]).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean", "axis"], ["one"]),
        helper.make_node("Mul", ["one", "weights"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 7, 21])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array([3]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, said)
    path = folder / "yolo.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def run(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return (end.value.code, *capsys.readouterr())


def opened(model: Path):
    """What a build compares its artifacts with."""
    pictures = model.with_name("pictures.npy")
    np.save(pictures, np.random.default_rng(1).integers(0, 256, (8, 16, 16, 3)).astype(np.uint8))
    request = BuildRequest(model, profiles=("raspberry-pi-4",), output=model.parent, evaluation=str(pictures))
    return open_subject(request, NO_STORE, silent)


def test_a_draft_is_written_beside_the_model_and_built_with(tmp_path, capsys):
    model = detector(tmp_path, {})
    code, out, err = run(capsys, "contract", model, "--like", "yolo", "--json")
    file = tmp_path / "yolo.contract.toml"
    assert (code, json.loads(out), err) == (0, {"file": str(file), "task": "detection"}, "")
    code, _, err = run(capsys, "contract", model)
    assert code == 1
    assert f"{file}: it already exists. Name another file with -o [output]" in err
    subject = opened(model)
    assert subject.contract.task == "detection"
    assert "contract-of-model" not in {finding.code for finding in subject.findings}


def test_the_command_names_what_a_build_with_photos_and_labels_would_stumble_on(tmp_path, capsys):
    keras = pytest.importorskip("keras")
    image = keras.Input((8, 8, 3), name="camera")
    keras.Model(image, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(image))).save(tmp_path / "net.keras")
    code, _, err = run(capsys, "contract", tmp_path / "net.keras")
    assert code == 0
    assert "name the classes in `labels`, in the model's order; if 'camera' takes photos, replace kind" in err
    code, _, err = run(capsys, "contract", detector(tmp_path, SAID))
    assert (code, "Check each line of the draft\n" in err, "labels" in err) == (0, True, False)


def test_metadata_are_built_with_and_a_note_says_so(tmp_path):
    subject = opened(detector(tmp_path, SAID))
    (note,) = [finding for finding in subject.findings if finding.code == "contract-of-model"]
    assert "the task is detection; 'images' is rgb image, letterbox to 16 x 16 x 3" in note.what
    assert "3 labels, from 'red' to 'blue'" in note.what


def test_a_model_that_a_build_has_opened_is_not_opened_again(tmp_path, capsys):
    """TensorFlow takes seconds to load; what is remembered of the file says all that a draft says."""
    path = tmp_path / "net.keras"
    path.write_bytes(b"no Keras file: opening it would fail")
    name = key("source", content_sha256(path), ".keras", described_json(LoadOptions()))
    put_json(DiskStore(default_folder()), name, description_of(load(detector(tmp_path, {}))))
    code, out, _ = run(capsys, "contract", path)
    assert (code, out.strip()) == (0, str(tmp_path / "net.contract.toml"))
    assert run(capsys, "contract", path, "-o", tmp_path / "again.toml", "--signature", "other")[0] == 1


def saved(path: Path, nodes, outputs, **constants) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 12])],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def drafted(capsys, folder: Path, model: Path, *more: str | Path) -> tuple[str, str]:
    """(what the command prints, the draft)"""
    code, _, err = run(capsys, "contract", model, "-o", folder / f"{len(more)}.toml", *more)
    assert code == 0, err
    return err, (folder / f"{len(more)}.toml").read_text()


def test_what_a_model_answers_to_real_items_decides_its_task(tmp_path, capsys):
    """A forecast: by its shape it is a classifier of 12 classes, by its answers to real series it is none."""
    sums = np.tril(np.ones((12, 12), np.float32)).T
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = saved(tmp_path / "net.onnx", nodes, [("y", TensorProto.FLOAT, ["N", 12])], w=sums)
    series = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
    np.save(tmp_path / "series.npy", series)
    said, text = drafted(capsys, tmp_path, model)
    assert "the task is taken for classification" in said
    assert '# task = "classification"' in text
    said, text = drafted(capsys, tmp_path, model, "--calibration", tmp_path / "series.npy")
    assert "the task is raw" in said
    assert '\ntask = "raw"\n' in text


def test_scores_of_real_items_are_stated_in_the_draft(tmp_path, capsys):
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    model = saved(tmp_path / "net.onnx", nodes, [("y", TensorProto.FLOAT, ["N", 12])])
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(70, 12)).astype(np.float32))
    _, text = drafted(capsys, tmp_path, model, "--calibration", tmp_path / "x.npy")
    assert '\ntask = "classification"\n' in text
    assert '\nscores = "probabilities"   # by its answers' in text


def test_vectors_of_real_items_are_an_embedding_beside_another_output(tmp_path, capsys):
    """By made-up items its length is not 1: only what is far from zero is scaled."""
    nodes = [
        helper.make_node("ReduceL2", ["x"], ["length"], axes=[1], keepdims=1),
        helper.make_node("Greater", ["length", "far"], ["real"]),
        helper.make_node("Where", ["real", "length", "one"], ["by"]),
        helper.make_node("Div", ["x", "by"], ["y"]),
    ]
    outputs = [("y", TensorProto.FLOAT, ["N", 12]), ("length", TensorProto.FLOAT, ["N", 1])]
    model = saved(tmp_path / "net.onnx", nodes, outputs, far=np.float32([[50]]), one=np.float32([[1]]))
    np.save(tmp_path / "x.npy", 100 * np.random.default_rng(0).normal(size=(20, 12)).astype(np.float32))
    assert 'task = "classification"' in drafted(capsys, tmp_path, model)[1]
    _, text = drafted(capsys, tmp_path, model, "--calibration", tmp_path / "x.npy")
    assert '\ntask = "embedding"\n' in text
    assert '[embedding]\noutput = "y"' in text
    assert "[classification]" not in text


def test_a_label_that_real_items_show_to_be_more_than_the_best_class_stays(tmp_path, capsys):
    """Made-up items stay below 50,000: there the label is the class with the best score, and it is left out."""
    nodes = [
        helper.make_node("Identity", ["x"], ["probabilities"]),
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["most", "far"], ["outlier"]),
        helper.make_node("Where", ["outlier", "none", "best"], ["label"]),
    ]
    outputs = [("label", TensorProto.INT64, ["N"]), ("probabilities", TensorProto.FLOAT, ["N", 12])]
    model = saved(tmp_path / "net.onnx", nodes, outputs, far=np.float32([5e4]), none=np.int64([-1]))
    np.save(tmp_path / "x.npy", np.float32(1e5) * np.random.default_rng(0).normal(size=(20, 12)).astype(np.float32))
    assert "'label'" not in drafted(capsys, tmp_path, model)[1]
    _, text = drafted(capsys, tmp_path, model, "--calibration", tmp_path / "x.npy")
    assert "'label' [], 'probabilities' [12]" in text


def test_items_that_the_model_does_not_take_end_in_a_sentence(tmp_path, capsys):
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    model = saved(tmp_path / "net.onnx", nodes, [("y", TensorProto.FLOAT, ["N", 12])])
    np.save(tmp_path / "x.npy", np.zeros((20, 7), np.float32))
    code, _, err = run(capsys, "contract", model, "--calibration", tmp_path / "x.npy")
    assert (code, "[calibration]" in err) == (1, True)
    assert not (tmp_path / "net.contract.toml").exists()

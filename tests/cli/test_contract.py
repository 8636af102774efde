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
from edgekit_converters.sources.source_model import LoadOptions, content_sha256, described_json, description_of

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
    assert f"{file}: the file is there already. Name another one with -o, or remove it [output]" in err
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

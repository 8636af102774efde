"""`--compare`: another tool's file of the same model is measured and shown like ours, and is in no bundle."""

from __future__ import annotations

import html
import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from linear import onnx_bytes

import edgekit
from edgekit.building.build_report import summary
from edgekit.building.build_request import BuildRequest
from edgekit.building.other_conversions import read_compared
from edgekit.cli.main import main
from edgekit.packaging.output_errors import ComparedFileError
from edgekit_runtime.bundle.reader import read_bundle

TINY = tiny.MODELS / "tiny_f32.onnx"
CONTRACT = """
task = "classification"
labels = ["red", "green", "blue", "dark"]
scores = "probabilities"
[input]
kind = "image"
mean = 0
std = 255
"""


def colours(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [N, 8, 8, 3] pictures and the class of each."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 4
    pure = np.stack([tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK])[labels]
    return np.clip(pure + random.integers(-5, 6, pure.shape), 0, 255).astype(np.uint8), labels


def built(folder: Path, compare, **changes):
    contract = folder / "tiny.contract.toml"
    contract.write_text(CONTRACT, encoding="utf-8")
    asked = {
        "profiles": "x86-64", "evaluation": colours(), "recipes": ["onnx-f32"], "contract": contract,
        "output": folder / "out", "cache": False, "say": lambda line: None, "max_drop": 0.05,
    }  # fmt: skip
    return edgekit.build(TINY, compare=compare, **asked | changes)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The tiny classifier, and beside it an INT8 TFLite file with another layout and other names."""
    return built(tmp_path_factory.mktemp("compared"), tiny.MODELS / "tiny_int8.tflite")


def test_another_tools_file_is_measured_as_ours_are(result):
    ours, theirs = result.as_json()["candidates"]
    assert (ours["file"], theirs["file"]) == (None, str(tiny.MODELS / "tiny_int8.tflite"))
    assert theirs["recipe"] == "tiny_int8.tflite"
    assert theirs["bytes"] == len(tiny.model_bytes("tflite-int8"))
    assert theirs["fidelity"]["metric"] == "top1"
    assert theirs["fidelity"]["artifact"] == theirs["fidelity"]["original"] == 1.0
    assert theirs["fidelity"]["quantized_macs"] == 1.0
    assert theirs["fidelity"]["cosine"] < ours["fidelity"]["cosine"]


def test_each_board_has_its_time_and_whether_it_would_be_chosen(result):
    (seen,) = result.bundles[0].as_json()["compared"]
    assert seen["recipe"] == "tiny_int8.tflite"
    assert seen["estimate"]["grade"] == "measured"
    assert seen["refused"] is None


def test_summary_table_and_page_mark_it(result):
    lines = list(summary(result))
    assert any(line.startswith("tiny_int8.tflite (another tool)") for line in lines)
    assert any(line.startswith("  for comparison, not in the bundle: tiny_int8.tflite, ") for line in lines)
    assert "tiny_int8.tflite (another tool)" in result._repr_html_()
    page = html.unescape(result.page.read_text(encoding="utf-8"))
    assert '<span class="name">tiny_int8.tflite</span><small>made by another tool</small>' in page
    assert "another tool's, not in the bundle" in page  # the plot's legend


def test_it_is_never_packed(result):
    bundle = read_bundle(result.bundles[0].path)
    assert [entry.recipe for entry in bundle.manifest.artifacts] == ["onnx-f32"]
    assert tiny.model_bytes("tflite-int8") not in [bundle.blob(entry.blob) for entry in bundle.manifest.artifacts]


def test_a_file_that_answers_otherwise_is_shown_with_the_reason_why_it_would_be_refused(tmp_path):
    import onnx
    from onnx import numpy_helper

    model = onnx.load(TINY)
    for tensor in model.graph.initializer:  # the same network with its classes turned round
        values = numpy_helper.to_array(tensor)
        if values.ndim and 4 in values.shape:
            tensor.CopyFrom(numpy_helper.from_array(np.flip(values, values.shape.index(4)).copy(), tensor.name))
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model, wrong)
    found = built(tmp_path, [wrong, tiny.MODELS / "tiny_f32.tflite"])
    assert [one["recipe"] for one in found.candidates] == ["onnx-f32", "wrong.onnx", "tiny_f32.tflite"]
    assert found.complete
    turned, float32 = found.bundles[0].as_json()["compared"]
    assert turned["refused"]["code"] == "drop"
    assert float32["refused"] is None
    text = "\n".join(summary(found))
    assert "    would be refused (drop): top1 drops by 100 points" in text


def linear(folder: Path, name: str, shape=(-1, 4), classes=3) -> Path:
    random = np.random.default_rng(1)
    weights = random.normal(size=(int(np.prod(shape[1:])), classes)).astype(np.float32)
    (folder / name).write_bytes(onnx_bytes(weights, np.zeros(classes, np.float32), shape))
    return folder / name


@pytest.mark.parametrize(
    ("shape", "classes", "told"),
    [((-1, 5), 3, "its inputs are 'x' [?, 5]; the model's are 'x' [?, 4]"), ((-1, 4), 7, "its outputs are")],
)
def test_a_file_of_another_model_is_refused_before_anything_is_converted(tmp_path, shape, classes, told):
    other = linear(tmp_path, "other.onnx", shape, classes)
    with pytest.raises(ComparedFileError) as caught:
        edgekit.build(
            linear(tmp_path, "net.onnx"), profiles="x86-64", evaluation=np.zeros((8, 4), np.float32) + np.eye(8, 4),
            compare=other, output=tmp_path / "out", cache=False,
        )  # fmt: skip
    assert told in caught.value.what
    assert caught.value.where == str(other)
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_file_is_one_clear_error(tmp_path):
    text, torn = tmp_path / "notes.txt", tmp_path / "torn.tflite"
    text.write_text("no model")
    torn.write_bytes(tiny.model_bytes("tflite-int8")[:400])
    again = tmp_path / "again.tflite"
    again.write_bytes(tiny.model_bytes("tflite-int8"))
    for paths, told in (
        ([tmp_path / "missing.tflite"], "cannot be read"),
        ([text], "is neither a bundle nor a .tflite or .onnx file"),
        ([tiny.bundle(tmp_path)], "is a bundle"),
        ([tiny.MODELS / "tiny_int8.tflite", again], "is the same file as"),
    ):
        with pytest.raises(ComparedFileError, match=told):
            read_compared(paths)
    with pytest.raises(ComparedFileError, match=r"torn\.tflite"):
        built(tmp_path, torn)


def test_two_files_of_one_name_are_told_apart_by_their_paths(tmp_path):
    for folder, recipe in (("a", "tflite-int8"), ("b", "tflite-f32")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.tflite").write_bytes(tiny.model_bytes(recipe))
    files = read_compared([tmp_path / folder / "net.tflite" for folder in "ab"])
    assert [file.name for file in files] == [str(file.path) for file in files]


def test_the_command_has_it_too(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["build", str(TINY), "--profile", "x86-64", "--compare", str(tmp_path / "no.tflite"), "--json"])
    assert end.value.code == 1
    assert json.loads(capsys.readouterr().out)["error"]["where"] == str(tmp_path / "no.tflite")


def test_a_request_without_files_compares_none():
    assert BuildRequest(TINY, ("x86-64",), output=Path("out")).compare == ()

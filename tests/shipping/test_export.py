"""What a target cannot express is refused by name, before anything is written."""

from __future__ import annotations

import json
from dataclasses import replace

import mirrored
import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.programs.export import TARGETS, TargetError, export
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.contract.spec import CarriedState
from edgekit_runtime.engines.registry import load_engine

PROGRAMS = ("web", "node", "c")
RECIPES = dict.fromkeys(TARGETS, "onnx-f32") | {"mediapipe": "tflite-f32"}


def refused(path, target, folder, recipe=None):
    with pytest.raises(TargetError) as caught:
        export(read_bundle(path), folder, target, recipe)
    assert not folder.exists()
    assert f"--for {target} cannot express it" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("target", PROGRAMS)
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"inputs": 2}, "it has 2 inputs, and the program takes one"),
        ({"free": True}, "'x0' has a free axis: [1, -1]"),
        ({"dtype": "int64"}, "'x0' is int64, and the program gives float32, int8, uint8"),
    ],
    ids=str,
)
def test_a_program_takes_one_input_of_a_fixed_shape(tmp_path, target, model, said):
    assert said in refused(mirrored.floats(tmp_path, **model), target, tmp_path / "out")


@pytest.mark.parametrize("target", PROGRAMS)
def test_a_model_that_keeps_a_state_has_no_program(tmp_path, target):
    bundle = read_bundle(mirrored.floats(tmp_path))
    carried = replace(bundle.manifest.contract, state="explicit", carried=(CarriedState("x0", "y"),))
    bundle = replace(bundle, manifest=replace(bundle.manifest, contract=carried))
    with pytest.raises(TargetError, match="the model keeps a state"):
        export(bundle, tmp_path / "out", target)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["node", "c"])
def test_an_engine_of_onnx_takes_no_tflite(tmp_path, target):
    path = tiny.bundle(tmp_path, "tflite-f32")
    assert "tflite-f32: it is tflite, and this target takes onnx" in refused(path, target, tmp_path / "out")


def test_a_page_gets_tflite_with_float_sides_and_a_fixed_batch(tmp_path):
    folder = export(read_bundle(tiny.bundle(tmp_path, "tflite-int8")), tmp_path / "int8", "web").files[0].parent
    with load_engine("tflite", (folder / "model.tflite").read_bytes()) as net:
        assert [one.dtype for one in (*net.inputs, *net.outputs)] == ["float32", "float32"]
    files = export(read_bundle(tiny.bundle(tmp_path, "tflite-int8")), tmp_path / "files", "files").files
    assert files[0].read_bytes() == tiny.model_bytes("tflite-int8")  # a board takes it as it is
    said = refused(tiny.bundle(tmp_path, "tflite-f32, any number"), "web", tmp_path / "out")
    assert "has a free batch axis" in said


@pytest.mark.parametrize("target", TARGETS)
def test_a_folder_that_holds_something_is_left_alone(tmp_path, target):
    bundle = read_bundle(tiny.bundle(tmp_path, RECIPES[target]))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("x")
    with pytest.raises(OutputError, match="is not an empty directory"):
        export(bundle, tmp_path / "out", target)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_folder_has_the_model_its_contract_and_its_labels(tmp_path, target):
    path = tiny.bundle(tmp_path, RECIPES[target], contract=replace(tiny.CONTRACT, labels=mirrored.LABELS[:4]))
    made = export(read_bundle(path), tmp_path / "out", target)
    names = {one.name for one in made.files}
    assert names >= {f"model.{RECIPES[target].partition('-')[0]}", "contract.json", "labels.txt"}
    assert names == {one.name for one in (tmp_path / "out").iterdir()}
    assert (tmp_path / "out/labels.txt").read_text().splitlines() == list(mirrored.LABELS[:4])
    assert tuple(json.loads((tmp_path / "out/contract.json").read_text())["labels"]) == mirrored.LABELS[:4]
    assert made.start
    programs = [one for one in made.files if one.suffix in (".js", ".ts", ".c", ".h", ".html") and one.stem != "labels"]
    assert not [one.name for one in programs if "__" in one.read_text()]


def test_the_golden_file_is_items_and_answers_one_behind_the_other(tmp_path):
    path = tiny.bundle(tmp_path, "onnx-f32")
    export(read_bundle(path), tmp_path / "out", "c")
    data = (tmp_path / "out/golden.bin").read_bytes()
    assert len(data) == 2 * (8 * 8 * 3 + 4 * 4)
    assert np.frombuffer(data[:192], np.uint8).reshape(8, 8, 3).tolist() == tiny.RED.tolist()
    assert np.frombuffer(data[192:208], np.float32).argmax() == 0


def test_the_same_bundle_gives_the_same_bytes(tmp_path):
    for target in TARGETS:
        bundle = read_bundle(tiny.bundle(tmp_path, RECIPES[target]))
        one, other = (export(bundle, tmp_path / f"{target}{number}", target).files for number in (1, 2))
        assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


@pytest.mark.parametrize("target", TARGETS)
def test_a_version_ends_no_comment_string_or_tag(tmp_path, target):
    version = '1*/ x; </title><script> \'"""${a}__WIDTH__ /\\* \\'
    export(read_bundle(tiny.bundle(tmp_path, RECIPES[target], version=version)), tmp_path / "out", target)
    binary = (".onnx", ".tflite", ".bin", ".npz", ".png")
    texts = {one.name: one.read_text() for one in (tmp_path / "out").iterdir() if one.suffix not in binary}
    for name, text in texts.items():
        assert version not in text
        if name == "index.html":
            assert "<script>" not in text.replace("<script type", "")
    if target == "files":
        compile(texts["run.py"], "run.py", "exec")
    elif target == "c":
        assert "predict_error() says which" in texts["predict.h"].partition("*/")[0]
        assert "/*" not in texts["predict.h"].partition("*/")[0][2:]
    else:
        if target == "mediapipe":
            compile(texts["predict.py"], "predict.py", "exec")
        assert texts["predict.js"].splitlines()[0].endswith("It needs no edgekit.")


@pytest.mark.parametrize("target", [*PROGRAMS, "mediapipe"])
def test_an_encrypted_bundle_needs_its_key_and_is_written_in_clear_with_a_note(tmp_path, monkeypatch, target):
    monkeypatch.delenv("EDGEKIT_SECRET", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    key, out = tmp_path / "key", tmp_path / "out"
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    path = tiny.bundle(tmp_path, RECIPES[target], secret=Secret([bytes(range(32))]))
    command = ["export", str(path), "--for", target, "-o", str(out)]
    assert CliRunner().invoke(cli, command).exit_code != 0
    assert not out.exists()
    opened = CliRunner().invoke(cli, [*command, "--secret", str(key)])
    assert "note: the exported artifact is not encrypted" in opened.output
    if target != "mediapipe":
        assert (out / "model.onnx").read_bytes() == tiny.model_bytes("onnx-f32")

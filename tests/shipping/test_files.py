"""What `edgekit export` writes runs without edgekit, and gives what the bundle gives."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit.errors import OutputError
from edgekit.shipping.files import export_files
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle import read_bundle
from edgekit_runtime.errors import BundleError

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


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-f32", "tflite-f32, any number"])
def test_the_program_gives_the_golden_answers(tmp_path, recipe):
    bundle = read_bundle(tiny.bundle(tmp_path, recipe))
    made = export_files(bundle, tmp_path / "out")
    assert {path.name for path in made.files} >= {"contract.json", "golden.npz", "labels.txt", "run.py"}
    assert made.files[0].read_bytes() == tiny.model_bytes(recipe)
    done = run_alone(tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")
    assert done.stdout.count("example ") == len(bundle.manifest.golden)


def test_a_model_that_answers_otherwise_is_noticed(tmp_path):
    export_files(read_bundle(tiny.bundle(tmp_path)), tmp_path / "out")
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
    export_files(read_bundle(path), tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["run.py"])
    program = runpy.run_path(str(tmp_path / "out" / "run.py"))
    with open_bundle(path) as model:
        wanted = model.predict(photo)
    answer = program["run"](program["pixels"](photo))
    np.testing.assert_allclose(answer["probs"].ravel(), wanted.outputs["probs"].ravel(), atol=1e-6)
    printed = dict(line.split() for line in run_alone(tmp_path / "out", str(photo)).stdout.splitlines())
    assert {label: float(score) for label, score in printed.items()} == pytest.approx(
        {one.label: one.score for one in wanted.top(4)}, abs=1e-6
    )


def test_the_contract_lies_beside_the_model(tmp_path):
    export_files(read_bundle(tiny.bundle(tmp_path)), tmp_path / "out")
    contract = json.loads((tmp_path / "out" / "contract.json").read_text())
    assert contract["inputs"][0]["image"]["std"] == [255.0, 255.0, 255.0]
    assert (tmp_path / "out" / "labels.txt").read_text() == "red\ngreen\nblue\ndark\n"


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    bundle = read_bundle(tiny.bundle(tmp_path))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(OutputError, match="is not an empty folder"):
        export_files(bundle, tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is not an empty folder"):
        export_files(bundle, tmp_path / "file")
    with pytest.raises(BundleError, match="no artifact 'nope'"):
        export_files(bundle, tmp_path / "new", "nope")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]

"""`edgekit try`: a first look at a model that has no contract file."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from conftest import run_edgekit

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def untried(digits_onnx, digits_model, tmp_path_factory):
    """A folder with the model, photos of its kind, and an empty folder."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("try")
    shutil.copyfile(digits_onnx, folder / "digits.onnx")
    (folder / "empty").mkdir()
    (folder / "photos").mkdir()
    for number, digit in enumerate(np.load(digits_model.evaluation)["x"][:60]):
        pixels = np.round(255 * digit[..., 0] / digit.max()).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def tried(untried):
    folder = untried
    return run_edgekit("try", "digits.onnx", "--like", "photos", "--profile", "x86-64", "--json", cwd=folder), folder


def test_what_no_file_says_is_guessed_told_and_written_down(tried):
    ran, folder = tried
    assert ran.code == 0, ran.err
    assert any("pixels as numbers of" in line for line in ran.json["guessed"])
    assert any("for a spectrogram or the like" in line for line in ran.json["guessed"])
    assert any(line.startswith("the outputs look like classification") for line in ran.json["guessed"])
    assert all(f"guessed: {line}" in ran.err for line in ran.json["guessed"])
    text = (folder / ran.json["contract"]).read_text()
    assert 'kind = "image"' in text
    assert not (folder / "digits.contract.toml").exists()  # the model's folder is the user's


def test_ten_answers_stand_beside_the_original_s(tried):
    ran, _ = tried
    answers = ran.json["answers"]
    assert len(answers) == 10
    assert len({one["original"].split()[1] for one in answers}) > 3
    assert sum(one["same"] for one in answers) >= 9
    assert all(one["same"] == (one["original"].split()[1] == one["bundle"].split()[1]) for one in answers)


def test_a_contract_that_was_guessed_builds(tried, tmp_path):
    ran, folder = tried
    arguments = (
        "build",
        "digits.onnx",
        "--contract",
        ran.json["contract"],
        "--profile",
        "x86-64",
        "--recipe",
        "onnx-f32",
    )
    again = run_edgekit(*arguments, "--calibration", "photos", "-o", str(tmp_path), "--json", cwd=folder)
    assert again.code == 0, again.err
    assert json.loads(json.dumps(again.json))["bundles"][0]["recipe"] == "onnx-f32"


def test_a_contract_that_was_corrected_is_kept_and_a_broken_picture_costs_one_answer(tried, tmp_path):
    ran, folder = tried
    shutil.copytree(folder, tmp_path / "again")
    contract = tmp_path / "again" / ran.json["contract"]
    contract.write_text("# mine\n" + contract.read_text())
    (tmp_path / "again" / "photos" / "02.png").write_bytes(b"no picture")
    again = run_edgekit(
        "try", "digits.onnx", "--like", "photos", "--profile", "x86-64", "--json", cwd=tmp_path / "again"
    )
    assert again.code == 0, again.err
    assert contract.read_text().startswith("# mine\n")
    assert again.json["guessed"] == []
    assert len(again.json["answers"]) == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--like", "nowhere"), "nowhere"),
        (("--like", "empty"), "empty: "),
        (("--like", "photos", "-o", "digits.onnx"), "digits.onnx: cannot be written"),
        (("--like", "photos", "-o", "digits.onnx/below"), "cannot be written"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_tried_is_one_error_before_any_guess(untried, arguments, said):
    ran = run_edgekit("try", "digits.onnx", "--profile", "x86-64", *arguments, cwd=untried)
    assert ran.code == 1
    assert "guessed" not in ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert said in line
    assert "[internal]" not in line


def test_numbers_that_are_no_classes_are_shown_and_compared(tmp_path):
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    weights = numpy_helper.from_array(generator.normal(size=(16, 4)).astype(np.float32), "weights")
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("window", 16), ("next", 4))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["window", "weights"], ["next"])], "g", *map(list, zip(ends)), [weights]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "net.onnx"
    )
    np.savez(tmp_path / "windows.npz", window=generator.normal(size=(80, 16)).astype(np.float32))
    (tmp_path / "net.contract.toml").write_text('task = "raw"\n')
    ran = run_edgekit("try", "net.onnx", "--like", "windows.npz", "--profile", "x86-64", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.json["guessed"] == []
    assert len(ran.json["answers"]) == 10
    assert all(len(one["original"].split()) >= 4 for one in ran.json["answers"])


def test_without_data_nothing_is_claimed(digits_onnx, tmp_path):
    shutil.copyfile(digits_onnx, tmp_path / "digits.onnx")
    ran = run_edgekit("try", "digits.onnx", "--profile", "x86-64", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.json["answers"] == []
    assert ran.json["build"]["random_data"] is True


def test_the_next_command_names_the_sizes_that_this_one_was_given(digits_onnx, tmp_path):
    shutil.copyfile(digits_onnx, tmp_path / "digits.onnx")
    (taken,) = onnx.load(digits_onnx).graph.input
    shape = f"{taken.name}={','.join(str(axis.dim_value or 1) for axis in taken.type.tensor_type.shape.dim)}"
    ran = run_edgekit("try", "digits.onnx", "--shape", shape, "--profile", "x86-64", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert f"--shape {shape}" in ran.out.partition("Next, ")[2]

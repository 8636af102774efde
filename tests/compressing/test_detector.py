"""A detector whose boxes and scores 8 bits break under one scale: `edgekit compress`, then an ordinary build."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import run_edgekit
from recipes import recipe

from edgekit_converters.formats.keras_record import read_record
from edgekit_runtime import open_bundle

pytestmark = pytest.mark.convert
SETS = (
    "--evaluation",
    "evaluation.npz",
    "--metric",
    "finder:found",
    "--profile",
    "raspberry-pi-4",
)
COMMAND = ("compress", "finder.keras", "--train", "train.npz", *SETS, "--recipe", "recipe.toml", "--max-drop", "3%",
           "--epochs", "2", "-o", "out")  # fmt: skip


@pytest.fixture(scope="module")
def example(finder):
    """The module docs/examples/finder.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(finder)
        import finder as example

    return example


@pytest.fixture(scope="module")
def folder(finder, example, tmp_path_factory):
    """The network of docs/examples/finder.py, and pictures without labels to train on."""
    folder = tmp_path_factory.mktemp("finder")
    for name in ("finder.py", "finder.keras", "finder.contract.toml"):
        shutil.copy(finder / name, folder)
    np.savez(folder / "train.npz", x=example.pictures(2000, slice(0, 1200), 0)[0])
    x, y = example.pictures(300, slice(1200, None), 2)
    np.savez(folder / "evaluation.npz", x=x, y=y)
    recipe(folder, rate=2e-4)
    return folder


@pytest.fixture(scope="module")
def compressed(folder):
    return run_edgekit(*COMMAND, "--steps", "split,qat", "--json", cwd=folder)


def test_boxes_and_scores_get_an_output_each_and_are_trained_without_labels(compressed, folder):
    rows = {(row["step"], row["recipe"]): row for row in compressed.json["rows"]}
    plain, apart, trained = (rows[step, "tflite-int8"] for step in ("plain INT8", "split", "qat"))
    assert "under one scale" in plain["failed"]
    for row in (apart, trained):
        assert row["metric"] == "finder:found"
        assert row["original"] > 0.5
        assert row["drop"] < 0.03
        assert row["int8"] == 1.0
    split, qat = compressed.json["steps"]
    assert (split["step"], split["kept"], split["outputs"]) == ("split", True, ["boxes", "scores"])
    losses = [one["loss"] for one in qat["history"]]
    assert qat["best_step"] == qat["history"][int(np.argmin(losses))]["step"]
    contract = (folder / "out" / "finder.contract.toml").read_text()
    assert 'boxes = "boxes"' in contract
    assert "unit = [640, 480]" in contract
    assert read_record(folder / "out" / "finder.keras").joined.parts == ("boxes", "scores")


def test_an_ordinary_build_packs_pure_int8_and_decodes_the_original_boxes(compressed, folder, example):
    built = run_edgekit(
        "build", "out/finder.keras", "--calibration", "train.npz", *SETS, "--max-drop", "3%", "--recipe", "tflite-int8",
        "--json", "-o", "bundles", cwd=folder,
    ).json  # fmt: skip
    (bundle,) = built["bundles"]
    assert bundle["recipe"] == "tflite-int8"
    (candidate,) = built["candidates"]
    assert candidate["fidelity"]["quantized_macs"] == 1.0
    assert candidate["fidelity"]["metric"] == "finder:found"
    import keras

    data = np.load(folder / "evaluation.npz")
    images = data["x"][:60]
    raw = keras.models.load_model(folder / "finder.keras", compile=False)(images.astype(np.float32) / 127.5 - 1)
    same = 0
    with open_bundle(Path(folder, bundle["path"]), allow_unsigned=True) as model:
        for image, row in zip(images, np.asarray(raw), strict=True):
            found = model.predict(example.photo(image)).boxes
            second, best = np.sort(row[4:])[-2:]
            if best < 0.75 or best - second < 0.5 or not found:  # the float network wavers
                continue
            assert found[0].index == row[4:].argmax()
            centre = [(found[0].left + found[0].right) / 2, (found[0].top + found[0].bottom) / 2]
            same += np.abs(np.array(centre) - row[:2]).max() < 30
    assert same > 45


def test_the_same_command_again_makes_nothing(compressed, folder):
    again = run_edgekit(*COMMAND, "--steps", "split,qat", "--json", cwd=folder)
    assert "nothing to do" in again.err
    assert again.json == compressed.json


def test_without_steps_an_artifact_that_cannot_be_made_calls_for_the_split_alone(compressed, folder):
    ran = run_edgekit(*COMMAND[:-1], "limits", "--json", cwd=folder)
    assert [step["step"] for step in ran.json["steps"]] == ["split"]
    assert ran.json["kept"]
    assert not read_record(folder / "limits" / "finder.keras").ranges


def test_a_detector_half_as_wide_is_derived_with_both_its_outputs(compressed, folder):
    ran = run_edgekit(*COMMAND[:-1], "narrow", "--steps", "split,distill", "--width", "0.5", "--json", cwd=folder)
    rows = {(row["step"], row["recipe"]): row for row in ran.json["rows"]}
    assert rows["distill", "tflite-int8"]["macs"] < 0.5 * rows["split", "tflite-int8"]["macs"]

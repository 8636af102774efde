"""Whole runs that make a network faster: pruned to a board's budget, and a small student of a teacher in ONNX."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import run_edgekit
from recipes import recipe

import edgekit
from edgekit_converters.formats.keras_record import read_record

pytestmark = pytest.mark.convert
BUDGET_MS = 0.75
COMMAND = (
    "compress", "net.keras", "--train", "train.npz", "--evaluation", "evaluation.npz", "--budget-ms", str(BUDGET_MS),
    "--profile", "raspberry-pi-4", "--epochs", "8", "--recipe", "recipe.toml", "-o", "out",
)  # fmt: skip


def _network(kernels, x=None, y=None):
    """A residual CNN of these widths, trained where there are data."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)

    def normal(t):
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(t))

    image = keras.Input((8, 8, 1), name="image")
    t = normal(layers.Conv2D(kernels[0], 3, padding="same", use_bias=False)(image))
    t = layers.Add()([t, normal(layers.Conv2D(kernels[0], 3, padding="same", use_bias=False)(t))])
    t = normal(layers.Conv2D(kernels[1], 3, strides=2, padding="same", use_bias=False)(t))
    t = normal(layers.Conv2D(kernels[1], 3, padding="same", use_bias=False)(t))
    t = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(t))
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t))
    if x is not None:
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=64, epochs=8, verbose=0)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order], labels.astype(np.int64)[order]
    folder = tmp_path_factory.mktemp("narrower")
    _network((48, 160), x[:1200], y[:1200]).save(folder / "net.keras")
    np.savez(folder / "train.npz", x=x[:1200], y=y[:1200])
    np.savez(folder / "evaluation.npz", x=x[1200:], y=y[1200:])
    recipe(folder, batch=32)
    return folder


@pytest.fixture(scope="module")
def pruned(folder):
    """Killed after its first round, and then run again."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *COMMAND]
    started = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert started.stderr is not None
    lines: list[str] = []
    for line in started.stderr:
        lines.append(line)
        if line.startswith("step 100 "):
            started.send_signal(signal.SIGKILL)
            break
    started.communicate()
    assert (folder / "out" / ".net.compress" / "prune-0.npz").exists(), "".join(lines)
    return run_edgekit(*COMMAND, "--json", cwd=folder)


def test_a_budget_alone_takes_channels_out_until_the_boards_estimate_keeps_it(pruned):
    report = pruned.json
    rows = {(row["step"], row["recipe"]): row for row in report["rows"]}
    plain, narrow = (rows[what, "tflite-int8"] for what in ("plain INT8", "prune"))
    print(f"{plain['macs']} products, up to {plain['high_ms']:.3f} ms, {plain['score']:.4f}; "
          f"pruned {narrow['macs']}, up to {narrow['high_ms']:.3f} ms, {narrow['score']:.4f}")  # fmt: skip
    assert plain["high_ms"] > BUDGET_MS
    assert narrow["high_ms"] < plain["high_ms"]
    assert narrow["macs"] < 0.7 * plain["macs"]
    assert narrow["drop"] < 0.05
    (step,) = report["steps"]
    assert step["kept"]
    assert all(block["left"] % 8 == 0 for block in step["blocks"])
    assert step["macs"]["after"] == narrow["macs"]


def test_a_killed_run_resumes_with_the_same_channels_and_leaves_nothing_behind(pruned, folder):
    rounds = [line.split()[1] for line in pruned.err.splitlines() if line.startswith("step ") and " of " in line]
    assert rounds[0] == "200"
    assert {path.name for path in (folder / "out").iterdir()} == {
        "net.keras", "net-compress.json", "net-compress.html"
    }  # fmt: skip


def test_the_result_is_a_keras_model_with_its_batch_norm_and_its_record(pruned, folder):
    import keras

    model = keras.models.load_model(folder / "out" / "net.keras", compile=False)
    assert any(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    assert model.layers[-1].activation is keras.activations.softmax
    record = read_record(folder / "out" / "net.keras")
    assert [step["step"] for step in record.steps] == ["prune"]
    assert record.ranges == {}


def test_the_same_command_again_makes_nothing(pruned, folder):
    again = run_edgekit(*COMMAND, "--json", cwd=folder)
    assert "nothing to do" in again.err
    assert again.json == pruned.json


def test_a_build_that_refuses_for_the_budget_names_the_command(folder):
    ran = run_edgekit(
        "build", "net.keras", "--profile", "raspberry-pi-4", "--calibration", "train.npz", "--evaluation",
        "evaluation.npz", "--budget-ms", "0.05", "--recipe", "tflite-int8", "--repair-budget", "0", "--cache", "cache",
        cwd=folder,
    )  # fmt: skip
    assert ran.code == 1
    assert "edgekit compress --budget-ms" in ran.out


@pytest.fixture(scope="module")
def distilled(folder, digits_onnx):
    """A student that was never trained, of a teacher of another format."""
    _network((8, 16)).save(folder / "small.keras")
    said: list[str] = []

    def run():
        return edgekit.compress(
            folder / "small.keras", train=folder / "train.npz", evaluation=folder / "evaluation.npz",
            output=folder / "student", steps=["distill"], teacher=digits_onnx, epochs=12, batch=32, rate=3e-3,
            cache=folder / "cache", say=said.append,
        )  # fmt: skip

    return run(), said


def test_a_student_learns_from_a_teacher_in_another_format(distilled, folder):
    report, said = distilled
    rows = {(row.step, row.recipe): row for row in report.rows}
    student, teacher = rows["distill", "tflite-int8"], rows["teacher", "as it is"]
    print(f"student {student.score:.4f}, teacher {teacher.score:.4f}")
    assert rows["plain INT8", "tflite-int8"].score < 0.3
    assert teacher.score > 0.95
    assert student.score > 0.85
    assert report.model == folder / "student" / "small.keras"
    assert report.steps[0]["kept"]
    assert any(line.startswith("teacher, as it is") for line in said)


SPARSE = (
    "compress", "net.keras", "--train", "train.npz", "--evaluation", "evaluation.npz", "--steps", "sparse,qat",
    "--epochs", "4", "--max-drop", "10%",
)  # fmt: skip


@pytest.fixture(scope="module")
def sparse(folder):
    return run_edgekit(
        *SPARSE, *recipe(folder, "sparse.toml", batch=32, sparsity=0.8), "-o", "sparse", "--json", cwd=folder
    )


def test_zeros_make_the_compressed_artifact_small_and_change_no_time_in_8_bits(sparse):
    rows = {(row["step"], row["recipe"]): row for row in sparse.json["rows"]}
    plain, pruned, trained = (rows[step, "tflite-int8"] for step in ("plain INT8", "sparse", "qat"))
    print(*(f"{row['packed_bytes']} of {row['bytes']} B, {row['here_ms']:.3f} ms" for row in (plain, pruned, trained)))
    assert abs(pruned["bytes"] - plain["bytes"]) < 0.02 * plain["bytes"]
    assert pruned["packed_bytes"] < 0.6 * plain["packed_bytes"]
    assert trained["packed_bytes"] < 0.6 * plain["packed_bytes"], "training for 8 bits holds the zeros"
    assert rows["sparse", "tflite-f32"]["here_ms"] > 0
    assert pruned["score"] > 0.85


def test_the_result_of_the_sparse_steps_holds_its_zeros(sparse, folder):
    import keras

    model = keras.models.load_model(folder / "sparse" / "net.keras", compile=False)
    kernels = [np.asarray(layer.kernel) for layer in model.layers if hasattr(layer, "kernel")]
    assert min(float(np.mean(kernel == 0)) for kernel in kernels) >= 0.78


def test_every_artifact_is_timed_here_and_a_step_says_what_it_gained(sparse):
    report = sparse.json
    assert all(row["here_ms"] > 0 for row in report["rows"] if not row["failed"])
    for step in report["steps"]:
        low, high = step["gain"]["ci95"]
        assert low <= step["gain"]["points"] <= high
        assert step["gain"]["noise"] == (low <= 0 <= high)
    before = next(row for row in report["rows"] if (row["step"], row["recipe"]) == ("plain INT8", "tflite-int8"))
    assert {step["gain"]["of"] for step in report["steps"]} <= {"plain INT8", "sparse"}
    assert before["drop"] is not None


def test_a_folder_without_a_result_is_refused_before_anything_is_trained(folder):
    nowhere = recipe(folder, "nowhere.toml", sparsity=0.8, beside=["nowhere"])
    ran = run_edgekit(*SPARSE, *nowhere, "-o", "never", cwd=folder)
    assert ran.code == 1
    assert "nowhere" in ran.err
    assert "beside" in ran.err
    assert not (folder / "never").exists()

"""Training in 8 bits of the digits network, and what the converters make of the result."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_steps import steps_apart

from edgekit_converters.compress import train as training
from edgekit_converters.compress.losses import TrainingData, TrainingOptions
from edgekit_converters.compress.network import read_network
from edgekit_converters.compress.qat import train_for_8_bits
from edgekit_converters.compress.simulation import Simulation, calibrated
from edgekit_converters.compress.train import train
from edgekit_converters.compress.twin import tensor_names
from edgekit_converters.formats.keras_record import MEMBER, Record, learnt_plan, read_record, with_record
from edgekit_converters.recipe.artifact import recipe
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.targets.workspace import Workspace

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def data() -> TrainingData:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[:1200]
    return TrainingData(
        (pixels[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels[order].astype(np.int64), "classes"
    )


@pytest.fixture(scope="module")
def network(digits_model):
    import keras

    return read_network(keras.models.load_model(digits_model.model, compile=False))


SHORT = TrainingOptions(steps=4, batch=32, seed=3, key="one")


@pytest.fixture(scope="module")
def trained(network, data, tmp_path_factory):
    return train(network, data, SHORT, tmp_path_factory.mktemp("state"))


def test_the_same_seed_gives_the_same_result(network, data, trained, tmp_path):
    again = train(network, data, SHORT, tmp_path)
    assert again.history == trained.history
    for one, other in zip(again.values, trained.values, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_that_is_stopped_resumes_after_its_last_round_and_ends_as_if_it_was_not(
    network, data, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "_ROUND", 2)
    whole = train(network, data, SHORT, tmp_path)
    (tmp_path / "qat-3.npz").unlink()

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "training" and done == 3:
            raise KeyboardInterrupt

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        train(network, data, SHORT, tmp_path, stop, said.append)
    assert (tmp_path / "qat-3.npz").exists()
    resumed: list[str] = []
    again = train(network, data, SHORT, tmp_path, say=resumed.append)
    assert [line.split(":")[0] for line in said + resumed] == ["step 0 of 4", "step 2 of 4", "step 4 of 4"]
    assert again.history == whole.history
    np.testing.assert_array_equal(again.values[0], whole.values[0])


def test_a_state_of_another_run_or_a_damaged_one_is_not_resumed(network, data, trained, tmp_path):
    train(network, data, replace(SHORT, key="other"), tmp_path)
    assert train(network, data, SHORT, tmp_path).history == trained.history
    (tmp_path / "qat-3.npz").write_bytes((tmp_path / "qat-3.npz").read_bytes()[:500])
    assert train(network, data, SHORT, tmp_path).history == trained.history


def test_a_loss_that_is_not_finite_ends_with_the_best_round_before_it(network, data, tmp_path):
    spoilt = replace(data, x=data.x.copy())
    used = np.random.default_rng(3).permutation(len(data.x))[120:]
    first = np.random.default_rng((3, 0)).permutation(used)[:32]
    calibrated_with = set(used[:512])
    spoilt.x[next(row for row in first if row not in calibrated_with)] = np.nan
    for given, options in ((spoilt, SHORT), (data, replace(SHORT, rate=1e30, key="two"))):
        found = train(network, given, options, tmp_path)
        assert "not a finite number at step" in found.reason
        assert found.best_step == 0
    assert all(np.isfinite(value).all() for value in found.values)


def test_numbers_are_trained_on_by_their_squared_error(data, tmp_path):
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1))
    out = layers.Dense(1)(layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(image)))
    numbers = TrainingData(data.x[:300], data.x[:300].mean(axis=(1, 2, 3))[:, None], "numbers")
    found = train(read_network(keras.Model(image, out)), numbers, TrainingOptions(60, 32, 1e-2), tmp_path)
    first, best = found.history[0]["score"], max(one["score"] for one in found.history)
    assert best > first / 2, "the squared error did not fall to a half"


@pytest.fixture(scope="module")
def made(digits_model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    found = train_for_8_bits(digits_model.model, data, replace(SHORT, steps=30), folder)
    file = folder / "digits.keras"
    file.write_bytes(with_record(found.data, Record(({"step": "qat"},), found.ranges)))
    return file


@pytest.fixture(scope="module")
def workspace(made, digits_model):
    return Workspace(load(made), [[item[None]] for item in np.load(digits_model.calibration)["x"][:64]])


@pytest.mark.parametrize("name", ["tflite-int8", "onnx-int8-qdq"])
def test_the_artifact_is_within_one_step_of_the_simulation_on_a_thousand_inputs(made, workspace, data, name):
    """The simulation is rebuilt from the file alone: its kernels, and the ranges that it carries."""
    import keras

    network = read_network(keras.models.load_model(made, compile=False))
    grids = calibrated(network, [data.x[:64]])
    learnt = read_record(made).ranges[recipe(name).format]
    plain = Simulation(network, grids)
    start = [variable.numpy() for variable in plain.variables]
    names = tensor_names(network, plain, start, workspace, recipe(name).format, data.x[:8])
    scales, zeros = dict(grids.scales), dict(grids.zeros)
    for tensor, (low, high) in learnt.items():
        at = grids.group[names[tensor]]
        scales[at], zeros[at] = (high - low) / 255, round(-low / ((high - low) / 255))
    simulation = Simulation(network, replace(grids, scales=scales, zeros=zeros))
    values = [variable.numpy() for variable in simulation.variables]
    artifact = workspace.make(recipe(name))
    assert artifact.plan.fixed_ranges
    assert artifact.plan.steps == ()
    found = steps_apart(network, simulation, values, artifact, names, workspace, data.x[:1000])
    assert len(found) == 1000
    assert found.max() <= 1.01
    assert artifact.quantized_macs == 1.0 if name.startswith("tflite") else artifact.quantized_macs > 0.8


def test_no_calibration_moves_the_ranges_that_were_learnt(made, workspace):
    other = Workspace(load(made), [[np.full((1, 8, 8, 1), 40.0, np.float32)]] * 4)
    for name in ("tflite-int8", "onnx-int8-qdq"):
        assert other.make(recipe(name)).data == workspace.make(recipe(name)).data


def test_a_record_travels_in_the_file_and_changes_no_answer(made, data, tmp_path):
    import zipfile

    source = load(made)
    with zipfile.ZipFile(made) as archive:
        assert archive.namelist()[-1] == MEMBER
    bare = tmp_path / "bare.keras"
    bare.write_bytes(with_record(made.read_bytes(), Record()))
    assert load(bare).sha256 != source.sha256
    np.testing.assert_array_equal(load(bare).predict([data.x[:4]])[0], source.predict([data.x[:4]])[0])


def test_ranges_of_another_conversion_are_an_error_and_a_damaged_record_is_named(made, workspace, tmp_path):
    file = tmp_path / "digits.keras"
    file.write_bytes(with_record(made.read_bytes(), Record(ranges={"tflite": {"gone": (0.0, 1.0)}})))
    with pytest.raises(ConversionError, match=r"range of 'gone'.*compress again"):
        learnt_plan(file, workspace.graph("tflite"))
    assert learnt_plan(file, workspace.graph("onnx")) is None
    assert read_record(Path("net.onnx")) is None
    file.write_bytes(made.read_bytes()[:-40])
    with pytest.raises(SourceError, match="compress again"):
        read_record(file)


def test_held_out_items_decide(trained):
    assert trained.history[0]["step"] == 0
    assert math.isfinite(trained.history[0]["loss"])
    assert trained.history[-1]["step"] == 4

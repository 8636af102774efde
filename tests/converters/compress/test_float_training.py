"""Distillation and fine-tuning in float: the teacher's loss, batch norm, dropout, resuming, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgekit_converters.compress import losses as lessons
from edgekit_converters.compress import train as training
from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.float_training import FloatRun, check_batch, train_float
from edgekit_converters.compress.losses import Teaching, TrainingData, TrainingOptions
from edgekit_converters.compress.network import read_network
from edgekit_converters.compress.train import fit
from edgekit_converters.recipe.conversion_errors import CompressError

pytestmark = pytest.mark.convert
OPTIONS = TrainingOptions(steps=40, batch=16, rate=1e-2, seed=1, key="one")


@pytest.fixture(scope="module")
def network():
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    x = layers.ReLU()(layers.BatchNormalization(name="norm", momentum=0.8)(layers.Conv2D(8, 3, name="first")(image)))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling2D()(x))
    return read_network(keras.Model(image, layers.Dense(3, activation="softmax", name="probs")(x)))


@pytest.fixture(scope="module")
def data() -> TrainingData:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 300)
    x = random.random((300, 8, 8, 1), np.float32) * 0.2
    for at, kind in enumerate(y):
        x[at, :, :, 0] += (np.eye(8), np.ones((8, 8)), np.zeros((8, 8)))[kind]
    return TrainingData(x.astype(np.float32), y.astype(np.int64), "classes")


@pytest.fixture(scope="module")
def teaching(data) -> Teaching:
    """A sure teacher that is right, but calls every tenth item of class 0 a 1."""
    answers = np.full((300, 3), -3.0, np.float32)
    wrong = np.where((data.y == 0) & (np.arange(300) % 10 == 0), 1, data.y)
    answers[np.arange(300), wrong] = 3.0
    return Teaching(answers, 0.7, 4.0)


def _student(network):
    return without(network, trace(network), np.zeros(0, np.int64), seed=3)


def _train(network, data, teaching, folder, options=OPTIONS, **named):
    model = _student(network)
    return train_float(network, model, data, teaching, FloatRun("distill", options, folder, **named)), model


def _weights(made, tmp_path):
    import keras

    (tmp_path / "made.keras").write_bytes(made.data)
    return keras.models.load_model(tmp_path / "made.keras", compile=False)


def test_the_loss_is_hintons_of_temperature_and_labels():
    """T^2 times the cross entropy of both divided by T; in NumPy, for one batch."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    logits, teacher = random.normal(0, 3, (5, 4)), random.normal(0, 3, (5, 4))

    def soft(values, heat):
        found = np.exp(values / heat - (values / heat).max(1, keepdims=True))
        return found / found.sum(1, keepdims=True)

    wanted = -9 * (soft(teacher, 3) * np.log(soft(logits, 3))).sum(1).mean()
    found = lessons._loss_of_teacher("classes", tf.constant(logits), tf.constant(teacher), 3.0)
    assert float(found) == pytest.approx(wanted)
    squared = lessons._loss_of_teacher("numbers", tf.constant(logits), tf.constant(teacher), 3.0)
    assert float(squared) == pytest.approx(np.square(logits - teacher).mean())


def test_a_student_learns_and_its_file_answers_in_probabilities(network, data, teaching, tmp_path):
    made, _ = _train(network, data, teaching, tmp_path)
    assert made.ranges == {}
    first, best = made.record["history"][0]["score"], max(one["score"] for one in made.record["history"])
    assert first < 0.7
    assert best > 0.9
    file = _weights(made, tmp_path)
    answers = np.asarray(file(data.x[:32]))
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)
    assert (answers.argmax(1) == data.y[:32]).mean() > 0.9
    assert np.abs(file.get_layer("norm").get_weights()[2]).max() > 0.05, "the moving mean did not move"


def test_a_teacher_alone_teaches_what_it_answers(network, data, teaching, tmp_path):
    """With alpha 1 labels say nothing: a teacher that calls class 2 a 1 makes a student that does."""
    turned = replace(teaching, answers=teaching.answers[:, [0, 2, 1]], alpha=1.0)
    made, _ = _train(network, data, turned, tmp_path, replace(OPTIONS, patience=99, steps=60))
    assert made.record["history"][-1]["score"] < 0.6


def test_a_stopped_run_ends_as_if_it_was_not_with_its_batch_norm_and_dropout(
    network, data, teaching, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "_ROUND", 10)
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole, _ = _train(network, data, teaching, tmp_path / "whole")

    def stop(stage, done, total):
        if stage == "training" and done == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(network, data, teaching, tmp_path / "stopped", progress=stop)
    said = []
    again, _ = _train(network, data, teaching, tmp_path / "stopped", say=said.append)
    assert said[0].startswith("step 30 of 40")
    assert again.record["history"] == whole.record["history"]
    one, other = (_weights(made, tmp_path).get_weights() for made in (whole, again))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_loss_that_is_not_finite_keeps_the_best_round_and_its_moving_means(network, data, teaching, tmp_path):
    spoilt = replace(data, x=data.x.copy())
    spoilt.x[:] = np.nan
    held = training._parts(data, OPTIONS)[1]
    spoilt.x[held] = data.x[held]
    made, _ = _train(network, spoilt, teaching, tmp_path)
    assert "not a finite number" in made.record["ended"]
    assert all(np.isfinite(one).all() for one in _weights(made, tmp_path).get_weights())


def test_numbers_are_taught_by_squared_error(tmp_path, data):
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1))
    out = layers.Dense(1)(layers.Flatten()(layers.Conv2D(4, 3)(image)))
    network = replace(read_network(keras.Model(image, out)), numbers=True)
    y = data.x.mean(axis=(1, 2, 3))[:, None]
    numbers = TrainingData(data.x, np.zeros_like(y), "numbers")
    made, _ = _train(network, numbers, Teaching(y.astype(np.float32), 1.0), tmp_path, replace(OPTIONS, rate=1e-2))
    error = np.square(np.asarray(_weights(made, tmp_path)(data.x)) - y).mean()
    assert error < y.var() / 10


def test_a_batch_of_one_and_frozen_layers_are_refused(network, data, teaching, tmp_path):
    import keras

    with pytest.raises(CompressError, match=r"batch of 1 leaves the batch norm 'norm'") as error:
        check_batch(network, 1, "net.keras")
    assert "batch = 8" in error.value.do
    with pytest.raises(CompressError, match="batch of 1"):
        _train(network, data, teaching, tmp_path, replace(OPTIONS, batch=1))
    image = keras.Input((8, 8, 1))
    bare = read_network(keras.Model(image, keras.layers.Dense(3)(keras.layers.Flatten()(image))))
    check_batch(bare, 1, "net.keras")
    model = _student(network)
    model.trainable = False
    with pytest.raises(CompressError, match="all its layers are frozen"):
        train_float(network, model, data, teaching, FloatRun("distill", OPTIONS, tmp_path))


def test_a_frozen_layer_stays_as_it_is(network, data, teaching, tmp_path):
    model = _student(network)
    model.get_layer("first").trainable = False
    before = model.get_layer("first").get_weights()
    train_float(network, model, data, teaching, FloatRun("distill", OPTIONS, tmp_path))
    for one, other in zip(before, model.get_layer("first").get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_fit_is_one_loop_for_every_trainee(network, data, teaching, tmp_path):
    """What each step passes to it: the names of their states differ, so that none resumes another's."""
    import tensorflow as tf

    class Scale:
        variables = [tf.Variable(np.zeros((64, 3), np.float32))]
        others: list = []

        def answer(self, x, *, training):
            return tf.reshape(x, [-1, 64]) @ self.variables[0]

    found = fit(Scale(), data, teaching, OPTIONS, tmp_path, "mine")
    assert (tmp_path / "mine-1.npz").exists()
    assert found.history[-1]["score"] > found.history[0]["score"]

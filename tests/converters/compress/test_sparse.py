"""Unstructured pruning: which weights become zero and when, in one training run and in one that is resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgekit_converters.compress import train as training
from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.float_training import FloatRun, train_float
from edgekit_converters.compress.losses import Teaching, TrainingData, TrainingOptions
from edgekit_converters.compress.network import read_network
from edgekit_converters.compress.pruning import EVERY, Sparsity, smallest
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.compress.train import train
from edgekit_converters.recipe.conversion_errors import CompressError

pytestmark = pytest.mark.convert
SHARE = 0.75
OPTIONS = TrainingOptions(steps=100, batch=16, rate=1e-2, seed=1, key="one")


@pytest.fixture(scope="module")
def network():
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(layers.Conv2D(8, 3, name="first")(image)))
    x = layers.ReLU()(layers.DepthwiseConv2D(3, name="deep")(x))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(16, 1, name="point")(x))
    return read_network(keras.Model(image, layers.Dense(3, activation="softmax", name="probs")(x)))


@pytest.fixture(scope="module")
def data() -> TrainingData:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 320)
    kinds = np.stack([np.eye(8), np.ones((8, 8)), np.zeros((8, 8))])
    x = random.random((320, 8, 8, 1)) * 0.2 + kinds[y][..., None]
    return TrainingData(x.astype(np.float32), y.astype(np.int64), "classes")


def _run(network, data, folder, options=OPTIONS, sparsity=SHARE, **named):
    model = without(network, trace(network), np.zeros(0, np.int64), seed=3)
    teaching = Teaching(np.zeros((len(data.x), 3), np.float32), 1e-9)
    return train_float(network, model, data, teaching, FloatRun("sparse", options, folder, sparsity=sparsity, **named))


def _model(made, folder):
    import keras

    (folder / "made.keras").write_bytes(made.data)
    return keras.models.load_model(folder / "made.keras", compile=False)


def _zeros(model):
    return {
        layer.name: float(np.mean(np.asarray(layer.kernel) == 0)) for layer in model.layers if hasattr(layer, "kernel")
    }


def test_the_share_rises_as_a_cube_and_then_stands():
    sparsity = Sparsity((0,), 0.8)
    assert sparsity.at(0, 100) == 0
    assert sparsity.at(30, 100) == pytest.approx(0.8 * (1 - 0.5**3))
    assert sparsity.at(60, 100) == sparsity.at(100, 100) == pytest.approx(0.8)
    assert [sparsity.reached(step, 100) for step in (0, 59, 60)] == [False, False, True]
    assert Sparsity((0,), None).reached(0, 100)


def test_the_smallest_leave_and_one_always_stays():
    kernel = np.array([[3.0, -0.1], [0.2, -4.0]], np.float32)
    assert sorted(smallest(kernel, 0.5)) == [1, 2]
    assert sorted(smallest(kernel, 0.999)) == [0, 1, 2]
    assert list(smallest(kernel, 0.01)) == []


def test_rounds_are_a_multiple_of_the_steps_between_two_choices():
    assert training._ROUND % EVERY == 0


def test_every_kernel_but_the_depthwise_one_has_that_share_of_zeros_and_learns(network, data, tmp_path):
    made = _run(network, data, tmp_path)
    found = _zeros(_model(made, tmp_path))
    assert found["first"] == pytest.approx(SHARE, abs=0.01)
    assert found["point"] == pytest.approx(SHARE, abs=0.01)
    assert found["probs"] == pytest.approx(SHARE, abs=0.02)
    assert found.get("deep", 0.0) == 0.0
    history = made.record["history"]
    assert made.record["best_step"] >= 60, "a network that is not sparse yet is never the best"
    assert max(one["score"] for one in history) > 0.9


def test_a_resumed_run_has_the_same_weights(network, data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_ROUND", 2 * EVERY)
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    whole = _model(_run(network, data, tmp_path / "whole"), tmp_path)

    def stop(stage, done, total):
        if stage == "training" and done == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(network, data, tmp_path / "halves", progress=stop)
    resumed = _model(_run(network, data, tmp_path / "halves"), tmp_path)
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_training_that_ends_before_the_share_is_reached_is_an_error(network, data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_ROUND", EVERY)
    broken = replace(data, x=np.where(np.arange(320)[:, None, None, None] % 3 == 0, np.float32(np.nan), data.x))
    with pytest.raises(CompressError, match="before the sparsity was reached"):
        _run(network, broken, tmp_path)


def test_training_for_8_bits_holds_the_zeros(network, data, tmp_path):
    places = [at for at, node in enumerate(network.nodes) if node.kernel is not None and node.op != "depthwise"]
    nodes = list(network.nodes)
    for at in places:
        kernel = nodes[at].kernel.copy()
        kernel.reshape(-1)[smallest(kernel, SHARE)] = 0
        nodes[at] = replace(nodes[at], kernel=kernel)
    sparse = replace(network, nodes=nodes)
    trained = train(sparse, data, OPTIONS, tmp_path, hold_zeros=True)
    weights = Simulation(trained.network, None).weights(trained.values)
    before = {node.name: node.kernel for node in nodes if node.kernel is not None}
    assert trained.best_step > 0 or trained.history
    for at in places:
        name = nodes[at].name
        assert np.all(weights[name][0][before[name] == 0] == 0), name


def test_a_network_without_trained_kernels_is_refused(network, data, tmp_path):
    model = without(network, trace(network), np.zeros(0, np.int64), seed=3)
    for layer in model.layers:
        layer.trainable = type(layer).__name__ in ("BatchNormalization", "DepthwiseConv2D")
    teaching = Teaching(np.zeros((len(data.x), 3), np.float32))
    with pytest.raises(CompressError, match="no weight can become zero"):
        train_float(network, model, data, teaching, FloatRun("sparse", OPTIONS, tmp_path, sparsity=SHARE))

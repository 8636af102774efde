"""A Keras model as one that is quantized: batch norm folded, activations fused, the rest refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgekit_converters.compress.channels import equalised
from edgekit_converters.compress.network import read_network, to_keras
from edgekit_converters.compress.simulation import Simulation, calibrated
from edgekit_converters.recipe.conversion_errors import CompressError

pytestmark = pytest.mark.convert
ITEMS = np.random.default_rng(0).random((16, 8, 8, 3), np.float32)


@pytest.fixture(scope="module")
def model():
    """Residuals, a concatenation, a gate, a separable convolution and poolings, with batch norms that did something."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.ReLU(6)(layers.BatchNormalization(name="norm")(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="deep")(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    x = layers.ReLU()(layers.Add(name="sum")([x, layers.Conv2D(8, 1, name="point")(y)]))
    z = layers.SeparableConv2D(8, 3, padding="same", activation="silu", name="apart")(x)
    x = layers.MaxPooling2D()(layers.Concatenate()([x, z]))
    x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(image, layers.Dense(4, activation="softmax", name="probs")(x))
    random = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights([random.uniform(0.5, 1.5, one.shape) for one in layer.get_weights()])
    return model


@pytest.fixture(scope="module")
def simulated(model):
    network = read_network(model)
    return network, Simulation(network, calibrated(network, [ITEMS]))


def test_a_batch_norm_and_a_relu_become_part_of_the_convolution_before_them(simulated):
    network, _ = simulated
    by_name = {node.name: node for node in network.nodes}
    assert by_name["stem"].activation == "relu6"
    assert by_name["deep"].activation == by_name["sum"].activation == "relu"
    assert "norm" not in by_name
    assert [node.op for node in network.nodes if node.name.startswith("apart")] == [
        "depthwise", "conv", "sigmoid", "multiply",
    ]  # fmt: skip


def test_the_simulation_in_float_and_the_model_made_of_it_answer_as_the_model_does(model, simulated):
    network, simulation = simulated
    values = [variable.numpy() for variable in simulation.variables]
    wanted = np.asarray(model(ITEMS))
    np.testing.assert_allclose(simulation.values(ITEMS, values, ())[network.output], wanted, atol=1e-6)
    made = to_keras(network, simulation.weights(values))
    np.testing.assert_allclose(np.asarray(made(ITEMS)), wanted, atol=1e-6)
    assert (made.inputs[0].name, made.layers[-1].name) == ("image", "probs")


def test_all_values_are_whole_steps_of_their_ranges_and_moves_share_one(simulated):
    network, simulation = simulated
    values = [variable.numpy() for variable in simulation.variables]
    ranges = simulation.ranges(values)
    for place, value in enumerate(simulation.values(ITEMS, values, range(len(network.nodes)))):
        low, high = ranges[place]
        levels = (np.asarray(value) - low) / ((high - low) / 255)
        np.testing.assert_allclose(levels, np.rint(levels), atol=2e-2, err_msg=network.nodes[place].name)
        assert levels.min() > -0.5
        assert levels.max() < 255.5
        if network.nodes[place].op in ("move", "concat"):
            assert {ranges[place]} == {ranges[one] for one in network.nodes[place].inputs}


def test_every_kernel_bias_and_range_has_a_gradient(simulated):
    import tensorflow as tf

    network, simulation = simulated
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(simulation.logits(ITEMS, simulation.variables)))
    for variable, gradient in zip(simulation.variables, tape.gradient(loss, simulation.variables), strict=True):
        assert gradient is not None, variable.name
        assert np.isfinite(gradient.numpy()).all(), variable.name
    assert network.nodes[0].op == "input"


def test_channels_of_unlike_ranges_are_brought_together_and_no_answer_changes(model):
    network = read_network(model)
    place = next(at for at, node in enumerate(network.nodes) if node.name == "deep")
    spread = np.geomspace(0.01, 1.0, 8).astype(np.float32)
    nodes = list(network.nodes)
    nodes[place] = replace(nodes[place], kernel=nodes[place].kernel * spread[:, None], bias=nodes[place].bias * spread)
    unlike = replace(network, nodes=nodes)
    same = equalised(unlike, [ITEMS])
    before, after = (Simulation(one, None) for one in (unlike, same))
    one, other = (each.values(ITEMS, each.variables, ()) for each in (before, after))
    np.testing.assert_allclose(other[network.output], one[network.output], atol=1e-5)

    def ratio(values):
        peaks = np.asarray(values[place]).max(axis=(0, 1, 2))
        return peaks[peaks > 0].max() / peaks[peaks > 0].min()

    assert ratio(other) < ratio(one) / 4
    assert ratio(one) > 20


def _of(build):
    import keras

    image = keras.Input((8, 8, 3), name="image")
    return keras.Model(image, build(keras.layers, image))


def _twice(layers, x):
    shared = layers.Conv2D(3, 1, name="shared")
    return shared(shared(x))


def _relu_twice(layers, x):
    shared = layers.ReLU(name="shared")
    return shared(layers.Conv2D(3, 1)(shared(layers.Conv2D(3, 1)(x))))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda layers, x: layers.Conv2D(2, 1)(layers.Lambda(lambda t: t * 2, name="double")(x)),
            "'double' is a Lambda",
        ),
        (lambda layers, x: layers.LSTM(2, name="memory")(layers.Reshape((8, 24))(x)), "'memory' is a LSTM"),
        (lambda layers, x: layers.Conv2D(2, 1, activation="gelu", name="c")(x), "'c' has the activation gelu"),
        (lambda layers, x: layers.Conv2D(2, 1)(layers.BatchNormalization(name="n")(x)), "'n' follows no convolution"),
        (_twice, "'shared' is used twice"),
        (_relu_twice, "'shared' is used twice"),
        (lambda layers, x: layers.Conv2D(3, 1, groups=3, name="apart")(x), "'apart' has 3 groups"),
        (lambda layers, x: 2 - layers.Conv2D(3, 1)(x), "is the Keras operation Subtract, whose"),
        (lambda layers, x: abs(layers.Conv2D(3, 1)(x)), "is the Keras operation Absolute, whose"),
        (lambda layers, x: layers.Flatten()(x), "no convolution and no dense layer"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(build, says):
    with pytest.raises(CompressError, match=says) as error:
        read_network(_of(build), "net.keras")
    assert error.value.do


@pytest.mark.parametrize("kind", ["Functional", "Sequential"])
def test_models_one_after_the_other_inside_a_model_answer_as_it_does_and_keep_their_own_kernels(kind):
    import keras
    from keras import layers

    def inner():
        parts = [layers.Conv2D(3, 1, name="conv"), layers.BatchNormalization(name="norm"), layers.ReLU(name="relu")]
        if kind == "Sequential":
            return keras.Sequential([keras.Input((8, 8, 3)), *parts])
        image = x = keras.Input((8, 8, 3))
        for part in parts:
            x = part(x)
        return keras.Model(image, x)

    model = _of(lambda layers, x: layers.Dense(2, name="conv")(layers.Flatten()(inner()(inner()(x)))))
    network = read_network(model)
    assert list(network.weights) == ["conv", "conv_2", "conv_3"]
    made = to_keras(network, network.weights)
    np.testing.assert_allclose(np.asarray(made(ITEMS)), np.asarray(model(ITEMS)), atol=1e-5)


@pytest.mark.parametrize(("numbers", "last"), [(False, "dense"), (True, "sigmoid")])
def test_a_sigmoid_at_the_end_is_part_of_an_answer_in_numbers(numbers, last):
    network = read_network(_of(lambda layers, x: layers.Dense(1, activation="sigmoid")(layers.Flatten()(x))))
    network = replace(network, numbers=numbers)
    assert network.nodes[network.logits].op == last


def test_two_inputs_are_refused():
    import keras

    inputs = [keras.Input((4,)), keras.Input((4,))]
    both = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Add()(inputs)))
    with pytest.raises(CompressError, match="has 2 inputs, and one can be trained"):
        read_network(both)


def test_a_channel_that_is_always_zero_has_a_range(simulated):
    network, _ = simulated
    nodes = [
        replace(node, kernel=np.zeros_like(node.kernel), bias=np.zeros_like(node.bias))
        if node.name == "point"
        else node
        for node in network.nodes
    ]
    silent = replace(network, nodes=nodes)
    simulation = Simulation(silent, calibrated(silent, [ITEMS]))
    answers = simulation.logits(ITEMS, simulation.variables)
    assert np.isfinite(np.asarray(answers)).all()

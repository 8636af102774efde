"""Which channels leave a Keras network together, the network without them, and what of its work is left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.losses import TrainingData, TrainingOptions
from edgekit_converters.compress.network import read_network
from edgekit_converters.compress.pruning import Count, choose_by_time, choose_by_width, importance
from edgekit_converters.formats.workload import read_workload
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.load import load
from edgekit_converters.targets.workspace import Workspace

pytestmark = pytest.mark.convert
ITEMS = np.random.default_rng(0).random((16, 8, 8, 3), np.float32)


@pytest.fixture(scope="module")
def model():
    """A residual, a concatenation that is added to, a gate, depthwise and separable kernels, a flattened end."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.ReLU(6)(layers.BatchNormalization(name="norm")(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="deep")(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    x = layers.ReLU()(layers.Add(name="sum")([x, layers.Conv2D(16, 1, name="point")(y)]))
    z = layers.SeparableConv2D(24, 3, padding="same", activation="silu", name="apart")(x)
    x = layers.Concatenate()([x, z])
    x = layers.Add()([x, layers.Conv2D(40, 3, padding="same", name="wide")(x)])
    gate = layers.Reshape((1, 1, 40))(layers.GlobalAveragePooling2D()(x))
    x = layers.Multiply()([x, layers.Conv2D(40, 1, activation="sigmoid", name="gate")(gate)])
    x = layers.Conv2D(24, 3, strides=2, activation="relu", name="late")(x)
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    x = layers.Dense(32, activation="relu", name="hidden")(x)
    model = keras.Model(image, layers.Dense(4, activation="softmax", name="probs")(x))
    random = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights([random.uniform(0.5, 1.5, one.shape) for one in layer.get_weights()])
    return model


@pytest.fixture(scope="module")
def network(model):
    return read_network(model)


@pytest.fixture(scope="module")
def channels(network):
    return trace(network)


def test_what_is_added_multiplied_or_joined_leaves_together_and_the_answer_stays(channels):
    assert {block.layers: len(block.labels) for block in channels.blocks} == {
        ("gate", "point", "stem", "wide"): 16,
        ("apart", "gate", "wide"): 24,
        ("late",): 24,
        ("hidden",): 32,
    }


def test_without_channels_that_are_zero_the_answers_are_the_same(model, network, channels):
    import keras

    leaving = np.concatenate([block.labels[1::3] for block in channels.blocks])
    silent = keras.models.clone_model(model)
    silent.set_weights(model.get_weights())
    by_name = {node.name: place for place, node in enumerate(network.nodes)}
    calls = {call.name: network.places[call.output] for call in network.calls}
    for layer in silent.layers:
        if not layer.weights or layer.name == "probs":
            continue
        gone = np.isin(channels.labels[calls[layer.name]], leaving)
        weights = layer.get_weights()
        kept = range(2) if "norm" in layer.name else range(len(weights))
        for at in kept:
            deep = weights[at].ndim == 4 and (layer.name == "deep" or (layer.name == "apart" and at == 0))
            where = np.isin(channels.labels[by_name["sum"]], leaving) if deep else gone
            weights[at][(..., where, slice(None)) if deep else (..., where)] = 0.0
        layer.set_weights(weights)
    narrow = without(network, channels, leaving)
    assert narrow.count_params() < 0.6 * model.count_params()
    np.testing.assert_allclose(np.asarray(narrow(ITEMS)), np.asarray(silent(ITEMS)), atol=1e-6)
    same = without(network, channels, np.zeros(0, np.int64))
    np.testing.assert_allclose(np.asarray(same(ITEMS)), np.asarray(model(ITEMS)), atol=1e-6)
    assert [layer.name for layer in same.layers] == [layer.name for layer in model.layers]


def test_a_new_student_is_drawn_by_its_seed(network, channels):
    leaving = choose_by_width(channels, np.zeros(channels.count), 0.5)
    one, again, other = (without(network, channels, leaving, seed=seed, new=True) for seed in (1, 1, 2))
    first = [each.get_layer("stem").get_weights()[0] for each in (one, again, other)]
    np.testing.assert_array_equal(first[0], first[1])
    assert np.abs(first[0] - first[2]).max() > 0.01


@pytest.mark.parametrize("kind", ["Permute", "Reshape", "multiplier"])
def test_channels_that_are_mixed_or_numbered_stay(kind):
    import keras
    from keras import layers

    mixed = {
        "Permute": layers.Permute((3, 1, 2)),
        "Reshape": layers.Reshape((8, 128)),
        "multiplier": layers.DepthwiseConv2D(3, depth_multiplier=2),
    }[kind]
    image = keras.Input((8, 8, 3))
    x = layers.Flatten()(mixed(layers.Conv2D(16, 1, name="first")(image)))
    network = read_network(keras.Model(image, layers.Dense(4)(layers.Dense(16, name="second")(x))))
    assert [block.layers for block in trace(network).blocks] == [("second",)]


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_operations_are_counted_as_the_converter_makes_them(network, channels, width, tmp_path):
    leaving = np.zeros(channels.count, bool)
    if width < 1:
        leaving[choose_by_width(channels, np.zeros(channels.count), width)] = True
    without(network, channels, np.flatnonzero(leaving)).save(tmp_path / "net.keras")
    data = Workspace(load(tmp_path / "net.keras"), None).float_model("tflite").data
    wanted, found = read_workload("tflite", data, "int8"), Count(network, channels)(leaving)
    assert found.macs == wanted.macs
    assert found.weights == wanted.weights
    assert Counter((op.kind, op.macs) for op in found.ops if op.macs) == Counter(
        (op.kind, op.macs) for op in wanted.ops if op.macs
    )
    moved = [sum(op.activation_elements for op in work.ops) for work in (found, wanted)]
    assert moved[0] == pytest.approx(moved[1], rel=0.1)


def test_channels_leave_where_time_is_won_and_little_lost_and_multiples_of_8_are_left(network, channels):
    matters = np.random.default_rng(0).random(channels.count)
    late = next(block for block in channels.blocks if block.layers == ("late",))
    matters[late.labels] = 1e-6
    count = Count(network, channels)
    start = count(np.zeros(channels.count, bool)).macs
    leaving, reached = choose_by_time(channels, matters, count, lambda work: float(work.macs), 0.4 * start)
    gone = np.zeros(channels.count, bool)
    gone[leaving] = True
    assert reached
    assert count(gone).macs <= 0.4 * start
    for block in channels.blocks:
        stay = ~gone[block.labels]
        assert stay.sum() in range(8, 41, 8)
        if gone[block.labels].any():
            assert matters[block.labels][gone[block.labels]].max() <= matters[block.labels][stay].min()
    assert (~gone[late.labels]).sum() == 8
    fewest, reached = choose_by_time(channels, matters, count, lambda work: float(work.macs), 1.0)
    assert not reached
    assert len(fewest) == sum(len(block.labels) - 8 for block in channels.blocks)


def test_a_quarter_of_a_block_stays_while_another_can_give_up_channels():
    import keras
    from keras import layers

    image = x = keras.Input((8, 8, 3))
    for name in ("first", "second"):
        x = layers.Conv2D(64, 3, padding="same", activation="relu", name=name)(x)
    network = read_network(keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x))))
    channels = trace(network)
    matters = np.ones(channels.count)
    late = next(block for block in channels.blocks if block.layers == ("second",))
    matters[late.labels] = 1e-6
    count = Count(network, channels)
    start = count(np.zeros(channels.count, bool)).macs
    for share, left in ((0.2, {("first",): 40, ("second",): 16}), (0.05, {("first",): 16, ("second",): 8})):
        leaving, reached = choose_by_time(channels, matters, count, lambda work: float(work.macs), share * start)
        assert reached
        stay = {block.layers: int((~np.isin(block.labels, leaving)).sum()) for block in channels.blocks}
        assert stay == left


def test_a_width_that_leaves_every_channel_is_refused(network, channels):
    with pytest.raises(CompressError, match=r"width of 0.99.*stay") as error:
        choose_by_width(channels, np.zeros(channels.count), 0.99)
    assert error.value.do


def test_a_channel_that_changes_no_answer_matters_least(model):
    import keras

    keras.utils.set_random_seed(0)
    silent = keras.models.clone_model(model)
    kernel, bias = silent.get_layer("late").get_weights()
    kernel[..., 5], bias[5] = 0.0, 0.0
    silent.get_layer("late").set_weights([kernel, bias])
    network = read_network(silent)
    channels = trace(network)
    y = np.random.default_rng(0).integers(0, 4, 16)
    matters = importance(network, channels, TrainingData(ITEMS, y, "classes"), TrainingOptions(batch=8))
    late = next(block.labels for block in channels.blocks if block.layers == ("late",))
    assert matters[late[5]] == 0.0
    assert (np.delete(matters[late], 5) > 0).mean() > 0.5

"""Each kind of layer that is simulated, beside what both converters and engines make of it."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_steps import steps_apart

from edgekit_converters.compress.network import read_network, to_keras
from edgekit_converters.compress.simulation import Simulation, calibrated
from edgekit_converters.compress.twin import tensor_names
from edgekit_converters.recipe.artifact import QuantizationPlan, recipe
from edgekit_converters.sources.load import load
from edgekit_converters.targets.workspace import Workspace

pytestmark = pytest.mark.convert
ITEMS = np.random.default_rng(0).random((200, 16, 16, 3), np.float32)


def _gate(layers, x):
    return layers.Multiply()([x, layers.Conv2D(16, 1, activation="sigmoid")(x)])


KINDS = {
    "rescaling": lambda layers, x: layers.Rescaling(2.0, offset=-1)(x),
    "separable": lambda layers, x: layers.SeparableConv2D(16, 3, activation="relu6")(x),
    "strided": lambda layers, x: layers.BatchNormalization()(layers.DepthwiseConv2D(3, strides=2, padding="same")(x)),
    "average": lambda layers, x: layers.AveragePooling2D(2)(x),
    "padded": lambda layers, x: layers.ZeroPadding2D()(x),
    "larger": lambda layers, x: layers.UpSampling2D()(x),
    "cropped": lambda layers, x: layers.Cropping2D()(x),
    "tanh": lambda layers, x: layers.Activation("tanh")(x),
    "gate": _gate,
    "silu": lambda layers, x: layers.Conv2D(16, 1, activation="silu")(x),
    "joined": lambda layers, x: layers.Concatenate()([x, layers.Conv2D(4, 1)(x)]),
    "residual": lambda layers, x: layers.ReLU()(layers.Add()([x, layers.Conv2D(16, 1)(x)])),
    "turned": lambda layers, x: layers.Permute((2, 1, 3))(x),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_in_8_bits_is_what_was_simulated(kind, tmp_path):
    """Where an engine rounds ties to the other side, some answers are two steps off: most in a mean of four numbers."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    image = keras.Input((16, 16, 3), name="image")
    x = image if kind == "rescaling" else layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 1)(KINDS[kind](layers, x)))
    network = read_network(keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(x)))
    simulation = Simulation(network, calibrated(network, [ITEMS[:64]]))
    values = simulation.rounded([variable.numpy() for variable in simulation.variables])
    to_keras(network, simulation.weights(values)).save(tmp_path / "net.keras")
    workspace, ranges = (
        Workspace(load(tmp_path / "net.keras"), [[one[None]] for one in ITEMS[:16]]),
        simulation.ranges(values),
    )
    for name in ("tflite-int8", "onnx-int8-qdq"):
        places = tensor_names(network, simulation, values, workspace, recipe(name).format, ITEMS[:8])
        plan = QuantizationPlan(fixed_ranges=tuple((tensor, *ranges[place]) for tensor, place in places.items()))
        found = steps_apart(network, simulation, values, workspace.make(recipe(name), plan), places, workspace, ITEMS)
        assert found.max() <= 2.01, name
        assert (found > 1.01).mean() <= (0.15 if kind == "average" else 0.02), name

"""Model files that some runtimes refuse, or answer wrongly with, made by the real converter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLAIM = b"min_runtime_version"


@dataclass(frozen=True)
class Planted:
    """Of the digits network, .tflite. version_12: dynamic range as TensorFlow's converter makes it. claims_1: the same
    weights, and FULLY_CONNECTED says version 1 and the file that TensorFlow Lite 1.5 is enough. int8: dense layers a
    channel.
    attention: int8, another network."""

    version_12: Path
    claims_1: Path
    int8: Path
    attention: Path

    @classmethod
    def of(cls, folder: Path) -> Planted:
        return cls(*(folder / f"{name}.tflite" for name in ("version_12", "claims_1", "int8", "attention")))


def dynamic_range(model: Path) -> bytes:
    """What TensorFlow's converter makes of a .keras file with no option but its default."""
    import keras
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(keras.saving.load_model(model))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def full_int8(network, examples: np.ndarray) -> bytes:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(network)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([item[None]] for item in examples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def attention() -> tuple[object, np.ndarray]:
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    x = keras.Input((8, 16), name="x")
    mixed = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x)])
    network = keras.Model(x, layers.Dense(10)(layers.Flatten()(mixed)))
    return network, np.random.default_rng(0).normal(size=(40, 8, 16)).astype(np.float32)


def claiming_little(data: bytes) -> bytes:
    """The file with dense layers that say version 1, and 1.5.0 as its oldest runtime: what ai-edge-quantizer 0.10
    writes.
    """
    from edgekit_converters.formats import tflite_edit as tfl

    model = tfl.read(data)
    number = tfl.schema().BuiltinOperator.FULLY_CONNECTED
    for entry in model.operatorCodes:
        if max(entry.builtinCode, entry.deprecatedBuiltinCode) == number:
            entry.version = 1
    for entry in model.metadata:
        if bytes(entry.name) == CLAIM:
            model.buffers[entry.buffer].data = np.frombuffer(b"1.5.0".ljust(16, b"\0"), np.uint8)
    return tfl.write(model)


def plant(model: Path, examples: Path, folder: Path) -> Planted:
    """model: the digits network's .keras; examples: .npz with `x`."""
    import keras

    made = Planted.of(folder)
    dynamic = dynamic_range(model)
    made.version_12.write_bytes(dynamic)
    made.claims_1.write_bytes(claiming_little(dynamic))
    made.int8.write_bytes(full_int8(keras.saving.load_model(model), np.load(examples)["x"][:50]))
    made.attention.write_bytes(full_int8(*attention()))
    return made

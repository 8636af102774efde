"""Quantization-aware training by tensorflow-model-optimization, of the network of qat.py with its weights.

    PYTHON benchmarks/compress/tfmot_peer.py work.npz out.tflite

PYTHON is that of an environment with requirements.txt beside this file. work.npz: x, y to train on, epochs, batch,
rate, seed, and the weights of the trained Keras 3 network as `weight0`, `weight1`, ... in its layers' order.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def network(layers: Any, model: Any) -> Any:
    """The architecture of `benchmarks/compress/qat.py`, in Keras 2."""

    def normal(t: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(t))

    image = layers.Input((8, 8, 1), name="image")
    t = normal(layers.Conv2D(16, 3, padding="same", use_bias=False)(image))
    for width, stride in ((24, 2), (32, 1)):
        t = normal(layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(t))
        t = normal(layers.Conv2D(width, 1, use_bias=False)(t))
    return model(image, layers.Dense(10, activation="softmax", name="probs")(layers.GlobalAveragePooling2D()(t)))


def main() -> None:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot
    import tf_keras

    work = np.load(sys.argv[1])
    tf_keras.utils.set_random_seed(int(work["seed"]))
    plain = network(tf_keras.layers, tf_keras.Model)
    plain.set_weights([work[f"weight{at}"] for at in range(len(plain.get_weights()))])
    model = tfmot.quantization.keras.quantize_model(plain)
    steps = int(work["epochs"]) * len(work["x"]) // int(work["batch"])
    rate = tf_keras.optimizers.schedules.CosineDecay(float(work["rate"]), steps, alpha=0.01)
    model.compile(tf_keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    model.fit(work["x"], work["y"], batch_size=int(work["batch"]), epochs=int(work["epochs"]), verbose=0)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    Path(sys.argv[2]).write_bytes(converter.convert())


if __name__ == "__main__":
    main()

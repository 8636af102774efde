"""The networks that the benchmark trains itself, no weight touched by hand.

Seeded, one to two minutes each on two cores.

    python benchmarks/conversion/networks.py hard_swish --cache FOLDER

- `fashion_cnn`: a plain separable CNN on Fashion-MNIST, the healthy case;
- `hard_swish`: inverted residuals with squeeze-excite and hard-swish on Fashion-MNIST, as in Howard et al., "Searching
  for MobileNetV3" (2019);
- `detector`: digits pasted into scenes; one raw output [rows, 4 + 10] with boxes in pixels beside class scores of 0..1,
  the form in which one-stage detectors are usually exported.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def fashion_cnn(cache: Path) -> Any:
    from keras import Sequential, layers

    stack: list[Any] = [layers.Input((28, 28, 1), name="image"), layers.Rescaling(1 / 255)]
    for width, stride in ((32, 1), (64, 2), (96, 2)):
        stack += [layers.SeparableConv2D(width, 3, strides=stride, padding="same", use_bias=False)]
        stack += [layers.BatchNormalization(momentum=0.9), layers.ReLU()]
    stack += [
        layers.GlobalAveragePooling2D(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
    net = Sequential(stack)
    return _fit(net, cache, epochs=5, rate=8e-3)


def hard_swish(cache: Path) -> Any:
    import keras
    from keras import layers

    def normal(x: Any) -> Any:
        return layers.BatchNormalization(momentum=0.9)(x)

    def swish(x: Any) -> Any:
        return layers.Activation("hard_silu")(x)

    def excite(x: Any) -> Any:
        width = x.shape[-1]
        gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
        gate = layers.Conv2D(max(8, width // 4), 1, activation="relu")(gate)
        return layers.Multiply()([x, layers.Conv2D(width, 1, activation="hard_sigmoid")(gate)])

    def block(x: Any, wide: int, out: int, stride: int) -> Any:
        y = swish(normal(layers.Conv2D(wide, 1, use_bias=False)(x)))
        y = layers.DepthwiseConv2D(5 if stride == 1 else 3, strides=stride, padding="same", use_bias=False)(y)
        y = normal(layers.Conv2D(out, 1, use_bias=False)(excite(swish(normal(y)))))
        return layers.Add()([x, y]) if stride == 1 and x.shape[-1] == out else y

    image = layers.Input((28, 28, 1), name="image")
    x = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(layers.Rescaling(1 / 255)(image))
    x = swish(normal(x))
    for wide, out, stride in ((48, 16, 1), (64, 24, 2), (96, 24, 1), (96, 32, 1), (128, 32, 1)):
        x = block(x, wide, out, stride)
    x = swish(normal(layers.Conv2D(128, 1, use_bias=False)(x)))
    x = layers.Conv2D(128, 1)(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Dense(10, activation="softmax")(layers.Flatten()(swish(x)))
    return _fit(keras.Model(image, x), cache, epochs=4, rate=4e-3)


def detector(cache: Path) -> Any:
    import keras
    from data import scenes
    from detection import CELLS, CLASSES, SIDE, encoded, loss
    from keras import layers, ops

    image = layers.Input((SIDE, SIDE, 3), name="image")
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    for width, stride in ((16, 2), (32, 2), (48, 1), (64, 2), (96, 1), (96, 1)):
        x = layers.SeparableConv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.Activation("silu")(layers.BatchNormalization(momentum=0.9)(x))
    box = layers.Conv2D(4, 1)(x)
    score = layers.Conv2D(CLASSES, 1, activation="sigmoid", bias_initializer=keras.initializers.Constant(-4.0))(x)
    step = SIDE / CELLS
    centres = (np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1)[None] + 0.5).astype(np.float32) * step
    where = box[..., :2] * step + centres
    size = ops.exp(ops.minimum(box[..., 2:], 3.0)) * step
    net = keras.Model(image, layers.Reshape((CELLS * CELLS, 4 + CLASSES))(layers.Concatenate()([where, size, score])))
    images, truths = scenes("train", cache)
    epochs = 16
    net.compile(keras.optimizers.Adam(_schedule(epochs, len(images) // 32, 4e-3)), loss=loss)
    net.fit(images.astype(np.float32), encoded(truths), batch_size=32, epochs=epochs, verbose=2)
    return net


def _fit(net: Any, cache: Path, epochs: int, rate: float) -> Any:
    import keras
    from data import fashion

    images, labels = fashion("train", cache)
    net.compile(keras.optimizers.Adam(_schedule(epochs, len(images) // 128, rate)),
        loss="sparse_categorical_crossentropy",
                metrics=["accuracy"])  # fmt: skip
    net.fit(images.astype(np.float32), labels, batch_size=128, epochs=epochs, verbose=2)
    return net


def _schedule(epochs: int, steps: int, rate: float) -> Any:
    import keras

    return keras.optimizers.schedules.CosineDecay(rate, epochs * steps)


NETWORKS: dict[str, Callable[[Path], Any]] = {
    "fashion_cnn": fashion_cnn,
    "hard_swish": hard_swish,
    "detector": detector,
}


def trained(name: str, cache: Path) -> Path:
    """The saved network, trained on first use."""
    path = cache / "trained" / f"{name}.keras"
    if not path.exists():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import keras

        keras.utils.set_random_seed(0)
        net = NETWORKS[name](cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.keras")
        net.save(partial)
        partial.rename(path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    print(trained(options.name, options.cache))

"""A network that INT8 breaks by itself: it finds a handwritten digit in a picture and says where and which it is.

    python finder.py         # writes, into the current folder, the model, its contract, two sets of pictures, digit.png

Its one output holds a box in pixels of the camera's picture (0 to 640) beside ten scores (0 to 1), as those of many
detectors do. Trained on the digits of scikit-learn in half a minute; nothing is scaled to make it fail.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["found"]

HEIGHT, WIDTH = 48, 64
CAMERA = 10  # pixels of the camera's picture, 640 x 480, for one of the network's
CONTRACT = """\
task = "detection"

[input]
kind = "image"
color = "gray"
mean = 127.5
std = 127.5

[detection]
row = "box scores"          # each of the output's rows, of which there is one, is a box and then a score a class
format = "cxcywh"           # centre, width and height
unit = [640, 480]           # a box as large as the whole picture is 640 wide and 480 high
score_threshold = 0.5
"""


def found(outputs: dict[str, NDArray[Any]], labels: Any) -> float:
    """The metric: how many digits are found. One is if the best score is over 0.5 and its class is right, and the box
    and the true one have half of their common area in common. labels: rows [x, y, width, height, class]; x, y: the
    centre."""
    (answers,) = outputs.values()
    truth = np.asarray(labels, np.float32)
    boxes, scores = answers[:, :4], answers[:, 4:]
    low = np.maximum(boxes[:, :2] - boxes[:, 2:] / 2, truth[:, :2] - truth[:, 2:4] / 2)
    high = np.minimum(boxes[:, :2] + boxes[:, 2:] / 2, truth[:, :2] + truth[:, 2:4] / 2)
    common = np.maximum(high - low, 0).prod(1)
    whole = boxes[:, 2:].prod(1) + truth[:, 2:4].prod(1) - common
    right = (scores.argmax(1) == truth[:, 4]) & (scores.max(1) > 0.5) & (common > 0.5 * whole)
    return float(right.mean())


def pictures(count: int, part: slice, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Grey pictures [count, 48, 64, 1] with one digit each, and their labels as `found` takes them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, classes = digits.images[part], digits.target[part]
    random = np.random.default_rng(seed)
    made, labels = [], []
    for which in random.integers(len(images), size=count):
        size = 8 * int(random.integers(2, 5))
        x, y = int(random.integers(WIDTH - size + 1)), int(random.integers(HEIGHT - size + 1))
        picture = random.normal(random.uniform(20, 100), 8, (HEIGHT, WIDTH))
        picture[y : y + size, x : x + size] += np.kron(images[which], np.ones((size // 8, size // 8))) * 9
        made.append(picture.clip(0, 255).astype(np.uint8)[..., None])
        labels.append([(x + size / 2) * CAMERA, (y + size / 2) * CAMERA, size * CAMERA, size * CAMERA, classes[which]])
    return np.stack(made), np.array(labels, np.float32)


def photo(picture: NDArray[np.uint8]) -> Any:
    """What the camera saw: 640 x 480."""
    from PIL import Image

    return Image.fromarray(picture[:, :, 0]).resize((WIDTH * CAMERA, HEIGHT * CAMERA), Image.Resampling.NEAREST)


def network() -> Any:
    import keras
    from keras import layers

    picture = layers.Input((HEIGHT, WIDTH, 1), name="picture")
    x = picture
    for width in (16, 32, 48, 64):
        x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.Dense(128, use_bias=False)(layers.Flatten()(x))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    share = layers.Dense(4, activation="sigmoid")(x)  # of the picture's width and height
    box = layers.Rescaling([WIDTH * CAMERA, HEIGHT * CAMERA, WIDTH * CAMERA, HEIGHT * CAMERA], name="box")(share)
    scores = layers.Dense(10, activation="softmax", name="scores")(x)
    return keras.Model(picture, layers.Concatenate(name="answer")([box, scores]))


def loss(labels: Any, answer: Any) -> Any:
    from keras import ops

    classes = ops.one_hot(ops.cast(labels[:, 4], "int32"), 10)
    named = -ops.sum(classes * ops.log(ops.clip(answer[:, 4:], 1e-6, 1.0)), axis=1)
    return ops.mean(named + ops.sum(ops.abs(labels[:, :4] - answer[:, :4]), axis=1) / 200)


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    keras.utils.set_random_seed(0)
    images, labels = pictures(8000, slice(0, 1200), 0)
    net, epochs = network(), 10
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(images) // 64)
    net.compile(keras.optimizers.Adam(rate), loss=loss)
    net.fit(images.astype(np.float32) / 127.5 - 1, labels, batch_size=64, epochs=epochs, verbose=0)
    net.save("finder.keras")
    Path("finder.contract.toml").write_text(CONTRACT)
    np.savez("calibration.npz", x=pictures(200, slice(0, 1200), 1)[0])
    images, labels = pictures(500, slice(1200, None), 2)
    np.savez("evaluation.npz", x=images, y=labels)
    photo(images[0]).save("digit.png")
    answers = net.predict(images.astype(np.float32) / 127.5 - 1, verbose=0)
    print(f"finds {100 * found({'answer': answers}, labels):.1f} % of 500 digits it has not seen")


if __name__ == "__main__":
    main()

"""Fashion-MNIST's 10,000 test pictures: both formats keep accuracy.

Where the Debian package of the set is installed.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from conftest import run_edgekit
from parts import missing

pytestmark = pytest.mark.convert
FOLDER = Path("/usr/share/datasets/fashion-mnist")


def idx(path: Path) -> np.ndarray:
    """The IDX format: two zero bytes, a dtype code, the number of axes, the axes, the values."""
    data = gzip.decompress(path.read_bytes())
    axes = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    if not FOLDER.is_dir():
        missing("Fashion-MNIST", "apt-get install dataset-fashion-mnist")
    import keras
    from keras import layers

    folder = tmp_path_factory.mktemp("fashion")
    x, y = idx(next(FOLDER.glob("train-images*"))), idx(next(FOLDER.glob("train-labels*")))
    keras.utils.set_random_seed(3)
    image = keras.Input((28, 28, 1), name="image")
    t = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(layers.Rescaling(1 / 255)(image))
    t = layers.SeparableConv2D(48, 3, strides=2, padding="same", activation="relu")(t)
    t = layers.Dense(64, activation="relu")(layers.Flatten()(t))
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t))
    model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy")
    model.fit(x[:40_000, ..., None].astype(np.float32), y[:40_000], batch_size=256, epochs=3, verbose=0)
    model.save(folder / "fashion.keras")
    np.savez(folder / "calibration.npz", x=x[40_000:40_300, ..., None].astype(np.float32))
    x_test, y_test = idx(next(FOLDER.glob("t10k-images*"))), idx(next(FOLDER.glob("t10k-labels*")))
    np.savez(folder / "evaluation.npz", x=x_test[..., None].astype(np.float32), y=y_test.astype(np.int64))
    return run_edgekit(
        "build", "fashion.keras", "--profile", "raspberry-pi-4", "--calibration", "calibration.npz", "--evaluation",
        "evaluation.npz", "--recipe", "tflite-int8", "--recipe", "onnx-int8-qdq", "--json", cwd=folder,
    ).json  # fmt: skip


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-int8-qdq"])
def test_int8_loses_at_most_half_a_point_of_ten_thousand(report, recipe):
    found = next(c["fidelity"] for c in report["candidates"] if c["recipe"] == recipe)
    low, high = found["ci95"]
    line = f"{recipe}: drop {100 * found['drop']:.2f} points, 95 % interval {100 * low:.2f} to {100 * high:.2f}"
    print(line)
    assert found["items"] == 10_000
    assert found["original"] > 0.8
    assert found["drop"] <= 0.005, line

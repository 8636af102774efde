"""Training for 8 bits on other kinds of networks, beside plain INT8 and what a minute of repair reaches.

    python benchmarks/compress/kinds.py --only gate --write benchmarks/results/compress_kinds.json

Fashion-MNIST, 6,000 items to train and 2,000 of the test pictures to evaluate. No weight is touched by hand.

- mobilenet: Keras' own MobileNetV2 of width 0.5, on pictures padded to 32 x 32;
- gate: inverted residuals with SiLU and squeeze-and-excite gates, as in MobileNetV3 and EfficientNet;
- regression: each picture turned by an angle, of which the network tells sine and cosine.

A few minutes a network on two cores; a row is written after each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EPOCHS, _RATE = 6, 5e-4
_REPAIR_S = 60.0
_REGRESSION = """task = "raw"
[input]
kind = "tensor"
"""
Part = tuple[NDArray[np.float32], NDArray[Any]]


def mobilenet() -> Any:
    import keras

    model = keras.applications.MobileNetV2((32, 32, 1), alpha=0.5, weights=None, classes=10)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):  # 0.999 follows a run of a thousand steps too late
            layer.momentum = 0.9
    return model


def gate() -> Any:
    import keras
    from keras import layers

    def normal(t: Any, activation: str = "silu") -> Any:
        return layers.Activation(activation)(layers.BatchNormalization(momentum=0.9)(t))

    image = keras.Input((28, 28, 1), name="image")
    t = normal(layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(image))
    for wide, out, stride in ((48, 16, 1), (64, 24, 2), (96, 24, 1), (96, 32, 1)):
        y = normal(layers.Conv2D(wide, 1, use_bias=False)(t))
        y = normal(layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(y))
        excited = layers.Conv2D(wide // 4, 1, activation="silu")(layers.GlobalAveragePooling2D(keepdims=True)(y))
        y = layers.Multiply()([y, layers.Conv2D(wide, 1, activation="sigmoid")(excited)])
        y = layers.BatchNormalization(momentum=0.9)(layers.Conv2D(out, 1, use_bias=False)(y))
        t = layers.Add()([t, y]) if stride == 1 and out == t.shape[-1] else y
    t = layers.GlobalAveragePooling2D()(normal(layers.Conv2D(128, 1, use_bias=False)(t)))
    return keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t))


def regression() -> Any:
    import keras
    from keras import layers

    image = keras.Input((28, 28, 1), name="image")
    t = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(image)
    for width, stride in ((32, 1), (64, 2), (64, 1)):
        t = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(t)
        t = layers.Conv2D(width, 1, use_bias=False)(layers.BatchNormalization(momentum=0.9)(t))
        t = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(t))
    t = layers.Dense(64, activation="relu")(layers.Flatten()(layers.MaxPooling2D(2)(t)))
    return keras.Model(image, layers.Dense(2, name="sine_cosine")(t))


def padded(x: NDArray[np.float32], y: NDArray[Any]) -> Part:
    return np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), y


def turned(x: NDArray[np.float32], y: NDArray[Any]) -> Part:
    from scipy.ndimage import rotate

    angles = np.random.default_rng(len(x)).uniform(-90, 90, len(x))
    pictures = [rotate(one, angle, reshape=False, order=1) for one, angle in zip(x, angles, strict=True)]
    radians = np.deg2rad(angles)
    return np.stack(pictures), np.stack([np.sin(radians), np.cos(radians)], axis=1).astype(np.float32)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[NDArray[np.float32], NDArray[Any]], Part], int]] = {
    "mobilenet": (mobilenet, padded, 12),
    "gate": (gate, lambda x, y: (x, y), 12),
    "regression": (regression, turned, 15),
}
"""name -> network, what the data become, epochs of the original."""


def measured(name: str, seed: int, folder: Path) -> dict[str, Any]:
    import keras

    import edgekit
    from benchmarks.compress.narrow import data

    network, become, epochs = KINDS[name]
    train, evaluation = (become(*part) for part in data())
    keras.utils.set_random_seed(seed)
    model, started = network(), perf_counter()
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(train[0]) // 64, alpha=0.02)
    loss = "mean_squared_error" if name == "regression" else "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(*train, batch_size=64, epochs=epochs, verbose=0)
    model.save(folder / f"{name}.keras")
    if name == "regression":
        (folder / "regression.contract.toml").write_text(_REGRESSION)
    trained, started = perf_counter() - started, perf_counter()
    report = edgekit.compress(
        folder / f"{name}.keras", train=train, evaluation=evaluation, output=folder / "out", steps=["qat"],
        profile="raspberry-pi-4", max_drop=0.01, epochs=_EPOCHS, rate=_RATE, seed=seed, repair_s=_REPAIR_S,
        cache=folder / "cache", say=lambda line: None,
    )  # fmt: skip
    found = report.as_json()
    print(name, *report.table(), report.verdict, sep="\n", flush=True)
    steps = [{key: step.get(key) for key in ("step", "kept", "why", "gain", "best_step")} for step in found["steps"]]
    seconds = {"original": round(trained, 1), "compress": round(perf_counter() - started, 1)}
    return {"network": name, "seed": seed, "rows": found["rows"], "steps": steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    runs: list[dict[str, Any]] = []
    if given.write is not None and given.write.exists():
        runs = json.loads(given.write.read_text())["runs"]
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            runs = [run for run in runs if (run["network"], run["seed"]) != (name, given.seed)]
            runs.append(measured(name, given.seed, Path(folder)))
        if given.write is not None:
            given.write.write_text(json.dumps({"title": "kinds of networks", "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()

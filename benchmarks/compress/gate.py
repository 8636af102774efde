"""Training for 8 bits of a network with gates, beside plain INT8.

    python benchmarks/compress/gate.py --write benchmarks/results/compress_gate.json

Inverted residuals with SiLU and squeeze-and-excite gates, as in MobileNetV3 and EfficientNet, on Fashion-MNIST: 6,000
items to train and 2,000 of the test pictures to evaluate. No weight is touched by hand. Minutes a seed on two cores; a
row is written after each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

_ORIGINAL_EPOCHS, _EPOCHS, _RATE = 12, 6, 5e-4
_REPAIR_S = 60.0


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


def measured(seed: int, folder: Path) -> dict[str, Any]:
    import keras

    import edgekit
    from benchmarks.compress.narrow import data

    train, evaluation = data()
    keras.utils.set_random_seed(seed)
    model, started = gate(), perf_counter()
    rate = keras.optimizers.schedules.CosineDecay(3e-3, _ORIGINAL_EPOCHS * len(train[0]) // 64, alpha=0.02)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    model.fit(*train, batch_size=64, epochs=_ORIGINAL_EPOCHS, verbose=0)
    model.save(folder / "gate.keras")
    trained, started = perf_counter() - started, perf_counter()
    report = edgekit.compress(
        folder / "gate.keras", train=train, evaluation=evaluation, output=folder / "out", steps=["qat"],
        profile="raspberry-pi-4", max_drop=0.01, epochs=_EPOCHS, rate=_RATE, seed=seed, repair_s=_REPAIR_S,
        cache=folder / "cache", say=lambda line: None,
    )  # fmt: skip
    found = report.as_json()
    print(*report.table(), report.verdict, sep="\n", flush=True)
    steps = [{key: step.get(key) for key in ("step", "kept", "why", "gain", "best_step")} for step in found["steps"]]
    seconds = {"original": round(trained, 1), "compress": round(perf_counter() - started, 1)}
    return {"seed": seed, "rows": found["rows"], "steps": steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measured(seed, Path(folder)))
        if given.write is not None:
            given.write.write_text(json.dumps({"network": "Fashion-MNIST, gates", "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Distillation and structured pruning of one network, over seeds, on Fashion-MNIST, beside plain INT8.

    python benchmarks/compress/narrow.py --seeds 0 1 2 --write benchmarks/results/compress_narrow.json

The network is a small residual CNN (6,000 items to train, 15 epochs; 2,000 of the test pictures to evaluate). A student
has half of each layer's channels; it is trained with the teacher, and as the control with labels alone. Pruning aims at
0.8 of plain INT8's estimate for a Raspberry Pi 4, and is trained for 8 bits after that. Accuracies are those of the
artifacts, times their estimates and medians on this machine. Some ten minutes a seed on two cores; a row is written
after each run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path("/usr/share/datasets/fashion-mnist")
_TRAIN, _EVALUATE = 6000, 2000
_BOARD = "raspberry-pi-4"
_BUDGET = 0.8
"""Of plain INT8's estimate: dispatch of operations is more than a third of that, and stays."""
_LABELS_ALONE = 1e-9
"""Of alpha: a teacher that says nothing."""


def idx(name: str) -> NDArray[np.uint8]:
    """The IDX format: two zero bytes, a dtype code, the number of axes, the axes, the values."""
    data = gzip.decompress(next(FOLDER.glob(name)).read_bytes())
    shape = [int.from_bytes(data[4 + 4 * at : 8 + 4 * at], "big") for at in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def data() -> tuple[tuple[NDArray[np.float32], NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """(pictures of 0..1, labels) to train on, and to evaluate with."""
    parts = (("train", _TRAIN), ("t10k", _EVALUATE))
    train, evaluation = (
        (
            (idx(f"{name}-images*")[:most] / 255).astype(np.float32)[..., None],
            idx(f"{name}-labels*")[:most].astype(np.int64),
        )
        for name, most in parts
    )
    return train, evaluation


def network(seed: int, x: Any, y: Any) -> Any:
    """Keras 3, input `image` float32 [N, 28, 28, 1] of 0..1, output `probs` [N, 10]; trained for 15 epochs."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)

    def normal(t: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(t))

    def residual(t: Any, width: int) -> Any:
        return layers.Add()([t, normal(layers.Conv2D(width, 3, padding="same", use_bias=False)(t))])

    image = keras.Input((28, 28, 1), name="image")
    t = residual(normal(layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(image)), 32)
    t = residual(normal(layers.Conv2D(64, 3, strides=2, padding="same", use_bias=False)(t)), 64)
    t = normal(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(t))
    t = normal(layers.Conv2D(96, 1, use_bias=False)(t))
    t = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(t))
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t))
    rate = keras.optimizers.schedules.CosineDecay(2e-3, 15 * len(x) // 64, alpha=0.02)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64, epochs=15, verbose=0)
    return model


def runs(budget_ms: float) -> dict[str, dict[str, Any]]:
    distill: dict[str, Any] = {"steps": ["distill"], "width": 0.5}
    return {
        "distilled": distill,
        "student, labels alone": distill | {"alpha": _LABELS_ALONE},
        "pruned": {"steps": ["prune", "qat"], "budget_ms": budget_ms},
    }


def measured(
    seed: int, folder: Path, done: list[dict[str, Any]], write: Path | None, names: Sequence[str], epochs: float
) -> None:
    """names: of runs, empty for all; the first one measures the plain INT8 that the budget follows from."""
    import edgekit

    train, evaluation = data()
    model = folder / "net.keras"
    network(seed, *train).save(model)
    budget = 0.0
    for name in runs(budget):
        if names and name not in names:
            continue
        started = perf_counter()
        report = edgekit.compress(
            model, train=train, evaluation=evaluation, output=folder / name.replace(" ", "-"), profile=_BOARD,
            epochs=epochs, seed=seed, cache=folder / "cache", say=lambda line: None, **runs(budget)[name],
        )  # fmt: skip
        found = report.as_json()
        budget = _BUDGET * min(row["high_ms"] for row in found["rows"] if row["step"] == "plain INT8")
        steps = [{key: step.get(key) for key in ("step", "kept", "why", "blocks")} for step in found["steps"]]
        seconds = perf_counter() - started
        done.append({"seed": seed, "run": name, "rows": found["rows"], "steps": steps, "seconds": round(seconds, 1)})
        print(f"\nseed {seed}, {name}, {seconds:.0f} s: {report.verdict}", *report.table(), sep="\n", flush=True)
        if write is not None:
            write.write_text(json.dumps({"network": "Fashion-MNIST, residual", "runs": done}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", default=[], metavar="NAME", help="distilled, and others behind it")
    parser.add_argument("--epochs", type=float, default=6, help="of each step")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    done: list[dict[str, Any]] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            measured(seed, Path(folder), done, given.write, given.runs, given.epochs)


if __name__ == "__main__":
    main()

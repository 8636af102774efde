"""A student of over ten times fewer products on scikit-learn's digits: with its teacher, and with labels alone.

    python benchmarks/compress/student.py --folder FOLDER --write benchmarks/results/compress_student.json

The teacher is trained once on 1,200 items. The student has new weights and sees the first --items of them, with the
same settings and seeds both times: the case in which a network was trained on more than there is now. The 597 other
items evaluate. Teacher and state stay in FOLDER; a row is written after each run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

_LABELS_ALONE = 1e-9
"""Of alpha: a teacher that says nothing."""
_RECIPE = "tflite-int8"
_HELD_OUT = 300


def network(seed: int, layers_of: Sequence[tuple[int, int]]) -> Any:
    """Keras 3, input `image` float32 [N, 8, 8, 1] of 0..1, output `probs` [N, 10], not trained. layers_of: (channels,
    stride) of each 3x3 convolution."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    image = t = keras.Input((8, 8, 1), name="image")
    for width, stride in layers_of:
        t = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(t)
        t = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(t))
    t = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(t))
    return keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t))


def teacher(folder: Path, x: Any, y: Any) -> Path:
    import keras

    path = folder / f"teacher-{len(x)}.keras"
    if not path.exists():
        model = network(0, ((32, 1), (32, 1), (64, 2), (64, 1)))
        rate = keras.optimizers.schedules.CosineDecay(3e-3, 30 * len(x) // 32)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=32, epochs=30, verbose=0)
        model.save(path)
    return path


def measured(
    folder: Path, seed: int, items: int, alpha: float, settings: dict[str, Any], *, held_out: bool
) -> dict[str, Any]:
    """The rows of one run. alpha: the teacher's share of the loss. held_out: evaluate with the last 300 training items,
    without which the teacher is trained then: to choose settings."""
    import edgekit
    from benchmarks.compress.qat import digits

    (x, y), evaluation = digits()
    if held_out:
        (x, y), evaluation = (x[:-_HELD_OUT], y[:-_HELD_OUT]), (x[-_HELD_OUT:], y[-_HELD_OUT:])
    model = folder / f"student-{seed}.keras"
    network(seed, ((8, 1), (24, 2), (32, 1))).save(model)
    taught_by = teacher(folder, x, y)
    started = perf_counter()
    report = edgekit.compress(
        model, teacher=taught_by, train=(x[:items], y[:items]), evaluation=evaluation, profile="raspberry-pi-4",
        output=folder / f"{seed}-{items}-{alpha:g}-{len(x)}", steps=["distill"], alpha=alpha, seed=seed, batch=32,
        cache=folder / "cache", say=lambda line: None, **settings,
    )  # fmt: skip
    found = report.as_json()
    print(*report.table(), report.verdict, sep="\n", flush=True)
    return {"seed": seed, "items": items, "alpha": alpha, "held out": held_out, "rows": found["rows"],
            "seconds": round(perf_counter() - started, 1)}  # fmt: skip


def scores(runs: list[dict[str, Any]], alone: bool) -> list[float]:
    return [
        row["score"]
        for run in runs
        if (run["alpha"] == _LABELS_ALONE) == alone
        for row in run["rows"]
        if (row["step"], row["recipe"]) == ("distill", _RECIPE)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--epochs", type=float, default=60)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--temperature", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--held-out", action="store_true", help="evaluate with training items that nothing has seen")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"epochs": given.epochs, "temperature": given.temperature, "rate": given.rate}
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        for alpha in (given.alpha, _LABELS_ALONE):
            runs.append(measured(folder, seed, given.items, alpha, settings, held_out=given.held_out))
            if given.write is not None:
                record = {"network": "digits, three convolutions", "settings": settings, "runs": runs}
                given.write.write_text(json.dumps(record, indent=1) + "\n")
    taught, alone = scores(runs, alone=False), scores(runs, alone=True)
    print(f"with the teacher {np.mean(taught):.4f} {taught}, labels alone {np.mean(alone):.4f} {alone}")


if __name__ == "__main__":
    main()

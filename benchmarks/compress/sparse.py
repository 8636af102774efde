"""What unstructured pruning buys on Fashion-MNIST: bytes after compression, and time where a sparse kernel may be.

    python benchmarks/compress/sparse.py --seeds 0 --write benchmarks/results/compress_sparse.json

The network and the data are those of narrow.py; half and nine tenths of the weights become zero. Beside it a network of
1x1 convolutions that XNNPACK's documentation names for sparse inference (float, a first 3x3 convolution of stride 2 on
three channels, a mean at the end), its weights in the dense and in the sparse layout of TFLite, timed on one thread in
turns. Minutes a seed on two cores; a row is written after each run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import tempfile
import zlib
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

SHARES = (0.5, 0.9)
_BOARD = "raspberry-pi-4"
_ROUNDS, _RUNS = 5, 20


def measured(seed: int, folder: Path, done: list[dict[str, Any]], write: Path | None) -> None:
    import edgekit

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from benchmarks.compress.narrow import data, network

    train, evaluation = data()
    model = folder / "net.keras"
    network(seed, *train).save(model)
    for share in SHARES:
        started = perf_counter()
        report = edgekit.compress(
            model, train=train, evaluation=evaluation, output=folder / f"sparse-{share:g}", profile=_BOARD, epochs=6,
            seed=seed, cache=folder / "cache", say=lambda line: None, steps=["sparse"], sparsity=share,
        )  # fmt: skip
        found, seconds = report.as_json(), perf_counter() - started
        steps = [{key: step.get(key) for key in ("step", "kept", "why", "gain", "sparsity")} for step in found["steps"]]
        done.append({"seed": seed, "share": share, "rows": found["rows"], "steps": steps, "seconds": round(seconds, 1)})
        print(f"\nseed {seed}, {share:.0%}, {seconds:.0f} s: {report.verdict}", *report.table(), sep="\n", flush=True)
        _write(write, {"runs": done})


def pointwise(share: float) -> tuple[bytes, bytes]:
    """A float TFLite file of 1x1 convolutions, that share of whose weights is zero: dense layout, sparse layout."""
    import keras
    import tensorflow as tf
    from keras import layers

    from edgekit_converters.compress.pruning import smallest

    keras.utils.set_random_seed(0)
    image = keras.Input((96, 96, 3), batch_size=1)
    t = layers.Conv2D(32, 3, strides=2, activation="relu6")(layers.ZeroPadding2D(1)(image))
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1)):
        t = layers.ZeroPadding2D(1)(t)
        t = layers.DepthwiseConv2D(3, strides=stride, activation="relu6")(t)
        t = layers.Conv2D(width, 1, activation="relu6")(t)
    model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(t)))
    for layer in model.layers:
        if isinstance(layer, layers.Conv2D) and layer.kernel_size == (1, 1):
            kernel = np.array(layer.kernel)
            kernel.reshape(-1)[smallest(kernel, share) if share else []] = 0
            layer.kernel.assign(kernel)
    files = []
    for sparse in (False, True):
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY] if sparse else []
        files.append(converter.convert())
    return files[0], files[1]


def kernels() -> list[dict[str, Any]]:
    """Milliseconds of both layouts, the median of runs taken in turns, and their sizes."""
    from edgekit_runtime.engines.registry import load_engine

    rows = []
    image = np.random.default_rng(0).random((1, 96, 96, 3)).astype(np.float32)
    for share in (0.0, 0.5, 0.7, 0.9):
        layouts = dict(zip(("dense", "sparse"), pointwise(share), strict=True))
        seconds: dict[str, list[float]] = {name: [] for name in layouts}
        for _ in range(_ROUNDS):
            for name, file in layouts.items():
                with load_engine("tflite", file, threads=1, engine="litert") as engine:
                    engine.run([image])
                    for _ in range(_RUNS):
                        started = perf_counter()
                        engine.run([image])
                        seconds[name].append(perf_counter() - started)
        for name, file in layouts.items():
            rows.append({
                "zeros": share, "layout": name, "ms": round(1000 * float(np.median(seconds[name])), 3),
                "bytes": len(file), "zlib": len(zlib.compress(file, 9)), "xz": len(lzma.compress(file)),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def _write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        old = json.loads(path.read_text()) if path.exists() else {"network": "Fashion-MNIST, residual"}
        path.write_text(json.dumps(old | found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _write(given.write, {"kernels": kernels()})
    done: list[dict[str, Any]] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            measured(seed, Path(folder), done, given.write)


if __name__ == "__main__":
    main()

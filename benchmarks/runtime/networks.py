"""The four networks that the runtime's benchmarks share.

The weights are seeded and mean nothing; only time is looked at.

    python benchmarks/runtime/networks.py --cache FOLDER          # prints {"dense": ".../dense.tflite", ...}
    path = tflite("dense", folder)                                # made once, then found; TensorFlow runs in a child

- dense: 1024-4096-4096-1000, 25 million weights: reading them costs more than one item's arithmetic, so batches pay;
- tiny: 64-256-256-10: a call takes microseconds, so every hand-off between threads costs more than the net;
- mobilenet: MobileNetV2 1.0 224: convolutions, which gain nothing from a batch;
- mobilenet-448: the same at 448 pixels: an inference above 10 ms, which runs in a thread of its own.

`tflite` gives full INT8 (int8 in, int8 out) with a free batch axis by TensorFlow's own converter; `bundle` gives what
`edgekit build` makes of the same network, with made-up calibration.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = ("dense", "tiny", "mobilenet", "mobilenet-448")
VARIANTS = (4, 8, 16, 32)
"""The batch sizes of the dense network's bundle, where batches are looked at."""
_WIDTHS = {"dense": (1024, 4096, 4096, 1000), "tiny": (64, 256, 256, 10)}
_SIZES = {"mobilenet": 224, "mobilenet-448": 448}
_CALIBRATION = 16


def tflite(name: str, cache: Path) -> Path:
    """Path of NAME's INT8 .tflite (see above) inside `cache`."""
    path = cache / f"{name}.tflite"
    if not path.exists():
        _in_child("tflite", name, cache)
    return path


def bundle(name: str, cache: Path, *, batch: Sequence[int] = (), profile: str = "raspberry-pi-4") -> Path:
    """Path of NAME's bundle: `tflite-int8` by `edgekit build`. batch: fixed-shape variants to carry besides."""
    folder = cache / "-".join([name, *map(str, batch)])
    path = folder / f"{name}-{profile}.ekb"
    if not path.exists():
        if not (cache / f"{name}.keras").exists():
            _in_child("keras", name, cache)
        build = [
            "build",
            str(cache / f"{name}.keras"),
            "--profile",
            profile,
            "--allow-random",
            "--recipe",
            "tflite-int8",
        ]
        build += [word for n in batch for word in ("--batch", str(n))]
        _run([sys.executable, "-c", "from edgekit.cli import main; main()", *build, "-o", str(folder)])
    return path


def _in_child(what: str, name: str, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, __file__, "--cache", str(cache), "--make", what, "--only", name])


def _run(command: list[str]) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | quiet)


def _keras_model(name: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    if name in _SIZES:
        return keras.applications.MobileNetV2(weights=None, input_shape=(_SIZES[name], _SIZES[name], 3))
    first, *hidden, last = _WIDTHS[name]
    x = keras.Input((first,), name="x")
    t = x
    for width in hidden:
        t = keras.layers.Dense(width, activation="relu")(t)
    return keras.Model(x, keras.layers.Dense(last, name="y")(t), name=name)


def _make_keras(name: str, path: Path) -> None:
    _keras_model(name).save(path)


def _make_tflite(name: str, path: Path) -> None:
    import tensorflow as tf

    model = _keras_model(name)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: _examples(model.input_shape[1:])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    partial = path.with_suffix(".part")
    partial.write_bytes(converter.convert())
    partial.replace(path)


def _examples(shape: tuple[int, ...]) -> Iterator[list[Any]]:
    rng = np.random.default_rng(0)
    for _ in range(_CALIBRATION):
        yield [rng.normal(size=(1, *shape)).astype(np.float32)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", choices=NETWORKS, help="one network instead of all")
    parser.add_argument("--make", choices=("tflite", "keras"), help=argparse.SUPPRESS)  # what the child is asked to do
    options = parser.parse_args()
    if options.make == "keras":
        _make_keras(options.only, options.cache / f"{options.only}.keras")
    elif options.make == "tflite":
        _make_tflite(options.only, options.cache / f"{options.only}.tflite")
    else:
        names = [options.only] if options.only else NETWORKS
        print(json.dumps({name: str(tflite(name, options.cache)) for name in names}, indent=2))


if __name__ == "__main__":
    main()

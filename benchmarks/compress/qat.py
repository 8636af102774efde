"""Plain INT8, the repaired build and quantization-aware training of one network, over seeds, on real labels.

    python benchmarks/compress/qat.py --seeds 0 1 2 --write benchmarks/results/compress.json --tfmot FOLDER

The network is a small depthwise CNN on scikit-learn's digits (1,200 to train, 597 to evaluate). Its batch norms begin
with gains that differ by a factor of e^2 and more, so that channels of one tensor have unlike ranges: the kind on which
one scale a tensor fails. No weight is touched by hand. Accuracies are those of the artifacts, on the same 597 items.
With --tfmot and --nncf these tools train the same network in environments of their own, made in those folders; with
--peers-alone nothing else is measured.
Minutes a seed on two cores; a row is written after each seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPREAD = 2.0
_RECIPES = ("tflite-int8", "onnx-int8-qdq")
_EPOCHS, _BATCH, _RATE = 12, 32, 1e-3


def network(seed: int, x: Any, y: Any) -> Any:
    """Keras 3, input `image` float32 [N, 8, 8, 1] of 0..1, output `probs` [N, 10]; trained for 12 epochs."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)

    def normal(t: Any) -> Any:
        layer = layers.BatchNormalization(momentum=0.9)
        t = layer(t)
        layer.gamma.assign(np.exp(random.normal(0, _SPREAD, layer.gamma.shape)))
        return layers.ReLU()(t)

    image = keras.Input((8, 8, 1), name="image")
    t = normal(layers.Conv2D(16, 3, padding="same", use_bias=False)(image))
    for width, stride in ((24, 2), (32, 1)):
        t = normal(layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(t))
        t = normal(layers.Conv2D(width, 1, use_bias=False)(t))
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(layers.GlobalAveragePooling2D()(t)))
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64, epochs=12, verbose=0)
    return model


def digits() -> tuple[tuple[NDArray[np.float32], NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """(pictures of 0..1, labels) to train on, and to evaluate with."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order], labels.astype(np.int64)[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


@dataclass(frozen=True)
class Peer:
    """Another tool. script: what trains in its environment; requirements: of that; suffix: of what it writes; recipe:
    the one of edgekit that it is beside."""

    script: str
    requirements: str
    suffix: str
    recipe: str

    def python(self, folder: Path, name: str) -> Path:
        """The interpreter of its environment, made in that folder."""
        from benchmarks.conversion.environment import peers_python

        return peers_python(folder, Path(__file__).with_name(self.requirements), f"{name}-environment")

    def row(self, name: str, model: Path, seed: int, folder: Path, python: Path) -> dict[str, Any]:
        """Of what it makes of the trained network, as long and at the same rate."""
        import keras

        from edgekit_runtime.engines.registry import load_engine

        (x, y), (items, labels) = digits()
        network = keras.models.load_model(model, compile=False)
        named: dict[str, Any] = {f"weight{at}": weight for at, weight in enumerate(network.get_weights())}
        settings = {"epochs": _EPOCHS, "batch": _BATCH, "rate": _RATE, "seed": seed}
        np.savez(folder / "work.npz", x=x, y=y, **named, **settings)
        file = folder / f"{name}{self.suffix}"
        script = Path(__file__).with_name(self.script)
        subprocess.run([str(python), str(script), str(folder / "work.npz"), str(file)], check=True)
        tflite = self.suffix == ".tflite"
        shaped = items if tflite else items.transpose(0, 3, 1, 2)
        with load_engine("tflite" if tflite else "onnx", file.read_bytes()) as engine:
            right = [
                int(np.argmax(engine.run([item[None]])[0])) == label for item, label in zip(shaped, labels, strict=True)
            ]
        original = float(np.mean(np.asarray(network(items)).argmax(1) == labels))
        return {
            "step": name, "recipe": self.recipe, "metric": "top1", "score": float(np.mean(right)), "original": original,
            "bytes": file.stat().st_size,
        }  # fmt: skip


PEERS = {
    "tfmot": Peer("tfmot_peer.py", "requirements.txt", ".tflite", "tflite-int8"),
    "nncf": Peer("nncf_peer.py", "nncf_requirements.txt", ".onnx", "onnx-int8-qdq"),
}


def measured(seed: int, folder: Path, peers: Mapping[str, Path], *, alone: bool = False) -> dict[str, Any]:
    """One seed: a row for each artifact, and the seconds of each stage. peers: interpreters; alone: nothing else."""
    import edgekit

    train, evaluation = digits()
    model = folder / "net.keras"
    network(seed, *train).save(model)
    if alone:
        return {"seed": seed, "rows": [PEERS[name].row(name, model, seed, folder, one) for name, one in peers.items()]}
    common: dict[str, Any] = {"cache": folder / "cache", "say": lambda line: None}

    def built(path: Path, name: str) -> Any:
        report = edgekit.build(
            path, profiles="raspberry-pi-4", calibration=train[0][:500], evaluation=evaluation, max_drop=0.01,
            recipes=_RECIPES, repair_s=60.0, output=folder / name, **common,
        )  # fmt: skip
        return report.as_json()

    seconds = {"repaired build": -perf_counter()}
    repaired = built(model, "repaired")
    seconds["repaired build"] += perf_counter()
    seconds["compress"] = -perf_counter()
    made = edgekit.compress(
        model, train=train, evaluation=evaluation, output=folder / "out", steps=["qat"], profile="raspberry-pi-4",
        max_drop=0.01, epochs=_EPOCHS, batch=_BATCH, rate=_RATE, **common,
    )  # fmt: skip
    seconds["compress"] += perf_counter()
    rows = [{**row, "interval": row["interval"]} for row in made.as_json()["rows"]]
    for one in repaired["candidates"]:
        if one["repair"] is not None and one["repair"]["recipe"] == one["recipe"]:
            found = one["fidelity"]
            rows.append({
                "step": "repaired", "recipe": one["recipe"], "metric": found["metric"], "original": found["original"],
                "score": found["artifact"], "drop": found["loss"], "interval": found["ci95"], "items": found["items"],
                "int8": found["quantized_macs"], "bytes": one["bytes"],
            })  # fmt: skip
    for name, python in peers.items():
        seconds[name] = -perf_counter()
        rows.append(PEERS[name].row(name, model, seed, folder, python))
        seconds[name] += perf_counter()
    after = built(folder / "out" / "net.keras", "after") if made.model is not None else {"bundles": []}
    chosen = [bundle["recipe"] for bundle in after["bundles"]]
    return {"seed": seed, "rows": rows, "packed after compress": chosen, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", type=Path)
    for name in PEERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER")
    parser.add_argument("--peers-alone", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    chosen = {name: getattr(given, name) for name in PEERS if getattr(given, name) is not None}
    peers = {name: PEERS[name].python(folder, name) for name, folder in chosen.items()}
    found = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(seed, Path(folder), peers, alone=given.peers_alone))
        for row in found[-1]["rows"]:
            print(seed, row["step"], row["recipe"], row["score"], row.get("int8"), flush=True)
        if given.write is not None:
            given.write.write_text(json.dumps({"network": "digits, depthwise", "seeds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

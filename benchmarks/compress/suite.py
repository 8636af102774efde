"""Detectors of the fidelity suite whose TFLite INT8 needs float layers: compress, then an ordinary build of its result.

    python benchmarks/compress/suite.py --cache FOLDER --write benchmarks/results/compress_suite.json

The networks, their pictures and limits are those of benchmarks/conversion (networks.py, detectors.py), trained there on
first use. The detector is held to 1 point of mAP at IoU 0.5 on its 500 test scenes, the two heads to 5 % of the float
network's boxes on 300 pictures; what a build makes of them as they are is in benchmarks/results/fidelity.md. Compress
has the pictures that they were trained on, without labels. Minutes a model on two cores; a row is written after each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conversion"))

_BOARD = "raspberry-pi-4"
_RECIPES = ("tflite-int8", "tflite-f32")
_REPAIR_S = 120.0


@dataclass(frozen=True)
class Case:
    """prepare: (cache, folder) -> (model, training, calibration and evaluation pictures), its contract file beside the
    model. settings: of compress."""

    what: str
    prepare: Callable[[Path, Path], tuple[Path, Path, Path, Path]]
    max_drop: float
    metric: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def detector(cache: Path, folder: Path) -> tuple[Path, Path, Path, Path]:
    import data
    import detectors
    import models
    from networks import trained

    model = Path(shutil.copy(trained("detector", cache), folder))
    contract = detectors.CONTRACT.format(std=1, row="box scores", candidates="first")
    model.with_suffix(".contract.toml").write_text(contract)
    images, _ = data.scenes("train", cache)
    calibrate, _ = data.scenes("calibrate", cache)
    test, truths = data.scenes("test", cache)
    files = folder / "train.npz", folder / "calibrate.npz", folder / "test.npz"
    np.savez(files[0], x=images)
    np.savez(files[1], x=calibrate)
    np.savez(files[2], x=test, y=models.filled(truths))
    return model, *files


def head(kind: str) -> Callable[[Path, Path], tuple[Path, Path, Path, Path]]:
    def prepare(cache: Path, folder: Path) -> tuple[Path, Path, Path, Path]:
        import detectors

        case = detectors.CASES[f"{kind}_head"]
        kept = cache / "detectors" / f"{kind}_head"
        kept.mkdir(parents=True, exist_ok=True)
        made, calibration, evaluation = case.prepared(cache, kept)
        model = Path(shutil.copy(made, folder))
        model.with_suffix(".contract.toml").write_text(case.contract)
        np.savez(folder / "train.npz", x=detectors.shapes(1500, 0)[0])
        return model, folder / "train.npz", calibration, evaluation

    return prepare


CASES = {
    "detector": Case("digits in scenes", detector, 0.01, "detection:map50"),
    "yolov5_head": Case("a head as YOLOv5's", head("yolov5"), 0.05),
    "yolox_head": Case("a head as YOLOX's", head("yolox"), 0.05),
}


def built(model: Path, case: Case, sets: tuple[Path, Path], output: Path, cache: Path) -> dict[str, Any]:
    """What a build packs and why not the others, and its artifacts in 8 bits."""
    import edgekit

    report = edgekit.build(
        model, profiles=_BOARD, calibration=sets[0], evaluation=sets[1], metric=case.metric, max_drop=case.max_drop,
        recipes=_RECIPES, repair_s=_REPAIR_S, output=output, cache=cache, say=lambda line: None,
    ).as_json()  # fmt: skip
    rows = {one["recipe"]: _row(one) for one in report["candidates"] if one["fidelity"] is not None}
    return {"packed": [one["recipe"] for one in report["bundles"]], "artifacts": rows}


def _row(candidate: dict[str, Any]) -> dict[str, Any]:
    """loss, ci95: of the metric, or of the float network's boxes where it has no labels."""
    found = candidate["fidelity"]
    row = {key: found[key] for key in ("metric", "original", "artifact", "loss", "ci95", "quantized_macs")}
    if found["metric"] is None and found["decisions"] is not None:
        low, high = found["decisions"]["ci95"]
        row |= {"metric": "boxes kept", "ci95": [1 - high, 1 - low]}
    layers = len((candidate["plan"] or {}).get("float_layers", ()))
    return row | {"bytes": candidate["bytes"], "float_layers": layers}


def measured(name: str, cache: Path, steps: list[str]) -> dict[str, Any]:
    import edgekit

    case, folder = CASES[name], cache.resolve() / "compress" / name
    folder.mkdir(parents=True, exist_ok=True)
    model, train, calibration, evaluation = case.prepare(cache.resolve(), folder)
    started = perf_counter()
    made = edgekit.compress(
        model, train=train, evaluation=evaluation, metric=case.metric, profile=_BOARD, max_drop=case.max_drop,
        steps=steps, output=folder / "out", cache=folder / "kept", **case.settings,
    )  # fmt: skip
    seconds = {"compress": round(perf_counter() - started, 1)}
    print(*made.table(), made.verdict, sep="\n", flush=True)
    started = perf_counter()
    after = built(made.model, case, (calibration, evaluation), folder / "after", folder / "kept") if made.model else {}
    seconds["build"] = round(perf_counter() - started, 1)
    found = made.as_json()
    kept = [{key: step.get(key) for key in ("step", "kept", "why", "gain")} for step in found["steps"]]
    return {"what": case.what, "limit": case.max_drop, "rows": found["rows"], "steps": kept, "build": after,
            "seconds": seconds}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--steps", nargs="+", default=["split"])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found: dict[str, Any] = {}
    if given.write is not None and given.write.exists():
        found = json.loads(given.write.read_text())["models"]
    for name in given.only:
        found[name] = measured(name, given.cache, given.steps)
        print(name, json.dumps(found[name]["build"]), flush=True)
        if given.write is not None:
            given.write.write_text(json.dumps({"title": "detectors of the suite", "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

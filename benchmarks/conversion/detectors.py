"""How many of a detector's decisions each artifact keeps, without labels.

Boxes over the threshold, same class, IoU of 0.5.

    python benchmarks/conversion/detectors.py --cache FOLDER [--only yolov8n] --docs benchmarks/results/fidelity.md

- yolov8n: 320n.onnx of the package nudenet (AGPL-3.0), which finds faces and parts of bodies. Packages have few photos
  of people: 60 views of three photos to compare, 96 views of 16 others to calibrate. Views of one photo are alike;
- yolov5_head, yolox_head: no package ships real weights, so that small networks with such heads are trained here on
  drawn shapes, in a minute each: 200 pictures to calibrate, 300 others to compare.

Needs edgekit's extra onnx-tflite for yolov8n. What a build ships is chosen for a Raspberry Pi 4, with the default limit
of 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packages import Package, unpacked

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import put_between

NUDENET = Package("pip", "nudenet", "3.4.2", "AGPL-3.0")
ULTRALYTICS = Package("pip", "ultralytics", "8.4.190", "AGPL-3.0")
INSIGHTFACE = Package("pip", "insightface", "2.1", "MIT")
FOOLBOX = Package("pip", "foolbox", "3.3.4", "MIT (package); 20 ImageNet samples")
SKIMAGE = Package("pip", "scikit-image", "0.26.0", "BSD-3-Clause")
RECIPES = ("tflite-int8", "tflite-dynamic", "onnx-int8-qdq", "onnx-int8-dynamic", "tflite-f32")
SIDE, STEP = 96, 8
CELLS = SIDE // STEP
COLOURS = np.array([[220, 60, 60], [60, 200, 80], [70, 90, 230]], np.float32)
CONTRACT = """task = "detection"

[input]
kind = "image"
resize = "letterbox"
mean = 0
std = {std}

[detection]
row = "{row}"
candidates = "{candidates}"
format = "cxcywh"
unit = "pixels"
"""


@dataclass(frozen=True)
class Case:
    """prepared: (cache, folder) -> (model, calibration, evaluation)."""

    what: str
    contract: str
    prepared: Callable[[Path, Path], tuple[Path, Path, Path]]
    shapes: dict[str, tuple[int, ...]]


def yolov8n(cache: Path, folder: Path) -> tuple[Path, Path, Path]:
    sets = [folder / role for role in ("calibrate", "compare")]
    for number, place in enumerate(sets):
        place.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(number)
        for photo in (photo for photo in PHOTOS if photo.role == place.name):
            for index in range(photo.views):
                view(unpacked(photo.package, cache) / photo.file, rng).save(
                    place / f"{Path(photo.file).stem}-{index:02}.png"
                )
    return next(unpacked(NUDENET, cache).rglob("320n.onnx")), sets[0], sets[1]


def view(path: Path, rng: np.random.Generator) -> Any:
    """A part of a photo, 40 % to all of each side, mirrored or not, darker or brighter."""
    from PIL import Image, ImageEnhance, ImageOps

    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    share = 1 - 0.6 * rng.random() ** 1.5
    width, height = int(picture.width * share), int(picture.height * share)
    left, top = int(rng.uniform(0, picture.width - width)), int(rng.uniform(0, picture.height - height))
    part = picture.crop((left, top, left + width, top + height))
    part.thumbnail((640, 640))
    if rng.random() < 0.5:
        part = ImageOps.mirror(part)
    part = ImageEnhance.Brightness(part).enhance(rng.uniform(0.7, 1.3))
    return ImageEnhance.Contrast(part).enhance(rng.uniform(0.8, 1.2))


def head(kind: str) -> Callable[[Path, Path], tuple[Path, Path, Path]]:
    def prepared(cache: Path, folder: Path) -> tuple[Path, Path, Path]:
        model = folder / f"{kind}.keras"
        if not model.exists():
            trained(kind).save(model)
        for name, count, seed in (("calibrate", 200, 1), ("compare", 300, 2)):
            np.savez(folder / f"{name}.npz", x=shapes(count, seed)[0])
        return model, folder / "calibrate.npz", folder / "compare.npz"

    return prepared


@dataclass(frozen=True)
class Photo:
    """role: what its views are for; no photo has two."""

    package: Package
    file: str
    role: str
    views: int


_SAMPLES = "01_559 03_990 05_853 06_609 09_455 10_541 11_630 13_471 14_129 15_99 17_22 19_305"
PHOTOS = (
    Photo(INSIGHTFACE, "insightface/data/images/t1.jpg", "compare", 28),  # six people
    Photo(SKIMAGE, "skimage/data/astronaut.png", "compare", 20),
    Photo(FOOLBOX, "foolbox/data/imagenet_00_243.jpg", "compare", 12),  # a dog, with feet
    Photo(ULTRALYTICS, "ultralytics/assets/bus.jpg", "calibrate", 24),
    Photo(ULTRALYTICS, "ultralytics/assets/zidane.jpg", "calibrate", 24),
    Photo(INSIGHTFACE, "insightface/data/images/Tom_Hanks_54745.png", "calibrate", 8),
    Photo(INSIGHTFACE, "insightface/data/images/mask_white.jpg", "calibrate", 4),
    *(Photo(FOOLBOX, f"foolbox/data/imagenet_{name}.jpg", "calibrate", 3) for name in _SAMPLES.split()),
)

CASES = {
    "yolov8n": Case("YOLOv8n of nudenet 3.4.2, photos", CONTRACT.format(std=255, row="box scores", candidates="last"),
        yolov8n, {"images": (1, 3, 320, 320)}),
    "yolov5_head": Case("a head as YOLOv5's, trained here on drawn shapes",
        CONTRACT.format(std=255, row="box objectness scores", candidates="first"), head("yolov5"), {}),
    "yolox_head": Case("a head as YOLOX's, trained here on drawn shapes",
        CONTRACT.format(std=1, row="box objectness scores", candidates="first"), head("yolox"), {}),
}  # fmt: skip


def shapes(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """uint8 [count, 96, 96, 3] with none to three squares, discs and crosses of 14 to 40 pixels, and targets
    [count, cells, 8]: centre, size, objectness, one-hot class in the cell of each centre."""
    rng = np.random.default_rng(seed)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    targets = np.zeros((count, CELLS, CELLS, 8), np.float32)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    for image, target in zip(images, targets, strict=True):
        scene = rng.normal(rng.uniform(40, 160), 14, (SIDE, SIDE, 3)) + rng.uniform(-40, 40, 3)
        for _ in range(rng.integers(0, 4)):
            half, kind = rng.uniform(7, 20), int(rng.integers(3))
            x, y = rng.uniform(half, SIDE - half, 2)
            across, down = np.abs(columns - x), np.abs(rows - y)
            inside = np.maximum(across, down) <= half
            if kind == 1:
                inside = across**2 + down**2 <= half**2
            if kind == 2:
                inside &= np.minimum(across, down) <= half / 3
            scene[inside] = COLOURS[rng.integers(3)] + rng.normal(0, 12, 3)
            cell = target[int(y / STEP), int(x / STEP)]
            cell[:] = 0
            cell[:5], cell[5 + kind] = (x, y, 2 * half, 2 * half, 1), 1
        image[:] = scene.clip(0, 255)
    return images, targets.reshape(count, CELLS * CELLS, 8)


def trained(kind: str) -> Any:
    import keras
    from keras import layers, ops

    keras.utils.set_random_seed(0)
    image = x = layers.Input((SIDE, SIDE, 3), name="image")
    if kind == "yolox":  # takes 0 to 255
        x = layers.Rescaling(1 / 255)(x)
    for width, stride in ((16, 2), (32, 2), (48, 1), (64, 2), (64, 1)):
        x = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.Activation("silu")(layers.BatchNormalization(momentum=0.9)(x))
    grid = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1)[None].astype(np.float32)
    if kind == "yolov5":
        y = ops.sigmoid(layers.Conv2D(8, 1)(x))
        parts = [(y[..., :2] * 2 - 0.5 + grid) * STEP, ops.square(y[..., 2:4] * 2) * 16.0, y[..., 4:]]
    else:
        box, sure, named = (layers.Conv2D(size, 1)(x) for size in (4, 1, 3))
        joined = layers.Concatenate()([box, ops.sigmoid(sure - 4.0), ops.sigmoid(named)])
        parts = [(joined[..., :2] + grid) * STEP, ops.exp(ops.minimum(joined[..., 2:4], 3.0)) * STEP, joined[..., 4:]]
    net = keras.Model(image, layers.Reshape((CELLS * CELLS, 8))(layers.Concatenate()(parts)))
    images, targets = shapes(1500, 0)
    scale = 255 if kind == "yolov5" else 1
    epochs = 8
    rate = keras.optimizers.schedules.CosineDecay(4e-3, epochs * len(images) // 32)
    net.compile(keras.optimizers.Adam(rate), loss=loss)
    net.fit(images.astype(np.float32) / scale, targets, batch_size=32, epochs=epochs, verbose=0)
    return net


def loss(target: Any, answer: Any) -> Any:
    from keras import ops

    there, chance = target[..., 4], ops.clip(answer[..., 4:], 1e-6, 1 - 1e-6)
    right = target[..., 4:] * chance + (1 - target[..., 4:]) * (1 - chance)
    sure = -ops.sum((0.25 + 0.5 * there) * (1 - right[..., 0]) ** 2 * ops.log(right[..., 0]), axis=1)
    named = -ops.sum(there[..., None] * ops.log(right[..., 1:]), axis=(1, 2)) / 4
    away = ops.sum(there[..., None] * ops.abs(target[..., :4] - answer[..., :4]), axis=(1, 2)) / STEP
    return ops.mean(sure * 4 + named + away)


def measured(name: str, cache: Path) -> dict[str, Any]:
    from edgekit.building.build_journey import build
    from edgekit.building.build_request import BuildRequest
    from edgekit_converters.sources.load_options import LoadOptions

    case, folder = CASES[name], cache.resolve() / "detectors" / name
    folder.mkdir(parents=True, exist_ok=True)
    model, calibration, evaluation = case.prepared(cache, folder)
    (folder / "contract.toml").write_text(case.contract)
    report = build(
        BuildRequest(
            model, ("raspberry-pi-4",), output=folder / "out", calibration=str(calibration),
            evaluation=str(evaluation), max_drop=0.05,
            recipes=RECIPES, repair_s=120.0,
            contract=folder / "contract.toml", options=LoadOptions(shapes=case.shapes), cache=folder / "kept",
            name=name,
        )
    )  # fmt: skip
    chosen = report.bundles[0].choice.chosen
    rows = {
        c["recipe"]: c["fidelity"]["decisions"] | {"int8": c["fidelity"]["quantized_macs"]} for c in report.candidates
    }
    return {"what": case.what, "ships": chosen.recipe if chosen else None, "artifacts": rows}


def markdown(found: dict[str, Any]) -> str:
    lines = [
        "| model | artifact | boxes kept | new | agreement, 95 % interval | MACs in 8 bits |",
        "|---|---|---|---|---|---|",
    ]
    for value in found.values():
        for recipe, row in value["artifacts"].items():
            low, high = row["ci95"]
            ships = " (ships)" if recipe == value["ships"] else ""
            lines.append(
                f"| {value['what']} | {recipe}{ships} | {row['kept']} of {row['original']} | "
                f"{row['artifact'] - row['kept']} | {100 * row['agreement']:.1f} % ({100 * low:.1f}-{100 * high:.1f}) "
                f"| {100 * row['int8']:.0f} % |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default=",".join(CASES), help="models, by comma")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/detectors.json"))
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found: dict[str, Any] = json.loads(options.output.read_text())["models"] if options.output.exists() else {}
    for name in options.only.split(","):
        found[name] = measured(name, options.cache)
        found = {key: found[key] for key in CASES if key in found}
        options.output.write_text(json.dumps({"title": "decisions of detectors", "models": found}, indent=1) + "\n")
    print(markdown(found))
    if options.docs:
        put_between(options.docs, "detectors", markdown(found))


if __name__ == "__main__":
    main()

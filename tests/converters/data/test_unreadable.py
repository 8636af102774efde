"""Files that cannot be read, sets that are told by their files, and examples that are made up."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from linting import lint
from PIL import Image

from edgekit_converters.data.dataset import RandomDataset, digest, split
from edgekit_converters.data.lint import survey
from edgekit_converters.data.open import open_dataset
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

CONTRACT = Contract(
    "classification",
    (InputContract("image", (8, 8, 3), "float32", ImageSpec(8, 8, (0.0,) * 3, (255.0,) * 3)),),
    (OutputContract("probs", (2,), "float32"),),
)


@pytest.fixture
def photos(tmp_path):
    """A folder of 20 pictures, and what breaks one of them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(20):
        pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")

    def corrupt(*names: str):
        for name in names:
            (folder / name).write_bytes((folder / name).read_bytes()[:60])
        return open_dataset(folder, CONTRACT)

    return corrupt


def test_one_corrupt_picture_is_counted_named_and_passed_over(photos):
    dataset = photos("07.png")
    (finding,) = [f for f in lint(dataset, None, CONTRACT) if f.code == "unreadable"]
    assert finding.level == "warning"
    assert "1 of 20 files cannot be read and are left out" in finding.what
    assert "07.png" in finding.what
    found = survey(dataset)
    assert (found.items, list(found.unreadable), len(found.digests)) == (19, [7], 19)


@pytest.mark.parametrize("names", [["00.png", "01.png", "02.png"], [f"{n:02}.png" for n in range(20)]])
def test_more_than_a_tenth_is_an_error(photos, names):
    (finding,) = [f for f in lint(photos(*names), None, CONTRACT) if f.code == "unreadable"]
    assert finding.level == "error"
    assert f"{len(names)} of 20" in finding.what


def test_items_of_a_part_are_counted_in_the_part(photos):
    kept, held_out = split(photos("02.png"))
    assert [len(survey(part).unreadable) for part in (kept, held_out)] == [0, 1]


def test_a_set_is_told_by_its_files_wherever_they_lie(photos, tmp_path):
    first = photos().fingerprint
    shutil.copytree(tmp_path / "photos", tmp_path / "moved")
    assert open_dataset(tmp_path / "moved", CONTRACT).fingerprint == first
    (tmp_path / "moved" / "03.png").unlink()
    assert open_dataset(tmp_path / "moved", CONTRACT).fingerprint != first
    assert photos("05.png").fingerprint != first


def test_parts_of_a_set_are_told_apart(photos):
    dataset = photos()
    kept, held_out = split(dataset)
    assert len({part.fingerprint for part in (dataset, kept, held_out)}) == 3


def test_the_labels_are_part_of_what_tells_a_set(tmp_path):
    x = np.zeros((4, 8, 8, 3), np.float32)
    prints = []
    for y in ([0, 1, 0, 1], [1, 1, 0, 1]):
        np.savez(tmp_path / "set.npz", x=x, y=np.array(y))
        prints.append(open_dataset(tmp_path / "set.npz", CONTRACT).fingerprint)
    assert None not in prints
    assert prints[0] != prints[1]


def test_made_up_examples_are_the_same_each_time_and_all_different():
    dataset = RandomDataset(CONTRACT, 20)
    digests = [digest(example) for example in dataset]
    assert digests == [digest(example) for example in dataset]
    assert len(set(digests)) == 20
    assert [digest(example) for example in dataset.pick([3, 9])] == [digests[3], digests[9]]
    assert digests[0] != digest(next(iter(RandomDataset(CONTRACT, 1, seed=1))))

"""What depends on the kind of an input follows from its row, and from nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgekit_runtime.contract.kinds import kind_of, network_size, pictures, takes_rows
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

ROOT = Path(__file__).parents[3]
PICTURE = InputContract("image", (4, 6, 3), "float32", ImageSpec(4, 6, (127.5,) * 3, (127.5,) * 3))
NUMBERS = InputContract("x", (1, 8), "float32")


def test_an_image_takes_pixels_first_and_a_tensor_its_own_dtype():
    assert kind_of(PICTURE).dtypes(PICTURE) == (np.uint8, np.float32)
    assert kind_of(NUMBERS).dtypes(NUMBERS) == (np.float32,)
    assert (kind_of(PICTURE).extras, kind_of(NUMBERS).extras) == (("image",), ())
    assert kind_of(PICTURE).describe(PICTURE) == "rgb image, stretch to 4 x 6 x 3, (pixel - 127.5) / 127.5"
    assert kind_of(NUMBERS).describe(NUMBERS) == "float32 [1 x 8]"


def test_the_picture_that_a_network_sees_is_its_first():
    assert pictures((NUMBERS, PICTURE)) == (PICTURE.image,)
    assert (network_size((NUMBERS, PICTURE)), network_size((NUMBERS,))) == ((6, 4), (1, 1))


@pytest.mark.parametrize(
    ("inputs", "fits"),
    [
        ((NUMBERS,), True),
        ((replace(NUMBERS, dtype="int32"),), False),
        ((replace(NUMBERS, shape=(2, 8)),), False),
        ((NUMBERS, replace(NUMBERS, name="y")), False),
        ((PICTURE,), False),
    ],
)
def test_recordings_fill_one_row_of_floats(inputs: tuple[InputContract, ...], fits: bool):
    assert takes_rows(Contract("raw", inputs, (OutputContract("y", (1,), "float32"),))) is fits


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ({"height": 5}, "another shape"),
        ({"mean": (0.0,)}, "one a channel"),
        ({"std": (1.0, 0.0, 1.0)}, "a std is zero"),
        ({"crop": 1.5}, "a crop of 1.5"),
        ({}, ""),
    ],
)
def test_a_picture_of_a_bundle_must_be_possible(image: dict, problem: str):
    spec = replace(PICTURE, image=replace(PICTURE.image, **image))
    found = next(kind_of(spec).problems(spec), "")
    assert (problem in found) if problem else not found


def test_no_other_module_asks_whether_an_input_is_an_image():
    asks = re.compile(
        r"\bimage is (not )?None|(\bif|\bor|\band|\bnot|any\() \w+\.image\b(?!\.| !=)|\.image (else|is|for|and|or)\b"
    )
    rooms = ("runtime/edgekit_runtime", "converters/edgekit_converters", "edgekit")
    found = {
        str(path.relative_to(ROOT))
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8")) and path.name != "guest.py"
    }
    assert found == {"runtime/edgekit_runtime/contract/kinds.py"}

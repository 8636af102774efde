"""Pictures of every mode and depth are answered as what they show, whichever way they come."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest
from depths import GREY, levels, made, png, tiff
from PIL import Image

from edgekit_runtime.contract import picture
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError

MADE = {one.name: one for one in made()}
REFUSED = {"tiff grey 16 big, white is 0", "tiff grey 12, white is 0"}
"""Pillow reads neither."""
GREY_ONES = [name for name in MADE if "grey" in name and "alpha" not in name and name not in {*REFUSED, "JPEG grey"}]
DECODER = Decoder(InputContract("image", (6, 8, 3), "float32", ImageSpec(6, 8, (0.0,) * 3, (1.0,) * 3)))


def test_there_is_one_of_each():
    assert len(MADE) > 100
    assert set(MADE) >= REFUSED


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("opened", [False, True], ids=["bytes", "picture"])
def test_it_shows_what_it_was_made_of(name, opened):
    one = MADE[name]
    if name in REFUSED:
        with pytest.raises(InputError, match="not an image that can be decoded"):
            DECODER(one.data)
        return
    shown = DECODER(Image.open(io.BytesIO(one.data)) if opened else one.data)
    assert np.abs(shown.astype(int) - one.pixels.astype(int)).max() <= one.off


@pytest.mark.parametrize("name", GREY_ONES)
def test_a_grey_network_is_shown_the_same(name):
    gray = ImageSpec(6, 8, (0.0,), (1.0,), color="gray")
    shown = Decoder(InputContract("image", (6, 8, 1), "float32", gray))(MADE[name].data)
    assert np.abs(shown[:, :, 0].astype(int) - MADE[name].pixels[:, :, 0]).max() <= 1


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_values_that_use_twelve_of_sixteen_bits_are_told_once(kind, caplog, monkeypatch):
    numbers = levels(GREY, 4095)
    data = png(numbers, 16, 0) if kind == "png" else tiff(numbers, 16, 1)
    monkeypatch.setattr(picture, "_DARK_SAID", picture.threading.Event())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert DECODER(data).max() == 15
        DECODER(MADE["png grey 16"].data)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "16-bit grey that ends at 4095 of 65535 is nearly black; scale it to all 16 bits"
    ]


def test_opencv_reads_the_same():
    """Where it is installed, but for transparency, and for the most that a PGM says: it leaves out both."""
    cv2 = pytest.importorskip("cv2")
    differ = []
    for name, one in MADE.items():
        read = cv2.imdecode(np.frombuffer(one.data, np.uint8), cv2.IMREAD_COLOR)
        if read is not None and np.abs(read[:, :, ::-1].astype(int) - one.pixels).max() > one.off:
            differ.append(name)
    assert [name for name in differ if not any(word in name for word in ("alpha", "clear", "pgm ", "ppm "))] == []

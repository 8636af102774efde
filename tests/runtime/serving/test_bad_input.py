"""Whatever is passed by mistake is one InputError that says what to do; the model goes on answering."""

from __future__ import annotations

import array
import asyncio
import io
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny

from edgekit_runtime import Frame, open_bundle
from edgekit_runtime.system.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with open_bundle(tiny.bundle(tmp_path_factory.mktemp("bad"))) as opened:
        yield opened


def encoded(kind, size=(64, 64)):
    Image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(file, kind)
    return file.getvalue()


def huge():
    data = bytearray(encoded("PNG"))
    data[16:24] = (12_000).to_bytes(4, "big") + (8_400).to_bytes(4, "big")
    return bytes(data)


FLOATS = np.zeros((8, 8, 3), np.float32)
BAD = {
    "another shape": (lambda: FLOATS[:7], "does not fit"),
    "another rank": (lambda: np.zeros(192, np.float32), "does not fit"),
    "no rank at all": (lambda: np.float32(3), "does not fit"),
    "another dtype": (lambda: FLOATS.astype(np.int32), "an image cannot be int32"),
    "complex numbers": (lambda: FLOATS.astype(np.complex64), "an image cannot be complex64"),
    "NaN": (lambda: FLOATS * np.nan, "holds NaN or infinity"),
    "infinity": (lambda: FLOATS + np.inf, "holds NaN or infinity"),
    "a truncated JPEG": (lambda: encoded("JPEG")[:-300], "not an image that can be decoded"),
    "a hundred megapixels": (huge, "12000 x 8400 pixels is more than"),
    "no bytes": (lambda: b"", "is empty: no byte of a picture arrived"),
    "an empty batch": (lambda: np.zeros((0, 8, 8, 3), np.float32), "an empty batch"),
    "a batch": (lambda: np.zeros((4, 8, 8, 3), np.uint8), r"a batch of 4 items.*submit\(\)"),
    "a picture of nothing": (lambda: np.zeros((0, 8, 3), np.uint8), "not a picture"),
    "a folder": (lambda: ".", "cannot be read|regular file"),
    "a picture larger than any": (lambda: np.zeros((12_000, 12_000, 3), np.uint8), "12000 x 12000 pixels is more than"),
    "an array without end": (lambda: np.broadcast_to(np.float32(0), (10**6, 10**6, 3)), "does not fit"),
    "a masked array": (lambda: np.ma.masked_less(tiny.RED, 30), "a masked array has no values"),
    "an open file": (lambda: io.StringIO("cat"), r"an open file.*file\.read\(\)"),
    "None": (lambda: None, "not a tensor"),
    "two inputs": (lambda: {"image": FLOATS, "other": FLOATS}, "unknown input 'other'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("ask", ["predict", "submit", "apredict"])
def test_each_mistake_is_told_and_costs_nothing_else(model, case, ask):
    value, why = BAD[case][0](), BAD[case][1]
    before = model.stats().meter.errors.get("input", 0)
    with pytest.raises(InputError, match=why) as caught:
        if ask == "apredict":
            asyncio.run(model.apredict(value))
        else:
            getattr(model, ask)(value)
    assert caught.value.do
    assert model.stats().meter.errors["input"] == before + 1
    assert model.predict(tiny.RED).top(1)[0].label == "red"


@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_what_is_far_too_large_is_never_copied(model, ask):
    giant = np.zeros((12_000, 12_000, 3), np.uint8)  # the system gives its pages when they are touched, so: never
    before = model.stats().meter.errors.get("input", 0)
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            getattr(model, ask)(giant)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 2**20
    assert model.stats().meter.errors["input"] == before + 1


PIXELS = np.ascontiguousarray(tiny.GREEN)


@pytest.mark.parametrize("value", [PIXELS.data, io.BytesIO(encoded("PNG")), array.array("B", encoded("PNG"))])
def test_buffers_are_pictures_whoever_holds_them(model, value):
    first, second = model.predict(value), model.submit(value).result(10)
    assert np.array_equal(first.outputs["probs"], second.outputs["probs"])
    assert second.source == "cache"


def test_mistakes_and_pictures_from_many_threads_are_told_apart(model):
    def ask(number):
        if number % 3 == 0:
            with pytest.raises(InputError):
                model.predict(np.zeros((number % 5 + 2, 8, 8, 3), np.uint8))
            return None
        return model.predict(Frame(tiny.BLUE, "rgb") if number % 3 == 1 else tiny.GREEN).top(1)[0].label

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(300)))
    assert told == [(None, "blue", "green")[number % 3] for number in range(300)]

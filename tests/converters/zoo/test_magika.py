"""The demo's second network: read as its own package reads it, and broken by plain INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgekit_converters.zoo.magika import file_bytes, plain_int8, save_magika

magika = pytest.importorskip("magika", reason="comes with the extra 'demo'")
pytestmark = pytest.mark.convert
FILES = sorted(Path(np.__file__).parent.rglob("*.*"))
SOME = [next(file for file in FILES if file.suffix == end) for end in (".py", ".so", ".h", ".pyc", ".npz", ".txt")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("magika") / "file_types.onnx"
    return path, save_magika(path)


def answers(model, items):
    session = onnxruntime.InferenceSession(model)
    return np.concatenate([session.run(None, {"bytes": item[None]})[0] for item in items])


def test_bytes_are_prepared_as_the_package_prepares_them(saved):
    path, names = saved
    scores = answers(path, [file_bytes(file.read_bytes()) for file in SOME])
    known = [magika.Magika().identify_path(file).dl.label for file in SOME]
    assert [names[index] for index in scores.argmax(1)] == [str(label) for label in known]


@pytest.mark.parametrize("data", [b"x", b"", b"  \n" + b"a" * 5000 + b"  "], ids=["a byte", "nothing", "blanks"])
def test_a_short_file_is_padded_and_blanks_at_the_ends_are_left_out(data):
    item = file_bytes(data)
    inside = data.strip()
    assert item.shape == (2048,)
    assert item.dtype == np.int32
    assert item[0] == (inside[0] if inside else 256)
    assert item[-1] == (inside[-1] if inside else 256)


def test_the_plain_quantizer_answers_less_than_half_as_the_original_does_and_says_nothing(saved, capfd):
    path, _ = saved
    items = [file_bytes(file.read_bytes()) for file in FILES[:: len(FILES) // 60] if file.is_file()]
    plain = plain_int8(path, items[::2])
    before, after = (answers(model, items[1::2]).argmax(1) for model in (path, plain))
    assert np.mean(before == after) < 0.5
    assert capfd.readouterr() == ("", "")

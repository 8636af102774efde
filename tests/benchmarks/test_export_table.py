"""The table of exported programs: what it counts as the same answer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import tiny
from PIL import Image

from edgekit_runtime.bundle.reader import read_bundle

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "export"


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import table

    return table


def test_another_order_is_another_answer_and_only_like_ones_are_measured(table):
    first, other = [("tiger cat", (0.5,)), ("tabby", (0.4,))], [("tiger cat", (0.45,)), ("tabby", (0.4,))]
    row = table.compared(table.Row("net", "onnx-f32", "C", pictures=2), [first, first[::-1]], [other, other])
    assert (row.same, row.best, row.pixels) == (1, 1, 0.0)
    assert row.apart == pytest.approx(0.05)
    ties = [("tabby", (0.4,)), ("tiger cat", (0.4,))]
    assert table.compared(table.Row("net", "onnx-f32", "C", pictures=1), [ties], [ties[::-1]]).same == 1
    assert table.lines("tiger cat 0.4500\ntabby 0.4000\n", 1) == other
    assert table.lines("a b 0.5 1.0 2.0 3.0 4.0\n", 5) == [("a b", (0.5, 1.0, 2.0, 3.0, 4.0))]


def test_an_engine_that_takes_no_such_file_has_no_row_and_one_that_fails_says_why(table, tmp_path, monkeypatch):
    def fails(folder, numbers, parts):
        raise RuntimeError("illegal instruction")

    path = tiny.bundle(tmp_path, "tflite-f32")
    Image.fromarray(tiny.RED).save(tmp_path / "red.png")
    monkeypatch.setattr(table, "ENGINES", {"C": table.ENGINES["C, x86-64"], "page": ("web", "tflite", fails)})
    with ExitStack() as stack:
        parts = table.Parts(tmp_path, stack)
        (row,) = table.rows(read_bundle(path), path, [tmp_path / "red.png"], parts)
    assert (row.engine, row.why) == ("page", "illegal instruction")
    assert row.why in table.markdown([row])

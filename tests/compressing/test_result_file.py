"""The result of an earlier run, of this folder or of another: read, or one typed error."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edgekit.compressing.compress_report import (
    CompressReport,
    MeasuredArtifact,
    known_rows,
    read_beside,
    report_file,
    write_report,
)
from edgekit.compressing.compress_request import CompressRequest
from edgekit_converters.recipe.conversion_errors import CompressError

ROWS = (
    MeasuredArtifact("original", "tflite-f32", "top1", 0.95, 0.95, 0.0, None, 0.0, 10_000, 5000, 3.0, 4.0),
    MeasuredArtifact("qat", "tflite-int8", "top1", 0.95, 0.94, 0.01, (0.0, 0.02), 1.0, 3000, 5000, 1.0, 2.0),
)


@pytest.fixture
def other(tmp_path):
    """A request that compares with the folder `other`, and the result there."""
    model, there = tmp_path / "net.keras", tmp_path / "other"
    request = CompressRequest(model, "train.npz", "set.npz", there, profile="raspberry-pi-4")
    there.mkdir()
    write_report(CompressReport(None, ROWS, (), "kept", kept=True), request, "k")
    asked = replace(request, output=tmp_path / "own", beside=(there,))
    return request, asked, report_file(there, model)


def test_it_comes_back(other):
    request, asked, _ = other
    assert known_rows(request, "k") == ROWS
    assert known_rows(request, "another") == ()
    (found,) = read_beside(asked)
    assert (found["profile"], len(found["rows"])) == ("raspberry-pi-4", 2)


def test_the_page_of_a_second_seed_shows_both(other):
    request, asked, _ = other
    asked.output.mkdir()
    found, why = write_report(CompressReport(None, ROWS, (), "kept", kept=True), replace(asked, seed=1), "k")
    assert found.page is not None, why
    assert "the seeds 1, 0" in found.page.read_text(encoding="utf-8")
    assert "the seeds" not in report_file(request.output, request.model).with_suffix(".html").read_text(
        encoding="utf-8"
    )


WRONG = {
    "no rows": {"rows": None}, "rows of text": {"rows": "many"}, "a row that is none": {"rows": [7]},
    "a score of text": {"rows": [{"step": "qat", "recipe": "tflite-int8", "score": "high"}]},
    "an interval of three": {"rows": [{"step": "qat", "recipe": "tflite-int8", "interval": [0.0, 0.1, 0.2]}]},
    "bytes with a fraction": {"rows": [{"step": "qat", "recipe": "tflite-int8", "bytes": 1.5}]},
    "a seed of text": {"seed": "first"}, "no seed": {"seed": None},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_is_one_error(other, name):
    request, asked, file = other
    file.write_text(json.dumps(json.loads(file.read_text()) | WRONG[name]))
    if "rows" in WRONG[name]:
        assert known_rows(request, "k") == ()
    with pytest.raises(CompressError, match="no readable result of edgekit compress"):
        read_beside(asked)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"7", b'"rows"', b"{}", b"\xff", b"[" * 100_000, b'{"rows": NaN}']
)
def test_what_is_no_object_is_one_error(other, body):
    request, asked, file = other
    file.write_bytes(body)
    assert known_rows(request, "k") == ()
    with pytest.raises(CompressError):
        read_beside(asked)


def test_flipped_bits_are_read_or_one_error(other):
    request, asked, file = other
    stored, drawn, refused = file.read_bytes(), np.random.default_rng(26), 0
    for _ in range(400):
        damaged = bytearray(stored)
        damaged[int(drawn.integers(len(stored)))] ^= 1 << int(drawn.integers(8))
        file.write_bytes(damaged)
        known_rows(request, "k")
        try:
            read_beside(asked)
        except CompressError:
            refused += 1
    assert refused > 100

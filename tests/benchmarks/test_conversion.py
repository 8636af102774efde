"""What the conversion benchmark counts with: boxes, agreement and its interval, the list of photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "conversion"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def raw(*rows):
    """The detector's raw output: x, y, width, height, class, score."""
    answer = np.zeros((144, 14), np.float32)
    for i, (x, y, width, height, kind, score) in enumerate(rows):
        answer[i, :4] = x, y, width, height
        answer[i, 4 + kind] = score
    return answer


def test_of_two_boxes_of_one_thing_the_surer_one_is_kept():
    from detection import boxes

    found = boxes(raw((30, 30, 20, 20, 3, 0.6), (31, 30, 20, 20, 3, 0.9), (70, 70, 20, 20, 1, 0.4)))
    assert found[:, 5].tolist() == pytest.approx([0.9, 0.4])


def test_every_truth_found_once_is_a_map_of_one_and_a_missing_class_halves_it():
    from detection import boxes, mean_average_precision

    truth = [np.array([[20, 20, 40, 40, 3, 1], [60, 60, 80, 80, 1, 1]], np.float32)]
    both = boxes(raw((30, 30, 20, 20, 3, 0.9), (70, 70, 20, 20, 1, 0.8)))
    assert mean_average_precision([both], truth) == 1.0
    assert mean_average_precision([both[:1]], truth) == 0.5


def test_a_second_box_on_a_truth_that_was_found_is_a_false_alarm():
    from detection import mean_average_precision

    truth = [np.array([[20, 20, 40, 40, 3, 1], [60, 60, 80, 80, 3, 1]], np.float32)]
    twice = np.array([[20, 20, 40, 40, 3, 0.9], [21, 20, 41, 40, 3, 0.8], [60, 60, 80, 80, 3, 0.7]], np.float32)
    assert mean_average_precision([twice], truth) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_encoded_targets_decode_to_the_same_boxes():
    from detection import boxes, encoded

    truth = np.array([[20, 24, 38, 50, 7, 1]], np.float32)
    assert boxes(encoded([truth])[0]).tolist() == truth.tolist()


@pytest.mark.parametrize(("hits", "items"), [(500, 500), (0, 20), (471, 500)])
def test_the_interval_holds_the_share_and_stays_within_0_and_1(hits, items):
    from scoring import wilson

    low, high = wilson(hits, items)
    assert 0 <= low <= hits / items <= high <= 1
    assert high - low > 0


def test_no_photo_is_both_compared_on_and_calibrated_with():
    from photos import CALIBRATED, COMPARED, crops

    compare, calibrate = crops("compare"), crops("calibrate")
    assert (len(compare), len(calibrate)) == (COMPARED, CALIBRATED)
    assert not {(c.source, c.file) for c in compare} & {(c.source, c.file) for c in calibrate}
    assert len({c.sha256 for c in compare}) == COMPARED
    assert all(len(c.sha256) == 64 and c.sure is not None for c in compare)


def test_a_cell_with_a_reason_is_a_line_of_the_table():
    from tables import markdown, printed

    cell = {
        "agreement": 0.942,
        "ci95": [0.918, 0.959],
        "cosine": 0.989,
        "bytes": 5,
        "float_bytes": 18,
        "float_macs": 0.0,
    }
    found = {"fer": {"TensorFlow INT8": cell, "NNCF": {"reason": "does not run: | it says"}}}
    assert "94.2 % (91.8-95.9)" in printed(found)
    assert "| NNCF | does not run: / it says |" in markdown(found, {"cpu": "x"})

"""What likeness would cost is measured on the user's own frames, by the very tier that would answer."""

from __future__ import annotations

import json

import memory
import pytest
import tiny
from PIL import Image

from benchmarks.runtime.similarity import THRESHOLDS, lines_of, main, measure_similarity
from edgekit.bench.inputs import InputsError


def frames(folder, pictures):
    folder.mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"frame{number}.png")
    return folder


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


def row(found, threshold):
    return next(one for one in found["thresholds"] if one["threshold"] == threshold)


def test_a_still_scene_is_answered_by_its_first_frame(bundle, tmp_path):
    found = measure_similarity(bundle, frames(tmp_path / "f", [tiny.RED] * 12), [1.0])
    still = row(found, 1.0)
    assert (found["frames"], still["answered"], still["wrong"], still["agreement"]) == (12, 11, 0, 1.0)
    assert found["suggested"] == 1.0


def test_a_cut_is_never_answered_by_the_scene_before(bundle, tmp_path):
    found = measure_similarity(bundle, frames(tmp_path / "f", [tiny.RED, tiny.BLUE] * 6), [4.0, 300.0])
    near, far = row(found, 4.0), row(found, 300.0)
    assert near["agreement"] == 1.0
    assert far["wrong"] == 6
    assert far["agreement_low"] < far["agreement"] < 0.99
    assert found["suggested"] == 4.0


def test_a_wrong_answer_is_shown_with_its_frame(bundle, tmp_path):
    fading = [tiny.colour(230 - 15 * k, 20, 20 + 15 * k) for k in range(15)]
    worst = row(measure_similarity(bundle, frames(tmp_path / "f", fading), [1000.0]), 1000.0)["worst"]
    assert not worst["agrees"]
    assert worst["frame"].endswith("frame14.png")


def test_frames_are_taken_in_the_order_of_their_numbers(bundle, tmp_path):
    slow = [tiny.colour(200 - k, 20, 20) for k in range(12)]
    found = measure_similarity(bundle, frames(tmp_path / "f", slow), [1.0])
    assert found["changes"]["p99"] == pytest.approx(1.0, abs=0.01)


def test_the_age_limit_counts_where_the_rate_is_known(bundle, tmp_path):
    folder = frames(tmp_path / "f", [tiny.RED] * 12)
    found = measure_similarity(bundle, folder, [1.0], frames_per_s=2.0)
    assert row(found, 1.0)["answered"] == 9  # every fourth frame is older than two seconds


def test_what_cannot_be_read_is_named_and_left_out(bundle, tmp_path):
    folder = frames(tmp_path / "f", [tiny.RED] * 3)
    (folder / "broken.png").write_bytes(b"no picture")
    found = measure_similarity(bundle, folder, [1.0])
    assert found["frames"] == 3
    assert [one["file"] for one in found["unreadable"]] == [str(folder / "broken.png")]
    assert any("broken.png" in line for line in lines_of(found))


@pytest.mark.parametrize("pictures", [[], [tiny.RED]])
def test_too_few_frames_are_a_clear_error(bundle, tmp_path, pictures):
    with pytest.raises(InputsError):
        measure_similarity(bundle, frames(tmp_path / "f", pictures))


def test_a_folder_that_is_not_there_is_said_to_be_missing(bundle, tmp_path):
    with pytest.raises(InputsError, match="no such folder"):
        measure_similarity(bundle, tmp_path / "gone")


def test_a_model_that_keeps_a_state_is_said_to(tmp_path):
    folder = frames(tmp_path / "f", [tiny.RED] * 3)
    with pytest.raises(InputsError, match="keeps state"):
        measure_similarity(memory.bundle(tmp_path, memory.HERE[0]), folder)


def test_a_person_is_told_a_threshold_or_that_there_is_none(bundle, tmp_path):
    told = lines_of(measure_similarity(bundle, frames(tmp_path / "f", [tiny.RED] * 5)))
    assert "suggested: 32" in told[-1]
    told = lines_of(measure_similarity(bundle, frames(tmp_path / "g", [tiny.RED, tiny.BLUE] * 3), [1000.0]))
    assert "no threshold" in told[-1]
    assert any("first wrong at" in line for line in told)


def test_the_command_prints_a_row_a_threshold_and_one_error(bundle, tmp_path, capsys):
    folder = frames(tmp_path / "f", [tiny.RED] * 3)
    assert main([str(bundle), str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["thresholds"]) == len(THRESHOLDS)
    assert main([str(bundle), str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("error: ")

"""A metric's values in words: shares in per cent, everything else in its own unit."""

from __future__ import annotations

import pytest

from edgekit.report import words


@pytest.mark.parametrize(
    ("metric", "found", "said"),
    [
        ("top1", 0.85, "85.0 %"),
        ("miou", 0.7614, "76.1 %"),
        (None, 1.0, "100.0 %"),
        ("mae", 0.0123456, "0.01235"),
        ("own:rmse", 2186.473, "2186"),
        ("own:rmse", 92.479, "92.48"),
        ("own:rmse", 1234567.8, "1234568"),
        ("own:rmse", 1.5e12, "1.5e+12"),
        ("own:rmse", 3.2e-9, "3.2e-09"),
        ("own:psnr", 30.0, "30"),
        ("own:psnr", 0.0, "0"),
    ],
)
def test_only_what_is_known_to_be_a_share_is_shown_as_one(metric, found, said):
    assert words.score(found, metric) == said


@pytest.mark.parametrize(
    ("metric", "drop", "original", "said"),
    [
        ("top1", 0.0512, 0.9, "+5.1"),
        ("top1", -0.0004, 0.9, "+0.0"),
        ("mae", 0.01234, 0.5, "+0.0123"),
        ("own:rmse", 2093.994, 92.48, "+2094"),
        ("own:rmse", -1e-6, 92.48, "0"),
        ("own:rmse", -4.0, 92.48, "-4"),
    ],
)
def test_a_change_has_a_sign_unless_it_is_none(metric, drop, original, said):
    assert words.change(metric, drop, original) == said


@pytest.mark.parametrize(
    ("score", "said"), [(0.375, "37.5 %"), (1.0000001, "100.0 %"), (2.286, "2.286"), (-0.5, "-0.5"), (0.0, "0.0 %")]
)
def test_a_score_that_can_be_no_probability_is_never_shown_as_one(score, said):
    assert words.confidence(score) == said

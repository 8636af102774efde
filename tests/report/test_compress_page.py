"""The page of `edgekit compress`: what its figure shows of one seed and of several, and when a step is called noise."""

from __future__ import annotations

import re

import pytest

from edgekit.report.compress_page import _estimated, _here, page, step_dots, summary

PLAIN, QAT = "plain INT8", "qat"


def _row(step, recipe, score, **others):
    score, interval = (score, [0.9 - score - 0.01, 0.9 - score + 0.01]) if score else (None, None)
    given = {
        "metric": "top1",
        "original": 0.9,
        "drop": 0.9 - (score or 0),
        "interval": interval,
        "failed": "",
        "macs": 10,
    }
    times = {"low_ms": 0.5, "ms": 1.0, "high_ms": 2.0, "here_ms": 0.1, "bytes": 1000, "packed_bytes": 500}
    return {"step": step, "recipe": recipe, "score": score, **given, **times, **others}


def _result(scores=(0.8, 0.88), ci95=(0.05, 0.11), seed=0, why=""):
    points = scores[1] - scores[0]
    gain = {"of": PLAIN, "recipe": "tflite-int8", "metric": "top1", "points": points, "ci95": list(ci95)}
    return {
        "name": "net", "profile": "raspberry-pi-4", "seed": seed, "kept": True, "verdict": "it is better",
        "rows": [_row("original", "tflite-f32", 0.9, ms=4.0, low_ms=3.0, high_ms=5.0),
                 *(_row(step, "tflite-int8", score) for step, score in zip((PLAIN, QAT), scores, strict=True))],
        "steps": [{"step": QAT, "kept": not why, "why": why, "gain": gain}],
    }  # fmt: skip


def _dots(results, time=_estimated):
    return {dot.name.rpartition(",")[0]: dot for dot in step_dots(summary(results), time) if dot.name}


def test_a_mark_stands_at_score_and_milliseconds_with_both_intervals():
    dot = _dots([_result()])[QAT]
    assert (dot.x, dot.y, dot.across) == (1.0, pytest.approx(0.88), (0.5, 2.0))
    assert dot.up == pytest.approx((0.87, 0.89))
    assert (dot.shape, dot.hue) == ("circle", "h2")
    assert _dots([_result()], _here)[QAT].x == 0.1


def test_an_interval_that_holds_zero_makes_the_mark_hollow_and_is_called_noise():
    result = _result(scores=(0.875, 0.88), ci95=(-0.002, 0.012))
    assert _dots([result])[QAT].hue == "h2 hollow"
    assert "within the noise" in page([result]).partition("<table>")[2]
    assert "within the noise" not in page([_result()]).partition("<table>")[2]


def test_several_seeds_show_their_mean_their_ends_and_each_seed():
    results = [_result((0.80, 0.88)), _result((0.78, 0.90), seed=1), _result((0.82, 0.86), seed=2)]
    found = {one.step: one for one in summary(results)}[QAT]
    assert found.score == pytest.approx(0.88)
    assert (found.low, found.high) == (0.86, 0.90)
    assert found.note == "kept with 3 of 3 seeds"
    assert found.gain[0] == pytest.approx(0.08)
    assert found.noise, "gains of 4 to 12 points with three seeds: 0.08 - 4.30 * 0.04 / sqrt(3) is below zero"
    small = [dot.y for dot in step_dots(summary(results), _estimated) if not dot.name]
    assert sorted(small[-3:]) == pytest.approx([0.86, 0.88, 0.90])
    assert "seeds 0, 1, 2" in page(results)


def test_an_error_grows_by_shares_of_the_originals():
    result, grown = _result(), {"drop": 0.25, "interval": [0.2, 0.4], "error": True}
    for row in result["rows"]:
        row.update({"metric": "mae", "original": 2.0, "score": 2.5} | grown)
    found = summary([result])[-1]
    assert (found.low, found.high) == pytest.approx((2.4, 2.8))
    assert "+8.0 % (" in page([result])


def test_what_failed_or_has_no_time_is_a_row_and_no_mark():
    result = _result(why="it takes no less time </script>")
    result["rows"].append(_row("qat", "onnx-int8-qdq", None, failed="no converter", metric=None))
    for row in result["rows"]:
        row.update({"ms": None, "low_ms": None, "high_ms": None})
    text = page([result])
    assert step_dots(summary([result]), _estimated) == []
    assert "no converter" in text
    assert "not kept: it takes no less time &lt;/script&gt;" in text
    (figure,) = re.findall(r'<figure class="chart.*?</figure>', text, re.DOTALL)
    assert re.findall(r"</svg>([^<]+)</span>", figure) == ["original", PLAIN, QAT]

"""A chart is read without a script, by whoever reads it: steps, gaps, escapes, axes, and hues that are told apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.charts import chart as charts
from edgekit.charts.chart import HUES, Axis, Chart, number_axis, rounded, time_axis

CSS = (Path(charts.__file__).parent / "static" / "chart.css").read_text(encoding="utf-8")
HOUR_MS = 3_600_000


def drawn(y: Axis | None = None) -> Chart:
    return Chart("latency", Axis(0.0, 100.0), y or Axis(0.0, 10.0))


def paths(chart: Chart) -> list[str]:
    return re.findall(
        r'<path class="(?:line|block) [^"]*" d="([^"]*)"', chart.__html__().partition('viewBox="0 0 1000')[2]
    )


def test_a_value_stands_over_its_time_and_a_time_without_one_is_a_gap() -> None:
    chart = drawn()
    chart.steps("p99", [(0, 10, 5.0), (10, 20, 8.0), (20, 30, None), (60, 70, 2.0)], "h0", " ms")
    assert paths(chart) == ["M0.0 500.0H100.0V200.0H200.0M600.0 800.0H700.0"]
    assert 'aria-label="latency; p99 2 to 8 ms"' in chart.__html__()


def test_blocks_stand_on_each_other() -> None:
    chart = drawn()
    chart.stack(["queue", "inference"], [(0, 50, {"queue": 2.0, "inference": 3.0}), (50, 100, {"inference": 4.0})])
    queue, inference = paths(chart)
    assert queue == "M0.0 1000.0V800.0H500.0V1000.0Z"
    assert inference == "M0.0 800.0V500.0H500.0V800.0ZM500.0 1000.0V600.0H1000.0V1000.0Z"


def test_a_name_is_text_and_what_cannot_be_seen_in_it_is_shown() -> None:
    chart, name = (
        Chart("latency", Axis(0.0, 100.0, moments=True), Axis(0.0, 9.0)),
        '</svg><script>alert("x")</script>\u202e',
    )
    chart.key(name, "h0")
    chart.mark(50, name)
    chart.dot(1, 1, "h0", title=name)
    chart.word(1, 1, name, 9, 0)
    chart.steps(name, [(0, 1, 1.0)], "h0")
    page = chart.__html__()
    assert "<script" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;") == 7


def test_names_of_marks_stand_above_the_plot_where_each_has_room() -> None:
    chart = drawn()
    for at, name in ((10, "digits 2"), (12, "digits 3"), (97, "digits 4"), (14, "digits 5"), (16, "digits 6")):
        chart.mark(at, name)
    page = chart.__html__()
    rows = re.findall(r"<text (class=\"end\" )?x=\"([^\"]+)\" dy=\"(-\d+)\">([^<]+)</text>", page)
    assert [(name, int(dy)) for _, _, dy, name in rows] == [
        ("digits 2", -6), ("digits 3", -20), ("digits 4", -6), ("digits 5", -34)
    ]  # fmt: skip
    assert [end for end, *_ in rows if end] == ['class="end" '], "the last one ends at the plot's edge"
    assert page.count('class="mark"') == 5
    assert "plot m3" in page


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1), st.sampled_from([" ms", ""]))
def test_a_number_axis_holds_its_values_and_zero(values: list[float], unit: str) -> None:
    axis = number_axis(values, unit)
    ticks = [tick for tick, _ in axis.ticks]
    assert axis.low <= min(0.0, *values)
    assert axis.high >= max(0.0, *values)
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(ticks)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_round_values_are_few_and_within(low: float, width: float) -> None:
    found = rounded(low, low + width)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * width - 1e-3 <= value <= low + width + 1e-6 * width + 1e-3 for value in found)


@given(st.integers(1_500_000_000_000, 1_900_000_000_000), st.integers(120_000, 14 * 24 * HOUR_MS))
def test_a_time_axis_has_six_moments_at_most_within_it(low: int, length: int) -> None:
    axis = time_axis(low, low + length)
    assert 1 <= len(axis.ticks) <= 7
    assert all(low <= at <= low + length for at, _ in axis.ticks)


def test_an_axis_may_be_logarithmic_or_turned_round() -> None:
    assert Axis(1.0, 100.0, log=True).at(10.0) == pytest.approx(50.0)
    assert Axis(10.0, 0.0).at(10.0) == 0.0


SEEN = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""What is left of linear RGB: Machado, Oliveira and Fernandes, 2009, severity 1."""


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def lab(colour: str, seen: str) -> tuple[float, float, float]:
    rgb = [min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear(colour), strict=True)))) for row in SEEN[seen]]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8727))
    xyz = (sum(weight * part for weight, part in zip(row, rgb, strict=True)) for row in to_xyz)
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def themes() -> Iterator[tuple[str, list[str]]]:
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    for ground, found in (("#ffffff", light), ("#1b211e", dark)):
        yield ground, re.findall(r"--h\d: (#[0-9a-f]{6})", found)


@pytest.mark.parametrize("seen", SEEN)
def test_hues_are_told_apart_by_readers_who_see_fewer_colours(seen: str) -> None:
    for _, hues in themes():
        assert len(hues) == HUES
        for one, other in itertools.combinations(hues, 2):
            apart = sum((a - b) ** 2 for a, b in zip(lab(one, seen), lab(other, seen), strict=True)) ** 0.5
            assert apart > 25, (one, other)


def test_lines_stand_out_from_their_ground_and_differ_by_dash() -> None:
    for ground, hues in themes():
        for hue in hues:
            lighter, darker = sorted((luminance(hue), luminance(ground)), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (hue, ground)
    dashes = re.findall(r"\.d(\d)[^{}]*\{ stroke-dasharray: ([^;]+);", CSS)
    assert sorted(n for n, _ in dashes) == [str(n) for n in range(1, HUES)]
    assert len({dash for _, dash in dashes}) == HUES - 1


def test_an_axis_of_one_value_has_it_in_the_middle():
    assert Axis(3.0, 3.0).at(3.0) == 50.0

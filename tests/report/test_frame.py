"""Axes and labels that can be read, of one dot as of many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.report.figures import Axes, Dot, decades


def test_a_share_has_no_tick_above_all_of_it() -> None:
    axis = Axes.of([Dot("", 1.0, 0.9999, 9.0)], share=True).y
    assert axis.ticks[-1] == (1.0, "100.0 %")
    assert 0.98 <= axis.low < 0.991


@pytest.mark.parametrize("value", [0.9999, 0.5, 0.0])
def test_one_artifact_has_more_than_one_tick_on_either_axis(value: float) -> None:
    axes = Axes.of([Dot("", 0.31, value, 9.0)], share=True)
    assert len(axes.x.ticks) >= 2
    assert len({text for _, text in axes.y.ticks}) == len(axes.y.ticks) >= 2


def test_an_error_in_its_own_unit_stands_higher_where_it_is_less() -> None:
    axis = Axes.of([Dot("", 1.0, 92.5, 9.0), Dot("", 2.0, 2186.0, 9.0)], inverted=True).y
    assert axis.high < 92.5
    assert axis.low > 2186
    assert all(float(text) == tick for tick, text in axis.ticks)
    assert "2000" in [text for _, text in axis.ticks]


def test_names_of_neighbours_stand_on_different_sides() -> None:
    dots = [
        Dot("tflite-int8", 1.0, 0.95, 20.0),
        Dot("onnx-int8-qdq", 1.02, 0.9501, 20.0),
        Dot("tflite-f32", 1.5, 0.95, 40.0),
    ]
    places = Axes.of(dots, share=True).places(dots)
    assert places["tflite-int8"] != places["onnx-int8-qdq"]


def test_decades_are_few_whatever_they_span() -> None:
    assert decades([0.5, 1e-5, None]) == [1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001]
    assert len(decades([1.0, 1e-30])) <= 7
    assert len(decades([None])) == len(decades([1.0])) == 2


@given(
    st.lists(st.tuples(st.floats(1e-4, 1e5), st.floats(1.0, 9.0)), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
)
def test_every_axis_has_ticks_inside_its_range(spans: list[tuple[float, float]], values: list[float]) -> None:
    wide = [Dot("", low, values[0], 9.0, across=(low, low * wider)) for low, wider in spans]
    axes = Axes.of([*wide, *(Dot("", spans[0][0], value, 9.0) for value in values)], share=True)
    assert all(axes.y.low - 1e-9 <= tick <= axes.y.high + 1e-9 for tick, _ in axes.y.ticks)
    assert 2 <= len(axes.x.ticks) <= 12

"""Axes and labels that can be read, of one dot as of many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.report.figures import Axes, AxisMarks, Dot, decades


def test_a_share_has_no_tick_above_all_of_it() -> None:
    axis = Axes.of([(1.0, 2.0)], AxisMarks([0.9999], share=True, least=0.002)).y_axis
    assert axis["ticktext"][-1].startswith("100")
    assert max(axis["tickvals"]) == 1.0
    assert axis["range"][0] >= 0.99


@pytest.mark.parametrize("value", [0.9999, 0.5, 0.0])
def test_one_artifact_has_more_than_one_tick_on_either_axis(value: float) -> None:
    frame = Axes.of([(0.31, 0.32)], AxisMarks([value], share=True, least=0.002))
    assert len(frame.x_axis["tickvals"]) >= 2
    assert len(frame.y_axis["tickvals"]) >= 2
    assert len(set(frame.y_axis["ticktext"])) == len(frame.y_axis["ticktext"])


def test_an_error_in_its_own_unit_stands_higher_where_it_is_less() -> None:
    axis = Axes.of([(1.0, 2.0)], AxisMarks([92.5, 2186.0], inverted=True)).y_axis
    top, bottom = axis["range"][1], axis["range"][0]
    assert top < 92.5
    assert bottom > 2186
    assert all("%" not in text for text in axis["ticktext"])
    assert all(float(text) == tick for text, tick in zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert "2000" in axis["ticktext"]


def test_names_of_neighbours_stand_on_different_sides() -> None:
    dots = [
        Dot("tflite-int8", 1.0, 0.95, 20.0),
        Dot("onnx-int8-qdq", 1.02, 0.9501, 20.0),
        Dot("tflite-f32", 1.5, 0.95, 40.0),
    ]
    places = Axes.of([(0.8, 2.0)], AxisMarks([0.9, 1.0], share=True)).places(dots)
    assert places["tflite-int8"] != places["onnx-int8-qdq"]


def test_decades_are_few_whatever_they_span() -> None:
    assert decades([{"y": [0.5, 1e-5, None]}]) == [1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001]
    assert len(decades([{"y": [1.0, 1e-30]}])) <= 7
    assert decades([{"y": [None]}])


@given(
    st.lists(st.tuples(st.floats(1e-4, 1e5), st.floats(1.0, 9.0)), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
)
def test_every_axis_has_ticks_inside_its_range(spans: list[tuple[float, float]], values: list[float]) -> None:
    frame = Axes.of([(low, low * wider) for low, wider in spans], AxisMarks(values, share=True, least=0.002))
    low, high = frame.y
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in frame.y_axis["tickvals"])
    assert 2 <= len(frame.x_axis["tickvals"]) <= 12

"""Axes and labels of the trade-off: ticks where there is something to read, and names that do not cover each other.

frame = Frame.of([(0.25, 0.58), (0.6, 1.4)], Marks([0.998, 1.0], share=True))
frame.x_axis, frame.y_axis, frame.places([Dot("tflite-int8", 0.33, 0.998, 20.0)])

Rules: an axis has two ticks at least, whatever little it shows; a share has none above 1; a name stands where it covers the least
of the dots and of the names before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit import scores

__all__ = ["Dot", "Frame", "Marks", "decades"]

_WIDTH, _HEIGHT = 900.0, 300.0  # of the drawing, in pixels, on a screen of ordinary width
_LETTER, _LINE = 7.0, 16.0
_STRUCK = 200.0  # the bar of a latency's range strikes through a name at a dot's side
_PLACES = {
    "top center": (0.0, 1.0),
    "bottom center": (0.0, -1.0),
    "middle right": (1.0, 0.0),
    "middle left": (-1.0, 0.0),
    "top right": (1.0, 1.0),
    "bottom right": (1.0, -1.0),
    "top left": (-1.0, 1.0),
    "bottom left": (-1.0, -1.0),
}

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Dot:
    """name: written beside it. x, y: in the axes' units. diameter: pixels."""

    name: str
    x: float
    y: float
    diameter: float


@dataclass(frozen=True)
class Marks:
    """What the vertical axis shows. share: of 1. turned: less is better, and stands higher. least: the least height of the axis."""

    values: Sequence[float]
    share: bool = False
    turned: bool = False
    least: float = 0.0


@dataclass(frozen=True)
class Frame:
    """x: ends of the horizontal axis, in powers of ten. y: of the vertical one, the lower end first."""

    x: tuple[float, float]
    y: tuple[float, float]
    marks: Marks

    @classmethod
    def of(cls, spans: Sequence[tuple[float, float]], marks: Marks) -> Frame:
        """spans: the (low, high) of each latency, ms."""
        lows, highs = ([max(span[end], 1e-9) for span in spans] for end in (0, 1))
        start, end = math.log10(min(lows)) - 0.15, math.log10(max(highs)) + 0.15
        while len(_one_two_five(start, end)) < 2:
            start, end = start - 0.1, end + 0.1
        return cls((start, end), _heights(marks), marks)

    @property
    def x_axis(self) -> dict[str, Any]:
        ticks = _one_two_five(*self.x)
        step = max(1, math.ceil(len(ticks) / 12))
        return {
            "type": "log",
            "range": list(self.x),
            "tickvals": ticks[::step],
            "ticktext": [f"{t:g}" for t in ticks[::step]],
        }

    @property
    def y_axis(self) -> dict[str, Any]:
        low, high = sorted(self.y)
        ticks, places = _ticks(low, min(high, 1.0) if self.marks.share else high)
        texts = [f"{100 * t:.{max(0, places - 2)}f} %" if self.marks.share else scores.number(t) for t in ticks]
        return {"range": list(self.y), "tickvals": ticks, "ticktext": texts}

    def places(self, dots: Sequence[Dot]) -> dict[str, str]:
        """Where each name stands, as plotly calls it."""
        boxes = [self._box(dot, dot.diameter, dot.diameter) for dot in dots]
        found: dict[str, str] = {}
        for dot in sorted(dots, key=lambda dot: (dot.x, dot.y)):
            options = {place: self._label(dot, toward) for place, toward in _PLACES.items()}
            own = self._box(dot, dot.diameter, dot.diameter)
            others = [box for box in boxes if box != own]
            costs = {
                place: self._cost(box, others) + _STRUCK * place.startswith("middle") for place, box in options.items()
            }
            found[dot.name] = min(options, key=lambda place: costs[place])
            boxes.append(options[found[dot.name]])
        return found

    def _at(self, dot: Dot) -> tuple[float, float]:
        across = (math.log10(max(dot.x, 1e-9)) - self.x[0]) / (self.x[1] - self.x[0])
        up = (dot.y - self.y[0]) / (self.y[1] - self.y[0])
        return across * _WIDTH, up * _HEIGHT

    def _box(self, dot: Dot, width: float, height: float) -> Box:
        x, y = self._at(dot)
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2

    def _label(self, dot: Dot, toward: tuple[float, float]) -> Box:
        x, y = self._at(dot)
        width, gap = _LETTER * len(dot.name), dot.diameter / 2 + 2
        x, y = x + toward[0] * (gap + width / 2), y + toward[1] * (gap + _LINE / 2)
        return x - width / 2, y - _LINE / 2, x + width / 2, y + _LINE / 2

    def _cost(self, box: Box, others: Sequence[Box]) -> float:
        inside = _common(box, (0.0, 0.0, _WIDTH, _HEIGHT))
        return sum(_common(box, other) for other in others) + (_area(box) - inside)


def decades(traces: Sequence[Mapping[str, Any]]) -> list[float]:
    """Powers of ten for a logarithmic axis of what the traces show, six at most."""
    shown = [value for trace in traces for value in trace["y"] if value]
    low, high = (math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))) if shown else (-1, 0)
    return [10.0**power for power in range(high, low - 1, -max(1, math.ceil((high - low) / 5)))]


def _heights(marks: Marks) -> tuple[float, float]:
    low, high = min(marks.values), max(marks.values)
    least = marks.least if marks.share else 0.05 * max(abs(low), abs(high)) or 1.0
    room = max(0.25 * (high - low), least / 2)
    low, high = low - room, high + room
    if marks.share:  # room for a name above 100 %, and no more
        high = min(high, 1.0 + 0.2 * max(1.0 - low, least))
    return (high, low) if marks.turned else (low, high)


def _one_two_five(start: float, end: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two powers of ten."""
    powers = range(math.floor(start), math.ceil(end) + 1)
    return [
        each
        for power in powers
        for each in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if start <= math.log10(each) <= end
    ]


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Three to seven round values, and their decimal places."""
    rough = max(high - low, 1e-12) / 5
    power = math.floor(math.log10(rough))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= rough * (1 - 1e-9))
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step - 1e-9)
    count = int((high / step + 1e-9) - first) + 1
    return [round((first + i) * step, places + 2) for i in range(max(count, 1))], places


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _common(one: Box, other: Box) -> float:
    return _area((max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])))

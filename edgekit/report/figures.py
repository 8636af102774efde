"""The report's charts, as plotly's own JSON: data, layout, axes and labels.

    tradeoff(board, report)["data"]        # one trace a group of candidates
    frame = Axes.of([(0.25, 0.58), (0.6, 1.4)], AxisMarks([0.998, 1.0], share=True))
    frame.x_axis, frame.y_axis, frame.places([Dot("tflite-int8", 0.33, 0.998, 20.0)])

Rules: an axis has two ticks at least, whatever little it shows; a share has none above 1; a name stands where it covers
the least of the dots and of the names before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from edgekit.report import words
from edgekit.report.view import BoardView, CandidateView, HistogramView, ReportView

_WIDTH, _HEIGHT = 900.0, 300.0  # of the drawing, in pixels, on a screen of ordinary width
_NARROW = 280.0  # on a phone
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
Figure = dict[str, Any]


@dataclass(frozen=True)
class Dot:
    """name: written beside it. x, y: in the axes' units. diameter: pixels."""

    name: str
    x: float
    y: float
    diameter: float


@dataclass(frozen=True)
class AxisMarks:
    """What the vertical axis shows.

    share: whether values are shares of 1
    inverted: whether less is better, and drawn higher
    least: the least height of the axis
    """

    values: Sequence[float]
    share: bool = False
    inverted: bool = False
    least: float = 0.0


@dataclass(frozen=True)
class Axes:
    """x: ends of the horizontal axis, in powers of ten
    y: ends of the vertical axis, the lower one first
    width: pixels of the drawing
    """

    x: tuple[float, float]
    y: tuple[float, float]
    marks: AxisMarks
    width: float = _WIDTH

    @classmethod
    def of(cls, spans: Sequence[tuple[float, float]], marks: AxisMarks) -> Axes:
        """spans: the (low, high) of each latency, ms."""
        lows, highs = ([max(span[end], 1e-9) for span in spans] for end in (0, 1))
        start, end = math.log10(min(lows)) - 0.15, math.log10(max(highs)) + 0.15
        while len(_one_two_five(start, end)) < 2:
            start, end = start - 0.1, end + 0.1
        low, high = min(marks.values), max(marks.values)
        least = marks.least if marks.share else 0.05 * max(abs(low), abs(high)) or 1.0
        room = max(0.25 * (high - low), least / 2)
        low, high = low - room, high + room
        if marks.share:  # room for a name above 100 %, and no more
            high = min(high, 1.0 + 0.2 * max(1.0 - low, least))
        return cls((start, end), (high, low) if marks.inverted else (low, high), marks)

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
        """Three to seven round values."""
        low, high = sorted(self.y)
        high = min(high, 1.0) if self.marks.share else high
        rough = max(high - low, 1e-12) / 5
        power = math.floor(math.log10(rough))
        step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= rough * (1 - 1e-9))
        places = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(low / step - 1e-9)
        count = int((high / step + 1e-9) - first) + 1
        ticks = [round((first + i) * step, places + 2) for i in range(max(count, 1))]
        texts = [f"{100 * t:.{max(0, places - 2)}f} %" if self.marks.share else words.score_number(t) for t in ticks]
        return {"range": list(self.y), "tickvals": ticks, "ticktext": texts}

    def places(self, dots: Sequence[Dot]) -> dict[str, str]:
        """Where each name stands, as plotly calls it."""
        boxes = [self._box(dot, dot.diameter, dot.diameter) for dot in dots]
        found: dict[str, str] = {}
        for dot in sorted(dots, key=lambda dot: (dot.x, dot.y)):
            own = self._box(dot, dot.diameter, dot.diameter)
            others = [box for box in boxes if box != own]
            (x, y), width, gap = self._at(dot), _LETTER * len(dot.name), dot.diameter / 2 + 2
            costs: dict[str, tuple[float, Box]] = {}
            for place, (right, up) in _PLACES.items():
                left, bottom = x + right * (gap + width / 2) - width / 2, y + up * (gap + _LINE / 2) - _LINE / 2
                box = (left, bottom, left + width, bottom + _LINE)
                outside = _area(box) - _common(box, (0.0, 0.0, self.width, _HEIGHT))
                covered = sum(_common(box, other) for other in others)
                costs[place] = (covered + outside + _STRUCK * place.startswith("middle"), box)
            found[dot.name] = min(costs, key=lambda place: costs[place][0])
            boxes.append(costs[found[dot.name]][1])
        return found

    def _at(self, dot: Dot) -> tuple[float, float]:
        across = (math.log10(max(dot.x, 1e-9)) - self.x[0]) / (self.x[1] - self.x[0])
        up = (dot.y - self.y[0]) / (self.y[1] - self.y[0])
        return across * self.width, up * _HEIGHT

    def _box(self, dot: Dot, width: float, height: float) -> Box:
        x, y = self._at(dot)
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def decades(traces: Sequence[Mapping[str, Any]]) -> list[float]:
    """Powers of ten for a logarithmic axis of what the traces show, six at most."""
    shown = [value for trace in traces for value in trace["y"] if value]
    low, high = (math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))) if shown else (-1, 0)
    return [10.0**power for power in range(high, low - 1, -max(1, math.ceil((high - low) / 5)))]


def _one_two_five(start: float, end: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two powers of ten."""
    powers = range(math.floor(start), math.ceil(end) + 1)
    return [
        each
        for power in powers
        for each in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if start <= math.log10(each) <= end
    ]


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _common(one: Box, other: Box) -> float:
    return _area((max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])))


_CHOSEN, _BESIDE, _OTHER, _REFUSED, _THEIRS = "#2f6f5e", "#5b6fae", "#8aa39b", "#c98a7c", "#b3872e"
_ANOTHER_TOOL = "another tool's, not in the bundle"
LINES = ("#2f6f5e", "#b3672e", "#5b6fae", "#8a4f8f", "#6b6b2f", "#3a8a9e")
_CLEAN_DB = 80.0
"""The end of the axis: above this a layer is as good as float."""
_SMALLEST, _LARGEST = 6.0, 40.0


def tradeoff(board: BoardView, report: ReportView) -> Figure | None:
    """Latency against quality on one board; None without latencies. Areas show file sizes."""
    estimates = board.estimates
    shown = [c for c in report.candidates if c.recipe in estimates and c.quality is not None]
    if not shown:
        return None
    # the vertical axis: a share that ends at 1, or a metric in its own unit, inverted where less is better
    qualities = [float(c.quality) for c in shown if c.quality is not None]
    marks = AxisMarks(qualities, inverted=any(c.counts_errors for c in shown))
    if report.in_points:
        marks = AxisMarks(qualities, share=True, least=0.002 if report.metric is None else 0.02)
    frame = Axes.of([(estimates[c.recipe]["low_ms"], estimates[c.recipe]["high_ms"]) for c in shown], marks)
    # Recipe -> a dot whose area is in proportion to the file's size, the largest file's the largest that has room
    largest = max((c.bytes or 0 for c in shown), default=0) or 1
    diameters = {c.recipe: max(_SMALLEST, _LARGEST * ((c.bytes or 0) / largest) ** 0.5) for c in shown}
    dots = [
        Dot(c.recipe, float(estimates[c.recipe]["mid_ms"]), float(c.quality or 0.0), diameters[c.recipe]) for c in shown
    ]
    places, on_a_phone = frame.places(dots), replace(frame, width=_NARROW).places(dots)
    refused = {r["recipe"]: r for r in board.json.get("refused") or ()}
    traces = []
    for title, colour, members in (
        ("chosen", _CHOSEN, [c for c in shown if c.recipe == board.chosen]),
        ("kept beside it", _BESIDE, [c for c in shown if c.recipe in board.alternates]),
        ("acceptable", _OTHER, [c for c in shown if _code(refused, c) == "not-preferred"]),
        ("refused", _REFUSED, [c for c in shown if _code(refused, c) not in (None, "not-preferred")]),
        (_ANOTHER_TOOL, _THEIRS, [c for c in shown if c.file is not None]),
    ):
        if members:
            traces.append(_points(title, colour, members, estimates))
            traces[-1]["textposition"] = [places[c.recipe] for c in members]
            traces[-1]["meta"] = {"narrow": [on_a_phone[c.recipe] for c in members]}
            traces[-1]["marker"]["size"] = [diameters[c.recipe] for c in members]
            traces[-1]["marker"]["symbol"] = "diamond" if title == _ANOTHER_TOOL else "circle"
    inverted = any(c.counts_errors for c in report.candidates)
    title = words.metric(report.metric) + (", less of it higher up" if inverted else "")
    if report.metric is None and all(c.fidelity.get("agreement") is None for c in report.candidates):
        title = "1 less what was lost, by the measure that decides"
    layout = base_layout("latency on the board, ms", title)
    layout["xaxis"] |= frame.x_axis
    layout["yaxis"] |= frame.y_axis
    return {"data": traces, "layout": layout}


def _code(refused: dict[str, Any], candidate: CandidateView) -> str | None:
    found = refused.get(candidate.recipe)
    return None if found is None else str(found["code"])


def _points(title: str, colour: str, members: Sequence[CandidateView], estimates: dict[str, Any]) -> Figure:
    of = [estimates[c.recipe] for c in members]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": title,
        "x": [e["mid_ms"] for e in of],
        "y": [c.quality for c in members],
        "text": [c.recipe for c in members],
        "cliponaxis": False,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [e["high_ms"] - e["mid_ms"] for e in of],
            "arrayminus": [e["mid_ms"] - e["low_ms"] for e in of],
            "thickness": 1.2,
            "color": colour,
        },
        "marker": {"color": colour, "opacity": 0.85},
        "hovertext": [
            f"{c.recipe}<br>{words.span(e)}, {e['grade']}<br>{words.size(c.bytes)}"
            for c, e in zip(members, of, strict=True)
        ],
        "hoverinfo": "text",
    }


def error_by_layer(candidates: Sequence[CandidateView]) -> Figure | None:
    """SQNR down the graph, one line an artifact; None without layers."""
    traces = []
    for colour, candidate in zip(LINES * 4, (c for c in candidates if c.layers), strict=False):
        rows = candidate.layers
        depth = [row.get("depth", i / max(1, len(rows) - 1)) for i, row in enumerate(rows)]
        left = [row.get("sqnr_db") for row in rows]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": candidate.recipe,
                "x": depth,
                "y": [_CLEAN_DB if db is None else min(db, _CLEAN_DB) for db in left],
                "customdata": ["exact" if db is None else f"{db:.1f} dB" for db in left],
                "text": [f"{words.layer(row['layer'])}<br>{row.get('op', '')}" for row in rows],
                "hovertemplate": "%{text}<br>%{customdata}<extra>%{fullData.name}</extra>",
                "line": {"color": colour, "width": 1.6},
                "marker": {
                    "size": 6,
                    "color": colour,
                    "symbol": ["circle" if row.get("quantized", True) else "circle-open" for row in rows],
                },
            }
        )
    if not traces:
        return None
    layout = base_layout("depth: first layer to last", "signal to noise, dB")
    layout["xaxis"] |= {"tickformat": ".0%", "range": [-0.02, 1.02]}
    return {"data": traces, "layout": layout}


def histogram(item: HistogramView) -> Figure:
    """A layer's values in float and in the artifact, on a logarithmic axis."""
    edges = list(item.json["edges"])
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    traces = [
        {
            "type": "bar",
            "name": "INT8",
            "x": middles,
            "y": _shares(item.json["artifact"]),
            "marker": {"color": LINES[1], "line": {"width": 0}},
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "float",
            "x": middles,
            "y": _shares(item.json["original"]),
            "line": {"color": LINES[2], "width": 1.8},
        },
    ]
    layout = base_layout("value", "share of values")
    layout["yaxis"] |= {"type": "log", "tickvals": decades(traces), "tickformat": ".0e"}
    layout["title"] = {
        "text": f"{words.layer(str(item.json['layer']))}  ({item.recipe})",
        "font": {"size": 13},
        "x": 0.02,
    }
    layout["margin"]["t"] = 58
    layout["legend"] |= {"y": 1.0, "yanchor": "bottom"}
    layout["title"] |= {"y": 0.97, "yanchor": "top"}
    layout["bargap"] = 0
    return {"data": traces, "layout": layout}


def _shares(counts: Sequence[int]) -> list[float | None]:
    """Of all values; None for an empty bin, which a logarithmic axis cannot show."""
    total = sum(counts) or 1
    return [count / total or None for count in counts]


def base_layout(x: str, y: str) -> Figure:
    axis = {"gridcolor": "rgba(128,140,134,.22)", "zeroline": False, "automargin": True}
    return {
        "xaxis": {"title": {"text": x, "font": {"size": 12}}, **axis},
        "yaxis": {"title": {"text": y, "font": {"size": 12}, "standoff": 12}, **axis},
        "margin": {"l": 64, "r": 24, "t": 16, "b": 52},
        "legend": {"orientation": "h", "y": 1.08, "x": 0},
        "showlegend": True,  # of one group too: its colour says what became of it
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }

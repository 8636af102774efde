"""The report's charts, as plotly's own JSON: data and layout.

tradeoff(board, report)["data"]        # one trace a group of candidates
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from edgekit.report import words
from edgekit.report.frame import Dot, Frame, Marks, decades
from edgekit.report.view import Board, Candidate, Histogram, Report

__all__ = ["error_by_layer", "histogram", "tradeoff"]

Figure = dict[str, Any]

_CHOSEN, _BESIDE, _OTHER, _REFUSED = "#2f6f5e", "#5b6fae", "#8aa39b", "#c98a7c"
_LINES = ("#2f6f5e", "#b3672e", "#5b6fae", "#8a4f8f", "#6b6b2f", "#3a8a9e")


_CLEAN_DB = 80.0
"""Above this a layer is as good as float: the axis ends here, so that what matters is not flattened."""
_SMALLEST, _LARGEST = 6.0, 40.0


def tradeoff(board: Board, report: Report) -> Figure | None:
    """Latency against quality on one board, a marker's area showing the file's size; None where nothing has a latency."""
    estimates = board.estimates
    shown = [c for c in report.candidates if c.recipe in estimates and c.quality is not None]
    if not shown:
        return None
    frame = Frame.of(
        [(estimates[c.recipe]["low_ms"], estimates[c.recipe]["high_ms"]) for c in shown], _marks(shown, report)
    )
    diameters = _diameters(shown)
    dots = [
        Dot(c.recipe, float(estimates[c.recipe]["mid_ms"]), float(c.quality or 0.0), diameters[c.recipe]) for c in shown
    ]
    places = frame.places(dots)
    refused = {r["recipe"]: r for r in board.json.get("refused") or ()}
    traces = []
    for title, colour, members in (
        ("chosen", _CHOSEN, [c for c in shown if c.recipe == board.chosen]),
        ("kept beside it", _BESIDE, [c for c in shown if c.recipe in board.alternates]),
        ("acceptable", _OTHER, [c for c in shown if _code(refused, c) == "not-preferred"]),
        ("refused", _REFUSED, [c for c in shown if _code(refused, c) not in (None, "not-preferred")]),
    ):
        if members:
            traces.append(_points(title, colour, members, estimates))
            traces[-1]["textposition"] = [places[c.recipe] for c in members]
            traces[-1]["marker"]["size"] = [diameters[c.recipe] for c in members]
    layout = _layout("latency, ms (the range that was predicted or measured)", _quality_title(report))
    layout["xaxis"] |= frame.x_axis
    layout["yaxis"] |= frame.y_axis
    return {"data": traces, "layout": layout}


def _marks(shown: Sequence[Candidate], report: Report) -> Marks:
    """What the vertical axis is of: a share that ends at 1, or a metric in its own unit, turned where less of it is better."""
    found = [float(c.quality) for c in shown if c.quality is not None]
    if not report.in_points:
        return Marks(found, turned=any(c.counts_errors for c in shown))
    return Marks(found, share=True, least=0.002 if report.metric is None else 0.02)


def _code(refused: dict[str, Any], candidate: Candidate) -> str | None:
    found = refused.get(candidate.recipe)
    return None if found is None else str(found["code"])


def _points(title: str, colour: str, members: Sequence[Candidate], estimates: dict[str, Any]) -> Figure:
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


def _diameters(shown: Sequence[Candidate]) -> dict[str, float]:
    """Recipe -> a dot whose area is in proportion to the file's size, the largest file's the largest that has room."""
    largest = max((c.bytes or 0 for c in shown), default=0) or 1
    return {c.recipe: max(_SMALLEST, _LARGEST * ((c.bytes or 0) / largest) ** 0.5) for c in shown}


def _quality_title(report: Report) -> str:
    if report.metric is None and all(c.fidelity.get("agreement") is None for c in report.candidates):
        return "1 less what was lost, by the measure that decides"
    turned = any(c.counts_errors for c in report.candidates)
    return words.metric(report.metric) + (", less of it higher up" if turned else "")


def error_by_layer(candidates: Sequence[Candidate]) -> Figure | None:
    """SQNR down the graph, one line an artifact: where it falls, the damage was done. None without layers."""
    traces = []
    for colour, candidate in zip(_LINES * 4, (c for c in candidates if c.layers), strict=False):
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
    layout = _layout("depth: first layer to last", "signal to quantization noise, dB (higher is closer to float)")
    layout["xaxis"] |= {"tickformat": ".0%", "range": [-0.02, 1.02]}
    return {"data": traces, "layout": layout}


def histogram(item: Histogram) -> Figure:
    """A layer's values in float and as the artifact holds them, as shares on a logarithmic axis: tails are what matters."""
    edges = list(item.json["edges"])
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    traces = [
        {
            "type": "bar",
            "name": "INT8",
            "x": middles,
            "y": _shares(item.json["artifact"]),
            "marker": {"color": _LINES[1], "line": {"width": 0}},
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "float",
            "x": middles,
            "y": _shares(item.json["original"]),
            "line": {"color": _LINES[2], "width": 1.8},
        },
    ]
    layout = _layout("value", "share of values")
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


def _layout(x: str, y: str) -> Figure:
    axis = {"gridcolor": "rgba(128,140,134,.22)", "zeroline": False, "automargin": True}
    return {
        "xaxis": {"title": {"text": x, "font": {"size": 12}}, **axis},
        "yaxis": {"title": {"text": y, "font": {"size": 12}}, **axis},
        "margin": {"l": 64, "r": 24, "t": 16, "b": 52},
        "legend": {"orientation": "h", "y": 1.08, "x": 0},
        "showlegend": True,  # of one group too: its colour says what became of it
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }

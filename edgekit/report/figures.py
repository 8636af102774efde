"""The report's charts: dots with intervals, the error down the graph, the worst layers.

    tradeoff(board, report)                # a Chart for the template
    dots = [Dot("tflite-int8", 0.33, 0.998, 20.0, across=(0.25, 0.58))]
    Axes.of(dots, share=True).places(dots)

Rules: an axis has at least two ticks and room for the intervals, so noise does not look like a slope;
a share has no tick above 1; a name stands where it covers the least of the dots, their bars and the names before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgekit.charts.chart import HUES, Axis, Chart, Shape, number_axis, rounded
from edgekit.report import words
from edgekit.report.decision import interval_of
from edgekit.report.view import BoardView, CandidateView, Json, ReportView

_WIDTH, _HEIGHT = 900.0, 230.0  # of the drawing, in pixels, on a screen of ordinary width
_NARROW = 280.0  # on a phone
_LETTER, _LINE, _BAR = 7.0, 16.0, 6.0
_PLACES = ((0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0))
"""(right, up) of a dot."""
_LEAST_SHARE = 0.02
"""Height of an axis of shares: two points."""

Box = tuple[float, float, float, float]
Span = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """name: written beside it, empty for none.
    x, y: in the axes' units.
    diameter: pixels.
    across, up: its intervals.
    title: shown under a pointer."""

    name: str
    x: float
    y: float
    diameter: float
    hue: str = "accent"
    shape: Shape = "circle"
    across: Span | None = None
    up: Span | None = None
    title: str = ""


@dataclass(frozen=True)
class Axes:
    """width: pixels of the drawing."""

    x: Axis
    y: Axis
    width: float = _WIDTH

    @classmethod
    def of(
        cls, dots: Sequence[Dot], titles: Sequence[str] = ("", ""), *, share: bool = False, inverted: bool = False
    ) -> Axes:
        """With room for each dot's intervals.
        share: whether heights are shares of 1.
        inverted: whether less is better, and drawn higher."""
        values = [end for dot in dots for end in (dot.y, *(dot.up or ()))]
        lows, highs = ([max((dot.across or (dot.x, dot.x))[end], 1e-9) for dot in dots] for end in (0, 1))
        start, end = math.log10(min(lows)) - 0.15, math.log10(max(highs)) + 0.15
        while len(_one_two_five(start, end)) < 2:
            start, end = start - 0.1, end + 0.1
        ticks = _one_two_five(start, end)
        ticks = ticks[:: max(1, math.ceil(len(ticks) / 12))]
        x = Axis(10.0**start, 10.0**end, [(tick, f"{tick:g}") for tick in ticks], titles[0], log=True)
        low, high = min(values), max(values)
        least = _LEAST_SHARE if share else 0.05 * max(abs(low), abs(high)) or 1.0
        room = max(0.25 * (high - low), least / 2)
        low, high = low - room, high + room
        if share:  # room for a name above 100 %, and no more
            high = min(high, 1.0 + 0.2 * max(1.0 - low, least))
        round_ones = rounded(low, min(high, 1.0) if share else high)
        places = max(0, -math.floor(math.log10(round_ones[1] - round_ones[0]) + 1e-9) - 2)
        texts = [f"{100 * value:.{places}f} %" if share else words.score_number(value) for value in round_ones]
        ends = (high, low) if inverted else (low, high)
        return cls(x, Axis(*ends, list(zip(round_ones, texts, strict=True)), titles[1]))

    def places(self, dots: Sequence[Dot]) -> dict[str, tuple[int, int]]:
        """Where each name stands: (right, up) of its dot."""
        boxes = [box for dot in dots for box in self._boxes(dot)]
        found: dict[str, tuple[int, int]] = {}
        for dot in sorted((dot for dot in dots if dot.name), key=lambda dot: (dot.x, dot.y)):
            own = self._boxes(dot)[0]
            others = [box for box in boxes if box != own]
            (x, y), width, gap = self._at(dot.x, dot.y), _LETTER * len(dot.name), dot.diameter / 2 + 2
            costs: dict[tuple[int, int], tuple[float, Box]] = {}
            for right, up in _PLACES:
                left, bottom = x + right * (gap + width / 2) - width / 2, y + up * (gap + _LINE / 2) - _LINE / 2
                box = (left, bottom, left + width, bottom + _LINE)
                outside = _area(box) - _common(box, (0.0, 0.0, self.width, _HEIGHT + _LINE))
                costs[right, up] = (outside + sum(_common(box, other) for other in others), box)
            found[dot.name] = min(costs, key=lambda place: costs[place][0])
            boxes.append(costs[found[dot.name]][1])
        return found

    def _boxes(self, dot: Dot) -> list[Box]:
        """Of the dot, and of the bars through it."""
        (x, y), half = self._at(dot.x, dot.y), dot.diameter / 2
        boxes = [(x - half, y - half, x + half, y + half)]
        if dot.across is not None:
            boxes.append((self._at(dot.across[0], 0)[0], y - _BAR / 2, self._at(dot.across[1], 0)[0], y + _BAR / 2))
        if dot.up is not None:
            low, high = sorted(self._at(dot.x, end)[1] for end in dot.up)
            boxes.append((x - _BAR / 2, low, x + _BAR / 2, high))
        return boxes

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self.x.at(x) * self.width / 100, self.y.at(y) * _HEIGHT / 100

    def draw(self, label: str, dots: Sequence[Dot], keys: Sequence[tuple[str, str, Shape]]) -> Chart:
        """Dots with their bars and names; keys: (name, hue, shape) of each group."""
        chart = Chart(label, self.x, self.y)
        for key in keys:
            chart.key(*key)
        for dot in dots:
            if dot.across is not None:
                chart.bar(dot.across, (dot.y, dot.y), dot.hue)
            if dot.up is not None:
                chart.bar((dot.x, dot.x), dot.up, dot.hue)
        for dot in dots:
            chart.dot(dot.x, dot.y, dot.hue, dot.diameter, dot.shape, dot.title)
        desk, phone = self.places(dots), replace(self, width=_NARROW).places(dots)
        for dot in (dot for dot in dots if dot.name):
            same, gap = desk[dot.name] == phone[dot.name], dot.diameter / 2 + 2
            for (right, up), only in ((desk[dot.name], "desk"), (phone[dot.name], "phone"))[: 1 if same else 2]:
                chart.word(dot.x, dot.y, dot.name, right * gap, up * (gap + _LINE / 2), "" if same else only)
        return chart


def decades(values: Sequence[float | None]) -> list[float]:
    """Powers of ten for a logarithmic axis of these, six at most, the largest first."""
    shown = [value for value in values if value]
    low, high = (math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))) if shown else (-1, 0)
    return [10.0**power for power in range(high, min(low, high - 1) - 1, -max(1, math.ceil((high - low) / 5)))]


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


_GROUPS: Mapping[str, tuple[str, Shape]] = {
    "chosen": ("h3", "circle"),
    "kept beside it": ("h0", "circle"),
    "acceptable": ("faint", "circle"),
    "refused": ("h1", "circle"),
    "another tool's, not in the bundle": ("h5", "diamond"),
}
_CLEAN_DB = 80.0
"""The end of the axis: above this a layer is as good as float."""
_SMALLEST, _LARGEST = 6.0, 40.0


def tradeoff(board: BoardView, report: ReportView) -> Chart | None:
    """Latency against quality on one board; None without latencies. Areas show file sizes."""
    estimates, refused = board.estimates, {r["recipe"]: r["code"] for r in board.refused or ()}
    shown = [c for c in report.candidates if c.recipe in estimates and c.quality is not None]
    if not shown:
        return None
    # areas in proportion to the files' sizes, the largest file's the largest that has room
    largest = max((c.bytes or 0 for c in shown), default=0) or 1
    dots, groups = [], list(_GROUPS)
    for c in shown:
        estimate, code = estimates[c.recipe], refused.get(c.recipe)
        group = (
            0 if c.recipe == board.chosen else 1 if c.recipe in board.alternates
            else 4 if c.file is not None else 2 if code in (None, "not-preferred") else 3
        )  # fmt: skip
        hue, shape = _GROUPS[groups[group]]
        diameter, quality = max(_SMALLEST, _LARGEST * ((c.bytes or 0) / largest) ** 0.5), float(c.quality or 0.0)
        said = f"{c.recipe}: {words.span(estimate)}, {estimate['grade']}, {words.size(c.bytes)}"
        span = estimate["low_ms"], estimate["high_ms"]
        dots.append(Dot(c.recipe, estimate["mid_ms"], quality, diameter, hue, shape, span, _likely(c, quality), said))
    used = {dot.hue for dot in dots}
    inverted = any(c.counts_errors for c in report.candidates)
    title = words.metric(report.metric) + (", less of it higher up" if inverted else "")
    if report.metric is None and all(c.fidelity.get("agreement") is None for c in report.candidates):
        title = "1 less what was lost, by the measure that decides"
    keys = [(name, *look) for name, look in _GROUPS.items() if look[0] in used]
    axes = Axes.of(dots, ("latency on the board, ms", title), share=report.in_points, inverted=inverted)
    return axes.draw(f"{title} against latency on {board.profile}, each artifact a dot", dots, keys)


def _likely(candidate: CandidateView, quality: float) -> Span | None:
    """The 95 % interval of a quality: that of the loss, laid around it."""
    found = candidate.fidelity
    if found.get("metric") is not None:
        interval = [
            float(found["original"]) - end * (-1 if candidate.counts_errors else 1) for end in found.get("ci95") or ()
        ]
        return (min(interval), max(interval)) if interval else None
    lost = None if found.get("only_rounded") else interval_of(found, False)
    return None if lost is None else (max(0.0, 1.0 - lost[1]), min(1.0, 1.0 - lost[0]))


def error_by_layer(candidates: Sequence[CandidateView]) -> Chart | None:
    """SQNR down the graph, one line an artifact; None without layers."""
    shown = [candidate for candidate in candidates if candidate.layers]
    if not shown:
        return None
    axis = number_axis([_decibels(row) for c in shown for row in c.layers], title="signal to noise, dB")
    depth = Axis(0.0, 1.0, [(n / 5, f"{20 * n} %") for n in range(6)], "depth: first layer to last")
    chart = Chart("Signal to noise after each layer, first to last", depth, axis)
    for place, candidate in enumerate(shown):
        hue, rows = f"h{place % HUES}", candidate.layers
        points = [(row.get("depth", i / max(1, len(rows) - 1)), _decibels(row)) for i, row in enumerate(rows)]
        chart.line(points, hue)
        chart.key(candidate.recipe, hue)
        for row, (x, y) in zip(rows, points, strict=True):
            exact = "exact" if row.get("sqnr_db") is None else f"{row['sqnr_db']:.1f} dB"
            said = f"{candidate.recipe}, {words.layer(row['layer'])} {row.get('op', '')}: {exact}"
            chart.dot(x, y, hue if row.get("quantized", True) else f"{hue} hollow", title=said)
    return chart


def _decibels(row: Json) -> float:
    found = row.get("sqnr_db")
    return _CLEAN_DB if found is None else min(float(found), _CLEAN_DB)


def histogram(item: Json) -> Chart:
    """A layer's values in float and in the artifact, on a logarithmic axis."""
    edges, artifact, original = list(item["edges"]), _shares(item["artifact"]), _shares(item["original"])
    ticks = decades([*artifact, *original])
    shares = Axis(ticks[-1], ticks[0], [(tick, f"{tick:.0e}") for tick in ticks], "share of values", log=True)
    values = Axis(edges[0], edges[-1], [(tick, f"{tick:.6g}") for tick in rounded(edges[0], edges[-1])], "value")
    name = f"{words.layer(item['layer'])} ({item['recipe']})"
    chart = Chart(f"Values of {name} in float and in INT8", values, shares, "small")
    chart.blocks(
        [(*edge, ticks[-1], share) for edge, share in zip(pairwise(edges), artifact, strict=True) if share], "h1"
    )
    chart.steps("float", [(*edge, share) for edge, share in zip(pairwise(edges), original, strict=True)], "h0")
    chart.key("INT8", "h1", "block")
    chart.key("float", "h0")
    return chart


def _shares(counts: Sequence[int]) -> list[float | None]:
    """Of all values; None for an empty bin, which a logarithmic axis cannot show."""
    total = sum(counts) or 1
    return [count / total or None for count in counts]

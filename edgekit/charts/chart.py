"""Charts as SVG without a script: one drawing fits a desk, a phone and paper.

    chart = Chart("latency of porch-1", time_axis(0, 3_600_000), number_axis([12.5], " ms"))
    chart.steps("p99", [(0, 60_000, 12.5)], "h0", " ms")        # {{ chart }} in a template, beside chart.css

Rules:
- positions are percentages of the plot, and lines lie in an SVG that is stretched to it, so words keep their size;
- names come from boards and files: every text is escaped, and what cannot be seen in it is shown;
- lines differ by dash as well as by hue, and colour-blind readers tell the hues apart (static/chart.css);
- a value that holds for a time is drawn as a step over it. None, and a time without a value, is a gap.
"""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgekit_runtime.system.errors import visible

HUES = 6
_MINUTE_MS = 60_000
_TIMES = tuple(n * _MINUTE_MS for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080))
_NAMED_AT = 320.0  # pixels: names of marks have room on a phone, too
_LETTER = 7.0
_ROWS = 3
Step = tuple[float, float, float | None]
"""A value from one moment to another."""
Column = tuple[float, float, Mapping[str, float]]
"""Values by name from one moment to another."""
Shape = Literal["line", "block", "circle", "diamond"]


@dataclass(frozen=True)
class Axis:
    """low, high: its ends; low may be the larger.
    ticks: (value, text).
    moments: whether values are milliseconds since 1970."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    title: str = ""
    log: bool = False
    moments: bool = False

    def at(self, value: float) -> float:
        """Per cent of the way from low to high, half where they are one."""
        ends = self.low, self.high, value
        low, high, here = (math.log10(max(one, 1e-30)) for one in ends) if self.log else ends
        return 100.0 * (here - low) / (high - low) if high != low else 50.0


def rounded(low: float, high: float, most: int = 5, *, around: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from low to high, or around both."""
    rough = max(high - low, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if around:
        first, last = math.floor(low / step), math.ceil(high / step)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(number * step, places) + 0.0 for number in range(first, last + 1)]


def number_axis(values: Sequence[float | None], unit: str = "", title: str = "") -> Axis:
    """From 0 to a round number above all values, and below those that are less than 0."""
    shown = [0.0, *(value for value in values if value is not None)]
    low, high = min(shown), max(shown)
    ticks = rounded(low, high if high - low > 1e-9 else low + 1.0, 4, around=True)
    return Axis(ticks[0], ticks[-1], [(tick, f"{tick:.6g}{unit}") for tick in ticks], title)


def time_axis(low_ms: float, high_ms: float) -> Axis:
    """With at most six ticks, at round hours or days of this machine's time zone."""
    step = next((one for one in _TIMES if (high_ms - low_ms) / one <= 6), _TIMES[-1])
    ahead_ms = 1000 * time.localtime(low_ms / 1000).tm_gmtoff
    first = math.ceil((low_ms + ahead_ms) / step) * step - ahead_ms
    form, moments = "%H:%M" if step < 1440 * _MINUTE_MS else "%d %b", range(int(first), int(high_ms) + 1, step)
    ticks = [(at, time.strftime(form, time.localtime(at / 1000))) for at in moments]
    return Axis(low_ms, high_ms, ticks, moments=True)


def escaped(text: str) -> str:
    return html.escape(visible(text))


class Chart:
    """label: what it shows, for who cannot see it.
    size: a class of chart.css."""

    def __init__(self, label: str, x: Axis, y: Axis, size: str = "") -> None:
        self.label, self.x, self.y, self._size = label, x, y, size
        self._lines: list[str] = []  # in the stretched SVG
        self._marks: list[str] = []
        self._keys: list[str] = []
        self._read: list[tuple[str, str, list[tuple[float, float, float]]]] = []
        self._rows: list[float] = []  # where the names of marks end

    def key(self, name: str, hue: str, shape: Shape = "line", dash: int = 0) -> None:
        """Explain a hue above the plot."""
        drawn = f'<svg class="{hue}" width="26" height="12" viewBox="-13 -6 26 12">{_glyph(shape, 5.0, dash)}</svg>'
        self._keys.append(f"<span>{drawn}{escaped(name)}</span>")

    def line(self, points: Sequence[tuple[float, float]], hue: str) -> None:
        path = "L".join(f"{self._right(x)} {self._down(y)}" for x, y in points)
        self._lines.append(f'<path class="line {hue}" d="M{path}"/>')

    def steps(self, name: str, steps: Sequence[Step], hue: str, unit: str = "", dash: int = 0) -> None:
        """A line of steps; its values can be read by pointer and keyboard where chart.js is."""
        path, end = [], -math.inf
        for begin, until, value in steps:
            if value is not None:
                joined = begin - end <= (until - begin) / 2
                path.append(f"{'V' if joined else f'M{self._right(begin)} '}{self._down(value)}H{self._right(until)}")
                end = until
        self._lines.append(f'<path class="line {hue} d{dash}" d="{"".join(path)}"/>')
        self._reads(name, unit, steps)

    def stack(self, names: Sequence[str], columns: Sequence[Column], unit: str = "") -> None:
        """Blocks on top of each other, the first name the lowest."""
        below = [0.0] * len(columns)
        for place, name in enumerate(names):
            tops = [low + values.get(name, 0.0) for low, (_, _, values) in zip(below, columns, strict=True)]
            ends = zip(columns, below, tops, strict=True)
            self.blocks([(begin, until, low, top) for (begin, until, _), low, top in ends], f"h{place % HUES}")
            self.key(name, f"h{place % HUES}", "block")
            self._reads(name, unit, [(begin, until, values.get(name)) for begin, until, values in columns])
            below = tops

    def blocks(self, blocks: Sequence[tuple[float, float, float, float]], hue: str) -> None:
        """Filled rectangles: (left, right, bottom, top)."""
        path = [
            f"M{self._right(left)} {self._down(bottom)}V{self._down(top)}H{self._right(right)}V{self._down(bottom)}Z"
            for left, right, bottom, top in blocks
            if top != bottom
        ]
        self._lines.append(f'<path class="block {hue}" d="{"".join(path)}"/>')

    def dot(self, x: float, y: float, hue: str, size: float = 6.0, shape: Shape = "circle", title: str = "") -> None:
        """hue: with `hollow` for a ring.
        size: its diameter in pixels.
        title: shown under a pointer."""
        (left, top), said = self._percent(x, y), f"<title>{escaped(title)}</title>"
        self._marks.append(f'<svg class="{hue}" x="{left}" y="{top}"><g>{said}{_glyph(shape, size / 2)}</g></svg>')

    def bar(self, x: tuple[float, float], y: tuple[float, float], hue: str) -> None:
        """A line from (x[0], y[0]) to (x[1], y[1]), such as an interval."""
        (x1, y1), (x2, y2) = self._percent(x[0], y[0]), self._percent(x[1], y[1])
        self._marks.append(f'<line class="bar {hue}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>')

    def mark(self, x: float, text: str, *, named: bool = True) -> None:
        """A moment; its name stands above the plot, where no line crosses it, if a row is free."""
        left, title = self.x.at(x), escaped(text)
        at, width = f"{left:.2f}%", 100 * _LETTER * (len(text) + 1) / _NAMED_AT
        self._marks.append(f'<line class="mark" x1="{at}" x2="{at}" y1="0" y2="100%"><title>{title}</title></line>')
        begin = min(left, 100 - width)
        row = next((row for row, end in enumerate(self._rows) if end <= begin), len(self._rows))
        if named and row < _ROWS:
            self._rows[row : row + 1] = [begin + width]
            place = f'class="end" x="100%" dy="{-6 - 14 * row}"' if begin < left else f'x="{at}" dy="{-6 - 14 * row}"'
            self._marks.append(f"<text {place}>{title}</text>")

    def word(self, x: float, y: float, text: str, right: float, up: float, only: str = "") -> None:
        """Text beside a point, that many pixels right and up of it. only: desk or phone."""
        (left, top), side = self._percent(x, y), "end" if right < 0 else "middle" if not right else ""
        place = f'x="{left}" y="{top}" dx="{right:.0f}" dy="{4 - up:.0f}"'
        self._marks.append(f'<text class="word {side} {only}" {place}>{escaped(text)}</text>')

    def _reads(self, name: str, unit: str, steps: Sequence[Step]) -> None:
        known = [(begin, until, value) for begin, until, value in steps if value is not None]
        ends = [(round(self.x.at(begin), 2), round(self.x.at(until), 2)) for begin, until, _ in known]
        values = [float(f"{value:.4g}") for _, _, value in known]
        self._read.append((visible(name), unit, [(*span, n) for span, n in zip(ends, values, strict=True)]))
        if values:
            self.label += f"; {name} {min(values):g} to {max(values):g}{unit}"

    def _percent(self, x: float, y: float) -> tuple[str, str]:
        return f"{self.x.at(x):.2f}%", f"{100 - self.y.at(y):.2f}%"

    def _right(self, x: float) -> str:
        return f"{10 * self.x.at(x):.1f}"

    def _down(self, y: float) -> str:
        return f"{1000 - 10 * self.y.at(y):.1f}"

    def _axes(self) -> str:
        grid, words = [], []
        for place, (value, text) in enumerate(self.x.ticks):
            at, moment = f"{self.x.at(value):.2f}%", f' data-ms="{value:.0f}"' if self.x.moments else ""
            grid.append(f'<line x1="{at}" x2="{at}" y1="0" y2="100%"/>')
            odd = " odd" if place % 2 else ""
            words.append(f'<text class="middle{odd}" x="{at}" y="100%" dy="18"{moment}>{escaped(text)}</text>')
        for value, text in self.y.ticks:
            at = f"{100 - self.y.at(value):.2f}%"
            grid.append(f'<line x1="0" x2="100%" y1="{at}" y2="{at}"/>')
            words.append(f'<text class="end" x="0" y="{at}" dx="-8" dy="4">{escaped(text)}</text>')
        title = f'<text class="middle" transform="rotate(-90)" dy="-61">{escaped(self.y.title)}</text>'
        return f'<g class="grid">{"".join(grid)}</g>{"".join(words)}<svg x="0" y="50%">{title}</svg>'

    def __html__(self) -> str:
        read = html.escape(json.dumps(self._read, separators=(",", ":")))
        data = f'data-ends="{self.x.low:.0f} {self.x.high:.0f}" data-read="{read}"' if self.x.moments else ""
        return (
            f'<figure class="chart {self._size}"><figcaption>{"".join(self._keys)}<output></output></figcaption>'
            f'<svg class="plot m{len(self._rows)}" role="img" aria-label="{escaped(self.label)}" {data}>{self._axes()}'
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">{"".join(self._lines)}'
            f'</svg>{"".join(self._marks)}</svg><p class="title">{escaped(self.x.title)}</p></figure>'
        )


def _glyph(shape: Shape, half: float, dash: int = 0) -> str:
    """Around (0, 0)."""
    return {
        "line": f'<path class="line d{dash}" d="M-13 0H13"/>',
        "block": f'<rect class="block" x="{-half:g}" y="{-half:g}" width="{2 * half:g}" height="{2 * half:g}"/>',
        "circle": f'<circle class="dot" r="{half:.1f}"/>',
        "diamond": f'<path class="dot" d="M0 {-half:.1f}L{half:.1f} 0L0 {half:.1f}L{-half:.1f} 0Z"/>',
    }[shape]

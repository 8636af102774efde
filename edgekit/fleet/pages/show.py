"""How figures are written on a page: Jinja filters, each a pure function of what it is given.

ms(12.345)          # '12.3 ms'
share(3, 40)        # '7.5 %'
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FILTERS", "Line", "celsius", "clock", "count", "ms", "percent", "rate", "share", "sparkline"]

NOTHING = "–"
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0


@dataclass(frozen=True)
class Line:
    """points: of an SVG polyline in a box of 120 by 28.
    limit: the height of the budget, None where it is out of sight.
    """

    points: str
    limit: float | None
    label: str


def ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"


def rate(value: float | None) -> str:
    """Answers a second; a minute where it is less than one."""
    if value is None:
        return NOTHING
    if value and value < 1:
        return f"{60 * value:.1f} /min"
    return f"{value:.1f} /s" if value < 100 else f"{value:,.0f} /s"


def share(part: int, whole: int) -> str:
    if not whole:
        return NOTHING
    value = 100.0 * part / whole
    return "0 %" if not part else f"{value:.1f} %" if value < 10 else f"{value:.0f} %"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} %"


def celsius(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} °C"


def count(value: int) -> str:
    return f"{value:,}"


def clock(at_ms: int) -> str:
    """For readers without scripts; the page's own script makes '3 min ago' of it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1000)) if at_ms else NOTHING


def sparkline(recent: Sequence[Sequence[Any]], limit: float | None = None) -> Line | None:
    """p95 of the last windows; None with fewer than two."""
    values = [float(point[2]) for point in recent if point[2] is not None]
    if len(values) < 2:
        return None
    top = max(values) or 1.0
    if limit is not None and limit <= 2.5 * top:
        top = max(top, limit)
    else:
        limit = None
    step = (_WIDTH - 2 * _EDGE) / (len(values) - 1)

    def height(value: float) -> float:
        return round(_HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * value / top, 1)

    points = " ".join(f"{_EDGE + i * step:.1f},{height(value)}" for i, value in enumerate(values))
    label = f"p95 of the last {len(values)} windows, {ms(min(values))} to {ms(max(values))}"
    return Line(points, None if limit is None else height(limit), label)


FILTERS: dict[str, Callable[..., Any]] = {
    "ms": ms, "rate": rate, "share": share, "percent": percent, "celsius": celsius, "count": count, "clock": clock,
    "sparkline": sparkline,
}  # fmt: skip

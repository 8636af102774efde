r"""How figures are written on a page: Jinja filters, each a pure function.

ms(12.345)          # '12.3 ms'
share(3, 40)        # '7.5 %'
shown("a\u202eb")   # "a\\u202eb": what cannot be seen in a board's text is escaped wherever it is written
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.fleet.store.records import FleetDevice
from edgekit_runtime.system.errors import visible

NOTHING = "–"
_BLANK = re.compile(
    "(?<![^\x00-\x7f\u200c\u200d])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f\u200c\u200d])"
    "|[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U000e0100-\U000e01ef]"
)
"""Joiners that join nothing, and letters without a form: what `visible` lets pass."""
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0


@dataclass(frozen=True)
class Line:
    """points: of an SVG polyline in a box of 120 by 28.
    limit: height of the budget, or None if outside.
    """

    points: str
    limit: float | None
    label: str


def shown(value: Any) -> Any:
    """Jinja's `finalize`: text with what cannot be seen escaped.
    HTML from a template passes.

    `visible` keeps joiners for words and emoji that need them; next to plain letters they are escaped.
    """
    if not isinstance(value, str) or hasattr(value, "__html__") or (value.isascii() and value.isprintable()):
        return value
    return _BLANK.sub(lambda found: ascii(found[0])[1:-1], visible(value))


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


def late(over: int, of: int, budget_ms: float | None) -> str:
    """Share of the answers after their budget; nothing where no budget is known."""
    return NOTHING if budget_ms is None and not over else share(over, of)


def degree(over: int, of: int, beyond: float = 0.01) -> str:
    """CSS class of a figure beyond which a share `beyond` of the answers lies.
    Empty where no more are late; up to 5 % are `slightly`."""
    return "" if over <= beyond * of else "slightly" if over <= 0.05 * of else "late"


def part(value: float) -> str:
    """A share as people write it: 1 %, 12.5 %."""
    return f"{100 * value:.3g} %"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} %"


def psi(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def celsius(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} °C"


def lag_s(newest_ms: int, now_ms: int) -> float | None:
    """Seconds since the newest stored window ended; None before the first."""
    return max(0.0, (now_ms - newest_ms) / 1000) if newest_ms else None


def span(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    for unit, length, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def count(value: int) -> str:
    return f"{value:,}"


def size(value: int) -> str:
    if value < 1024:
        return f"{value} B"
    exponent = min(3, (value.bit_length() - 1) // 10)
    return f"{value / 1024**exponent:.1f} {('KiB', 'MiB', 'GiB')[exponent - 1]}"


def clock(at_ms: int) -> str:
    """Without scripts; the page's script turns it into '3 min ago'."""
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


def conditions(row: FleetDevice) -> list[str]:
    """The problem STATES of a board, except offline."""
    found = {
        "late": row.over * 100 > row.n,
        "hot": bool((row.throttled or 0) & 0xF) or (row.temp or 0) >= 80,
        "drifting": (row.psi or 0) > 0.2,
        "lagging": row.waiting * row.window_s > 3600,
        "failing": row.errors * 20 > row.n + row.errors,
        "losing": row.lost > 0,
    }
    return [state for state, is_so in found.items() if is_so]


WORDS = {
    "online": ("Online", "reporting"),
    "offline": ("Offline", "disconnected, or silent for two and a half windows"),
    "late": ("Over budget", "more than 1 % of answers exceeded the caller's budget, or the board's"),
    "hot": ("Hot", "throttled, or at 80 °C or more"),
    "drifting": (
        "Drifting",
        "top-1 scores drifted from the evaluation set or the first answers (PSI above 0.2)",
    ),
    "lagging": ("Lagging", "more than an hour of windows is waiting on the board"),
    "failing": ("Failing", "more than 5 % of requests got no answer"),
    "losing": ("Losing", "gave up windows that never arrived"),
}
"""Label and meaning of each of the store's STATES."""


TABLES = {
    "win": "raw windows",
    "r15": "board roll-ups, 15 minutes",
    "r1h": "board roll-ups, 1 hour",
    "r5": "version roll-ups, 5 minutes",
    "m15": "version roll-ups, 15 minutes",
    "m1h": "version roll-ups, 1 hour",
    "event": "events",
    "sample": "parts of samples",
    "mark": "spool positions",
}
"""Labels of the store's tables."""


def condition(state: str) -> str:
    return WORDS[state][0]


FILTERS: dict[str, Callable[..., Any]] = {
    "ms": ms, "rate": rate, "share": share, "percent": percent, "celsius": celsius, "count": count, "clock": clock,
    "sparkline": sparkline, "late": late, "degree": degree, "conditions": conditions, "condition": condition,
    "part": part, "psi": psi, "size": size, "span": span,
}  # fmt: skip

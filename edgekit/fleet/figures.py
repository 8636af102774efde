"""Figures out of windows: percentiles over several sources, and which quarter of an hour a window belongs to.

quantiles({"device": h, "cache": g}, (0.5, 0.99))
quarter_of(window, received_ms)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit_runtime.telemetry import Histogram, Window

__all__ = ["QUARTER_MS", "moment_of", "quantiles", "quarter_of"]

QUARTER_MS = 15 * 60 * 1000
_MOST_AGE_MS = 30 * 24 * 3600 * 1000
_MOST_AHEAD_MS = 5 * 60 * 1000


def quantiles(latency: Mapping[str, Histogram], wanted: Sequence[float]) -> list[float | None]:
    """Milliseconds at each of the ascending ranks, over all sources together.

    Buckets of different scales are laid side by side and not joined, so a coarse cache costs a fine device no precision.
    """
    pieces: list[tuple[float, int]] = []
    for histogram in latency.values():
        per_octave = 2.0**histogram.scale
        if histogram.zeros:
            pieces.append((0.0, histogram.zeros))
        for index, n in histogram.buckets.items():
            lower, upper = 2.0 ** (index / per_octave), 2.0 ** ((index + 1) / per_octave)
            pieces.append((2.0 * lower * upper / (lower + upper), n))
    total = sum(n for _, n in pieces)
    if not total:
        return [None] * len(wanted)
    pieces.sort()
    found: list[float | None] = []
    seen, place = 0, 0
    for q in wanted:
        while place < len(pieces) - 1 and seen + pieces[place][1] < q * total:
            seen += pieces[place][1]
            place += 1
        found.append(pieces[place][0])
    return found


def moment_of(window: Window, received_ms: int) -> int:
    """When the window ended, milliseconds since 1970: by the board's clock where that is to be believed, else now."""
    ended = window.t0_ms + window.dur_ms
    if window.clock_ok and received_ms - _MOST_AGE_MS <= ended <= received_ms + _MOST_AHEAD_MS:
        return ended
    return received_ms


def quarter_of(moment_ms: int) -> int:
    return moment_ms - moment_ms % QUARTER_MS

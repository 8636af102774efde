"""A metric's values as a person reads them.
A share in per cent and its changes in points, anything else in its own unit.

value("top1", 0.85), change("top1", 0.05, 0.9)               # "85.0 %", "+5.0"
value("own:rmse", 92.48), change("own:rmse", 2094, 92.48)    # "92.48", "+2094"

Rules: only the metrics that edgekit knows to be shares are shown as such; what a person's own function gives is in a
unit that only they know. A change that is nothing beside the value is 0, without a sign.
"""

from __future__ import annotations

import math

SHORT = {
    "top1": "top-1",
    "top5": "top-5",
    "f1": "F1",
    "map": "mAP",
    "map50": "mAP50",
    "miou": "mIoU",
    "pixel-accuracy": "pixels",
}
"""Metric -> a column's heading, of those that are shares."""

_NOTHING = 1e-4
"""Of the original's value: a change that is smaller is none."""


_ROUNDING = 1e-5
"""By which the float32 sum of a softmax may exceed 1."""


def is_share(metric: str | None) -> bool:
    """None, agreement with the original, is one."""
    return metric is None or metric in SHORT


def value(metric: str | None, found: float) -> str:
    return f"{100 * found:.1f} %" if is_share(metric) else number(found)


def confidence(score: float) -> str:
    """One answer's score: per cent where it can be a probability, else the number as it is."""
    return f"{100 * score:.1f} %" if 0 <= score <= 1 + _ROUNDING else number(score)


def change(metric: str | None, drop: float, original: float) -> str:
    """With a sign: in points where the metric is a share, else in its unit."""
    if is_share(metric):
        return f"{round(100 * drop, 1) + 0.0:+.1f}"
    return signed(0.0 if abs(drop) < _NOTHING * abs(original) else drop)


def growth(drop: float, original: float) -> str:
    """Of an error: the share by which it grows, which limits are held against.
    Empty where it does not."""
    return f" ({100 * drop / original:+.1f} %)" if original and abs(drop) >= _NOTHING * abs(original) else ""


def number(found: float) -> str:
    """To four digits, in full where that is readable."""
    return _readable(found, 4)


def signed(found: float) -> str:
    """To three digits."""
    text = _readable(found, 3)
    return f"+{text}" if found > 0 else text


def _readable(found: float, digits: int) -> str:
    if not found or not math.isfinite(found):
        return f"{found:.0f}" if not found else str(found)
    places = digits - 1 - math.floor(math.log10(abs(found)))
    if not -4 <= places <= 7:
        return f"{found:.{digits}g}"
    text = f"{found:.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Numbers and metrics as a person reads them: units, signs, and a dash for what is unknown.

    percent(0.923), points(-0.0017), size(5_272_056)            # "92.3 %", "-0.2", "5.27 MB"
    score(0.85, "top1"), change("top1", 0.05, 0.9)               # "85.0 %", "+5.0"
    score(92.48, "own:rmse"), change("own:rmse", 2094, 92.48)    # "92.48", "+2094"

Rules: metrics that edgekit knows to be shares are in per cent and their changes in points, any other metric is in its
own unit; a change that is negligible against the value is 0, without a sign.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from edgekit_profiles import milliseconds
from edgekit_runtime.system.errors import shorten

SHORT = {
    "top1": "top-1",
    "top5": "top-5",
    "f1": "F1",
    "map": "mAP",
    "map50": "mAP50",
    "miou": "mIoU",
    "pixel-accuracy": "pixels",
}
"""Metric that is a share -> a column's heading."""

_NOTHING = 1e-4
"""Share of the original's value below which a change is shown as 0."""
_ROUNDING = 1e-5
"""By how much the float32 sum of a softmax may exceed 1."""


def is_share(metric: str | None) -> bool:
    """metric: None for agreement with the original, which is a share."""
    return metric is None or metric in SHORT


def confidence(score: float) -> str:
    """One answer's score: in per cent if it can be a probability."""
    return f"{100 * score:.1f} %" if 0 <= score <= 1 + _ROUNDING else score_number(score)


def change(metric: str | None, drop: float, original: float) -> str:
    """With a sign: in points where the metric is a share, else in its unit."""
    if is_share(metric):
        return f"{round(100 * drop, 1) + 0.0:+.1f}"
    return signed(0.0 if abs(drop) < _NOTHING * abs(original) else drop)


def growth(drop: float, original: float) -> str:
    """The share by which an error metric grows, in brackets; empty if it does not."""
    return f" ({100 * drop / original:+.1f} %)" if original and abs(drop) >= _NOTHING * abs(original) else ""


def score_number(found: float) -> str:
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


def aligned(rows: Sequence[Sequence[str]], *, right: bool) -> Iterator[str]:
    """Lines of columns. right: all but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        yield "  ".join(
            cell.rjust(width) if right and at else cell.ljust(width) for at, (cell, width) in pairs
        ).rstrip()


DASH = "–"

_NAME, _REASON = 40, 400
_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?:0")
_JOINED = re.compile(r"[^\s'\"(),;]+(?:;[^\s'\"(),;]+)+")
_QUOTED = re.compile(rf"'([^'\s]{{{_NAME + 10},}})'")

_METRICS = {
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "f1": "macro F1",
    "map": "mAP",
    "map50": "mAP at 0.5",
    "mae": "mean absolute error",
    "miou": "mean IoU",
    "pixel-accuracy": "pixel accuracy",
}


_CAUSES = {
    "channel-spread": "One scale for channels of very different size",
    "clipped-range": "Values are clipped",
    "concat-of-unlike-ranges": "Ranges of different size joined under one scale",
    "input-scaling": "Inputs are not scaled as the model expects",
    "large-integer-in-float": "Large whole numbers lose digits",
    "noise-amplification": "Noise of the inputs is amplified",
    "nothing-quantized": "Nothing is quantized",
    "outside-calibration": "Evaluation values exceed the calibration range",
    "outlier-activation": "A few large values stretch the range",
    "softmax-head-scale": "Small probabilities fall below one step",
    "splits-graph": "The graph is split between fast and slow kernels",
    "steep-function": "A steep function magnifies rounding",
    "weight-resolution": "Rounded weights",
}


GRADES = {
    "measured": "was timed on the board itself",
    "anchored": "is derived from the time of another network on the same board",
    "estimated": "is derived from the board's data sheet and published times of other boards",
}
"""What a latency's grade means."""

DOMINANT = {
    "dispatch of operations": "is the fixed cost of starting each operator, which is most of a small network's time",
    "memory traffic": "is reading and writing weights and values, which a faster processor does not shorten",
}


def cause(code: str) -> str:
    """A title for a cause's code."""
    return _CAUSES.get(code, code.replace("-", " ").capitalize())


def layer(name: str) -> str:
    """A layer's name, shortened: TensorFlow joins those of fused layers with `;`.

    Each is a path that begins with the network's name.
    """
    if _CALL.fullmatch(name):  # what TensorFlow calls the tensor that a SavedModel's function returns
        return "the output"
    parts = [part for part in name.split(";")[0].split("/") if part]
    return "/".join(parts[1:] if len(parts) > 2 else parts)[-60:] or name[-60:]


def brief(text: str) -> str:
    """A reason with its long names shortened; the JSON has them in full."""
    text = re.sub(rf"'{_CALL.pattern}'", "the output", text)
    text = _JOINED.sub(lambda found: f"{found[0].split(';')[0][-_NAME:]} and {found[0].count(';')} more", text)
    text = _QUOTED.sub(lambda found: f"'...{found[1][-_NAME:]}'", text)
    return shorten(text, _REASON)


def remark(text: str) -> str:
    """A note as a sentence: with a capital unless a recipe's name begins it, without backquotes."""
    first = text.partition(" ")[0]
    return (text[:1].upper() + text[1:] if first.isalpha() else text).replace("`", "")


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share in per cent; less than 1 is never rounded up to 100 %."""
    if value is None:
        return DASH
    text = f"{100 * value:.1f}"
    return "99.9 %" if text == "100.0" and value < 1.0 else f"{text} %"


def share(value: float | None) -> str:
    """A share to three digits."""
    return DASH if value is None else f"{100 * value:.3g} %"


def points(value: float | None) -> str:
    """Hundredths with a sign, except 0."""
    if value is None:
        return DASH
    rounded = round(100 * value, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def decibels(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f} dB"


def size(count: float | None) -> str:
    if count is None:
        return DASH
    if count >= 1e5:
        return f"{count / 1e6:.2f} MB"
    return f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def span(estimate: Mapping[str, Any] | None) -> str:
    """A latency's middle and range."""
    if estimate is None:
        return DASH
    low, middle, high = (milliseconds(estimate[key]) for key in ("low_ms", "mid_ms", "high_ms"))
    return f"{middle} ms ({low} to {high})"


_DISTANCES = {
    "cosine": "1 - cosine",
    "channel": "1 - cosine of the worst channels",
    "offset": "1 - cosine without what is the same for every item",
    "spread": "error over what the answers vary by",
    "variance": "error over the answers' variance",
}


def distance(measure: str) -> str:
    return _DISTANCES.get(measure, measure)


def box_scores(boxes: Mapping[str, Any]) -> str:
    """A clause on the scores of the boxes that were kept; "" if unknown."""
    if not boxes.get("scores"):
        return ""
    before, after = boxes["scores"]
    if f"{before:.2f}" == f"{after:.2f}":
        return f"; the scores of the kept boxes stay at {before:.2f} on average"
    went = "fall" if after < before else "rise"
    return f"; the scores of the kept boxes {went} from {before:.2f} to {after:.2f} on average"


_MEASURES = {
    "agreement": "items answered otherwise",
    "cosine": "cosine short of 1",
    "channel": "the worst channels' cosine short of 1",
    "levels": "next to no levels are left",
    "offset": "cosine short of 1 without what is the same for every item",
    "spread": "error, of what the answers vary by",
    "variance": "error, of the answers' variance",
}


def measure(name: str | None) -> str:
    return _MEASURES.get(name or "", name or DASH)


def score(value: float | None, metric: str | None) -> str:
    if value is None:
        return DASH
    return percent(value) if is_share(metric) else score_number(value)


def lost(found: Mapping[str, Any], drop: float | None = None) -> str:
    """A drop in points or in the metric's unit, with the relative growth of an error.

    drop: None for that of `found`, a fidelity or a score; else one end of its interval
    """
    loss = found.get("drop") if drop is None else drop
    if loss is None:
        return DASH
    metric, original = found.get("metric"), found.get("original")
    if is_share(metric):
        return points(loss)
    text = change(metric, loss, original or 0.0)
    own = (score for score in found.get("scores") or (found,) if score.get("metric") == metric)
    is_error = metric == "mae" or any(not score.get("higher_is_better", True) for score in own)
    return text + growth(loss, original or 0.0) if drop is None and is_error else text


def metric(name: str | None) -> str:
    return "agreement with the original" if name is None else _METRICS.get(name, name)


FILTERS: dict[str, Callable[..., str]] = {
    "brief": brief,
    "cause": cause,
    "confidence": confidence,
    "layer": layer,
    "lost": lost,
    "number": number,
    "percent": percent,
    "remark": remark,
    "share": share,
    "scored": score,
    "decibels": decibels,
    "size": size,
    "span": span,
    "metric": metric,
    "measure": measure,
}

"""Numbers as a person reads them: units, signs, and a dash where there is none.

percent(0.923), points(-0.0017), size(5_272_056)            # "92.3 %", "-0.2", "5.27 MB"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgekit import scores
from edgekit_profiles import milliseconds
from edgekit_runtime.errors import shorten

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
    "clipped-range": "Values are cut off",
    "concat-of-unlike-ranges": "Ranges of different size joined under one scale",
    "input-scaling": "Inputs are not scaled as the model expects",
    "large-integer-in-float": "Large whole numbers lose digits",
    "noise-amplification": "Noise of the inputs is amplified",
    "nothing-quantized": "Nothing is quantized",
    "outside-calibration": "What is evaluated leaves what calibration saw",
    "outlier-activation": "A few large values stretch the range",
    "softmax-head-scale": "Small probabilities fall below one step",
    "splits-graph": "The fast path is left and entered again",
    "steep-function": "A steep function magnifies rounding",
    "weight-resolution": "Rounded weights",
}


GRADES = {
    "measured": "was timed on the board itself",
    "anchored": "is worked out from the time of another network on the same board",
    "estimated": "is worked out from the board's data sheet and published times of other boards",
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
    """A layer's name shortened for a person.
    TensorFlow joins the names of all that it fused with `;`, and each is a path that begins with the network's own
    name."""
    if _CALL.fullmatch(name):  # what TensorFlow calls the tensor that a SavedModel's function returns
        return "the output"
    parts = [part for part in name.split(";")[0].split("/") if part]
    return "/".join(parts[1:] if len(parts) > 2 else parts)[-60:] or name[-60:]


def brief(text: str) -> str:
    """A reason with its long names shortened.
    Of TensorFlow's, joined by `;`, the first stands for all, and a path of scopes is cut at its beginning. The JSON has
    them in full. Advice is no part of a reason, so that it is never cut."""
    text = re.sub(rf"'{_CALL.pattern}'", "the output", text)
    text = _JOINED.sub(lambda found: f"{found[0].split(';')[0][-_NAME:]} and {found[0].count(';')} more", text)
    text = _QUOTED.sub(lambda found: f"'...{found[1][-_NAME:]}'", text)
    return shorten(text, _REASON)


def remark(text: str) -> str:
    """A note as a sentence of the page: a capital, but for a recipe's name, and no backquotes."""
    first = text.partition(" ")[0]
    return (text[:1].upper() + text[1:] if first.isalpha() else text).replace("`", "")


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share as per cent; all but all of it is never rounded up to all of it."""
    if value is None:
        return DASH
    text = f"{100 * value:.1f}"
    return "99.9 %" if text == "100.0" and value < 1.0 else f"{text} %"


def share(value: float | None) -> str:
    """A coarse share, without decimals where it is whole."""
    return DASH if value is None else f"{100 * value:.3g} %"


def points(value: float | None) -> str:
    """Hundredths with a sign; what rounds to nothing has none."""
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
    """How far answers are apart by a measure that counts no answers."""
    return _DISTANCES.get(measure, measure)


def box_scores(boxes: Mapping[str, Any]) -> str:
    """What became of the scores of the boxes that were kept, as a clause.
    "" where that is not known."""
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
    """What decided over an output."""
    return _MEASURES.get(name or "", name or DASH)


def format_score(value: float | None, metric: str | None) -> str:
    """A metric's value in its own unit."""
    if value is None:
        return DASH
    return percent(value) if scores.is_share(metric) else scores.number(value)


def lost(found: Mapping[str, Any], drop: float | None = None) -> str:
    """A drop in points or in the metric's unit; of an error also its relative growth.
    drop: None for that of `found`, a fidelity or a score; else one end of its interval."""
    loss = found.get("drop") if drop is None else drop
    if loss is None:
        return DASH
    metric, original = found.get("metric"), found.get("original")
    if scores.is_share(metric):
        return points(loss)
    text = scores.change(metric, loss, original or 0.0)
    own = (score for score in found.get("scores") or (found,) if score.get("metric") == metric)
    is_error = metric == "mae" or any(not score.get("higher_is_better", True) for score in own)
    return text + scores.growth(loss, original or 0.0) if drop is None and is_error else text


def metric(name: str | None) -> str:
    return "agreement with the original" if name is None else _METRICS.get(name, name)


FILTERS: dict[str, Callable[..., str]] = {
    "brief": brief,
    "cause": cause,
    "confidence": scores.confidence,
    "layer": layer,
    "lost": lost,
    "number": number,
    "percent": percent,
    "remark": remark,
    "share": share,
    "points": points,
    "scored": format_score,
    "decibels": decibels,
    "size": size,
    "span": span,
    "metric": metric,
    "measure": measure,
}

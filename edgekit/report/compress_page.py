"""The page of `edgekit compress`: accuracy against latency, step by step.

    page([result, *others])            # of NAME-compress.json; others: the same with other seeds

Rules:
- a bar over an artifact is the 95 % interval of what it loses over the evaluation items; with several seeds it goes
  from the lowest to the highest of them, and the dot is their mean;
- a step whose gain is within the noise is drawn hollow and called that: the 95 % interval of the gain over items holds
  zero, or with several seeds that over the seeds (Student's t).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from edgekit.charts.chart import HUES, Chart, Shape
from edgekit.report import words
from edgekit.report.figures import Axes, Dot
from edgekit.report.html import render
from edgekit_converters.fidelity.intervals import mean_interval
from edgekit_profiles import milliseconds

Row = Mapping[str, Any]
Result = Mapping[str, Any]

_FORMATS = {"tflite": "TFLite", "onnx": "ONNX"}
_DIAMETER, _SEED = 11.0, 5.0


@dataclass(frozen=True)
class Summary:
    """One artifact over seeds.

    rows: one for each seed that has it
    low, high: ends of the bar
    gain: of its step over the one before: mean and 95 % interval, or None
    noise: whether that interval holds zero
    """

    step: str
    recipe: str
    rows: tuple[Row, ...]
    low: float
    high: float
    gain: tuple[float, float, float] | None
    noise: bool
    note: str

    @property
    def score(self) -> float:
        return fmean(row["score"] for row in self.rows)

    @property
    def name(self) -> str:
        return f"{self.step}, {_FORMATS.get(self.recipe.split('-')[0], self.recipe)}"

    def mean(self, field: str) -> float | None:
        values = [row[field] for row in self.rows if row.get(field) is not None]
        return fmean(values) if values else None


def page(results: Sequence[Result]) -> str:
    """Raises MissingExtraError without jinja2. results[0]: the page's own."""
    own, found = results[0], summary(results)
    board = own["profile"]
    figures = [
        (
            f"On {board}, estimated",
            step_figure(found, step_dots(found, _estimated), "expected latency on the board, ms"),
        ),
        (
            "On this machine, measured",
            step_figure(found, step_dots(found, _here), "median latency on this machine, ms"),
        ),
    ]
    return render(
        "compress.html",
        name=own["name"],
        kept=own["kept"],
        verdict=own["verdict"],
        seeds=[result["seed"] for result in results],
        metric=next((row["metric"] for row in own["rows"] if row["metric"]), None),
        rows=[_cells(one) for one in found],
        failed=[row for row in own["rows"] if row["failed"]],
        figures=[(title, figure) for title, figure in figures if figure is not None],
    )


def summary(results: Sequence[Result]) -> list[Summary]:
    """Summarize each artifact of the first result over all results, without those that failed."""
    found = []
    for row in results[0]["rows"]:
        if row["score"] is None:
            continue
        name = row["step"], row["recipe"]
        same = [one for result in results for one in result["rows"] if (one["step"], one["recipe"]) == name]
        rows = tuple(one for one in same if one["score"] is not None)
        steps = [step for result in results for step in result["steps"] if step["step"] == row["step"]]
        gains = [step["gain"] for step in steps if step.get("gain") and step["gain"]["recipe"] == row["recipe"]]
        gain = _over_seeds(gains) if gains else None
        if len(rows) > 1:
            values = [one["score"] for one in rows]
            low, high = min(values), max(values)
        else:
            low, high = _interval(row)
        noise = gain is not None and gain[1] <= 0 <= gain[2]
        found.append(Summary(*name, rows, low, high, gain, noise, _note(steps)))
    return found


def _over_seeds(gains: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Mean and 95 % interval; of one seed that over its items."""
    values = [gain["points"] for gain in gains]
    if len(values) == 1:
        return (values[0], *gains[0]["ci95"])
    return (fmean(values), *mean_interval(values))


def _interval(row: Row) -> tuple[float, float]:
    """Of a score: the original's less the drop; of an error: the original's and its growth."""
    original, interval = row["original"], row["interval"]
    if interval is None or row["drop"] is None:
        return float(row["score"]), float(row["score"])
    if row.get("error"):
        return original * (1 + interval[0]), original * (1 + interval[1])
    return original - interval[1], original - interval[0]


def _note(steps: Sequence[Mapping[str, Any]]) -> str:
    kept = sum(step["kept"] for step in steps)
    if not steps:
        return ""
    if len(steps) == 1:
        return "kept" if kept else f"not kept: {steps[0]['why']}"
    return f"kept with {kept} of {len(steps)} seeds"


def _estimated(row: Row) -> tuple[float, float, float] | None:
    if row["ms"] is None:
        return None
    return row.get("low_ms") or row["ms"], row["ms"], row["high_ms"]


def _here(row: Row) -> tuple[float, float, float] | None:
    found = row.get("here_ms")
    return None if found is None else (found, found, found)


def step_dots(found: Sequence[Summary], time: Callable[[Row], tuple[float, float, float] | None]) -> list[Dot]:
    """A dot each, and small ones for seeds. time: (low, middle, high) ms of a row, or None."""
    hues = {step: f"h{place % HUES}" for place, step in enumerate(dict.fromkeys(one.step for one in found))}
    dots: list[Dot] = []
    for one in found:
        times = [each for row in one.rows if (each := time(row)) is not None]
        if not times:
            continue
        span, hue = (min(t[0] for t in times), max(t[2] for t in times)), hues[one.step]
        shape: Shape = "circle" if one.recipe.startswith("tflite") else "diamond"
        said = ", ".join(filter(None, (one.name, words.score(one.score, one.rows[0]["metric"]), _gain_words(one))))
        middle = fmean(t[1] for t in times)
        dots.append(
            Dot(
                one.name,
                middle,
                one.score,
                _DIAMETER,
                f"{hue} hollow" if one.noise else hue,
                shape,
                span,
                (one.low, one.high),
                said,
            )
        )
        seeds = [(time(row), row["score"]) for row in one.rows if len(one.rows) > 1]
        dots += [Dot("", each[1], score, _SEED, hue) for each, score in seeds if each]
    return dots


def step_figure(found: Sequence[Summary], dots: Sequence[Dot], title: str) -> Chart | None:
    """None where nothing has a time."""
    if not dots:
        return None
    metric = next((row["metric"] for one in found for row in one.rows), None)
    axes = Axes.of(dots, (title, words.metric(metric)), share=words.is_share(metric))
    hues = {dot.name.rpartition(",")[0]: dot.hue.split(" ")[0] for dot in dots if dot.name}
    keys: list[tuple[str, str, Shape]] = [(step, hue, "circle") for step, hue in hues.items()]
    return axes.draw(f"{words.metric(metric)} against {title}, each artifact a dot", dots, keys)


def _gain_words(one: Summary) -> str:
    if one.gain is None:
        return ""
    metric = one.rows[0]["metric"]
    if one.rows[0].get("error"):
        points, low, high = (f"{100 * value:+.1f} %" for value in one.gain)
    else:
        points, low, high = (words.change(metric, value, one.score) for value in one.gain)
    text = f"{points} ({low} to {high})"
    return f"within the noise: {text}" if one.noise else text


def _cells(one: Summary) -> dict[str, Any]:
    """As the table shows them."""
    row, metric = one.rows[0], one.rows[0]["metric"]
    estimate = None
    if one.mean("ms") is not None:
        estimate = {
            f"{end}_ms": one.mean(field) for end, field in (("low", "low_ms"), ("mid", "ms"), ("high", "high_ms"))
        }
    here, busy = one.mean("here_ms"), " (busy)" * any(each.get("here_busy") for each in one.rows)
    return {
        "step": one.step,
        "recipe": one.recipe,
        "score": words.score(one.score, metric),
        "ends": f"{words.score(one.low, metric)} to {words.score(one.high, metric)}",
        "drop": words.lost(row) if len(one.rows) == 1 and row["drop"] is not None else words.DASH,
        "gain": words.DASH if one.gain is None else words.change(metric, one.gain[0], one.score),
        "gain_ends": None
        if one.gain is None
        else " to ".join(words.change(metric, end, one.score) for end in one.gain[1:]),
        "noise": one.noise,
        "macs": f"{row['macs'] / 1e6:.3g} M" if row["macs"] else words.DASH,
        "bytes": one.mean("bytes") or None,
        "packed": one.mean("packed_bytes") or None,
        "estimate": estimate if estimate and None not in estimate.values() else None,
        "here": words.DASH if here is None else f"{milliseconds(here)} ms{busy}",
        "note": one.note,
        "kept": one.note == "kept",
    }

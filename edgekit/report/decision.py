"""Whether to ship a board's artifact: yes, after N more items, no, or not decided.

    decide(Evidence("tflite-int8", items=500, loss=0.002, interval=(-0.004, 0.008), limit=0.01)).verdict  # "ship"
    for decision, sentence in sentences_of(report_json): ...      # "Ship it after 130 more labelled items: ..."

Rules:
- ship: the whole 95 % interval of the loss keeps the limit, or floats were rounded and nothing else changed;
- ship after N more items: the loss keeps the limit, its interval does not. N makes the interval narrow enough if the
  loss stays the same (its width falls with the root of the number of items), or half of the limit wide where the loss
  is close to the limit; twice as many where repairs are judged by half of the items;
- undecided: a raw task without a metric has only distances, which do not say which decisions change;
- do not ship: nothing acceptable, made-up or void data, an answer that is not finite, no limit, or a limit of 0;
- a loss without an interval, and a distance, count from FEWEST items on;
- below FEW_LABELS labelled items the answers' agreement decides, because accuracy needs more labels;
- fields decide, never words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgekit.report import words
from edgekit_converters.choose import NOISE
from edgekit_converters.data.dataset import FEWEST_APART

Json = Mapping[str, Any]
Verdict = Literal["ship", "ship-after", "undecided", "do-not-ship"]

FEWEST = 2 * FEWEST_APART
"""Items that a loss without an interval must have been seen on."""

FEW_LABELS = 100
"""Labelled items below which one item is more than a point of accuracy."""

VOID = frozenset(
    ["colour-order", "identical-samples", "labels-at-chance", "layout", "normalisation", "out-of-range", "same-answer"]
)
"""Warnings about the data that make a comparison meaningless: the original itself got wrong inputs."""

_ROUNDING = 1e-6
"""By how much floating point may exceed a whole number of items."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one board's artifact.

    recipe: None if none was acceptable; then `refused` has the reason
    loss: 0..1, compared with the limit
    interval: 95 % interval of the loss
    labelled: whether the loss is a metric's
    few_labels: number of labelled items if they are too few for a verdict on accuracy, else 0
    void: a warning that makes the comparison meaningless
    not_finite: number of answers with NaN or infinity
    halved: whether one half of the items judged it
    reused: whether the items that judged it also chose it
    points: whether the loss is of a share, such as accuracy
    of: what was lost, in words
    distance: name of the measure if the loss is a distance from the original's answers
    raw: whether the task is raw, so that answers have no known meaning
    rounded: whether floats were rounded and nothing else changed
    beside: what a loss of boxes leaves out, in words
    coarse: warning about an output with very few levels
    unchanged: whether the file is the original itself
    """

    recipe: str | None
    items: int = 0
    loss: float = 0.0
    interval: tuple[float, float] | None = None
    limit: float | None = None
    labelled: bool = True
    few_labels: int = 0
    made_up: bool = False
    void: str = ""
    not_finite: int = 0
    halved: bool = False
    reused: bool = False
    refused: str = ""
    points: bool = True
    of: str = "top-1 accuracy"
    distance: str = ""
    raw: bool = False
    rounded: bool = False
    beside: str = ""
    coarse: str = ""
    unchanged: bool = False

    def amount(self, loss: float) -> str:
        number = f"{round(100 * loss, 2) + 0.0:g}"
        return f"{number} point{'' if number == '1' else 's'}" if self.points else f"{number} %"

    @property
    def lost(self) -> str:
        if self.distance:
            return (
                f"{self.recipe} is {self.amount(self.loss)} away from your model's answers ({self.distance}) on "
                f"{self.items} items"
            )
        if self.loss <= 0:
            return f"{self.recipe} loses no {self.of} that {self.items} items show{self.beside}"
        if self.labelled and not self.points:
            return f"{self.of} of {self.recipe} grows by {self.amount(self.loss)} on {self.items} items"
        return f"{self.recipe} loses {self.amount(self.loss)} of {self.of} on {self.items} items{self.beside}"


@dataclass(frozen=True)
class Decision:
    """items: how many more a "ship-after" takes, rounded up to two digits. few: below FEWEST."""

    verdict: Verdict
    why: str
    items: int | None = None
    labelled: bool = True
    few: bool = False

    @property
    def headline(self) -> str:
        if self.verdict == "ship":
            return "Ship it"
        if self.verdict == "do-not-ship":
            return "Do not ship"
        if self.verdict == "undecided":
            return "Not decided"
        kind = " labelled" if self.labelled else ""
        more = f"{self.items:,} more{kind} item{'' if self.items == 1 else 's'}"
        return f"Give {more} first" if self.few else f"Ship it after {more}"


def decide(known: Evidence) -> Decision:
    if known.recipe is None:
        return _never(f"every candidate was refused{f', most because {known.refused}' if known.refused else ''}")
    if known.unchanged:
        return Decision("ship", f"{known.recipe} is your file, unchanged, and gave its golden tokens here")
    if known.made_up:
        return _never("it was compared on made-up inputs, which say nothing about real ones")
    if known.void:
        return _never(known.void)
    if known.not_finite:
        return _never(f"{known.not_finite} of {known.items} answers of {known.recipe} are not finite")
    if known.rounded:
        return Decision("ship", f"{known.recipe} answers as your model does, but for the rounding of floats")
    if known.coarse:
        return _never(f"in {known.recipe} {known.coarse}")
    if known.limit is None:
        return _never("no limit says how much it may lose: --max-drop")
    lost, limit = known.lost, f"the limit of {known.amount(known.limit)}"
    if known.raw and not known.labelled:
        most = "" if known.interval is None else f", at most {known.amount(known.interval[1])} with 95 % certainty"
        why = f"{lost}{most}, and nothing says which decisions that changes"
        return Decision("undecided", f"{why}: give a --metric, or the task in a contract file")
    if known.interval is None or (known.distance and known.items < FEWEST):
        if known.items < FEWEST:
            return _after(FEWEST - known.items, f"{lost}, which are few", known)
        return Decision("ship", f"{lost}, within {limit}{_unlabelled(known)}", labelled=known.labelled)
    high = known.interval[1]
    if known.reused and known.items < FEWEST:
        why = f"{known.recipe} was chosen and judged by the same {known.items} items"
        return _after(max(FEWEST - known.items, _more(known) or 0), why, known)
    if high <= known.limit + NOISE:
        most = f"at most {known.amount(high)} with 95 % certainty" if high > 0 else "with 95 % certainty"
        sure = f"{lost}, {most}, within {limit}"
        return Decision("ship", sure + _unlabelled(known), labelled=known.labelled)
    more = _more(known)
    if more is None:
        return _never(f"{lost}, and no number of items proves that it is nothing, as {limit} asks")
    return _after(more, f"{lost}, but it may be {known.amount(high)}, above {limit}", known)


def _never(why: str) -> Decision:
    return Decision("do-not-ship", why)


def _after(more: int, why: str, known: Evidence) -> Decision:
    digits = 10 ** max(0, len(str(more)) - 2)
    why += _accuracy(known)
    return Decision("ship-after", why, math.ceil(more / digits) * digits, known.labelled, known.items < FEWEST)


def _more(known: Evidence) -> int | None:
    """Items until the interval keeps the limit or shows on which side the loss is, or None."""
    assert known.interval is not None
    assert known.limit is not None
    room, reach = max(known.limit - known.loss, known.limit / 2), known.interval[1] - known.loss
    if room <= NOISE:
        return None
    needed = known.items * (reach / room) ** 2
    return max(1, math.ceil((needed - known.items) * (2 if known.halved else 1) - _ROUNDING))


def _accuracy(known: Evidence) -> str:
    return f"; accuracy needs {FEW_LABELS} labels or more, not {known.few_labels}" if known.few_labels else ""


def _unlabelled(known: Evidence) -> str:
    if known.few_labels:
        return _accuracy(known)
    return "" if known.labelled else "; there are no labels, so it was compared with your model's answers alone"


def evidence_of(report: Json, bundle: Json) -> Evidence:
    """report: the object of `edgekit build --json`. bundle: one of its `bundles`."""
    found = bundle.get("fidelity") or {}
    void = next((str(one["what"]) for one in report.get("data") or () if one.get("code") in VOID), "")
    refused = bundle.get("refused") or ()
    # What was not made, or could not run there whatever it is, is the last reason.
    made = [one for one in refused if one.get("code") not in ("missing-extra", "runtime-unavailable")]
    refusals = Counter(str(one.get("rule") or one["reason"]) for one in made or refused)
    metric = found.get("metric") is not None
    items = int(found.get("items") or 0)
    alike = _agreement(found) if metric and items < FEW_LABELS and words.is_share(found["metric"]) else None
    few = alike is not None
    if alike is not None:
        ends = [1.0 - float(end) for end in alike["ci95"][::-1]]
        metric, found = False, {**found, "loss": 1.0 - float(found["agreement"]), "loss_ci95": ends}
    answers = "boxes" if found.get("decisions") else "answers"
    loss, task = found.get("loss"), (report.get("model") or {}).get("task")
    boxes = found.get("decisions") or {}
    if loss is None:
        loss = found.get("drop") if metric else 1.0 - float(found.get("agreement") or found.get("cosine") or 0.0)
    return Evidence(
        bundle.get("recipe"),
        items=items,
        loss=float(loss or 0.0),
        interval=interval_of(found, metric),
        limit=(report.get("limits") or {}).get("max_drop"),
        labelled=metric,
        few_labels=items if few else 0,
        made_up=bool(report.get("random_data")),
        void=void,
        not_finite=int(found.get("not_finite") or 0),
        halved=bool(found.get("chosen_by")) and bool(found.get("judged_apart", True)) and not found.get("folds"),
        reused=bool(found.get("chosen_by")) and not found.get("judged_apart", True),
        refused=refusals.most_common(1)[0][0] if refusals else "",
        points=metric and words.is_share(found["metric"]),
        of=words.metric(found["metric"]) if metric else f"agreement with your model's {answers}",
        distance="" if metric or few else _distance(found),
        raw=task == "raw",
        rounded=bool(found.get("only_rounded")),
        beside=words.box_scores(boxes),
        unchanged=task == "generation",
        coarse="" if metric or _deciding(found).get("measure") != "levels" else str(found["warnings"][0]),
    )


def _deciding(found: Json) -> Json:
    """The output that lost most."""
    outputs: Sequence[Json] = found.get("outputs") or ()
    return max(outputs, key=lambda one: float(one.get("loss") or 0.0), default={})


def _agreement(found: Json) -> Json | None:
    """That of the boxes, or of the output with the least; None for answers of other kinds."""
    shares = [one["agreement"] for one in found.get("outputs") or () if one.get("agreement")]
    boxes: Json | None = found.get("decisions")
    return boxes or min(shares, key=lambda one: float(one["value"]), default=None)


def _distance(found: Json) -> str:
    """What the loss without a metric is, "" where it counts boxes or best classes."""
    measure = str(_deciding(found).get("measure") or ("cosine" if found.get("agreement") is None else "agreement"))
    counted = found.get("decisions") is not None and measure != "levels"
    return "" if counted or measure == "agreement" else words.distance(measure)


def interval_of(found: Json, metric: bool) -> tuple[float, float] | None:
    """95 % interval of the metric's or the boxes' loss, else of the output that lost most."""
    own = found.get("loss_ci95") or (found.get("ci95") if metric else None)
    if own is not None or metric:
        return None if own is None else (float(own[0]), float(own[1]))
    deciding = _deciding(found)
    likeness = {
        "agreement": (deciding.get("agreement") or {}).get("ci95"),
        "cosine": deciding.get("cosine_ci95"),
    }.get(str(deciding.get("measure")))
    return None if likeness is None else (1.0 - float(likeness[1]), 1.0 - float(likeness[0]))


def sentences_of(report: Json) -> Iterator[tuple[Decision, str]]:
    """(decision, sentence) for each group of boards with the same decision."""
    groups: dict[Decision, list[str]] = {}
    for bundle in report["bundles"]:
        groups.setdefault(decide(evidence_of(report, bundle)), []).append(str(bundle["profile"]))
    for decision, boards in groups.items():
        where = "" if len(groups) == 1 else f" ({', '.join(boards)})"
        yield decision, f"{decision.headline}{where}: {words.brief(decision.why)}."

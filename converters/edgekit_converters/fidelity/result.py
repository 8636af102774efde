"""What a comparison of an artifact with the original found, and how far they are apart.

    found.loss, found.measure               # of one output: the largest loss, and what decided it
    result.loss_ci95                        # of all: with its 95 % interval

Rules: an output's loss is the largest of its measures; what kind of numbers it has (`kinds`) decides which there are;
what float arithmetic rounds is no loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from edgekit_converters.data.output_kinds import OutputKind
from edgekit_converters.recipe.artifact import LEAST_INT8

Measure = Literal["agreement", "cosine", "channel", "levels", "offset", "spread", "variance"]
"""What decided over an output, see `OutputDrift.loss`."""

ROUNDING_DB = 80.0
"""From here on the error is a ten-thousandth: the same arithmetic in another order."""
_ROUNDED_SPREAD = 1e-3  # of what an answer varies by: beside a common offset rounding is more


_SHARES = ("top1", "top5", "f1", "map", "map50")
_SLACK = 1e-6  # a cosine in floats


@dataclass(frozen=True)
class Share:
    """A share of `items`, 0..1, with its 95 % interval."""

    value: float
    ci95: tuple[float, float]
    items: int


@dataclass(frozen=True)
class FewLevels:
    """Channels with at most `FEW_LEVELS` distinct values where the original has many.

    channels: first and last of them, None for the whole output. low, high: the original's range there.
    """

    levels: int
    low: float
    high: float
    channels: tuple[int, int] | None = None

    def describe(self, output: str) -> str:
        """What is left of an output, in words."""
        where = "" if self.channels is None else f"in channels {self.channels[0]} to {self.channels[1]} of "
        left = f"{self.levels} of 256 levels {'is' if self.levels == 1 else 'are'} left"
        return f"{where}'{output}' {left}; the original uses many between {self.low:.3g} and {self.high:.3g}"


@dataclass(frozen=True)
class Decisions:
    """The boxes that an application gets: decoded, over the threshold, suppressed.

    original, artifact: how many each gives. kept: pairs of one class with an IoU of 0.5 or more. agreement: kept / the
    larger count, so that neither a lost box nor a new one is free. ci95: of the agreement. scores: the mean score of
    the kept boxes in the original and in the artifact, None where none was kept.
    """

    original: int
    artifact: int
    kept: int
    agreement: float
    ci95: tuple[float, float]
    scores: tuple[float, float] | None = None


@dataclass(frozen=True)
class OutputDrift:
    """One output against the original's, all its values over all items.

    agreement: share of items with the same best class; agreement_top5: share whose original class is among the
    artifact's five best (None for five classes or fewer); agreement_sure: agreement on the items where the original
    gives its answer a probability over 0.5 (None where there is no such item). All three are None for an output that is
    not one score a class. cosine: mean over items. sqnr_db: None where nothing differs. worst: the largest absolute
    error of any value.
    worst_channel_db: the least SQNR of any channel, or of any group of channels with ranges of its own, where the
    output is a map or a list with channels, as a detector's boxes beside its scores; None for one row, or without
    noise.
    few_levels: the channels that have next to no levels left, None where there are none.
    spread_error: root mean square error over the standard deviation of the original's answers over the items: of
    "numbers" the worst one's, of other outputs that of all values together; None for a vector without a large common
    offset.
    loss_ci95: of `loss`, see `DriftMeter`; None where the measure has no interval.
    """

    name: str
    agreement: Share | None
    agreement_top5: Share | None
    agreement_sure: Share | None
    cosine: float
    cosine_ci95: tuple[float, float]
    sqnr_db: float | None
    sqnr_ci95: tuple[float, float] | None
    worst: float
    worst_channel_db: float | None = None
    kind: OutputKind = "vector"
    spread_error: float | None = None
    few_levels: FewLevels | None = None
    loss_ci95: tuple[float, float] | None = None

    @property
    def losses(self) -> dict[Measure, float]:
        """What was lost, by each measure that says something of this kind of output.

        With e = `spread_error`:

        - "classes": `agreement`, the share of items with another best class; also `offset` where one always wins;
        - "numbers": `spread`, e itself. "probabilities": `variance`, e^2, which is 1 - R^2;
        - "vector": `cosine`, 1 - cosine; `channel`, the same of the worst channel; and where nine tenths of the power
          are the same for every item, `offset`, the same of what is left without that. Of noise alone cos = 1 / sqrt(1
          + noise / signal), so that these two are 1 - 1 / sqrt(1 + noise / signal). Scores of classes that do not sum
          to 1 have an `offset` as well;
        - any kind with `few_levels`: `levels`, 1, all that those channels had to say.
        """
        found = self._distances
        return found if self.few_levels is None else {**found, "levels": 1.0}

    @property
    def _distances(self) -> dict[Measure, float]:
        if self.kind == "numbers":
            return {"spread": self.spread_error or 0.0}
        if self.kind == "probabilities":
            return {"variance": (self.spread_error or 0.0) ** 2}
        found: dict[Measure, float] = {"cosine": 1.0 - self.cosine}
        if self.kind == "classes":
            found = {"agreement": 1.0 - self.agreement.value} if self.agreement is not None else found
        elif self.worst_channel_db is not None:
            found["channel"] = _short_of_one(10.0 ** (-self.worst_channel_db / 10.0))
        if self.spread_error is not None:
            found["offset"] = _short_of_one(self.spread_error**2)
        return found

    @property
    def measure(self) -> Measure:
        """The one of `losses` that is greatest, which is `loss`."""
        losses = self.losses
        return max(losses, key=lambda name: losses[name])

    @property
    def loss(self) -> float:
        """0..1, and more where the error exceeds the spread."""
        return self.losses[self.measure]

    @property
    def only_rounded(self) -> bool:
        """Whether all that differs is what float arithmetic rounds, in every channel."""
        if self.few_levels is not None or (self.spread_error or 0.0) > _ROUNDED_SPREAD:
            return False
        return all(db is None or db >= ROUNDING_DB for db in (self.sqnr_db, self.worst_channel_db))

    @property
    def likeness(self) -> float:
        """1 for the same answers, whatever their kind, on the scale of a cosine."""
        if self.kind in ("numbers", "probabilities"):
            return 1.0 - _short_of_one((self.spread_error or 0.0) ** 2)
        return 1.0 - max(
            [1.0 - self.cosine, *(loss for name, loss in self.losses.items() if name in ("channel", "offset"))]
        )


@dataclass(frozen=True)
class Score:
    """One task metric on the same items.

    drop: positive when the artifact is worse, whichever way the metric points.
    """

    metric: str
    original: float
    artifact: float
    drop: float
    ci95: tuple[float, float]
    higher_is_better: bool = True


@dataclass(frozen=True)
class SizeBreakdown:
    """An artifact's bytes: weights in 8 bits or fewer, in more, and all the rest.
    The rest is operators, names, quantization parameters and metadata. The three add up to the file."""

    int8_weights: int
    other_weights: int
    graph: int

    @property
    def total(self) -> int:
        return self.int8_weights + self.other_weights + self.graph


@dataclass(frozen=True)
class StepSpan:
    """Some steps of all sequences: how far a stateful artifact has drifted by then.
    frames: that many sequences' frames fall into it.
    sqnr_db: None where nothing differs.
    worst: the largest absolute error of any value."""

    first: int
    last: int
    frames: int
    sqnr_db: float | None
    worst: float


@dataclass(frozen=True)
class Fidelity:
    """How far an artifact drifted from the original on `items` examples, run by `engine`.

    metric: `top1`, `top5`, `f1`, `map`, `map50`, `mae` or a function's name when there are labels, else None, and then
    original, artifact, drop and ci95 are None. original, artifact: the metric of each. drop: positive when the artifact
    is worse. ci95: 95 % confidence interval of the drop. scores: this metric and the others that the labels allow.
    agreement: share of items whose best class (classification) is the original's, of a detector that of `decisions`;
    None for other tasks, whose outputs may each have one. decisions: None for what is no detector, and where neither
    finds anything in any item. cosine: mean cosine similarity of the outputs, which says nothing of an output of few
    values. sqnr_db: signal to quantization noise, 10 log10(sum x^2 / sum (x - y)^2), over all items and outputs, None
    when the two are equal. outputs: each output by itself, with intervals.
    held_out: the items were held out of the calibration set because no evaluation set was given.
    not_finite: items that the artifact answered with NaN or infinity; each counts as wrong, as disagreeing, as cosine 0
    and, in sqnr_db, as an answer of zeros. size: None where the file could not be read.
    quantized_macs: of the multiply-accumulates that can be counted; uncounted: operations that have others.
    sequences: of a stateful model, how many there were; the artifact carried its own state along each, and `items`
    counts frames. over_time: the drift by steps, so that one that grows is seen.
    chosen_by: of a repaired artifact, how many items it was chosen by. judged_apart: none of them is among `items`, or
    each of `folds` parts of them was answered by a repair that the others chose in the same way.
    top_scores: of a classifier, how many of the artifact's best scores were in each of ten equal parts of 0 to 1.
    """

    items: int
    metric: str | None
    original: float | None
    artifact: float | None
    drop: float | None
    ci95: tuple[float, float] | None
    agreement: float | None
    cosine: float
    sqnr_db: float | None
    quantized_macs: float
    quantized_weights: float
    engine: str
    held_out: bool = False
    repaired: tuple[str, ...] = ()
    not_finite: int = 0
    outputs: tuple[OutputDrift, ...] = ()
    scores: tuple[Score, ...] = ()
    size: SizeBreakdown | None = None
    sequences: int | None = None
    over_time: tuple[StepSpan, ...] = ()
    uncounted: tuple[str, ...] = ()
    decisions: Decisions | None = None
    chosen_by: int = 0
    judged_apart: bool = True
    folds: int = 0
    top_scores: tuple[int, ...] | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a comparison can have come to this; what was read from a file may say anything."""
        shares = [self.agreement, self.quantized_macs, self.quantized_weights]
        cosines = [self.cosine, *(output.cosine for output in self.outputs)]
        errors = [error for output in self.outputs for error in (output.worst, output.spread_error)]
        for output in self.outputs:
            of_classes = (output.agreement, output.agreement_top5, output.agreement_sure)
            shares += [share.value for share in of_classes if share is not None]
        if self.decisions is not None:
            shares.append(self.decisions.agreement)
        shares += [side for one in self.scores if one.metric in _SHARES for side in (one.original, one.artifact)]
        return (
            0 <= self.not_finite <= self.items
            and self.items > 0
            and all(share is None or -_SLACK <= share <= 1 + _SLACK for share in shares)
            and all(abs(cosine) <= 1 + _SLACK for cosine in cosines)
            and all(error is None or error >= 0 for error in errors)
        )

    @property
    def is_error(self) -> bool:
        """Whether the metric counts errors, as `mae` does.
        It has the target's unit, and less is better."""
        return any(score.metric == self.metric and not score.higher_is_better for score in self.scores)

    @property
    def only_rounded(self) -> bool:
        """Whether nothing is in 8 bits, and the outputs differ by the rounding of floats alone.

        What then differs in a metric or a best class is a tie that fell the other way.
        """
        if self.not_finite or self.quantized_macs or self.quantized_weights or not self.outputs:
            return False
        return all(output.only_rounded for output in self.outputs)

    @property
    def int8_in_name_only(self) -> bool:
        """Whether what multiplies is in float, though the recipe says int8."""
        return not self.uncounted and self.quantized_macs < LEAST_INT8

    @property
    def loss(self) -> float:
        """The loss that a limit on the drop applies to.
        It is 0 where floats were rounded and nothing else; the metric's drop, for an error in shares of the original's;
        without labels 1 - the agreement of a detector's decisions, but 1 where an output has few levels left; else the
        loss of the output that lost most, `decisive`: see `OutputDrift.losses`."""
        if self.only_rounded:
            return 0.0
        if self.metric is not None and self.drop is not None:
            return self._relative(self.drop)
        if self.decisions is not None and not self.coarse_outputs:
            return 1.0 - self.decisions.agreement
        if self.decisive is not None:
            return self.decisive.loss
        return 1.0 - (self.agreement if self.agreement is not None else self.cosine)

    @property
    def decisive(self) -> OutputDrift | None:
        """The output that lost most; None where none was looked at by itself."""
        return max(self.outputs, key=lambda output: output.loss, default=None)

    @property
    def coarse_outputs(self) -> tuple[OutputDrift, ...]:
        """Outputs that have few levels left."""
        return tuple(output for output in self.outputs if output.few_levels is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person must know of these figures, whatever the limit says."""
        return tuple(o.few_levels.describe(o.name) for o in self.outputs if o.few_levels is not None)

    @property
    def likeness(self) -> float:
        """Of the output that is least like the original's, 1 for the same.

        The mean cosine where outputs are not known. A detector's boxes may be the same in other rows: then their
        agreement, if it is more.
        """
        raw = min((output.likeness for output in self.outputs), default=self.cosine)
        return raw if self.decisions is None or self.coarse_outputs else max(raw, self.decisions.agreement)

    @property
    def loss_ci95(self) -> tuple[float, float] | None:
        """Of `loss`; None where what decided has no interval."""
        if self.only_rounded:
            return 0.0, 0.0
        if self.metric is None and self.decisions is not None and not self.coarse_outputs:
            return 1.0 - self.decisions.ci95[1], 1.0 - self.decisions.ci95[0]
        if self.metric is None and self.decisive is not None:
            return self.decisive.loss_ci95
        if self.metric is None or self.ci95 is None:
            return None
        return self._relative(self.ci95[0]), self._relative(self.ci95[1])

    def _relative(self, drop: float) -> float:
        return drop / self.original if self.is_error and self.original else drop


def _short_of_one(ratio: float) -> float:
    """How far a cosine is from 1, where the noise has `ratio` of the signal's power."""
    return 1.0 - 1.0 / math.sqrt(1.0 + ratio)

"""What a comparison of an artifact with the original found, and how far they are apart.

    found.loss, found.measure               # of one output: the largest loss, and what decided it
    result.loss_ci95                        # of all: with its 95 % interval

Rules: an output's loss is the largest of its measures; its kind (`kinds`) decides which there are; what float
arithmetic rounds is not a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from edgekit_converters.data.output_kinds import OutputKind
from edgekit_converters.recipe.artifact import LEAST_INT8

Measure = Literal["agreement", "cosine", "channel", "levels", "offset", "spread", "variance"]
"""What decided an output's loss, see `OutputDrift.losses`."""

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

    low, high: the original's range there.
    channels: first and last of them, None for the whole output.
    """

    levels: int
    low: float
    high: float
    channels: tuple[int, int] | None = None

    def describe(self, output: str) -> str:
        where = "" if self.channels is None else f"in channels {self.channels[0]} to {self.channels[1]} of "
        left = f"{self.levels} of 256 levels {'is' if self.levels == 1 else 'are'} left"
        return f"{where}'{output}' {left}; the original uses many between {self.low:.3g} and {self.high:.3g}"


@dataclass(frozen=True)
class Decisions:
    """The boxes that an application gets: decoded, over the threshold, suppressed.

    original, artifact: how many each gives.
    kept: pairs of one class with an IoU of 0.5 or more.
    agreement: kept / the larger count.
    scores: mean score of the kept boxes in the original and in the artifact, None if none was kept.
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

    agreement: share of items with the same best class; None, like the next two, unless the output is one score a class.
    agreement_top5: share whose original class is among the artifact's five best; None for five classes or fewer.
    agreement_sure: agreement where the original's probability is over 0.5; None if there is no such item.
    cosine: mean over items.
    sqnr_db: None if nothing differs.
    worst: the largest absolute error of any value.
    worst_channel_db: least SQNR of any channel or group of channels; None for one row, or without noise.
    spread_error: RMS error over the standard deviation of the original's answers over the items; the worst value's for
        "numbers", else of all values together; None for a vector without a large common offset.
    loss_ci95: of `loss`; None if its measure has no interval.
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
        """Loss by each measure that applies to this kind of output. With e = `spread_error`:

        - "classes": `agreement`, the share of items with another best class; also `offset` if one always wins;
        - "numbers": `spread`, e. "probabilities": `variance`, e^2, which is 1 - R^2;
        - "vector": `cosine`, 1 - cosine; `channel`, the same of the worst channel; and `offset`, the same without what
          all items have in common, if that is nine tenths of the power. Of noise alone cos = 1 / sqrt(1 + noise /
          signal). Scores of classes that do not sum to 1 have an `offset` as well;
        - any kind with `few_levels`: `levels`, 1.
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
        """0..1, and more if the error exceeds the spread."""
        return self.losses[self.measure]

    @property
    def only_rounded(self) -> bool:
        """Whether the only difference, in every channel, is rounding in float arithmetic."""
        if self.few_levels is not None or (self.spread_error or 0.0) > _ROUNDED_SPREAD:
            return False
        return all(db is None or db >= ROUNDING_DB for db in (self.sqnr_db, self.worst_channel_db))

    @property
    def likeness(self) -> float:
        """1 for the same answers, whatever their kind, on the scale of a cosine."""
        if self.kind in ("numbers", "probabilities"):
            return 1.0 - _short_of_one((self.spread_error or 0.0) ** 2)
        losses = [loss for name, loss in self.losses.items() if name in ("channel", "offset")]
        return 1.0 - max([1.0 - self.cosine, *losses])


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
    """An artifact's bytes: weights in 8 bits or fewer, in more, and the rest of the file."""

    int8_weights: int
    other_weights: int
    graph: int

    @property
    def total(self) -> int:
        return self.int8_weights + self.other_weights + self.graph


@dataclass(frozen=True)
class StepSpan:
    """Drift of a stateful artifact over some steps of all sequences.

    frames: how many frames of all sequences fall into it.
    sqnr_db: None if nothing differs.
    worst: the largest absolute error of any value.
    """

    first: int
    last: int
    frames: int
    sqnr_db: float | None
    worst: float


@dataclass(frozen=True)
class Fidelity:
    """How far an artifact drifted from the original on `items` examples, run by `engine`.

    metric: `top1`, `top5`, `f1`, `map`, `map50`, `mae` or a function's name; None without labels, and then original,
        artifact, drop and ci95 are None.
    drop: positive if the artifact is worse; ci95: its 95 % confidence interval.
    agreement: share of items with the original's best class, or of `decisions`; None for other tasks.
    cosine: mean cosine similarity of the outputs.
    sqnr_db: 10 log10(sum x^2 / sum (x - y)^2) over all items and outputs, None if nothing differs.
    quantized_macs: share of the multiply-accumulates that can be counted; uncounted: operations that have others.
    held_out: the items were held out of the calibration set, because no evaluation set was given.
    not_finite: items answered with NaN or infinity, each wrong, disagreeing, cosine 0, and zeros in sqnr_db.
    scores: this metric and the others that the labels allow.
    size: None if the file could not be read.
    sequences: of a stateful model, whose `items` are frames; over_time: its drift by steps.
    decisions: None unless a detector, or if neither model finds anything in any item.
    chosen_by: of a repaired artifact, how many items it was chosen by.
    judged_apart: none of those is among `items`, or a repair that the others chose answered each of `folds` parts.
    top_scores: of a classifier, how many best scores were in each of ten equal parts of 0 to 1.
    rank_agreement: of an embedding, see `compare.rank_agreement`.
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
    rank_agreement: float | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a comparison can have this result, for one that was read from a file."""
        shares = [self.agreement, self.rank_agreement, self.quantized_macs, self.quantized_weights]
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
        """Whether less of the metric is better, as of `mae`, which has the target's unit."""
        return any(score.metric == self.metric and not score.higher_is_better for score in self.scores)

    @property
    def only_rounded(self) -> bool:
        """Whether nothing is in 8 bits and the outputs differ by float rounding alone."""
        if self.not_finite or self.quantized_macs or self.quantized_weights or not self.outputs:
            return False
        return all(output.only_rounded for output in self.outputs)

    @property
    def int8_in_name_only(self) -> bool:
        """Whether all that multiplies is in float, although the recipe says int8."""
        return not self.uncounted and self.quantized_macs < LEAST_INT8

    @property
    def loss(self) -> float:
        """The loss that a limit on the drop applies to: the first that applies.

        0 if only floats were rounded; the metric's drop, of an error relative to the original's; 1 - the agreement of a
        detector's decisions, unless an output has few levels left; the loss of the output that lost most, `decisive`.
        """
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
        """The output that lost most; None if none was looked at by itself."""
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
        """Of the output least like the original's, 1 for the same; else the mean cosine.

        A detector's boxes may be the same in other rows: then their agreement, if it is more.
        """
        raw = min((output.likeness for output in self.outputs), default=self.cosine)
        return raw if self.decisions is None or self.coarse_outputs else max(raw, self.decisions.agreement)

    @property
    def loss_ci95(self) -> tuple[float, float] | None:
        """Of `loss`; None if what decided has no interval."""
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
    """How far a cosine is from 1, if the noise has `ratio` of the signal's power."""
    return 1.0 - 1.0 / math.sqrt(1.0 + ratio)

"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fidelity", "OutputDrift", "Score", "Share", "SizeBreakdown"]


@dataclass(frozen=True)
class Share:
    """A share of `items`, 0..1, with its 95 % interval."""

    value: float
    ci95: tuple[float, float]
    items: int


@dataclass(frozen=True)
class OutputDrift:
    """One output against the original's, all its values over all items.

    agreement: share of items with the same best class; agreement_top5: share whose original class is among the artifact's
    five best (None for five classes or fewer); agreement_sure: agreement on the items where the original gives its answer
    a probability over 0.5 (None where there is no such item). All three are None for an output that is not one score a
    class. cosine: mean over items. sqnr_db: None where nothing differs. worst: the largest absolute error of any value. worst_channel_db: the least SQNR of any channel, where the output is a map or
    a list with channels (its shortest axis), as a detector's boxes beside its scores; None for one row, or without noise.
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


@dataclass(frozen=True)
class Score:
    """One task metric on the same items. drop: positive when the artifact is worse, whichever way the metric points."""

    metric: str
    original: float
    artifact: float
    drop: float
    ci95: tuple[float, float]
    higher_is_better: bool = True


@dataclass(frozen=True)
class SizeBreakdown:
    """Where an artifact's bytes are: weights and biases in 8 bits or fewer, those in more, and all the rest (operators,
    names, quantization parameters, metadata). The three add up to the file."""

    int8_weights: int
    other_weights: int
    graph: int

    @property
    def total(self) -> int:
        return self.int8_weights + self.other_weights + self.graph


@dataclass(frozen=True)
class Span:
    """Some steps of all sequences, first and last: how far a stateful artifact has drifted by then. frames: that many
    sequences' frames fall into it. sqnr_db: None where nothing differs. worst: the largest absolute error of any value.
    """

    first: int
    last: int
    frames: int
    sqnr_db: float | None
    worst: float


@dataclass(frozen=True)
class Fidelity:
    """How far an artifact drifted from the original on `items` examples, run by the engine named in `engine`.

    metric: `top1`, `top5`, `f1`, `map`, `map50`, `mae` or a function's name when there are labels, else None, and then
    original, artifact, drop and ci95 are None. original, artifact: the metric of each. drop: positive when the artifact is
    worse. ci95: 95 % confidence interval of the drop. scores: this metric and the others that the labels allow.
    agreement: share of items whose best class (classification) is the original's, None for other tasks. cosine: mean
    cosine similarity of the outputs. sqnr_db: signal to quantization noise, 10 log10(sum x^2 / sum (x - y)^2), over all
    items and outputs, None when the two are equal. outputs: each output by itself, with intervals.
    held_out: the items were held out of the calibration set because no evaluation set was given.
    not_finite: items that the artifact answered with NaN or infinity; each counts as wrong, as disagreeing, as cosine 0
    and, in sqnr_db, as an answer of zeros. size: None where the file could not be read.
    sequences: of a stateful model, how many there were; the artifact carried its own state along each, and `items` counts
    frames. over_time: the drift by steps, so that one that grows is seen.
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
    over_time: tuple[Span, ...] = ()

    @property
    def is_error(self) -> bool:
        """Whether the metric counts errors, as `mae` does: it has the target's unit, and less is better."""
        return any(score.metric == self.metric and not score.higher_is_better for score in self.scores)

    @property
    def loss(self) -> float:
        """What a limit on the drop is held against: the metric's drop, for an error in shares of the original's; without
        labels the share of answers that changed; where there are no classes either, how far `likeness` is from 1."""
        if self.metric is not None and self.drop is not None:
            return self._relative(self.drop)
        return 1.0 - (self.agreement if self.agreement is not None else self.likeness)

    @property
    def likeness(self) -> float:
        """The cosine, or that of the worst channel of an output where it is less: a detector's boxes in pixels have a cosine
        of 1.0000 whatever becomes of the scores beside them. Of noise alone, cos = 1 / sqrt(1 + noise / signal)."""
        channels = [o.worst_channel_db for o in self.outputs if o.worst_channel_db is not None]
        return min([self.cosine, *(float((1.0 + 10.0 ** (-db / 10.0)) ** -0.5) for db in channels)])

    @property
    def loss_ci95(self) -> tuple[float, float] | None:
        """Of `loss`; None where there is no metric."""
        if self.metric is None or self.ci95 is None:
            return None
        return self._relative(self.ci95[0]), self._relative(self.ci95[1])

    def _relative(self, drop: float) -> float:
        return drop / self.original if self.is_error and self.original else drop

"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fidelity"]


@dataclass(frozen=True)
class Fidelity:
    """How far an artifact drifted from the original on `items` examples, run by the engine named in `engine`.

    metric: `top1` when there are labels, else None, and then original, artifact, drop and ci95 are None.
    original, artifact: the metric of each, 0..1. drop: original - artifact, positive when the artifact is worse.
    ci95: 95 % confidence interval of the drop. agreement: share of items whose best class (classification) is the
    original's, None for other tasks. cosine: mean cosine similarity of the outputs. sqnr_db: signal to quantization
    noise, 10 log10(sum x^2 / sum (x - y)^2), over all items and outputs, None when the two are equal.
    held_out: the items were held out of the calibration set because no evaluation set was given.
    not_finite: items that the artifact answered with NaN or infinity; each counts as wrong, as disagreeing, as cosine 0
    and, in sqnr_db, as an answer of zeros.
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

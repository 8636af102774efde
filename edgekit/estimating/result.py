"""What an estimate tells: a range, or why there is none, and which layers it is made of.

told.estimate.high_ms if told.estimate else told.refused
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit_profiles import CannotEstimateError, Estimate

__all__ = ["Answer", "LayerTime"]


@dataclass(frozen=True)
class LayerTime:
    """ms: of the estimate's middle. share: 0 to 1. bound_by: what of it takes longest, in words."""

    name: str
    kind: str
    macs: int
    ms: float
    share: float
    bound_by: str


@dataclass(frozen=True)
class Answer:
    """estimate: None where there is none, and refused says why. layers: in the file's order, empty where unknown."""

    subject: str
    profile: str
    engine: str
    threads: int
    estimate: Estimate | None
    layers: tuple[LayerTime, ...] = ()
    refused: CannotEstimateError | None = None

"""How a quantized artifact departs from its recipe for one model: what repair changes, and what travels with the artifact.

Plan(float_layers=frozenset({"block_1/conv"}), ranges="mse")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["STATIC", "Plan", "RangeMethod", "Step"]

RangeMethod = Literal["minmax", "percentile", "entropy", "mse"]
"""How a tensor's range follows from what calibration saw; see `calibration.ranges`."""

Step = Literal["equalise", "round", "bias"]
"""A change of the float weights before they are quantized; see `refine`."""


@dataclass(frozen=True)
class Plan:
    """ranges: for every activation. fixed_ranges: tensor -> (low, high), over `ranges`. float_layers: names of layers
    (`graph.Layer.name`) that stay in float. steps: carried out in this order on the float graph.
    """

    ranges: RangeMethod = "minmax"
    fixed_ranges: tuple[tuple[str, float, float], ...] = ()
    float_layers: frozenset[str] = field(default_factory=frozenset)
    steps: tuple[Step, ...] = ()


STATIC = Plan(steps=("round",))
"""What recipes that calibrate do when no plan is given: it costs seconds once a format, and on EfficientNet-Lite0 takes
the noise at the outputs down by 5 dB."""

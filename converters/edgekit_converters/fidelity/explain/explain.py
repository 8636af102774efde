"""The rules in their order, and what becomes of what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgekit_converters.fidelity.explain.activations import (
    cancellation,
    clipped_range,
    concat_of_unlike_ranges,
    gate,
    large_integers,
    outlier,
    outside_calibration,
    softmax_head,
    steep_function,
)
from edgekit_converters.fidelity.explain.case import Case, Cause
from edgekit_converters.fidelity.explain.structure import accumulated, input_scaling, nothing_quantized, splits_graph
from edgekit_converters.fidelity.explain.weights import amplification, channel_spread, weight_resolution

__all__ = ["RULES", "explain"]

Rule = Callable[[Case], Iterator[Cause]]

RULES: tuple[Rule, ...] = (
    nothing_quantized,
    outside_calibration,
    input_scaling,
    cancellation,
    steep_function,
    large_integers,
    concat_of_unlike_ranges,
    gate,
    softmax_head,
    outlier,
    clipped_range,
    channel_spread,
    weight_resolution,
    amplification,
    accumulated,
    splits_graph,
)
"""Where two rules explain the same layer, the earlier one is the more exact."""


def explain(case: Case, most: int = 12) -> tuple[Cause, ...]:
    """At most `most` causes, at most one a layer, the greatest loss first; causes of the whole file are always told."""
    found: dict[str, Cause] = {}
    whole: list[Cause] = []
    for cause in (cause for rule in RULES for cause in rule(case)):
        if cause.layer:
            found.setdefault(cause.layer, cause)
        else:
            whole.append(cause)
    ordered = sorted(found.values(), key=lambda cause: -cause.loss_db)
    return (*ordered[: max(0, most - len(whole))], *whole)

"""Rank layers for float: those that hurt most for what they cost.

    units = island_units(graph.layers)
    order = by_benefit(units, {unit.name: noise_with_that_unit_alone_in_int8})

Rules:
- a layer is measured alone in 8 bits with all others in float: two neighbours share the rounding between them;
- the cost is the share of the multiply-accumulates and of the weights, and a little for the conversions at its edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgekit_converters.formats.graph import Layer

EDGE = 0.002
"""Cost of an island beside its multiply-accumulates and weights, as a share of the model's."""
WEIGHT = 0.25
"""Cost of a share of the weights, against the same share of the multiply-accumulates."""
FINISHING = frozenset({"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "CLIP", "LEAKYRELU", "LEAKY_RELU", "PRELU"})
"""Activations that quantizers fold into the layer before them."""


@dataclass(frozen=True)
class Unit:
    """Layers that go to float together.

    name: of the first.
    macs, weights: shares of the model's, 0..1.
    """

    name: str
    layers: frozenset[str]
    macs: float
    weights: float = 0.0

    @property
    def cost(self) -> float:
        return self.macs + WEIGHT * self.weights + EDGE


def island_units(layers: Sequence[Layer], weights: Mapping[str, int] | None = None) -> tuple[Unit, ...]:
    """Units of all layers in execution order; layers that only move values join their source.

    weights: number of elements by the constant's name.
    """
    weights = weights or {}
    total = sum(layer.macs for layer in layers) or 1
    elements = sum(weights.get(layer.weight or "", 0) for layer in layers) or 1
    readers = Counter(name for layer in layers for name in layer.inputs)
    unit_of: dict[str, int] = {}  # tensor -> place of the unit that makes it
    found: list[list[Layer]] = []
    for layer in layers:
        # a layer belongs to the unit whose work it only finishes
        source = layer.inputs[0] if len(set(layer.inputs)) == 1 and layer.weight is None else None
        alone = source is not None and readers[source] == 1 and layer.op.upper() in FINISHING
        place = unit_of.get(source) if source is not None and (alone or layer.kind == "move") else None
        if place is None:
            place = len(found)
            found.append([])
        found[place].append(layer)
        unit_of.update(dict.fromkeys(layer.outputs, place))
    units = (group for group in found if any(layer.kind != "move" for layer in group))
    return tuple(
        Unit(
            group[0].name,
            frozenset(layer.name for layer in group),
            sum(layer.macs for layer in group) / total,
            sum(weights.get(layer.weight or "", 0) for layer in group) / elements,
        )
        for group in units
    )


def by_benefit(units: Sequence[Unit], noise: Mapping[str, float]) -> tuple[Unit, ...]:
    """Units whose noise was measured, the most useful island first.

    noise: at the outputs with only that unit in int8, by its name.
    """
    measured = [unit for unit in units if unit.name in noise]
    if not measured:
        return ()
    floor = min(noise[unit.name] for unit in measured)  # of rounding the inputs and outputs, which no island mends
    gain = {unit.name: noise[unit.name] - floor for unit in measured}
    return tuple(sorted(measured, key=lambda unit: -gain[unit.name] / unit.cost))


def stretches(units: Sequence[Unit], count: int) -> tuple[Sequence[Unit], ...]:
    """The units in order, cut into `count` stretches of about equal length."""
    count = min(count, len(units))
    ends = [len(units) * place // count for place in range(count + 1)] if count else [0]
    return tuple(units[low:high] for low, high in pairwise(ends))


def merge_units(units: Sequence[Unit]) -> Unit:
    """A stretch as one unit."""
    layers = frozenset[str]().union(*(unit.layers for unit in units))
    return Unit(units[0].name, layers, sum(unit.macs for unit in units), sum(unit.weights for unit in units))


def float_share(units: Sequence[Unit], layers: frozenset[str]) -> float:
    """Share of the multiply-accumulates, 0..1, of units whose layers are all in `layers`."""
    return sum(unit.macs for unit in units if unit.layers <= layers)

"""Causes that concern the file as a whole: what was quantized at all, how it is cut up, and what is fed to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from edgekit_converters.fidelity.explain.activations import outside_calibration
from edgekit_converters.fidelity.explain.case import ACCUMULATED_DB, Case, Cause
from edgekit_converters.workload import quantized_fraction

__all__ = ["accumulated", "input_scaling", "nothing_quantized", "splits_graph"]

_LITTLE = 0.05
_PIXELS = 200.0
_LARGE = 60.0


def nothing_quantized(case: Case) -> Iterator[Cause]:
    """A recipe that is carried out and changes nothing is the commonest silent failure of quantizers."""
    macs, weights = quantized_fraction(case.quantized.format, case.quantized.data)
    if weights >= _LITTLE or macs >= _LITTLE:
        return
    ratio = len(case.quantized.data) / max(1, len(case.float_graph.data))
    rest = Counter(layer.op for layer in case.float_graph.layers)
    listed = ", ".join(f"{count} {op}" for op, count in rest.most_common(3))
    yield Cause(
        "",
        "nothing-quantized",
        f"{100 * weights:.0f} % of the weights and {100 * macs:.0f} % of the multiply-accumulates are in 8 bits, and the file "
        f"is {ratio:.2f}x the float one; the graph is {listed or 'empty'}",
        {"weights": weights, "macs": macs, "size_ratio": ratio},
        "Take the float artifact: this one brings nothing",
    )


def input_scaling(case: Case) -> Iterator[Cause]:
    """Pixels from 0 to 255 into a model that normalises nothing itself, or calibration on another scale than the data."""
    for name in case.float_graph.inputs:
        low, high = case.input_ranges.get(name, (0.0, 0.0))
        readers = [layer for layer in case.float_graph.layers if name in layer.inputs]
        first = next((layer for layer in readers if layer.weight is not None), None)
        found = case.by_layer.get(first.name) if first is not None else None
        if high < _PIXELS or low < -1 or first is None or first.weight is None or found is None:
            continue
        middle = max(abs(found.middle_low), abs(found.middle_high))
        if middle < _LARGE and not _saturated(first.fused, middle):
            continue
        yield Cause(
            first.name,
            "input-scaling",
            f"its input '{name}' runs from {low:.3g} to {high:.3g} and nothing before it normalises; its output reaches "
            f"{middle:.3g}: a model that expects -1..1 or 0..1 would answer so",
            {"low": low, "high": high, "output": middle},
            "Set mean and std of the input in the contract file",
            max(found.harm_db, 1.0),
        )


def accumulated(case: Case) -> Iterator[Cause]:
    """Damage at the end that no layer did alone: every layer rounds a little, and it adds up."""
    output = next(
        (case.by_layer[layer.name] for layer in reversed(case.float_graph.layers) if layer.name in case.by_layer), None
    )
    if output is None or output.sqnr_db is None or output.sqnr_db >= ACCUMULATED_DB or case.damaged:
        return
    if any(outside_calibration(case)):
        return  # what is cut off is no rounding
    adding = [error for error in case.errors if error.own_sqnr_db is not None]
    worst = sorted(adding, key=lambda error: error.own_sqnr_db or 0.0)[:5]
    if not worst:
        return
    low = worst[0].own_sqnr_db or 0.0
    yield Cause(
        "",
        "accumulated",
        f"{output.sqnr_db:.0f} dB are left at the end, and no layer loses much by itself: {len(adding)} layers round a little "
        f"each, none of them to less than {low:.0f} dB",
        {
            "sqnr_db": output.sqnr_db,
            "layers": len(adding),
            "worst_own_db": low,
            "worst": [error.layer for error in worst],
        },
        "Let activations have 16 bits, or leave the layers that add most in float",
        output.harm_db,
        tuple(error.layer for error in worst),
    )


def splits_graph(case: Case) -> Iterator[Cause]:
    """Every change between quantized and float costs a pass over the tensor, and the fast path starts anew."""
    if case.pieces is not None and case.pieces > 1 and case.outside:
        named = ", ".join(f"{count} {op}" for op, count in Counter(case.outside).most_common(3))
        yield Cause(
            "",
            "splits-graph",
            f"operators outside the engine's fast path ({named}) split the graph in {case.pieces} pieces",
            {"pieces": case.pieces, "outside": list(case.outside)},
            "Replace them (ReLU6 for hard-swish), leave them in float if the engine has them there, or take the float artifact",
        )
    elif (islands := _islands(case)) > 4:
        yield Cause(
            "",
            "splits-graph",
            f"values go from 8 bits to float and back {islands} times on the way through the graph",
            {"pieces": islands},
            "Quantize the operators in between too, or leave whole stretches in float",
        )


def _islands(case: Case) -> int:
    """Float stretches between quantized layers, in the order of execution."""
    states = [error.quantized for error in case.errors if not error.integers]
    while states and not states[-1]:
        states.pop()
    return sum(before and not after for before, after in pairwise(states))


def _saturated(fused: str | None, high: float) -> bool:
    return fused == "relu6" and high >= 6

"""Causes of damage in the values that a layer computes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgekit_converters.fidelity.causes import DAMAGE_DB, HALF_DB, Case, Cause
from edgekit_converters.fidelity.layers import LayerError
from edgekit_converters.formats.graph import UNLIKE, Layer

_STEEP = ("DIV", "EXP", "POW", "RECIPROCAL", "RSQRT", "SQRT", "LOG", "SQUARE", "MUL")
_STRETCH = 3.0
_NEAR_DB = 6.0
_GATES = ("LOGISTIC", "SIGMOID", "HARDSIGMOID", "HARD_SIGMOID")


def cancellation(case: Case) -> Iterator[Cause]:
    """A sum or difference much smaller than its terms, and lost in their rounding."""
    for layer, error in case.damaged:
        terms = case.input_errors(layer)
        if not (layer.op.upper() in ("SUB", "ADD", "SUM") and layer.kind == "elementwise" and terms):
            continue
        largest = max(terms, key=lambda term: term.float_rms)
        if error.float_rms == 0 or largest.float_rms < 4 * error.float_rms:
            continue
        ratio = largest.float_rms / error.float_rms
        step = largest.scale
        rounded = f", and its terms are rounded to steps of {step:.3g}" if step else ""
        yield Cause(
            layer.name,
            "cancellation",
            f"it is the small difference of large values: its terms are {ratio:.0f}x larger than what is left "
            f"(rms {largest.float_rms:.3g} against {error.float_rms:.3g}){rounded}",
            {"ratio": ratio, "terms_rms": largest.float_rms, "rms": error.float_rms, "step": step or 0.0},
            "Keep the difference and the layers that its terms are computed in in float (a variance or a normalisation "
            "costs few multiply-accumulates)",
            error.harm_db,
            case.upstream(layer),
        )


def steep_function(case: Case) -> Iterator[Cause]:
    """A function that amplifies steps: a power, quotient, exponential or product.

    A step of its input is many of its output, or most of its values fall into the first step.
    """
    for layer, error in case.damaged:
        if layer.op.upper() not in _STEEP or layer.weight is not None:
            continue
        smallest, typical, grid = _least(error), _reach(error), error.grid_sqnr_db
        squares = len(layer.inputs) == 2 and layer.inputs[0] == layer.inputs[1]
        if layer.op.upper() == "MUL" and not squares and (grid is None or grid > DAMAGE_DB):
            continue
        before = case.input_errors(layer)
        step = max((entry.scale or 0.0 for entry in before), default=0.0)
        least = min((_least(entry) for entry in before), default=0.0)
        comes = f"; its input comes down to {least:.3g}, where one step is {step:.3g}"
        small = comes if step > 0 and least < 4 * step else ""
        yield Cause(
            layer.name,
            "steep-function",
            f"{layer.op} spans from {smallest:.3g} to {typical:.3g}{small}: a step of its input moves its output by "
            f"more than a step, and the signal to noise ratio falls by {error.fall_db:.0f} dB here",
            {"low": smallest, "high": typical, "input_step": step, "input_least": least, "step": error.scale or 0.0},
            "Keep it and the layers that compute its input in float, or let its input have 16 bits",
            error.harm_db,
            case.upstream(layer),
        )


def outlier(case: Case) -> Iterator[Cause]:
    """A few values far from all others set the step for all values."""
    for layer, error in case.damaged:
        middle, whole = error.middle_high - error.middle_low, error.float_high - error.float_low
        if not error.quantized or middle <= 0 or error.harm_db < _NEAR_DB or not _grid_is_to_blame(error):
            continue
        stretch, crest = whole / middle, _reach(error) / error.float_rms
        if stretch < _STRETCH and crest < 20:
            continue
        yield Cause(
            layer.name,
            "outlier-activation",
            f"the 0.01 % largest values stretch the range {stretch:.1f}x: {error.float_low:.3g} to "
            f"{error.float_high:.3g}, where 99.99 % lie between {error.middle_low:.3g} and {error.middle_high:.3g}; "
            f"one step is {error.scale:.3g} and a typical value {error.float_rms:.3g}",
            {
                "stretch": stretch,
                "crest": crest,
                "low": error.float_low,
                "high": error.float_high,
                "middle_low": error.middle_low,
                "middle_high": error.middle_high,
                "step": error.scale or 0.0,
                "rms": error.float_rms,
            },
            "Clip the range (percentile, MSE or entropy), or keep this layer in float",
            error.harm_db,
            case.with_readers(error),
        )


def clipped_range(case: Case) -> Iterator[Cause]:
    """A range of the quantizer that clips values: the clipping makes half of the noise."""
    for layer, error in case.damaged:
        low, high, cut = error.grid_low, error.grid_high, error.cut_sqnr_db
        if low is None or high is None or cut is None or error.sqnr_db is None or cut > error.sqnr_db + HALF_DB:
            continue
        yield Cause(
            layer.name,
            "clipped-range",
            f"its values reach from {error.float_low:.3g} to {error.float_high:.3g} and the quantized tensor only from "
            f"{low:.3g} to {high:.3g}: cutting them off, with all else in float, leaves {cut:.0f} dB",
            {
                "low": error.float_low,
                "high": error.float_high,
                "quantized_low": low,
                "quantized_high": high,
                "cut_sqnr_db": cut,
            },
            "Take the whole range (min-max), or keep it in float",
            error.harm_db,
            case.with_readers(error),
        )


def outside_calibration(case: Case) -> Iterator[Cause]:
    """The first tensor whose values on evaluation exceed the calibrated range."""
    seen = {name: (*case.input_ranges[name], cut) for name, cut in case.input_cuts.items()}
    for error in case.errors:
        cut = error.cut_sqnr_db
        if cut is not None and error.sqnr_db is not None and cut <= error.sqnr_db + HALF_DB:
            seen[error.tensor] = (error.float_low, error.float_high, cut)
    beyond = []
    for name, (low, high, cut) in seen.items():
        least, most = case.calibrated.get(name, (low, high))
        room = 0.1 * (most - least)  # a tenth of what calibration saw
        if cut < DAMAGE_DB and max(high - most, least - low) > room:
            beyond.append(name)
    if not beyond:
        return
    name = beyond[0]
    reader = next((layer for layer in case.float_graph.layers if name in (*layer.outputs, *layer.inputs)), None)
    (low, high, cut), (least, most) = seen[name], case.calibrated[name]
    more = f"; so it is with {len(beyond) - 1} more" if len(beyond) > 1 else ""
    yield Cause(
        case.producers[name].name if name in case.producers else reader.name if reader is not None else "",
        "outside-calibration",
        f"'{name}' runs from {low:.3g} to {high:.3g} on the items that are evaluated, and calibration saw {least:.3g} "
        f"to {most:.3g}: cutting off what lies beyond leaves {cut:.0f} dB{more}",
        {
            "low": low,
            "high": high,
            "calibrated_low": least,
            "calibrated_high": most,
            "cut_sqnr_db": cut,
            "tensors": len(beyond),
        },
        "Calibrate with samples like those that are evaluated, on the same scale",
        60.0 - cut,
    )


def large_integers(case: Case) -> Iterator[Cause]:
    """Indexes, counts and codes lose their last digits in 256 levels."""
    for layer in case.float_graph.layers:
        error = case.by_layer.get(layer.name)
        if error is None or not error.integers or not error.quantized or error.scale is None:
            continue
        if error.float_high - error.float_low <= 256 or error.scale <= 1 or (error.sqnr_db or 99) > 60:
            continue
        yield Cause(
            layer.name,
            "large-integer-in-float",
            f"its values are whole numbers from {error.float_low:.0f} to {error.float_high:.0f}, and one step of "
            f"8 bits is {error.scale:.3g}: neighbours become the same",
            {"low": error.float_low, "high": error.float_high, "step": error.scale},
            "Keep it and what reads it in float",
            max(error.harm_db, 20.0),
            case.with_readers(error),
        )


def concat_of_unlike_ranges(case: Case) -> Iterator[Cause]:
    """All parts share one scale, so the part with small values is left a few steps."""
    for layer in case.float_graph.layers:
        if layer.kind != "concat" or not (error := case.by_layer.get(layer.name)) or not error.quantized:
            continue
        parts = [part for part in case.input_errors(layer) if _reach(part) > 0]
        if len(parts) < 2:
            continue
        least, most = min(parts, key=_reach), max(parts, key=_reach)
        if _reach(most) < UNLIKE * _reach(least):
            continue
        levels = 2 * _reach(least) / (error.scale or 1.0)
        yield Cause(
            layer.name,
            "concat-of-unlike-ranges",
            f"it joins ranges of {_reach(least):.3g} and {_reach(most):.3g} under one scale: the smaller is left "
            f"{max(levels, 1):.0f} of 256 levels",
            {"least": _reach(least), "most": _reach(most), "levels": levels, "small_part": least.layer},
            "Keep the concatenation and its readers in float, or scale the parts alike before it",
            max(error.harm_db, 20 * math.log10(_reach(most) / _reach(least)) / 2),
            (layer.name, *(reader.name for reader in case.float_graph.layers if layer.outputs[0] in reader.inputs)),
        )


def gate(case: Case) -> Iterator[Cause]:
    """A product with a gate between 0 and 1 (squeeze-and-excite, SiLU), which scales its error."""
    for layer, error in case.damaged:
        makers = [case.producers[name] for name in layer.inputs if name in case.producers]
        if layer.op.upper() != "MUL" or len(makers) != 2:
            continue
        opener = next((maker for maker in makers if _opens(maker, case)), None)
        if opener is None:
            continue
        found = case.by_layer.get(opener.name)
        squeezed = found is not None and found.values * 4 <= error.values
        kind = "a squeeze-and-excite gate, one value a channel" if squeezed else "a gate, one for each value"
        shown = f" (it runs from {found.float_low:.2g} to {found.float_high:.2g})" if found else ""
        yield Cause(
            layer.name,
            "gate",
            f"it multiplies with {kind}{shown}, and an error of the gate goes into all that it multiplies: "
            f"{error.fall_db:.0f} dB are lost here",
            {
                "gate": opener.name,
                "gate_low": found.float_low if found else 0.0,
                "gate_high": found.float_high if found else 0.0,
                "gate_sqnr_db": (found.sqnr_db if found and found.sqnr_db is not None else 99.0),
            },
            "Keep the gate's layers and the product in float",
            error.harm_db,
            (layer.name, *case.upstream(opener)),
        )


def softmax_head(case: Case) -> Iterator[Cause]:
    """Probabilities in steps of 1/256: below 0.2 % they become zero, and near ties become ties."""
    for layer, error in case.damaged:
        if layer.op.upper() != "SOFTMAX" or error.scale is None or error.scale < 1 / 300 or error.harm_db < _NEAR_DB:
            continue
        if not _grid_is_to_blame(error):
            continue
        yield Cause(
            layer.name,
            "softmax-head-scale",
            f"its {error.values} probabilities share steps of 1/{1 / error.scale:.0f}: a typical one is "
            f"{error.float_rms:.2g}, so classes that are near each other become equal",
            {"step": error.scale, "classes": error.values, "rms": error.float_rms},
            "Keep the softmax in float, or let the application take the logits",
            error.harm_db,
            (layer.name,),
        )


def _opens(layer: Layer, case: Case) -> bool:
    """Whether it is a sigmoid, or stays in 0..1 and is computed from an activation."""
    if layer.op.upper() in _GATES:
        return True
    error = case.by_layer.get(layer.name)
    gated = layer.kind in ("activation", "elementwise") and layer.op.upper() not in ("SOFTMAX", "TANH")
    return gated and error is not None and error.float_low >= -0.01 and 0.0 < error.float_high <= 1.01


def _grid_is_to_blame(error: LayerError) -> bool:
    """Rounding to the tensor's own step makes about the noise that is there."""
    grid = error.grid_sqnr_db
    return grid is not None and error.sqnr_db is not None and grid <= error.sqnr_db + _NEAR_DB


def _least(error: LayerError) -> float:
    """The least magnitude, 0 where the values change sign."""
    return 0.0 if error.float_low <= 0 <= error.float_high else min(abs(error.float_low), abs(error.float_high))


def _reach(error: LayerError) -> float:
    return max(abs(error.float_low), abs(error.float_high))

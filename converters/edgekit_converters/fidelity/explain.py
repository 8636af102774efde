"""Explain the damage of a quantized file: run both, apply the rules, rank the causes.

causes = explain(examine(float_graph, quantized_graph, feeds))
pieces, outside = fast_path("tflite", artifact.data)         # 22, ("HARD_SWISH", ...), from the engine itself
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity import activation_causes
from edgekit_converters.fidelity.causes import (
    ACCUMULATED_DB,
    Case,
    Cause,
    IsolatedLayer,
    amplification,
    channel_spread,
    rounded_weights,
    weight_resolution,
    with_its_kernel,
)
from edgekit_converters.fidelity.intervals import decibels
from edgekit_converters.fidelity.layers import Feed, Pair, layer_errors
from edgekit_converters.formats.graph import Graph
from edgekit_converters.formats.workload import quantized_fraction
from edgekit_converters.recipe.progress import Progress, silent

_DELEGATE = "DELEGATE"


def fast_path(format: str, data: bytes) -> tuple[int | None, tuple[str, ...]]:  # noqa: A002
    """(parts that XNNPACK runs as one, operators left to plain kernels, an entry each).

    (None, ()) for ONNX, whose runtime does not say, and if the engine does not answer.
    """
    if format != "tflite":
        return None, ()
    try:
        from ai_edge_litert.interpreter import Interpreter

        from edgekit_converters.recipe.foreign_code import quiet

        with quiet():
            interpreter = Interpreter(model_content=data, num_threads=1)
            interpreter.allocate_tensors()
            nodes: Sequence[Mapping[str, Any]] = interpreter._get_ops_details()
    except Exception:  # noqa: BLE001  the call is not public, and an engine without it is not the file's fault
        return None, ()
    pieces = [node for node in nodes if node["op_name"] == _DELEGATE]
    inside = {index for piece in pieces for index in _inside(piece, nodes)}
    plain = [node for node in nodes if node["op_name"] != _DELEGATE and node["index"] not in inside]
    return len(pieces), tuple(str(node["op_name"]) for node in plain)


def _inside(piece: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> set[int]:
    """Indexes of the nodes that a piece replaced, which the engine keeps in its list."""
    makers = {int(tensor): node for node in nodes if node["op_name"] != _DELEGATE for tensor in node["outputs"]}
    known = {int(tensor) for tensor in piece["inputs"]}
    left, found = [int(tensor) for tensor in piece["outputs"]], set()
    while left:
        tensor = left.pop()
        node = makers.get(tensor)
        if tensor in known or node is None or node["index"] in found:
            continue
        found.add(int(node["index"]))
        left.extend(int(source) for source in node["inputs"])
    return found


Seen = Mapping[str, NDArray[Any]]
_FEW = 4  # samples that are enough for what rounding the weights costs, in a large model
_LARGE = 1 << 20  # bytes of a model of which only a few samples are run again and again
_EXACT_DB = 200.0
_TRIED = 8  # damaged layers whose kernel is rounded by itself


def examine(
    float_graph: Graph,
    quantized: Graph,
    feeds: Iterable[Feed],
    limit: int = 16,
    progress: Progress = silent,
    calibrated: Mapping[str, tuple[float, float]] | None = None,
) -> Case:
    """The case of `quantized` against `float_graph`; feeds and errors as for `layer_errors`.

    calibrated: the ranges that calibration saw, by tensor, if the feeds are others.
    """
    ranges: dict[str, tuple[float, float]] = {}

    def watched() -> Iterator[Feed]:
        for feed in feeds:
            for name, array in zip(float_graph.inputs, feed, strict=True):
                low, high = ranges.get(name, (np.inf, -np.inf))
                ranges[name] = (min(low, float(array.min())), max(high, float(array.max())))
                if name in grids:
                    inputs.setdefault(name, Pair()).add(array, np.clip(array, grids[name].low, grids[name].high))
            if len(kept) < (_FEW if len(float_graph.data) > _LARGE else limit):
                kept.append(feed)
            yield feed

    kept: list[Feed] = []
    grids, inputs = quantized.grids, dict[str, Pair]()
    errors = layer_errors(float_graph, quantized, watched(), limit, progress)
    rounded = rounded_weights(float_graph, quantized)
    alone = layer_errors(float_graph, rounded, kept, len(kept), progress) if rounded is not None else ()
    pieces, outside = fast_path(quantized.format, quantized.data)
    cuts = {name: left for name, pair in inputs.items() if (left := decibels(pair.signal, pair.noise)) is not None}
    case = Case(float_graph, quantized, errors, alone, ranges, cuts, calibrated or {}, pieces=pieces, outside=outside)
    return replace(case, kernels=_kernels(case, kept))


def _kernels(case: Case, feeds: Sequence[Feed]) -> dict[str, IsolatedLayer]:
    """Signal left with each damaged layer's kernel rounded alone, by layer."""
    damaged = [(layer, error.tensor) for layer, error in case.damaged if layer.weight is not None][:_TRIED]
    if not damaged:
        return {}
    ends = [name for name in case.float_graph.outputs if name in case.quantized.tensors]
    tensors = [*dict.fromkeys([*(tensor for _, tensor in damaged), *ends])]
    expected, answers = _seen(case.float_graph, tensors, feeds), _seen(case.quantized, tensors, feeds)
    found: dict[str, IsolatedLayer] = {}
    for layer, tensor in damaged:
        graph = with_its_kernel(case.float_graph, case.quantized, layer)
        if graph is None:
            continue
        tried = _seen(graph, [tensor, *ends], feeds)
        at = [("here", [tensor]), *([("at the end", ends)] if ends else [])]
        alone = [
            IsolatedLayer(_left(expected, tried, names), _left(expected, answers, names), where) for where, names in at
        ]
        found[layer.name] = min(alone, key=lambda one: one.kernel_db - one.artifact_db)
    return found


def _seen(graph: Graph, tensors: Sequence[str], feeds: Sequence[Feed]) -> list[Seen]:
    with graph.watch(tensors) as watched:
        return [watched.run(feed) for feed in feeds]


def _left(before: Sequence[Seen], after: Sequence[Seen], tensors: Sequence[str]) -> float:
    """dB of the tensor that has least left; 200 if nothing differs."""
    left = [_EXACT_DB]
    for tensor in tensors:
        pair = Pair()
        for first, second in zip(before, after, strict=True):
            if tensor in first and tensor in second and first[tensor].size == second[tensor].size:
                pair.add(first[tensor], second[tensor])
        found = decibels(pair.signal, pair.noise)
        left.append(_EXACT_DB if found is None else found)
    return min(left)


_LITTLE = 0.05
_PIXELS = 200.0
_LARGE_INPUT = 60.0


def nothing_quantized(case: Case) -> Iterator[Cause]:
    """A conversion that changed nothing, the commonest silent failure of quantizers."""
    macs, weights = quantized_fraction(case.quantized.format, case.quantized.data)
    if weights >= _LITTLE or macs >= _LITTLE:
        return
    ratio = len(case.quantized.data) / max(1, len(case.float_graph.data))
    rest = Counter(layer.op for layer in case.float_graph.layers)
    listed = ", ".join(f"{count} {op}" for op, count in rest.most_common(3))
    yield Cause(
        "",
        "nothing-quantized",
        f"{100 * weights:.0f} % of the weights and {100 * macs:.0f} % of the multiply-accumulates are in 8 bits, and "
        f"the file is {ratio:.2f}x the float one; the graph is {listed or 'empty'}",
        {"weights": weights, "macs": macs, "size_ratio": ratio},
        "Take the float artifact: this one brings nothing",
    )


def input_scaling(case: Case) -> Iterator[Cause]:
    """Pixels of 0 to 255 for a model that does not normalise, or calibration on another scale."""
    for name in case.float_graph.inputs:
        low, high = case.input_ranges.get(name, (0.0, 0.0))
        readers = [layer for layer in case.float_graph.layers if name in layer.inputs]
        first = next((layer for layer in readers if layer.weight is not None), None)
        found = case.by_layer.get(first.name) if first is not None else None
        if high < _PIXELS or low < -1 or first is None or first.weight is None or found is None:
            continue
        middle = max(abs(found.middle_low), abs(found.middle_high))
        if middle < _LARGE_INPUT and not (first.fused == "relu6" and middle >= 6):
            continue
        yield Cause(
            first.name,
            "input-scaling",
            f"its input '{name}' runs from {low:.3g} to {high:.3g} and nothing before it normalises; its output "
            f"reaches {middle:.3g}: a model that expects -1..1 or 0..1 would answer so",
            {"low": low, "high": high, "output": middle},
            "Set mean and std of the input in the contract file",
            max(found.harm_db, 1.0),
        )


def accumulated_noise(case: Case) -> Iterator[Cause]:
    """Damage at the end that no layer did alone: the roundings of all layers add up."""
    output = next(
        (case.by_layer[layer.name] for layer in reversed(case.float_graph.layers) if layer.name in case.by_layer), None
    )
    if output is None or output.sqnr_db is None or output.sqnr_db >= ACCUMULATED_DB or case.damaged:
        return
    if any(activation_causes.outside_calibration(case)):
        return  # clipping is not rounding
    adding = [error for error in case.errors if error.own_sqnr_db is not None]
    worst = sorted(adding, key=lambda error: error.own_sqnr_db or 0.0)[:5]
    if not worst:
        return
    low = worst[0].own_sqnr_db or 0.0
    yield Cause(
        "",
        "accumulated",
        f"{output.sqnr_db:.0f} dB are left at the end, and no layer loses much by itself: {len(adding)} layers round "
        f"a little each, none of them to less than {low:.0f} dB",
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
    """Changes between quantized and float parts; each ends the fast path."""
    if case.pieces is not None and case.pieces > 1 and case.outside:
        named = ", ".join(f"{count} {op}" for op, count in Counter(case.outside).most_common(3))
        yield Cause(
            "",
            "splits-graph",
            f"operators outside the engine's fast path ({named}) split the graph in {case.pieces} pieces",
            {"pieces": case.pieces, "outside": list(case.outside)},
            "Replace them (ReLU6 for hard-swish), leave them in float if the engine has them there, or take the "
            "float artifact",
        )
        return
    # float stretches between quantized layers, in the order of execution
    states = [error.quantized for error in case.errors if not error.integers]
    while states and not states[-1]:
        states.pop()
    islands = sum(before and not after for before, after in pairwise(states))
    if islands > 4:
        yield Cause(
            "",
            "splits-graph",
            f"values go from 8 bits to float and back {islands} times on the way through the graph",
            {"pieces": islands},
            "Quantize the operators in between too, or leave whole stretches in float",
        )


Rule = Callable[[Case], Iterator[Cause]]

RULES: tuple[Rule, ...] = (
    nothing_quantized,
    activation_causes.outside_calibration,
    input_scaling,
    activation_causes.cancellation,
    activation_causes.steep_function,
    activation_causes.large_integers,
    activation_causes.concat_of_unlike_ranges,
    activation_causes.gate,
    activation_causes.softmax_head,
    activation_causes.outlier,
    activation_causes.clipped_range,
    channel_spread,
    weight_resolution,
    amplification,
    accumulated_noise,
    splits_graph,
)
"""Where two rules explain the same layer, the earlier one is the more exact."""


def explain(case: Case, most: int = 12) -> tuple[Cause, ...]:
    """At most `most` causes: one a layer, the greatest loss first, then all of the whole file."""
    found: dict[str, Cause] = {}
    whole: list[Cause] = []
    for cause in (cause for rule in RULES for cause in rule(case)):
        if cause.layer:
            found.setdefault(cause.layer, cause)
        else:
            whole.append(cause)
    ordered = sorted(found.values(), key=lambda cause: -cause.loss_db)
    return (*ordered[: max(0, most - len(whole))], *whole)

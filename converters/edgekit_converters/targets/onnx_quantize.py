"""ONNX recipes: every one starts from the float model's bytes, and what it makes loads in ONNX Runtime with all its optimizations.

    data = make(model, recipe("onnx-int8-qdq"), Plan(ranges="mse"), statistics)
    data = make(model, recipe("onnx-f32"), Plan(), None)

Rules: ranges come from `calibration`, never from onnxruntime's own calibrators; a plan's float layers are float; the same
inputs give the same bytes; a recipe that would quantize nothing is an error, not a file that says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit_converters.calibration.ranges import Statistics
from edgekit_converters.errors import ConversionError
from edgekit_converters.formats.onnx import GraphView, parse
from edgekit_converters.graph import joins, open_graph
from edgekit_converters.targets.artifact import Recipe
from edgekit_converters.targets.float_model import FloatModel
from edgekit_converters.targets.onnx_int8_layers import PRODUCTS, int8_layers
from edgekit_converters.targets.plan import Plan
from edgekit_runtime.errors import EngineError

__all__ = ["make"]


def make(model: FloatModel, recipe: Recipe, plan: Plan, statistics: Statistics | None) -> bytes:
    """statistics: of `model`, needed by the int8 recipes. Raises ConversionError when nothing can be quantized."""
    if recipe.precision == "float32":
        return model.data
    parsed = parse(model.data)
    refused = ""
    for made in _candidates(parsed, recipe, plan, statistics):
        data: bytes = made.SerializeToString(deterministic=True)
        refused = _refusal(data)
        if not refused:
            return data
    raise ConversionError(
        f"ONNX Runtime does not take what was made: {refused}",
        where=recipe.name,
        do="Choose onnx-f32 for this model, or a TFLite recipe",
    )


def _candidates(parsed: Any, recipe: Recipe, plan: Plan, statistics: Statistics | None) -> Iterator[Any]:
    """What to try, the best first."""
    from edgekit_converters.targets.onnx_dynamic import dynamic
    from edgekit_converters.targets.onnx_float16 import halved

    if recipe.precision == "float16":
        yield halved(parsed)
    elif recipe.precision == "dynamic":
        yield dynamic(parsed, plan.float_layers)
    elif recipe.precision == "int8":
        if statistics is None:
            raise ValueError("an int8 recipe needs statistics")
        yield _static(parsed, recipe, plan, statistics)
        beside = {node.output[0] for node in parsed.graph.node if node.op_type not in PRODUCTS and node.output}
        yield _static(parsed, recipe, replace(plan, float_layers=plan.float_layers | beside), statistics)
    else:
        raise ConversionError(f"there is no {recipe.precision} for ONNX", where=recipe.name)


def _static(parsed: Any, recipe: Recipe, plan: Plan, statistics: Statistics) -> Any:
    from edgekit_converters.targets.onnx_dynamic import lookups
    from edgekit_converters.targets.onnx_qdq import quantized

    ranges = dict(statistics.ranges(plan.ranges))
    ranges.update({name: (low, high) for name, low, high in plan.fixed_ranges})
    view = GraphView(parsed if recipe.symmetric else lookups(parsed, plan.float_layers))
    ends = joins(open_graph("onnx", parsed.SerializeToString()), ranges)
    stay = plan.float_layers.union(*(join.layers for join in ends))  # parts of unlike ranges keep scales of their own
    layers = int8_layers(view, ranges.keys(), stay, symmetric=recipe.symmetric)
    if not layers.int8 and not plan.float_layers:
        kinds = sorted({node.op_type for node in view.nodes})
        raise ConversionError(
            f"not one of the model's operators has an 8-bit kernel: {', '.join(kinds[:12])}",
            where=recipe.name,
            do=f"Choose onnx-f32; 8 bits are for {', '.join(sorted(PRODUCTS))} with constant weights in the main graph",
        )
    return quantized(view, layers, ranges, symmetric=recipe.symmetric)


def _refusal(data: bytes) -> str:
    """Why ONNX Runtime does not load it with its default optimizations; empty where it does."""
    from edgekit_runtime.engines import load_engine

    try:
        with load_engine("onnx", data, engine="onnxruntime"):
            return ""
    except EngineError as error:
        return error.what

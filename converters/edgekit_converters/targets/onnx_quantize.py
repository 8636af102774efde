"""ONNX recipes: the float model's bytes in, a file that loads in ONNX Runtime out.

    data = make(model, recipe("onnx-int8-qdq"), QuantizationPlan(ranges="mse"), statistics)
    data = make(model, recipe("onnx-f32"), QuantizationPlan(), None)

Rules: ranges come from our statistics, never from onnxruntime's calibrators; a plan's float layers stay in float; the
same inputs give the same bytes; a recipe that would quantize nothing is an error.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from edgekit_converters.data.statistics import Statistics
from edgekit_converters.formats.graph import joins, open_graph
from edgekit_converters.formats.grid import come_from_float16, fits_float16, symmetric
from edgekit_converters.formats.onnx_file import (
    GraphView,
    array,
    attribute,
    constants,
    copy_model,
    drop_unread,
    free_name,
    name_nodes,
    new_constant,
    new_node,
    nodes,
    parse,
    reads,
    rename,
    replace_values,
    subgraphs,
    value_names,
)
from edgekit_converters.recipe.artifact import FloatModel, QuantizationPlan, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError, first_line
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.sources.float_onnx import order
from edgekit_converters.targets.onnx_qdq import PRODUCTS, int8_layers
from edgekit_runtime.system.errors import EngineError


def make(model: FloatModel, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics | None) -> bytes:
    """Carry out a recipe. statistics: of `model`, needed by int8 recipes.

    Raises ConversionError if nothing can be quantized or ONNX Runtime refuses the result.
    """
    from edgekit_runtime.engines.registry import load_engine

    parsed = parse(model.data)
    if recipe.precision == "float32" and not come_from_float16(map(array, _floats(parsed))):
        return model.data
    refused = ""
    for candidate in _candidates(parsed, recipe, plan, statistics):
        name_nodes(candidate)
        data: bytes = candidate.SerializeToString(deterministic=True)
        try:
            with load_engine("onnx", data, engine="onnxruntime"):  # with its default optimizations
                return data
        except EngineError as error:
            refused = error.what
    raise ConversionError(
        f"ONNX Runtime refuses the result: {refused}",
        where=recipe.name,
        do="Choose onnx-f32 for this model, or a TFLite recipe",
    )


def _candidates(parsed: Any, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics | None) -> Iterator[Any]:
    """Yield models to try, best first."""
    if recipe.precision == "float32":
        yield _halves(parsed)
        yield parsed
    elif recipe.precision == "float16":
        yield convert_float16(parsed)
    elif recipe.precision == "dynamic":
        yield dynamic(parsed, plan.float_layers)
    elif recipe.precision == "int8":
        if statistics is None:
            raise ValueError("an int8 recipe needs statistics")
        yield _static(parsed, recipe, plan, statistics)
        beside = {node.output[0] for node in parsed.graph.node if node.op_type not in PRODUCTS and node.output}
        yield _static(parsed, recipe, dataclasses.replace(plan, float_layers=plan.float_layers | beside), statistics)
    else:
        raise ConversionError(f"ONNX has no {recipe.precision} recipe", where=recipe.name)


def _static(parsed: Any, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics) -> Any:
    from edgekit_converters.targets.onnx_qdq import quantize_layers

    ranges = dict(statistics.ranges(plan.ranges))
    ranges.update({name: (low, high) for name, low, high in plan.fixed_ranges})
    view = GraphView(parsed if recipe.symmetric else lookups(parsed, plan.float_layers))
    ends = joins(open_graph("onnx", parsed.SerializeToString()), ranges)
    stay = plan.float_layers.union(*(join.layers for join in ends))  # parts of unlike ranges keep scales of their own
    layers = int8_layers(view, ranges.keys(), stay, symmetric=recipe.symmetric)
    if not layers.int8 and not plan.float_layers:
        raise _nothing_fits(view, recipe)
    return quantize_layers(view, layers, ranges, symmetric=recipe.symmetric)


def check_possible(model: FloatModel, recipe: Recipe) -> None:
    """Raise ConversionError if no layer can be in 8 bits, whatever calibration sees."""
    view = GraphView(parse(model.data))
    if not int8_layers(view, value_names(view.model), symmetric=recipe.symmetric).int8:
        raise _nothing_fits(view, recipe)


def _nothing_fits(view: GraphView, recipe: Recipe) -> ConversionError:
    kinds = sorted({node.op_type for node in view.nodes})
    return ConversionError(
        f"none of the model's operators has an 8-bit kernel: {', '.join(kinds[:12])}",
        where=recipe.name,
        do=f"Choose onnx-f32; 8 bits are for {', '.join(sorted(PRODUCTS))} with constant weights in the main graph",
    )


def _floats(model: Any) -> list[Any]:
    """Return the float32 constants of the main graph."""
    return [tensor for tensor in model.graph.initializer if tensor.data_type == 1]


def _halves(model: Any) -> Any:
    """Store weights in 16 bits where that is exact; loading widens them."""
    copy, taken = copy_model(model), value_names(model)
    graph, nodes = copy.graph, list[Any]()
    ends = {value.name for value in (*graph.input, *graph.output)}
    for tensor in _floats(copy):
        values = array(tensor)
        if tensor.name not in ends and values.size > 1 and fits_float16(values):
            half, name = free_name(f"{tensor.name}/float16", taken), tensor.name
            tensor.CopyFrom(new_constant(half, values.astype(np.float16)))
            nodes.append(new_node("Cast", [half], [name], name, to=1))
    replace_values(graph.node, [*nodes, *graph.node])
    return copy


_CASTS = re.compile(r"graph_(in|out)put_cast_?\d+|.*_cast_to_(fp32|fp16|bfloat16)")
"""Names that onnxruntime's float16 converter gives to its own nodes."""


def convert_float16(model: Any) -> Any:
    """Convert a copy to float16 with onnxruntime; input and output types stay.

    Weights beyond float16's range become its largest number. On a CPU most operators have no float16 kernel: the
    artifact is small, not fast. Raises ConversionError if the converter fails.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = copy_model(model)
    ends = {value.name for value in (*copy.graph.input, *copy.graph.output)}
    rename(copy, {name: f"{name}/" for name in sorted(value_names(copy) - ends) if _CASTS.fullmatch(name)})
    for node in nodes(copy.graph):
        node.name = ""  # the converter takes what is called like its own casts for one of them
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = convert_float_to_float16(copy, keep_io_types=True, disable_shape_infer=False)
    except Exception as error:
        raise ConversionError(
            f"onnxruntime's float16 converter failed: {first_line(error)}",
            where="onnx-f16",
            do="Choose onnx-f32, or onnx-int8-qdq for a small file",
        ) from error
    del made.graph.value_info[:]
    order(made)  # the converter puts its casts last, and readers that walk the file lose the shapes
    return made


_FEW = 1024
_STORED: dict[str, dict[int, int | None]] = {
    "Conv": {1: 0},
    "ConvTranspose": {1: 1},
    **{recurrent: {1: 1, 2: 1} for recurrent in ("LSTM", "GRU", "RNN")},
    "MatMul": {1: -1},
    "Gemm": {1: None},
}
"""Operator -> input that holds weights -> the axis of its outputs (None: one scale)."""


def dynamic(model: Any, float_layers: Collection[str] = ()) -> Any:
    """Quantize the weights of a copy to 8 bits, without calibration data.

    Rules:
    - matrix products with constant weights: the input is quantized while the model runs (DynamicQuantizeLinear);
      weights int8 around 0, a scale for each output;
    - embedding tables: int8 with a scale for each row, dequantized after the lookup;
    - other weights: int8 with a scale for each output, widened by `Cast` and `Mul`, which ONNX Runtime folds on
      loading; it does not fold DequantizeLinear, which takes twice the time. They count as 8-bit weights, not as 8-bit
      work;
    - constants of fewer than 1,024 numbers stay.

    Raises ConversionError if nothing can be quantized.
    """
    copy = copy_model(model)
    done = _Products(GraphView(copy), float_layers).write() + _store_weights(copy, float_layers)
    if not done:
        raise ConversionError(
            f"nothing in it can be quantized without calibration data: no layer has {_FEW:,} constant weights or more",
            where="onnx-int8-dynamic",
            do="Choose onnx-f32: so small a model gains nothing",
        )
    for graph in subgraphs(copy.graph):
        drop_unread(graph)
    del copy.graph.value_info[:]
    return copy


def lookups(model: Any, float_layers: Collection[str] = ()) -> Any:
    """Quantize embedding tables of a copy to 8 bits; values keep their names."""
    copy = copy_model(model)
    if _Products(GraphView(copy), float_layers, only_lookups=True).write():
        drop_unread(copy.graph)
    return copy


class _Products:
    """Rewrites matrix products and lookups of the main graph to integers."""

    def __init__(self, view: GraphView, float_layers: Collection[str], *, only_lookups: bool = False) -> None:
        self._view, self._float_layers, self._only_lookups = view, frozenset(float_layers), only_lookups
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: dict[str, list[str]] = {}
        self._taken = value_names(view.model)

    def write(self) -> int:
        """Edit the graph and return how many nodes changed."""
        done = 0
        for node in self._view.nodes:
            standard = node.domain in ("", "ai.onnx") and node.output and node.output[0] not in self._float_layers
            if standard and ((not self._only_lookups and self._product(node)) or self._lookup(node)):
                done += 1
            else:
                self._nodes.append(node)
        replace_values(self._view.graph.node, self._nodes)
        self._view.graph.initializer.extend(self._constants)
        return done

    def _product(self, node: Any) -> bool:
        """y = scale_x scale_w (x8 - zero) w8 + bias; False without constant float weights."""
        view = self._view
        weight = view.constant(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.dtype != np.float32 or weight.ndim != 2 or weight.size < _FEW:
            return False
        if view.is_constant(node.input[0]):
            return False
        if node.op_type == "Gemm":  # weights as [inputs, outputs], alpha multiplied in
            if attribute(node, "transA", 0) or attribute(node, "beta", 1.0) != 1.0:
                return False
            weight = weight * np.float32(attribute(node, "alpha", 1.0))
            weight = weight.T if attribute(node, "transB", 0) else weight
        source, out = node.input[0], node.output[0]
        integers, scale = symmetric(weight, 1)
        bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
        if source not in self._inputs:
            self._inputs[source] = self._new(source, "quantized", "scale", "zero_point")
            self._node("DynamicQuantizeLinear", [source], self._inputs[source])
        stored, step, zero = self._inputs[source]
        total, real, factor, scaled = self._new(out, "sum", "float", "scale", "scaled")
        weights = [self._constant(f"{out}/weight", integers), self._constant(f"{out}/weight_zero", np.int8(0))]
        self._node("MatMulInteger", [stored, weights[0], zero, weights[1]], [total])
        self._node("Cast", [total], [real], to=1)
        scales = self._constant(f"{out}/weight_scale", scale.reshape(-1))
        self._node("Mul", [step, scales], [factor])
        self._node("Mul", [real, factor], [scaled if bias else out])
        if bias:
            self._node("Add", [scaled, bias], [out])
        return True

    def _lookup(self, node: Any) -> bool:
        table = self._view.constant(node.input[0]) if node.op_type == "Gather" else None
        if table is None or table.dtype != np.float32 or table.ndim != 2 or table.size < _FEW:
            return False
        out, indexes = node.output[0], node.input[1]
        if attribute(node, "axis", 0) != 0 or self._view.is_constant(indexes):
            return False
        integers, scale = symmetric(table, 0)
        row, step, real = self._new(out, "row", "row_scale", "row_float")
        self._node("Gather", [self._constant(f"{out}/table", integers), indexes], [row], axis=0)
        self._node("Gather", [self._constant(f"{out}/table_scale", scale), indexes], [step], axis=0)
        self._node("Cast", [row], [real], to=1)
        self._node("Mul", [real, step], [out])
        return True

    def _node(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self._nodes.append(new_node(op, inputs, outputs, outputs[0], **attributes))

    def _new(self, value: str, *ends: str) -> list[str]:
        return [free_name(f"{value}/{end}", self._taken) for end in ends]

    def _constant(self, name: str, values: Any) -> str:
        self._constants.append(new_constant(free_name(name, self._taken), np.asarray(values)))
        return str(self._constants[-1].name)


def _store_weights(model: Any, float_layers: Collection[str]) -> int:
    """Store weights of the main graph and of those inside it in 8 bits, and return how many."""
    done, taken = 0, value_names(model)
    for inner in subgraphs(model.graph):
        wanted: dict[str, int | None] = {}  # weights that layers of this graph alone read -> the axis of its outputs
        other = {value.name for value in inner.output}
        for node in inner.node:
            axes = _STORED.get(node.op_type, {}) if node.output and node.output[0] not in float_layers else {}
            for position, name in enumerate(node.input):
                if position in axes:
                    wanted.setdefault(name, axes[position])
                else:
                    other.add(name)
            if any(item.HasField("g") or item.graphs for item in node.attribute):
                other.update(reads(node))
        nodes: list[Any] = []
        for name, tensor in list(constants(inner)):
            if name not in wanted or name in other or tensor.data_type != 1 or math.prod(tensor.dims) < _FEW:
                continue
            weight = array(tensor)
            integers, scale = symmetric(weight, wanted[name] if weight.ndim > 1 else None)
            small, step, real = (free_name(f"{name}/{end}", taken) for end in ("int8", "scale", "float"))
            inner.initializer.extend([new_constant(small, integers), new_constant(step, scale)])
            nodes += [new_node("Cast", [small], [real], real, to=1), new_node("Mul", [real, step], [name], name)]
            done += 1
        if nodes:
            made = {node.output[0] for node in nodes}
            kept = [node for node in inner.node if not (node.op_type == "Constant" and node.output[0] in made)]
            replace_values(inner.node, (*nodes, *kept))
            replace_values(inner.initializer, [tensor for tensor in inner.initializer if tensor.name not in made])
    return done

"""`tflite-int8`, `tflite-int8-mixed`, `tflite-int16x8`, by TensorFlow's own quantizer.

    data = static(float_tflite, recipe("tflite-int8"), QuantizationPlan(), ranges)

The float file gets the range of each activation, and `mlir_quantize` does the rest: what TensorFlow's converter does
after it has calibrated, in well under a second.

Rules:
- every range holds 0 and has a width, so that no scale is 0; in 16 bits it is symmetric, as the kernels have no
  zero-point; parts of a sliced tensor get no range of their own, or readers of the second part would stay in float;
- tensors have names of ours inside the quantizer, so that a layer is named exactly, whatever characters it has;
- the result is read again: a layer in float that should be in integers, or the reverse, is an error, but for
  `_CHOOSERS`;
- a mixed file keeps in float what tflite-runtime 2.14 has no int8 kernel for, and joins of unlike ranges at an output;
  other files are refused if a join leaves a part few levels;
- ends are integers, except in a mixed file if a float layer reads or makes them;
- `UNSAFE` operators stay in float, and so does what makes the divisor of a float division or the argument of a log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import sys
import threading
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats.graph import FEW_LEVELS, joins, open_graph
from edgekit_converters.formats.tflite_file import schema as tflite_schema
from edgekit_converters.recipe.artifact import QuantizationPlan, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet

Ranges = Mapping[str, tuple[float, float]]

UNSAFE = frozenset({"DIV", "FLOOR_DIV", "FLOOR_MOD"})
"""Operators that fail on some input in 8 bits though not in float: their divisor may round to 0."""

_YOUNG = frozenset({"SQRT", "LOG"})  # tflite-runtime 2.14 has no int8 kernel
_SIXTEEN_LEFT = frozenset({"HARD_SWISH"})  # the quantizer makes it, the engine loads it, and running it fails
_CHOOSERS = frozenset({"REDUCE_MAX", "REDUCE_MIN", "MAX_POOL_2D"})  # pick an input: the quantizer leaves them in 8 bits
_PARTS = {"SLICE": 0, "STRIDED_SLICE": 0, "SPLIT": 1, "SPLIT_V": 0}  # the input that is taken apart
_SINGULAR = {"DIV": 1, "FLOOR_DIV": 1, "FLOOR_MOD": 1, "LOG": 0, "RSQRT": 0}  # the input in which 0 is a pole
_PRODUCTS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
_CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE", "CAST"})
_UNIT = 65535.0 / 65536.0  # the range from which the quantizer makes the one step, 2^-15, that those kernels take
_INTEGERS = {"INT8", "INT16"}


def static(data: bytes, recipe: Recipe, plan: QuantizationPlan, ranges: Ranges) -> bytes:
    """Quantize. ranges: of float activations by name; layers without them stay in float.

    Raises ConversionError naming the operators and layers that cannot be quantized, unless the recipe is mixed.
    """
    model = tfl.read(data)
    before = _layers(model)
    if unknown := sorted(plan.float_layers - {name for name, _ in before}):
        raise ConversionError(f"the model has no layer '{unknown[0]}' that could stay in float", where=recipe.name)
    left = UNSAFE | (_SIXTEEN_LEFT if recipe.precision == "int16x8" else _YOUNG if recipe.mixed else frozenset())
    kept = plan.float_layers | {name for name, op in before if op in left}
    if recipe.precision == "int8":
        kept |= _unlike_ends(data, recipe, kept, ranges)
    guards = _guards(model, kept)
    kept |= guards
    names = _Names(model)
    _write_ranges(model, ranges, kept, wide=recipe.precision == "int16x8")
    names.hide(model)
    made = _quantized(tfl.write(model), recipe, frozenset(names.hidden(name) for name in kept), names)
    result = tfl.read(made)
    names.restore(result)
    if recipe.precision == "int16x8":
        finish_int16(result)
    integer_ends(result)
    tfl.compact(result)
    _check(before, result, recipe, plan.float_layers, guards)
    return tfl.write(result)


class _Names:
    """Replaces the file's tensor names for the quantizer, and restores them."""

    _OURS = re.compile(r"s(\d+)t(\d+)e(\d*)")
    _JOINED = re.compile(r"s\d+t\d+e\d*(?:;s\d+t\d+e\d*)+;?")

    def __init__(self, model: Any) -> None:
        graphs = enumerate(model.subgraphs)
        self._theirs = {f"s{s}t{t}e": tensor.name for s, graph in graphs for t, tensor in enumerate(graph.tensors)}
        self._by_name = {bytes(name or b"").decode("utf-8", "replace"): own for own, name in self._theirs.items()}

    def hidden(self, name: str) -> str:
        return self._by_name[name]

    def hide(self, model: Any) -> None:
        for s, graph in enumerate(model.subgraphs):
            for t, tensor in enumerate(graph.tensors):
                tensor.name = f"s{s}t{t}e".encode()

    def restore(self, model: Any) -> None:
        """Restore the tensors' names.

        The quantizer numbers a second tensor of one name: the first that it kept has the name. A fused one has all
            names.
        """
        for graph in model.subgraphs:
            taken: set[bytes] = set()
            ours = [(tensor, self._OURS.fullmatch(tfl.name_of(tensor))) for tensor in graph.tensors]
            for tensor, found in sorted(((t, f) for t, f in ours if f), key=lambda pair: len(pair[1][3])):
                name = self._theirs.get(f"s{found[1]}t{found[2]}e", tensor.name) or b""
                tensor.name = name if name not in taken else name + b"/" + found[3].encode()
                taken.add(name)
            for index, tensor in enumerate(graph.tensors):
                if self._JOINED.fullmatch(tfl.name_of(tensor)):
                    name = ";".join(self.named_in(tfl.name_of(tensor))).encode()
                    tensor.name = name if name not in taken else name + f"/{index}".encode()
                    taken.add(tensor.name)

    def named_in(self, text: str) -> list[str]:
        """Return the layers that a message of the quantizer mentions."""
        found = dict.fromkeys(f"s{s}t{t}e" for s, t, _ in self._OURS.findall(text))
        return [self._theirs[own].decode("utf-8", "replace") for own in found if own in self._theirs]


def _layers(model: Any) -> list[tuple[str, str]]:
    """Return (name, operator) of each float layer in the main subgraph."""
    graph = model.subgraphs[0]
    found = []
    for operator in graph.operators:
        op = tfl.op_of(model, operator)
        ends = [graph.tensors[index] for index in (*operator.inputs, *operator.outputs) if index >= 0]
        if op not in _CONVERSIONS and any(tfl.type_of(tensor) == "FLOAT32" for tensor in ends):
            found.append((tfl.layer_of(graph, operator), op))
    return found


def _write_ranges(model: Any, ranges: Ranges, kept: frozenset[str], *, wide: bool) -> None:
    """Write the range of every float value, but not of the parts of a tensor that is quantized."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            name = tfl.name_of(tensor)
            if tfl.type_of(tensor) != "FLOAT32" or tfl.is_constant(model, tensor) or name not in ranges:
                continue
            low, high = _usable(name, *ranges[name], wide=wide)
            tensor.quantization = tflite_schema().QuantizationParametersT()
            tensor.quantization.min, tensor.quantization.max = [low], [high]
        for operator in graph.operators if wide else ():
            tensor = graph.tensors[operator.outputs[0]]
            if tfl.op_of(model, operator) in ("LOGISTIC", "TANH") and tensor.quantization is not None:
                tensor.quantization.min, tensor.quantization.max = [-_UNIT], [_UNIT]
    graph = model.subgraphs[0]
    makers = {int(index): tfl.layer_of(graph, operator) for operator in graph.operators for index in operator.outputs}
    for operator in graph.operators:
        place = _PARTS.get(tfl.op_of(model, operator))
        if place is None:
            continue
        index = int(operator.inputs[place])
        written = graph.tensors[index].quantization
        if written is not None and written.min is not None and len(written.min) and makers.get(index) not in kept:
            for part in operator.outputs:
                graph.tensors[part].quantization = None


def _usable(name: str, low: float, high: float, *, wide: bool) -> tuple[float, float]:
    """Widen a range to include 0 and give it a width; (0, 1) for zeros."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConversionError(
            f"'{name}' is not finite on the calibration data: {low} .. {high}",
            do="Look for NaN in the weights or in the calibration samples",
        )
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9:
        low, high = 0.0, 1.0
    if wide:
        largest = max(-low, high)
        return -largest, largest
    return low, high


_MODULE = "tensorflow.compiler.mlir.lite.python._pywrap_converter_api"
_FLOAT, _INT16, _INT8 = 1, 6, 9  # as TFLite's converter numbers types
_LOADING = threading.Lock()


def _quantizer() -> Any:
    """Load TensorFlow's quantizer, if possible without TensorFlow: seconds and 300 MB less."""
    with _LOADING:
        package = None if {"tensorflow", _MODULE} & sys.modules.keys() else importlib.util.find_spec("tensorflow")
        for folder in (package and package.submodule_search_locations) or ():
            spec = PathFinder.find_spec(_MODULE, [str(Path(folder, *_MODULE.split(".")[1:-1]))])
            with contextlib.suppress(ImportError):
                if spec is not None and spec.loader is not None:
                    module = importlib.util.module_from_spec(spec)
                    spec.loader.exec_module(module)
                    sys.modules[_MODULE] = module
        if _MODULE not in sys.modules:
            import_tensorflow()
            importlib.import_module(_MODULE)
        return sys.modules[_MODULE]


def _quantized(data: bytes, recipe: Recipe, kept: frozenset[str], names: _Names) -> bytes:
    kind = _INT16 if recipe.precision == "int16x8" else _INT8
    with quiet() as log:
        quantizer = _quantizer()
        try:  # as `mlir_quantize` of tensorflow.lite.python.convert does
            made = quantizer.ExperimentalMlirQuantizeModel(
                data, False, False, kind, _FLOAT, _FLOAT, False, False, None, set(kept) or None, False,
                recipe.per_tensor, "",
            )  # fmt: skip
        except Exception as error:  # RuntimeError, and whatever pybind makes of an MLIR failure
            text = f"{error}\n{log.text()}"
            layers, ops = names.named_in(text), re.findall(r"'tfl\.(\w+)' op", text)
            at = f" at {', '.join(dict.fromkeys(op.upper() for op in ops))}" if ops else ""
            of = f" in '{layers[0]}'" if layers else ""
            raise ConversionError(
                f"TensorFlow's quantizer failed{at}{of}",
                where=recipe.name,
                do="Leave that layer in float, or choose tflite-dynamic or tflite-f16",
            ) from error
    return bytes(made)


def _unlike_ends(data: bytes, recipe: Recipe, kept: frozenset[str], ranges: Ranges) -> frozenset[str]:
    """Return layers that join parts of unlike ranges into one output."""
    found = [join for join in joins(open_graph("tflite", data), ranges) if not join.layers <= kept]
    if recipe.mixed:
        return frozenset().union(*(join.layers for join in found))
    for join in found:
        if join.levels <= FEW_LEVELS:
            raise ConversionError(
                f"the output '{join.output}' joins ranges of {join.least:.3g} ('{join.part}') and {join.most:.3g} "
                f"under one scale: the smaller is left {max(join.levels, 1):.0f} of 256 levels",
                where=recipe.name,
                do="Join them in float: --recipe tflite-int8-mixed; or give the model an output for each part",
            )
    return frozenset()


def _guards(model: Any, kept: frozenset[str]) -> frozenset[str]:
    """Return layers that feed a division or logarithm in `kept`: 8 bits lose their epsilon."""
    graph = model.subgraphs[0]
    made = {int(index): operator for operator in graph.operators for index in operator.outputs}
    guards = set()
    for operator in graph.operators:
        place = _SINGULAR.get(tfl.op_of(model, operator))
        if place is not None and tfl.layer_of(graph, operator) in kept:
            maker = made.get(int(operator.inputs[place]))
            if maker is not None:
                guards.add(tfl.layer_of(graph, maker))
    return frozenset(guards) - kept


def _check(
    before: list[tuple[str, str]], model: Any, recipe: Recipe, asked: frozenset[str], guards: frozenset[str]
) -> None:
    """Check that only what was asked for is in float, or in a mixed file what has no kernel."""
    left = [(name, op) for name, op in _layers(model)]
    ops = dict(before)
    if missed := sorted(name for name in asked - {name for name, _ in left} if ops[name] not in _CHOOSERS):
        raise ConversionError(
            f"the quantizer did not leave '{missed[0]}' ({ops[missed[0]]}) in float, as the recipe demands",
            where=recipe.name,
        )
    beyond = [(name, op) for name, op in left if name not in asked | guards]
    if beyond and not recipe.mixed:
        shown = ", ".join(f"{op} in '{name}'" for name, op in beyond[:5])
        more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
        wide = recipe.precision == "int16x8"
        bits, way = ("16-bit", "tflite-f16") if wide else ("int8", "tflite-int8-mixed")
        reason = " that is safe for every input" if any(op in UNSAFE for _, op in beyond) else ""
        raise ConversionError(
            f"TFLite has no {bits} kernel{reason} for {shown}{more}",
            where=recipe.name,
            do=f"Leave that in float: --recipe {way}; or replace the operator in the model",
        )
    products = {name for name, op in before if op in _PRODUCTS} - asked - guards
    if products and products <= {name for name, _ in left}:
        raise ConversionError(
            f"none of its {len(products)} layers that multiply could be quantized",
            where=recipe.name,
            do="Choose tflite-dynamic or tflite-f32",
        )
    if not any(tfl.type_of(tensor) in _INTEGERS for graph in model.subgraphs for tensor in graph.tensors):
        raise ConversionError(
            "nothing in the model could be quantized", where=recipe.name, do="Choose tflite-dynamic or tflite-f32"
        )


def integer_ends(model: Any) -> None:
    """Make inputs and outputs integers, in place, unless a float layer reads or makes them.

    Removes the quantizer's QUANTIZE and DEQUANTIZE there; unused tensors are left to `compact`.
    """
    graph = model.subgraphs[0]
    moved: dict[int, int] = {}
    for index in [int(index) for index in graph.inputs]:
        new = _integer_input(model, graph, index)
        if new is not None:
            moved[index] = new
    graph.inputs = [moved.get(int(index), int(index)) for index in graph.inputs]
    for index in [int(index) for index in graph.outputs]:
        maker = next((op for op in graph.operators if index in op.outputs), None)
        if tfl.type_of(graph.tensors[index]) != "FLOAT32" or any(index in op.inputs for op in graph.operators):
            continue
        if maker is None or tfl.op_of(model, maker) != "DEQUANTIZE":
            continue
        new = int(maker.inputs[0])
        source = graph.tensors[new]
        if tfl.type_of(source) not in _INTEGERS or tfl.is_constant(model, source):
            continue
        if new not in graph.inputs and new not in graph.outputs and new not in moved.values():
            moved[index] = new
            graph.operators = [op for op in graph.operators if list(op.outputs) != [index]]
    graph.outputs = [moved.get(int(index), int(index)) for index in graph.outputs]
    for old, new in moved.items():
        graph.tensors[new].name = graph.tensors[old].name
    tfl.move_ends(model, 0, moved)


def _integer_input(model: Any, graph: Any, index: int) -> int | None:
    """Return the integer tensor that replaces a float input and its QUANTIZE, or None."""
    if tfl.type_of(graph.tensors[index]) != "FLOAT32" or index in graph.outputs:
        return None
    readers = [op for op in graph.operators if index in op.inputs]
    if not readers or any(tfl.op_of(model, op) != "QUANTIZE" for op in readers):
        return None
    made = [int(op.outputs[0]) for op in readers]
    forms = set()
    for tensor in (graph.tensors[index] for index in made):
        scales, zeros = tensor.quantization.scale, tensor.quantization.zeroPoint
        forms.add((tfl.type_of(tensor), *(float(x) for x in scales), *(int(x) for x in zeros)))
    if len(forms) != 1 or any(tensor in graph.outputs for tensor in made):
        return None
    graph.operators = [op for op in graph.operators if all(op is not reader for reader in readers)]
    tfl.swap(graph, dict.fromkeys(made, made[0]))
    return made[0]


_BIAS = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
_VERSION = {"CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7}


def finish_int16(model: Any) -> None:
    """Finish a file with 16-bit activations for the engines' kernels, in place.

    The zero-point of every 16-bit tensor becomes 0 (the quantizer rounds half of them to -1); biases get 64 bits, which
    their steps need; operators get the version in which tflite-runtime 2.14 has those kernels.
    """
    int64 = tflite_schema().TensorType.INT64
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            zero = tensor.quantization.zeroPoint if tensor.quantization is not None else None
            if tfl.type_of(tensor) != "INT16" or zero is None or not np.any(zero):
                continue
            if tfl.is_constant(model, tensor):
                values = tfl.constant(model, tensor).astype(np.int32) - int(zero[0])
                tensor.buffer = tfl.add_constant(model, np.clip(values, -32768, 32767).astype(np.int16))
            tensor.quantization.zeroPoint = np.zeros_like(zero)
    for graph, operator, op in tfl.operators(model):
        if op not in _BIAS or tfl.type_of(graph.tensors[operator.outputs[0]]) != "INT16":
            continue
        if hasattr(operator.builtinOptions, "quantizedBiasType"):
            operator.builtinOptions.quantizedBiasType = int64
        if op in _VERSION:
            operator.opcodeIndex = tfl.code(model, op, _VERSION[op])
        place = _BIAS[op]
        if place >= len(operator.inputs) or operator.inputs[place] < 0:
            continue
        bias = graph.tensors[operator.inputs[place]]
        if tfl.type_of(bias) == "INT32":
            bias.buffer = tfl.add_constant(model, tfl.constant(model, bias).astype(np.int64))
            bias.type = int64

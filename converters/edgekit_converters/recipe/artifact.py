"""Recipes, plans, float models and artifacts as data, and their bytes in a store.

    recipe("tflite-int8")                                        # Recipe("tflite-int8", "tflite", "int8")
    QuantizationPlan(float_layers=frozenset({"block_1/conv"}), ranges="mse")  # how an artifact departs from its recipe

Rules: a recipe's name reads `<format>-<precision>[-<form>]`; an artifact carries its recipe and its plan.
Calibration examples are as the original takes them, and are transposed where a target's layout differs.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import Progress
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.strict_json import from_json, load_json, to_json

RangeMethod = Literal["minmax", "percentile", "entropy", "mse"]
"""How a tensor's range follows from what calibration saw; see `calibration.statistics`."""

Step = Literal["equalise", "round"]
"""A change of the float weights before they are quantized; see `targets.rounding` and `targets.equalise`."""


@dataclass(frozen=True)
class QuantizationPlan:
    """ranges: for every activation.
    fixed_ranges: (tensor, low, high), before `ranges`.
    float_layers: names of layers (`graph.Layer.name`) that stay in float.
    steps: carried out in this order on the float graph."""

    ranges: RangeMethod = "minmax"
    fixed_ranges: tuple[tuple[str, float, float], ...] = ()
    float_layers: frozenset[str] = field(default_factory=frozenset)
    steps: tuple[Step, ...] = ()


STATIC = QuantizationPlan(steps=("round",))
"""The plan of recipes that calibrate when none is given; rounding costs seconds once a format."""


Format = Literal["tflite", "onnx", "ncnn", "gguf"]
Precision = Literal["int8", "int16x8", "dynamic", "float16", "float32"]

LEAST_INT8 = 0.005
"""Of the multiplications: with fewer in 8 bits, which read as 0 %, a file is INT8 in name only."""


@dataclass(frozen=True)
class Recipe:
    """name: `<format>-<precision>[-<form>]`, e.g. tflite-int8, tflite-dynamic, onnx-int8-qdq.
    precision: `int8` quantizes weights and activations and needs calibration data, `int16x8` too, with activations of
        16
        bits; `dynamic` quantizes weights only.
    mixed: some layers stay in float.
    symmetric: the zero-point of every activation is 0 and biases stay in float, as TensorRT wants it.
    finished: the source's file is taken as it is, in whatever precision it has.
    per_tensor: dense layers have one scale for the whole kernel, for runtimes that know no other.
    default: tried when no recipe is named."""

    name: str
    format: Format
    precision: Precision
    mixed: bool = False
    symmetric: bool = False
    default: bool = True
    finished: bool = False
    per_tensor: bool = False

    @property
    def needs_calibration(self) -> bool:
        return self.precision in ("int8", "int16x8") and not self.finished


@dataclass(frozen=True)
class Artifact:
    """One converted model.
    inputs, outputs: in the engine's order, `name` from the contract, `tensor` from the file.
    quantized_macs, quantized_weights: the fraction (0..1) of multiply-accumulates and of weight elements in 8 bits.
    tools: distribution -> version of everything that made it.
    samples: calibration samples used.
    plan: how it departs from its recipe."""

    recipe: Recipe
    data: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    quantized_macs: float
    quantized_weights: float
    tools: dict[str, str]
    samples: int = 0
    plan: QuantizationPlan = field(default_factory=QuantizationPlan)


RECIPES: dict[str, Recipe] = {
    entry.name: entry
    for entry in (
        Recipe("tflite-int8", "tflite", "int8"),
        Recipe("tflite-int8-mixed", "tflite", "int8", mixed=True, default=False),
        Recipe("tflite-int8-per-tensor", "tflite", "int8", per_tensor=True, default=False),
        Recipe("tflite-int8-per-tensor-mixed", "tflite", "int8", mixed=True, per_tensor=True, default=False),
        Recipe("tflite-int16x8", "tflite", "int16x8", default=False),
        Recipe("tflite-dynamic", "tflite", "dynamic"),
        Recipe("tflite-f16", "tflite", "float16", default=False),
        Recipe("tflite-f32", "tflite", "float32"),
        Recipe("tflite-as-is", "tflite", "int8", default=False, finished=True),
        Recipe("tflite-as-is-per-tensor", "tflite", "int8", per_tensor=True, default=False, finished=True),
        Recipe("onnx-int8-qdq", "onnx", "int8"),
        Recipe("onnx-int8-qdq-mixed", "onnx", "int8", mixed=True, default=False),
        Recipe("onnx-int8-qdq-symmetric", "onnx", "int8", symmetric=True, default=False),
        Recipe("onnx-int8-qdq-symmetric-mixed", "onnx", "int8", mixed=True, symmetric=True, default=False),
        Recipe("onnx-int8-dynamic", "onnx", "dynamic", default=False),
        Recipe("onnx-f16", "onnx", "float16", default=False),
        Recipe("onnx-f32", "onnx", "float32"),
        Recipe("ncnn-int8", "ncnn", "int8", default=False),
        Recipe("ncnn-int8-mixed", "ncnn", "int8", mixed=True, default=False),
        Recipe("ncnn-f16", "ncnn", "float16", default=False),
        Recipe("ncnn-f32", "ncnn", "float32", default=False),
    )
}


def recipe(name: str) -> Recipe:
    """Return the recipe of that name. Raises ConversionError with the nearest names."""
    if name in RECIPES:
        return RECIPES[name]
    near = [one for one in RECIPES if one.startswith(f"{name.lower()}-")][:3]  # a format: the usual recipes first
    near = near or difflib.get_close_matches(name.lower(), RECIPES, n=2, cutoff=0.5)
    do = f"Did you mean {' or '.join(near)}?" if near else f"Recipes: {', '.join(RECIPES)}"
    raise ConversionError(f"unknown recipe '{name}'", do=do)


def default_recipes() -> tuple[str, ...]:
    """Return the recipes that are tried by default."""
    return tuple(name for name, entry in RECIPES.items() if entry.default)


def with_islands(entry: Recipe) -> Recipe:
    """Return the mixed form of an int8 recipe."""
    return entry if entry.mixed else RECIPES[f"{entry.name}-mixed"]


def per_tensor(entry: Recipe) -> Recipe | None:
    """Return the per-tensor form of a recipe, None if it has no other form."""
    if entry.per_tensor:
        return None
    plain = entry.name.removesuffix("-mixed")
    return RECIPES.get(f"{plain}-per-tensor{'-mixed' if entry.mixed else ''}")


@dataclass(frozen=True)
class FloatModel:
    """A source in a target's format, in float; every recipe of that format starts here.
    inputs, outputs: contract names in the engine's order.
    transposed: picture inputs in the other layout here.
    transposes: layout transpositions left in the graph.
    tools: distribution -> version."""

    format: Format
    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tools: dict[str, str]
    transposed: frozenset[str] = field(default_factory=frozenset)
    transposes: int = 0


def feeds(
    model: FloatModel, specs: Sequence[TensorSpec], samples: Samples, progress: Progress
) -> Iterator[list[NDArray[Any]]]:
    """Yield calibration samples as the float model takes them, in the engine's order.
    specs: the source's inputs."""
    order = [next(i for i, spec in enumerate(specs) if spec.name == name) for name in model.inputs]
    for arrays in checked_samples(samples, [spec.shape[1:] for spec in specs], progress):
        for i in order:
            if specs[i].name in model.transposed:
                arrays[i] = transposed_pixels(arrays[i], specs[i])
        yield [arrays[i].astype(specs[i].dtype, copy=False) for i in order]


@dataclass(frozen=True)
class TensorFlowNetwork:
    """TensorFlow code that answers as the source does, for TensorFlow's converter.
    call: tensors in the source's input order -> list of tensors in its output order.
    weights: the TensorFlow variables that it reads.
    transposed: picture inputs that are NHWC here and NCHW in the source.
    tools: distributions that made it or read its file, besides TensorFlow.
    holds: what TensorFlow would free if nothing referred to it."""

    call: Callable[..., list[Any]]
    weights: Sequence[Any] = ()
    transposed: frozenset[str] = field(default_factory=frozenset)
    tools: tuple[str, ...] = ()
    holds: Any = None


Stored = TypeVar("Stored", FloatModel, Artifact)


def stored_bytes(made: FloatModel | Artifact) -> bytes:
    """Write a length, canonical JSON, then the model file."""
    text = json.dumps({**to_json(made), "data": ""}, sort_keys=True, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + made.data


def from_stored(kind: type[Stored], stored: bytes) -> Stored:
    """Read what `stored_bytes` wrote. Raises ValueError or BundleError for other bytes."""
    start = 8 + int.from_bytes(stored[:8], "little")
    return from_json(kind, {**load_json(stored[8:start]), "data": stored[start:]}, "what was stored")


class Samples(Protocol):
    """Calibration examples, re-iterable; each is one array a source input, in order.
    Arrays carry a batch axis of 1 and have the source's dtype and layout."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence[NDArray[Any]]]: ...


def transposed_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return a picture input's shape in the other layout."""
    n, a, b, c = spec.shape
    return (n, c, a, b) if spec.layout == "NHWC" else (n, b, c, a)


def transposed_pixels(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """Transpose a batch of pictures from `spec`'s layout to the other, contiguous."""
    return np.ascontiguousarray(array.transpose((0, 3, 1, 2) if spec.layout == "NHWC" else (0, 2, 3, 1)))


def checked_samples(
    samples: Samples, shapes: Sequence[tuple[int, ...]], progress: Progress
) -> Iterator[list[NDArray[Any]]]:
    """Yield samples and report progress.
    shapes: of one item, without the batch axis, in the source's order.
    Raises ConversionError for one that does not fit the model."""
    total = len(samples)
    wanted = [(1, *shape) for shape in shapes]
    progress("calibration", 0, total)
    for index, arrays in enumerate(samples):
        got = [tuple(array.shape) for array in arrays]
        if got != wanted:
            what = f"its arrays have the shapes {got}, the model takes {wanted}"
            do = "Give each example a batch axis of 1 and the original model's shape"
            raise ConversionError(what, where=f"calibration sample {index}", do=do)
        yield list(arrays)
        progress("calibration", index + 1, total)


def tool_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return distribution -> version of those that are installed."""
    found = {}
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found

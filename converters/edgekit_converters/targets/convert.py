"""Source and recipe -> artifact: run the converter for the recipe's format, load what it made, say what it is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from edgekit_converters.errors import ConversionError
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.targets.artifact import Artifact, Recipe
from edgekit_converters.targets.converted import Converted, Job, Samples, turned_shape
from edgekit_runtime.engines import load_engine
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import Layout, TensorSpec

__all__ = ["CONVERTERS", "Samples", "convert"]

CONVERTERS: dict[str, str] = {
    "tflite": "edgekit_converters.targets.tflite:convert",
    "onnx": "edgekit_converters.targets.onnx:convert",
}
"""Format -> `module:function`, called with (source, recipe, job)."""


def convert(
    source: SourceModel, recipe: Recipe, samples: Samples | None = None, progress: Progress = silent
) -> Artifact:
    """Carry out a recipe.

    samples: calibration examples; needed by int8 recipes, ignored by the others. Read as a stream, in order.
    Raises ConversionError when the recipe cannot be carried out for this model or its result does not load.
    """
    where = f"{source.path.name}, {recipe.name}"
    if recipe.needs_calibration and (samples is None or len(samples) == 0):
        raise ConversionError(
            "an int8 recipe needs calibration data and there is none",
            where=where,
            do="Pass a calibration set: --calibration DIR",
        )
    used = samples if recipe.needs_calibration else None
    module, function = CONVERTERS[recipe.format].split(":")
    converter = getattr(importlib.import_module(module), function)
    converted = cast(Converted, converter(source, recipe, Job(used, progress)))
    inputs, outputs = _described(source, recipe, converted, where)
    macs, weights = _quantized_fraction(recipe, converted.data)
    return Artifact(
        recipe,
        converted.data,
        inputs,
        outputs,
        macs,
        weights,
        dict(converted.tools),
        samples=len(used) if used is not None else 0,
    )


def _described(
    source: SourceModel, recipe: Recipe, converted: Converted, where: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Load the artifact and give its tensors the contract's names. Raises ConversionError where the two contradict."""
    try:
        with load_engine(recipe.format, converted.data) as engine:
            tensors = engine.inputs, engine.outputs
    except EngineError as error:
        raise ConversionError(f"the converter's result does not load: {error.what}", where=where) from error
    inputs = _named(tensors[0], converted.inputs, source.inputs, f"{where}, inputs")
    outputs = _named(tensors[1], converted.outputs, source.outputs, f"{where}, outputs")
    layouts = {spec.name: _layout(spec, converted) for spec in source.inputs}
    none: frozenset[str] = frozenset()
    sides = (("input", inputs, source.inputs, converted.turned), ("output", outputs, source.outputs, none))
    for kind, named, specs, turned in sides:
        shapes = {spec.name: turned_shape(spec) if spec.name in turned else spec.shape for spec in specs}
        for tensor in named:
            if not _fits(tensor.shape, shapes[tensor.name]):
                raise ConversionError(
                    f"{kind} '{tensor.name}' became {list(tensor.shape)}; the original has {list(shapes[tensor.name])}",
                    where=where,
                )
    return tuple(replace(spec, layout=layouts[spec.name]) for spec in inputs), outputs


def _named(
    tensors: Sequence[TensorSpec], names: Sequence[str], specs: Sequence[TensorSpec], where: str
) -> tuple[TensorSpec, ...]:
    if len(tensors) != len(names) or sorted(names) != sorted(spec.name for spec in specs):
        raise ConversionError(
            f"the artifact has {[tensor.tensor for tensor in tensors]}, the model {[spec.name for spec in specs]}",
            where=where,
        )
    return tuple(replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True))


def _layout(spec: TensorSpec, converted: Converted) -> Layout | None:
    if spec.name not in converted.turned:
        return spec.layout
    return "NCHW" if spec.layout == "NHWC" else "NHWC"


def _fits(got: Sequence[int], want: Sequence[int]) -> bool:
    """Same rank and sizes; the batch axis may be fixed at 1 where the source leaves it free."""
    return len(got) == len(want) and tuple(got[1:]) == tuple(want[1:]) and got[0] in (1, -1)


def _quantized_fraction(recipe: Recipe, data: bytes) -> tuple[float, float]:
    from edgekit_converters.workload import quantized_fraction

    macs, weights = quantized_fraction(recipe.format, data)
    return float(macs), float(weights)

"""The recipes there are. A name reads `<format>-<precision>[-<form>]`.

recipe("tflite-int8")       # Recipe(name="tflite-int8", format="tflite", precision="int8", ...)
"""

from __future__ import annotations

import difflib

from edgekit_converters.errors import ConversionError
from edgekit_converters.targets.artifact import Recipe

__all__ = ["RECIPES", "default_recipes", "per_tensor", "recipe", "with_islands"]

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
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name. Raises ConversionError with the nearest names."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name.lower(), RECIPES, n=2, cutoff=0.5)
    do = f"Did you mean {' or '.join(near)}?" if near else f"Recipes: {', '.join(RECIPES)}"
    raise ConversionError(f"there is no recipe '{name}'", do=do)


def default_recipes() -> tuple[str, ...]:
    """Names of the recipes that are tried when none is named."""
    return tuple(name for name, entry in RECIPES.items() if entry.default)


def with_islands(entry: Recipe) -> Recipe:
    """The form of an int8 recipe that leaves layers in float: itself where it is that already."""
    return entry if entry.mixed else RECIPES[f"{entry.name}-mixed"]


def per_tensor(entry: Recipe) -> Recipe | None:
    """The form of a recipe whose dense layers have one scale each; None where it has none, or is that already."""
    if entry.per_tensor:
        return None
    plain = entry.name.removesuffix("-mixed")
    return RECIPES.get(f"{plain}-per-tensor{'-mixed' if entry.mixed else ''}")

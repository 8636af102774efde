"""Recipes are data."""

from __future__ import annotations

import pytest

from edgekit_converters.recipe.artifact import RECIPES, default_recipes
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import ConversionError


def test_a_recipe_is_called_what_it_is() -> None:
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert name.startswith(f"{recipe.format}-")
        assert find_recipe(name) is recipe


def test_recipes_with_quantized_activations_need_calibration() -> None:
    for name, recipe in RECIPES.items():
        parts = ("int8-qdq", "tflite-int8", "ncnn-int8", "int16x8")
        assert recipe.needs_calibration == any(part in name for part in parts)


def test_what_is_tried_by_default_is_what_boards_run_well() -> None:
    assert "tflite-int8" in default_recipes()
    assert not [name for name in default_recipes() if "mixed" in name or "int16x8" in name]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tflite-int-8", "tflite-int8"),
        ("onnx-int8", "onnx-int8-qdq"),
        ("TFLITE-F32", "tflite-f32"),
        ("zzz", "Recipes: tflite-int8"),
    ],
)
def test_an_unknown_recipe_names_the_near_misses(name: str, says: str) -> None:
    with pytest.raises(ConversionError) as caught:
        find_recipe(name)
    assert says in caught.value.do


def test_a_format_alone_is_answered_with_its_usual_recipe_first():
    from edgekit_converters.recipe.artifact import recipe

    with pytest.raises(ConversionError) as caught:
        recipe("tflite")
    assert caught.value.do.startswith("Did you mean tflite-int8 or ")

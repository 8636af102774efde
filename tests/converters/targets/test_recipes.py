"""Recipes are data."""

from __future__ import annotations

import pytest

from edgekit_converters import targets
from edgekit_converters.errors import ConversionError


def test_a_recipe_is_called_what_it_is() -> None:
    for name, recipe in targets.RECIPES.items():
        assert recipe.name == name
        assert name.startswith(f"{recipe.format}-")
        assert targets.recipe(name) is recipe


def test_only_int8_recipes_need_calibration() -> None:
    assert [name for name, recipe in targets.RECIPES.items() if recipe.needs_calibration] == [
        "tflite-int8",
        "onnx-int8-qdq",
    ]


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
        targets.recipe(name)
    assert says in caught.value.do

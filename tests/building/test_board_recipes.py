"""A profile may say what is worth making for it; what is made for it alone is nobody else's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from linear import onnx_bytes

from edgekit.building.build_journey import build
from edgekit.building.build_request import BuildRequest
from edgekit.building.packing import BoardRecipes
from edgekit_converters.recipe.artifact import default_recipes
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_profiles import load, names

PI, GPU = load("raspberry-pi-4"), load("host-gpu")


@dataclass
class One:
    """As much of what was made as is looked at."""

    recipe: object


MADE = [One(find_recipe(name)) for name in ("tflite-int8", "onnx-int8-qdq", "onnx-f32", "onnx-f16")]


def offered(wanted: BoardRecipes, profile) -> list[str]:
    return [one.recipe.name for one in wanted.of(profile, MADE)]  # type: ignore[arg-type]


def test_boards_without_a_word_of_it_get_the_default():
    assert BoardRecipes((), (PI,)).names() == tuple(default_recipes())


def test_what_one_profile_wants_is_made_and_offered_to_it_alone():
    wanted = BoardRecipes((), (PI, GPU))
    assert set(wanted.names()) == {*default_recipes(), "onnx-f16"}
    assert offered(wanted, GPU) == ["onnx-f32", "onnx-f16"]
    assert offered(wanted, PI) == ["tflite-int8", "onnx-int8-qdq", "onnx-f32"]


def test_who_names_recipes_decides_for_every_board():
    wanted = BoardRecipes(("tflite-int8", "tflite-int8"), (PI, GPU))
    assert wanted.names() == ("tflite-int8",)
    assert offered(wanted, GPU) == offered(wanted, PI) == [one.recipe.name for one in MADE]


def test_a_wish_for_a_default_recipe_takes_it_from_nobody():
    other = replace(PI, name="other", recipes=("tflite-int8",))
    assert "tflite-int8" in offered(BoardRecipes((), (PI, other)), PI)


@pytest.mark.parametrize("name", [name for name in names() if load(name).recipes])
def test_what_profiles_want_exists(name: str):
    for recipe in load(name).recipes:
        assert find_recipe(recipe).format in ("tflite", "onnx")


@pytest.mark.convert
def test_the_bundle_of_a_host_with_a_gpu_holds_float_onnx(tmp_path):
    pytest.importorskip("onnx")
    (tmp_path / "net.onnx").write_bytes(onnx_bytes(np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), (-1, 4)))
    np.savez(tmp_path / "set.npz", x=np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))
    request = BuildRequest(
        tmp_path / "net.onnx", ("host-gpu",), output=tmp_path / "out", evaluation=str(tmp_path / "set.npz")
    )
    (bundle,) = build(request).bundles
    assert bundle.path is not None
    assert bundle.choice.chosen is not None
    assert bundle.choice.chosen.recipe in ("onnx-f16", "onnx-f32")

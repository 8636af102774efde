"""Artifacts that a board's runtime would refuse, or answer wrongly with, made again in the form that it runs.

    made = with_variants(maker, made, boards)

Rules: what stands in the way is asked of the artifact itself, by the rules that `edgekit check` uses; a variant is made once,
however many boards want it; the first form stays among the candidates, for the boards that run it and for the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from edgekit.building.candidates import barriers_there
from edgekit.building.making import Made, Maker
from edgekit_converters.targets import Recipe, per_tensor, with_islands
from edgekit_profiles import Profile, RuntimeSupport

__all__ = ["with_variants"]

Board = tuple[Profile, tuple[RuntimeSupport, ...]]


def with_variants(maker: Maker, made: Sequence[Made], boards: Sequence[Board]) -> list[Made]:
    """`made`, and after each artifact that a board cannot run as it is, the form that it can."""
    taken = frozenset(one.recipe.name for one in made)
    found = maker.workers.run([partial(_variants, maker, one, boards, taken) for one in made])
    every: dict[str, Made] = {}
    for one, variants in zip(made, found, strict=True):
        for each in (one, *variants):
            every.setdefault(each.recipe.name, each)
    return list(every.values())


def _variants(maker: Maker, made: Made, boards: Sequence[Board], taken: frozenset[str]) -> list[Made]:
    """None where nothing stands in the way, or it cannot be helped."""
    there = [barriers_there(*board, made) for board in boards]
    helped = [barrier for found in there if all(each.remedy for each in found) for barrier in found]
    if not helped or made.artifact is None:
        return []
    layers = frozenset(layer for barrier in helped if barrier.remedy == "float-layers" for layer in barrier.layers)
    recipe = _form(made.recipe, bool(layers), any(barrier.remedy == "per-tensor" for barrier in helped))
    if recipe is None:
        return []
    plan = replace(made.artifact.plan, float_layers=made.artifact.plan.float_layers | layers)
    one = maker.make(recipe, None if recipe.finished else plan)
    if recipe.name in taken:
        one = replace(one, recipe=replace(one.recipe, name=f"{recipe.name}-older"))
    return [replace(one, variant_of=made.recipe.name)]


def _form(recipe: Recipe, islands: bool, dense: bool) -> Recipe | None:
    if islands:
        if recipe.finished or not recipe.needs_calibration:
            return None
        recipe = with_islands(recipe)
    return per_tensor(recipe) if dense else recipe

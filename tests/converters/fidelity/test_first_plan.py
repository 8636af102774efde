"""The plan of the least noise, on noise that is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgekit_converters.fidelity.repair_bench import first_plan
from edgekit_converters.recipe.artifact import STATIC, QuantizationPlan, recipe
from edgekit_converters.recipe.conversion_errors import ConversionError

INT8 = recipe("tflite-int8")
AS_IT_IS = {(method, ("round",)): 1.0 for method in ("minmax", "mse", "percentile", "entropy")}


def bench(noises):
    """noises: (ranges, steps) -> noise, None where it cannot be made."""
    asked = []

    def noise(name, plan):
        asked.append(plan)
        found = noises.get((plan.ranges, plan.steps), 1.0)
        if found is None:
            raise ConversionError("it cannot be made")
        return found

    return SimpleNamespace(noise=noise, asked=asked)


CHOSEN = {
    "all alike: the known one": ({}, STATIC),
    "as much noise is no reason": ({("mse", ("round",)): 1.0}, STATIC),
    "less noise": ({("mse", ("round",)): 0.97}, QuantizationPlan("mse", steps=("round",))),
    "a little less noise is no reason to take weights as they are": ({("minmax", ()): 0.97}, STATIC),
    "cutting off more has to halve the noise": (
        {("mse", ("round",)): 0.8, ("entropy", ("round",)): 0.5},
        QuantizationPlan("mse", steps=("round",)),
    ),
    "the least of several": (
        {("mse", ("round",)): 0.8, ("entropy", ("round",)): 0.3},
        QuantizationPlan("entropy", steps=("round",)),
    ),
    "weights as they are": ({("minmax", ()): 0.5}, QuantizationPlan()),
    "ranges of the best, weights as they are": (
        {("mse", ("round",)): 0.8, ("mse", ()): 0.1, ("percentile", ()): 0.01},
        QuantizationPlan("mse"),
    ),
    "what cannot be made is passed over": (
        {("minmax", ("round",)): None, ("mse", ("round",)): 0.9},
        QuantizationPlan("mse", steps=("round",)),
    ),
    "nan is no noise to go by": ({("mse", ("round",)): float("nan")}, STATIC),
}


@pytest.mark.parametrize(("noises", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_the_plan_of_the_least_noise(noises, expected):
    assert first_plan(bench(noises), INT8) == expected


def test_where_nothing_can_be_made_the_known_plan_tells_why():
    nothing = {(method, steps): None for method, _ in AS_IT_IS for steps in (("round",), ())}
    assert first_plan(bench(nothing), INT8) == STATIC


def test_nothing_is_measured_for_a_recipe_that_needs_no_calibration():
    idle = bench({})
    assert first_plan(idle, recipe("tflite-dynamic")) == QuantizationPlan()
    assert idle.asked == []

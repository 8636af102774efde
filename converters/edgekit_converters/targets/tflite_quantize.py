"""A float .tflite file and a recipe in, the recipe's bytes out: every TFLite recipe starts here.

Rules: nothing is converted again, so that trying another plan costs less than a second; `plan.float_layers` is honoured by
every recipe, `plan.ranges` and `plan.fixed_ranges` by those that quantize activations; the same arguments give the same
bytes.

    data = make(float_model(source), recipe("tflite-int8"), Plan(), statistics)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edgekit_converters.errors import ConversionError
from edgekit_converters.targets.artifact import Recipe
from edgekit_converters.targets.float_model import FloatModel
from edgekit_converters.targets.plan import Plan, RangeMethod

__all__ = ["Ranged", "make"]


class Ranged(Protocol):
    """What calibration saw: `calibration.ranges.Statistics`."""

    def ranges(self, method: RangeMethod) -> Mapping[str, tuple[float, float]]:
        """Tensor name -> (low, high)."""
        ...


def make(model: FloatModel, recipe: Recipe, plan: Plan, statistics: Ranged | None = None) -> bytes:
    """statistics: needed by recipes with `needs_calibration`, of the tensors of `model.data`.

    Raises ConversionError when the recipe cannot be carried out, naming operators and layers.
    """
    if recipe.needs_calibration:
        if statistics is None:
            raise ConversionError(
                "an int8 recipe needs calibration data and there is none",
                where=recipe.name,
                do="Pass a calibration set: --calibration DIR",
            )
        from edgekit_converters.targets.tflite_static import static

        ranges = {name: (float(low), float(high)) for name, (low, high) in statistics.ranges(plan.ranges).items()}
        ranges |= {name: (low, high) for name, low, high in plan.fixed_ranges}
        return static(model.data, recipe, plan, ranges)
    if recipe.precision == "dynamic":
        from edgekit_converters.targets.tflite_dynamic import dynamic

        return dynamic(model.data, plan.float_layers)
    if recipe.precision == "float16":
        from edgekit_converters.targets.tflite_float16 import float16

        return float16(model.data, plan.float_layers)
    return model.data

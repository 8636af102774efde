"""Source and recipe -> artifact, for one recipe alone; a `Workspace` shares what several have in common."""

from __future__ import annotations

from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.targets.artifact import Artifact, Recipe
from edgekit_converters.targets.plan import Plan
from edgekit_converters.targets.samples import Samples
from edgekit_converters.targets.workspace import Workspace

__all__ = ["convert"]


def convert(
    source: SourceModel,
    recipe: Recipe,
    samples: Samples | None = None,
    progress: Progress = silent,
    plan: Plan | None = None,
) -> Artifact:
    """Carry out a recipe.

    samples: calibration examples; needed by int8 recipes, ignored by the others. Read as a stream, in order. plan: how to
    depart from the recipe, None for not at all. Raises ConversionError when the recipe cannot be carried out for this
    model or its result does not load.
    """
    return Workspace(source, samples, progress).make(recipe, plan)

"""INT8 artifacts that drift further than the limit, brought back within it where that can be done in time.

Rules: only what the limit refuses is repaired; the artifact that missed stays among the candidates, so that the report can
show both; a search that succeeded is not made again for the same model, data and limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edgekit.building.kept import key
from edgekit.building.making import Made, Maker
from edgekit_converters.choose import Limits
from edgekit_converters.fidelity import Fidelity
from edgekit_converters.fidelity.repair import Checked, Repair, Start, Target, repair
from edgekit_converters.targets import recipe, with_islands
from edgekit_converters.targets.stored import plan_from, plan_json
from edgekit_runtime.errors import EdgekitError

__all__ = ["failed_repairs", "with_repairs"]


def with_repairs(maker: Maker, made: Sequence[Made], limits: Limits, budget_s: float, jobs: int) -> list[Made]:
    """`made`, with what repair made of those that miss the limit. budget_s: of all repairs together."""
    missing = [one for one in made if _misses(one, limits)]
    if not missing or budget_s <= 0:
        return list(made)
    each_s = budget_s / math.ceil(len(missing) / jobs)
    assert limits.max_drop is not None
    found = maker.workers.run([partial(_repaired, maker, one, limits.max_drop, each_s) for one in missing])
    repairs = {before.recipe.name: (before, after) for before, after in zip(missing, found, strict=True)}
    pairs = {name: _both(*pair) for name, pair in repairs.items()}
    stay = [pairs[one.recipe.name][0] if one.recipe.name in pairs else one for one in made]
    new = [after for pair in pairs.values() for after in pair[1:]]
    return list({one.recipe.name: one for one in (*stay, *new)}.values())


def _both(before: Made, after: Made) -> tuple[Made, ...]:
    """The one that missed, and what was made of it; under a name of its own where both have the same recipe."""
    story, name = after.repair, before.recipe.name
    if after.artifact is None:
        return (replace(before, repair=story),)
    if after.recipe.name == name:
        name = f"{name}-before"
        story = None if story is None else story | {"of": name}
    return replace(before, recipe=replace(before.recipe, name=name), repair=story), replace(after, repair=story)


def failed_repairs(made: Sequence[Made], limits: Limits) -> list[dict[str, Any]]:
    """What came of repairs that did not reach the limit, where no INT8 artifact keeps it at all."""
    kept = [one for one in made if one.recipe.precision == "int8" and one.fidelity and not _misses(one, limits)]
    stories = {one.repair["of"]: one.repair for one in made if one.repair is not None and not one.repair["met"]}
    return [] if kept else list(stories.values())


def _misses(made: Made, limits: Limits) -> bool:
    """Whether it is an INT8 artifact that the limit refuses, and there is a recipe to repair it with."""
    if limits.max_drop is None or made.fidelity is None or made.recipe.precision != "int8":
        return False
    return not limits.allow(made.fidelity.loss)


def _repaired(maker: Maker, made: Made, max_drop: float, budget_s: float) -> Made:
    """The best that was found, with the story of the search. An artifact that cannot be improved has none of its own."""
    subject, name = maker.subject, made.recipe.name
    kept_as = key("repair", name, subject.evaluation_key, subject.sets.calibration_digest, max_drop)
    stored = subject.evaluation_store.get(kept_as)
    story = json.loads(stored) if stored is not None else _searched(maker, made, max_drop, budget_s)
    if stored is None and story["met"]:
        subject.evaluation_store.put(kept_as, json.dumps(story).encode())
    plan = plan_from(story["plan"])
    if story["recipe"] == name and made.artifact is not None and plan == made.artifact.plan:
        return replace(made, artifact=None, fidelity=None, repair=story)
    after = maker.make(recipe(story["recipe"]), plan)
    return replace(after, repair=story)


def _searched(maker: Maker, made: Made, max_drop: float, budget_s: float) -> dict[str, Any]:
    artifact = made.artifact
    assert artifact is not None
    assert made.fidelity is not None

    def told(stage: str, done: int, total: int | None) -> None:
        maker.workers.progress(f"{made.recipe.name} {stage}", done, total)

    target = Target(
        max_drop,
        mixed=with_islands(made.recipe).name,
        budget_s=budget_s,
    )
    start = Start(made.recipe.name, artifact.plan, Checked(made.fidelity.loss, made.fidelity))
    try:
        return _story(made, repair(maker.bench(made.recipe.format), start, target, told))
    except EdgekitError as error:
        return {
            "of": made.recipe.name, "recipe": made.recipe.name, "plan": plan_json(artifact.plan), "met": False,
            "drop": made.fidelity.loss, "why": str(error), "tried": [],
        }  # fmt: skip


def _story(made: Made, found: Repair[Fidelity]) -> dict[str, Any]:
    return {
        "of": made.recipe.name,
        "recipe": found.recipe,
        "plan": plan_json(found.plan),
        "met": found.met,
        "drop": found.checked.drop,
        "why": found.why,
        "tried": [
            {
                "remedy": attempt.remedy,
                "recipe": attempt.recipe,
                "float_layers": len(attempt.plan.float_layers),
                "float_macs": attempt.float_macs,
                "noise_db": None if not attempt.noise or math.isinf(attempt.noise) else -10 * math.log10(attempt.noise),
                "drop": attempt.drop,
                "failed": attempt.failed,
            }
            for attempt in found.tried
        ],
    }

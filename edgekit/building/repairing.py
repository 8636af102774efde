"""Repair INT8 artifacts that miss the limit; make forms that a board's runtime accepts.

    results = repair(maker, compared, boards, Search(limits, budget_s=120, jobs=2), say)

Rules:
- only what the limit refuses is repaired, unless it is INT8 in name only or larger than float; the artifact that missed
  stays among the candidates;
- one half of the evaluation set chooses a repair, the other judges it once. A detector with few boxes is cross-fitted.
  In a set too small for halves the same items do both, and the report says so;
- a repair that misses the limit and does not improve its source is dropped;
- a search is cached for the same model, data and limit, unless it was cut short and has more time now;
- what a board's runtime would refuse is read from the artifact, by the rules of `edgekit check`; a variant for it is
  made once for all boards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from edgekit.building.board_candidates import barriers_there
from edgekit.building.build_report import before_repairs
from edgekit.building.build_subject import Board, BuildSubject
from edgekit.building.data import key
from edgekit.building.making import Maker, RecipeResult
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.fidelity.compare import growth
from edgekit_converters.fidelity.repair import Repair, RepairStart, RepairTarget, percent, processor_seconds
from edgekit_converters.fidelity.repair import repair as search_repair
from edgekit_converters.fidelity.result import Fidelity
from edgekit_converters.recipe.artifact import QuantizationPlan, Recipe, per_tensor, with_islands
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.progress import titled
from edgekit_converters.recipe.store import get_json, put_json
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import from_json, to_json


@dataclass(frozen=True)
class Search:
    """limits: what a repair must keep. budget_s: seconds for all repairs. jobs: repairs at once."""

    limits: ChoiceLimits
    budget_s: float
    jobs: int

    def misses(self, results: Sequence[RecipeResult]) -> list[RecipeResult]:
        """INT8 artifacts that the limit refuses and that are worth a repair; empty without time."""
        floats = {
            one.recipe.format: one.artifact.data
            for one in results
            if one.artifact is not None and one.recipe.precision == "float32"
        }
        return [
            one
            for one in results
            if self.budget_s > 0 and _misses(one, self.limits) and _gains(one, floats.get(one.recipe.format))
        ]

    def share_s(self, count: int) -> float:
        """Seconds for each of `count` repairs."""
        return self.budget_s / max(1, math.ceil(count / self.jobs))


def repair(
    maker: Maker, compared: Sequence[RecipeResult], boards: Sequence[Board], search: Search, say: Callable[[str], None]
) -> list[RecipeResult]:
    """`compared`, with another form of each result that a board or the limit refuses."""
    results = with_variants(maker, with_islands_beside(maker, compared), boards)
    missing = search.misses(results)
    each_s = search.share_s(len(missing))
    if unknown := [one for one in missing if _remembered(maker, one, search.limits, each_s) is None]:
        for line in before_repairs(results, unknown, search.budget_s):
            say(line)
    return with_repairs(maker, results, search)


def with_islands_beside(maker: Maker, compared: Sequence[RecipeResult]) -> list[RecipeResult]:
    """`compared`, and after each recipe that fails in int8 its form with some layers in float."""
    failed = [
        one
        for one in compared
        if one.artifact is None and one.recipe.precision == "int8" and not one.recipe.finished and not one.recipe.mixed
    ]
    failed = failed if maker.calibrates else []
    made = maker.workers.run([partial(maker.make, with_islands(one.recipe)) for one in failed])
    beside = {one.recipe.name: after for one, after in zip(failed, made, strict=True) if after.artifact is not None}

    def with_advice(one: RecipeResult) -> RecipeResult:
        """Replace its advice, which is to make the other form."""
        after = beside.get(one.recipe.name)
        return one if after is None else replace(one, advice=f"{after.recipe.name} was made, too")

    found = [each for one in compared for each in (with_advice(one), beside.get(one.recipe.name)) if each is not None]
    return list({one.recipe.name: one for one in found}.values())


def with_repairs(maker: Maker, results: Sequence[RecipeResult], search: Search) -> list[RecipeResult]:
    """`results`, with the repair of each that misses the limit."""
    missing = search.misses(results)
    if not missing:
        return list(results)
    each_s = search.share_s(len(missing))
    found = maker.workers.run([partial(_repaired, maker, one, search.limits, each_s) for one in missing])
    repairs = {before.recipe.name: (before, after) for before, after in zip(missing, found, strict=True)}
    pairs = {name: _with_original(*pair) for name, pair in repairs.items()}
    stay = [pairs[one.recipe.name][0] if one.recipe.name in pairs else one for one in results]
    new = [after for pair in pairs.values() for after in pair[1:]]
    return list({one.recipe.name: one for one in (*stay, *new)}.values())


def _with_original(before: RecipeResult, after: RecipeResult) -> tuple[RecipeResult, ...]:
    """The artifact that missed, renamed if both have one recipe, and its repair."""
    story, name = after.repair, before.recipe.name
    if after.artifact is None:
        return (replace(before, repair=story),)
    if after.recipe.name == name:
        name = f"{name}-before"
        story = None if story is None else story | {"of": name}
    return replace(before, recipe=replace(before.recipe, name=name), repair=story), replace(after, repair=story)


def failed_repairs(made: Sequence[RecipeResult], limits: ChoiceLimits) -> list[dict[str, Any]]:
    """Stories of failed repairs; empty if any INT8 artifact keeps the limit."""
    kept = [one for one in made if one.recipe.precision == "int8" and _gains(one, None) and not _misses(one, limits)]
    stories = {one.repair["of"]: one.repair for one in made if one.repair is not None and not one.repair["met"]}
    return [] if kept else list(stories.values())


def _gains(made: RecipeResult, original: bytes | None) -> bool:
    """Whether an artifact is in 8 bits, and not much larger than the float file."""
    if made.fidelity is None or made.fidelity.int8_in_name_only:
        return False
    if original is None or made.artifact is None:
        return True
    return not growth(made.recipe.format, original, made.artifact.data)


def _misses(made: RecipeResult, limits: ChoiceLimits) -> bool:
    """Whether the limit refuses it, it is INT8, and a recipe can repair it."""
    if limits.max_drop is None or made.fidelity is None or made.recipe.precision != "int8":
        return False
    return not limits.allow(made.fidelity.loss)


def _repaired(maker: Maker, made: RecipeResult, limits: ChoiceLimits, budget_s: float) -> RecipeResult:
    """The best repair with the story of the search; no artifact if it cannot be improved."""
    max_drop = limits.max_drop
    assert max_drop is not None
    story = _remembered(maker, made, limits, budget_s)
    if story is None:
        story = _searched(maker, made, max_drop, budget_s)
        put_json(maker.subject.evaluation_store, _name(maker, made, limits), story)
    plan = from_json(QuantizationPlan, story["plan"], "the plan")
    if story["recipe"] == made.recipe.name and made.artifact is not None and plan == made.artifact.plan:
        return replace(made, artifact=None, fidelity=None, repair=story)
    subject = maker.subject
    halves = None if subject.folds else subject.halves
    judge = None if halves is None else halves[1]
    after = maker.make(find_recipe(story["recipe"]), plan, judge)
    if after.fidelity is None or after.artifact is None:
        return replace(
            after, repair=story | {"met": False, "why": f"{story['what']} was found, and failed: {after.failed}"}
        )
    found = after.fidelity
    if subject.folds:
        try:
            others = [maker.workspace.make(*_plan_of(one)) for one in story["crossed"]]
            found = maker.crossed(after.artifact, list(zip(others, subject.folds, strict=True)))
        except EdgekitError as error:
            why = f"{story['what']} was found, and cannot be judged: {error}"
            return replace(made, artifact=None, fidelity=None, repair=story | {"met": False, "why": why})
    chosen_by = len((halves or (subject,))[0].reference)
    apart = halves is not None or bool(subject.folds)
    found = replace(found, chosen_by=chosen_by, judged_apart=apart, folds=len(subject.folds))
    record = search_record(story, found, max_drop)
    if apart and not record["met"]:
        before = made if judge is None or made.artifact is None else maker.make(made.recipe, made.artifact.plan, judge)
        if before.fidelity is not None and found.loss >= before.fidelity.loss:
            why = (
                f"{record['why']}; {made.recipe.name} is as good there, with a drop of {percent(before.fidelity.loss)}"
            )
            return replace(made, artifact=None, fidelity=None, repair=record | {"why": why})
    return replace(after, fidelity=found, repair=record)


def search_record(story: dict[str, Any], found: Fidelity, max_drop: float) -> dict[str, Any]:
    """The search's story with a verdict. found: fidelity on the items that judge."""
    sizes: dict[str, Any] = {"chosen_by": found.chosen_by, "judged_by": found.items, "judged_apart": found.judged_apart}
    sizes |= {"judged_drop": found.loss}
    met = ChoiceLimits(max_drop=max_drop).allow(found.loss)
    if not found.judged_apart:
        few = (
            f"it was chosen and judged by the same {found.items} items, too few for two halves, so others may lose more"
        )
        return story | sizes | {"met": met, "why": f"{story['why']}; {few}"}
    limit, drop = f"the limit of {percent(max_drop)}", percent(found.loss, None if met else max_drop)
    if found.folds:
        kept = "keeps" if met else "does not keep"
        why = (
            f"{story['what']} {kept} {limit}: the drop is {drop} on {found.items} items, each answered by a repair "
            f"that was chosen without it, in {found.folds} parts"
        )
        return story | sizes | {"met": met, "why": why}
    if met:
        why = f"{story['what']} keeps {limit}: the drop is {drop} on {found.items} items that it was not chosen by"
    elif story["met"]:
        why = (
            f"{limit} is not kept: {story['what']} keeps it on the {found.chosen_by} items that it was chosen by, and "
            f"the drop is {drop} on {found.items} others"
        )
    else:
        why = f"{story['why']}; on {found.items} items that it was not chosen by the drop is {drop}"
    return story | sizes | {"met": met, "why": why}


def _remembered(maker: Maker, made: RecipeResult, limits: ChoiceLimits, budget_s: float) -> dict[str, Any] | None:
    """An earlier build's search, if it had as much time or needed no more."""

    def fits(stored: dict[str, Any]) -> bool:
        for one in (stored, *stored["crossed"]):
            _plan_of(one)
        kinds: dict[str, Any] = {"why": str, "what": str, "met": bool, "cut_short": bool, "tried": list}
        of_kinds = all(isinstance(stored[name], kind) for name, kind in kinds.items())
        folds = not stored["budget_s"] or len(stored["crossed"]) == len(maker.subject.folds)
        return of_kinds and folds and isinstance(stored["budget_s"], (int, float))

    known = get_json(maker.subject.evaluation_store, _name(maker, made, limits), dict[str, Any], fits)
    return known if known is not None and (not known["cut_short"] or known["budget_s"] >= budget_s) else None


def _plan_of(stored: dict[str, Any]) -> tuple[Recipe, QuantizationPlan]:
    return find_recipe(stored["recipe"]), from_json(QuantizationPlan, stored["plan"], "the plan")


def _name(maker: Maker, made: RecipeResult, limits: ChoiceLimits) -> str:
    subject = maker.subject
    parts = [part.evaluation_key for part in subject.folds or subject.halves or (subject,)]
    return key("repair", made.recipe.name, *parts, subject.sets.calibration_digest, limits.max_drop)


def _searched(maker: Maker, made: RecipeResult, max_drop: float, budget_s: float) -> dict[str, Any]:
    artifact = made.artifact
    assert artifact is not None
    assert made.fidelity is not None

    progress = titled(maker.workers.progress, made.recipe.name)
    missed, spent = made.fidelity.loss, processor_seconds()

    def search(chooser: BuildSubject | None, seconds: float) -> Repair:
        check = partial(maker.loss, chooser=chooser)
        target = RepairTarget(max_drop, mixed=with_islands(made.recipe).name, budget_s=seconds)
        # it misses the limit on all items, whatever it does on these
        drop = max(check(made.recipe.name, artifact.plan), missed)
        start = RepairStart(made.recipe.name, artifact.plan, drop)
        return search_repair(maker.bench(made.recipe.format), check, start, target, progress)

    subject = maker.subject
    halves = None if subject.folds else subject.halves
    try:
        # The other searches reuse the noise that the first one measured.
        found = search(halves[0] if halves else None, budget_s / 2 if subject.folds else budget_s)
        crossed = list[Repair]()
        for place, chooser in enumerate(subject.choosers):
            crossed.append(search(chooser, max(0.0, budget_s - spent()) / (len(subject.choosers) - place)))
        return _story(made, found) | {
            "budget_s": budget_s,
            "cut_short": found.cut_short or any(one.cut_short for one in crossed),
            "crossed": [{"recipe": one.recipe, "plan": to_json(one.plan)} for one in crossed],
        }
    except EdgekitError as error:
        return {
            "of": made.recipe.name, "recipe": made.recipe.name, "plan": to_json(artifact.plan), "met": False,
            "drop": made.fidelity.loss, "why": str(error), "what": made.recipe.name, "tried": [], "cut_short": True,
            "budget_s": 0.0, "crossed": [],
        }  # fmt: skip


def _story(made: RecipeResult, found: Repair) -> dict[str, Any]:
    return {
        "of": made.recipe.name,
        "recipe": found.recipe,
        "plan": to_json(found.plan),
        "met": found.met,
        "drop": found.drop,
        "why": found.why,
        "what": found.what,
        "cut_short": found.cut_short,
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


def with_variants(maker: Maker, made: Sequence[RecipeResult], boards: Sequence[Board]) -> list[RecipeResult]:
    """`made`, and after each artifact that a board cannot run, a form that it can."""
    taken = frozenset(one.recipe.name for one in made)
    found = maker.workers.run([partial(_variants, maker, one, boards, taken) for one in made])
    every: dict[str, RecipeResult] = {}
    for one, variants in zip(made, found, strict=True):
        for each in (one, *variants):
            every.setdefault(each.recipe.name, each)
    return list(every.values())


def _variants(maker: Maker, made: RecipeResult, boards: Sequence[Board], taken: frozenset[str]) -> list[RecipeResult]:
    """Empty if every board can run the artifact, or no form helps."""
    there = [barriers_there(*board, made) for board in boards]
    helped = [barrier for found in there if all(each.remedy for each in found) for barrier in found]
    if not helped or made.artifact is None:
        return []
    layers = frozenset(layer for barrier in helped if barrier.remedy == "float-layers" for layer in barrier.layers)
    if layers and (made.recipe.finished or not made.recipe.needs_calibration):
        return []
    recipe: Recipe | None = with_islands(made.recipe) if layers else made.recipe
    if recipe and any(barrier.remedy == "per-tensor" for barrier in helped):
        recipe = per_tensor(recipe)
    if recipe is None:
        return []
    plan = replace(made.artifact.plan, float_layers=made.artifact.plan.float_layers | layers)
    one = maker.make(recipe, None if recipe.finished else plan)
    if recipe.name in taken:
        one = replace(one, recipe=replace(one.recipe, name=f"{recipe.name}-older"))
    return [replace(one, variant_of=made.recipe.name)]

"""What is repaired, and what a build says where that cannot be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash

from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import Sets
from edgekit.building.making import RecipeResult, Workers
from edgekit.building.repairing import Search, failed_repairs, with_islands_beside, with_repairs
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.data.dataset import FEWEST_APART, RandomDataset
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.result import Fidelity
from edgekit_converters.fidelity.sensitivity import Unit
from edgekit_converters.recipe.artifact import STATIC, Artifact, QuantizationPlan, recipe
from edgekit_converters.recipe.progress import TimeIsOverError, silent
from edgekit_converters.recipe.store import NO_STORE, DiskStore, StageStore
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract
from edgekit_runtime.system.strict_json import to_json


def made(name: str, drop: float | None, met: bool | None = None) -> RecipeResult:
    found = Fidelity(
        items=100, metric="top1", original=0.9, artifact=0.9 - (drop or 0.0), drop=drop, ci95=None, agreement=1.0,
        cosine=0.99, sqnr_db=30.0, quantized_macs=1.0, quantized_weights=1.0, engine="litert",
    )  # fmt: skip
    story = None if met is None else {"of": name, "recipe": name, "met": met, "why": "because"}
    return RecipeResult(
        recipe(name), None, found if drop is not None else None, None if drop is not None else "no", repair=story
    )


def of_size(one: RecipeResult, size: int) -> RecipeResult:
    return replace(one, artifact=Artifact(one.recipe, bytes(size), (), (), 1.0, 1.0, {}))


LIMIT = ChoiceLimits(max_drop=0.01)
IN_NAME_ONLY = made("onnx-int8-qdq", 0.5)
IN_NAME_ONLY = replace(IN_NAME_ONLY, fidelity=replace(IN_NAME_ONLY.fidelity, quantized_macs=0.0003))
UNTOUCHED = {
    "within the limit": ([made("tflite-int8", 0.01)], LIMIT),
    "no limit": ([made("tflite-int8", 0.5)], ChoiceLimits()),
    "float": ([made("tflite-f32", 0.5)], LIMIT),
    "dynamic": ([made("tflite-dynamic", 0.5)], LIMIT),
    "not made": ([made("tflite-int8", None)], LIMIT),
    "INT8 in name only": ([IN_NAME_ONLY], LIMIT),
    "larger than float": ([of_size(made("onnx-int8-qdq", 0.5), 44_000), of_size(made("onnx-f32", 0), 20_000)], LIMIT),
}


@pytest.mark.parametrize(("given", "limits"), UNTOUCHED.values(), ids=UNTOUCHED)
def test_only_int8_that_misses_the_limit_is_repaired(given, limits):
    assert with_repairs(None, given, Search(limits, 60.0, 2)) == given  # the maker is not asked for anything


def test_no_time_means_no_repair():
    given = [made("tflite-int8", 0.5)]
    assert with_repairs(None, given, Search(LIMIT, 0.0, 2)) == given


def test_a_failed_repair_is_told_where_no_int8_keeps_the_limit():
    failed = made("tflite-int8", 0.5, met=False)
    assert failed_repairs([failed, made("tflite-f32", 0.0)], LIMIT) == [failed.repair]
    assert failed_repairs([failed, made("onnx-int8-qdq", 0.0)], LIMIT) == []
    assert failed_repairs([replace(failed, repair=None)], LIMIT) == []
    kept = replace(IN_NAME_ONLY, fidelity=replace(IN_NAME_ONLY.fidelity, drop=0.0))
    assert failed_repairs([failed, kept], LIMIT) == [failed.repair]


class Fixed:
    """A maker whose repairs are known."""

    def __init__(self, *after):
        self.workers, self._after = self, list(after)

    def run(self, tasks):
        return self._after


ARTIFACT = Artifact(recipe("tflite-int8"), b"", (), (), 1.0, 1.0, {})


@pytest.mark.parametrize("name", ["tflite-int8", "tflite-int8-mixed"])
def test_the_one_that_missed_stays_beside_what_was_made_of_it(name):
    before = made(name, 0.5)
    after = replace(made("tflite-int8-mixed", 0.0, met=True), artifact=ARTIFACT)
    found = with_repairs(Fixed(replace(after, repair=after.repair | {"of": name})), [before], Search(LIMIT, 60.0, 2))
    same = name == "tflite-int8-mixed"
    assert [one.recipe.name for one in found] == [f"{name}-before" if same else name, "tflite-int8-mixed"]
    assert [one.fidelity.drop for one in found] == [0.5, 0.0]
    assert {one.repair["of"] for one in found} == {found[0].recipe.name}


def test_a_failed_repair_is_told_once_though_two_artifacts_have_its_story():
    failed = made("tflite-int8", 0.5, met=False)
    assert failed_repairs([failed, replace(made("tflite-int8-mixed", 0.4), repair=failed.repair)], LIMIT) == [
        failed.repair
    ]


def test_a_repaired_one_is_no_failure():
    given = [made("tflite-int8", 0.5, met=True), made("tflite-int8-mixed", 0.005, met=True)]
    assert failed_repairs(given, LIMIT) == []


CONTRACT = Contract("classification", (InputContract("x", (4,), "float32"),), (OutputContract("y", (2,), "float32"),))
START = 0.3
LOST = 0.1  # of all the items that there are, by whichever plan
LIMIT_OF_5 = ChoiceLimits(max_drop=0.05)


def subject_of(items: int, store: StageStore = NO_STORE) -> BuildSubject:
    names = [f"item {index}" for index in range(items)]
    answer = {"y": np.zeros(2, np.float32)}
    reference = Reference((answer,) * items, (0,) * items, (0,) * items, tuple(names))
    sets = Sets(None, RandomDataset(CONTRACT, items), False, (), "calibration", "evaluation", tuple(names))
    return BuildSubject(SimpleNamespace(sha256="model"), CONTRACT, sets, reference, (), store=store)  # type: ignore[arg-type]


class Lucky:
    """A maker whose every plan loses a tenth of all items, each plan others: what looks better is better by chance
    alone. It is its own bench, and counts what it is asked."""

    units = tuple(Unit(f"u{i}", frozenset({f"u{i}"}), 1 / 16) for i in range(16))

    def __init__(self, subject: BuildSubject) -> None:
        self.subject, self.workers, self.counts = subject, Workers(1, silent), []
        self.workspace = SimpleNamespace(make=lambda recipe, plan: replace(ARTIFACT, recipe=recipe, plan=plan))

    @property
    def checks(self) -> int:
        """How many plans were compared, but for the one that it starts from."""
        return sum(plan != STATIC for plan in self.counts)

    def bench(self, format):
        return self

    def noise(self, recipe, plan):
        return 0.01

    def noise_alone(self, recipe, plan, unit):
        return 0.001

    def blamed(self, recipe, plan):
        return []

    def loss(self, recipe: str, plan: QuantizationPlan, chooser: BuildSubject | None) -> float:
        self.counts.append(plan)
        return self.lost_by(recipe, plan, chooser or self.subject)

    def lost_by(self, recipe: str, plan: QuantizationPlan, subject: BuildSubject) -> float:
        return self.lost(recipe, plan, subject.reference.digests)

    def lost(self, recipe, plan, names) -> float:
        if plan == STATIC:
            return START
        text = f"{recipe} {to_json(plan)}"
        return float(np.mean([xxhash.xxh3_64_intdigest(f"{text} {name}".encode()) / 2**64 < LOST for name in names]))

    def make(self, recipe, plan, judge=None):
        found = self.lost_by(recipe.name, plan, judge or self.subject)
        items = len((judge or self.subject).reference)
        fidelity = replace(made(recipe.name, found).fidelity, items=items)
        return RecipeResult(recipe, self.workspace.make(recipe, plan), fidelity, None, judge=judge)

    def crossed(self, artifact, judged):
        lost = [self.lost_by(other.recipe.name, other.plan, fold) * len(fold.reference) for other, fold in judged]
        items = len(self.subject.reference)
        return replace(made("tflite-int8", sum(lost) / items).fidelity, items=items)


def searched(lucky: Lucky, budget_s: float = 60.0) -> list[RecipeResult]:
    start = replace(made("tflite-int8", START), artifact=replace(ARTIFACT, plan=STATIC))
    return with_repairs(lucky, [start], Search(LIMIT_OF_5, budget_s, 1))


def test_a_repair_that_is_luck_is_shown_by_the_items_that_it_was_not_chosen_by():
    lucky = Lucky(subject_of(120))
    before, after = searched(lucky)
    assert after.repair["tried"][-1]["drop"] <= 0.05  # by luck, on the half that it was chosen by
    assert after.repair["met"] is False
    assert after.fidelity.loss > 0.05
    assert (after.fidelity.items, after.fidelity.chosen_by, after.fidelity.judged_apart) == (60, 60, True)
    assert "keeps it on the 60 items that it was chosen by, and the drop is" in after.repair["why"]
    fresh = [f"another {index}" for index in range(5_000)]
    plan = after.artifact.plan
    assert lucky.lost(after.recipe.name, plan, fresh) == pytest.approx(LOST, abs=0.02)
    assert failed_repairs([before, after], LIMIT_OF_5) == [after.repair]


def boxed(items: int, store: StageStore = NO_STORE, name: str = "item") -> BuildSubject:
    """A detector's, with one labelled box an item."""
    subject = subject_of(items, store)
    labels, digests = (np.array([[0.0, 0, 1, 1, 0]]),) * items, tuple(f"{name} {index}" for index in range(items))
    reference = replace(subject.reference, labels=labels, best=None, digests=digests)
    contract = replace(CONTRACT, task="detection")
    return replace(subject, contract=contract, reference=reference)


def test_a_detector_with_few_boxes_is_judged_by_all_of_them_and_none_by_a_repair_that_it_chose():
    lucky = Lucky(boxed(25))
    _, after = searched(lucky)
    assert (after.fidelity.items, after.fidelity.chosen_by, after.fidelity.folds) == (25, 25, 5)
    assert after.fidelity.judged_apart
    assert len(after.repair["crossed"]) == 5
    assert "on 25 items, each answered by a repair that was chosen without it, in 5 parts" in after.repair["why"]
    for chooser, fold in zip(lucky.subject.choosers, lucky.subject.folds, strict=True):
        assert sorted(chooser.reference.digests + fold.reference.digests) == sorted(lucky.subject.reference.digests)


def normal(text: str) -> float:
    return NormalDist().inv_cdf((xxhash.xxh3_64_intdigest(text.encode()) + 0.5) / 2**64)


class Alike(Lucky):
    """Two of the layers do the harm. What is hard for one plan is mostly hard for others, too."""

    def truth(self, plan) -> float:
        return 0.02 if {"u3", "u5"} & plan.float_layers else 0.15

    def lost(self, recipe, plan, names):
        bound, text = NormalDist().inv_cdf(self.truth(plan)), f"{recipe} {to_json(plan)}"
        return float(np.mean([0.9 * normal(name) + 0.44 * normal(f"{text} {name}") < bound for name in names]))


def test_cross_fitting_scatters_less_than_half_of_the_boxes_and_finds_better_plans():
    judged, good = {True: list[float](), False: list[float]()}, {True: 0, False: 0}
    errors = list[float]()
    for seed in range(80):
        crossed = Alike(boxed(60, name=f"{seed} of"))
        for alike in (crossed, Alike(replace(crossed.subject, contract=CONTRACT))):
            after, folded = searched(alike)[-1], alike is crossed
            judged[folded].append(after.repair["judged_drop"])
            good[folded] += alike.truth(after.artifact.plan) < 0.05
            errors += [judged[True][-1] - alike.truth(after.artifact.plan)] if folded else []
    assert abs(np.mean(errors)) < 0.02
    assert np.std(judged[True]) < 0.6 * np.std(judged[False])
    assert good[True] > good[False]


def test_a_repair_that_is_no_better_than_what_it_was_made_of_is_none():
    class Worse(Lucky):
        """What is repaired keeps the choosing half's answers, and loses others."""

        def lost(self, recipe, plan, names):
            apart = names == self.subject.halves[1].reference.digests
            return {True: 0.08, False: START}[apart] if plan == STATIC else {True: 0.12, False: 0.04}[apart]

    lucky = Worse(subject_of(400))
    (after,) = searched(lucky)
    assert (after.recipe.name, after.repair["met"]) == ("tflite-int8", False)
    assert after.repair["why"].endswith("; tflite-int8 is as good there, with a drop of 8 %")


def test_many_boxes_are_halved_and_pictures_without_any_are_not_divided():
    assert boxed(200).folds == ()
    assert boxed(1).folds == ()
    assert len(boxed(3).folds) == 3


def test_too_few_items_for_two_halves_choose_and_judge_and_it_is_said():
    lucky = Lucky(subject_of(2 * FEWEST_APART - 1))
    _, after = searched(lucky)
    assert after.repair["met"] is True  # which says little, and therefore:
    assert after.repair["why"].endswith(
        "it was chosen and judged by the same 19 items, too few for two halves, so others may lose more"
    )
    assert (after.fidelity.chosen_by, after.fidelity.judged_apart) == (19, False)


def test_a_search_that_found_nothing_is_not_made_again(tmp_path: Path):
    class Hopeless(Lucky):
        def lost(self, recipe, plan, names):
            return 0.5

    first, again = (Hopeless(subject_of(120, DiskStore(tmp_path))) for _ in range(2))
    found, repeated = searched(first), searched(again)
    assert first.checks
    assert again.checks == 0
    assert [one.repair for one in found] == [one.repair for one in repeated]
    assert found[0].repair["met"] is False


def test_a_search_that_was_cut_short_goes_on_where_there_is_more_time(tmp_path: Path):
    class Slow(Lucky):
        def loss(self, recipe, plan, chooser):
            found = super().loss(recipe, plan, chooser)
            if plan != STATIC:
                raise TimeIsOverError
            return found

    counts = []
    for budget_s in (10.0, 10.0, 5.0, 20.0):
        slow = Slow(subject_of(120, DiskStore(tmp_path)))
        searched(slow, budget_s)
        counts.append(slow.checks)
    assert [count > 0 for count in counts] == [True, False, False, True]


@pytest.mark.parametrize("works", [True, False])
def test_nobody_is_told_to_make_the_form_that_is_made(works: bool):
    advice = "Leave that in float: --recipe tflite-int8-mixed; or replace the operator in the model"
    failed = replace(made("tflite-int8", None), advice=advice)
    islands = replace(made("tflite-int8-mixed", 0.0), artifact=ARTIFACT) if works else made("tflite-int8-mixed", None)
    maker = Fixed(islands)
    maker.calibrates = True
    maker.make = lambda recipe: islands
    for given in ([failed], [failed, islands]):
        found = with_islands_beside(maker, given)
        assert found[0].advice == ("tflite-int8-mixed was made, too" if works else advice)
        assert [one.recipe.name for one in found if one.artifact] == ["tflite-int8-mixed"] * works

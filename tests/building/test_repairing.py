"""What is repaired, and what a build says where that cannot be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.building.making import Made
from edgekit.building.repairing import failed_repairs, with_repairs
from edgekit_converters.choose import Limits
from edgekit_converters.fidelity import Fidelity
from edgekit_converters.targets import Artifact, recipe


def made(name: str, drop: float | None, met: bool | None = None) -> Made:
    found = Fidelity(
        items=100, metric="top1", original=0.9, artifact=0.9 - (drop or 0.0), drop=drop, ci95=None, agreement=1.0,
        cosine=0.99, sqnr_db=30.0, quantized_macs=1.0, quantized_weights=1.0, engine="litert",
    )  # fmt: skip
    story = None if met is None else {"of": name, "recipe": name, "met": met, "why": "because"}
    return Made(
        recipe(name), None, found if drop is not None else None, None if drop is not None else "no", repair=story
    )


LIMIT = Limits(max_drop=0.01)
UNTOUCHED = {
    "within the limit": ([made("tflite-int8", 0.01)], LIMIT),
    "no limit": ([made("tflite-int8", 0.5)], Limits()),
    "float": ([made("tflite-f32", 0.5)], LIMIT),
    "dynamic": ([made("tflite-dynamic", 0.5)], LIMIT),
    "not made": ([made("tflite-int8", None)], LIMIT),
}


@pytest.mark.parametrize(("given", "limits"), UNTOUCHED.values(), ids=UNTOUCHED)
def test_only_int8_that_misses_the_limit_is_repaired(given, limits):
    assert with_repairs(None, given, limits, 60.0, 2) == given  # the maker is not asked for anything


def test_no_time_means_no_repair():
    given = [made("tflite-int8", 0.5)]
    assert with_repairs(None, given, LIMIT, 0.0, 2) == given


def test_a_failed_repair_is_told_where_no_int8_keeps_the_limit():
    failed = made("tflite-int8", 0.5, met=False)
    assert failed_repairs([failed, made("tflite-f32", 0.0)], LIMIT) == [failed.repair]
    assert failed_repairs([failed, made("onnx-int8-qdq", 0.0)], LIMIT) == []
    assert failed_repairs([replace(failed, repair=None)], LIMIT) == []


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
    found = with_repairs(Fixed(replace(after, repair=after.repair | {"of": name})), [before], LIMIT, 60.0, 2)
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

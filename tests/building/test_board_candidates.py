"""Where a time on this machine is a time on the board, and where it is half of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.building.board_candidates import Clocks, candidates, is_here, workstation
from edgekit.building.making import RecipeResult
from edgekit_converters.choose import ChoiceLimits, choose
from edgekit_converters.recipe.artifact import Artifact
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.store import NO_STORE
from edgekit_converters.zoo.mobilenet_v1 import anchor_model
from edgekit_profiles import HostTimes, installable, load
from edgekit_profiles.anchors import AnchorFile, EngineTime


@pytest.mark.parametrize(
    ("profile", "machine", "here"),
    [
        (load("x86-64"), "x86_64", True),
        (load("host-cpu"), "AMD64", True),
        (load("x86-64"), "aarch64", False),
        (load("raspberry-pi-4"), "aarch64", False),
        (replace(load("x86-64"), name="my-atom", measured_here=False), "x86_64", False),
    ],
    ids=["generic", "windows", "built on ARM", "board", "an x86 board of one's own"],
)
def test_only_a_profile_that_says_so_takes_this_machines_time(profile, machine, here):
    assert is_here(profile, machine) is here


def made(recipe: str, precision: str) -> RecipeResult:
    artifact = Artifact(find_recipe(recipe), anchor_model("tflite", precision), (), (), 1.0, 1.0, {})
    return RecipeResult(artifact.recipe, artifact, None, None)


INT8 = made("tflite-int8", "int8")
PI4 = load("raspberry-pi-4")


def never(one: RecipeResult):
    raise AssertionError("this machine is not the board")


def test_a_ratio_taken_here_is_used_for_a_board_whose_mobilenet_v1_is_known_and_kept_with_the_estimate():
    told = HostTimes(2.0, 4.0, "litert", "2.3.0", "here")
    (seen,) = candidates(PI4, installable(PI4), [INT8], Clocks(never, lambda one: told))
    assert seen.estimate is not None
    assert seen.estimate.host == told
    assert seen.estimate.mid_ms < 20
    assert "0.5 times its time on this workstation" in seen.estimate.source


def test_nothing_is_timed_for_a_board_of_which_no_mobilenet_v1_is_known():
    bare = replace(PI4, anchors=())
    (seen,) = candidates(bare, installable(bare), [INT8], Clocks(never, never))
    assert seen.estimate is not None
    assert (seen.estimate.grade, seen.estimate.host) == ("estimated", None)


def test_an_anchor_file_of_the_board_goes_before_what_was_published():
    timed = EngineTime("litert", "2.3.0", "int8", 4, 9.0, 10.0, 11.0, 1.5)
    file = AnchorFile("pi.json", "raspberry-pi-4", "Pi", "aarch64", "2026-05-01", (timed,))
    (seen,) = candidates(PI4, installable(PI4), [INT8], Clocks(never, anchors=[file]))
    assert seen.estimate is not None
    assert seen.estimate.mid_ms == pytest.approx(10.0, rel=0.02)
    assert "measured MobileNetV1" in seen.estimate.source


def test_the_budget_is_held_against_the_upper_end_of_the_range():
    (seen,) = candidates(PI4, installable(PI4), [INT8], Clocks(never))
    assert seen.estimate is not None
    for budget_ms, kept in ((seen.estimate.high_ms * 1.01, True), (seen.estimate.high_ms * 0.99, False)):
        assert budget_ms > seen.estimate.mid_ms
        choice = choose(PI4.name, [seen], ChoiceLimits(max_drop=None, budget_ms=budget_ms), installable(PI4))
        assert (choice.chosen is not None) is kept
    assert choice.refused[0].code == "budget"


def test_this_machine_times_what_was_tested_and_nothing_else():
    ratio = workstation(NO_STORE, [INT8, made("tflite-dynamic", "float32")])
    assert ratio(made("tflite-dynamic", "float32")) is None
    found = ratio(INT8)
    if found is not None:  # None on a machine that is not x86-64
        assert found.ratio == pytest.approx(1.0, abs=0.5)
        assert ratio(INT8) is found


def test_a_file_that_is_mostly_in_float_takes_the_time_of_float():
    """By its recipe it is int8; a GRU, too, is in float whatever the recipe says."""
    float_file = made("tflite-f32", "float32")
    named = replace(float_file, recipe=find_recipe("tflite-int8-mixed"))
    bare = replace(PI4, anchors=())
    seen = candidates(bare, installable(bare), [float_file, named, INT8], Clocks(never, never))
    times = [one.estimate.mid_ms for one in seen if one.estimate is not None]
    assert times[0] == times[1] > times[2]

"""What repair tries, in which order, and what it says, on a model whose noise is known exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_converters.fidelity.repair import MOST, Repair, RepairStart, RepairTarget, repair
from edgekit_converters.fidelity.sensitivity import Unit
from edgekit_converters.recipe.artifact import STATIC, QuantizationPlan
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import tick

INT8, MIXED = "tflite-int8", "tflite-int8-mixed"


@dataclass
class Known:
    """Every unit in int8 adds its own noise; the drop is the noise. factors: by range method and by steps.
    names: what an explanation blames, the worst first. decided: the part of the noise that costs decisions, by range
    method."""

    noises: Sequence[float]
    macs: Sequence[float] = ()
    factors: Mapping[object, float] = field(default_factory=dict)
    failing: frozenset[object] = frozenset()
    seconds: float = 1.0
    names: Sequence[str] = ()
    decided: Mapping[object, float] = field(default_factory=dict)
    now: float = 0.0
    checked: list[tuple[str, QuantizationPlan]] = field(default_factory=list)

    @property
    def units(self) -> tuple[Unit, ...]:
        macs = self.macs or [1 / len(self.noises)] * len(self.noises)
        return tuple(Unit(f"u{i}", frozenset({f"u{i}"}), share) for i, share in enumerate(macs))

    def clock(self) -> float:
        return self.now

    def noise(self, recipe: str, plan: QuantizationPlan) -> float:
        self.now += self.seconds
        if self.failing & {recipe, plan.ranges, plan.steps}:
            raise ConversionError("it cannot be made")
        kept = sum(noise for i, noise in enumerate(self.noises) if f"u{i}" not in plan.float_layers)
        return kept * self.factors.get(plan.ranges, 1.0) * self.factors.get(plan.steps, 1.0)

    def noise_alone(self, recipe: str, plan: QuantizationPlan, unit: Unit) -> float:
        others = frozenset(one.name for one in self.units) - unit.layers
        return self.noise(recipe, replace(plan, float_layers=others)) + 0.0001

    def check(self, recipe: str, plan: QuantizationPlan) -> float:
        self.checked.append((recipe, plan))
        return self.noise(recipe, plan) * self.decided.get(plan.ranges, 1.0)

    def blamed(self, recipe: str, plan: QuantizationPlan) -> list[frozenset[str]]:
        return [frozenset({name}) for name in self.names]


def repaired(known: Known, max_drop: float, budget_s: float | None = None) -> Repair:
    start = RepairStart(INT8, STATIC, known.noise(INT8, STATIC))
    known.now = 0.0
    return repair(known, known.check, start, RepairTarget(max_drop, MIXED, budget_s), clock=known.clock)


def test_a_range_method_that_is_enough_leaves_every_layer_in_int8():
    found = repaired(Known([0.1, 0.1], factors={"mse": 0.01}), 0.01)
    assert (found.met, found.recipe, found.plan) == (True, INT8, replace(STATIC, ranges="mse"))


def test_rounding_that_hurts_this_model_is_given_up():
    found = repaired(Known([0.1, 0.1], factors={(): 0.01}), 0.01)
    assert (found.met, found.recipe, found.plan.steps) == (True, INT8, ())


def test_the_one_layer_that_breaks_it_is_the_one_that_goes_to_float():
    found = repaired(Known([0.001] * 7 + [0.5] + [0.001] * 12), 0.03)
    assert (found.met, found.recipe, found.plan.float_layers) == (True, MIXED, frozenset({"u7"}))
    assert found.why == (
        "tflite-int8-mixed with 1 of 20 layers in float (5 % of the work) keeps the limit of 3 %: the drop is 1.9 %"
    )


def test_a_short_search_of_a_deep_network_finds_the_dear_layer_that_breaks_it():
    """A YOLO: 200 units, of which the time is enough to measure a quarter, and the noise is in two of the dearest."""
    noises, macs = [0.0001] * 200, [0.001] * 200
    noises[10], noises[12] = 0.3, 0.2
    macs[10] = macs[12] = 0.03
    found = repaired(Known(noises, macs), 0.05, budget_s=120.0)
    assert found.met
    assert {"u10", "u12"} <= found.plan.float_layers
    assert len(found.plan.float_layers) < 10


def test_layers_that_the_explanation_names_are_tried_before_what_takes_long():
    """A YOLO under the default budget, where a measurement takes two seconds: two layers of 214 are to blame."""
    noises, macs = [0.0001] * 214, [0.001] * 214
    noises[10], noises[150] = 0.2, 0.1
    macs[10], macs[150] = 0.03, 0.05
    found = repaired(Known(noises, macs, seconds=2.0, names=["u150", "u10", "u7"]), 0.05, budget_s=60.0)
    assert (found.met, found.plan.float_layers) == (True, {"u10", "u150"})
    assert len(found.tried) < 15


def test_neighbours_that_lose_together_what_none_loses_alone_are_found_in_little_time():
    """The first 20 of 200 layers, of which four in 8 bits are too many; then the search goes on to fewer."""

    @dataclass
    class Together(Known):
        def noise(self, recipe: str, plan: QuantizationPlan) -> float:
            self.now += self.seconds
            early = sum(f"u{i}" not in plan.float_layers for i in range(20))
            return 0.5 * min(1.0, early / 4) + 0.0001 * (200 - len(plan.float_layers))

    macs = [0.004] * 20 + [0.92 / 180] * 180
    short = repaired(Together([0.0] * 200, macs), 0.05, budget_s=30.0)
    assert (short.met, len(short.plan.float_layers)) == (True, 25)
    longer = repaired(Together([0.0] * 200, macs), 0.05, budget_s=120.0)
    assert longer.plan.float_layers == {f"u{i}" for i in range(20)}


def test_names_that_are_wrong_or_dear_do_not_keep_the_search_from_the_right_layers():
    known = Known([0.001] * 7 + [0.5] + [0.001] * 12, names=["u1", "u2", "nowhere"])
    assert repaired(known, 0.03, budget_s=120.0).plan.float_layers == {"u7"}
    dear = Known([0.4, 0.5, 0.0, 0.0], macs=[0.3, 0.2, 0.25, 0.25], names=["u0", "u1"])
    repaired(dear, 0.0)
    assert not any(plan.float_layers <= {"u0", "u1"} for _, plan in dear.checked[:3] if plan.float_layers)


def test_of_ranges_with_about_the_same_noise_the_search_goes_on_with_those_that_decide_best():
    known = Known([0.001] * 7 + [0.5] + [0.001] * 12, factors={"mse": 0.94, "percentile": 0.95, "entropy": 1.5},
                  decided={"mse": 1.2, "percentile": 0.9, "entropy": 0.1})  # fmt: skip
    found = repaired(known, 0.03)
    assert (found.met, found.plan.ranges, found.plan.float_layers) == (True, "percentile", {"u7"})


def test_ranges_of_less_noise_that_decide_worse_are_left_alone():
    known = Known([0.1] * 4, factors={"mse": 0.94, "percentile": 2.0, "entropy": 2.0}, decided={"mse": 1.5},
                  failing=frozenset({MIXED}))  # fmt: skip
    found = repaired(known, 0.01)
    assert found.plan == STATIC
    assert all(plan.ranges == "minmax" for recipe, plan in known.checked if plan.steps != STATIC.steps)


def test_the_time_of_a_busy_machine_is_not_the_searchs():
    """Each measurement takes a third of the budget, nearly all of it waiting for the processor."""

    @dataclass
    class Busy(Known):
        def noise(self, recipe: str, plan: QuantizationPlan) -> float:
            time.sleep(0.1)
            return super().noise(recipe, plan)

    known = Busy([0.001] * 3 + [0.5])
    start = RepairStart(INT8, STATIC, 0.503)
    found = repair(known, known.check, start, RepairTarget(0.03, MIXED, 0.3))
    assert (found.met, found.plan.float_layers) == (True, {"u3"})


def test_a_search_that_waits_for_ever_ends_all_the_same():
    @dataclass
    class Blocked(Known):
        def noise(self, recipe: str, plan: QuantizationPlan) -> float:
            while True:
                time.sleep(0.01)
                tick()

    start = RepairStart(INT8, STATIC, 0.5)
    known = Blocked([0.5])
    found = repair(known, known.check, start, RepairTarget(0.03, MIXED, 0.03))
    assert found.cut_short


def test_weights_that_take_too_long_to_round_leave_time_for_islands():
    @dataclass
    class Slow(Known):
        def noise(self, recipe: str, plan: QuantizationPlan) -> float:
            for _ in range(200 if "equalise" in plan.steps else 0):
                self.now += 1.0
                tick()
            return super().noise(recipe, plan)

    found = repaired(Slow([0.001] * 7 + [0.5] + [0.001] * 12), 0.03, budget_s=150.0)
    assert (found.met, found.plan.float_layers) == (True, frozenset({"u7"}))


def test_no_island_is_more_than_needed():
    """Fifteen layers hurt alike and eleven have to go."""
    found = repaired(Known([0.01] * 15 + [0.0] * 25), 0.041)
    assert found.met
    assert len(found.plan.float_layers) == 11


def test_of_layers_that_hurt_alike_the_cheap_ones_go():
    found = repaired(Known([0.1, 0.1, 0.0, 0.0], macs=[0.45, 0.01, 0.27, 0.27]), 0.1)
    assert found.plan.float_layers == {"u1"}


def test_what_the_limit_does_not_need_goes_back_to_int8():
    """The quiet layer is so cheap that it comes before the loud one, which is enough."""
    found = repaired(Known([0.5, 0.004, 0.3, 0.0], macs=[0.4, 0.0001, 0.3, 0.2999]), 0.31)
    assert (found.met, found.plan.float_layers) == (True, {"u0"})


def test_too_much_work_in_float_is_said():
    found = repaired(Known([0.1, 0.1, 0.0, 0.0]), 0.1)
    assert found.met
    assert "25 % of the work, more than the 10 % that is wanted" in found.why


def test_a_model_that_is_mostly_float_is_not_tried():
    known = Known([0.1] * 10)
    found = repaired(known, 0.05)
    assert not found.met
    assert max(len(plan.float_layers) for _, plan in known.checked) <= MOST * 10
    assert found.why.startswith("the limit of 5 % is not kept: the best found is tflite-int8-mixed with")
    assert found.why.endswith("nothing else is left to try")


def test_where_all_that_multiplies_nothing_hurts_it_goes_to_float_before_single_layers_are_measured():
    known = Known([0.001] * 2 + [0.1] * 30, macs=[0.5, 0.5, *[0.0] * 30])
    found = repaired(known, 0.01, budget_s=20.0)
    assert (found.met, found.plan.float_layers) == (True, {f"u{i}" for i in range(2, 32)})
    assert "(0 % of the work)" in found.why


def test_no_evaluation_is_spent_on_ranges_and_weights_where_noise_is_louder_than_the_signal():
    known = Known([0.001] * 2 + [0.1] * 30, macs=[0.5, 0.5, *[0.0] * 30])
    repaired(known, 0.01)
    assert all(plan.float_layers for _, plan in known.checked)
    assert {plan.steps for _, plan in known.checked} == {STATIC.steps}


def test_of_what_multiplies_nothing_no_more_goes_to_float_than_is_needed():
    found = repaired(Known([0.001] * 2 + [0.1] * 2 + [0.0] * 20, macs=[0.5, 0.5, *[0.0] * 22]), 0.01)
    assert (found.met, found.plan.float_layers) == (True, {"u2", "u3"})


def test_nothing_that_helps_gives_back_the_start():
    found = repaired(Known([0.5, 0.5], failing=frozenset({MIXED})), 0.01)
    assert (found.met, found.recipe, found.plan) == (False, INT8, STATIC)
    assert "nothing was better than the start" in found.why


@pytest.mark.parametrize("failing", ["mse", "percentile", "entropy", (), ("equalise", "round")])
def test_what_cannot_be_made_is_an_attempt_that_did_not_help(failing):
    found = repaired(Known([0.001] * 19 + [0.5], failing=frozenset({failing})), 0.03)
    assert found.met
    assert [attempt.failed for attempt in found.tried if attempt.failed] == ["it cannot be made"]


def test_noise_that_is_no_number_never_wins():
    found = repaired(Known([0.001] * 19 + [0.5], factors={"mse": math.nan}), 0.03)
    assert found.plan.ranges == "minmax"


def test_the_evaluation_set_is_not_asked_about_plans_that_calibration_refuses():
    known = Known([0.001] * 19 + [0.5], factors={"mse": 1.5, "percentile": 1.2, "entropy": 9.0})
    repaired(known, 0.03)
    assert {plan.ranges for _, plan in known.checked} == {"minmax"}


@given(
    st.lists(st.floats(0, 0.1), min_size=1, max_size=30),
    st.floats(0, 1),
    st.integers(0, 80),
    st.sampled_from([0.5, 3.0]),
)
@settings(max_examples=80)
def test_at_any_time_the_answer_is_the_best_that_was_checked(noises, max_drop, budget_s, seconds):
    known = Known(noises, seconds=seconds)
    start = known.noise(INT8, STATIC)
    found = repaired(known, max_drop, budget_s)
    assert known.now <= budget_s + 2 * seconds
    assert found.drop <= start + 1e-9
    assert found.met == (found.drop <= max_drop + 1e-9)
    drops = [attempt.drop for attempt in found.tried if attempt.drop is not None]
    assert found.met or found.drop <= min([start, *drops]) + 1e-8


def test_time_that_is_over_is_said():
    found = repaired(Known([0.1] * 10), 0.01, budget_s=9)
    assert not found.met
    assert found.why.endswith("the time was over")


def test_progress_counts_seconds_against_the_budget():
    seen: list[tuple[str, int, int | None]] = []
    known = Known([0.1] * 4)
    start = RepairStart(INT8, STATIC, 0.4)
    repair(known, known.check, start, RepairTarget(0.01, MIXED, 60), lambda *told: seen.append(told), known.clock)
    spent = [done for stage, done, total in seen if total == 60]
    assert spent == sorted(spent)
    assert seen[0][0].startswith("repair: ")


def test_a_layer_too_large_for_float_makes_room_for_the_next():
    known = Known([0.5, 0.05, 0.04], macs=[0.7, 0.2, 0.1])
    found = repaired(known, 0.51)
    assert found.met
    assert "u0" not in found.plan.float_layers


@dataclass
class Slow(Known):
    """Each measurement takes a minute, and asks every second whether it may go on."""

    def noise(self, recipe: str, plan: QuantizationPlan) -> float:
        for _ in range(60):
            self.now += 1.0
            tick()
        return super().noise(recipe, plan)


def test_a_measurement_is_not_finished_when_the_time_is_over():
    known = Slow([0.1, 0.1])
    found = repair(
        known,
        known.check,
        RepairStart(INT8, STATIC, 0.2),
        RepairTarget(0.01, MIXED, 20.0),
        clock=lambda: known.now,
    )
    assert known.now <= 21.0
    assert found.why == (
        "the limit of 1 % is not kept: the drop is 20 %, and the time was over before anything else was measured"
    )


def test_a_search_that_was_cut_short_before_a_comparison_does_not_say_that_nothing_was_better():
    known = Slow([0.1, 0.1])
    found = repair(
        known,
        known.check,
        RepairStart(INT8, STATIC, 0.2),
        RepairTarget(0.01, MIXED, 130.0),
        clock=lambda: known.now,
    )
    assert found.why.endswith("and the time was over before anything else was compared")


def test_a_drop_above_the_limit_is_never_written_as_equal_to_it():
    known = Known([0.0100004], macs=[1.0])
    assert "with a drop of 1.00004 %" in repaired(known, 0.01).why


@dataclass
class QuietAlone(Known):
    """Ranges matter to the products alone: all others drown them, whatever the method."""

    def noise(self, recipe: str, plan: QuantizationPlan) -> float:
        self.now += self.seconds
        products = 0.02 * {"mse": 0.1, "entropy": 3.0}.get(plan.ranges, 1.0)
        others = sum(noise for i, noise in enumerate(self.noises) if i > 1 and f"u{i}" not in plan.float_layers)
        return others + (products if "u0" not in plan.float_layers else 0.0)


def test_products_alone_take_the_ranges_that_are_quietest_there():
    known = QuietAlone([0.0, 0.0, *[0.1] * 30], macs=[0.5, 0.5, *[0.0] * 30])
    found = repaired(known, 0.01)
    assert (found.met, found.plan.ranges, found.plan.float_layers) == (True, "mse", {f"u{i}" for i in range(2, 32)})
    assert all(plan.ranges == "mse" for _, plan in known.checked), "islands keep the ranges of the products"


def test_a_person_sees_that_layers_are_measured_and_what_is_tried():
    seen: list[tuple[str, int, int | None]] = []
    known = Known([0.001] * 7 + [0.5] + [0.001] * 12)
    start = RepairStart(INT8, STATIC, 0.52)
    repair(known, known.check, start, RepairTarget(0.03, MIXED, 600), lambda *told: seen.append(told), known.clock)
    measured = [(done, total) for stage, done, total in seen if stage == "measuring how sensitive layers are"]
    assert measured[0][0] == 0
    assert all(done < total for done, total in measured)
    assert {"repair: 1 island in float", "repair: ranges by mse"} <= {stage for stage, _, _ in seen}

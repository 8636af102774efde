"""What is counted while items stream by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgekit_converters.data.output_kinds import Kind
from edgekit_converters.fidelity.intervals import FLOOR_DB, DriftMeter, best_class, cosine
from edgekit_converters.fidelity.metrics import TopK

VECTORS = arrays(np.float64, 6, elements=st.floats(-1e3, 1e3, allow_subnormal=False))


def drift(pairs) -> DriftMeter:
    found = DriftMeter(["out"])
    for x, y in pairs:
        found.add({"out": np.asarray(x, np.float32)}, {"out": np.asarray(y, np.float32)})
    return found


def test_an_item_on_which_both_say_nothing_is_no_disagreement():
    found = DriftMeter(["out"], {"out": Kind(largest=1.0)})
    found.add({"out": np.array([1.0, 0.0])}, {"out": np.array([1.0, 0.0])})
    found.add({"out": np.array([1e-12, 0.0])}, {"out": np.array([0.0, 0.0])})
    assert found.cosine == 1.0
    found.add({"out": np.array([0.0, 0.005])}, {"out": np.array([0.5, 0.0])})  # the artifact says something
    assert found.cosine == pytest.approx(2 / 3)


@pytest.mark.parametrize("first", [True, False], ids=["channels first", "channels last"])
def test_a_channel_that_is_lost_shows_beside_a_strong_one(first):
    boxes, scores = np.full(20, 100.0), np.full(20, 0.5)

    def rows(*channels):
        return np.stack(channels, 0 if first else 1)

    found = DriftMeter(["out"])
    found.add({"out": rows(boxes, scores)}, {"out": rows(boxes, scores * 0)})
    (output,) = found.outputs()
    assert output.cosine > 0.9999
    assert output.worst_channel_db == pytest.approx(0.0)
    silent = DriftMeter(["out"])
    silent.add({"out": rows(boxes, scores * 0)}, {"out": rows(boxes * 1.01, scores * 1e-6)})
    assert silent.outputs()[0].worst_channel_db == pytest.approx(40.0)


@pytest.mark.parametrize("measure", ["cosine", "channel", "offset", "spread", "variance"])
def test_the_interval_of_a_distance_covers_what_more_items_show(measure):
    """Of 40 sets of 60 items each, nearly all intervals hold the loss that 4,000 items have."""
    kinds = {
        "cosine": Kind(),
        "channel": Kind(),
        "offset": Kind("vector", np.array([1.0])),
        "spread": Kind("numbers", np.array([1.0, 2.0])),
        "variance": Kind("probabilities", np.array([1.0])),
    }
    shape = {"cosine": (12,), "channel": (20, 3), "offset": (12,), "spread": (2,), "variance": (3,)}[measure]
    random = np.random.default_rng(5)

    def found(items):
        meter = DriftMeter(["out"], {"out": kinds[measure]})
        for _ in range(items):
            x = random.normal(size=shape)
            noise = random.normal(size=shape) * random.uniform(0.05, 0.3)
            if measure == "channel":
                noise[:, 0] *= 5
            meter.add({"out": x}, {"out": x + noise})
        (output,) = meter.outputs()
        return output

    truth = found(4000)
    assert truth.measure == measure
    sets = [found(60) for _ in range(40)]
    held = sum(one.loss_ci95[0] <= truth.loss <= one.loss_ci95[1] for one in sets)
    assert held >= 32
    assert all(one.loss_ci95[0] <= one.loss <= one.loss_ci95[1] for one in sets)
    assert np.mean([one.loss_ci95[1] - one.loss_ci95[0] for one in sets]) < 2 * truth.loss


def test_one_row_has_no_channels():
    assert drift([([3.0, 4.0], [3.0, 4.1])]).outputs()[0].worst_channel_db is None


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1, 0], [2, 0], 1.0),
        ([1, 0], [0, 2], 0.0),
        ([1, 1], [-1, -1], -1.0),
        ([1, 0], [1, 1], math.sqrt(0.5)),
        ([0, 0], [0, 0], 1.0),
        ([0, 0], [1, 0], 0.0),
        ([1, 0], [0, 0], 0.0),
        ([1e-200, 0], [1e200, 0], 1.0),
    ],
)
def test_cosine_is_defined_for_every_finite_pair(x, y, expected):
    assert cosine(np.array(x, float), np.array(y, float)) == pytest.approx(expected)


@given(VECTORS, VECTORS, st.floats(1e-3, 1e3))
def test_cosine_is_symmetric_bounded_and_blind_to_scale(x, y, scale):
    value = cosine(x, y)
    assert -1 <= value <= 1
    assert value == pytest.approx(cosine(y, x))
    assert cosine(x * scale, y) == pytest.approx(value, abs=1e-9)


def test_sqnr_is_over_everything_and_none_where_nothing_differs():
    assert drift([([3, 4], [3, 4])]).sqnr_db is None
    assert drift([([3, 4], [3, 4]), ([0, 5], [0, 4.5])]).sqnr_db == pytest.approx(10 * math.log10(50 / 0.25))
    assert drift([([0, 0], [1, 0])]).sqnr_db == FLOOR_DB
    assert drift([([3, 4], [0, 0])]).sqnr_db == pytest.approx(0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_answer_that_is_not_finite_counts_as_nothing_and_does_not_spread(bad):
    found = drift([([3, 4], [3, 4]), ([3, 4], [3, bad])])
    assert (found.items, found.not_finite) == (2, 1)
    assert found.cosine == pytest.approx(0.5)
    assert found.sqnr_db == pytest.approx(10 * math.log10(50 / 25))


def test_cosine_is_the_mean_over_items_of_the_mean_over_outputs():
    found = DriftMeter(["a", "b"])
    found.add({"a": np.array([1.0, 0]), "b": np.array([1.0])}, {"a": np.array([0.0, 1]), "b": np.array([2.0])})
    found.add({"a": np.array([1.0, 0]), "b": np.array([1.0])}, {"a": np.array([1.0, 0]), "b": np.array([1.0])})
    assert found.cosine == pytest.approx(0.75)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_accuracy_agrees_with_counting_by_hand(pairs):
    before, after = zip(*pairs, strict=True)
    found = TopK("scores").compare(before, after)
    original, artifact = sum(before), sum(after)
    assert found.original == original / len(pairs)
    assert found.artifact == artifact / len(pairs)
    assert found.drop == (original - artifact) / len(pairs)
    low, high = found.ci95
    assert low <= found.drop <= high


def test_one_item_of_twenty_is_exactly_five_points():
    found = TopK("scores").compare([index < 18 for index in range(20)], [index < 17 for index in range(20)])
    assert found.drop == 0.05
    assert found.original - found.artifact != 0.05  # what subtracting the two shares would give


@pytest.mark.parametrize(("scores", "best"), [([1, 3, 2], 1), ([2, 2, 1], 0), ([[0, 5]], 1)])
def test_the_best_class_is_what_a_board_answers(scores, best):
    assert best_class(np.array(scores, np.float32)) == best

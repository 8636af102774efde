"""What is held out, and what the original is fed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear import linear

from edgekit_converters.data.dataset import FEWEST_APART, HELD_OUT, Example, folds, halves, split
from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.statistics import SourceSamples, visiting_order
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract


class Numbers:
    """A Dataset of the numbers below n."""

    name = "numbers"
    any_order = False

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return self.pick(range(self.n))

    def pick(self, indexes):
        return (Example({"x": np.array([i])}, None, str(i)) for i in indexes)


def numbers(dataset):
    return [int(example.origin) for example in dataset]


@given(st.integers(2, 2000))
def test_the_two_parts_are_the_whole_and_a_fifth_at_most_64_is_held_out(n):
    calibration, held_out = split(Numbers(n))
    assert sorted(numbers(calibration) + numbers(held_out)) == list(range(n))
    assert numbers(calibration) == sorted(numbers(calibration))
    assert len(held_out) == min(HELD_OUT, max(1, n // 5))
    assert len(calibration) >= 1


def test_every_fifth_item_is_held_out_and_a_large_set_is_covered_to_its_ends():
    assert numbers(split(Numbers(20))[1]) == [2, 7, 12, 17]
    gaps = np.diff([0, *numbers(split(Numbers(6400))[1]), 6399])
    assert gaps.max() <= 100


def test_one_item_cannot_be_split():
    with pytest.raises(CalibrationError, match="Give more items"):
        split(Numbers(1))


def test_parts_can_be_picked_from_and_split_again():
    calibration, held_out = split(Numbers(20))
    assert numbers(held_out.pick([0, 3])) == [2, 17]
    assert numbers(split(calibration)[1].pick([1])) == [10]


@pytest.mark.parametrize(("layout", "shape"), [("NHWC", (-1, 2, 5, 3)), ("NCHW", (-1, 3, 2, 5))])
def test_the_original_gets_normalised_pixels_in_its_own_layout(tmp_path, layout, shape):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", x=pixels)
    image = ImageSpec(2, 5, (10.0, 20.0, 30.0), (2.0, 4.0, 8.0))
    contract = Contract(
        "raw", (InputContract("x", (2, 5, 3), "float32", image),), (OutputContract("p", (3,), "float32"),)
    )
    samples = SourceSamples(open_dataset(tmp_path / "set.npz", contract), contract, linear(shape, layout=layout))
    assert len(samples) == 6
    wanted = (pixels - np.array([10, 20, 30])) / np.array([2, 4, 8])
    for _ in range(2):
        for (array,), expected in zip(samples, wanted[visiting_order(6)], strict=True):
            assert array.dtype == np.float32
            assert array.shape == (1, *shape[1:])
            np.testing.assert_allclose(
                array[0], expected if layout == "NHWC" else expected.transpose(2, 0, 1), rtol=1e-5
            )


LABELLED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=80)


@given(LABELLED, st.randoms(use_true_random=False))
def test_halves_are_disjoint_balanced_and_follow_from_the_items_alone(items, random):
    items = [(name % 4, name) for _, name in items]  # an item has one label
    kinds, digests = [kind for kind, _ in items], [str(name) for _, name in items]
    found = halves(kinds, digests)
    different = set(digests)
    if found is None:
        assert len(different) // 2 < FEWEST_APART or len(items) < 2 * FEWEST_APART or len(different) < 2 * FEWEST_APART
        return
    one, other = found
    assert sorted(one + other) == list(range(len(items)))
    assert min(len(one), len(other)) >= FEWEST_APART
    assert not {digests[index] for index in one} & {digests[index] for index in other}
    for kind in set(kinds):
        parts = [{digests[index] for index in half if kinds[index] == kind} for half in found]
        assert abs(len(parts[0]) - len(parts[1])) <= 1
    shuffled = random.sample(items, len(items))
    again = halves([kind for kind, _ in shuffled], [str(name) for _, name in shuffled])
    assert again is not None
    assert {str(shuffled[index][1]) for index in again[0]} == {digests[index] for index in one}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=60), st.randoms(use_true_random=False))
def test_folds_hold_each_item_once_share_the_boxes_and_follow_from_the_items_alone(items, random):
    boxes = dict(items)
    items = [(name, boxes[name]) for name, _ in items]
    found = folds([count for _, count in items], [str(name) for name, _ in items], 5)
    assert len(found) == min(5, sum(count > 0 for count in boxes.values()))
    if not found:
        return
    assert sorted(index for fold in found for index in fold) == list(range(len(items)))
    names = [{items[index][0] for index in fold} for fold in found]
    assert sum(map(len, names)) == len(boxes)
    held = [sum(items[index][1] for index in fold) for fold in found]
    assert min(held) > 0
    largest = max(sum(count for other, count in items if other == name) for name, _ in items)
    assert max(held) - min(held) <= largest
    shuffled = random.sample(items, len(items))
    again = folds([count for _, count in shuffled], [str(name) for name, _ in shuffled], 5)
    assert [{shuffled[index][0] for index in fold} for fold in again] == names


def test_a_set_of_alternating_classes_is_not_divided_by_class():
    found = halves([0, 1] * 30, [f"item {index}" for index in range(60)])
    assert found is not None
    for half in found:
        assert sum(index % 2 for index in half) == 15


def test_a_small_set_has_no_halves():
    names = [str(index) for index in range(2 * FEWEST_APART)]
    assert halves([0] * len(names), names) is not None
    assert halves([0] * (len(names) - 1), names[:-1]) is None

"""Faults that show in the data itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linting import lint

from edgekit.building.data import without
from edgekit_converters.data.dataset import Example, digest, split
from edgekit_converters.data.lint import Survey, findings, survey
from edgekit_converters.data.open import open_dataset
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

SPEC = ImageSpec(2, 2, (127.5,) * 3, (127.5,) * 3)
IMAGES = Contract(
    "classification", (InputContract("image", (2, 2, 3), "float32", SPEC),), (OutputContract("p", (4,), "float32"),)
)
VECTORS = Contract("raw", (InputContract("x", (3,), "float32"),), (OutputContract("p", (4,), "float32"),))
RNG = np.random.default_rng(7)


@pytest.fixture
def give(tmp_path):
    """Write an array as a data set."""
    count = iter(range(9))

    def write(array, contract=VECTORS, **labels):
        path = tmp_path / f"set{next(count)}.npz"
        np.savez(path, x=array, **labels)
        return open_dataset(path, contract)

    return write


def codes(findings):
    return {finding.code: finding.level for finding in findings}


def test_enough_different_items_are_clean(give):
    assert lint(give(RNG.normal(size=(120, 3))), give(RNG.normal(size=(120, 3))), VECTORS) == ()


@pytest.mark.parametrize(("items", "level"), [(7, "warning"), (8, "note"), (99, "note"), (100, None)])
def test_few_samples_are_told(give, items, level):
    assert codes(lint(give(RNG.normal(size=(items, 3))), None, VECTORS)).get("few-samples") == level


def test_a_small_evaluation_set_says_what_it_resolves(give):
    def told(contract, **labels):
        (finding,) = lint(give(RNG.normal(size=(100, 3))), give(RNG.normal(size=(20, 3)), contract, **labels), contract)
        return finding.what

    classifier = replace(VECTORS, task="classification")
    assert told(classifier, y=np.zeros(20, np.int64)).endswith("one item of 20 is 5.0 points of accuracy")
    assert told(classifier).endswith("one item of 20 is 5.0 points of agreement")
    assert told(VECTORS).endswith("20 items are little to compare on")


def test_exact_duplicates_are_counted_and_named(give):
    x = RNG.normal(size=(100, 3))
    x[7] = x[8] = x[3]
    (finding,) = lint(give(x), None, VECTORS)
    assert (finding.code, finding.level) == ("duplicates", "warning")
    assert "2 items (item 7, item 8)" in finding.what  # the set's name begins the sentence, and is said once
    assert finding.what.endswith("that repeat an earlier one exactly")
    x[8] = RNG.normal(size=3)
    (finding,) = lint(give(x), None, VECTORS)
    assert "1 item (" in finding.what
    assert finding.what.endswith("item 7) that repeats an earlier one exactly")


def test_identical_and_constant_samples_are_told(give):
    found = codes(lint(give(np.full((100, 3), 5.0)), None, VECTORS))
    assert found == {"identical-samples": "warning", "constant-samples": "warning"}


def test_two_parts_of_one_set_are_told_of_once(give):
    x = RNG.integers(0, 256, (160, 2, 2, 3)).astype(np.float32)
    x[150] = x[3]
    calibration, held_out = split(give(x, IMAGES))
    parts = survey(calibration), survey(held_out)
    found = findings(*parts, IMAGES, one_set=True)
    assert sorted(finding.code for finding in found) == ["duplicates", "few-evaluation", "out-of-range"]
    parts[0].unreadable = {4: "item 4 is torn"}
    (unreadable,) = (f for f in findings(*parts, IMAGES, one_set=True) if f.code == "unreadable")
    assert "1 of 161 files" in unreadable.what


def test_one_set_of_one_item_again_and_again_is_an_error_that_says_so(give):
    calibration, held_out = split(give(np.zeros((100, 3))))
    first, *rest = findings(survey(calibration), survey(held_out), VECTORS, one_set=True)
    assert (first.level, first.code) == ("error", "identical-samples")
    assert "every item is the same, all 100 of them" in first.what
    assert any("every item is blank: 100 items (" in finding.what for finding in rest)


def test_overlap_is_named_counted_and_can_be_left_out(give):
    x = RNG.normal(size=(110, 3))
    calibration, evaluation = give(x), give(np.concatenate([RNG.normal(size=(95, 3)), x[5:10]]))
    (finding,) = lint(calibration, evaluation, VECTORS)
    assert (finding.code, finding.level, len(finding.digests)) == ("overlap", "warning", 5)
    assert "5 items (" in finding.what
    assert "and 2 more" in finding.what
    rest = without(calibration, survey(calibration), finding.digests, held_out=False)
    assert len(rest) == len(list(rest)) == 105
    assert {digest(e) for e in rest}.isdisjoint(digest(e) for e in evaluation)
    assert without(calibration, survey(calibration), frozenset(), held_out=False) is calibration


@pytest.mark.parametrize("factor", [1.0, 6.0, 255.0, 1 / 255])
def test_sets_of_another_scale_are_told(give, factor):
    x = RNG.random((200, 3))
    found = lint(give(x[:100] * factor), give(x[100:]), VECTORS)
    assert codes(found) == ({} if factor in (1.0, 6.0) else {"other-scale": "warning"})
    assert all("' is up to " in finding.what and " in " in finding.what for finding in found)


def test_nothing_left_after_the_overlap_is_an_error(give):
    dataset = give(RNG.normal(size=(3, 3)))
    with pytest.raises(CalibrationError, match="every item is in the evaluation set too"):
        without(dataset, survey(dataset), frozenset(digest(e) for e in dataset), held_out=False)


def test_overlap_is_found_by_pixels_not_by_file(give):
    pixels = RNG.integers(0, 256, (100, 2, 2, 3), dtype=np.uint8)
    found = codes(lint(give(pixels, IMAGES), give(pixels[::-1][:50], IMAGES), IMAGES))
    assert found == {"overlap": "warning", "few-evaluation": "note"}


def test_pixels_saved_as_floats_for_a_normalised_input_are_told(give):
    pixels = RNG.integers(0, 256, (100, 2, 2, 3)).astype(np.float32)
    (finding,) = lint(give(pixels, IMAGES), None, IMAGES)
    assert finding.code == "out-of-range"
    assert "mean and std make pixels -1 to 1" in finding.what
    assert lint(give((pixels - 127.5) / 127.5, IMAGES), None, IMAGES) == ()


@pytest.mark.parametrize(("low", "high", "told"), [(-1.1, 1.1, False), (-1.11, 1.0, True), (-1.0, 1.11, True)])
def test_a_twentieth_of_the_range_beside_it_is_rounding(low, high, told):
    found = Survey("set", items=100, reach={"image": (low, high)})
    assert ("out-of-range" in codes(findings(found, None, IMAGES))) == told


@pytest.mark.parametrize(("bad", "level"), [(10, "warning"), (11, "error")])
def test_more_than_a_tenth_that_cannot_be_read_is_an_error(bad, level):
    found = Survey("set", items=100 - bad, unreadable={n: f"item {n} is torn" for n in range(bad)})
    assert codes(findings(found, None, VECTORS))["unreadable"] == level


@pytest.mark.parametrize(("bad", "rest"), [(3, "item 2 is torn"), (4, "item 2 is torn; and 1 more")])
def test_three_that_cannot_be_read_are_named_and_the_others_counted(bad, rest):
    found = Survey("set", items=200, unreadable={n: f"item {n} is torn" for n in range(bad)})
    assert findings(found, None, VECTORS)[0].what.endswith(f": item 0 is torn; item 1 is torn; {rest}")


@pytest.mark.parametrize(("items", "told"), [(0, False), (1, True), (99, True), (100, False)])
def test_an_evaluation_set_below_a_hundred_is_told(items, told):
    found = findings(Survey("first", items=200), Survey("second", items=items), VECTORS)
    assert ("few-evaluation" in codes(found)) == told


def test_an_interval_is_advised_where_there_are_labels_to_score_by():
    classifier = replace(VECTORS, task="classification")
    done = [
        next(
            finding.do
            for finding in findings(Survey("first", items=200), second, contract)
            if finding.code == "few-evaluation"
        )
        for second in (Survey("second", items=20, labelled=True), Survey("second", items=20))
        for contract in (classifier, VECTORS)
    ]
    assert ["interval" in words for words in done] == [True, False, False, False]


def test_a_single_item_or_value_is_not_called_the_same_throughout():
    one = Survey("set")
    one.add(Example({"x": np.array([5.0], np.float32)}, None, "item 0"))
    assert set(codes(findings(one, None, VECTORS))) == {"few-samples"}


def test_two_surveys_joined_are_the_survey_of_all_items():
    values = [[1, 2, 3], [4, 4, 4], [7, np.nan, 0], [1, 2, 3], [-9, 0, 1]]
    labels = [None, 3, np.array([1, 0]), np.array([1, 1]), 3]
    examples = [
        Example({"x": np.array(value, np.float32)}, label, f"item {n}")
        for n, (value, label) in enumerate(zip(values, labels, strict=True))
    ]
    for at in range(6):
        first, second, whole = Survey("set"), Survey("set"), Survey("set")
        for n, example in enumerate(examples):
            (first if n < at else second).add(example)
            whole.add(example)
        assert first.merge(second).__dict__ == whole.__dict__
    assert len(set(whole.labels)) == 4
    assert whole.reach["x"][0] != whole.reach["x"][1]


def test_errors_come_first_and_nan_is_one():
    class Own:
        """A Dataset that nobody checked while it was read."""

        name = "own"

        def __len__(self):
            return 3

        def __iter__(self):
            return (Example({"x": np.array([i, np.nan, 0], np.float32)}, None, f"own {i}") for i in range(3))

    findings = lint(Own(), None, VECTORS)
    assert (findings[0].code, findings[0].level) == ("not-finite", "error")
    assert "3 items (own 0, own 1, own 2)" in findings[0].what


def test_each_set_is_read_once_and_progress_is_told(give):
    reads = []

    class Counted:
        name = "counted"

        def __init__(self, inner):
            self.inner = inner

        def __len__(self):
            return len(self.inner)

        def __iter__(self):
            reads.append(1)
            return iter(self.inner)

    told = []
    sets = [Counted(give(RNG.normal(size=(10, 3)))) for _ in range(2)]
    findings(*(survey(one, lambda stage, done, total: told.append((done, total))) for one in sets), VECTORS)
    assert len(reads) == 2
    assert told == [(i + 1, 10) for i in range(10)] * 2


def test_digest_sees_dtype_shape_and_order_of_values():
    def of(array):
        return digest(Example({"x": array}, None, ""))

    base = np.arange(6, dtype=np.uint8)
    different = [base, base.astype(np.int8), base.reshape(2, 3), base.reshape(2, 3).T, base[::-1]]
    assert len({of(array) for array in different}) == len(different)
    assert of(base.reshape(2, 3).T) == of(np.ascontiguousarray(base.reshape(2, 3).T))
    assert of(base) == digest(Example({"x": base.copy()}, 3, "elsewhere"))

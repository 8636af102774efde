"""What an output is decides how its error is weighed.

A cosine says nothing of one number, nor beside a large offset.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.data.output_kinds import kinds
from edgekit_converters.fidelity.intervals import DriftMeter
from edgekit_runtime.contract.spec import Contract, DetectionSpec, ImageSpec, InputContract, OutputContract

ITEMS = 200


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(ITEMS, *shape))


def softmax(values):
    powers = np.exp(values)
    return powers / powers.sum(axis=1, keepdims=True)


def contract(task="raw", **outputs):
    found = tuple(OutputContract(name, values.shape[1:], "float32") for name, values in outputs.items())
    return Contract(task, (InputContract("x", (4,), "float32"),), found)


def known(task="raw", **outputs):
    answers = [{name: values[item] for name, values in outputs.items()} for item in range(ITEMS)]
    return kinds(contract(task, **outputs), answers)


def drift(original, noise, task="raw", beside=None):
    """The output `out`, alone or beside another that is left as it is."""
    outputs = {"out": original} | ({} if beside is None else {"beside": beside})
    found = DriftMeter(list(outputs), known(task, **outputs))
    for item in range(ITEMS):
        before = {name: values[item] for name, values in outputs.items()}
        after = before | {"out": None if noise is None else original[item] + noise[item]}
        found.add(before, after if noise is not None else before | {"out": np.full(original.shape[1:], np.nan)})
    return found.outputs()[0]


ONE = random(1)


@pytest.mark.parametrize(
    ("what", "values", "beside", "task"),
    [
        ("numbers", 1e4 + 2e3 * random(1), None, "raw"),
        ("numbers", random(7), None, "raw"),
        ("numbers", random(2), ONE, "raw"),
        ("probabilities", 1 / (1 + np.exp(-random(3))), ONE, "raw"),
        ("vector", random(8), None, "raw"),
        ("vector", random(16, 16, 1), ONE, "raw"),
        ("vector", random(64), ONE, "raw"),
        ("vector", np.cumsum(random(24), axis=1) + 3 * ONE, ONE, "raw"),  # a forecast, whose greatest hour is none
        ("vector", softmax(random(100)), ONE, "raw"),
        ("vector", random(16) / np.linalg.norm(random(16), axis=1, keepdims=True), ONE, "raw"),
        ("numbers", np.sort(random(4), axis=1), ONE, "raw"),
        ("classes", softmax(random(2)), ONE, "raw"),
        ("classes", 60 + random(6), ONE, "raw"),
        ("classes", random(32), ONE, "raw"),
        ("classes", random(2), None, "classification"),
        ("classes", random(1000), None, "classification"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outputs_are_told_apart_by_what_the_original_answers(what, values, beside, task):
    outputs = {"out": values} | ({} if beside is None else {"beside": beside})
    assert known(task, **outputs)["out"].what == what


def test_a_number_is_held_against_what_it_varies_by_and_not_against_its_offset():
    value = 1e4 + 2e3 * random(1)
    found = drift(value, 1e3 * random(1, seed=1))
    assert (found.kind, found.measure) == ("numbers", "spread")
    assert found.cosine == 1.0
    assert found.loss == pytest.approx(0.5, rel=0.2)


def test_of_several_numbers_the_one_that_suffers_most_decides():
    scale = np.array([1e6, 1.0])
    found = drift(random(2) * scale, random(2, seed=1) * np.array([1.0, 0.3]), beside=ONE)
    assert found.loss == pytest.approx(0.3, rel=0.2)


def test_a_number_that_never_varies_is_held_against_its_size():
    assert drift(np.full((ITEMS, 1), 5.0), np.full((ITEMS, 1), 0.05)).loss == pytest.approx(0.01)
    assert drift(np.zeros((ITEMS, 1)), np.zeros((ITEMS, 1))).loss == 0.0


def test_probabilities_of_their_own_share_a_unit_so_that_a_rare_one_does_not_decide():
    values = 1 / (1 + np.exp(-4 * random(3) - np.array([0.0, 0.0, 12.0])))
    found = drift(values, 0.02 * random(3, seed=1))
    assert found.measure == "variance"
    assert found.loss < 0.02


def test_scores_beside_other_outputs_are_held_to_the_answers_that_changed():
    found = drift(60 + random(6), 0.2 * random(6, seed=1), beside=ONE)
    assert (found.measure, found.cosine) == ("agreement", pytest.approx(1.0, abs=1e-4))
    assert found.loss == 1 - found.agreement.value > 0.05


def test_an_index_of_a_class_is_the_same_or_not():
    indexes = np.arange(ITEMS).reshape(-1, 1) % 5
    wrong = (np.arange(ITEMS).reshape(-1, 1) % 10 == 0).astype(np.int64)
    found = drift(indexes, 3 * wrong, beside=ONE)
    assert (found.kind, found.measure, found.loss) == ("classes", "agreement", pytest.approx(0.1))
    assert found.agreement_sure is None


def test_an_offset_does_not_hide_what_a_vector_loses():
    values, noise = random(64), random(64, seed=1)
    plain, shifted = drift(values, 0.5 * noise), drift(values + 50, 0.5 * noise)
    assert (plain.measure, shifted.measure) == ("cosine", "offset")
    assert shifted.cosine > 0.9999
    assert shifted.loss == pytest.approx(plain.loss, rel=0.15)


def test_an_embedding_keeps_its_cosine():
    values = np.maximum(random(256), 0) + 0.1
    found = drift(values, 0.1 * random(256, seed=1))
    assert (found.kind, found.measure) == ("vector", "cosine")
    assert found.loss == 1 - found.cosine


@pytest.mark.parametrize("values", [1e4 + random(1), random(64), 1e3 + random(64)], ids=["number", "vector", "offset"])
def test_answers_that_are_not_finite_lose_everything(values):
    assert drift(values, None).loss >= 0.29


CELLS = 400


def sparse(classes=3, seed=0):
    """[items, 4 + classes, cells]: boxes in pixels beside scores.

    The scores are next to nothing but for one cell of an item.
    """
    draw = np.random.default_rng(seed)
    boxes = draw.uniform(20, 300, (ITEMS, 4, CELLS))
    scores = draw.uniform(0, 1e-4, (ITEMS, classes, CELLS))
    items = np.arange(ITEMS)
    scores[items, items % classes, draw.integers(0, CELLS, ITEMS)] = draw.uniform(0.3, 0.6, ITEMS)
    return np.concatenate([boxes, scores], 1).astype(np.float32)


def steps(values, scale):
    return (np.rint(values / scale) * scale).astype(np.float32)


ONE_SCALE = 300 / 255


@pytest.mark.parametrize("first", [True, False], ids=["channels first", "channels last"])
def test_sparse_scores_beside_boxes_in_pixels_are_a_signal(first):
    values = sparse()
    assert np.square(values[:, 4:]).sum() < 1e-8 * np.square(values[:, :4]).sum()  # of the power next to nothing
    dead, alive = (
        steps(values, ONE_SCALE),
        np.concatenate([steps(values[:, :4], ONE_SCALE), steps(values[:, 4:], 1 / 256)], 1),
    )
    if not first:
        values, dead, alive = (np.moveaxis(each, 1, 2) for each in (values, dead, alive))
    lost, kept = (drift(values, after - values) for after in (dead, alive))
    assert lost.cosine > 0.9999
    assert lost.worst_channel_db == pytest.approx(0.0, abs=0.1)
    assert lost.few_levels.levels == 2
    assert lost.few_levels.channels == (4, 6)
    assert lost.few_levels.high == pytest.approx(0.6, abs=0.05)
    assert (lost.measure, lost.loss) == ("levels", 1.0)
    assert kept.few_levels is None
    assert kept.loss < 0.01


def test_a_detectors_scores_are_one_group_whatever_classes_never_occur():
    values = sparse()
    values[:, 6] *= 1e-6  # a class that is not in the set
    image = ImageSpec(320, 320, (0.0,), (255.0,), "rgb")
    spec = DetectionSpec("out", "box scores", "cxcywh", (320.0, 320.0), candidates="last")
    made = Contract(
        "detection",
        (InputContract("x", (320, 320, 3), "float32", image),),
        (OutputContract("out", values.shape[1:], "float32"),),
        detection=spec,
    )
    (kind,) = kinds(made, [{"out": item} for item in values]).values()
    assert [group.channels for group in kind.groups] == [(0, 1, 2, 3), (4, 5, 6)]
    found = DriftMeter(["out"], {"out": kind})
    for item in values:
        found.add({"out": item}, {"out": np.concatenate([item[:4], steps(item[4:], 1 / 256)])})
    assert found.outputs()[0].few_levels is None


FEW = {
    "a number in steps": (np.linspace(3, 9, ITEMS)[:, None], 3.0, 3),
    "a vector in steps": (random(50), 4.0, 3),
    "a vector in finer steps": (random(50), 0.5, None),
    "sure answers, 0 and 1": (np.eye(2)[np.arange(ITEMS) % 2] * 0.998 + 0.001, 1.0, None),
}


@pytest.mark.parametrize("case", FEW)
def test_few_levels_are_told_where_the_original_has_many(case):
    values, scale, levels = FEW[case]
    found = drift(values, steps(values, scale) - values)
    assert (found.few_levels.levels if found.few_levels else None) == levels


def always(scores):
    """The same class wins for 98 % of the items."""
    scores = scores.copy()
    scores[:, 2] = scores.max(axis=1) + 0.3
    scores[:4, 1] = scores[:4].max(axis=1) + 0.1
    return scores


@pytest.mark.parametrize("how", ["logits", "probabilities", "beside no task"])
def test_where_one_class_wins_nearly_always_its_scores_are_held_against_how_they_vary(how):
    task = "raw" if how == "beside no task" else "classification"
    scores = always(random(5)) if how == "logits" else softmax(always(random(5)))
    deviation = scores.std(axis=0).max()
    moved = drift(scores, np.broadcast_to(1.7 * deviation * np.array([-1, 0, 1, 0, 0]), scores.shape), task)
    assert (moved.kind, moved.measure) == ("classes", "offset")
    assert moved.loss > 0.3
    assert moved.agreement is not None
    assert moved.agreement.value >= 0.95
    assert moved.loss_ci95 is not None
    assert moved.loss_ci95[0] > 0.25
    step = (scores.max() - scores.min()) / 255
    rounded = drift(scores, np.rint(scores / step) * step - scores, task)
    assert rounded.loss < 0.03


def test_8_bits_of_a_classifier_that_is_always_sure_of_one_class_are_enough():
    scores = softmax(np.array([0, 8, 0, 0, 0]) + 0.1 * random(5))
    rounded = drift(scores, np.rint(scores * 255) / 255 - scores, "classification")
    assert rounded.loss < 0.01


def test_a_classifier_of_one_score_is_held_against_how_that_varies():
    scores = 1 / (1 + np.exp(-random(1)))
    assert drift(scores, np.full(scores.shape, 1.7 * scores.std()), "classification").loss > 0.3


def test_where_several_classes_win_the_best_class_decides():
    scores = random(5)
    assert drift(scores, np.full(scores.shape, 3.0), "classification").loss == 0

"""What an output is decides how its error is weighed: a cosine says nothing of one number, nor beside a large offset."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.fidelity.kinds import kinds
from edgekit_converters.fidelity.statistics import Drift
from edgekit_runtime.contract import Contract, InputContract, OutputContract

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
    found = Drift(list(outputs), known(task, **outputs))
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

"""What a build remembers comes back as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgekit.building.data import cached_reference, cached_survey, key, survey_digest
from edgekit_converters.data.dataset import RandomDataset
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.result import Fidelity, Score
from edgekit_converters.recipe.store import DiskStore, cached_json
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract

CONTRACT = Contract("raw", (InputContract("x", (3,), "float32"),), (OutputContract("y", (2,), "float32"),))


def never():
    raise AssertionError("made again")


def test_json_comes_back_without_being_made_again(tmp_path):
    store = DiskStore(tmp_path)
    assert cached_json(store, key("a"), dict[str, Any], lambda: {"a": [1, None]}) == {"a": [1, None]}
    assert cached_json(store, key("a"), dict[str, Any], never) == {"a": [1, None]}
    assert cached_json(store, key("b"), float, lambda: float("inf")) == cached_json(store, key("b"), float, never)


def test_what_cannot_be_read_is_made_again(tmp_path):
    store = DiskStore(tmp_path)
    for stored in (b"\xff not JSON", b'"3"'):
        store.put(key("a"), stored)
        assert cached_json(store, key("a"), int, lambda: 3) == 3
        assert cached_json(store, key("a"), int, never) == 3


@pytest.mark.parametrize("number", ["NaN", "1e308", "-1e308", "1e999", "[" * 100_000])
def test_numbers_that_nothing_measures_are_made_again(tmp_path, number):
    store = DiskStore(tmp_path)
    store.put(key("a"), f'{{"agreement": {number}}}'.encode())
    assert cached_json(store, key("a"), dict[str, float], lambda: {"agreement": 0.9}) == {"agreement": 0.9}
    assert cached_json(store, key("a"), dict[str, float], never) == {"agreement": 0.9}


def test_what_was_made_is_kept_out_where_it_is_nan_and_still_given(tmp_path):
    store = DiskStore(tmp_path)
    assert np.isnan(cached_json(store, key("a"), float, lambda: float("nan")))
    assert cached_json(store, key("a"), float, lambda: 1.0) == 1.0


def test_a_value_that_does_not_fit_is_made_again(tmp_path):
    store = DiskStore(tmp_path)
    store.put(key("a"), b"-5")
    assert cached_json(store, key("a"), int, lambda: 3, (0).__le__) == 3
    assert cached_json(store, key("a"), int, never, (0).__le__) == 3


POSSIBLE = Fidelity(100, "top1", 0.9, 0.8, 0.1, (0.0, 0.2), 0.95, 0.99, 30.0, 1.0, 0.5, "litert")
IMPOSSIBLE = {
    "agreement": (-5.0, 1.5, float("nan")), "cosine": (-5.0, 1.1, float("nan")), "items": (0, -1),
    "not_finite": (-1, 101), "quantized_macs": (-0.5, 2.0), "quantized_weights": (-0.5, 2.0),
    "scores": ((Score("top1", 0.9, -5.0, 0.1, (0.0, 0.2)),), (Score("map", 7.0, 0.9, 0.1, (0.0, 0.2)),)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_a_comparison_that_cannot_be_is_known(name, value):
    assert POSSIBLE.is_possible
    assert replace(
        POSSIBLE, cosine=-1.0, sqnr_db=None, scores=(Score("mae", 7.0, 9.0, 2.0, (0.0, 3.0), False),)
    ).is_possible
    assert not replace(POSSIBLE, **{name: value}).is_possible


LABELS = {"none": None, "classes": (1, 0), "numbers": (0.5, 1.5), "boxes": (np.zeros((2, 5)), np.ones((0, 5)))}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_the_originals_answers_come_back(tmp_path, labels):
    outputs = tuple({"y": np.array([n, 2], np.float32), "z": np.arange(n, n + 3, dtype=np.int64)} for n in range(2))
    contract = replace(CONTRACT, outputs=(*CONTRACT.outputs, OutputContract("z", (3,), "int64")))
    made = Reference(outputs, labels, (1, 0), ("d1", "d2"))
    store = DiskStore(tmp_path)
    cached_reference(store, key("r"), contract, lambda: made)
    found = cached_reference(store, key("r"), contract, never)
    assert (found.best, found.digests) == (made.best, made.digests)
    for before, after in zip(made.outputs, found.outputs, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name], strict=True)
    if labels is None:
        assert found.labels is None
    else:
        for before, after in zip(labels, found.labels, strict=True):
            np.testing.assert_array_equal(before, after)


def test_a_survey_comes_back_and_tells_its_items(tmp_path):
    store = DiskStore(tmp_path)
    first = cached_survey(store, RandomDataset(CONTRACT, 5), CONTRACT, lambda *_: None)
    again = cached_survey(store, RandomDataset(CONTRACT, 5), CONTRACT, never)
    assert vars(first) == vars(again)
    assert survey_digest(first) == survey_digest(again)
    assert survey_digest(first, frozenset(first.digests[:1])) != survey_digest(first)

"""Raw outputs become named, dequantized, read-only arrays; scores become classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.adapt import Finisher, dequantize, softmax, top
from edgekit_runtime.contract.spec import Contract, OutputContract, Quantization, TensorSpec
from edgekit_runtime.system.errors import ContractError


def contract(scores="probabilities", task="classification", labels=None, classes=3):
    return Contract(task, (), (OutputContract("y", (classes,), "float32"),), labels, scores)


@given(
    st.sampled_from(["int8", "uint8", "int16"]), st.floats(1e-6, 10), st.integers(-100, 100), st.integers(0, 2**32 - 1)
)
def test_every_step_is_worth_what_the_definition_says(dtype, scale, zero_point, seed):
    spec = TensorSpec("y", "t", dtype, (1, 64), None, Quantization(scale, zero_point))
    limits = np.iinfo(dtype)
    raw = np.random.default_rng(seed).integers(limits.min, limits.max, (1, 64), dtype, endpoint=True)
    found = Finisher(contract(classes=64), [spec])([raw])["y"]
    np.testing.assert_array_equal(found, dequantize(raw[0], spec, np.dtype(np.float32)))
    np.testing.assert_allclose(found, scale * (raw[0].astype(np.float64) - zero_point), rtol=1e-5, atol=1e-9)
    assert found.dtype == np.float32


def test_outputs_are_matched_by_name_not_by_place():
    two = Contract("raw", (), (OutputContract("a", (1,), "float32"), OutputContract("b", (2,), "float32")))
    specs = [TensorSpec("b", "t0", "float32", (1, 2)), TensorSpec("a", "t1", "float32", (1, 1))]
    found = Finisher(two, specs)([np.array([[1.0, 2.0]], np.float32), np.array([[3.0]], np.float32)])
    assert (found["a"].tolist(), found["b"].tolist()) == ([3.0], [1.0, 2.0])


def test_an_artifact_that_lacks_an_output_is_told():
    with pytest.raises(ContractError, match="lacks the output 'y'"):
        Finisher(contract(), [TensorSpec("z", "t", "float32", (1, 3))])


def test_ties_go_to_the_lower_index_and_labels_are_used():
    best = top({"y": np.array([0.2, 0.4, 0.4])}, contract(labels=("a", "b", "c")), 3)
    assert [(p.label, p.index) for p in best] == [("b", 1), ("c", 2), ("a", 0)]


def test_without_labels_the_index_is_the_name():
    assert top({"y": np.array([0.2, 0.8, 0.0])}, contract(), 1)[0].label == "1"


def test_logits_become_probabilities():
    best = top({"y": np.array([1000.0, 0.0, 1000.0])}, contract("logits"), 2)
    assert [p.score for p in best] == pytest.approx([0.5, 0.5])


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=50))
def test_softmax_is_a_distribution_in_the_same_order(logits):
    scores = softmax(np.array(logits))
    assert scores.sum() == pytest.approx(1.0)
    assert scores.argmax() == int(np.argmax(logits)) or scores.max() == scores[int(np.argmax(logits))]


def test_top_is_for_classifiers():
    with pytest.raises(ContractError, match="this model's task is raw"):
        top({"y": np.zeros(3)}, contract(task="raw"), 1)

"""Dataclasses to JSON and back without losing anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.spec import CarriedState, Contract, DetectionSpec, EmbeddingSpec, ImageSpec, TensorSpec
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.strict_json import from_json, json_text, read_json, to_json

CONTRACTS = st.from_type(Contract)


@given(CONTRACTS.filter(lambda c: "nan" not in repr(c) and "inf" not in repr(c)))
def test_every_contract_survives_the_round_trip(contract):
    assert from_json(Contract, json.loads(json.dumps(to_json(contract))), "contract") == contract


def test_absent_options_are_left_out():
    assert to_json(TensorSpec("a", "b", "int8", (1, 2))) == {
        "name": "a",
        "tensor": "b",
        "dtype": "int8",
        "shape": [1, 2],
    }


LEAST = {
    "an image": (
        ImageSpec,
        {"height": 2, "width": 2, "mean": [0.0] * 3, "std": [1.0] * 3},
        {"color": "rgb", "crop": 1.0},
    ),
    "a detector": (
        DetectionSpec,
        {"boxes": "b", "row": "box", "format": "xyxy", "span": [1, 1]},
        {"candidates": "first", "class_aware": True, "score_threshold": 0.25, "max_boxes": 100, "count": None},
    ),
    "a vector": (EmbeddingSpec, {"output": "v"}, {"normalize": False}),
    "a state": (CarriedState, {"input": "a", "output": "b"}, {"initial": None}),
    "a contract": (Contract, {"task": "raw", "inputs": [], "outputs": []}, {"state": "none", "labels": None}),
}


@pytest.mark.parametrize(("kind", "least", "defaults"), LEAST.values(), ids=LEAST)
def test_what_the_format_calls_optional_may_be_left_out_and_has_its_default(kind, least, defaults):
    found = from_json(kind, least, "it")
    assert {name: getattr(found, name) for name in defaults} == defaults
    for name in least:
        with pytest.raises(BundleError, match=f"'{name}' is missing"):
            from_json(kind, {key: value for key, value in least.items() if key != name}, "it")


def test_a_boolean_is_no_integer():
    with pytest.raises(BundleError, match=r"shape\[0\]: True is not an int"):
        from_json(TensorSpec, {"name": "a", "tensor": "b", "dtype": "int8", "shape": [True]}, "tensor")


LITERALS = {"true for 1": True, "a float for 1": 1.0, "text for 1": "1"}


@pytest.mark.parametrize("value", LITERALS.values(), ids=LITERALS)
def test_a_literal_is_compared_with_its_type(value):
    with pytest.raises(BundleError, match="is not one of 1, 2"):
        from_json(Literal[1, 2], value, "it")  # type: ignore[arg-type]


def test_an_integer_beyond_every_float_is_refused():
    with pytest.raises(BundleError, match="is not a float"):
        from_json(float, 10**400, "it")


@dataclass(frozen=True)
class Kept:
    format: int
    seconds: float
    names: tuple[str, ...] = ()


def test_a_record_is_read_as_it_was_written():
    kept = Kept(2, 1.5, ("one", "two"))
    assert read_json(Kept, json_text(kept), "kept.json", format=2) == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ('{"seconds": 1.0}', "not of a format"),
        ('{"format": 3, "seconds": 1.0}', "not of a format"),
        ('{"format": true, "seconds": 1.0}', "not of a format"),
        ('{"format": 2, "seconds": "x"}', "kept.json.seconds: 'x' is not a float"),
        ('{"format": 2, "seconds": 1e999}', "too large"),
        ('{"format": 2, "seconds": NaN}', "NaN is not JSON"),
        ('{"format": 2, "format": 2, "seconds": 1.0}', "duplicate key"),
    ],
)
def test_a_record_that_is_damaged_says_what_is_wrong(text, why):
    with pytest.raises(ValueError, match=why):
        read_json(Kept, text, "kept.json", format=2)

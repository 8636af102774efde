"""Dataclasses to JSON and back without losing anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.bundle.codec import from_json, to_json
from edgekit_runtime.contract import Contract
from edgekit_runtime.errors import BundleError
from edgekit_runtime.tensors import TensorSpec

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


def test_a_boolean_is_no_integer():
    with pytest.raises(BundleError, match=r"shape\[0\]: True is not a int"):
        from_json(TensorSpec, {"name": "a", "tensor": "b", "dtype": "int8", "shape": [True]}, "tensor")

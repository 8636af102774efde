"""A state that goes in and comes out is handed on as it is where it can be.

Elsewhere it is properly requantized.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.adapt import Carry
from edgekit_runtime.contract.spec import (
    CarriedState,
    Contract,
    InputContract,
    OutputContract,
    Quantization,
    TensorSpec,
)
from edgekit_runtime.system.errors import ContractError

CONTRACT = Contract(
    "raw",
    (InputContract("h", (2, 3), "float32"), InputContract("x", (1,), "float32")),
    (OutputContract("y", (1,), "float32"), OutputContract("hn", (2, 3), "float32")),
    state="explicit",
    carried=(CarriedState("h", "hn"),),
)
X, Y = TensorSpec("x", "x", "float32", (1, 1)), TensorSpec("y", "y", "float32", (1, 1))


def state(name: str, dtype: str, scale: float | None = None, zero: int = 0) -> TensorSpec:
    return TensorSpec(name, name, dtype, (1, 2, 3), None, None if scale is None else Quantization(scale, zero))


def carry(into: TensorSpec, out: TensorSpec, contract: Contract = CONTRACT) -> Carry:
    return Carry(contract, (into, X), (Y, out))


def after(made: Carry, value: np.ndarray) -> np.ndarray:
    return made.after([np.zeros((1, 1), np.float32), value])[0]


def test_inputs_are_fed_in_the_artifacts_order():
    made = carry(state("h", "float32"), state("hn", "float32"))
    fed = made.feed([np.ones((1, 1), np.float32)], made.begin())
    assert [array.shape for array in fed] == [(1, 2, 3), (1, 1)]
    assert [tensor.name for tensor in made.asked] == ["x"]


@pytest.mark.parametrize(
    ("initial", "wanted"),
    [(None, np.zeros((2, 3))), ((0.5,), np.full((2, 3), 0.5)), (tuple(range(6)), np.arange(6).reshape(2, 3))],
    ids=["zeros", "one number", "every value"],
)
def test_it_begins_as_the_contract_says(initial, wanted):
    contract = replace(CONTRACT, carried=(CarriedState("h", "hn", initial),))
    (first,) = carry(state("h", "float32"), state("hn", "float32"), contract).begin()
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first[0], wanted)


def test_zeros_in_eight_bits_are_the_zero_point():
    (first,) = carry(state("h", "int8", 0.1, -7), state("hn", "int8", 0.1, -7)).begin()
    assert (first == -7).all()


def test_a_state_may_be_written_to_without_changing_the_next_beginning():
    made = carry(state("h", "float32"), state("hn", "float32"))
    made.begin()[0][:] = 9
    assert not made.begin()[0].any()


def test_the_same_scale_hands_on_the_very_bytes():
    made = carry(state("h", "int8", 0.1, 3), state("hn", "int8", 0.1, 3))
    value = np.arange(6, dtype=np.int8).reshape(1, 2, 3)
    assert after(made, value) is value


SCALES = st.floats(1e-4, 2.0)
ZEROS = st.integers(-128, 127)


@given(SCALES, ZEROS, SCALES, ZEROS, st.lists(st.integers(-128, 127), min_size=6, max_size=6))
def test_other_scales_are_requantized_to_the_nearest_step_or_the_limit(scale, zero, other, origin, values):
    made = carry(state("h", "int8", other, origin), state("hn", "int8", scale, zero))
    value = np.array(values, np.int8).reshape(1, 2, 3)
    got = after(made, value)
    assert (got.dtype, got.shape) == (np.int8, (1, 2, 3))
    wanted = (value.astype(np.float64) - zero) * np.float32(scale)
    back = (got.astype(np.float64) - origin) * np.float32(other)
    lowest, highest = (-128 - origin) * np.float32(other), (127 - origin) * np.float32(other)
    assert (np.abs(back - np.clip(wanted, lowest, highest)) <= 0.5001 * other + 1e-6 * np.abs(wanted).max()).all()


@pytest.mark.parametrize(
    ("into", "out", "value", "wanted"),
    [
        (("float32",), ("int8", 0.5, 2), 4, 1.0),
        (("int8", 0.5, 2), ("float32",), 1.0, 4),
        (("uint8", 0.5, 100), ("int8", 0.25, 0), 8, 104),
        (("float16",), ("float32",), 0.5, 0.5),
        (("int16", 0.001, 0), ("int8", 0.5, 0), 2, 1000),
    ],
    ids=["int8 to float", "float to int8", "int8 to uint8", "float32 to float16", "int8 to int16"],
)
def test_kinds_that_differ_go_through_real_numbers(into, out, value, wanted):
    got = after(carry(state("h", *into), state("hn", *out)), np.full((1, 2, 3), value, out[0]))
    assert (got.dtype, got.shape) == (np.dtype(into[0]), (1, 2, 3))
    assert (got == wanted).all()


def test_a_state_whose_input_lies_otherwise_is_turned():
    contract = replace(
        CONTRACT,
        inputs=(InputContract("h", (3, 4, 5), "float32"), CONTRACT.inputs[1]),
        outputs=(CONTRACT.outputs[0], OutputContract("hn", (3, 4, 5), "float32")),
    )
    into = TensorSpec("h", "h", "float32", (1, 4, 5, 3), "NHWC")
    out = TensorSpec("hn", "hn", "float32", (1, 3, 4, 5))
    value = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
    np.testing.assert_array_equal(after(carry(into, out, contract), value)[0], value[0].transpose(1, 2, 0))


def test_an_artifact_without_the_state_is_refused():
    with pytest.raises(ContractError, match="lacks a tensor of its state"):
        Carry(CONTRACT, (X,), (Y,))


def test_the_callers_view_has_no_state():
    seen = CONTRACT.of_caller
    assert ([spec.name for spec in seen.inputs], [spec.name for spec in seen.outputs]) == (["x"], ["y"])
    assert seen.state == "explicit"

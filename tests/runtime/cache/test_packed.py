"""What is written of an answer comes back bit for bit, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.cache.memory_tier import Moment
from edgekit_runtime.cache.stored_answers import KeptForm, PackError

KEY, BORN, FORM = b"key", Moment(1.8e9, 12.5, 7), KeptForm(b"model")
DTYPES = ["<f4", "<f2", ">f8", "<i8", "|u1", "|b1", "<c8"]


def made(dtype, shape, seed):
    """Every value of whole numbers, and finite ones of the rest."""
    drawn = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return np.frombuffer(drawn.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return np.asarray(1e3 * drawn.standard_normal(shape)).astype(dtype)


arrays = st.builds(
    made, st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4).map(tuple), st.integers(0, 2**32)
)


@settings(max_examples=examples(150))
@given(st.dictionaries(st.text(max_size=10), arrays, max_size=4))
def test_comes_back_bit_for_bit(outputs):
    got, born = FORM.unpack(KEY, FORM.pack(KEY, outputs, BORN))
    assert born == BORN
    assert list(got) == list(outputs)
    for name, array in outputs.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()
        assert not got[name].flags.writeable


@settings(max_examples=examples(150))
@given(st.data())
def test_a_flipped_bit_or_a_missing_end_is_noticed(data):
    packed = bytearray(FORM.pack(KEY, {"probs": np.arange(10, dtype=np.float32)}, BORN))
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    with pytest.raises(PackError):
        FORM.unpack(KEY, bytes(packed))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2],
        7,
        {"y": [1, 2]},
        {"y": np.array([object()])},
        {"y": np.array(["now"], "M8[s]")},
        {"y": np.array(["text"])},
        {"y": np.array([1.0, np.nan])},
        {"y": np.array([-np.inf], np.float16)},
    ],
)
def test_what_has_no_such_form_is_refused(value):
    with pytest.raises(PackError):
        FORM.pack(KEY, value, BORN)


def test_arrays_lie_where_fast_code_wants_them():
    got, _ = FORM.unpack(KEY, FORM.pack(KEY, {"a": np.zeros(3, np.uint8), "b": np.ones(5, np.float64)}, BORN))
    assert got["b"].flags.aligned

"""What is written of an answer comes back bit for bit, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_runtime.cache.disk import PackError, pack, unpack

DTYPES = ["<f4", "<f2", ">f8", "<i8", "|u1", "|b1", "<c8", "<U5", "|S3"]
arrays = st.builds(
    lambda dtype, shape, seed: (
        np.frombuffer(np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(
            shape
        )
        if np.dtype(dtype).kind not in "bU"
        else np.zeros(shape, dtype)
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.integers(0, 2**32),
)


@settings(max_examples=examples(150))
@given(st.dictionaries(st.text(max_size=10), arrays, max_size=4))
def test_comes_back_bit_for_bit(outputs):
    got = unpack(pack(outputs))
    assert list(got) == list(outputs)
    for name, array in outputs.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()
        assert not got[name].flags.writeable


@settings(max_examples=examples(150))
@given(st.data())
def test_a_flipped_bit_or_a_missing_end_is_noticed(data):
    packed = bytearray(pack({"probs": np.arange(10, dtype=np.float32)}))
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    with pytest.raises(PackError):
        unpack(bytes(packed))


@pytest.mark.parametrize(
    "value", [[1, 2], 7, {"y": [1, 2]}, {"y": np.array([object()])}, {"y": np.array(["now"], "M8[s]")}]
)
def test_what_has_no_such_form_is_refused(value):
    with pytest.raises(PackError):
        pack(value)


def test_arrays_lie_where_fast_code_wants_them():
    got = unpack(pack({"a": np.zeros(3, np.uint8), "b": np.ones(5, np.float64)}))
    assert got["b"].flags.aligned

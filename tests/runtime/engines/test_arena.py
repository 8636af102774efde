"""Tensors through shared pages, bit for bit, whatever their form."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.engines.arena import Arena, frame, layout_of, read_frame

ARRAYS = st.lists(
    st.tuples(
        st.sampled_from(["int8", "uint8", "float32", "int64", "bool", "float16"]),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
    ),
    max_size=4,
)


@settings(max_examples=examples(60))
@given(forms=ARRAYS)
def test_what_goes_in_comes_out(forms):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, shape).astype(dtype) for dtype, shape in forms]
    arena = Arena.create()
    layout = arena.write(arrays)
    assert layout == layout_of(arrays)
    for wanted, got in zip(arrays, arena.read(layout), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)
        assert got.flags.owndata
    arena.close()


def test_the_other_side_sees_what_was_written_also_after_it_grew():
    mine = Arena.create()
    theirs = Arena(os.dup(mine.fd))
    for size in (10, 100_000, 50, 1_000_000):
        x = np.arange(size, dtype=np.int32)
        np.testing.assert_array_equal(theirs.read(mine.write([x]))[0], x)
    mine.shrink()
    theirs.forget()
    x = np.arange(7.0)
    np.testing.assert_array_equal(theirs.read(mine.write([x]))[0], x)
    mine.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 70_000, 300_000])
def test_frames_arrive_whole(size):
    reading, writing = os.pipe()
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sender = threading.Thread(target=_send, args=(writing, frame(b"r", body)))
    sender.start()
    assert read_frame(reading) == (b"r", body)
    sender.join()
    os.close(writing)
    assert read_frame(reading) is None
    os.close(reading)


def _send(fd, data):
    while data:
        data = data[os.write(fd, data) :]

"""How much memory an artifact will need."""

from __future__ import annotations

import itertools

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.formats.workload import arena_bytes, memory_bytes, peak

STEPS = {
    "a chain holds two": ([(["x"], ["a"]), (["a"], ["b"]), (["b"], ["y"])], {"x": 1, "a": 10, "b": 20, "y": 1}, 30),
    "a shortcut lives until it is added": (
        [(["x"], ["a"]), (["a"], ["b"]), (["b", "x"], ["y"])],
        {"x": 100, "a": 10, "b": 20, "y": 1},
        130,
    ),
    "an input lives from the start": (
        [(["a"], ["b"]), (["b", "late"], ["y"])],
        {"a": 5, "b": 1, "late": 50, "y": 1},
        56,
    ),
    "what nothing reads lives to the end": ([(["x"], ["y", "z"]), (["y"], ["w"])], {"z": 7, "y": 1, "w": 1, "x": 0}, 9),
    "nothing": ([], {}, 0),
}


@pytest.mark.parametrize(("steps", "sizes", "expected"), STEPS.values(), ids=STEPS)
def test_the_busiest_step_decides(steps, sizes, expected):
    assert peak(steps, sizes) == expected


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12))
def test_a_chain_needs_its_largest_pair(sizes):
    steps = [([index], [index + 1]) for index in range(len(sizes) - 1)]
    assert peak(steps, dict(enumerate(sizes))) == max(a + b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("recipe", ["tflite-int8", "tflite-f32", "onnx-f32"])
def test_the_need_of_a_real_file_is_its_engine_and_a_little_more(recipe):
    kind, data = recipe.split("-")[0], tiny.model_bytes(recipe)
    arena = arena_bytes(kind, data)
    assert arena is not None
    assert arena >= 8 * 8 * 3  # one picture
    assert 40 << 20 < memory_bytes(kind, data) < 80 << 20


def test_floats_take_four_times_the_arena_of_bytes():
    assert arena_bytes("tflite", tiny.model_bytes("tflite-f32")) > 3 * arena_bytes(
        "tflite", tiny.model_bytes("tflite-int8")
    )


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x20\x00\x00\x00TFL3" + bytes(40)])
def test_bytes_that_are_no_model_need_nothing_that_is_known(data):
    assert memory_bytes("tflite", data) is None

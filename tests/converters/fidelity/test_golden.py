"""Golden examples must not flip by rounding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.fidelity.reference import Reference, pick_golden


def reference(scores, *, classifier=True, digests=None) -> Reference:
    outputs = tuple({"p": np.asarray(row, np.float32)} for row in scores)
    best = tuple(int(np.argmax(row)) for row in scores) if classifier else None
    return Reference(outputs, None, best, tuple(digests or map(str, range(len(scores)))))


def test_the_surest_item_of_each_class_comes_first():
    scores = [[0.9, 0.1, 0], [0.99, 0.01, 0], [0.4, 0.6, 0], [0.1, 0.2, 0.7], [0.95, 0.05, 0]]
    assert pick_golden(reference(scores), 1) == [1]
    assert pick_golden(reference(scores), 3) == [1, 2, 3]
    assert pick_golden(reference(scores), 4) == [1, 2, 3, 4]


def test_the_same_item_is_never_taken_twice():
    scores = [[0.9, 0.1]] * 3 + [[0.6, 0.4]]
    assert pick_golden(reference(scores, digests=["a", "a", "a", "b"])) == [0, 3]


def test_other_tasks_take_items_spread_over_the_set():
    assert pick_golden(reference([[1.0]] * 16, classifier=False)) == [2, 6, 10, 14]
    assert pick_golden(reference([[1.0]] * 2, classifier=False)) == [0, 1]


@given(
    st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=30),
    st.integers(1, 6),
    st.booleans(),
)
def test_indexes_ascend_are_distinct_and_as_many_as_asked(scores, count, classifier):
    chosen = pick_golden(reference(scores, classifier=classifier), count)
    assert len(chosen) == min(count, len(scores))
    assert chosen == sorted(set(chosen))
    assert all(0 <= index < len(scores) for index in chosen)

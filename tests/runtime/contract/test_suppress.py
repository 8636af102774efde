"""Of boxes that mean the same thing the surest stays, exactly as the definition has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.contract.detect import overlaps, suppress


def plain(boxes, scores, classes, threshold, most):
    """Greedy suppression as it is defined, one pair at a time."""
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        same = (j for j in kept if classes is None or classes[i] == classes[j])
        if len(kept) < most and not any(iou(boxes[i], boxes[j]) > threshold for j in same):
            kept.append(i)
    return kept


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / union if union > 0 else 0.0


@settings(max_examples=examples(60))
@given(
    st.integers(0, 400),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    st.sampled_from([1, 5, 100, 1000]),
    st.booleans(),
)
def test_it_keeps_what_the_plain_definition_keeps(count, seed, threshold, most, by_class):
    random = np.random.default_rng(seed)
    corner = random.integers(0, 40, (count, 2))
    boxes = np.concatenate([corner, corner + random.integers(0, 24, (count, 2))], axis=1).astype(np.float64)
    scores = random.integers(0, 30, count) / 32  # many ties
    classes = random.integers(0, 3, count) if by_class else None
    found = suppress(boxes, scores, classes, threshold, most)
    assert found.tolist() == plain(boxes, scores, classes, threshold, most)


def test_a_box_that_is_exactly_at_the_threshold_stays():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 20]], float)
    assert suppress(boxes, np.array([0.9, 0.8]), None, 0.5, 10).tolist() == [0, 1]
    assert suppress(boxes, np.array([0.9, 0.8]), None, 0.49, 10).tolist() == [0]


def test_empty_boxes_cover_nothing():
    empty = np.array([[5, 5, 5, 5], [5, 5, 5, 5]], float)
    assert not overlaps(empty, empty, 0.0).any()


def test_a_covered_box_covers_nobody_itself():
    chain = np.array([[0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10]], float)  # each covers its neighbour only
    assert suppress(chain, np.array([0.9, 0.8, 0.7]), None, 0.3, 10).tolist() == [0, 2]


@pytest.mark.parametrize("count", [127, 128, 129, 500])
def test_the_order_is_by_score_across_blocks(count):
    boxes = np.stack([np.arange(count) * 20, np.zeros(count), np.arange(count) * 20 + 10, np.ones(count)], 1)
    scores = np.random.default_rng(count).permutation(count) / count
    assert suppress(boxes, scores, None, 0.5, count).tolist() == np.argsort(-scores).tolist()

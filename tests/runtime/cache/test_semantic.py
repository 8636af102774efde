"""A request is answered by what it means only where its vector lies near one that was really answered."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.cache.similar import Semantic
from edgekit_runtime.system.errors import InputError


def answer(number):
    return {"y": np.array([number])}


def itself(item):
    return item


def make(threshold=0.05, embed=itself, **options):
    return Semantic(embed, threshold, **options)


def store(semantic, vector, number=0):
    semantic.remember(semantic.mark({"x": np.asarray(vector, np.float32)}), answer(number))


def find(semantic, vector):
    mark = semantic.mark({"x": np.asarray(vector, np.float32)})
    return None if mark is None else semantic.find(mark)


def test_length_does_not_count_and_direction_does():
    semantic = make()
    store(semantic, [1, 0, 0], 7)
    assert find(semantic, [250, 0, 0]).outputs["y"].tolist() == [7]
    assert find(semantic, [0, 1, 0]) is None
    assert find(semantic, [-1, 0, 0]) is None


@settings(max_examples=examples(60))
@given(st.integers(1, 40), st.integers(2, 16), st.floats(0, 1), st.integers(0, 999))
def test_the_nearest_is_found_and_its_distance_is_one_minus_cosine(n, dim, threshold, seed):
    random = np.random.default_rng(seed)
    stored, asked = random.normal(size=(n, dim)), random.normal(size=dim)
    semantic = make(threshold)
    for number, vector in enumerate(stored):
        store(semantic, vector, number)
    distances = 1 - stored @ asked / np.linalg.norm(stored, axis=1) / np.linalg.norm(asked)
    hit = find(semantic, asked)
    if abs(distances.min() - threshold) > 1e-5:
        assert (hit is not None) == (distances.min() <= threshold)
    if hit is not None:
        assert hit.distance == pytest.approx(distances.min(), abs=1e-5)
        assert hit.outputs["y"][0] == distances.argmin()


def test_it_is_bounded_and_what_was_used_longest_ago_makes_room():
    semantic = make(max_entries=3)
    eye = np.eye(5)
    for number in range(3):
        store(semantic, eye[number], number)
    find(semantic, eye[0])
    store(semantic, eye[3], 3)
    assert semantic.entries == 3
    assert find(semantic, eye[1]) is None
    assert [find(semantic, eye[k]).outputs["y"][0] for k in (0, 2, 3)] == [0, 2, 3]


def test_an_answer_past_its_time_is_not_given_even_if_it_is_the_nearest():
    now = 0.0
    semantic = make(0.5, ttl_s=10.0, clock=lambda: now)
    store(semantic, [1, 0], 1)
    now = 6.0
    store(semantic, [1, 0.3], 2)
    assert find(semantic, [1, 0]).outputs["y"][0] == 1
    now = 11.0
    hit = find(semantic, [1, 0])
    assert (hit.outputs["y"][0], hit.age_s) == (2, 5.0)


@pytest.mark.parametrize("vector", [[0, 0], [np.nan, 1], [np.inf, 1], []])
def test_what_has_no_direction_is_like_nothing(vector):
    semantic = make(2.0)
    store(semantic, [1, 0])
    assert find(semantic, vector) is None


def test_an_embedder_that_fails_makes_a_miss():
    def fails(item):
        raise InputError("no")

    semantic = make(embed=fails)
    assert semantic.mark({"x": np.zeros(2)}) is None


def test_vectors_of_another_length_begin_anew():
    semantic = make()
    store(semantic, [1, 0], 1)
    assert find(semantic, [1, 0, 0]) is None
    store(semantic, [1, 0, 0], 2)
    assert find(semantic, [1, 0, 0]).outputs["y"][0] == 2


def test_a_model_that_makes_embeddings_is_an_embedder():
    contract = SimpleNamespace(task="embedding", outputs=[SimpleNamespace(name="features")])
    model = SimpleNamespace(
        contract=contract, predict=lambda item: SimpleNamespace(outputs={"features": item.astype(np.float32)})
    )
    semantic = Semantic(model, 0.01)
    store(semantic, [3, 4], 5)
    assert find(semantic, [6, 8]).outputs["y"][0] == 5
    contract.task = "classification"
    with pytest.raises(ValueError, match="embedding, not classification"):
        Semantic(model, 0.01)


def test_several_inputs_reach_the_embedder_by_name():
    semantic = make(embed=lambda items: np.concatenate([items["a"], items["b"]]))
    mark = semantic.mark({"a": np.array([3.0]), "b": np.array([4.0])})
    np.testing.assert_allclose(mark, [0.6, 0.8])


def test_flush_forgets():
    semantic = make()
    store(semantic, [1, 0])
    semantic.flush()
    assert (semantic.entries, find(semantic, [1, 0])) == (0, None)


@pytest.mark.parametrize("options", [{"threshold": -0.1}, {"threshold": 3}, {"max_entries": 0}, {"ttl_s": 0}])
def test_settings_that_make_no_sense_are_the_callers_bug(options):
    with pytest.raises(ValueError, match=r"threshold|at least"):
        make(**options)

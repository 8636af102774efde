"""A semantic cache gives no more false answers than it may, opens on evidence alone, and closes where it must."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.runtime.semantic import play, questions
from edgekit_runtime.cache.bounded import CUTS, ErrorBound, interval, new_entry
from edgekit_runtime.cache.similar import Semantic, same_answer
from edgekit_runtime.cache.tiered import Cache

ASKED, ENTRIES = 4_000, 100


def simulated(world, error, seed, asked=ASKED):
    """(answers given, false ones among them, the bound). world(entry, distance, when): chance that it is false."""
    chance, bound = random.Random(seed), ErrorBound(error, chance=random.Random(seed + 1))
    entries, given, false = [new_entry() for _ in range(ENTRIES)], 0, 0
    for at in range(asked):
        number, distance = min(int(chance.expovariate(1 / 20)), ENTRIES - 1), 10 ** chance.uniform(-3, -0.6)
        wrong = chance.random() < world(number, distance, at / asked)
        if bound.serves(entries[number], distance):
            given, false = given + 1, false + wrong
        else:
            bound.learn(entries[number], distance, right=not wrong)
    return given, false, bound


WORLDS = {
    "nearly always right": (lambda entry, distance, when: 0.002, 0.3),
    "some entries are traps": (lambda entry, distance, when: 0.5 if entry % 3 == 0 else 0.003, 0.1),
    "right only when near": (lambda entry, distance, when: 0.002 if distance < 0.02 else 0.3, 0.0),
    "it turns false halfway": (lambda entry, distance, when: 0.002 if when < 0.5 else 0.3, 0.1),
    "false just above the bound": (lambda entry, distance, when: 0.025, 0.0),
    "false twice as often": (lambda entry, distance, when: 0.04, 0.0),
    "mostly false": (lambda entry, distance, when: 0.7, 0.0),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_bound_is_kept_in_worlds_whose_truth_is_known(name):
    world, least = WORLDS[name]
    given = false = 0
    for seed in range(4):
        some, wrong, _ = simulated(world, 0.02, seed)
        given, false = given + some, false + wrong
    assert false <= 0.02 * given
    assert given >= least * 4 * ASKED


def test_it_closes_where_answers_turn_false_and_says_so():
    _, _, bound = simulated(WORLDS["it turns false halfway"][0], 0.02, 7)
    stats = bound.stats()
    assert not stats.open
    assert stats.given > 0
    assert 0 < stats.wrong <= stats.sampled
    low, high = stats.ci95
    assert low < stats.false_rate < high


def test_the_stated_interval_holds_the_true_share_of_a_steady_world():
    given, false, bound = simulated(WORLDS["nearly always right"][0], 0.02, 3, 12_000)
    low, high = bound.stats().ci95
    assert low <= false / given <= high <= 0.02


def test_an_entry_is_trusted_by_its_own_record():
    bound, fresh, good, bad = ErrorBound(0.02), new_entry(), new_entry(), new_entry()
    good.extend([(0.1, True)] * 6)
    bad.extend([(0.1, True)] * 5 + [(0.1, False)])
    assert bound.risk(good, 0.1) < bound.risk(bad, 0.1)
    assert bound.risk(good, 0.1) < bound.risk(fresh, 0.1)
    assert bound.risk(good, 0.1) < bound.risk(good, 0.4)  # it was not confirmed that far away
    assert bound.risk(bad, 0.4) > bound.risk(bad, 0.001)  # a contradiction counts least far inside it


def test_nothing_is_given_before_the_evidence_that_the_bound_asks_for():
    bound, entry = ErrorBound(0.02, chance=random.Random(0)), new_entry()
    count = 0
    while not bound.cut:
        assert not bound.serves(entry, 0.01)
        bound.learn(entry, 0.01, right=True)
        count += 1
    assert count > np.log(len(CUTS) / 0.05) / np.log(1.02)


def test_what_was_seen_of_equal_vectors_counts():
    confirmed, contradicted = new_entry(), new_entry()
    bound = ErrorBound(0.4, sample=1.0)
    for _ in range(40):
        bound.learn(confirmed, 0.0, right=True)
    assert bound.cut >= bound.risk(confirmed, 0.0) < 0.06
    contradicted.extend([(0.0, False)] * 3)
    assert bound.risk(contradicted, 0.0) > 0.5


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0), (20, 1000, 0.0123, 0.0307)],
)
def test_the_interval_holds_the_exact_one_and_is_little_wider(count, n, low, high):
    least, most = interval(count, n)
    assert low - 0.005 <= least <= low + 1e-4
    assert high - 1e-4 <= most <= high + 0.005


@pytest.mark.parametrize("options", [{"error": 0}, {"error": 0.6}, {"error": 0.02, "sample": 0}])
def test_settings_that_promise_nothing_are_refused(options):
    with pytest.raises(ValueError, match="error must be above 0"):
        Semantic(lambda item: item, **options)


def test_a_threshold_or_an_error_must_be_given():
    with pytest.raises(ValueError, match="takes a threshold, or the error"):
        Semantic(lambda item: item)


def words(text):
    """Each word's own direction of 128, long ones count more: near where the topic is, whatever the number."""
    found = np.zeros(128)
    for word in text.lower().strip("?.!").split():
        random_of_word = np.random.default_rng(sum(ord(letter) * 31**place for place, letter in enumerate(word)))
        found += max(0.3, len(word) - 3.0) * random_of_word.normal(size=128)
    return found


def test_2000_near_misses_keep_the_bound_where_a_fixed_threshold_of_the_same_hit_rate_does_not():
    stream, known = questions(2_000), {}

    def embed(text):
        if text not in known:
            known[text] = words(text)
        return known[text]

    assert sum(one.near for one in stream) == 2_000
    tier = Semantic(embed, error=0.02, chance=random.Random(0))
    bounded = play("bound", tier, stream)
    assert bounded.hits > 200
    assert bounded.false <= 0.02 * bounded.hits
    low, high = 1e-6, 0.5
    for _ in range(10):
        middle = (low * high) ** 0.5
        fixed = play("fixed", Semantic(embed, middle), stream)
        low, high = (middle, high) if fixed.hits < bounded.hits else (low, middle)
    assert 0.5 * bounded.hits <= fixed.hits <= 2 * bounded.hits
    assert fixed.false > 0.02 * fixed.hits


def test_it_closes_itself_where_every_near_question_is_another():
    stream = [one for one in questions(1_000, seed=2) if one.near]
    tier = Semantic(words, error=0.02, chance=random.Random(1))
    result, stats = play("bound", tier, stream), tier.bound()
    assert result.false <= 0.02 * max(result.hits, 1)
    assert (stats.open, stats.withheld > 500) == (False, True)


def test_pictures_are_bounded_by_the_same_code_and_the_cache_says_so():
    semantic = Semantic(lambda picture: picture.mean(axis=(0, 1)) - 100, error=0.05, chance=random.Random(0))
    cache, chance = Cache(semantic=semantic), np.random.default_rng(0)
    for _ in range(700):
        colour = chance.integers(0, 4)
        picture = np.full((4, 4, 3), ((250, 20, 20), (20, 250, 20), (20, 20, 250), (250, 250, 20))[colour], np.uint8)
        picture += chance.integers(0, 5, picture.shape).astype(np.uint8)
        look = cache.similar({"image": picture})
        if look.hit is None:
            cache.store_similar(look, {"scores": np.eye(4, dtype=np.float32)[colour]})
        else:
            assert look.hit.outputs["scores"].argmax() == colour
    stats = cache.stats().semantic
    assert stats.bound.open
    assert stats.bound.given == stats.hits > 100
    assert stats.entries == 4  # what confirms an entry adds none
    assert stats.worth.looking


def test_answers_of_an_applications_own_are_kept():
    asked, tier = [], Semantic(lambda text: np.array([1.0, len(text)]), 0.5)
    assert tier.answer("one", lambda text: asked.append(text) or "1") == ("1", False)
    assert tier.answer("two", lambda text: asked.append(text) or "2") == ("1", True)
    assert asked == ["one"]


def test_an_answer_of_plain_values_is_kept_as_it_is():
    tier = Semantic(lambda text: np.array([1.0, len(text)]), 0.5)
    assert tier.answer("one", lambda _: {"city": "Paris", "score": 0.9}) == ({"city": "Paris", "score": 0.9}, False)
    assert tier.answer("two", lambda _: None) == ({"city": "Paris", "score": 0.9}, True)
    learning = Semantic(lambda text: np.array([1.0, len(text)]), error=0.1)
    for _ in range(2):
        learning.answer("one", lambda _: {"city": "Paris", "places": [1, 2]})
    assert learning.entries == 1  # confirmed


def test_a_comparison_that_fails_is_a_contradiction():
    def fails(kept, computed):
        raise RuntimeError

    tier = Semantic(lambda item: np.array([1.0, 0.0]), error=0.1, same=fails)
    for _ in range(3):
        assert tier.answer("x", lambda _: "1") == ("1", False)
    assert tier.entries == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"y": np.float32([0.9, 0.1])}, {"y": np.float32([0.8, 0.2])}, True),
        ({"y": np.float32([0.9, 0.1])}, {"y": np.float32([0.4, 0.6])}, False),
        ({"y": np.float32([1, 0, 0])}, {"y": np.float32([1, 0.9, 0])}, False),
        ({"y": np.float32([np.nan, 1])}, {"y": np.float32([np.nan, 1])}, False),
        ({"y": np.array([3])}, {"y": np.array([3])}, True),
        ({"y": np.array(["a"])}, {"y": np.array(["b"])}, False),
        ("Paris", "Paris", True),
        ("Paris", "Berlin", False),
    ],
)
def test_what_counts_as_the_same_answer(one, other, same):
    assert same_answer(one, other) == same

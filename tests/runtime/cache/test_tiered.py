"""The one object the journey talks to: memory, then disk, then likeness, each as long as it pays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from edgekit_runtime.cache.disk import DiskCache
from edgekit_runtime.cache.memory_tier import MISS, MemoryCache
from edgekit_runtime.cache.similar import Semantic, Similar
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.cache.tiered import Cache

OUTPUTS = {"y": np.arange(4, dtype=np.float32)}


class Clock:
    """Stands still unless it is told otherwise; `step` passes at every look."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def key(number):
    return int(number).to_bytes(32, "big")


def memory():
    return MemoryCache(1 << 20)


@pytest.fixture
def disk(tmp_path):
    made = []

    def make():
        made.append(DiskCache(tmp_path / "answers.db", KeptForm(b"model")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_stored_answer_is_found_in_memory():
    cache = Cache(memory())
    assert cache.lookup(key(1)) is None
    cache.store(key(1), OUTPUTS, 5.0)
    hit = cache.lookup(key(1))
    assert (hit.tier, hit.outputs["y"].tolist()) == ("memory", [0, 1, 2, 3])


def test_what_a_caller_does_to_its_answer_changes_nobody_elses():
    cache = Cache(memory())
    cache.store(key(1), OUTPUTS, 5.0)
    cache.lookup(key(1)).outputs.clear()
    assert pickle.loads(pickle.dumps(cache.lookup(key(1)).outputs))["y"].tolist() == [0, 1, 2, 3]


def test_an_answer_that_is_none_is_a_hit():
    cache = Cache(memory())
    cache.store(key(1), None, 5.0)
    assert cache.lookup(key(1)).outputs is None


def test_what_memory_lost_the_disk_gives_once_and_memory_has_it_again(disk):
    first = Cache(memory(), disk=disk())
    first.store(key(1), OUTPUTS, 5.0)
    first.close()
    cache = Cache(memory(), disk=disk())
    assert [cache.lookup(key(1)).tier for _ in range(2)] == ["disk", "memory"]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.memory.hits, stats.disk.hits) == (2, 0, 1, 1)


def test_the_disk_alone_is_a_cache(disk):
    cache = Cache(disk=disk())
    cache.store(key(1), OUTPUTS, 5.0)
    assert [cache.lookup(key(1)).tier for _ in range(2)] == ["disk", "disk"]


def test_a_stale_answer_is_found_in_either_tier(tmp_path):
    now = 0.0
    cache = Cache(MemoryCache(1 << 20, ttl_s=1.0, clock=lambda: now))
    cache.store(key(1), OUTPUTS, 5.0)
    now = 2.0
    assert cache.lookup(key(1)) is None
    assert cache.stale(key(1)).tier == "memory"
    assert cache.stale(key(2)) is None


def test_an_answer_cheaper_than_a_read_is_not_written(disk):
    on_disk = disk()
    cache = Cache(memory(), disk=on_disk, clock=Clock(step=1e-4))
    cache.lookup(key(0))
    cache.store(key(1), OUTPUTS, cost_ms=0.01)
    cache.store(key(2), OUTPUTS, cost_ms=50.0)
    assert on_disk.sync()
    assert (on_disk.stale(key(1)) is not MISS, on_disk.stale(key(2)) is not MISS) == (False, True)


def test_while_the_disk_finds_nothing_only_what_is_asked_for_twice_is_written(disk):
    on_disk = disk()
    cache = Cache(memory(), disk=on_disk, clock=Clock(step=1e-4))
    for number in range(2000):
        cache.lookup(key(number))
        cache.store(key(number), OUTPUTS, cost_ms=1.0)
    assert not cache._disk_worth.stats().looking
    on_disk.sync()
    before = on_disk.stats().written
    cache.store(key(9998), OUTPUTS, cost_ms=1.0)
    cache.store(key(9999), OUTPUTS, cost_ms=1.0)
    cache.lookup(key(9999))
    on_disk.sync()
    assert on_disk.stats().written == before + 1
    assert on_disk.stale(key(9999)) is not MISS


def test_a_disk_slower_than_what_is_left_is_not_asked(disk):
    first = Cache(memory(), disk=disk())
    for number in (1, 2):
        first.store(key(number), OUTPUTS, 5.0)
    first.close()
    cache = Cache(memory(), disk=disk(), clock=Clock(step=0.02))
    assert cache.lookup(key(1)).tier == "disk"
    assert cache.lookup(key(2), left_s=0.01) is None
    assert cache.lookup(key(2), left_s=1.0).tier == "disk"


def test_without_hits_it_stops_looking_and_says_so():
    clock = Clock(step=2e-6)
    cache = Cache(memory(), clock=clock)
    looked = 0
    for number in range(5000):
        if cache.worth.pays(clock.now):
            looked += 1
            cache.lookup(key(number), hash_s=4e-6)
            cache.store(key(number), OUTPUTS, 0.012)
        else:
            cache.store(None, OUTPUTS, 0.012)
        clock.now += 12e-6
    stats = cache.stats()
    assert looked < 500
    assert stats.skipped == 5000 - looked
    assert stats.misses == looked


@pytest.mark.parametrize("pictures", [1000, 3000])
def test_what_is_asked_for_twice_is_computed_once_however_many_misses_lie_between(pictures):
    """A network of 5 ms, and a lookup, all of it included, of 45 us."""
    clock, computed = Clock(step=5e-6), 0
    cache = Cache(MemoryCache(64 << 20), clock=clock)
    for number in [*range(pictures), *range(pictures)]:
        made = key(number) if cache.worth.pays(clock.now) else None
        if made is None or cache.lookup(made, hash_s=35e-6) is None:
            computed += 1
            clock.now += 5e-3
            cache.store(made, OUTPUTS, 5.0)
    assert computed == pictures
    assert cache.stats().worth.stops == 0


class SlowDisk:
    """A disk that has nothing, takes long to say so, and as long to take an answer in."""

    tier = "disk"

    def __init__(self, clock):
        self._clock = clock

    def find(self, key):
        self._clock.now += 2e-3
        return MISS

    def put(self, key, outputs):
        self._clock.now += 2e-3


def test_a_slow_disk_never_ends_the_looking_in_memory():
    """300 pictures asked for twice, 16 ms each: those of the second time are all in memory."""
    clock, sources = Clock(step=1e-6), []
    cache = Cache(memory(), disk=SlowDisk(clock), clock=clock)
    for number in [*range(300), *range(300)]:
        made = key(number) if cache.worth.pays(clock.now) else None
        hit = cache.lookup(made, hash_s=15e-6) if made is not None else None
        sources.append(None if hit is None else hit.tier)
        if hit is None:
            clock.now += 16e-3
            cache.store(made, OUTPUTS, 16.0)
    assert sources == [None] * 300 + ["memory"] * 300
    assert not cache._disk_worth.stats().looking  # it was not worth it


def test_without_an_exact_tier_nothing_is_hashed():
    assert not Cache(similar=Similar(1.0)).exact


def test_a_picture_alike_is_answered_by_the_similar_tier():
    cache = Cache(memory(), similar=Similar(4.0))
    frame = np.full((32, 32, 3), 100, np.uint8)
    look = cache.similar({"image": frame})
    assert look.hit is None
    cache.store_similar(look, OUTPUTS)
    hit = cache.similar({"image": frame + 2}).hit
    assert hit.distance == 2
    assert hit.outputs["y"].tolist() == [0, 1, 2, 3]
    stats = cache.stats().similar
    assert (stats.hits, stats.misses, stats.mean_distance) == (1, 1, 2.0)
    assert cache.stats().semantic is None


def test_pictures_are_compared_before_meanings_and_both_are_kept():
    cache = Cache(similar=Similar(1.0), semantic=Semantic(lambda item: item.mean(axis=(0, 1)), 0.01))
    frame = np.full((32, 32, 3), (100, 50, 20), np.uint8)
    cache.store_similar(cache.similar({"image": frame}), OUTPUTS)
    assert cache.similar({"image": frame}).hit.distance == 0
    darker = cache.similar({"image": frame // 2}).hit  # another picture, the same direction
    assert darker.distance < 0.01
    stats = cache.stats()
    assert (stats.similar.hits, stats.similar.misses, stats.semantic.hits) == (1, 2, 1)


def test_two_models_with_one_semantic_share_no_answer():
    semantic = Semantic(lambda item: item.ravel(), 0.01)
    first, second = Cache(semantic=semantic), Cache(semantic=semantic)
    first.store_similar(first.similar({"x": np.ones(4)}), OUTPUTS)
    assert first.similar({"x": np.ones(4)}).hit is not None
    assert second.similar({"x": np.ones(4)}).hit is None
    assert (first.stats().semantic.entries, second.stats().semantic.entries) == (1, 0)


def test_without_a_tier_of_likeness_there_is_no_look():
    assert Cache(memory()).similar({"image": np.zeros((8, 8, 3), np.uint8)}) is None


def test_flush_forgets_in_every_tier(disk):
    on_disk = disk()
    cache = Cache(memory(), disk=on_disk, similar=Similar(4.0))
    frame = np.zeros((16, 16, 3), np.uint8)
    cache.store(key(1), OUTPUTS, 5.0)
    cache.store_similar(cache.similar({"image": frame}), OUTPUTS)
    cache.flush()
    assert cache.lookup(key(1)) is None
    assert cache.stale(key(1)) is None
    assert cache.similar({"image": frame}).hit is None
    on_disk.sync()
    assert on_disk.stats().entries == 0


def test_answers_go_on_when_the_disk_cannot_be_used(tmp_path):
    (tmp_path / "answers.db").mkdir()
    cache = Cache(memory(), disk=DiskCache(tmp_path / "answers.db", KeptForm(b"model")))
    cache.store(key(1), OUTPUTS, 5.0)
    assert cache.lookup(key(1)).tier == "memory"
    assert cache.lookup(key(2)) is None
    assert cache.stats().disk.trouble == "cannot-be-written"
    cache.close()

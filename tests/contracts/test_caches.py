"""What every tier of exact answers promises. A new tier joins by adding itself to `TIERS`."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from redis_server import RedisServer

from edgekit_runtime.cache.disk import DiskCache
from edgekit_runtime.cache.memory_tier import MISS, MemoryCache, Moment, entry_bytes
from edgekit_runtime.cache.stored_answers import KeptForm

BOUND = 1 << 20


class Clock:
    """Seconds, for both tiers."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def moment(self):
        return Moment(1.8e9 + self.now, self.now, boot=7)


class Written:
    """The disk tier, where every answer is on the disk before anybody asks for it."""

    def __init__(self, folder, max_bytes, clock, ttl_s):
        self.tier = DiskCache(
            folder / "answers.db", KeptForm(b"model"), max_bytes=max_bytes, ttl_s=ttl_s, now=clock.moment
        )

    def put(self, key, outputs):
        self.tier.put(key, outputs)
        assert self.tier.sync()

    def flush(self):
        self.tier.flush()
        assert self.tier.sync()

    def __getattr__(self, name):
        return getattr(self.tier, name)


class Shared(Written):
    """The tier in a server, waited for as long as it takes."""

    def __init__(self, url, max_bytes, clock, ttl_s):
        from edgekit_runtime.cache.shared import SharedCache

        self.tier = SharedCache(
            url, KeptForm(os.urandom(8)), max_bytes=max_bytes, ttl_s=ttl_s, wait_s=30, now=clock.moment, clock=clock
        )


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(params=["memory", "disk", "shared"])
def make(request, tmp_path):
    """A tier of the kind: make(max_bytes, clock, ttl_s)."""
    yield from _maker(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "disk"])
def make_own(request, tmp_path):
    """A tier that holds its entries itself, and so counts and evicts them."""
    yield from _maker(request.param, request, tmp_path)


def _maker(kind, request, tmp_path):
    made = []

    def make(max_bytes=BOUND, clock=None, ttl_s=None):
        clock = clock or Clock()
        if kind == "memory":
            return MemoryCache(max_bytes, ttl_s=ttl_s, clock=clock)
        if kind == "disk":
            made.append(Written(tmp_path, max_bytes, clock, ttl_s))
        else:
            made.append(Shared(request.getfixturevalue("redis_url"), max_bytes, clock, ttl_s))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def outputs(n_bytes: int, fill: int = 0):
    return {"y": np.full(n_bytes, fill, np.uint8)}


VALUES = {
    "no answer at all": None,
    "no outputs": {},
    "an empty array": {"boxes": np.zeros((0, 4), np.float32)},
    "NaN": {"y": np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)},
    "a scalar": {"y": np.array(3.5, np.float64)},
    "several of several dtypes": {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.array([True, False])},
    "big-endian": {"y": np.array([1.0, 2.0], ">f4")},
    "half precision": {"y": np.array([1.0, 2.0], np.float16)},
    "text": {"words": np.array(["cat", "éclair"])},
}
NO_ANSWERS = ("no answer at all", "NaN", "text")
"""What a tier that others may reach does not keep."""


@pytest.mark.parametrize("name", VALUES)
def test_gives_back_what_was_put_whatever_it_is(make, name):
    cache, value = make(), VALUES[name]
    cache.put(b"k", value)
    got = cache.get(b"k")
    if name in NO_ANSWERS and not isinstance(cache, MemoryCache):
        assert got is MISS
        return
    assert got is not MISS
    if value is None:
        assert got is None
        return
    assert list(got) == list(value)
    for output in value:
        np.testing.assert_array_equal(got[output], value[output])
        assert (got[output].dtype, got[output].shape) == (value[output].dtype, value[output].shape)


def test_what_is_absent_is_a_miss_and_no_value(make):
    assert make().get(b"absent") is MISS


def test_nobody_can_change_what_is_kept(make):
    cache, mine = make(), outputs(4, 1)
    cache.put(b"k", mine)
    mine["y"][0] = 99
    mine["z"] = np.zeros(1)
    got = cache.get(b"k")
    assert list(got) == ["y"]
    assert got["y"].tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        got["y"][0] = 99
    with pytest.raises(TypeError):
        got["z"] = np.zeros(1)


def test_an_answer_past_its_time_is_a_miss_but_can_still_be_had_as_stale(make):
    clock = Clock()
    cache = make(clock=clock, ttl_s=5.0)
    cache.put(b"k", outputs(1))
    clock.now = 4.999
    assert cache.get(b"k") is not MISS
    clock.now = 5.0
    assert cache.get(b"k") is MISS
    assert cache.stale(b"k") is not MISS
    assert cache.stale(b"absent") is MISS
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.expired) == (1, 1, 1)


def test_a_fresh_answer_takes_the_place_of_an_expired_one(make):
    clock = Clock()
    cache = make(clock=clock, ttl_s=5.0)
    cache.put(b"k", outputs(1, 1))
    clock.now = 6.0
    cache.put(b"k", outputs(1, 2))
    clock.now = 10.0
    assert cache.get(b"k")["y"].tolist() == [2]


def test_without_a_time_to_live_nothing_expires(make):
    clock = Clock()
    cache = make(clock=clock)
    cache.put(b"k", outputs(1))
    clock.now = 1e9
    assert cache.get(b"k") is not MISS


def test_a_value_larger_than_the_bound_is_not_kept_and_evicts_nothing(make):
    cache = make(BOUND)
    cache.put(b"small", outputs(10))
    cache.put(b"huge", outputs(2 * BOUND))
    assert cache.get(b"huge") is MISS
    assert cache.get(b"small") is not MISS


def test_a_newer_answer_replaces_the_older(make):
    cache = make()
    for fill in (1, 2, 3):
        cache.put(b"k", outputs(10, fill))
    assert cache.get(b"k")["y"][0] == 3


def test_what_was_used_longest_ago_makes_room(make_own):
    cache = make_own(BOUND)
    for number in range(120):
        cache.put(b"%d" % number, outputs(20_000, number))
        cache.get(b"0")
    assert cache.get(b"0") is not MISS
    assert cache.get(b"1") is MISS
    assert cache.get(b"119") is not MISS
    stats = cache.stats()
    assert stats.evicted > 0
    assert stats.bytes <= BOUND


def test_flush_forgets_everything_but_the_counters(make):
    cache = make()
    cache.put(b"k", outputs(10))
    cache.get(b"k")
    cache.flush()
    assert cache.get(b"k") is MISS
    assert cache.stats().hits == 1


def test_entries_are_counted(make_own):
    cache = make_own()
    for fill in (1, 2):
        cache.put(b"k", outputs(10, fill))
    assert cache.stats().entries == 1
    cache.flush()
    assert cache.stats().entries == 0


def test_a_negative_bound_is_the_callers_bug(make):
    with pytest.raises(ValueError, match="max_bytes must"):
        make(-1)


def test_many_threads_leave_the_count_right(make):
    cache = make()
    barrier = threading.Barrier(4)

    def work(seed):
        rng = np.random.default_rng(seed)
        barrier.wait()
        for key in rng.integers(0, 40, 60):
            name = int(key).to_bytes(2, "big")
            got = cache.get(name)
            if got is MISS:
                cache.put(name, outputs(64, int(key)))
            else:
                assert got["y"][0] == key

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stats = cache.stats()
    assert stats.hits + stats.misses == 240


OPERATIONS = st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 8), st.integers(0, 2000)), max_size=60)


@settings(max_examples=examples(150))
@given(OPERATIONS, st.integers(0, 8000))
def test_memory_behaves_like_an_lru_written_down_simply_and_never_exceeds_its_bytes(operations, bound):
    cache, model = MemoryCache(bound), OrderedDict()
    for operation, key, size in operations:
        if operation == "get":
            assert (cache.get(key) is MISS) == (key not in model)
            if key in model:
                model.move_to_end(key)
            continue
        cache.put(key, outputs(size))
        model.pop(key, None)
        cost = entry_bytes(outputs(size))
        if cost <= bound:
            model[key] = cost
            while sum(model.values()) > bound:
                model.popitem(last=False)
        assert cache.stats().bytes == sum(model.values()) <= bound
    assert cache.stats().entries == len(model)

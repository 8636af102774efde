"""What every cache tier promises. A new tier joins by adding itself to `TIERS`."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_runtime.cache import MISS, MemoryCache
from edgekit_runtime.cache.memory import ENTRY_BYTES

TIERS = {"memory": MemoryCache}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(params=sorted(TIERS))
def make(request):
    return TIERS[request.param]


def outputs(n_bytes: int, fill: int = 0):
    return {"y": np.full(n_bytes, fill, np.uint8)}


def test_a_miss_is_not_a_value(make):
    cache = make(10_000)
    assert cache.get("absent") is MISS
    cache.put("none", None)
    assert cache.get("none") is None


def test_gives_back_what_was_put(make):
    cache = make(10_000)
    cache.put("k", outputs(10, 7))
    np.testing.assert_array_equal(cache.get("k")["y"], outputs(10, 7)["y"])


def test_evicts_the_least_recently_used_not_the_oldest_inserted(make):
    cache = make(2 * (100 + ENTRY_BYTES))
    cache.put("a", outputs(100))
    cache.put("b", outputs(100))
    cache.get("a")
    cache.put("c", outputs(100))
    assert cache.get("b") is MISS
    assert cache.get("a") is not MISS
    assert cache.get("c") is not MISS


def test_an_entry_expires_after_its_time_to_live(make):
    clock = Clock()
    cache = make(10_000, ttl_s=5.0, clock=clock)
    cache.put("k", outputs(1))
    clock.now = 4.999
    assert cache.get("k") is not MISS
    clock.now = 5.0
    assert cache.get("k") is MISS
    assert cache.stats().expired == 1
    assert cache.stats().entries == 0


def test_a_value_larger_than_the_bound_is_not_kept_and_evicts_nothing(make):
    cache = make(2000)
    cache.put("small", outputs(10))
    cache.put("huge", outputs(5000))
    assert cache.get("huge") is MISS
    assert cache.get("small") is not MISS


def test_replacing_a_value_counts_its_bytes_once(make):
    cache = make(10_000)
    for size in (100, 300, 50):
        cache.put("k", outputs(size))
    assert cache.stats().bytes == 50 + ENTRY_BYTES
    assert cache.stats().entries == 1


def test_flush_forgets_everything_but_the_counters(make):
    cache = make(10_000)
    cache.put("k", outputs(10))
    cache.get("k")
    cache.flush()
    assert cache.get("k") is MISS
    assert (cache.stats().bytes, cache.stats().entries, cache.stats().hits) == (0, 0, 1)


def test_a_negative_bound_is_the_callers_bug(make):
    with pytest.raises(ValueError, match="negative"):
        make(-1)


OPERATIONS = st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 8), st.integers(0, 2000)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 6000))
def test_behaves_like_an_lru_written_down_simply_and_never_exceeds_its_bytes(operations, bound):
    for make in TIERS.values():
        cache, model = make(bound), OrderedDict()
        for operation, key, size in operations:
            if operation == "get":
                assert (cache.get(key) is MISS) == (key not in model)
                if key in model:
                    model.move_to_end(key)
                continue
            cache.put(key, outputs(size))
            model.pop(key, None)
            if size + ENTRY_BYTES <= bound:
                model[key] = size + ENTRY_BYTES
                while sum(model.values()) > bound:
                    model.popitem(last=False)
            assert cache.stats().bytes == sum(model.values()) <= bound
        assert cache.stats().entries == len(model)


def test_many_threads_leave_the_count_right(make):
    cache = make(50 * (64 + ENTRY_BYTES))
    barrier = threading.Barrier(4)

    def work(seed):
        rng = np.random.default_rng(seed)
        barrier.wait()
        for key in rng.integers(0, 200, 500):
            if cache.get(int(key)) is MISS:
                cache.put(int(key), outputs(64))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stats = cache.stats()
    assert stats.hits + stats.misses == 2000
    assert stats.bytes == stats.entries * (64 + ENTRY_BYTES) <= 50 * (64 + ENTRY_BYTES)

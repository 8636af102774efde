"""The memory tier's own promises, beside those of every tier: its bytes are true, and it pins nothing."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgekit_runtime.cache.memory_tier import MISS, MemoryCache, entry_bytes, freeze

SHAPES = {
    "ten classes": [(10,)],
    "a thousand classes": [(1000,)],
    "boxes": [(100, 4), (100,), (100,)],
    "a mask": [(64, 64)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_bytes_that_are_counted_are_the_bytes_that_are_spent(name):
    cache = MemoryCache(1 << 40, ttl_s=60.0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2000):
            arrays = {f"o{i}": np.zeros(shape, np.float32) for i, shape in enumerate(SHAPES[name])}
            cache.put(number.to_bytes(32, "big"), arrays)
        spent = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = cache.stats().bytes
    assert spent <= counted, "a bound that is overrun is no bound"
    assert spent >= 0.75 * counted, "and one far too careful wastes the board's memory; Pythons differ by a few percent"


def test_a_row_of_a_batch_does_not_keep_the_batch():
    batch = np.zeros((32, 1000), np.float32)
    row = batch[3]
    row.flags.writeable = False
    held = freeze({"y": row})["y"]
    assert held.base is None
    assert entry_bytes({"y": held}) < 5000


def test_what_is_read_only_and_its_own_is_not_copied():
    array = np.zeros(1000, np.float32)
    array.flags.writeable = False
    outputs = freeze({"y": array})
    assert outputs["y"] is array
    assert freeze(outputs) is outputs


def test_evicts_the_least_recently_used_not_the_oldest_inserted():
    cache = MemoryCache(2 * entry_bytes({"y": np.zeros(100, np.uint8)}))
    cache.put("a", {"y": np.zeros(100, np.uint8)})
    cache.put("b", {"y": np.zeros(100, np.uint8)})
    cache.get("a")
    cache.put("c", {"y": np.zeros(100, np.uint8)})
    assert cache.get("b") is MISS
    assert cache.get("a") is not MISS
    assert cache.get("c") is not MISS


def test_replacing_a_value_counts_its_bytes_once():
    cache = MemoryCache(10_000)
    for size in (100, 300, 50):
        cache.put("k", {"y": np.zeros(size, np.uint8)})
    assert cache.stats().bytes == entry_bytes({"y": np.zeros(50, np.uint8)})


def test_a_smaller_bound_takes_effect_at_once():
    cache = MemoryCache(1 << 20)
    for number in range(50):
        cache.put(number, {"y": np.zeros(1000, np.uint8)})
    cache.resize(10_000)
    assert cache.stats().bytes <= 10_000
    assert cache.get(49) is not MISS


def test_an_answer_that_is_old_already_expires_the_sooner():
    now = 0.0
    cache = MemoryCache(10_000, ttl_s=10.0, clock=lambda: now)
    cache.put("k", {}, age_s=7.0)
    now = 2.9
    assert cache.get("k") is not MISS
    now = 3.0
    assert cache.get("k") is MISS

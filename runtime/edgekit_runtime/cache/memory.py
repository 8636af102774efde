"""The exact tier: a least-recently-used map in memory, bounded in bytes.

    cache = MemoryCache(max_bytes=64 << 20, ttl_s=None)
    cache.put(key, outputs)
    hit = cache.get(key)            # MISS, or the outputs

Rules:
- every operation is O(1); what was used longest ago goes first, whatever its size;
- the bound is on bytes of values plus a fixed cost an entry; a value larger than the whole bound is not kept;
- an entry older than `ttl_s` is a miss and is dropped; the clock is monotonic and injected;
- a miss is the object MISS, so that any value, None too, can be cached;
- arrays are kept as they are and must be read-only.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

__all__ = ["ENTRY_BYTES", "MISS", "CacheStats", "MemoryCache", "Miss"]

ENTRY_BYTES = 512
"""What an entry costs beside its arrays: the key, the dict, the array objects."""

Outputs = Mapping[str, NDArray[Any]]


class Miss:
    """The type of MISS."""

    def __repr__(self) -> str:
        return "MISS"


MISS: Final = Miss()


@dataclass(frozen=True)
class CacheStats:
    """Counted since the cache was made; `flush` resets entries and bytes only."""

    hits: int
    misses: int
    entries: int
    bytes: int
    evicted: int
    expired: int


class MemoryCache:
    """Thread-safe."""

    def __init__(
        self, max_bytes: int, *, ttl_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Outputs, int, float]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evicted = self._expired = 0

    def get(self, key: Hashable) -> Outputs | Miss:
        """The outputs stored under `key`, now the most recently used; MISS when there are none or they expired."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return MISS
            if self._ttl_s is not None and self._clock() - entry[2] >= self._ttl_s:
                self._drop(key)
                self._expired += 1
                self._misses += 1
                return MISS
            self._entries.move_to_end(key)
            self._hits += 1
            return entry[0]

    def put(self, key: Hashable, outputs: Outputs) -> None:
        """Store; replaces what was there."""
        size = ENTRY_BYTES + sum(array.nbytes for array in outputs.values()) if outputs is not None else ENTRY_BYTES
        with self._lock:
            if key in self._entries:
                self._drop(key)
            if size > self._max_bytes:
                return
            self._entries[key] = (outputs, size, self._clock() if self._ttl_s is not None else 0.0)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))
                self._evicted += 1

    def flush(self) -> None:
        """Forget every entry."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._entries), self._bytes, self._evicted, self._expired)

    def _drop(self, key: Hashable) -> None:
        self._bytes -= self._entries.pop(key)[1]

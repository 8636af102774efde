"""The exact tier, a least-recently-used map in memory; and the age of every tier's entries.

    cache = MemoryCache(max_bytes=64 << 20, ttl_s=None)
    cache.put(key, outputs)
    hit = cache.get(key)            # MISS, or the outputs
    age_s(moment(), moment())       # seconds, or None if unknown

Rules:
- every operation is O(1); the least recently used goes first, whatever its size;
- the bound counts bytes as the interpreter spends them. A value larger than the whole bound is not kept;
- an entry older than `ttl_s` is a miss; `stale` finds it until its bytes are needed;
- a miss is the object MISS, so that any value, None too, can be cached;
- kept arrays are read-only, and pin nothing but themselves: a view into something larger is copied;
- boards' clocks start in 1970, jump and sleep: within one boot age is the time since boot, sleep included; across boots
  the wall clock's, if both times are plausible and it is not negative. An unknown age counts as too old.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.system.records import record

PLAUSIBLE_S = 1_704_067_200.0
"""2024-01-01: an earlier wall clock has not been set since power came on."""
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


@record(frozen=True)
class Moment:
    """wall_s: Unix time.
    up_s: `elapsed_s()`.
    boot: a number for this boot of this machine, 0 if unknown.
    """

    wall_s: float
    up_s: float
    boot: int


def elapsed_s() -> float:
    """Seconds from a fixed point of this boot. Unlike `time.monotonic`, counts sleep on Linux."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def moment() -> Moment:
    return Moment(time.time(), elapsed_s(), _boot())


def age_s(born: Moment, now: Moment) -> float | None:
    """Seconds from `born` to `now`, or None if neither clock can say."""
    if born.boot == now.boot != 0 and now.up_s >= born.up_s:
        return now.up_s - born.up_s
    if min(born.wall_s, now.wall_s) < PLAUSIBLE_S or now.wall_s < born.wall_s:
        return None
    return now.wall_s - born.wall_s


@cache
def _boot() -> int:
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return int(name.replace("-", "")[:15], 16)  # 60 bits: SQLite's integers are signed
    except (OSError, ValueError):
        return 0


_ENTRY_BYTES = 560
"""Key, map, clock reading and their share of the table; tests compare it with the interpreter."""
_ARRAY_BYTES = 176
_SLACK_BYTES = 128
"""How much larger than an array its block may be before it is copied out."""

Outputs = Mapping[str, NDArray[Any]]


class Miss:
    """The type of MISS."""

    def __repr__(self) -> str:
        return "MISS"


MISS: Final = Miss()


@record(frozen=True)
class MemoryStats:
    """Counted since the cache was made; `flush` resets entries and bytes only.

    expired: lookups that found only a stale entry.
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evicted: int
    expired: int


def freeze(outputs: Any) -> Any:
    """Read-only outputs that share no memory with the caller."""
    same = type(outputs) is MappingProxyType
    if not same and not isinstance(outputs, (dict, Mapping)):
        return outputs
    own = {}
    for name, value in outputs.items():
        if _owns_memory(value):
            own[name] = value
        else:
            own[name], same = np.array(value), False
            own[name].flags.writeable = False
    return outputs if same else MappingProxyType(own)


def entry_bytes(outputs: Any) -> int:
    """Total memory cost of keeping `outputs`, in bytes."""
    size = _ENTRY_BYTES
    if isinstance(outputs, (dict, MappingProxyType, Mapping)):  # the quick tests first
        for array in outputs.values():
            size += _ARRAY_BYTES + int(array.nbytes)
    return size


def _owns_memory(value: NDArray[Any]) -> bool:
    if value.flags.writeable:
        return False
    base = value.base
    if base is None:
        return True
    if isinstance(base, (np.ndarray, memoryview)):
        return base.nbytes <= value.nbytes + _SLACK_BYTES
    return isinstance(base, bytes) and len(base) <= value.nbytes + _SLACK_BYTES


class MemoryCache:
    """Thread-safe."""

    def __init__(self, max_bytes: int, *, ttl_s: float | None = None, clock: Callable[[], float] = elapsed_s) -> None:
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Any, int, float]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evicted = self._expired = 0

    def get(self, key: Hashable) -> Any | Miss:
        """The outputs stored under `key`, or MISS; marks them as most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return MISS
            if self._ttl_s is not None and self._clock() - entry[2] >= self._ttl_s:
                self._expired += 1
                self._misses += 1
                return MISS
            self._entries.move_to_end(key)
            self._hits += 1
            return entry[0]

    def stale(self, key: Hashable) -> Any | Miss:
        """The outputs stored under `key` whatever their age. Counts neither hit nor miss."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return MISS
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, outputs: Any, *, age_s: float = 0.0) -> None:
        """Store, replacing an entry. age_s: of the answer already."""
        outputs = freeze(outputs)
        size = entry_bytes(outputs)
        with self._lock:
            if key in self._entries:
                self._bytes -= self._entries.pop(key)[1]
            if size > self._max_bytes:
                return
            self._entries[key] = (outputs, size, self._clock() - age_s if self._ttl_s is not None else 0.0)
            self._bytes += size
            if self._bytes > self._max_bytes:
                self._make_room()

    def resize(self, max_bytes: int) -> None:
        """Change the bound, evicting immediately."""
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        with self._lock:
            self._max_bytes = max_bytes
            self._make_room()

    def flush(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def stats(self) -> MemoryStats:
        with self._lock:
            return MemoryStats(self._hits, self._misses, len(self._entries), self._bytes, self._evicted, self._expired)

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes:
            self._bytes -= self._entries.popitem(last=False)[1][1]
            self._evicted += 1

"""The cache of a request's journey: exact answers in memory and on disk, and similar ones.

    cache = Cache(MemoryCache(64 << 20), disk=DiskCache("answers.db", form), similar=Similar(4.0))
    if cache.worth.pays(request.start):
        key, named = identify(named, namespace)
        hit = cache.lookup(key, hash_s=perf_counter() - request.start)         # Hit or None
    ...decode...
    look = cache.similar(items)                             # None, or a Look; look.hit: SimilarHit or None
    ...infer...
    cache.store(key, outputs, cost_ms)
    if look is not None: cache.store_similar(look, outputs)

Rules:
- memory before disk; what the disk had is kept in memory, with its age;
- each tier is asked only as long as that pays for its own time, see `Worth`; `worth` says so before any hashing;
- an answer that is faster to compute than to read is not written to disk, and while nothing is found there only what
  was requested twice is: a camera whose pictures never repeat wears no card;
- a lookup never takes longer than what is left to answer: a disk that was slower lately is not asked.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from numpy.typing import NDArray

from edgekit_runtime.cache.bounded import BoundStats
from edgekit_runtime.cache.disk import DiskCache, DiskStats
from edgekit_runtime.cache.memory_tier import MISS, MemoryCache, MemoryStats, Miss, freeze
from edgekit_runtime.cache.similar import Semantic, Similar, SimilarHit
from edgekit_runtime.system.records import record, replace

if TYPE_CHECKING:
    from edgekit_runtime.cache.shared import SharedCache, SharedStats

CHEAP = 0.01
"""Below this share of what a hit saves, a lookup is always made."""
_LEAST_LOOKS = 32
_LOOKING_SHARE, _MOST_PAUSE_S = 0.005, 5.0
_EVERY = 16
_FADE = 0.1
Outputs = Mapping[str, NDArray[Any]]
Tier = Literal["memory", "disk", "shared"]
_SAMPLE = 8  # one lookup in so many is timed and counted for all; a count that threads race for is near enough
_SLOWEST_FADES = 0.98
_MOST_ONCE = 4096
_hit = tuple.__new__  # half of what the named tuple's own constructor takes


class Hit(NamedTuple):
    """outputs: the stored read-only arrays, in a dict of the caller's own."""

    outputs: Any
    tier: Tier


@record(frozen=True)
class Look:
    """The comparison of a request with earlier ones.

    hit: the answer, if one was near enough.
    marks: for `store_similar`.
    """

    hit: SimilarHit | None
    marks: tuple[tuple[Any, Any], ...]


@record(frozen=True)
class SimilarStats:
    """mean_distance: of the hits; None before the first.
    bound: of a semantic tier with an `error`.
    """

    hits: int
    misses: int
    mean_distance: float | None
    entries: int
    worth: WorthStats
    bound: BoundStats | None = None


@record(frozen=True)
class CacheStats:
    """hits: exact ones, from any tier.
    misses: exact lookups that found nothing.
    entries, bytes, evicted: of the memory tier.
    expired: lookups that found only a stale answer.
    skipped: requests not looked up because it did not pay.
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evicted: int
    expired: int
    skipped: int
    worth: WorthStats
    memory: MemoryStats
    disk: DiskStats | None
    shared: SharedStats | None
    similar: SimilarStats | None
    semantic: SimilarStats | None


class Cache:
    """Thread-safe. Every tier may be missing.

    disk: the tier behind memory, a local file or a shared server.
    clock: monotonic seconds, the journey's own.
    """

    def __init__(
        self,
        memory: MemoryCache | None = None,
        *,
        disk: DiskCache | SharedCache | None = None,
        similar: Similar | None = None,
        semantic: Semantic | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._memory = memory if memory is not None else MemoryCache(0)
        self._disk = disk
        self._behind: Tier = "disk" if disk is None else disk.tier
        alike = {"similar": similar, "semantic": semantic.fresh() if semantic is not None else None}
        self._alike = {name: _Alike(tier, clock) for name, tier in alike.items() if tier is not None}
        self._clock = clock
        self.worth = Worth()
        self._disk_worth = Worth(cheap=0.0)  # while it looks, every answer is written: that wears the card
        self.exact, self.compares = memory is not None or disk is not None, bool(self._alike)
        self._store_s = 0.0
        self._slowest_s = 0.0
        self._lookups = self._found = self._unkept = 0
        self._once: dict[bytes, None] = {}  # in memory, asked for once, and not written to disk

    def lookup(self, key: bytes, *, hash_s: float | None = 0.0, left_s: float = math.inf) -> Hit | None:
        """The exact answer, if present and fresh.

        hash_s: time to make the key; None for one more key of a request that missed.
        left_s: until the answer is due.
        """
        sampled = False
        if hash_s is not None:
            self._lookups += 1
            sampled = self._lookups % _SAMPLE == 0
        start = self._clock() if sampled else 0.0
        outputs, hit = self._memory.get(key), None
        now = self._clock() if sampled else 0.0  # what the tier behind takes is its own, see `_read`
        if outputs is not MISS:
            if self._once and self._once.pop(key, MISS) is not MISS and self._disk is not None:
                self._disk.put(key, outputs)
            own = outputs.copy() if type(outputs) is MappingProxyType else outputs
            hit = _hit(Hit, (own, "memory"))
        elif self._disk is not None:
            hit = self._read(self._disk, key, left_s)
        if hit is not None:
            self._found += 1
        if hash_s is not None and sampled:
            found, self._found = self._found, 0  # timed for the others too, and their hits with it
            self.worth.costs(hash_s + now - start + (self._store_s if hit is None else 0.0))
            self.worth.record_lookups(min(found, _SAMPLE), now, _SAMPLE)
        return hit

    def stale(self, key: bytes) -> Hit | None:
        """The exact answer whatever its age."""
        outputs = self._memory.stale(key)
        if outputs is not MISS:
            return Hit(_own(outputs), "memory")
        found = self._disk.stale(key) if self._disk is not None else MISS
        return None if isinstance(found, Miss) else Hit(_own(found.outputs), self._behind)

    def store(self, key: bytes | None, outputs: Outputs, cost_ms: float) -> None:
        """Keep an answer.

        cost_ms: time to compute it.
        key: None for a request that was not looked up.
        """
        if key is None:
            self._unkept += 1
            if self._unkept % _SAMPLE == 0:
                self._saves(cost_ms / 1e3)
            return
        cost_s = cost_ms / 1e3
        self._saves(cost_s)
        start = self._clock()
        held = freeze(outputs)
        self._memory.put(key, held)
        self._store_s += 0.1 * (self._clock() - start - self._store_s)
        if self._disk is not None:
            self._disk_worth.record_saving(cost_s)
            worth = self._disk_worth.stats()
            if worth.lookup_us is None or cost_s * 1e6 > worth.lookup_us:
                if worth.looking:
                    self._disk.put(key, held)
                elif len(self._once) < _MOST_ONCE:
                    self._once[key] = None
                else:
                    self._once.clear()

    def similar(self, items: Mapping[str, Any]) -> Look | None:
        """Compare decoded inputs with earlier ones. None if no tier is on or worth asking now."""
        if not self._alike:
            return None
        marks = []
        for alike in self._alike.values():
            mark, hit = alike.look(items)
            if hit is not None:
                return Look(replace(hit, outputs=_own(hit.outputs)), ())
            if mark is not None:
                marks.append((alike.tier, mark))
        return Look(None, tuple(marks)) if marks else None

    def store_similar(self, look: Look, outputs: Outputs) -> None:
        """Keep a real inference's outputs for the request of `look`."""
        for tier, mark in look.marks:
            tier.remember(mark, outputs)

    def resize(self, max_bytes: int) -> None:
        """Change the memory tier's bound."""
        self._memory.resize(max_bytes)

    def flush(self) -> None:
        """Forget every answer of this model, on disk too."""
        self._memory.flush()
        self._once.clear()
        if self._disk is not None:
            self._disk.flush()
        for alike in self._alike.values():
            alike.tier.flush()

    def stats(self) -> CacheStats:
        memory, worth = self._memory.stats(), self.worth.stats()
        disk = self._disk.stats() if self._disk is not None else None
        alike = {name: tier.stats() for name, tier in self._alike.items()}
        from_disk = disk.hits if disk is not None else 0
        return CacheStats(
            memory.hits + from_disk,
            memory.misses - from_disk,
            memory.entries,
            memory.bytes,
            memory.evicted,
            memory.expired,
            worth.skipped,
            worth,
            memory,
            cast("DiskStats", disk) if self._behind == "disk" else None,
            cast("SharedStats", disk) if self._behind == "shared" else None,
            alike.get("similar"),
            alike.get("semantic"),
        )

    def bound(self) -> BoundStats | None:
        """Of a semantic tier with an `error`."""
        semantic = self._alike.get("semantic")
        return semantic.tier.bound() if semantic is not None else None

    def close(self, timeout_s: float = 5.0) -> None:
        """Write pending answers within timeout_s, and close the tier behind memory."""
        if self._disk is not None:
            self._disk.close(timeout_s)

    def _read(self, disk: DiskCache | SharedCache, key: bytes, left_s: float) -> Hit | None:
        """Move the disk's answer to memory, unless reading is expected to take too long."""
        start = self._clock()
        if self._slowest_s > left_s:
            self._slowest_s *= _SLOWEST_FADES
            return None
        if not self._disk_worth.pays(start):
            return None
        found = disk.find(key)
        took_s = self._disk_worth.record_lookup(not isinstance(found, Miss), start, self._clock())
        self._slowest_s = max(_SLOWEST_FADES * self._slowest_s, took_s)
        if isinstance(found, Miss):
            return None
        self._memory.put(key, found.outputs, age_s=found.age_s or 0.0)
        return Hit(_own(found.outputs), self._behind)

    def _saves(self, cost_s: float) -> None:
        self.worth.record_saving(cost_s)
        for alike in self._alike.values():
            alike.worth.record_saving(cost_s)


class _Alike:
    """A similarity tier with its own `Worth`."""

    def __init__(self, tier: Any, clock: Callable[[], float]) -> None:
        self.tier = tier
        self.worth = Worth()
        self._clock = clock
        self._lock = threading.Lock()
        self._hits = self._misses = 0
        self._distance = 0.0

    def look(self, items: Mapping[str, Any]) -> tuple[Any, SimilarHit | None]:
        """The request's mark (None if skipped or unsupported), and the hit."""
        start = self._clock()
        if not self.worth.pays(start):
            return None, None
        mark = self.tier.mark(items)
        hit = self.tier.find(mark) if mark is not None else None
        self.worth.record_lookup(hit is not None or getattr(self.tier, "learns", False), start, self._clock())
        with self._lock:
            if hit is None:
                self._misses += 1
            else:
                self._hits += 1
                self._distance += hit.distance
        return mark, hit

    def stats(self) -> SimilarStats:
        with self._lock:
            mean = self._distance / self._hits if self._hits else None
            bound = self.tier.bound() if isinstance(self.tier, Semantic) else None
            return SimilarStats(self._hits, self._misses, mean, self.tier.entries, self.worth.stats(), bound)


@record(frozen=True)
class WorthStats:
    """looking: whether lookups are made now.
    hit_rate: of the recent ones.
    lookup_us, saves_us: None until measured.
    """

    looking: bool
    hit_rate: float | None
    lookup_us: float | None
    saves_us: float | None
    skipped: int
    stops: int


class Worth:
    """Whether lookups pay off: a cache that never hits only costs time.

        if worth.pays(now_s):
            ...look up..., worth.costs(2e-6), worth.record_lookups(hit, now_s)
        worth.record_saving(0.003)                  # what an answer took that was not looked up

    Rules:
    - it looks as long as the highest hit rate that fits what was seen, times what a hit saves, covers a lookup: with no
      hit in n lookups a rate of 3 / n is still possible (95 %);
    - it never gives up while a lookup costs less than CHEAP of what a hit saves;
    - after giving up it looks again for a short while: first so that this takes 0.5 % of the time, then ever more
      rarely, at the latest after 5 s;
    - half of what was seen is forgotten whenever there is twice as much as a decision takes;
    - it has no clock: the caller passes times and costs.

    Thread-safe, and cheap enough for every request. cheap: see CHEAP; 0 if looking costs more than time.
    looking: `pays` says so at any time.
    """

    def __init__(self, *, cheap: float = CHEAP) -> None:
        self._cheap = cheap
        self._lock = threading.Lock()
        self.looking = True
        self._until = 0.0
        self._pause_s = 0.0
        self._looks = self._hits = self._due = self._skipped = self._stops = 0
        self._rate: float | None = None
        self._cost_s: float | None = None
        self._saves_s: float | None = None

    def pays(self, now_s: float) -> bool:
        """Whether to look up now. now_s: monotonic, the same clock for all calls."""
        if self.looking:
            return True
        if now_s < self._until:
            self._skipped += 1
            return False
        with self._lock:
            self._looks = self._hits = self._due = 0
            self.looking = True
        return True

    def record_lookups(self, hits: int, now_s: float, looks: int = 1) -> None:
        """Count lookups, one by one or several at once."""
        with self._lock:
            self._looks += looks
            self._hits += hits
            if self._looks >= max(_LEAST_LOOKS, self._due) and self.looking:
                self._due = self._looks + _EVERY
                self._decide(now_s)

    def record_lookup(self, hit: bool, start_s: float, end_s: float) -> float:
        """Count one lookup with its cost, which is returned."""
        self.costs(end_s - start_s)
        self.record_lookups(hit, end_s)
        return end_s - start_s

    def costs(self, lookup_s: float) -> None:
        """Seconds of one lookup with all that is done for it; a sample of them is enough.

        One outlier counts as at most twice the usual, so that it does not end the looking.
        """
        usual_s = self._cost_s
        self._cost_s = _faded(usual_s, lookup_s if usual_s is None else min(lookup_s, 2 * usual_s))

    def record_saving(self, compute_s: float) -> None:
        """Seconds of an answer without the cache, which a hit would save."""
        self._saves_s = _faded(self._saves_s, compute_s)

    def stats(self) -> WorthStats:
        with self._lock:
            rate = self._hits / self._looks if self._looks else self._rate
            return WorthStats(
                self.looking, rate, _micro(self._cost_s), _micro(self._saves_s), self._skipped, self._stops
            )

    def _decide(self, now_s: float) -> None:
        cost, saves, looks, hits = self._cost_s, self._saves_s, self._looks, self._hits
        if cost is None or saves is None:
            return
        possible = min(1.0, (hits + 2 * math.sqrt(hits) + 3) / looks)
        if max(possible, self._cheap) * saves < cost:
            self._rate = hits / looks
            self._pause_s = min(max(cost * looks / _LOOKING_SHARE, 2 * self._pause_s), _MOST_PAUSE_S)
            self._until = now_s + self._pause_s
            self.looking = False
            self._stops += 1
            return
        if hits * saves > cost * looks:
            self._pause_s = 0.0
        enough = max(8 * _LEAST_LOOKS, 6 * saves / max(cost, 1e-9))
        if looks >= 2 * enough:
            self._looks, self._hits, self._due = looks // 2, hits // 2, 0


def _faded(before: float | None, value: float) -> float:
    return value if before is None else before + _FADE * (value - before)


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _own(outputs: Any) -> Any:
    """A dict for the caller: a mappingproxy cannot be changed or pickled."""
    return outputs.copy() if type(outputs) is MappingProxyType else outputs

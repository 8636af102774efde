"""One memory budget for several models of a process; what does not fit is degraded.

    budget = MemoryBudget(300)
    faces = open_bundle("faces.ekb", limits=ModelLimits(memory=budget))
    voice = open_bundle("voice.ekb", limits=ModelLimits(memory=budget))      # gets what is left, or MemoryExceeded
    voice.describe()["degraded"]                    # ("no variant for batches of 8", "cache of 12 MB instead of 64 MB")

Rules:
- optional parts go first: variants for batches, the largest first; then the cache shrinks, and at last goes;
- caches share fairly what models leave, never more than each wants, and grow and shrink as models come and go;
- a model that does not fit without any cache is refused, and the error says what would fit;
- a model counts with its own need: as measured on this board, else estimated from its bytes; an isolated engine with
  all that its process has resident. A closed model gives back what it took;
- without a budget, enforced limits (cgroup, RLIMIT_AS) refuse, and free memory only degrades;
- running out of memory is reported as that, whatever failed.
"""

from __future__ import annotations

import errno
import numbers
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekit_runtime.system.board import proc_kilobytes
from edgekit_runtime.system.errors import EngineError, MemoryExceeded
from edgekit_runtime.system.records import field, record

LEAST_CACHE_MB = 1.0
"""A smaller cache is dropped."""
_MOST_MB = 1e12
_SIGNS = (
    *("can't start new thread", "cannot allocate memory", "can't allocate memory"),
    *("failed to map segment", "bad_alloc", "oom when"),
)
_SHARE = 0.9
"""Of a limit that the system enforces: reaching it ends the process."""


@record(frozen=True)
class Need:
    """What a model would like, in MB (1e6 bytes).

    batches_mb: variant for a batch size -> what it takes in addition."""

    model_mb: float
    batches_mb: Mapping[int, float] = field(default_factory=dict)
    cache_mb: float = 0.0

    @property
    def total_mb(self) -> float:
        return self.model_mb + sum(self.batches_mb.values()) + self.cache_mb


@record(frozen=True)
class Grant:
    """What it gets.

    batches: variants that may be loaded.
    degraded: what it goes without, in words."""

    batches: tuple[int, ...]
    cache_mb: float
    degraded: tuple[str, ...] = ()


def degrade(need: Need, left_mb: float) -> Grant | None:
    """The most of `need` that fits into left_mb; None if not even the model does."""
    if need.model_mb > left_mb:
        return None
    batches, lost = dict(sorted(need.batches_mb.items())), []
    while batches and need.model_mb + sum(batches.values()) + need.cache_mb > left_mb:
        size, _ = batches.popitem()
        lost.append(f"no variant for batches of {size}")
    cache = max(0.0, min(need.cache_mb, left_mb - need.model_mb - sum(batches.values())))
    if cache < need.cache_mb and cache < LEAST_CACHE_MB:
        cache = 0.0
    return Grant(tuple(batches), cache, (*lost, *_lost_cache(cache, need.cache_mb)))


def fair_shares(wanted_mb: Sequence[float], pool_mb: float) -> list[float]:
    """Divide the pool equally among caches: none gets more than it wants, or too little to use."""
    shares = [0.0] * len(wanted_mb)
    left = pool_mb
    for place, number in enumerate(sorted(range(len(wanted_mb)), key=lambda one: wanted_mb[one])):
        share = min(wanted_mb[number], left / (len(wanted_mb) - place))
        shares[number] = share if share >= min(LEAST_CACHE_MB, wanted_mb[number]) else 0.0
        left -= shares[number]
    return shares


def _lost_cache(cache_mb: float, wanted_mb: float) -> tuple[str, ...]:
    if cache_mb >= wanted_mb:
        return ()
    return (f"cache of {megabytes(cache_mb)} MB instead of {megabytes(wanted_mb)} MB" if cache_mb else "no cache",)


class MemoryBudget:
    """Memory that several models share. Thread-safe.
    It limits models, not the process: Python, NumPy, the engines' libraries and the application are not counted.

    total_mb: of all models opened with it, caches included, in MB (1e6 bytes)."""

    def __init__(self, total_mb: float) -> None:
        given: Any = total_mb
        if not isinstance(given, numbers.Real) or isinstance(given, bool) or not 0 < total_mb < _MOST_MB:
            raise ValueError(f"total_mb must be a number of MB, more than 0, not {given!r:.40}")
        self.total_mb = float(total_mb)
        self._claims: list[Claim] = []
        self._lock = threading.RLock()

    @property
    def left_mb(self) -> float:
        """MB that no model holds. A model may get more, because caches make room: see `room_mb`."""
        with self._lock:
            return self.total_mb - sum(claim.total_mb for claim in self._claims)

    @property
    def room_mb(self) -> float:
        """MB that another model may take without its cache: all but the open models."""
        with self._lock:
            return self._room()

    def claim(self, name: str, need: Need) -> Claim:
        """Take what `need` asks for, or the most of it that fits. Raises MemoryExceeded."""
        with self._lock:
            room = self._room()
            for_caches = max(0.0, room - need.model_mb)
            shares = fair_shares([need.cache_mb, *(claim.wanted_mb for claim in self._claims)], for_caches)
            grant = degrade(need, room - sum(shares[1:]))
            if grant is None or need.model_mb > room:
                raise _refusal(name, need, room, {claim.name: claim.loaded_mb for claim in self._claims})
            taken = need.model_mb + sum(need.batches_mb[size] for size in grant.batches)
            claim = Claim(name, grant, taken, self, wanted_mb=need.cache_mb)
            self._claims.append(claim)
            self._share()
            return claim

    def held(self) -> dict[str, float]:
        """Open model -> MB."""
        with self._lock:
            held: dict[str, float] = {}
            for claim in self._claims:
                held[claim.name] = held.get(claim.name, 0.0) + claim.total_mb
            return held

    def _room(self) -> float:
        return self.total_mb - sum(claim.loaded_mb for claim in self._claims)

    def _share(self) -> None:
        """Give each cache its share of what the models leave."""
        shares = fair_shares([claim.wanted_mb for claim in self._claims], max(0.0, self._room()))
        for claim, share in zip(self._claims, shares, strict=True):
            if share != claim.cache_mb:
                claim.cache_mb = share
                if claim._follow is not None:
                    claim._follow(share)

    def _settle(self, claim: Claim, loaded_mb: float) -> None:
        with self._lock:
            claim.loaded_mb = loaded_mb
            room = self._room()
            if room < 0:
                others = {one.name: one.loaded_mb for one in self._claims if one is not claim}
                raise _refusal(claim.name, Need(loaded_mb), room + loaded_mb, others)
            self._share()

    def _release(self, claim: Claim) -> None:
        with self._lock:
            if claim in self._claims:
                self._claims.remove(claim)
                self._share()


class Claim:
    """A model's share of a budget, or of none.

    loaded_mb: of the model and its variants.
    cache_mb: what its cache may take; in a shared budget it changes as models come and go (`follow`).
    wanted_mb: what the cache would take."""

    def __init__(
        self, name: str, grant: Grant, loaded_mb: float, budget: MemoryBudget | None, *, wanted_mb: float = 0.0
    ) -> None:
        self.name = name
        self.grant = grant
        self.loaded_mb = loaded_mb
        self.wanted_mb = wanted_mb
        self.cache_mb = grant.cache_mb
        self._budget = budget
        self._follow: Callable[[float], object] | None = None

    @property
    def shared(self) -> bool:
        """Whether the cache's part may change."""
        return self._budget is not None

    @property
    def total_mb(self) -> float:
        return self.loaded_mb + self.cache_mb

    @property
    def degraded(self) -> tuple[str, ...]:
        """What the model goes without now, in words."""
        if not self.shared:
            return self.grant.degraded
        lost = tuple(what for what in self.grant.degraded if "cache" not in what)
        return lost + _lost_cache(self.cache_mb, self.wanted_mb)

    def follow(self, resize: Callable[[float], object]) -> None:
        """Call `resize` with the cache's MB now and whenever that changes. It must not block."""
        self._follow = resize
        resize(self.cache_mb)

    def settle(self, loaded_mb: float | None) -> None:
        """Set what it really takes; None keeps the estimate. Raises MemoryExceeded."""
        if loaded_mb is None:
            return
        if self._budget is None:
            self.loaded_mb = loaded_mb
        else:
            self._budget._settle(self, loaded_mb)

    def release(self) -> None:
        """The model is closed. Idempotent."""
        self._follow = None
        if self._budget is not None:
            self._budget._release(self)


@record(frozen=True)
class Room:
    """What the system leaves this process, in MB; None if unknown.

    hard_mb: enforced.
    soft_mb: free at the moment."""

    hard_mb: float | None = None
    soft_mb: float | None = None

    def claim(self, name: str, need: Need) -> Claim:
        """As `MemoryBudget.claim`, for a model without a budget."""
        if self.hard_mb is not None and need.model_mb > self.hard_mb:
            raise _refusal(name, need, self.hard_mb, {})
        known = [mb for mb in (self.hard_mb, self.soft_mb) if mb is not None]
        left = max(min(known, default=need.total_mb), need.model_mb)
        grant = degrade(need, left)
        assert grant is not None
        taken = need.model_mb + sum(need.batches_mb[size] for size in grant.batches)
        return Claim(name, grant, taken, None)


def room_here(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Room:
    """Room left by the cgroup's limit, RLIMIT_AS and free memory.
    A limit that cannot be read counts as none."""
    hard = [mb for mb in (_cgroup_left(proc, cgroups), _address_space_left(proc)) if mb is not None]
    available = proc_kilobytes("MemAvailable", proc / "meminfo")
    return Room(min(hard) * _SHARE if hard else None, None if available is None else available * 1024 / 1e6)


@contextmanager
def scarce(where: object) -> Iterator[None]:
    """Raise MemoryExceeded for whatever a lack of memory broke.
    That may be an allocation, a library that cannot be mapped, or a thread."""
    try:
        yield
    except (MemoryError, OSError, ImportError, RuntimeError, EngineError) as error:
        if not lacks_memory(error):
            raise
        what = f"this process has no memory left to open it ({str(error) or type(error).__name__})"
        do = "Raise its limit (ulimit -v, the cgroup's), close another model, or build a smaller one"
        raise MemoryExceeded(what, where=str(where), do=do) from error


def lacks_memory(error: BaseException) -> bool:
    """True for what Python, the system and the engines raise if an allocation fails."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(sign in text for sign in _SIGNS)
    )


def _cgroup_left(proc: Path, cgroups: Path) -> float | None:
    """Versions 2 and 1. What the kernel can drop at once (inactive file pages) counts as free."""
    folders = [cgroups, cgroups / "memory"]
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "memory"):
            folders.insert(0, cgroups / controllers / path.lstrip("/"))
    for folder in folders:
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = (_number(folder / name) for name in names)
            if limit is None or used is None or limit > 1 << 50:  # version 1 says "none" with a huge number
                continue
            droppable = 0
            for line in _text(folder / "memory.stat").splitlines():
                if line.startswith(("inactive_file ", "total_inactive_file ")):
                    droppable = int(line.split()[1])
            return max(0, limit - used + droppable) / 1e6
    return None


def _address_space_left(proc: Path) -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = proc_kilobytes("VmSize", proc / "self" / "status")
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return max(0.0, (limit - used * 1024) / 1e6)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _refusal(name: str, need: Need, left_mb: float, held: Mapping[str, float]) -> MemoryExceeded:
    others = "; ".join(f"{other} holds {megabytes(mb)} MB" for other, mb in sorted(held.items()))
    left_mb = max(0.0, left_mb)
    return MemoryExceeded(
        f"it needs {megabytes(need.model_mb)} MB without cache and batches, and {megabytes(left_mb)} MB are left"
        + (f" ({others})" if others else ""),
        where=name,
        do=f"Allow {megabytes(need.model_mb - left_mb)} MB more, close another model, or build a smaller one",
    )


def megabytes(mb: float) -> str:
    """Whole megabytes; below ten, two significant digits, so that nothing small reads as 0."""
    return f"{mb:.0f}" if mb >= 9.95 or mb < 0.0005 else f"{mb:.2g}"

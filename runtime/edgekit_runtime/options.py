"""How a bundle is opened: the options of `open_bundle`, checked before anything is loaded.

Options(cache_mb=16, ttl_s=60)
budget_of("voice", None)      # 100.0

Rule: whatever is given, what comes of nonsense is one ValueError that names the option.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit_runtime.budget import PRESETS_MS
from edgekit_runtime.cache import Cache, MemoryCache
from edgekit_runtime.memory import MemoryBudget
from edgekit_runtime.watchdog import MOST_LIMIT_S

if TYPE_CHECKING:
    from edgekit_runtime.cache import Semantic
    from edgekit_runtime.tuning import Pin

__all__ = ["MAX_THREADS", "Options", "budget_of", "check_number", "check_path", "check_paths"]

MAX_THREADS = 256

_KINDS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("cache_mb", "ttl_s", "budget_ms", "disk_cache_mb", "similar", "hang_s"), numbers.Real, "a number"),
    (("threads", "queue_limit"), numbers.Integral, "a whole number"),
    (("batching", "isolate"), bool, "True or False"),
    (("engine", "delegate"), str, "a text"),
    (("memory",), MemoryBudget, "a MemoryBudget"),
)
_NEEDED = ("cache_mb", "disk_cache_mb", "queue_limit", "batching", "isolate")


@dataclass(frozen=True)
class Options:
    """cache_mb: 0 turns the cache off. ttl_s: how long an answer is good, None for ever. threads: None for the bundle's.

    budget_ms: of a request that names none itself, None for as long as it takes. batching: whether requests that wait
    may share an inference. queue_limit: how many may wait. disk_cache: file of the disk tier, None for none;
    disk_cache_mb: its bound. similar: largest difference of two pictures that get one answer, None for none.
    semantic: the embedding tier. delegate: a library that runs TFLite operators on other hardware. isolate: the engine
    in a process of its own. memory: what several models of this process share. hang_s: how long an inference may take
    before the engine counts as hung, None for what the watchdog finds from the slowest one. pin: `primary` for the bundle's
    primary artifact alone, None for whichever is the fastest here.
    """

    cache_mb: float = 64.0
    ttl_s: float | None = None
    threads: int | None = None
    engine: str | None = None
    budget_ms: float | None = None
    batching: bool = True
    queue_limit: int = 1024
    disk_cache: str | os.PathLike[str] | None = None
    disk_cache_mb: float = 256.0
    similar: float | None = None
    semantic: Semantic | None = None
    delegate: str | None = None
    isolate: bool = False
    memory: MemoryBudget | None = None
    hang_s: float | None = None
    pin: Pin | None = None

    def __post_init__(self) -> None:
        for names, kind, what in _KINDS:
            for name in names:
                value = getattr(self, name)
                if value is not None or name in _NEEDED:
                    _check_kind(name, value, kind, what)
        if self.disk_cache is not None:
            check_path("disk_cache", self.disk_cache)
        if self.semantic is not None and not hasattr(self.semantic, "anew"):
            raise ValueError(f"semantic must be a Semantic, not {self.semantic!r:.40}")
        if not 0 <= self.cache_mb < math.inf:
            raise ValueError(f"cache_mb must be 0 or more, not {self.cache_mb}")
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise ValueError(f"ttl_s must be more than 0, not {self.ttl_s}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {self.threads}")
        if self.budget_ms is not None and not self.budget_ms > 0:
            raise ValueError(f"budget_ms must be more than 0, not {self.budget_ms}")
        if self.pin not in (None, "primary"):
            raise ValueError(f"pin must be 'primary', not {self.pin!r:.40}")
        if self.queue_limit < 1:
            raise ValueError(f"queue_limit must be at least 1, not {self.queue_limit}")
        if self.hang_s is not None and not 0 < self.hang_s <= MOST_LIMIT_S:
            raise ValueError(f"hang_s must be more than 0 and at most {MOST_LIMIT_S:.0f} (a day), not {self.hang_s}")
        if not 1 <= self.disk_cache_mb < math.inf:
            raise ValueError(f"disk_cache_mb must be 1 or more, not {self.disk_cache_mb}")
        if self.similar is not None and not 0 <= self.similar < math.inf:
            raise ValueError(f"similar must be 0 or more, not {self.similar}")

    @property
    def cache_bytes(self) -> int:
        """What the memory tier would take."""
        return int(self.cache_mb * 2**20)

    def cache(self, namespace: bytes, max_bytes: int, *, elastic: bool = False) -> Cache | None:
        """The cache of one model, with the tiers that are wanted; None for none. max_bytes: what memory is left for it.

        elastic: that may change, so that a cache without room now is one all the same.
        """
        wanted = max_bytes > 0 or (elastic and self.cache_bytes > 0)
        memory = MemoryCache(max_bytes, ttl_s=self.ttl_s) if wanted else None
        disk = None
        if self.disk_cache is not None:
            size = int(self.disk_cache_mb * 2**20)
            from edgekit_runtime.cache import DiskCache

            disk = DiskCache(self.disk_cache, namespace, max_bytes=size, ttl_s=self.ttl_s)
        similar = None
        if self.similar is not None:
            from edgekit_runtime.cache import Similar

            similar = Similar(self.similar)
        if memory is None and disk is None and similar is None and self.semantic is None:
            return None
        return Cache(memory, disk=disk, similar=similar, semantic=self.semantic)


def budget_of(use: str | None, budget_ms: float | None) -> float | None:
    """The budget that a use stands for (`budget.PRESETS_MS`), unless one is given. Raises ValueError for no such use."""
    if use is not None and (not isinstance(use, str) or use not in PRESETS_MS):
        raise ValueError(f"use must be one of {', '.join(PRESETS_MS)}, not {use!r:.40}")
    return budget_ms if budget_ms is not None or use is None else PRESETS_MS[use]


def check_number(name: str, value: object) -> None:
    """Raises ValueError for what is no number, or one beyond all that a float holds."""
    _check_kind(name, value, numbers.Real, "a number")


def check_path(name: str, value: object) -> None:
    """Raises ValueError for what names no file."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise ValueError(f"{name} must be a path, not {value!r:.40}")  # noqa: TRY004 - as all options
    _check_text(name, os.fspath(value))
    if str(value) in ("", "."):  # Path("") too
        raise ValueError(f"{name} must be the path of a file, not {os.fspath(value)!r}")


def check_paths(name: str, value: object) -> None:
    """One path, or several. Raises ValueError."""
    if isinstance(value, (str, os.PathLike)):
        check_path(name, value)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        for one in value:
            check_path(name, one)
    else:
        raise ValueError(f"{name} must be a path or several, not {value!r:.40}")  # noqa: TRY004 - as all options


def _check_kind(name: str, value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{name} must be {what}, not {value!r:.40}")
    if isinstance(value, numbers.Real):
        try:
            float(value)
        except OverflowError:
            raise ValueError(f"{name} must be {what} that is not that large, not {value!r:.40}") from None
    if isinstance(value, str):
        _check_text(name, value)


def _check_text(name: str, value: str) -> None:
    if "\0" in value:
        raise ValueError(f"{name} must not hold a null character: {value!r:.40}")

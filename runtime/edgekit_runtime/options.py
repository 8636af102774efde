"""How a bundle is opened: the options of `open_bundle`, checked before anything is loaded.

Options(cache_mb=16, ttl_s=60)
budget_of("voice", None)      # 100.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgekit_runtime.budget import PRESETS_MS

__all__ = ["MAX_THREADS", "Options", "budget_of"]

MAX_THREADS = 256


@dataclass(frozen=True)
class Options:
    """cache_mb: 0 turns the cache off. ttl_s: how long an answer is good, None for ever. threads: None for the bundle's.

    budget_ms: of a request that names none itself, None for as long as it takes. batching: whether requests that wait
    may share an inference. queue_limit: how many may wait.
    """

    cache_mb: float = 64.0
    ttl_s: float | None = None
    threads: int | None = None
    engine: str | None = None
    budget_ms: float | None = None
    batching: bool = True
    queue_limit: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.cache_mb < math.inf:
            raise ValueError(f"cache_mb must be 0 or more, not {self.cache_mb}")
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise ValueError(f"ttl_s must be more than 0, not {self.ttl_s}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {self.threads}")
        if self.budget_ms is not None and not self.budget_ms > 0:
            raise ValueError(f"budget_ms must be more than 0, not {self.budget_ms}")
        if self.queue_limit < 1:
            raise ValueError(f"queue_limit must be at least 1, not {self.queue_limit}")


def budget_of(use: str | None, budget_ms: float | None) -> float | None:
    """The budget that a use stands for (`budget.PRESETS_MS`), unless one is given. Raises ValueError for no such use."""
    if use is not None and use not in PRESETS_MS:
        raise ValueError(f"use must be one of {', '.join(PRESETS_MS)}, not {use!r}")
    return budget_ms if budget_ms is not None or use is None else PRESETS_MS[use]

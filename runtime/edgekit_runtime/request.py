"""One request in flight: its options and its state.

request = Request(budget_ms=20)
request.left_ms()       # 19.99...
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgekit_runtime.cache.identity import Identity
    from edgekit_runtime.cache.tiered import Look
    from edgekit_runtime.contract.geometry import Geometry

Items = Mapping[str, NDArray[Any]]
"""Contract name -> canonical item, no batch axis."""
Tensors = list[NDArray[Any]]
"""What the engine takes or gives, in its own order, with a batch axis of 1."""
Outputs = Mapping[str, NDArray[Any]]
"""Contract name -> read-only array, no batch axis."""


@dataclass(slots=True)
class Request:
    """budget_ms: what the caller can wait, None for as long as it takes.
    priority: higher ones go first.

    stale_ok: an answer past its time is better than none. key: of the exact cache, once it is known. stale_key: the
    same of a request that was not looked up, to find an answer past its time by. leads: whether
    identical requests wait for this one; it must then land or crash their flight. look: what it was compared with.
    by_host: a host computed its answer, now or earlier.
    geometry: where the network's picture lies in the caller's, for a detector. timings: stage -> milliseconds. clipped:
    input values at the limits of the artifact's integers, how many were looked at, and a classifier's top score; None
    where this request is not looked at.
    """

    budget_ms: float | None = None
    priority: int = 0
    stale_ok: bool = False
    start: float = field(default_factory=perf_counter)
    key: Identity | None = None
    stale_key: Identity | None = None
    leads: bool = False
    look: Look | None = None
    geometry: Geometry | None = None
    by_host: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    clipped: tuple[int, int, float | None] | None = None

    @property
    def due(self) -> float:
        """When the answer must be there, on the clock of `time.perf_counter`.
        Infinite without a budget."""
        return math.inf if self.budget_ms is None else self.start + self.budget_ms / 1e3

    def left_ms(self) -> float:
        """What is left of the budget; infinite without one."""
        return math.inf if self.budget_ms is None else self.budget_ms - (perf_counter() - self.start) * 1e3


def checked_budget(budget_ms: float) -> float:
    """What a caller gave for one request.
    Raises ValueError for what is no number of milliseconds above 0."""
    if not isinstance(budget_ms, (float, int, np.floating, np.integer)) or budget_ms is True or not budget_ms > 0:
        raise ValueError(f"budget_ms must be a number of milliseconds above 0, not {budget_ms!r:.40}")
    try:
        return float(budget_ms)
    except OverflowError:
        return math.inf

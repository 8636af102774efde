"""What a fleet server keeps, whichever database keeps it.

Rules, which tests/contracts/test_stores.py asks of every store:
- `commit` is one transaction; what it returns may be acknowledged, because it is stored;
- (device, epoch, seq) is stored and counted once, however often it arrives;
- a mark moves without a gap; `floor` moves it over what the board gave up, and that is counted as lost;
- a refused window moves the mark like any other, or its board would send it for ever;
- pages read device rows and roll-ups, never raw windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgekit.fleet.state import State
from edgekit_runtime.telemetry import Window

__all__ = ["Arrival", "Change", "Device", "Event", "Mark", "Quarter", "Store", "Totals"]


@dataclass(frozen=True)
class Arrival:
    """A payload as it came in. window: None when it was refused, with the word in `refused`."""

    device: str
    epoch: str
    seq: int
    floor: int
    received_ms: int
    payload: bytes
    window: Window | None
    refused: str = ""


@dataclass(frozen=True)
class Change:
    """A birth or a death. retained: the broker kept it from before, so it says nothing about now."""

    device: str
    received_ms: int
    state: State
    retained: bool = False


@dataclass(frozen=True)
class Mark:
    """Everything of this epoch up to hwm is stored, or known to be lost."""

    device: str
    epoch: str
    hwm: int


@dataclass(frozen=True)
class Device:
    """One row of the fleet. Times are the host's, milliseconds since 1970.

    p50 to over: of the present quarter of an hour and the one before. rate: answers a second. recent: the last windows,
    oldest first, as [moment_ms, p50, p95, p99, rate, temp]. lost: windows that a board gave up. changed: grows with
    every commit that touched the row.
    """

    id: str
    online: bool = False
    since_ms: int = 0
    seen_ms: int = 0
    epoch: str = ""
    boot: int = 0
    software: str = ""
    model: str = ""
    version: str = ""
    sha: str = ""
    profile: str = ""
    hardware: str = ""
    budget_ms: float | None = None
    window_s: float = 60.0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    n: int = 0
    rate: float | None = None
    hits: int = 0
    misses: int = 0
    host: int = 0
    over: int = 0
    errors: int = 0
    temp: float | None = None
    cpu: float | None = None
    mem: float | None = None
    throttled: int | None = None
    disk: int | None = None
    waiting: int = 0
    lost: int = 0
    refused: int = 0
    recent: list[list[Any]] = field(default_factory=list)
    changed: int = 0


@dataclass(frozen=True)
class Quarter:
    """A quarter of an hour of one model on one device, milliseconds since 1970 at its start."""

    start_ms: int
    model: str
    version: str
    windows: int
    n: int
    errors: int
    hits: int
    misses: int
    host: int
    over: int
    rate: float
    p50: float | None
    p95: float | None
    p99: float | None
    temp: float | None
    cpu: float | None
    mem: float | None


@dataclass(frozen=True)
class Event:
    """kind: online, offline, model, boot, epoch, lost, refused. text: one short sentence."""

    at_ms: int
    device: str
    kind: str
    text: str


@dataclass(frozen=True)
class Totals:
    devices: int
    online: int
    windows: int
    lost: int
    refused: int


class Store(Protocol):
    """Every method may raise StoreError, and then has changed nothing."""

    def commit(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]: ...

    def look_for_silence(self, now_ms: int) -> int:
        """Call offline what has not reported for two and a half windows; how many those were."""
        ...

    def prune(self, now_ms: int) -> None:
        """Forget what is older than its time, and the oldest raw windows when they take too much."""
        ...

    def fleet(self, changed_after: int = -1) -> list[Device]:
        """Device rows that changed after that, by id."""
        ...

    def device(self, name: str) -> Device | None: ...

    def quarters(self, name: str, since_ms: int) -> list[Quarter]: ...

    def events(self, name: str | None, limit: int) -> list[Event]:
        """The latest first."""
        ...

    def totals(self) -> Totals: ...

    def close(self) -> None: ...

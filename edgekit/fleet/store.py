"""What a fleet server keeps in any database; figures out of windows; births and deaths.

    quantiles({"device": h, "cache": g}, (0.5, 0.99))      # over several sources
    parse_state(b'{"on":1,...}')                           # a State with a birth

Rules, which tests/contracts/test_stores.py asks of every store:
- `commit` is one transaction; what it returns may be acknowledged, because it is stored;
- (device, epoch, seq) is stored and counted once, however often it arrives;
- a mark moves without a gap; `floor` moves it over what the board gave up, and that is counted as lost;
- a refused window moves the mark like any other, or its board would send it for ever;
- pages read device rows and roll-ups, never raw windows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgekit_runtime.errors import WindowError
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.telemetry import Histogram, Window
from edgekit_runtime.telemetry.window import is_text

__all__ = [
    "QUARTER_MS",
    "Arrival",
    "Birth",
    "Change",
    "Device",
    "Event",
    "Mark",
    "Quarter",
    "State",
    "Store",
    "Totals",
    "moment_of",
    "parse_state",
    "quantiles",
    "quarter_of",
]

QUARTER_MS = 15 * 60 * 1000
_MOST_AGE_MS = 30 * 24 * 3600 * 1000
_MOST_AHEAD_MS = 5 * 60 * 1000


def quantiles(latency: Mapping[str, Histogram], wanted: Sequence[float]) -> list[float | None]:
    """Milliseconds at each of the ascending ranks, over all sources together.

    Buckets of different scales are laid side by side and not joined, so a coarse cache costs a fine device no
    precision.
    """
    pieces: list[tuple[float, int]] = []
    for histogram in latency.values():
        per_octave = 2.0**histogram.scale
        if histogram.zeros:
            pieces.append((0.0, histogram.zeros))
        for index, n in histogram.buckets.items():
            lower, upper = 2.0 ** (index / per_octave), 2.0 ** ((index + 1) / per_octave)
            pieces.append((2.0 * lower * upper / (lower + upper), n))
    total = sum(n for _, n in pieces)
    if not total:
        return [None] * len(wanted)
    pieces.sort()
    found: list[float | None] = []
    seen, place = 0, 0
    for q in wanted:
        while place < len(pieces) - 1 and seen + pieces[place][1] < q * total:
            seen += pieces[place][1]
            place += 1
        found.append(pieces[place][0])
    return found


def moment_of(window: Window, received_ms: int) -> int:
    """When the window ended, milliseconds since 1970: by the board's clock where that is to be believed, else now."""
    ended = window.t0_ms + window.dur_ms
    if window.clock_ok and received_ms - _MOST_AGE_MS <= ended <= received_ms + _MOST_AHEAD_MS:
        return ended
    return received_ms


def quarter_of(moment_ms: int) -> int:
    return moment_ms - moment_ms % QUARTER_MS


_EPOCH = re.compile(r"[0-9a-f]{16}\Z")
_MOST_BYTES = 4096
_MOST_TEXT = 64


@dataclass(frozen=True)
class Birth:
    """What runs there. budget_ms: None where the bundle promises nothing. window_s: how often it reports."""

    software: str
    model: str
    version: str
    sha: str
    profile: str
    hardware: str
    budget_ms: float | None
    window_s: float


@dataclass(frozen=True)
class State:
    """birth: None for a death."""

    epoch: str
    boot: int
    birth: Birth | None

    @property
    def on(self) -> bool:
        return self.birth is not None


def parse_state(payload: bytes) -> State:
    """Raises WindowError with one word: size, json or shape."""
    if len(payload) > _MOST_BYTES:
        raise WindowError("size", f"{len(payload):,} bytes are more than {_MOST_BYTES:,}")
    try:
        value = load_json(payload)
    except ValueError as error:
        raise WindowError("json", "it is not JSON") from error
    if not isinstance(value, dict) or type(value.get("on")) is not int or value["on"] not in (0, 1):
        raise WindowError("shape", "a state has 'on' 0 or 1")
    epoch, boot = value.get("epoch"), value.get("boot")
    if not isinstance(epoch, str) or not _EPOCH.match(epoch):
        raise WindowError("shape", "'epoch' is not 16 hexadecimal digits")
    if not isinstance(boot, int) or isinstance(boot, bool) or not 0 <= boot < 2**53:
        raise WindowError("shape", "'boot' is no whole number")
    return State(epoch, boot, _birth(value) if value["on"] == 1 else None)


def _birth(value: Mapping[str, Any]) -> Birth:
    budget = value.get("sla")
    return Birth(
        software=_text(value, "sw"),
        model=_text(value, "model"),
        version=_text(value, "ver"),
        sha=_text(value, "sha"),
        profile=_text(value, "profile"),
        hardware=_text(value, "hw"),
        budget_ms=None if budget is None else _number(value, "sla"),
        window_s=_number(value, "win"),
    )


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    if not is_text(text, _MOST_TEXT):
        raise WindowError("shape", f"'{name}' is no text of at most {_MOST_TEXT} characters")
    return str(text)


def _number(value: Mapping[str, Any], name: str) -> float:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1e9:
        raise WindowError("shape", f"'{name}' is no number above 0")
    return float(number)


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

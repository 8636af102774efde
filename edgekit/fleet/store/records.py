"""Types of a fleet's store; births and deaths of boards.

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

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import asdict

from edgekit.fleet.store import packed
from edgekit.fleet.store.messages import BoardEvent, Epoch, Number, SamplePart, Text, Window, check_texts, decoded
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.window import Seal

QUARTER_MS = 15 * 60 * 1000
Resolution = Literal["5m", "15m", "1h"]
GroupBy = Literal["model", "build", "profile", "site", "group"]
Build = tuple[str, str, str]
"""Model, version, profile."""
GROUPS: Mapping[GroupBy, tuple[str, ...]] = {
    "model": ("model", "version"), "build": ("model", "version", "profile"), "profile": ("profile",), "site": ("site",),
    "group": ("group",),
}  # fmt: skip
"""Ways to group boards, with the fields that one group has in common."""
STATES = ("online", "offline", "late", "hot", "drifting", "lagging", "failing", "losing")
"""Conditions of a board, each a filter and a count. hot: throttled, or at 80 °C or more.

late: more than 1 % of its answers came after their budget, so p99 is above it. drifting: psi above 0.2. lagging: more
than an hour waits on the board. failing: more than 5 % of requests got no answer. losing: it gave up windows.
"""
SORTS = (
    "id", "online", "seen_ms", "model", "version", "profile", "site", "group", "p50", "p95", "p99", "budget_ms", "n",
    "rate", "hits", "host", "over", "errors", "temp", "cpu", "mem", "waiting", "lost", "refused", "psi",
)  # fmt: skip
"""Fields of Device that a list can be sorted by. None comes last, whichever way; ties are by id."""
_MOST_AGE_MS = 30 * 24 * 3600 * 1000
_MOST_AHEAD_MS = 5 * 60 * 1000


def quantiles(latency: Mapping[str, Histogram], wanted: Sequence[float]) -> list[float | None]:
    """Milliseconds at each of the ascending ranks, over all sources together.

    Buckets of different scales are laid side by side and not joined, so a coarse cache costs a fine device no
    precision.
    """
    bins = {source: (h.scale, h.zeros, h.buckets) for source, h in latency.items()}
    return packed.quantiles([bins], wanted)


def moment_of(window: Window | BoardEvent, received_ms: int) -> int:
    """End of the window, ms since 1970, by the board's clock if plausible, else this machine's."""
    ended = window.t0_ms + window.dur_ms
    if window.clock_ok and received_ms - _MOST_AGE_MS <= ended <= received_ms + _MOST_AHEAD_MS:
        return ended
    return received_ms


def now_ms() -> int:
    return int(time.time() * 1000)


def quarter_of(moment_ms: int) -> int:
    return moment_ms - moment_ms % QUARTER_MS


_MOST_BYTES = 4096
_Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Birth(
    Struct,
    frozen=True,
    rename={"software": "sw", "version": "ver", "hardware": "hw", "budget_ms": "sla", "window_s": "win"},
):
    """A board's software and model, as its state says.
    budget_ms: default budget, or None.
    window_s: how often it reports."""

    software: Text
    model: Text
    version: Text
    sha: Text
    profile: Text
    hardware: Text
    window_s: _Positive
    budget_ms: _Positive | None = None
    site: Text = ""
    group: Text = ""


class _StateHead(Struct):
    on: Literal[0, 1]
    epoch: Epoch
    boot: Number


@dataclass(frozen=True)
class State:
    """birth: None for a death."""

    epoch: str
    boot: int
    birth: Birth | None


_decode_head, _decode_birth = Decoder(_StateHead).decode, Decoder(Birth).decode


def parse_state(payload: bytes) -> State:
    """Raises WindowError with one word: size, json or shape."""
    head = decoded(_decode_head, payload, _MOST_BYTES)
    birth = decoded(_decode_birth, payload, _MOST_BYTES) if head.on else None
    if birth is not None:
        check_texts(value for value in asdict(birth).values() if isinstance(value, str))
    return State(head.epoch, head.boot, birth)


@dataclass(frozen=True)
class Event:
    """An event of a board.
    kind: online, offline, model, boot, epoch, lost, refused, or one of a board's own: install, rollback, trial,
        throttling, spool.
    text: one short sentence.
    id: grows with time; 0 before it is stored."""

    at_ms: int
    device: str
    kind: str
    text: str
    id: int = 0


@dataclass(slots=True)
class Arrival:
    """A payload: a window, an event, part of a sample, or a refused one, with the word why."""

    device: str
    seal: Seal
    received_ms: int
    payload: bytes = b""
    window: Window | None = None
    refused: str = ""
    event: Event | None = None
    sample: SamplePart | None = None


@dataclass(frozen=True)
class Change:
    """A birth or a death.
    retained: the broker kept it from before, so it says nothing about now."""

    device: str
    received_ms: int
    state: State
    retained: bool = False


@dataclass(frozen=True)
class Mark:
    """Everything of this epoch up to hwm is stored or known to be lost.

    known: the store has the birth of the boot that sent this; without it the board sends its birth again. held: windows
    above hwm that are stored, too. windows, repeated: of this commit, how many windows were new, and how many messages
    of any kind were not.
    """

    device: str
    epoch: str
    hwm: int
    known: bool = True
    held: int = 0
    windows: int = field(default=0, compare=False)
    repeated: int = field(default=0, compare=False)


@dataclass(frozen=True)
class FleetDevice:
    """One row of the fleet. Times are the host's, milliseconds since 1970.

    p50 to psi: of the present quarter of an hour and the one before; None and 0 once the board has been silent for half
    an hour. rate: answers a second. over: answers later than their caller's budget, else than `budget_ms`. blocked:
    requests refused by budget. compared, differed: host's answers that the device gave, too, and those that differ.
    clipped: of `values` input values. dropped: a camera's frames that a newer one replaced. recent: the last windows,
    oldest first, as [moment_ms, p50, p95, p99, rate, temp]. lost: windows that a board gave up. stored: windows.
    changed: grows with every commit that touched the row.
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
    site: str = ""
    group: str = ""
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
    blocked: int = 0
    compared: int = 0
    differed: int = 0
    clipped: int = 0
    values: int = 0
    dropped: int = 0
    psi: float | None = None
    temp: float | None = None
    cpu: float | None = None
    mem: float | None = None
    throttled: int | None = None
    disk: int | None = None
    waiting: int = 0
    stored: int = 0
    lost: int = 0
    refused: int = 0
    recent: list[list[Any]] = field(default_factory=list)
    changed: int = 0


@dataclass(frozen=True)
class Query:
    """A list of boards.
    text: part of id, model, version, profile, site or group.
    state: one of STATES, or "".

    site to profile: None for any. sort: one of SORTS. lag_s: how much waits on a board in state
    `lagging`.
    """

    text: str = ""
    state: str = ""
    site: str | None = None
    group: str | None = None
    model: str | None = None
    version: str | None = None
    profile: str | None = None
    sort: str = "id"
    descending: bool = False
    offset: int = 0
    limit: int = 100
    lag_s: float = 3600.0


class BoardLatency(NamedTuple):
    """A board's own p99, in milliseconds over n answers, of the last quarter to half hour."""

    device: str
    p99: float
    n: int


@dataclass(frozen=True)
class BuildBoards:
    """What boards report about one build.
    budget_ms: the most common one, the larger on a tie.
    psi: of each board that has one, ascending.
    boards: those with recent answers."""

    model: str
    version: str
    profile: str
    budget_ms: float | None
    psi: tuple[float, ...] = ()
    boards: tuple[BoardLatency, ...] = ()

    @property
    def build(self) -> Build:
        return self.model, self.version, self.profile


@dataclass(frozen=True)
class GroupCount:
    """How many boards are in each of STATES. key: the fields of GROUPS; () for all."""

    key: tuple[str, ...]
    devices: int
    states: dict[str, int]


@dataclass(frozen=True)
class Rollup:
    """A model's figures on a board or all boards of a profile, in 5 or 15 minutes or an hour.

    boards: how many reported, on average. rate: answers a second and board. temp, cpu, mem, psi: the largest of a
    window. p50 to p99 are over all sources.
    """

    start_ms: int
    length_ms: int
    model: str
    version: str
    profile: str
    windows: int
    dur_ms: int
    n: int
    errors: int
    hits: int
    misses: int
    host: int
    over: int
    blocked: int = 0
    compared: int = 0
    differed: int = 0
    clipped: int = 0
    values: int = 0
    dropped: int = 0
    temp: float | None = None
    cpu: float | None = None
    mem: float | None = None
    psi: float | None = None
    error_codes: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, Histogram] = field(default_factory=dict)
    stages: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def build(self) -> Build:
        return self.model, self.version, self.profile

    @property
    def rate(self) -> float:
        return 1000.0 * self.n / max(self.dur_ms, 1)

    @property
    def boards(self) -> float:
        return self.dur_ms / self.length_ms

    def quantiles(self, *wanted: float) -> list[float | None]:
        return quantiles(self.latency, wanted)

    @property
    def p99(self) -> float | None:
        return self.quantiles(0.99)[0]


@dataclass(frozen=True)
class Totals:
    """Of the whole fleet.
    changed: the latest of any board.
    waiting: windows that are on boards, as they said last.

    newest_ms: when the newest window ended, and no later than it came; 0 before the first.
    """

    devices: int
    online: int
    windows: int
    lost: int
    refused: int
    changed: int = 0
    waiting: int = 0
    newest_ms: int = 0

"""What boards report, read and checked: docs/telemetry-format.md.

    parse_window(payload, device="porch-1").latency["device"].quantile(0.99)
    parse_event(payload, "porch-1").kind                    # "install"

Rules:
- msgspec checks types and fixed bounds, which the structs here state; what depends on another field is checked after;
- a payload is refused with one word, and nothing is guessed: size, json, shape, version or device;
- no count is larger than a board could count in that time, so sums of windows stay far below what a store can hold;
- version 1 is read, too. It ends with `hd`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType, ValidationError, convert
from msgspec.json import Decoder

from edgekit_runtime.cache.bounded import BoundStats
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.system.strict_json import MAX_NUMBER
from edgekit_runtime.telemetry.histogram import Histogram, ShadowWindow
from edgekit_runtime.telemetry.messages import EVENT_VERSION, MOST_EVENT_TEXT, EventKind
from edgekit_runtime.telemetry.samples import MOST_PARTS, PART_BYTES, SAMPLE
from edgekit_runtime.telemetry.window import (
    CODE,
    MOST_CODES,
    MOST_PSI,
    MOST_RECEIVED_BYTES,
    MOST_SEQ,
    MOST_TEXT,
    STAGES,
    Seal,
    System,
    is_text,
    read_object,
)

T = TypeVar("T")
M = TypeVar("M", bound="_BoardMessage")
_STAGES, _TOKEN = frozenset(STAGES), "token"
_MOST_A_MS, _MOST_AT_ONCE = 1000, 1_000_000  # answers: a million a second, and what a short window may still fold
_Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
_Some = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Number = Annotated[int, Meta(ge=0, le=MOST_SEQ)]
_First = Annotated[int, Meta(ge=1, le=MOST_SEQ)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Figure = Annotated[float, Meta(ge=0, le=1e9)]
_Percent = Annotated[float, Meta(ge=0, le=100)]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Epoch = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Code = Annotated[str, Meta(pattern=f"^{CODE.pattern}")]
_Source = Annotated[str, Meta(pattern=r"^[a-z]{1,16}\Z")]


class _HistogramFields(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    scale: int
    index: int
    counts: list[int]
    zeros: _Count = 0


_Histograms = Annotated[dict[_Source, _HistogramFields], Meta(max_length=8)]


class _SpoolFields(Struct, gc=False):
    n: Number
    b: Number


class _SealFields(Struct, gc=False):
    epoch: Epoch
    seq: _First
    floor: _First
    drop: Number
    spool: _SpoolFields


class _BoardMessage(_SealFields, gc=False):
    v: int
    dev: str
    boot: Number
    t0: _Count
    clk: _Count


class _EventFields(_BoardMessage, gc=False):
    kind: EventKind
    text: Annotated[str, Meta(max_length=MOST_EVENT_TEXT)]


class _PartFields(Struct, gc=False):
    id: Epoch
    part: _Count
    parts: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    data: Annotated[bytes, Meta(max_length=2 * PART_BYTES)]  # in base64


class _ModelName(Struct, gc=False):
    id: Text
    ver: Text
    sha: Text


class _WindowLabels(Struct, gc=False):
    site: Text
    group: Text


class _ShadowFields(Struct, gc=False):
    sha: Annotated[str, Meta(pattern=r"^[0-9a-f]{12}\Z")]
    n: _Count
    eq: _Count
    sk: _Count
    ra: _HistogramFields | UnsetType = UNSET
    ms: _Figure | None = None
    mb: _Figure | None = None
    psi: _Figure | None = None
    no: Annotated[str, Meta(pattern=rf"^(\Z|{CODE.pattern})")] = ""


class _BoundFields(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    error: _Share
    cut: _Share
    given: _Count
    withheld: _Count
    sampled: _Count
    wrong: _Count
    low: _Share | UnsetType = UNSET
    high: _Share | UnsetType = UNSET


class _WindowFields(_BoardMessage, gc=False):
    """Fields of the format, as they are spelt."""

    dur: Annotated[int, Meta(ge=1, le=400 * 24 * 3600 * 1000)]
    model: _ModelName
    prof: Text
    n: _Count
    err: _Count
    fb: _Count
    bv: _Count
    ch: _Count
    lat: _Histograms
    cm: _Count | UnsetType = UNSET
    hc: _Count = 0
    hd: _Count | UnsetType = UNSET
    rb: _Count = 0
    fd: _Count = 0
    ec: Annotated[dict[_Code, _Some], Meta(max_length=MOST_CODES + 1)] = {}  # and `other`
    cl: tuple[_Count, Annotated[int, Meta(ge=0, le=1 << 48)]] = (0, 0)
    psi: Annotated[float, Meta(ge=0, le=MOST_PSI)] | None = None
    sh: _ShadowFields | UnsetType = UNSET
    se: _BoundFields | UnsetType = UNSET
    lab: _WindowLabels | UnsetType = UNSET
    st: _Histograms = {}
    tk: _HistogramFields | UnsetType = UNSET
    cpu: _Percent | None = None
    mem: _Percent | None = None
    temp: Annotated[float, Meta(ge=-273.15, le=1000)] | None = None
    thr: Annotated[int, Meta(ge=0, le=1 << 32)] | None = None
    disk: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None


_decode_window, _decode_event = Decoder(_WindowFields).decode, Decoder(_EventFields).decode
_decode_part = Decoder(_PartFields).decode


@dataclass(slots=True)
class Window:
    """A window as the host reads it. Version 1 ends with `differed`. See also Report, Seal.

    n: answers.
    host, hits: of these, from the host, from the cache.
    misses: None if the board has no cache.
    stages: of STAGES, those that answers went through; and "token", milliseconds of each token of a generated text.
    """

    device: str
    seal: Seal
    boot: int
    t0_ms: int
    dur_ms: int
    clock_ok: bool
    model: str
    version: str
    sha: str
    profile: str
    n: int
    errors: int
    host: int
    over_budget: int
    hits: int
    misses: int | None
    latency: dict[str, Histogram]
    system: System
    compared: int = 0
    differed: int = 0
    stages: dict[str, Histogram] = field(default_factory=dict)
    refused_by_budget: int = 0
    error_codes: dict[str, int] = field(default_factory=dict)
    clipped: int = 0
    values: int = 0
    psi: float | None = None
    dropped: int = 0
    site: str = ""
    group: str = ""
    shadow: ShadowWindow | None = None
    semantic: BoundStats | None = None


def decoded(decode: Callable[[bytes], T], payload: bytes, most: int) -> T:
    """A message of at most `most` bytes of JSON. Raises WindowError: size, json or shape."""
    if len(payload) > most or not payload.isascii():  # msgspec skips what it does not need, UTF-8 or not
        read_object(payload, most)
    try:
        return decode(payload)
    except (MsgspecError, RecursionError) as error:
        read_object(payload, most)
        raise WindowError("shape", str(error)) from error


def check_texts(texts: Iterable[str]) -> None:
    """Raises WindowError for a control character, or half a surrogate pair."""
    if (text := "".join(texts)) and not is_text(text, len(text)):
        raise WindowError("shape", "a text has a control character, or half a surrogate pair")


@dataclass(frozen=True)
class SamplePart:
    """id: of the sample, 16 hexadecimal digits. part: from 0, of `parts`."""

    id: str
    part: int
    parts: int
    data: bytes


@dataclass(frozen=True)
class BoardEvent:
    """An event as the host reads it. kind: one of EVENT_KINDS. The rest as in a window.

    sample: of a SAMPLE.
    """

    device: str
    seal: Seal
    boot: int
    t0_ms: int
    clock_ok: bool
    kind: str
    text: str
    dur_ms: int = 0
    sample: SamplePart | None = None


def origin(payload: bytes) -> Seal | None:
    """The seal of a payload that may otherwise be refused; None if unreadable."""
    try:
        return _seal(convert(read_object(payload), _SealFields))
    except (WindowError, ValidationError, UnicodeError):  # msgspec takes no half of a surrogate pair
        return None


def parse_event(payload: bytes, device: str) -> BoardEvent:
    """Read and check one event that came on `device`'s topic. Raises WindowError."""
    wire = _message(_decode_event, payload, device, "event", (EVENT_VERSION,))
    check_texts((wire.text,))
    part = decoded(_decode_part, payload, MOST_RECEIVED_BYTES) if wire.kind == SAMPLE else None
    if part is not None and part.part >= part.parts:
        raise WindowError("shape", "'part' is not below 'parts'")
    sample = None if part is None else SamplePart(part.id, part.part, part.parts, part.data)
    return BoardEvent(device, _seal(wire), wire.boot, wire.t0, wire.clk == 1, wire.kind, wire.text, sample=sample)


def parse_window(payload: bytes, device: str) -> Window:
    """Read and check one window that came on `device`'s topic. Raises WindowError."""
    return _checked(_message(_decode_window, payload, device, "window", (1, 2)))


def _message(decode: Callable[[bytes], M], payload: bytes, device: str, what: str, versions: tuple[int, ...]) -> M:
    """Decode, and check version and sender first: another version may have another shape."""
    try:
        wire = decoded(decode, payload, MOST_RECEIVED_BYTES)
        _check_sender(wire.v, wire.dev, device, what, versions)
    except WindowError:
        value = read_object(payload, MOST_RECEIVED_BYTES)
        _check_sender(value.get("v"), value.get("dev"), device, what, versions)
        raise
    return wire


def _check_sender(version: object, sender: object, device: str, what: str, versions: tuple[int, ...]) -> None:
    if type(version) is not int or version not in versions:
        raise WindowError("version", f"{what} format {str(version)[:20]!r} is not supported (supported: {versions})")
    if sender != device:
        raise WindowError("device", f"the payload says it is from {str(sender)[:80]!r}")


def _seal(wire: _SealFields) -> Seal:
    if not wire.drop < wire.floor <= wire.seq:
        raise WindowError("shape", "'drop' is not below 'floor', or 'floor' is above 'seq'")
    return Seal(wire.epoch, wire.seq, wire.floor, wire.drop, wire.spool.n, wire.spool.b)


def _checked(wire: _WindowFields) -> Window:
    model, labels = wire.model, ("", "") if wire.lab is UNSET else (wire.lab.site, wire.lab.group)
    compared, differed = wire.hc, wire.hd if wire.hc else 0
    most, n, errors = _MOST_A_MS * wire.dur + _MOST_AT_ONCE, wire.n, wire.err
    latency, stages = ({name: _histogram(h) for name, h in some.items()} for some in (wire.lat, wire.st))
    misses = None if wire.cm is UNSET else wire.cm
    _limit(max(n, errors, wire.hc, wire.fd), most, "a count is more than a board could count in that time")
    _limit(max(wire.fb, wire.bv, wire.ch, misses or 0), n, "'fb', 'bv', 'ch' or 'cm' is more than 'n'")
    if n != sum([h.count for h in latency.values()]):
        raise WindowError("shape", "'n' is not the number of answers in 'lat'")
    if differed is UNSET or differed > compared:
        raise WindowError("shape", "'hd' is missing, or more than 'hc'")
    check_texts((model.id, model.ver, model.sha, wire.prof, *labels))
    window = Window(
        wire.dev, _seal(wire), wire.boot, wire.t0,
        wire.dur, wire.clk == 1, model.id, model.ver, model.sha, wire.prof, n, errors, wire.fb, wire.bv, wire.ch,
        misses, latency, System(wire.cpu, wire.mem, wire.temp, wire.thr, wire.disk), compared, differed,
    )  # fmt: skip
    if wire.v == 1:
        return window
    if not stages.keys() <= _STAGES:
        raise WindowError("shape", f"'st' has unknown stages: the format has {', '.join(STAGES)}")
    if wire.tk is not UNSET:
        stages[_TOKEN] = _histogram(wire.tk)
    for histogram in stages.values():
        _limit(histogram.count, 2 * most, "'st' or 'tk' counts more than a board could in that time")
    _limit(wire.rb, errors, "'rb' is more than 'err'")
    _limit(sum(wire.ec.values()), errors, "'ec' counts more errors than 'err'")
    _limit(wire.cl[0], wire.cl[1], "'cl' has more clipped values than values")
    window.stages, window.refused_by_budget, window.error_codes, window.psi = stages, wire.rb, wire.ec, wire.psi
    (window.clipped, window.values), window.dropped = wire.cl, wire.fd
    window.site, window.group = labels
    if wire.sh is not UNSET:
        window.shadow = _shadow(wire.sh, most)
    if wire.se is not UNSET:
        window.semantic = _bound(wire.se)
    return window


def _limit(count: int, most: int, what: str) -> None:
    if count > most:
        raise WindowError("shape", what)


def _histogram(wire: _HistogramFields) -> Histogram:
    try:
        return Histogram.of_counts(wire.scale, wire.index, wire.counts, wire.zeros)
    except ValueError as error:
        raise WindowError("shape", str(error)) from error


def _shadow(wire: _ShadowFields, most: int) -> ShadowWindow:
    ratios = Histogram() if wire.ra is UNSET else _histogram(wire.ra)
    _limit(max(wire.n, wire.sk), most, "'sh' counts more than a board could in that time")
    _limit(wire.eq, wire.n, "'sh' has more equal answers than answers")
    if ratios.count != wire.n:
        raise WindowError("shape", "'sh' has not as many ratios as answers")
    return ShadowWindow(wire.sha, wire.n, wire.eq, wire.sk, ratios, wire.ms, wire.mb, wire.psi, wire.no)


def _bound(wire: _BoundFields) -> BoundStats:
    _limit(wire.wrong, wire.sampled, "'se' has more wrong answers than compared ones")
    interval = None if wire.low is UNSET or wire.high is UNSET else (wire.low, wire.high)
    if (interval is None) == bool(wire.sampled) or (wire.low is UNSET) != (wire.high is UNSET):
        raise WindowError("shape", "'se' needs an interval if answers were compared, and none otherwise")
    rate = wire.wrong / wire.sampled if wire.sampled else None
    return BoundStats(
        wire.error, wire.cut > 0, wire.cut, wire.given, wire.withheld, wire.sampled, wire.wrong, rate, interval
    )

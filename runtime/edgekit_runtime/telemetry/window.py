"""A telemetry window: what one model did on one board in about a minute, as some hundred bytes of JSON.

Rules:
- only the fields of docs/telemetry-format.md are in it: counts, histograms, names and versions; no input, label or
  path;
- a window is at most 1,200 bytes: where histograms need more they are kept at a smaller scale, the cache's first;
- a body is made once, when the window is cut; seq, epoch, floor and the state of the spool are put in front when it is
  sent;
- what comes from outside is read by `parse_window`, which refuses with one word and never guesses.

    body = encode(report)
    payload = sealed(body, Seal(epoch="9f..", seq=41, floor=12))
    parse_window(payload, device="porch-1").latency["device"].quantile(0.99)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgekit_runtime.errors import WindowError
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.telemetry.histogram import Histogram

__all__ = [
    "DEVICE_ID",
    "MOST_BYTES",
    "MOST_RECEIVED_BYTES",
    "VERSION",
    "About",
    "Report",
    "Seal",
    "System",
    "Window",
    "device_id",
    "encode",
    "is_text",
    "origin",
    "parse_window",
    "sealed",
]

VERSION = 1
DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}\Z")
MOST_BYTES = 1200
MOST_RECEIVED_BYTES = 16 * 1024
_SEAL_BYTES = 140  # what `sealed` adds at most while its counters have seven digits
# The order in which histograms lose precision where there is no room for it: microseconds of the cache matter least.
_COARSENING = (
    ("cache", 3), ("similar", 3), ("stale", 3), ("host", 3), ("device", 3),
    ("cache", 0), ("similar", 0), ("stale", 0), ("host", 0), ("device", 0),
)  # fmt: skip
_EPOCH = re.compile(r"[0-9a-f]{16}\Z")
_SOURCE = re.compile(r"[a-z]{1,16}\Z")
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MOST_TEXT = 64
_MOST_INTEGER = (1 << 53) - 1  # what every JSON reader keeps exactly


@dataclass(frozen=True)
class About:
    """What is reported. device: its id. model, version: as in the manifest. sha: start of the bundle's SHA-256, hex.

    profile: the bundle's target. budget_ms: what the bundle promises, None where it promises nothing. cache: whether
    there is one, so that misses mean something.
    """

    device: str
    model: str
    version: str
    sha: str
    profile: str
    budget_ms: float | None = None
    cache: bool = True


@dataclass(frozen=True)
class System:
    """The board itself; None where unknown. cpu: busy share of all cores in the window, %. mem: memory in use, %.

    temp: degrees Celsius. thr: the firmware's throttling bits, 0 for none. disk: free MiB where the spool lies.
    """

    cpu: float | None = None
    mem: float | None = None
    temp: float | None = None
    thr: int | None = None
    disk: int | None = None


@dataclass(frozen=True)
class Report:
    """What a window says of itself. t0_ms: wall clock at its start, milliseconds since 1970. dur_ms: monotonic.

    clock_ok: whether that wall clock is to be believed. latency: source of the answer -> milliseconds.
    """

    about: About
    boot: int
    t0_ms: int
    dur_ms: int
    clock_ok: bool
    errors: int
    over_budget: int
    latency: Mapping[str, Histogram]
    system: System = field(default_factory=System)


@dataclass(frozen=True)
class Seal:
    """What a window gets when it is sent. floor: the oldest seq still spooled. dropped: windows given up so far.

    spooled, spooled_bytes: what waits on the board.
    """

    epoch: str
    seq: int
    floor: int
    dropped: int = 0
    spooled: int = 0
    spooled_bytes: int = 0


@dataclass(frozen=True)
class Window:
    """A window as the host reads it. n: answers. host, hits: of these, from the host, from the cache.

    misses: None where the board has no cache. The rest as in Report and Seal.
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


def device_id(text: str) -> str:
    """`text` when it may name a device: 3 to 63 of a-z, 0-9 and -, not starting with -. Raises WindowError."""
    if not isinstance(text, str) or not DEVICE_ID.match(text):
        raise WindowError(
            "device", f"{text!r} is no device id: use 3 to 63 of a-z, 0-9 and '-', a letter or digit first"
        )
    return text


def encode(report: Report) -> bytes:
    """The body: everything but the seal, in at most MOST_BYTES less what the seal takes."""
    latency = {source: histogram for source, histogram in report.latency.items() if histogram.count}
    body = _body(report, latency)
    for source, least in _COARSENING:
        while len(body) > MOST_BYTES - _SEAL_BYTES and source in latency and latency[source].scale > least:
            coarser = Histogram()
            coarser.merge(latency[source])
            coarser.downscale(latency[source].scale - 1)
            latency[source] = coarser
            body = _body(report, latency)
    return body


def _body(report: Report, latency: Mapping[str, Histogram]) -> bytes:
    about, n = report.about, sum(h.count for h in latency.values())
    hits = latency["cache"].count if "cache" in latency else 0
    value: dict[str, Any] = {
        "v": VERSION,
        "dev": about.device,
        "boot": report.boot,
        "t0": report.t0_ms,
        "dur": report.dur_ms,
        "clk": int(report.clock_ok),
        "model": {"id": about.model[:_MOST_TEXT], "ver": about.version[:_MOST_TEXT], "sha": about.sha[:12]},
        "prof": about.profile[:_MOST_TEXT],
        "n": n,
        "err": report.errors,
        "fb": latency["host"].count if "host" in latency else 0,
        "bv": report.over_budget,
        "ch": hits,
    }
    if about.cache:
        value["cm"] = n - hits
    value["lat"] = {source: histogram.wire() for source, histogram in latency.items()}
    value |= {name: figure for name, figure in asdict(report.system).items() if figure is not None}
    return json.dumps(value, separators=(",", ":")).encode()


def sealed(body: bytes, seal: Seal) -> bytes:
    """The payload: the seal's fields, then the body's."""
    head = {
        "epoch": seal.epoch,
        "seq": seal.seq,
        "floor": seal.floor,
        "drop": seal.dropped,
        "spool": {"n": seal.spooled, "b": seal.spooled_bytes},
    }
    return json.dumps(head, separators=(",", ":")).encode()[:-1] + b"," + body[1:]


def origin(payload: bytes) -> tuple[str, int, int] | None:
    """(epoch, seq, floor) of a payload that may otherwise be refused; None where not even that can be read."""
    try:
        value = _object(payload)
        return _epoch(value), _integer(value, "seq", least=1), _integer(value, "floor", least=1)
    except WindowError:
        return None


def parse_window(payload: bytes, device: str) -> Window:
    """Read and check one payload that came on `device`'s topic. Raises WindowError."""
    value = _object(payload)
    if value.get("v") != VERSION:
        raise WindowError("version", f"window format {value.get('v')!r} is not {VERSION}")
    if value.get("dev") != device:
        raise WindowError("device", f"the payload says it is from {str(value.get('dev'))[:80]!r}")
    model, spool = _part(value, "model"), _part(value, "spool")
    latency = _latency(value)
    n, hits = _integer(value, "n"), _integer(value, "ch")
    if n != sum(h.count for h in latency.values()):
        raise WindowError("shape", "'n' is not the number of answers in 'lat'")
    seal = Seal(
        _epoch(value), _integer(value, "seq", least=1), _integer(value, "floor", least=1), _integer(value, "drop"),
        _integer(spool, "n"), _integer(spool, "b"),
    )  # fmt: skip
    if seal.floor > seal.seq:
        raise WindowError("shape", "'floor' is above 'seq'")
    return Window(
        device=device,
        seal=seal,
        boot=_integer(value, "boot"),
        t0_ms=_integer(value, "t0"),
        dur_ms=_integer(value, "dur", least=1),
        clock_ok=_integer(value, "clk") == 1,
        model=_text(model, "id"),
        version=_text(model, "ver"),
        sha=_text(model, "sha"),
        profile=_text(value, "prof"),
        n=n,
        errors=_integer(value, "err"),
        host=_integer(value, "fb", most=n),
        over_budget=_integer(value, "bv"),
        hits=hits if hits <= n else _integer(value, "ch", most=n),
        misses=_integer(value, "cm", most=n) if "cm" in value else None,
        latency=latency,
        system=_system(value),
    )


def _object(payload: bytes) -> dict[str, Any]:
    if len(payload) > MOST_RECEIVED_BYTES:
        raise WindowError("size", f"{len(payload):,} bytes are more than {MOST_RECEIVED_BYTES:,}")
    try:
        value = load_json(payload)
    except ValueError as error:
        raise WindowError("json", "it is not JSON") from error
    if not isinstance(value, dict):
        raise WindowError("shape", "it is not a JSON object")
    return value


def _part(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    if not isinstance(part, dict):
        raise WindowError("shape", f"'{name}' is no object")
    return part


def _integer(value: Mapping[str, Any], name: str, *, least: int = 0, most: int = _MOST_INTEGER) -> int:
    number = value.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise WindowError("shape", f"'{name}' is no whole number of at least {least} and at most {most}")
    return number


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    if not is_text(text, _MOST_TEXT):
        raise WindowError("shape", f"'{name}' is no text of at most {_MOST_TEXT} characters")
    return str(text)


def is_text(value: object, most: int) -> bool:
    """Whether it is a text of at most so many characters that every store and every page can hold: no control
    characters, and no half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    return isinstance(value, str) and len(value) <= most and _NO_TEXT.search(value) is None


def _epoch(value: Mapping[str, Any]) -> str:
    epoch = value.get("epoch")
    if not isinstance(epoch, str) or not _EPOCH.match(epoch):
        raise WindowError("shape", "'epoch' is not 16 hexadecimal digits")
    return epoch


def _latency(value: Mapping[str, Any]) -> dict[str, Histogram]:
    given = _part(value, "lat")
    if len(given) > 8 or not all(_SOURCE.match(source) for source in given):
        raise WindowError("shape", "'lat' names sources that are none")
    try:
        return {source: Histogram.from_wire(histogram) for source, histogram in given.items()}
    except ValueError as error:
        raise WindowError("shape", str(error)) from error


_BOUNDS = {"cpu": (0, 100), "mem": (0, 100), "temp": (-273.15, 1000), "thr": (0, 1 << 32), "disk": (0, 1 << 40)}


def _system(value: Mapping[str, Any]) -> System:
    found: dict[str, Any] = {}
    for name, (least, most) in _BOUNDS.items():
        figure = value.get(name)
        if figure is None:
            continue
        whole = name in ("thr", "disk")
        if (
            isinstance(figure, bool)
            or not isinstance(figure, int if whole else (int, float))
            or not least <= figure <= most
        ):
            raise WindowError("shape", f"'{name}' is out of range")
        found[name] = figure if whole else float(figure)
    return System(**found)

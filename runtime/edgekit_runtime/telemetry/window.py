"""A telemetry window: a minute of one model on one board, in some hundred bytes of JSON.

    body = encode(report)
    payload = sealed_payload(body, Seal(epoch="9f..", seq=41, floor=12))

Rules:
- it has only the fields of docs/telemetry-format.md: counts, histograms, names and versions; no input, label or path;
- a window is at most 1,200 bytes: histograms that need more get a smaller scale, the stages' and the cache's first; if
  that is not enough the stages are left out;
- a body is made once, at the cut; seq, epoch, floor and the state of the spool are put in front when it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgekit_runtime.cache.bounded import BoundStats
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.system.strict_json import compact_json, load_json
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram, ShadowWindow

VERSION = 2
DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}\Z")
MOST_BYTES = 1200
MOST_RECEIVED_BYTES = 16 * 1024
MOST_LABEL = 32
"""Characters of a site or a group."""
MOST_SEQ = 1 << 36
"""Ten windows a second for two centuries."""
STAGES = ("input", "queue", "transfer", "inference", "output")
_TOKEN = "token"  # which older fleets would refuse in `st`, so it is a field of its own
_STAGE_OF = {"prepare": "input", "queue": "queue", "network": "transfer", "infer": "inference", "host": "inference",
    "finish": "output", _TOKEN: _TOKEN}  # fmt: skip
_STAGE_SCALE, _TOKEN_SCALE, _RATIO_SCALE = 2, 4, 3
MOST_CODES = 8
_SEAL_BYTES = 140  # what `sealed` adds at most while its counters have seven digits
# The order in which histograms lose precision where there is no room for it: microseconds of the cache matter least.
# A stage at -1 stays behind.
_COARSENING = (
    ("stages", 1), ("cache", 3), ("stages", 0), ("cache", 2), ("host", 4), ("device", 4), ("stages", -1),
    ("cache", 3), ("similar", 3), ("stale", 3), ("degraded", 3), ("host", 3), ("device", 3),
    ("cache", 0), ("similar", 0), ("stale", 0), ("degraded", 0), ("host", 0), ("device", 0),
)  # fmt: skip
CODE = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_TEXT = 64
MOST_PSI = 100.0


@dataclass(frozen=True)
class About:
    """What is reported.

    model, version: as in the manifest.
    sha: start of the bundle's SHA-256, hex.
    profile: the bundle's target.
    budget_ms: of requests that name none: what the bundle was opened with, else what it promises, or None.
    cache: whether there is one, so that misses mean something.
    site, group: the owner's labels.
    generation: of the install root, None without one.
    trial: it is not committed yet.
    top_scores: the bundle's reference for `psi`, or None.
    """

    device: str
    model: str
    version: str
    sha: str
    profile: str
    budget_ms: float | None = None
    cache: bool = True
    site: str = ""
    group: str = ""
    generation: int | None = None
    trial: bool = False
    top_scores: tuple[int, ...] | None = None


@dataclass(slots=True)
class System:
    """The state of the board; unknown values are None.

    cpu: busy share of all cores in the window, %.
    mem: memory in use, %.
    temp: degrees Celsius.
    thr: the firmware's throttling bits, 0 for none.
    disk: free MiB in the spool's file system.
    """

    cpu: float | None = None
    mem: float | None = None
    temp: float | None = None
    thr: int | None = None
    disk: int | None = None


@dataclass(frozen=True)
class Report:
    """A window before it is encoded.

    t0_ms: wall clock at its start, milliseconds since 1970; clock_ok: whether that clock is set.
    dur_ms: monotonic.
    counted: answers beyond `about.budget_ms` are among those beyond a budget.
    psi: of the top scores against their reference, or None.
    shadow: None without one.
    semantic: what a semantic cache with an `error` knows of its answers, or None.
    """

    about: About
    boot: int
    t0_ms: int
    dur_ms: int
    clock_ok: bool
    counted: CountedWindow
    system: System = field(default_factory=System)
    psi: float | None = None
    shadow: ShadowWindow | None = None
    semantic: BoundStats | None = None


@dataclass(slots=True)
class Seal:
    """Fields that are added when a window is sent.

    floor: the oldest seq still spooled.
    dropped: windows given up so far.
    spooled, spooled_bytes: waiting on the board.
    """

    epoch: str
    seq: int
    floor: int
    dropped: int = 0
    spooled: int = 0
    spooled_bytes: int = 0


def device_id(text: str) -> str:
    """Validate a device id: 3 to 63 of a-z, 0-9 and -. Raises WindowError."""
    if not isinstance(text, str) or not DEVICE_ID.match(text):
        raise WindowError(
            "device", f"{text!r} is not a device id: use 3 to 63 of a-z, 0-9 and '-', a letter or digit first"
        )
    return text


def encode(report: Report) -> bytes:
    """The body: everything but the seal, in at most MOST_BYTES less what the seal takes."""
    latency = {source: histogram for source, histogram in report.counted.answers.items() if histogram.count}
    stages: dict[str, Histogram] = {}
    for stage in (*STAGES, _TOKEN):  # by their names on the wire, in the order of a request
        measured = [h for name, h in report.counted.stages.items() if _STAGE_OF.get(name) == stage and h.count]
        if measured:
            stages[stage] = Histogram.joined(measured, _TOKEN_SCALE if stage == _TOKEN else _STAGE_SCALE)
    body = _body(report, latency, stages)
    for source, least in _COARSENING:
        some = stages if source == "stages" else latency
        for name in tuple(stages) if source == "stages" else (source,) if source in latency else ():
            while len(body) > MOST_BYTES - _SEAL_BYTES and name in some and some[name].scale > least:
                if some[name].scale:
                    some[name] = Histogram.joined([some[name]], some[name].scale - 1)
                else:
                    del some[name]
                body = _body(report, latency, stages)
    return body


def _body(report: Report, latency: Mapping[str, Histogram], stages: Mapping[str, Histogram]) -> bytes:
    about, counted, n = report.about, report.counted, sum(h.count for h in latency.values())
    hits = latency["cache"].count if "cache" in latency else 0
    value: dict[str, Any] = {
        "v": VERSION,
        "dev": about.device,
        "boot": report.boot,
        "t0": report.t0_ms,
        "dur": report.dur_ms,
        "clk": int(report.clock_ok),
        "model": {"id": about.model[:MOST_TEXT], "ver": about.version[:MOST_TEXT], "sha": about.sha[:12]},
        "prof": about.profile[:MOST_TEXT],
        "n": n,
        "err": sum(counted.errors.values()),
        "fb": latency["host"].count if "host" in latency else 0,
        "bv": counted.over_budget + counted.over_bundle,
        "ch": hits,
    }
    if about.cache:
        value["cm"] = n - hits
    if counted.compared:
        value |= {"hc": counted.compared, "hd": counted.differed}
    if counted.refused:
        value["rb"] = counted.refused
    if counted.dropped:
        value["fd"] = counted.dropped
    if counted.errors:
        names = [code for code in counted.errors if CODE.match(code) and code != "other"]
        names.sort(key=lambda code: (-counted.errors[code], code))
        codes = {code: counted.errors[code] for code in names[:MOST_CODES]}
        rest = sum(counted.errors.values()) - sum(codes.values())
        value["ec"] = codes | ({"other": rest} if rest else {})
    if counted.values:
        value["cl"] = [counted.clipped, counted.values]
    if report.psi is not None:
        value["psi"] = round(min(MOST_PSI, report.psi), 4)
    if (shadow := report.shadow) is not None:
        value["sh"] = said = {"sha": shadow.sha[:12], "n": shadow.n, "eq": shadow.same, "sk": shadow.skipped}
        if shadow.n:
            said["ra"] = Histogram.joined([shadow.ratios], _RATIO_SCALE).wire()
        figures = {"ms": shadow.ms, "mb": shadow.mb, "psi": shadow.psi}
        said |= {name: round(figure, 4) for name, figure in figures.items() if figure is not None}
        if shadow.rests:
            said["no"] = shadow.rests[:40]
    if (bound := report.semantic) is not None:
        ends = [round(end, 5) for end in bound.ci95 or ()]
        value["se"] = [bound.error, bound.cut, bound.given, bound.withheld, bound.sampled, bound.wrong, *ends]
    if about.site or about.group:
        value["lab"] = {"site": about.site[:MOST_LABEL], "group": about.group[:MOST_LABEL]}
    if st := {stage: histogram.wire() for stage, histogram in stages.items() if stage != _TOKEN}:
        value["st"] = st
    if _TOKEN in stages:
        value["tk"] = stages[_TOKEN].wire()
    value["lat"] = {source: histogram.wire() for source, histogram in latency.items()}
    value |= {name: figure for name, figure in asdict(report.system).items() if figure is not None}
    return compact_json(value)


def sealed_payload(body: bytes, seal: Seal) -> bytes:
    """The payload: the seal's fields, then the body's."""
    head: dict[str, Any] = {"epoch": seal.epoch, "seq": seal.seq, "floor": seal.floor, "drop": seal.dropped}
    head["spool"] = {"n": seal.spooled, "b": seal.spooled_bytes}
    return compact_json(head)[:-1] + b"," + body[1:]


def read_object(payload: bytes, most: int = MOST_RECEIVED_BYTES) -> dict[str, Any]:
    """A message of at most `most` bytes of JSON. Raises WindowError: size, json or shape."""
    if len(payload) > most:
        raise WindowError("size", f"{len(payload):,} bytes are more than {most:,}")
    try:
        value = load_json(payload)
    except ValueError as error:
        raise WindowError("json", "it is not JSON") from error
    if not isinstance(value, dict):
        raise WindowError("shape", "it is not a JSON object")
    return value


def is_text(value: object, most: int) -> bool:
    """Whether it is a string of at most `most` characters that every store can hold.

    Control characters and halves of surrogate pairs, which JSON can spell and UTF-8 cannot, are refused.
    """
    if not isinstance(value, str) or len(value) > most:
        return False
    return (value.isascii() and value.isprintable()) or NO_TEXT.search(value) is None

"""A telemetry window: a minute of one model on one board, in some hundred bytes of JSON.

    body = encode(report)
    payload = sealed_payload(body, Seal(epoch="9f..", seq=41, floor=12))
    parse_window(payload, device="porch-1").latency["device"].quantile(0.99)

Rules:
- it has only the fields of docs/telemetry-format.md: counts, histograms, names and versions; no input, label or path;
- a window is at most 1,200 bytes: histograms that need more get a smaller scale, the stages' and the cache's first; if
  that is not enough the stages are left out;
- a body is made once, at the cut; seq, epoch, floor and the state of the spool are put in front when it is sent;
- `parse_window` refuses with one word and never guesses; it reads version 1, too;
- no count is larger than a board could count in that time, so sums of windows stay far below what a store can hold.
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
_READ = (1, 2)
DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}\Z")
MOST_BYTES = 1200
MOST_RECEIVED_BYTES = 16 * 1024
MOST_LABEL = 32
"""Characters of a site or a group."""
MOST_SEQ = 1 << 36
"""Ten windows a second for two centuries."""
STAGES = ("input", "queue", "transfer", "inference", "output")
_STAGES, _TOKEN = frozenset(STAGES), "token"  # which older fleets would refuse in `st`, so it is a field of its own
_STAGE_OF = {"prepare": "input", "queue": "queue", "network": "transfer", "infer": "inference", "host": "inference",
    "finish": "output", _TOKEN: _TOKEN}  # fmt: skip
_STAGE_SCALE, _TOKEN_SCALE, _RATIO_SCALE = 2, 4, 3
_MOST_CODES = 8
_SEAL_BYTES = 140  # what `sealed` adds at most while its counters have seven digits
# The order in which histograms lose precision where there is no room for it: microseconds of the cache matter least.
# A stage at -1 stays behind.
_COARSENING = (
    ("stages", 1), ("cache", 3), ("stages", 0), ("cache", 2), ("host", 4), ("device", 4), ("stages", -1),
    ("cache", 3), ("similar", 3), ("stale", 3), ("degraded", 3), ("host", 3), ("device", 3),
    ("cache", 0), ("similar", 0), ("stale", 0), ("degraded", 0), ("host", 0), ("device", 0),
)  # fmt: skip
_HEX, _SHA = re.compile(r"[0-9a-f]{16}\Z"), re.compile(r"[0-9a-f]{12}\Z")
_SOURCE = re.compile(r"[a-z]{1,16}\Z")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MOST_TEXT = 64
_MOST_INTEGER = (1 << 53) - 1  # what every JSON reader keeps exactly
_MOST_DUR_MS = 400 * 24 * 3600 * 1000
_MOST_A_MS, _MOST_AT_ONCE = 1000, 1_000_000  # answers: a million a second, and what a short window may still fold
_MOST_VALUES = 1 << 48
_MOST_PSI, _MOST_FIGURE = 100.0, 1e9


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
        "model": {"id": about.model[:_MOST_TEXT], "ver": about.version[:_MOST_TEXT], "sha": about.sha[:12]},
        "prof": about.profile[:_MOST_TEXT],
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
        names = [code for code in counted.errors if _CODE.match(code) and code != "other"]
        names.sort(key=lambda code: (-counted.errors[code], code))
        codes = {code: counted.errors[code] for code in names[:_MOST_CODES]}
        rest = sum(counted.errors.values()) - sum(codes.values())
        value["ec"] = codes | ({"other": rest} if rest else {})
    if counted.values:
        value["cl"] = [counted.clipped, counted.values]
    if report.psi is not None:
        value["psi"] = round(min(_MOST_PSI, report.psi), 4)
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


def origin(payload: bytes) -> Seal | None:
    """The seal of a payload that may otherwise be refused; None if unreadable."""
    try:
        return read_seal(read_object(payload))
    except WindowError:
        return None


def parse_window(payload: bytes, device: str) -> Window:
    """Read and check one payload that came on `device`'s topic. Raises WindowError."""
    value = read_message(payload, device, "window", _READ)
    model = _part(value, "model")
    latency = _histograms(value, "lat")
    dur_ms = read_integer(value, "dur", least=1, most=_MOST_DUR_MS)
    most = _MOST_A_MS * dur_ms + _MOST_AT_ONCE
    n, errors = read_integer(value, "n", most=most), read_integer(value, "err", most=most)
    compared = read_integer(value, "hc", most=most) if "hc" in value else 0
    if n != sum([h.count for h in latency.values()]):
        raise WindowError("shape", "'n' is not the number of answers in 'lat'")
    return Window(
        device=device,
        seal=read_seal(value),
        boot=read_integer(value, "boot", most=MOST_SEQ),
        t0_ms=read_integer(value, "t0"),
        dur_ms=dur_ms,
        clock_ok=read_integer(value, "clk") == 1,
        model=read_text(model, "id"),
        version=read_text(model, "ver"),
        sha=read_text(model, "sha"),
        profile=read_text(value, "prof"),
        n=n,
        errors=errors,
        host=read_integer(value, "fb", most=n),
        over_budget=read_integer(value, "bv", most=n),
        hits=read_integer(value, "ch", most=n),
        misses=read_integer(value, "cm", most=n) if "cm" in value else None,
        latency=latency,
        system=_system(value),
        compared=compared,
        differed=read_integer(value, "hd", most=compared) if compared else 0,
        **(_second(value, errors, most) if value["v"] == VERSION else {}),
    )


def _second(value: Mapping[str, Any], errors: int, most: int) -> dict[str, Any]:
    """The fields of version 2; each is absent if there is nothing to report."""
    stages = _histograms(value, "st") if "st" in value else {}
    unknown = not stages.keys() <= _STAGES
    stages |= _histograms({"tk": {_TOKEN: value["tk"]}}, "tk") if "tk" in value else {}
    if unknown or max([histogram.count for histogram in stages.values()], default=0) > 2 * most:
        raise WindowError("shape", "'st' has an unknown stage or counts too much")
    codes = value.get("ec", {})
    if not isinstance(codes, dict) or len(codes) > _MOST_CODES + 1 or not all(map(_CODE.match, codes)):
        raise WindowError("shape", "'ec' is not an object of error codes")
    error_codes = {code: read_integer(codes, code, least=1, most=errors) for code in codes}
    if sum(error_codes.values()) > errors:
        raise WindowError("shape", "'ec' counts more errors than 'err'")
    share = value.get("cl", [0, 0])
    if not isinstance(share, list) or len(share) != 2:
        raise WindowError("shape", "'cl' is not [clipped, values]")
    counted = {"cl": share[0], "of": share[1]}
    values = read_integer(counted, "of", most=_MOST_VALUES)
    psi = value.get("psi")
    if psi is not None and (isinstance(psi, bool) or not isinstance(psi, (int, float)) or not 0 <= psi <= _MOST_PSI):
        raise WindowError("shape", "'psi' is out of range")
    labels = _part(value, "lab") if "lab" in value else {}
    shadow = _shadow(_part(value, "sh"), most) if "sh" in value else None
    return {
        "stages": stages,
        "refused_by_budget": read_integer(value, "rb", most=errors) if "rb" in value else 0,
        "error_codes": error_codes,
        "dropped": read_integer(value, "fd", most=most) if "fd" in value else 0,
        "clipped": read_integer(counted, "cl", most=values),
        "values": values,
        "psi": None if psi is None else float(psi),
        "site": read_text(labels, "site") if labels else "",
        "group": read_text(labels, "group") if labels else "",
        "shadow": shadow,
        "semantic": _bound(value["se"]) if "se" in value else None,
    }


def _shadow(value: Mapping[str, Any], most: int) -> ShadowWindow:
    n, sha, why = read_integer(value, "n", most=most), value.get("sha"), value.get("no", "")
    figures = {name: value.get(name) for name in ("ms", "mb", "psi")}
    if not isinstance(sha, str) or not _SHA.match(sha) or not (why == "" or (is_text(why, 40) and _CODE.match(why))):
        raise WindowError("shape", "'sh' names no bundle, or no code")
    if any(
        type(one) not in (int, float, type(None)) or not 0 <= (one or 0) <= _MOST_FIGURE for one in figures.values()
    ):
        raise WindowError("shape", "'sh' has a figure that is out of range")
    try:
        ratios = Histogram.from_wire(value["ra"]) if n else Histogram()
    except (KeyError, ValueError) as error:
        raise WindowError("shape", f"'sh' has no ratios: {error}") from error
    if ratios.count != n:
        raise WindowError("shape", "'sh' has not as many ratios as answers")
    skipped = read_integer(value, "sk", most=most)
    return ShadowWindow(sha, n, read_integer(value, "eq", most=n), skipped, ratios, rests=why, **figures)


def _bound(value: object) -> BoundStats:
    if not isinstance(value, list) or len(value) not in (6, 8):
        raise WindowError("shape", "'se' is not a list of six or eight numbers")
    shares, counts = [*value[:2], *value[6:]], dict(zip(("gi", "wi", "sa", "wr"), value[2:6], strict=True))
    if any(type(one) not in (int, float) or not 0 <= one <= 1 for one in shares):
        raise WindowError("shape", "'se' has a share that is not from 0 to 1")
    given, withheld, sampled = (read_integer(counts, name) for name in ("gi", "wi", "sa"))
    wrong = read_integer(counts, "wr", most=sampled)
    if bool(sampled) != (len(value) == 8):
        raise WindowError("shape", "'se' has no interval of what was compared")
    rate, ci95 = (wrong / sampled, (float(value[6]), float(value[7]))) if sampled else (None, None)
    return BoundStats(float(value[0]), value[1] > 0, float(value[1]), given, withheld, sampled, wrong, rate, ci95)


def read_seal(value: Mapping[str, Any]) -> Seal:
    spool = _part(value, "spool")
    seq = read_integer(value, "seq", least=1, most=MOST_SEQ)
    floor = read_integer(value, "floor", least=1, most=seq)
    return Seal(
        read_hex(value, "epoch"), seq, floor, read_integer(value, "drop", most=floor - 1),
        read_integer(spool, "n", most=MOST_SEQ), read_integer(spool, "b", most=MOST_SEQ),
    )  # fmt: skip


def read_hex(value: Mapping[str, Any], name: str) -> str:
    digits = value.get(name)
    if not isinstance(digits, str) or not _HEX.match(digits):
        raise WindowError("shape", f"'{name}' is not 16 hexadecimal digits")
    return digits


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


def read_message(payload: bytes, device: str, what: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """`read_object`, checking version and device. Raises WindowError."""
    value = read_object(payload)
    version, sender = value.get("v"), value.get("dev")
    if type(version) is not int or version not in versions:
        raise WindowError("version", f"{what} format {str(version)[:20]!r} is not supported (supported: {versions})")
    if sender != device:
        raise WindowError("device", f"the payload says it is from {str(sender)[:80]!r}")
    return value


def _part(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    if not isinstance(part, dict):
        raise WindowError("shape", f"'{name}' is not an object")
    return part


def read_integer(value: Mapping[str, Any], name: str, *, least: int = 0, most: int = _MOST_INTEGER) -> int:
    number = value.get(name)
    if type(number) is not int or not least <= number <= most:  # a bool is not one
        raise WindowError("shape", f"'{name}' must be a whole number from {least} to {most}")
    return number


def read_text(value: Mapping[str, Any], name: str) -> str:
    text: str = value.get(name)  # type: ignore[assignment]
    if not is_text(text, _MOST_TEXT):
        raise WindowError("shape", f"'{name}' must be text of at most {_MOST_TEXT} characters")
    return text


def is_text(value: object, most: int) -> bool:
    """Whether it is a string of at most `most` characters that every store can hold.

    Control characters and halves of surrogate pairs, which JSON can spell and UTF-8 cannot, are refused.
    """
    if not isinstance(value, str) or len(value) > most:
        return False
    return (value.isascii() and value.isprintable()) or NO_TEXT.search(value) is None


def _histograms(value: Mapping[str, Any], name: str) -> dict[str, Histogram]:
    given = _part(value, name)
    if len(given) > 8 or not all(map(_SOURCE.match, given)):
        raise WindowError("shape", f"'{name}' has unknown sources")
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
        if type(figure) not in ((int,) if whole else (int, float)) or not least <= figure <= most:
            raise WindowError("shape", f"'{name}' is out of range")
        found[name] = figure if whole else float(figure)
    return System(**found)

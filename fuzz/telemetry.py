"""What comes from boards over a broker: windows, events and states.

An input is a payload; its tree is changed and spelt anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random

from edgekit.fleet.store.messages import origin, parse_event, parse_window
from edgekit.fleet.store.records import parse_state
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.messages import EVENT_KINDS, MOST_EVENT_TEXT, encode_event, encode_part
from edgekit_runtime.telemetry.samples import SAMPLE
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload
from fuzz.octets import altered
from fuzz.target import Target
from fuzz.trees import changed, spelt

_DEVICE = "porch-1"
_EPOCH = "0123456789abcdef"
_MOST = (1 << 53) - 1


def _read_window(data: bytes) -> None:
    known = origin(data)
    found = parse_window(data, _DEVICE)
    assert known == found.seal
    assert found.device == _DEVICE
    assert 0 <= found.hits <= found.n
    together = Histogram()
    for one in found.latency.values():
        again = Histogram.from_wire(one.wire())
        assert (again.buckets, again.scale, again.zeros, again.count) == (one.buckets, one.scale, one.zeros, one.count)
        together.merge(one)
    assert together.count == found.n
    if found.n:
        middle, last = together.quantile(0.5), together.quantile(0.999)
        assert middle is not None
        assert last is not None
        assert 0 <= middle <= last < 2.0**66
    together.at_most(3)
    json.dumps(together.wire(), allow_nan=False)


def _read_state(data: bytes) -> None:
    found = parse_state(data)
    if found.birth is not None:
        assert 0 < found.birth.window_s < 1e10
        assert found.birth.software.encode() is not None


@cache
def _windows() -> Sequence[bytes]:
    slow, quick, nothing = Histogram(), Histogram(), Histogram()
    for value in (0.0, 3.0, 3.1, 3.2, 40.0, 9000.0):
        slow.record(value)
    for value in (0.02, 0.03):
        quick.record(value)
    about = About(_DEVICE, "net", "1", "0" * 64, "raspberry-pi-4", 50.0)
    board = System(12.5, 40.0, 61.5, 0, 1200)
    made = []
    for latency in ({"device": slow, "cache": quick}, {"device": slow, "host": quick}, {"device": nothing}):
        late = 2 if latency["device"].count else 0
        counted = CountedWindow(
            latency, {"decode": 2, "budget": 1}, late, refused=1, stages={"infer": slow}, clipped=3, values=90
        )
        report = Report(about, 3, 1_800_000_000_000, 60_000, True, counted, board, psi=0.1)
        made.append(sealed_payload(encode(report), Seal(_EPOCH, 41, 12, 3, 30, 30_000)))
    return made


def _read_event(data: bytes) -> None:
    known = origin(data)
    found = parse_event(data, _DEVICE)
    assert known == found.seal
    assert found.kind in EVENT_KINDS
    assert len(found.text.encode()) <= 4 * MOST_EVENT_TEXT


@cache
def _events() -> Sequence[bytes]:
    about = {"device": _DEVICE, "boot": 3, "t0_ms": 1_800_000_000_000, "clock_ok": True}
    said = [encode_event(kind, "runs net 2 instead of net 1", **about) for kind in EVENT_KINDS if kind != SAMPLE]
    part = {"id": "0123456789abcdef", "part": 0, "parts": 2, "data": "c2VhbGVk"}
    seal = Seal(_EPOCH, 41, 12, 3, 30, 30_000)
    return [sealed_payload(body, seal) for body in (*said, encode_part(part, **about))]


@cache
def _states() -> Sequence[bytes]:
    birth = {
        "on": 1, "epoch": _EPOCH, "boot": 3, "sw": "0.1.0", "model": "net", "ver": "1", "sha": "0" * 12,
        "profile": "raspberry-pi-4",
        "hw": "Raspberry Pi 4", "sla": 50.0, "win": 60.0,
    }  # fmt: skip
    return [json.dumps(one).encode() for one in (birth, {"on": 0, "epoch": _EPOCH, "boot": 3})]


def _mutate(data: bytes, random: Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return altered(data, random)
    if isinstance(value, dict) and isinstance(value.get("lat"), dict) and random.random() < 0.5:
        return spelt(_mutate_histogram(value, random), random)
    return spelt(changed(value, random), random)


def _mutate_histogram(value: dict[str, object], random: Random) -> object:
    """Another histogram, and an 'n' that fits it as far as it can."""
    latency = value["lat"]
    assert isinstance(latency, dict)
    counts = [
        random.choice((0, 1, 2, 7, -1, -2, -10, -4096, -4097, _MOST, 1 << 53, 1 << 54, 1.0, None))
        for _ in range(random.choice((0, 1, 3, 3, 9, 300)))
    ]
    source = random.choice(("device", "cache", "host", "stale", "a" * 17, "Device", "é"))
    histogram = [
        random.choice((5, 5, 5, 0, 3, 6, -1, 99, "5")),
        random.choice((0, 53, -64, -2048, 2048, 2049, -2049, 10**9)),
        counts,
    ]
    if random.random() < 0.4:
        histogram.append(random.choice((0, 1, _MOST, -1, None)))
    latency[source] = histogram
    try:
        value["n"] = sum(n for one in latency.values() for n in (*one[2], *one[3:]) if isinstance(n, int) and n > 0)
    except (TypeError, IndexError, KeyError):
        value["n"] = 0
    return value


def window() -> Target:
    return Target("window", _read_window, (WindowError,), _windows, _mutate, 1 << 15)


def event() -> Target:
    return Target("event", _read_event, (WindowError,), _events, _mutate, 1 << 13)


def state() -> Target:
    return Target("state", _read_state, (WindowError,), _states, _mutate, 1 << 13)

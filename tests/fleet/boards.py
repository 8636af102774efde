"""Windows and states of boards that are not there, made by the code that boards run."""

from __future__ import annotations

import json

from edgekit.fleet.store.messages import parse_window
from edgekit.fleet.store.records import Arrival, Change, parse_state
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

EPOCH = "00112233445566aa"
NOW = 1_790_000_000_000 - 1_790_000_000_000 % 900_000 + 60_000
"""A minute into a quarter of an hour, in 2026."""


def histogram(values):
    made = Histogram()
    for value in values:
        made.record(value)
    return made


def body(device="porch-1", *, at=NOW, ms=(10.0, 20.0), cached=0, host=0, over=None, version="1", clock=True, temp=50.0,
         model="digits", profile="raspberry-pi-4", errors=0,
         error_codes=None, psi=None, semantic=None, token_ms=(), **more):  # fmt: skip
    latency = {"device": histogram(ms)}
    if cached:
        latency["cache"] = histogram([0.02] * cached)
    if host:
        latency["host"] = histogram([15.0] * host)
    about = About(device, model, version, "9f3c01ab77de", profile, 30.0)
    over = sum(value > 30.0 for value in ms) if over is None else over
    counted = CountedWindow(latency, error_codes or {}, over, **more)
    counted.stages |= {"token": histogram(token_ms)} if token_ms else {}
    report = Report(about, 1, at - 60_000, 60_000, clock, counted, System(temp=temp), psi, semantic=semantic)
    made = json.loads(encode(report))
    if errors != sum((error_codes or {}).values()):
        made["err"] = errors  # also those that no code names
    return json.dumps(made, separators=(",", ":")).encode()


def payload(seq, device="porch-1", *, epoch=EPOCH, floor=1, dropped=0, **of_body):
    return sealed_payload(body(device, **of_body), Seal(epoch, seq, floor, dropped, seq - floor + 1, 400))


def arrival(seq, device="porch-1", *, received=NOW, refused="", **more):
    data = payload(seq, device, **more)
    window = parse_window(data, device)
    return Arrival(device, window.seal, received, data, None if refused else window, refused)


def birth(device="porch-1", *, on=True, epoch=EPOCH, boot=1, received=NOW, retained=False, **changes):
    value = {"on": int(on), "epoch": epoch, "boot": boot}
    if on:
        value |= {"sw": "edgekit 0.1.0", "model": "digits", "ver": "1", "sha": "9f3c01ab77de",
            "profile": "raspberry-pi-4",
                  "hw": "Raspberry Pi 4 Model B", "sla": 30.0, "win": 60.0}  # fmt: skip
    return Change(device, received, parse_state(json.dumps(value | changes).encode()), retained)


def windows(store, name):
    """(epoch, seq) of the raw windows that a store still keeps of a board."""
    return [tuple(row) for row in store.select(
        'SELECT w.epoch, w.seq FROM win AS w JOIN device AS d ON d.num = w.device WHERE d."id" = ? '
        "ORDER BY w.epoch, w.seq", (name,),
    )]  # fmt: skip

"""What a board and its fleet say beside windows: events, state, acknowledgements.

    body = encode_event("install", "runs net 2 instead of net 1", device="porch-1", boot=1, t0_ms=0, clock_ok=True)
    parse_event(sealed_payload(body, seal), "porch-1").kind             # "install"
    parse_ack(b'{"epoch": "9f3c...", "hwm": 41}').hwm                   # 41

Rules: what comes from outside is refused with one word, or ignored, and never guessed; a text has no control character
and a bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from edgekit_runtime.errors import WindowError
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.telemetry.board import hardware
from edgekit_runtime.telemetry.window import (
    MOST_SEQ,
    NO_TEXT,
    About,
    Seal,
    is_text,
    read_integer,
    read_object,
    read_seal,
)

EVENT_VERSION = 1
EVENT_KINDS = ("install", "rollback", "trial", "throttling", "spool")
MOST_EVENT_TEXT = 160
_MOST_ACK_BYTES = 4096


@dataclass(frozen=True)
class BoardEvent:
    """Something that happened on a board, as the host reads it.
    kind: one of EVENT_KINDS. The rest as in a window."""

    device: str
    seal: Seal
    boot: int
    t0_ms: int
    clock_ok: bool
    kind: str
    text: str
    dur_ms: int = 0


def encode_event(kind: str, text: str, *, device: str, boot: int, t0_ms: int, clock_ok: bool) -> bytes:
    """The body of an event. It begins with its kind, by which the spool knows it."""
    value = {"kind": kind, "v": EVENT_VERSION, "dev": device, "boot": boot, "t0": t0_ms, "clk": int(clock_ok),
        "text": NO_TEXT.sub(" ", text)[:MOST_EVENT_TEXT]}  # fmt: skip
    return json.dumps(value, separators=(",", ":")).encode()


def parse_event(payload: bytes, device: str) -> BoardEvent:
    """Read and check one event that came on `device`'s topic. Raises WindowError."""
    value = read_object(payload)
    if value.get("v") != EVENT_VERSION or isinstance(value.get("v"), (bool, float)):
        raise WindowError("version", f"event format {str(value.get('v'))[:20]!r} is not {EVENT_VERSION}")
    if value.get("dev") != device:
        raise WindowError("device", f"the payload says it is from {str(value.get('dev'))[:80]!r}")
    if value.get("kind") not in EVENT_KINDS:
        raise WindowError("shape", "'kind' is no event's")
    if not is_text(value.get("text"), MOST_EVENT_TEXT):
        raise WindowError("shape", f"'text' is no text of at most {MOST_EVENT_TEXT} characters")
    return BoardEvent(
        device,
        read_seal(value),
        read_integer(value, "boot", most=MOST_SEQ),
        read_integer(value, "t0"),
        read_integer(value, "clk") == 1,
        value["kind"],
        value["text"],
    )


class Ack(NamedTuple):
    """credit: None where the fleet is of an earlier release.
    known: whether it has the birth of this boot."""

    epoch: str
    hwm: int
    credit: int | None
    known: bool


def parse_ack(payload: bytes) -> Ack | None:
    """None for anything else."""
    try:
        value = load_json(payload) if len(payload) <= _MOST_ACK_BYTES else {}
        epoch, hwm, credit = value["epoch"], value["hwm"], value.get("credit")
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(epoch, str) or type(hwm) is not int:
        return None
    return Ack(epoch, hwm, credit if type(credit) is int and credit >= 0 else None, value.get("known") != 0)


def encode_state(epoch: str, boot: int, about: About | None, window_s: float) -> bytes:
    """What is published when a board comes, and, with None for `about`, when it goes."""
    value: dict[str, object] = {"on": int(about is not None), "epoch": epoch, "boot": boot}
    if about is not None:
        value |= {
            "sw": _software(), "model": about.model[:64], "ver": about.version[:64], "sha": about.sha[:12],
            "profile": about.profile[:64], "hw": hardware(), "sla": about.budget_ms, "win": window_s,
            "site": about.site, "group": about.group,
        }  # fmt: skip
    return json.dumps(value, separators=(",", ":")).encode()


def _software() -> str:
    import importlib.metadata

    try:
        return "edgekit " + importlib.metadata.version("edgekit-deploy")
    except importlib.metadata.PackageNotFoundError:
        return "edgekit"

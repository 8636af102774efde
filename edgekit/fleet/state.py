"""What boards say of themselves on `state`: births and deaths, read and checked.

parse_state(b'{"on":1,...}')            # a State with a birth
parse_state(b'{"on":0,"epoch":"..","boot":3}').on
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit_runtime.errors import WindowError
from edgekit_runtime.strict_json import load_json
from edgekit_runtime.telemetry.window import is_text

__all__ = ["Birth", "State", "parse_state"]

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

"""Orders and reports as they travel: JSON, retained, on `ek/v1/ID/cmd` and `ek/v1/ID/rep`.

    order = parse_order(payload)            # the bundle that a board should have
    OrderReport(order.rev, "committed", "7").encode()

Rules:
- an order names a bundle by the SHA-256 of its whole file; it carries no key, and grants nothing;
- a bundle is fetched by http or https alone; an order without a URL is for a bundle that the board still keeps;
- every text is bounded and has no control characters; what does not fit is refused with one word, as windows are. Names
  and versions, which are for people, travel shortened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from edgekit_runtime.errors import WindowError
from edgekit_runtime.telemetry.window import is_text, read_object

Phase = Literal["fetching", "trial", "committed", "rolled-back", "refused", "failed"]
"""refused: not accepted, nothing of it ran. rolled-back: its self-test or trial failed. failed: it could not be
fetched or stored.
"""
FINAL: tuple[Phase, ...] = ("committed", "rolled-back", "refused", "failed")
MOST_ERROR = 200
_MOST_BYTES = 4096
_MOST_NAME = 64
_MOST_REV = (1 << 53) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Order:
    """What a board should have. rev: of this order; another one is another order.

    sha256: of the whole file. url: where it is, empty for a bundle that the board keeps. root: the name of the install
    root that is meant, empty for any.
    """

    rev: int
    name: str
    version: str
    sha256: str
    url: str = ""
    root: str = ""

    def encode(self) -> bytes:
        called = {"name": self.name[:_MOST_NAME], "version": self.version[:_MOST_NAME]}
        bundle = {**called, "sha256": self.sha256, "url": self.url}
        value: dict[str, Any] = {"rev": self.rev, "bundle": bundle}
        if self.root:
            value["root"] = self.root
        return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Former:
    """The bundle to which a board can go back without fetching it. sha256: of the whole file."""

    version: str
    sha256: str


@dataclass(frozen=True)
class OrderReport:
    """How an order stands.

    version: the one that is active.
    former: see there, None where the board keeps none.
    sha256: of the ordered bundle, by which a report of another one under the same rev is recognized; empty where a
    board does not say it.
    """

    rev: int
    phase: Phase
    version: str = ""
    error: str = ""
    code: str = ""
    former: Former | None = None
    sha256: str = ""

    def encode(self) -> bytes:
        value: dict[str, Any] = {
            "rev": self.rev, "phase": self.phase, "version": self.version[:_MOST_NAME], "error": self.error,
            "code": self.code,
        }  # fmt: skip
        if self.sha256:
            value["sha256"] = self.sha256
        if self.former is not None:
            value["from"] = {"version": self.former.version[:_MOST_NAME], "sha256": self.former.sha256}
        return json.dumps(value, separators=(",", ":")).encode()


def parse_order(payload: bytes) -> Order:
    """Raises WindowError."""
    value = read_object(payload, _MOST_BYTES)
    bundle = value.get("bundle")
    if not isinstance(bundle, dict):
        raise WindowError("shape", "'bundle' is no object")
    url = _text(bundle, "url", 2048)
    if url:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            known = False
        if not known:
            raise WindowError("shape", "'url' is no http or https URL")
    root = _text(value, "root", 64) if "root" in value else ""
    name, version = (_text(bundle, key, _MOST_NAME) for key in ("name", "version"))
    return Order(_rev(value), name, version, _sha256(bundle), url, root)


def parse_report(payload: bytes) -> OrderReport:
    """Raises WindowError."""
    value = read_object(payload, _MOST_BYTES)
    phase: Any = value.get("phase")
    if phase not in get_args(Phase):
        raise WindowError("shape", "'phase' is none")
    former = value.get("from")
    if former is not None and not isinstance(former, dict):
        raise WindowError("shape", "'from' is no object")
    return OrderReport(
        _rev(value),
        phase,
        _text(value, "version", _MOST_NAME),
        _text(value, "error", MOST_ERROR),
        _text(value, "code", 64),
        None if former is None else Former(_text(former, "version", _MOST_NAME), _sha256(former)),
        _sha256(value) if "sha256" in value else "",
    )


def _rev(value: Mapping[str, Any]) -> int:
    rev = value.get("rev")
    if not isinstance(rev, int) or isinstance(rev, bool) or not 1 <= rev <= _MOST_REV:
        raise WindowError("shape", "'rev' is no whole number above 0")
    return rev


def _text(value: Mapping[str, Any], name: str, most: int) -> str:
    text = value.get(name)
    if not is_text(text, most):
        raise WindowError("shape", f"'{name}' is no text of at most {most} characters")
    return str(text)


def _sha256(value: Mapping[str, Any]) -> str:
    digest = value.get("sha256")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise WindowError("shape", "'sha256' is not 64 hexadecimal digits")
    return digest

"""Orders and reports on `ek/v1/ID/cmd` and `/rep` (retained JSON), and an agent's next step.

    order = parse_order(payload)            # the bundle that a board should have
    OrderReport(order.rev, "committed", "7").encode()
    decide(AgentNote(order=order, phase="fetching"), RootState(current="ab12.."))     # "install"

Rules:
- an order names a bundle by the SHA-256 of its whole file; it carries no key, and grants nothing. Without a URL it is
  for a bundle that the board still keeps, which is activated and not fetched;
- every text is bounded, without control characters; names and versions, which only users read, are shortened;
- a finished order never begins again: only a higher rev, or another bundle under it, is another order. A rev counts up
  to an hour ahead of this board's clock, so that one from the far future locks no later order out;
- the root's state decides, not what was planned: after a kill the same question gives the right step;
- orders have a rate: `MOST_ORDERS` at once, and one more each `ORDER_S`. The last one to come is the one that waits;
- what may pass later (network, disk, another install) is retried `MOST_TRIES` times with growing pauses; a bundle that
  was refused or failed is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from edgekit_runtime.system.errors import DownloadError, EdgekitError, StorageError, WindowError
from edgekit_runtime.system.strict_json import compact_json
from edgekit_runtime.telemetry.window import is_text, read_object

Phase = Literal["fetching", "trial", "committed", "rolled-back", "refused", "failed", "shadowing"]
"""refused: not accepted, nothing of it ran. rolled-back: self-test or trial failed. failed: not fetched or stored.
shadowing: fetched and checked, for the application to try in silence."""
FINAL: tuple[Phase, ...] = ("committed", "rolled-back", "refused", "failed", "shadowing")
MOST_ERROR = 200
_MOST_BYTES = 4096
_MOST_NAME = 64
_MOST_REV = (1 << 53) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Order:
    """What a board should have.

    rev: of this order; another one is another order.
    sha256: of the whole file.
    url: empty for a bundle that the board keeps.
    root: name of the install root, empty for any.
    shadow: share of the requests that it answers in silence, which an older agent refuses; 0 to install it.
    """

    rev: int
    name: str
    version: str
    sha256: str
    url: str = ""
    root: str = ""
    shadow: float = 0.0

    def encode(self) -> bytes:
        called = {"name": self.name[:_MOST_NAME], "version": self.version[:_MOST_NAME]}
        bundle = {**called, "sha256": self.sha256, "url": self.url}
        value: dict[str, Any] = {"rev": self.rev, "bundle": bundle}
        if self.shadow:
            value = {"rev": self.rev, "shadow": bundle, "share": float(self.shadow)}
        if self.root:
            value["root"] = self.root
        return compact_json(value)


@dataclass(frozen=True)
class Former:
    """The bundle to which a board can go back without fetching it. sha256: of the whole file."""

    version: str
    sha256: str


@dataclass(frozen=True)
class OrderReport:
    """The state of an order.

    version: the active one.
    former: None if the board keeps none.
    sha256: of the ordered bundle, to recognize a report of another one under the same rev; empty if not reported.
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
        return compact_json(value)


def parse_order(payload: bytes) -> Order:
    """Raises WindowError."""
    value = read_object(payload, _MOST_BYTES)
    what = "bundle" if "bundle" in value else "shadow"
    bundle, share = value.get(what), value.get("share", 0.0)
    if not isinstance(bundle, dict):
        raise WindowError("shape", "neither 'bundle' nor 'shadow' is an object")
    if what == "shadow" and (type(share) is not float or not 0.0 < share <= 1.0):
        raise WindowError("shape", "'share' is not above 0 and at most 1")
    url = _text(bundle, "url", 2048)
    if url:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            known = False
        if not known:
            raise WindowError("shape", "'url' is not an http or https URL")
    root = _text(value, "root", 64) if "root" in value else ""
    name, version = (_text(bundle, key, _MOST_NAME) for key in ("name", "version"))
    return Order(_rev(value), name, version, _sha256(bundle), url, root, share if what == "shadow" else 0.0)


def parse_report(payload: bytes) -> OrderReport:
    """Raises WindowError."""
    value = read_object(payload, _MOST_BYTES)
    phase: Any = value.get("phase")
    if phase not in get_args(Phase):
        raise WindowError("shape", "unknown 'phase'")
    former = value.get("from")
    if former is not None and not isinstance(former, dict):
        raise WindowError("shape", "'from' is not an object")
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
        raise WindowError("shape", "'rev' is not a positive integer")
    return rev


def _text(value: Mapping[str, Any], name: str, most: int) -> str:
    text = value.get(name)
    if not is_text(text, most):
        raise WindowError("shape", f"'{name}' is not a text of at most {most} characters")
    return str(text)


def _sha256(value: Mapping[str, Any]) -> str:
    digest = value.get("sha256")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise WindowError("shape", "'sha256' is not 64 hexadecimal digits")
    return digest


MOST_TRIES = 20
MOST_ORDERS, ORDER_S = 8, 300.0
_AHEAD_MS = 3_600_000
_FIRST_PAUSE_S, _MOST_PAUSE_S = 30.0, 3600.0
Step = Literal["nothing", "install", "activate", "give-up-trial", "wait", "committed", "rolled-back", "failed", "gone"]
"""gone: the order has no URL, and the board keeps no such bundle."""


@dataclass(frozen=True)
class AgentNote:
    """ROOT/agent.json: the order in hand and how far it is.

    tries: how often an install began for it.
    former_version, former_sha256: what was active before it.
    switched: a step began that may switch bundles.
    last_rev: no order of a lower number is accepted.
    """

    format: int = 1
    order: Order | None = None
    phase: Phase | None = None
    error: str = ""
    code: str = ""
    tries: int = 0
    switched: bool = False
    former_version: str = ""
    former_sha256: str = ""
    last_rev: int = 0

    @property
    def final(self) -> bool:
        return self.phase in FINAL


@dataclass(frozen=True)
class RootState:
    """current, on_trial, previous: SHA-256 of the files that a root keeps, or empty."""

    current: str = ""
    version: str = ""
    on_trial: str = ""
    previous: str = ""
    previous_number: int = 0


class OrderRate:
    """How many orders may begin. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._left, self._at = clock, float(MOST_ORDERS), clock()

    def take(self) -> bool:
        """Whether one more may begin now."""
        now = self._clock()
        self._left, self._at = min(float(MOST_ORDERS), self._left + (now - self._at) / ORDER_S), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def next_note(note: AgentNote, order: Order | None, root: RootState, now_ms: int) -> AgentNote:
    """The note for another order, or for none. now_ms: by this board's clock."""
    if order is None:
        return AgentNote(last_rev=note.last_rev)
    last = max(note.last_rev, min(order.rev, now_ms + _AHEAD_MS))
    return AgentNote(order=order, former_version=root.version, former_sha256=root.current, last_rev=last)


def decide(note: AgentNote, root: RootState) -> Step:
    order = note.order
    if order is None or note.final:
        return "nothing"
    if order.shadow:
        return "gone" if not order.url else "install" if note.tries < MOST_TRIES else "failed"
    if root.on_trial:
        return "wait" if root.on_trial == order.sha256 else "give-up-trial"
    if root.current == order.sha256:
        return "committed"
    if note.phase == "trial":  # it was on trial, and is neither that nor active
        return "rolled-back"
    if root.previous == order.sha256:
        return "activate"
    if not order.url:
        return "gone"
    return "install" if note.tries < MOST_TRIES else "failed"


def outcome(error: EdgekitError, began_trial: bool) -> Phase | None:
    """The final phase of a failed install; None if it is worth a retry.

    began_trial: the self-test had begun.
    """
    if error.code in ("selftest", "trial-failed"):
        return "rolled-back"
    if isinstance(error, StorageError) or error.code == "install-busy":
        return None
    if isinstance(error, DownloadError):
        return "refused" if error.code == "download-size" else None
    return "rolled-back" if began_trial else "refused"


def pause_s(tries: int) -> float:
    """Longest pause before the next try; the caller takes a random part of it."""
    return float(min(_MOST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(max(0, tries - 1), 10)))

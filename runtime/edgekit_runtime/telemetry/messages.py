"""Events, state and acknowledgements of a board; and which windows to send next.

    body = encode_event("install", "runs net 2 instead of net 1", device="porch-1", boot=1, t0_ms=0, clock_ok=True)
    parse_ack(b'{"epoch": "9f3c...", "hwm": 41}').hwm                   # 41
    for seq in flow.take(now, spool.floor, spool.last, events): ...     # they count as sent
    flow.confirmed(mark, credit, now)

Rules:
- input from outside is refused with one word, or ignored, and never guessed; a text is bounded, without control
  characters;
- events first, then the newest window, then the backlog, oldest first, by the credit of an acknowledgement (`most` if
  it names none). Without credit one window of it goes out each `trickle_s`;
- a window is sent once a connection: the one after the mark again after `patience_s` without progress, others missing
  as soon as the mark moves. A new connection begins again at the oldest unconfirmed one;
- if nothing is confirmed for `patience_s`, the newest window goes out as a probe, ever more rarely up to
  `most_patience_s`: a broker without an ingestor accepts everything;
- any confirmation opens the flow again; only one that moves the mark counts as progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from edgekit_runtime.system.strict_json import compact_json, load_json
from edgekit_runtime.telemetry.board_state import hardware
from edgekit_runtime.telemetry.samples import SAMPLE
from edgekit_runtime.telemetry.window import (
    NO_TEXT,
    About,
)

EVENT_VERSION = 1
EventKind = Literal["install", "rollback", "trial", "throttling", "spool", "sample"]
EVENT_KINDS = get_args(EventKind)
MOST_EVENT_TEXT = 160
_MOST_ACK_BYTES = 4096


def encode_event(kind: str, text: str, *, device: str, boot: int, t0_ms: int, clock_ok: bool) -> bytes:
    """The body of an event. It begins with its kind, by which the spool recognizes it."""
    head = {"kind": kind, "v": EVENT_VERSION, "dev": device, "boot": boot, "t0": t0_ms, "clk": int(clock_ok)}
    return compact_json(head | {"text": NO_TEXT.sub(" ", text)[:MOST_EVENT_TEXT]})


def encode_part(fields: Mapping[str, object], *, device: str, boot: int, t0_ms: int, clock_ok: bool) -> bytes:
    """A part of a sample. Its kind stands last: the spool takes it for a window."""
    value = {"v": EVENT_VERSION, "dev": device, "boot": boot, "t0": t0_ms, "clk": int(clock_ok), "text": "", **fields}
    return compact_json(value | {"kind": SAMPLE})


class Ack(NamedTuple):
    """credit: None from a fleet of an earlier release.
    known: whether it has the birth of this boot.
    """

    epoch: str
    hwm: int
    credit: int | None
    known: bool


def parse_ack(payload: bytes) -> Ack | None:
    """Parse an acknowledgement; None if invalid."""
    try:
        value = load_json(payload) if len(payload) <= _MOST_ACK_BYTES else {}
        epoch, hwm, credit = value["epoch"], value["hwm"], value.get("credit")
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(epoch, str) or type(hwm) is not int:
        return None
    return Ack(epoch, hwm, credit if type(credit) is int and credit >= 0 else None, value.get("known") != 0)


def encode_state(epoch: str, boot: int, about: About | None, window_s: float) -> bytes:
    """The board's state: on, or off if `about` is None."""
    value: dict[str, object] = {"on": int(about is not None), "epoch": epoch, "boot": boot}
    if about is not None:
        value |= {
            "sw": _software(), "model": about.model[:64], "ver": about.version[:64], "sha": about.sha[:12],
            "profile": about.profile[:64], "hw": hardware(), "sla": about.budget_ms, "win": window_s,
            "site": about.site, "group": about.group,
        }  # fmt: skip
    return compact_json(value)


def _software() -> str:
    import importlib.metadata

    try:
        return "edgekit " + importlib.metadata.version("edgekit-deploy")
    except importlib.metadata.PackageNotFoundError:
        return "edgekit"


class Flow:
    """silent: nothing was confirmed for a while; probes are sent."""

    def __init__(self, patience_s: float = 5.0, most_patience_s: float = 300.0, trickle_s: float = 30.0) -> None:
        self._most, self._least_patience_s, self._most_patience_s = 20, patience_s, most_patience_s
        self._trickle_s = trickle_s
        self._mark = self._last = 0
        self.begin()

    def begin(self) -> None:
        """Reset for a new connection or spool."""
        self._sent: dict[int, float] = {}  # above the mark, on this connection; when
        self._newest = 0  # the last window that went out because it was the newest
        self._next = 0  # of the backlog; nothing below it is left to send
        self._credit = self._unanswered = 0
        self._until = float("inf")  # when the credit ends
        self._answered_at = self._moved_at = self._unanswered_since = float("-inf")
        self._patience_s = self._least_patience_s
        self._repair = 0
        self.silent = False

    def forget(self) -> None:
        """As `begin`, for another epoch: the mark starts at 0."""
        self.begin()
        self._mark = 0

    def take(self, now: float, floor: int, last: int, events: Sequence[int] = ()) -> list[int]:
        """What to send now, in this order. floor, last: the oldest and the newest of the spool."""
        self._last, first = last, max(self._mark + 1, floor)
        if self._unanswered and now - self._unanswered_since >= self._patience_s:
            self._patience_s = min(2.0 * self._patience_s, self._most_patience_s)
            self._sent.clear()
            self._next = self._credit = self._unanswered = self._repair = 0
            self.silent = True
        if self.silent:
            picked = [last] if last >= first and not self._unanswered else []
        else:
            picked = [seq for seq in events if first <= seq and seq not in self._sent][: self._room]
            if last >= first and last > self._newest and last not in self._sent and last not in picked:
                picked.append(last)
            if self._mark + 1 in self._sent and now >= self._hole_at:
                self._repair = max(self._sent)
                picked.append(self._mark + 1)
            picked += self._backlog(now, first, picked)
        for seq in picked:
            if not self._unanswered:
                self._unanswered_since = now
            self._unanswered += 1
            self._sent[seq] = now
        self._newest = max(self._newest, last)
        return picked

    def due_s(self, now: float) -> float | None:
        """Seconds until `take` has more with nothing else happening; None for never."""
        due = []
        if self._unanswered:
            due.append(self._unanswered_since + self._patience_s)
        if not self.silent and self._mark + 1 in self._sent:
            due.append(self._hole_at)
        if not self.silent and self._answered_at > 0 and self._next_of_backlog(0, ()) is not None:
            due.append(self._answered_at + self._trickle_s)
        return max(0.0, min(due) - now) if due else None

    def confirmed(self, mark: int, credit: int | None, now: float) -> None:
        """The ingestor has stored everything up to `mark`. A mark may repeat, or come late."""
        if mark > self._mark:
            self._mark, self._moved_at = mark, now
            self._sent = {seq: at for seq, at in self._sent.items() if seq > mark}
            if mark < self._repair and mark + 1 in self._sent:
                self._sent[mark + 1] = self._moved_at = float("-inf")
        self._answered_at, self._unanswered, self.silent = now, 0, False
        self._patience_s = self._least_patience_s
        self._credit = self._most if credit is None else min(credit, self._most)
        self._until = now + self._least_patience_s

    @property
    def _room(self) -> int:
        return max(0, self._most - self._unanswered)

    @property
    def _hole_at(self) -> float:
        return max(self._sent[self._mark + 1], self._moved_at) + self._least_patience_s

    def _next_of_backlog(self, first: int, beside: Sequence[int]) -> int | None:
        seq = max(first, self._mark + 1, self._next)
        while seq <= self._last and (seq in self._sent or seq in beside):
            seq += 1
        return seq if seq <= self._last else None

    def _backlog(self, now: float, first: int, beside: Sequence[int]) -> list[int]:
        """Backlog windows, as credit allows."""
        if now >= self._until:
            self._credit = 0
        if not self._credit and now - self._answered_at >= self._trickle_s and self._answered_at > 0:
            self._credit, self._answered_at = 1, now
        picked: list[int] = []
        while self._credit and len(picked) + len(beside) < self._room:
            seq = self._next_of_backlog(first, beside)
            if seq is None:
                break
            picked.append(seq)
            self._next, self._credit = seq + 1, self._credit - 1
        return picked

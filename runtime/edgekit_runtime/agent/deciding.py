"""What an agent does next.
An order, what it wrote down of it, and how its root stands, in; one step out.

    decide(order, AgentNote(rev=7, phase="fetching"), RootState(current="ab12.."))     # "install"

Rules:
- an order that came to an end is never begun again: only a higher rev, or another bundle under it, is another order. A
  rev counts up to an hour ahead of this board's clock, so that one from far in the future locks no later order out;
- what the root says decides, not what was to be done: after a kill the same question gives the right step;
- a bundle that the root keeps is activated and not fetched; a trial that no order wants any more is given up;
- orders have a rate: `MOST_ORDERS` at once, and one more in `ORDER_S`. The last one to come is the one that waits;
- what may be better later (a network, a disk, another install) is tried again, `MOST_TRIES` times with growing pauses;
  a bundle that was refused or did not pass is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.agent.wire import FINAL, Order, Phase
from edgekit_runtime.errors import DownloadError, EdgekitError, StorageError

if TYPE_CHECKING:
    from edgekit_runtime.install.journal import Journal
    from edgekit_runtime.install.layout import Root

MOST_TRIES = 20
MOST_ORDERS, ORDER_S = 8, 300.0
_AHEAD_MS = 3_600_000
_FIRST_PAUSE_S, _MOST_PAUSE_S = 30.0, 3600.0
Step = Literal["nothing", "install", "activate", "give-up-trial", "wait", "committed", "rolled-back", "failed", "gone"]
"""gone: the order has no URL, and the board keeps no such bundle."""


@dataclass(frozen=True)
class AgentNote:
    """ROOT/agent.json: the order in hand and how far it is.

    tries: how often an install was begun for it.
    former_version, former_sha256: what was active before it. switched: a step was begun that may switch bundles.
    last_rev: no order of a lower number is taken.
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
    """SHA-256 of the files that a root keeps, empty for none.
    The generation to which it can go back."""

    current: str = ""
    version: str = ""
    on_trial: str = ""
    previous: str = ""
    previous_number: int = 0


class OrderRate:
    """How many orders are begun. clock: seconds, of any start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._left, self._at = clock, float(MOST_ORDERS), clock()

    def take(self) -> bool:
        """Whether one more may be begun now."""
        now = self._clock()
        self._left, self._at = min(float(MOST_ORDERS), self._left + (now - self._at) / ORDER_S), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def next_note(note: AgentNote, order: Order | None, root: RootState, now_ms: int) -> AgentNote:
    """The note of another order, or of none. now_ms: by this board's clock."""
    if order is None:
        return AgentNote(last_rev=note.last_rev)
    last = max(note.last_rev, min(order.rev, now_ms + _AHEAD_MS))
    return AgentNote(order=order, former_version=root.version, former_sha256=root.current, last_rev=last)


def standing_of(root: Root, journal: Journal) -> RootState:
    current, trial, previous = (root.perhaps(n) for n in (journal.current, journal.on_trial, journal.previous))
    return RootState(
        current.object if current else "",
        current.version if current else "",
        trial.object if trial else "",
        previous.object if previous else "",
        previous.number if previous else 0,
    )


def decide(note: AgentNote, root: RootState) -> Step:
    order = note.order
    if order is None or note.final:
        return "nothing"
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
    """The phase in which an install that failed ends; None where it is worth another try.

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
    """Before the next try; the caller takes a random part of it."""
    return float(min(_MOST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(max(0, tries - 1), 10)))

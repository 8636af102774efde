"""The journal of a root, and the state machine of an install.

    journal = parse_journal(text, where)
    journal.answering   # the generation that `current` must point at; None if nothing was installed
    step = react(journal, StepPassed(object="ab12..."))
    step.journal        # written first, durably
    step.tidy           # then `current` follows the journal, what it no longer names is removed
    step.work           # then this, whose outcome is the next event; None: the install is over

            fetching -> fetched -> verified -> staged -> selftest -> trial -> committed
    work    FETCH       VERIFY     STAGE       BURN      SELFTEST    TRIAL    -

    state     done               error          spontaneous reboot      hang
    fetching  fetched            refused, or    resumed where the       refused; what
                                 kept           download stopped        came is kept
    fetched   verified           refused        verified again          (waits for nothing)
    verified  staged             refused        staged again            (waits for nothing)
    staged    selftest           refused        self-test               (waits for nothing)
    selftest  trial              refused        again; the third time   ended, refused
                                                refused
    trial     committed          refused        again; the third time   ended, refused
     (here)                                     refused
    trial     committed          previous one   a failed start; the     previous one
     (app)                                      third: previous one
    committed -                  -              -                       -

Rules:
- the journal decides, `current` follows: pointing it at `answering` repairs any power cut. A state is written before
  its work begins, so a state found in a journal may have been begun;
- it is small, has one spelling, and is parsed strictly: anything unknown is an error, never a guess;
- a refusal leaves `current` as it was; a failed trial by the application points it at the previous generation;
- a rollout_seq is burned when the self-test begins, and stays burned whatever the outcome;
- an interruption by the owner counts as no failure;
- a rollback leads to the last good bundle that differs: a damaged, lost or equal generation replaces no other one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from edgekit_runtime.install.durable import move_aside
from edgekit_runtime.system.errors import InstallError
from edgekit_runtime.system.strict_json import json_text, read_json

if TYPE_CHECKING:
    from edgekit_runtime.bundle.trust_store import TrustStore

FORMAT = 1
MAX_BURNED = 64
"""Kept besides the last one: one for each group of keys that signed for this root, newest first."""
State = Literal["fetching", "fetched", "verified", "staged", "selftest", "trial"]
"""How far an install has come. Without an attempt the active generation is committed."""
STATES: tuple[State, ...] = get_args(State)
TrialBy = Literal["here", "app"]
"""here: the installer, in a child, before the switch. app: the application, in use."""
MOST_TRIES = 3
"""How often a self-test or a trial begins, or an application's start may fail, before it is given up."""


@dataclass(frozen=True)
class AcceptedSequence:
    """A rollout_seq that was accepted here, and the digest of its bundle.

    signed_by: keyids that counted then. If they would not suffice now, because one was revoked, the number does not
        bind: else a stolen key could block all updates with the highest number.
    """

    seq: int
    bundle: str
    signed_by: tuple[str, ...] = ()

    def covers(self, other: AcceptedSequence) -> bool:
        """Whether it has every signer of the other one, and no lower number."""
        return self.seq >= other.seq and set(self.signed_by) >= set(other.signed_by)


@dataclass(frozen=True)
class Failure:
    """Why the last install did not become active.

    at: RFC 3339.
    generation: 0 if it got no number.
    """

    code: str
    what: str
    state: str
    at: str
    source: str = ""
    generation: int = 0


@dataclass(frozen=True)
class Attempt:
    """An unfinished install.

    source: as shown to users, without credentials.
    header: SHA-256 of the file up to its blobs, which identifies all of its bytes.
    object: SHA-256 of the whole file.
    bundle: SHA-256 of the manifest.
    tries: how often the self-test, or the trial by the installer, began.
    generation: 0 until it has a number.
    past: a rollback from it skips the active generation, which is damaged, lost, or the same bundle.
    profile: what the owner named the board.
    """

    state: State
    source: str
    trial: TrialBy
    began: str
    header: str = ""
    object: str = ""
    bundle: str = ""
    seq: int | None = None
    signed_by: tuple[str, ...] = ()
    generation: int = 0
    tries: int = 0
    past: bool | None = None
    profile: str | None = None


@dataclass(frozen=True)
class Journal:
    """current: the committed generation.
    previous: where a rollback leads.
    next: the next number.
    burned: the rollout_seq that was accepted last.
    also_burned: earlier ones that other keys signed, or that were higher: they bind again once the keys of `burned` are
        not trusted any more, else a thief of a key could erase them with it.
    seen_s: last time seen, seconds since 1970 (see `trust.store`).
    """

    format: int = FORMAT
    next: int = 1
    current: int | None = None
    previous: int | None = None
    burned: AcceptedSequence | None = None
    seen_s: float | None = None
    attempt: Attempt | None = None
    failure: Failure | None = None
    also_burned: tuple[AcceptedSequence, ...] | None = None

    @property
    def answering(self) -> int | None:
        """The generation that `current` must point at."""
        return self.on_trial if self.on_trial is not None else self.current

    @property
    def on_trial(self) -> int | None:
        """The generation that the application tries out, if any."""
        attempt = self.attempt
        return attempt.generation if attempt and (attempt.state, attempt.trial) == ("trial", "app") else None

    def profile_for(self, source: str) -> str | None:
        """The profile given to the unfinished install from that source."""
        return self.attempt.profile if self.attempt is not None and self.attempt.source == source else None

    @property
    def kept(self) -> frozenset[int]:
        """Generations that are never collected."""
        numbers = (self.current, self.previous, self.attempt.generation if self.attempt else None)
        return frozenset(number for number in numbers if number)

    def with_accepted(self, burned: AcceptedSequence) -> Journal:
        """With one more accepted number."""
        before = () if self.burned is None else (self.burned, *(self.also_burned or ()))
        kept = tuple(one for one in before if not burned.covers(one))
        return replace(self, burned=burned, also_burned=kept[:MAX_BURNED] or None)

    def binding(self, store: TrustStore | None) -> AcceptedSequence | None:
        """The highest number signed by keys that count now. store: None if every number binds."""
        known = () if self.burned is None else (self.burned, *(self.also_burned or ()))
        counted = [one for one in known if store is None or store.suffices(one.signed_by)]
        return max(counted, key=lambda one: one.seq, default=None)

    def text(self) -> str:
        return json_text(self)


def parse_journal(text: str, where: str) -> Journal:
    """Raises InstallError (install-root)."""
    try:
        journal = read_json(Journal, text, "journal", format=FORMAT)
        attempt = journal.attempt
        numbers = (journal.current, journal.previous, attempt.generation if attempt else None)
        if any(number is not None and not 0 <= number < journal.next for number in numbers):
            raise ValueError("it names a generation that was never made")
        if attempt is not None and attempt.state in ("staged", "selftest", "trial") and not attempt.generation:
            raise ValueError("an attempt came far without a generation")
    except ValueError as error:
        raise InstallError(
            f"the journal cannot be understood: {error}",
            where=where,
            do=f"Run: {move_aside(Path(where))}; the active bundle stays active, the next install begins a new "
            "journal, and where a rollback leads is forgotten",
            code="install-root",
        ) from error
    return journal


class Work(Enum):
    """What an install does next; its outcome is the next event."""

    FETCH = "fetch"
    VERIFY = "verify"
    STAGE = "stage"
    BURN = "burn"
    SELFTEST = "selftest"
    TRIAL = "trial"


class Tidy(Enum):
    """What follows the writing of a journal; both may be repeated, also after a cut.

    POINT: `current` to what the journal says. COLLECT: remove what the journal does not name.
    """

    POINT = "point"
    COLLECT = "collect"


@dataclass(frozen=True)
class AttemptBegun:
    """An install was requested. at: RFC 3339. profile: see `Attempt`."""

    source: str
    trial: TrialBy
    at: str
    profile: str | None = None


@dataclass(frozen=True)
class AttemptAccepted:
    """The head of the bundle was fetched and accepted. past: see `Attempt`."""

    header: str
    bundle: str
    seq: int | None
    signed_by: tuple[str, ...] = ()
    past: bool = False


@dataclass(frozen=True)
class StepPassed:
    """The work of the state succeeded. object: after fetching, SHA-256 of the whole file."""

    object: str = ""


@dataclass(frozen=True)
class AttemptFailed:
    """An error, a hang that was ended, or the owner's decision. keep: the download resumes."""

    code: str
    what: str
    at: str
    keep: bool = False


@dataclass(frozen=True)
class AttemptRestarted:
    """The journal names an install that no process works on.

    failed_starts: of the application, during its trial.
    """

    at: str
    failed_starts: int = 0


@dataclass(frozen=True)
class AttemptInterrupted:
    """The owner interrupted the command: the try does not count."""


@dataclass(frozen=True)
class AttemptAbandoned:
    """Another bundle is wanted than the unfinished one."""


@dataclass(frozen=True)
class GenerationActivated:
    """The owner activated this generation."""

    generation: int


Event = (
    AttemptBegun
    | AttemptAccepted
    | StepPassed
    | AttemptFailed
    | AttemptRestarted
    | AttemptInterrupted
    | AttemptAbandoned
    | GenerationActivated
)


@dataclass(frozen=True)
class Transition:
    journal: Journal
    tidy: tuple[Tidy, ...] = ()
    work: Work | None = None


_WORK = {
    "fetching": Work.FETCH,
    "fetched": Work.VERIFY,
    "verified": Work.STAGE,
    "staged": Work.BURN,
    "selftest": Work.SELFTEST,
    "trial": Work.TRIAL,
}


def react(journal: Journal, event: Event) -> Transition:
    """The table of this module. ValueError for an event that cannot happen in that state."""
    attempt = journal.attempt
    if isinstance(event, GenerationActivated):
        return _activated(journal, event.generation)
    if isinstance(event, AttemptInterrupted):
        counts = attempt is not None and attempt.state in ("selftest", "trial")
        return Transition(_moved(journal, attempt, tries=max(0, attempt.tries - 1)) if attempt and counts else journal)
    if attempt is None:
        if isinstance(event, AttemptBegun):
            begun = Attempt("fetching", event.source, event.trial, event.at, profile=event.profile)
            return Transition(replace(journal, attempt=begun), work=Work.FETCH)
        if isinstance(event, AttemptRestarted):
            return Transition(journal, (Tidy.POINT,))
        raise ValueError(f"{type(event).__name__} where nothing is being installed")
    if isinstance(event, AttemptAbandoned):
        return Transition(replace(journal, attempt=None), (Tidy.POINT, Tidy.COLLECT))
    if isinstance(event, AttemptAccepted) and attempt.state == "fetching":
        named = {"header": event.header, "bundle": event.bundle, "seq": event.seq, "signed_by": event.signed_by}
        return Transition(_moved(journal, attempt, past=event.past or None, **named))
    if isinstance(event, StepPassed):
        return _passed(journal, attempt, event)
    if isinstance(event, AttemptFailed):
        return _failed(journal, attempt, event)
    if isinstance(event, AttemptRestarted):
        return _restarted(journal, attempt, event)
    raise ValueError(f"{type(event).__name__} in the state {attempt.state}")


def _moved(journal: Journal, attempt: Attempt, **changes: Any) -> Journal:
    return replace(journal, attempt=replace(attempt, **changes))


def _passed(journal: Journal, attempt: Attempt, event: StepPassed) -> Transition:
    state = attempt.state
    if state == "trial":
        return _committed(journal, attempt.generation)
    if state == "fetching":
        after = _moved(journal, attempt, state="fetched", object=event.object)
    elif state == "fetched":
        after = _moved(replace(journal, next=journal.next + 1), attempt, state="verified", generation=journal.next)
    elif state == "verified":
        after = _moved(journal, attempt, state="staged")
    elif state == "staged":
        burned = None if attempt.seq is None else AcceptedSequence(attempt.seq, attempt.bundle, attempt.signed_by)
        after = _moved(journal.with_accepted(burned) if burned else journal, attempt, state="selftest", tries=1)
    elif attempt.trial == "app":
        return Transition(_moved(journal, attempt, state="trial", tries=0), (Tidy.POINT,))
    else:
        after = _moved(journal, attempt, state="trial", tries=1)
    assert after.attempt is not None
    return Transition(after, work=_WORK[after.attempt.state])


def _committed(journal: Journal, generation: int) -> Transition:
    attempt = journal.attempt
    past = attempt is not None and attempt.generation == generation and attempt.past
    previous = journal.previous if past or journal.current == generation else journal.current
    done = replace(journal, current=generation, previous=previous, attempt=None, failure=None)
    return Transition(done, (Tidy.POINT, Tidy.COLLECT))


def _failed(journal: Journal, attempt: Attempt, event: AttemptFailed) -> Transition:
    failure = Failure(event.code, event.what, attempt.state, event.at, attempt.source, attempt.generation)
    if event.keep and attempt.state == "fetching":
        return Transition(replace(journal, failure=failure))
    return Transition(replace(journal, attempt=None, failure=failure), (Tidy.POINT, Tidy.COLLECT))


def _restarted(journal: Journal, attempt: Attempt, event: AttemptRestarted) -> Transition:
    if journal.on_trial is not None:
        if event.failed_starts < MOST_TRIES:
            return Transition(journal, (Tidy.POINT,))
        what = f"{event.failed_starts} starts of the application failed while it was on trial"
        return _failed(journal, attempt, AttemptFailed("trial-failed", what, event.at))
    if attempt.state not in ("selftest", "trial"):
        return Transition(journal, (Tidy.POINT,), _WORK[attempt.state])
    if attempt.tries < MOST_TRIES:
        again = _moved(journal, attempt, tries=attempt.tries + 1)
        return Transition(again, (Tidy.POINT,), _WORK[attempt.state])
    doing = "self-test" if attempt.state == "selftest" else "trial"
    what = f"the board or the installer went down {attempt.tries} times in its {doing}"
    return _failed(journal, attempt, AttemptFailed("trial-failed", what, event.at))


def _activated(journal: Journal, generation: int) -> Transition:
    """Commit the one on trial. Another activation leaves an unfinished attempt to resume later."""
    step = _committed(journal, generation)
    if journal.on_trial is not None:
        return step
    return Transition(replace(step.journal, attempt=journal.attempt, failure=journal.failure), step.tidy)

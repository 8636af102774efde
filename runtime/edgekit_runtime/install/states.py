"""What happens next, decided purely: a journal and an event in, the next journal and what to do out.

    step = react(journal, Done(object="ab12...", ...))
    step.journal        # written first, durably
    step.tidy           # then this: `current` follows the journal, what it no longer names goes
    step.work           # and then this, whose outcome is the next event; None: the install is over

            fetching -> fetched -> verified -> staged -> selftest -> trial -> committed
    work    FETCH       VERIFY     STAGE       BURN      SELFTEST    TRIAL    -

    state     done               error          spontaneous reboot      hang
    fetching  fetched            refused, or    goes on where the       refused; what
                                 kept to go on  download stopped        came is kept
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
- a refusal leaves `current` where it was; a trial by the application that fails points it at the previous generation;
- a rollout_seq is burned when the self-test begins, and stays burned whatever comes of it: verified and staged, the bundle
  was accepted as the newest there is;
- what the owner interrupts by hand counts as no failure;
- a rollback leads to the last good bundle that is another: a generation that is damaged, lost or the same takes nobody's place;
- a state is written before its work begins, so whatever is found in a journal may have been begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from edgekit_runtime.install.journal import Attempt, Burned, Failure, Journal, TrialBy

__all__ = [
    "MOST_TRIES",
    "Abandoned",
    "Accepted",
    "Activated",
    "Begun",
    "Event",
    "Failed",
    "Interrupted",
    "Passed",
    "Restarted",
    "Step",
    "Tidy",
    "Work",
    "react",
]

MOST_TRIES = 3
"""How often a self-test or a trial is begun, and how many starts of an application may fail, before it is given up."""


class Work(Enum):
    """What an install does next; its outcome is the next event."""

    FETCH = "fetch"
    VERIFY = "verify"
    STAGE = "stage"
    BURN = "burn"
    SELFTEST = "selftest"
    TRIAL = "trial"


class Tidy(Enum):
    """What is put in order after a journal was written. Either may be done twice, and is found again after a cut.

    POINT: `current` to what the journal says answers. COLLECT: away with what the journal does not name.
    """

    POINT = "point"
    COLLECT = "collect"


@dataclass(frozen=True)
class Begun:
    """An install was asked for. at: RFC 3339. profile: see `journal.Attempt`."""

    source: str
    trial: TrialBy
    at: str
    profile: str | None = None


@dataclass(frozen=True)
class Accepted:
    """The head of the bundle is here, was judged, and names all of it. past: see `journal.Attempt`."""

    header: str
    bundle: str
    seq: int | None
    signed_by: tuple[str, ...] = ()
    past: bool = False


@dataclass(frozen=True)
class Passed:
    """The work of the state is done. object: after fetching, SHA-256 of the whole file."""

    object: str = ""


@dataclass(frozen=True)
class Failed:
    """It is not: an error, a hang that was ended, or the owner's word. keep: what arrived is good, and the next install goes
    on from there."""

    code: str
    what: str
    at: str
    keep: bool = False


@dataclass(frozen=True)
class Restarted:
    """What a journal says was found, and nobody works on it. failed_starts: of the application, while it tries one out."""

    at: str
    failed_starts: int = 0


@dataclass(frozen=True)
class Interrupted:
    """The owner ended the command by hand: what was begun is begun again, and nothing of it counts."""


@dataclass(frozen=True)
class Abandoned:
    """Another bundle is asked for than the unfinished one."""


@dataclass(frozen=True)
class Activated:
    """The owner decided: this generation answers from now on."""

    generation: int


Event = Begun | Accepted | Passed | Failed | Restarted | Interrupted | Abandoned | Activated


@dataclass(frozen=True)
class Step:
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


def react(journal: Journal, event: Event) -> Step:
    """The table above. ValueError for an event that cannot happen in that state."""
    attempt = journal.attempt
    if isinstance(event, Activated):
        return _activated(journal, event.generation)
    if isinstance(event, Interrupted):
        counts = attempt is not None and attempt.state in ("selftest", "trial")
        return Step(_moved(journal, attempt, tries=max(0, attempt.tries - 1)) if attempt and counts else journal)
    if attempt is None:
        if isinstance(event, Begun):
            begun = Attempt("fetching", event.source, event.trial, event.at, profile=event.profile)
            return Step(replace(journal, attempt=begun), work=Work.FETCH)
        if isinstance(event, Restarted):
            return Step(journal, (Tidy.POINT,))
        raise ValueError(f"{type(event).__name__} where nothing is being installed")
    if isinstance(event, Abandoned):
        return Step(replace(journal, attempt=None), (Tidy.POINT, Tidy.COLLECT))
    if isinstance(event, Accepted) and attempt.state == "fetching":
        named = {"header": event.header, "bundle": event.bundle, "seq": event.seq, "signed_by": event.signed_by}
        return Step(_moved(journal, attempt, past=event.past or None, **named))
    if isinstance(event, Passed):
        return _passed(journal, attempt, event)
    if isinstance(event, Failed):
        return _failed(journal, attempt, event)
    if isinstance(event, Restarted):
        return _restarted(journal, attempt, event)
    raise ValueError(f"{type(event).__name__} in the state {attempt.state}")


def _moved(journal: Journal, attempt: Attempt, **changes: Any) -> Journal:
    return replace(journal, attempt=replace(attempt, **changes))


def _passed(journal: Journal, attempt: Attempt, event: Passed) -> Step:
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
        burned = None if attempt.seq is None else Burned(attempt.seq, attempt.bundle, attempt.signed_by)
        after = _moved(journal.burning(burned) if burned else journal, attempt, state="selftest", tries=1)
    elif attempt.trial == "app":
        return Step(_moved(journal, attempt, state="trial", tries=0), (Tidy.POINT,))
    else:
        after = _moved(journal, attempt, state="trial", tries=1)
    assert after.attempt is not None
    return Step(after, work=_WORK[after.attempt.state])


def _committed(journal: Journal, generation: int) -> Step:
    attempt = journal.attempt
    past = attempt is not None and attempt.generation == generation and attempt.past
    previous = journal.previous if past or journal.current == generation else journal.current
    done = replace(journal, current=generation, previous=previous, attempt=None, failure=None)
    return Step(done, (Tidy.POINT, Tidy.COLLECT))


def _failed(journal: Journal, attempt: Attempt, event: Failed) -> Step:
    failure = Failure(event.code, event.what, attempt.state, event.at, attempt.source, attempt.generation)
    if event.keep and attempt.state == "fetching":
        return Step(replace(journal, failure=failure))
    return Step(replace(journal, attempt=None, failure=failure), (Tidy.POINT, Tidy.COLLECT))


def _restarted(journal: Journal, attempt: Attempt, event: Restarted) -> Step:
    if journal.on_trial is not None:
        if event.failed_starts < MOST_TRIES:
            return Step(journal, (Tidy.POINT,))
        what = f"{event.failed_starts} starts of the application failed while it was on trial"
        return _failed(journal, attempt, Failed("trial-failed", what, event.at))
    if attempt.state not in ("selftest", "trial"):
        return Step(journal, (Tidy.POINT,), _WORK[attempt.state])
    if attempt.tries < MOST_TRIES:
        again = _moved(journal, attempt, tries=attempt.tries + 1)
        return Step(again, (Tidy.POINT,), _WORK[attempt.state])
    doing = "self-test" if attempt.state == "selftest" else "trial"
    what = f"the board or the installer went down {attempt.tries} times in its {doing}"
    return _failed(journal, attempt, Failed("trial-failed", what, event.at))


def _activated(journal: Journal, generation: int) -> Step:
    """Of the one on trial: its commit. Of any other: a trial by the application ends, another attempt may go on later."""
    step = _committed(journal, generation)
    if journal.on_trial is not None:
        return step
    return Step(replace(step.journal, attempt=journal.attempt, failure=journal.failure), step.tidy)

"""The journal of a root, and the state machine of an install.

    journal = parse_journal(text, where)
    journal.answering   # the generation that `current` must point at; None if nothing was installed
    step = journal.advance(object="ab12...")
    step.journal        # written first, durably
    step.tidy           # then `current` follows the journal, what it no longer names is removed
    step.work           # then the work of this state, whose outcome is the next call; None: the install is over

            fetching -> fetched -> verified -> staged -> selftest -> trial -> committed
    work    fetch       verify     stage       -         self-test   trial    -

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
Tidy = Literal["point", "collect"]
"""point: `current` to what the journal says. collect: then remove what the journal does not name."""
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
    seen_s: last time seen, seconds since 1970 (see `bundle.trust_store`).
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

    # What happened, and what follows. Raises ValueError for what cannot happen in this state.

    def begin(self, source: str, trial: TrialBy, at: str, profile: str | None = None) -> Transition:
        """An install was requested. at: RFC 3339. profile: see `Attempt`."""
        if self.attempt is not None:
            raise ValueError("another install is unfinished")
        begun = Attempt("fetching", source, trial, at, profile=profile)
        return Transition(replace(self, attempt=begun), work="fetching")

    def accept(
        self, header: str, bundle: str, seq: int | None, signed_by: tuple[str, ...] = (), past: bool = False
    ) -> Transition:
        """The head of the bundle was fetched and accepted. past: see `Attempt`."""
        if self.unfinished.state != "fetching":
            raise ValueError("the bundle is fetched already")
        return Transition(self._update(header=header, bundle=bundle, seq=seq, signed_by=signed_by, past=past or None))

    def advance(self, object: str = "") -> Transition:  # noqa: A002 - the journal's word
        """The work of the state succeeded. object: after fetching, SHA-256 of the whole file."""
        attempt, journal, changes = self.unfinished, self, dict[str, Any]()
        if attempt.state == "trial":
            return self._commit(attempt.generation)
        if attempt.state == "fetching":
            changes["object"] = object
        elif attempt.state == "fetched":
            journal, changes["generation"] = replace(self, next=self.next + 1), self.next
        elif attempt.state == "staged":
            changes["tries"] = 1
            if attempt.seq is not None:
                journal = self.with_accepted(AcceptedSequence(attempt.seq, attempt.bundle, attempt.signed_by))
        elif attempt.state == "selftest":
            changes["tries"] = 1 if attempt.trial == "here" else 0
        state = STATES[STATES.index(attempt.state) + 1]
        after = journal._update(state=state, **changes)
        return Transition(after, work=state) if after.on_trial is None else Transition(after, "point")

    def fail(self, code: str, what: str, at: str, *, keep: bool = False) -> Transition:
        """An error, a hang that was ended, or the owner's decision. keep: the download resumes."""
        attempt = self.unfinished
        failure = Failure(code, what, attempt.state, at, attempt.source, attempt.generation)
        if keep and attempt.state == "fetching":
            return Transition(replace(self, failure=failure))
        return Transition(replace(self, attempt=None, failure=failure), "collect")

    def restart(self, at: str, failed_starts: int = 0) -> Transition:
        """No process works on the unfinished install, if any.

        failed_starts: of the application, during its trial.
        """
        attempt = self.attempt
        if attempt is None or (self.on_trial is not None and failed_starts < MOST_TRIES):
            return Transition(self, "point")
        if self.on_trial is not None:
            what = f"{failed_starts} starts of the application failed while it was on trial"
            return self.fail("trial-failed", what, at)
        if attempt.state not in ("selftest", "trial"):
            return Transition(self, "point", attempt.state)
        if attempt.tries < MOST_TRIES:
            return Transition(self._update(tries=attempt.tries + 1), "point", attempt.state)
        doing = "self-test" if attempt.state == "selftest" else "trial"
        what = f"the board or the installer went down {attempt.tries} times in its {doing}"
        return self.fail("trial-failed", what, at)

    def interrupt(self) -> Transition:
        """The owner interrupted the command: the try does not count."""
        attempt = self.attempt
        counts = attempt is not None and attempt.state in ("selftest", "trial")
        return Transition(self._update(tries=max(0, attempt.tries - 1)) if attempt and counts else self)

    def abandon(self) -> Transition:
        """Another bundle is wanted than the unfinished one."""
        return Transition(replace(self, attempt=None), "collect")

    def activate(self, generation: int) -> Transition:
        """The owner activated it. Unless it was on trial, an unfinished attempt resumes later."""
        step = self._commit(generation)
        if self.on_trial is not None:
            return step
        return replace(step, journal=replace(step.journal, attempt=self.attempt, failure=self.failure))

    @property
    def unfinished(self) -> Attempt:
        """The attempt. Raises ValueError without one."""
        if self.attempt is None:
            raise ValueError("nothing is being installed")
        return self.attempt

    def _update(self, **changes: Any) -> Journal:
        return replace(self, attempt=replace(self.unfinished, **changes))

    def _commit(self, generation: int) -> Transition:
        attempt = self.attempt
        past = attempt is not None and attempt.generation == generation and attempt.past
        previous = self.previous if past or self.current == generation else self.current
        done = replace(self, current=generation, previous=previous, attempt=None, failure=None)
        return Transition(done, "collect")


@dataclass(frozen=True)
class Transition:
    """tidy: what follows the writing of the journal; it may be repeated, also after a cut.
    work: the state whose work is next.
    """

    journal: Journal
    tidy: Tidy | None = None
    work: State | None = None


def parse_journal(text: str, where: str) -> Journal:
    """Raises InstallError (install-root)."""
    try:
        journal = read_json(Journal, text, "journal", format=FORMAT)
        attempt = journal.attempt
        numbers = (journal.current, journal.previous, attempt.generation if attempt else None)
        if any(number is not None and not 0 <= number < journal.next for number in numbers):
            raise ValueError("it names a generation that does not exist")
        if attempt is not None and attempt.state in ("staged", "selftest", "trial") and not attempt.generation:
            raise ValueError("an attempt without its generation")
    except ValueError as error:
        raise InstallError(
            f"the journal cannot be understood: {error}",
            where=where,
            do=f"Run: {move_aside(Path(where))}; the active bundle stays active, the next install begins a new "
            "journal, and where a rollback leads is forgotten",
            code="install-root",
        ) from error
    return journal

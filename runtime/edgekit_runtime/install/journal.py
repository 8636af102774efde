"""What a root remembers: which generation answers, which did before, and how far an unfinished install has come.

    journal = parse_journal(text, where)
    journal.answering           # the generation that `current` must point at; None where nothing was installed yet
    text = journal.text()

Rules:
- the journal is the truth, `current` follows it: whatever a power cut left, pointing `current` at `answering` mends it;
- it is small, has one spelling, and is read strictly: what cannot be understood is an error, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from edgekit_runtime.bundle.codec import json_text, read_json
from edgekit_runtime.errors import InstallError
from edgekit_runtime.install.planted import aside

if TYPE_CHECKING:
    from edgekit_runtime.trust import TrustStore

__all__ = ["FORMAT", "Attempt", "Burned", "Failure", "Journal", "State", "TrialBy", "parse_journal"]

FORMAT = 1
MAX_BURNED = 64
"""Kept beside the last one: one for each group of keys that ever signed for this root, the last ones first."""

State = Literal["fetching", "fetched", "verified", "staged", "selftest", "trial"]
"""How far an install has come. Where there is no attempt, what answers is committed."""

STATES: tuple[State, ...] = get_args(State)

TrialBy = Literal["here", "app"]
"""Who tries a generation out: the installer, in a child, before anything answers with it; or the application, in use."""


@dataclass(frozen=True)
class Burned:
    """A rollout_seq that was accepted here, and the digest of the bundle that had it.

    signed_by: the keyids that counted then. Where they would not be enough now, because one was revoked, the number binds
    nobody: else a stolen key could end all updates with the highest number there is.
    """

    seq: int
    bundle: str
    signed_by: tuple[str, ...] = ()

    def covers(self, other: Burned) -> bool:
        """Whether the other one binds nobody whom this one does not."""
        return self.seq >= other.seq and set(self.signed_by) >= set(other.signed_by)


@dataclass(frozen=True)
class Failure:
    """Why the last install did not become what answers. at: RFC 3339. generation: 0 where it did not come so far."""

    code: str
    what: str
    state: str
    at: str
    source: str = ""
    generation: int = 0


@dataclass(frozen=True)
class Attempt:
    """An install on its way. source: as told to users, without credentials. header: SHA-256 of the file up to its blobs,
    which names all of its bytes. object: SHA-256 of the whole file. bundle: SHA-256 of the manifest. tries: how often the
    self-test, or the trial by the installer, was begun. generation: 0 until it has a number. past: a rollback from it leads past
    what answers now, which is damaged, lost, or the same bundle. profile: what the owner said that the board is, where he did.
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
    """current: the committed generation; previous: the one before, to which a rollback leads. next: the next number.

    burned: the rollout_seq that was accepted last. also_burned: those before it that other keys vouched for, or that were
    higher: they bind again once its keys are trusted no more, else who stole a key could wipe them out with it.
    seen_s: the last time seen, seconds since 1970 (see `trust.clock`).
    """

    format: int = FORMAT
    next: int = 1
    current: int | None = None
    previous: int | None = None
    burned: Burned | None = None
    seen_s: float | None = None
    attempt: Attempt | None = None
    failure: Failure | None = None
    also_burned: tuple[Burned, ...] | None = None

    @property
    def answering(self) -> int | None:
        """What `current` must point at."""
        return self.on_trial if self.on_trial is not None else self.current

    @property
    def on_trial(self) -> int | None:
        """The generation that the application tries out, if one is."""
        attempt = self.attempt
        return attempt.generation if attempt and (attempt.state, attempt.trial) == ("trial", "app") else None

    def profile_for(self, source: str) -> str | None:
        """What was said of the board when the install from there began that is not finished."""
        return self.attempt.profile if self.attempt is not None and self.attempt.source == source else None

    @property
    def kept(self) -> frozenset[int]:
        """Generations that are never collected."""
        numbers = (self.current, self.previous, self.attempt.generation if self.attempt else None)
        return frozenset(number for number in numbers if number)

    def burning(self, burned: Burned) -> Journal:
        """With one more number that was accepted."""
        before = () if self.burned is None else (self.burned, *(self.also_burned or ()))
        kept = tuple(one for one in before if not burned.covers(one))
        return replace(self, burned=burned, also_burned=kept[:MAX_BURNED] or None)

    def binding(self, store: TrustStore | None) -> Burned | None:
        """The highest number that somebody vouched for who counts now; None where there is none. store: None for a board
        that trusts nobody, which every number binds."""
        known = () if self.burned is None else (self.burned, *(self.also_burned or ()))
        counted = [one for one in known if store is None or store.suffices(one.signed_by)]
        return max(counted, key=lambda one: one.seq, default=None)

    def text(self) -> str:
        return json_text(self)


def parse_journal(text: str, where: str) -> Journal:
    """Raises InstallError (install-root)."""
    try:
        journal = read_json(Journal, text, "journal", format=FORMAT)
        _check(journal)
    except ValueError as error:
        raise InstallError(
            f"the journal cannot be understood: {error}",
            where=where,
            do=f"Run: {aside(Path(where))}; what answers goes on, the next install begins a new journal, and where a rollback "
            "leads is forgotten",
            code="install-root",
        ) from error
    return journal


def _check(journal: Journal) -> None:
    numbers = [journal.current, journal.previous, journal.attempt.generation if journal.attempt else None]
    if any(number is not None and not 0 <= number < journal.next for number in numbers):
        raise ValueError("it names a generation that was never made")
    if (
        journal.attempt is not None
        and journal.attempt.state in ("staged", "selftest", "trial")
        and not journal.attempt.generation
    ):
        raise ValueError("an attempt came far without a generation")

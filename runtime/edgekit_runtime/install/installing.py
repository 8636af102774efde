"""Carrying out what `journal` decides: fetch, verify, stage, test, try, switch. One install, from a source to
`current`.

    done = install("net.ekb", "/var/lib/edgekit/camera", Asked(profile="raspberry-pi-4"))
    done.generation.number, done.state            # 3, "committed"

Rules:
- the journal is written before what it announces is begun, so that whoever finds it knows what may have been begun;
- whatever is raised is told once, in events.jsonl, and `current` is what it was;
- a bundle that is refused leaves nothing behind; a download that broke leaves what arrived.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.bundle.header import Header
from edgekit_runtime.errors import DownloadError, EdgekitError, InstallError
from edgekit_runtime.install.fetch import Fetched, Fetching, Source, fetch, head_of, source_of
from edgekit_runtime.install.journal import (
    Abandoned,
    Accepted,
    Attempt,
    Begun,
    Event,
    Failed,
    Interrupted,
    Passed,
    Restarted,
    TrialBy,
    Work,
    react,
)
from edgekit_runtime.install.layout import Generation, Root, Slot, is_root, told_at
from edgekit_runtime.install.lock import alone
from edgekit_runtime.install.prove import Proof, Proving, prove
from edgekit_runtime.install.reading import keep, named, read_held, store_of
from edgekit_runtime.install.rules import Board, Judging, name_of
from edgekit_runtime.install.settling import apply, make_room, settle
from edgekit_runtime.install.staging import adopt, generation_of, is_whole, stage, still_here
from edgekit_runtime.modelfile import check_artifact
from edgekit_runtime.trust import TrustPolicy, judge, seen_after

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle
    from edgekit_runtime.bundle.secrets import Given

__all__ = ["Asked", "Installed", "install", "told_now"]


@dataclass(frozen=True)
class Asked:
    """What the owner decides. trust: keys or a root.json, from now on for this root; empty for what is trusted already.

    profile: what this board is, from now on for this root; None for what the root was told, and where it was told
    nothing, for `board`: what was found of this machine. allow_unsigned: take what nobody vouches for. trial: who tries
    it out. secret: where the key of an encrypted bundle is. wait_s: how long another install may take. waiting: called
    once where there is another.
    """

    trust: tuple[str | Path, ...] = ()
    profile: str | None = None
    board: Board = field(default_factory=Board)
    allow_unsigned: bool = False
    trial: TrialBy = "here"
    secret: Given = None
    fetching: Fetching = field(default_factory=Fetching)
    proving: Proving = field(default_factory=Proving)
    wait_s: float = 600.0
    waiting: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Installed:
    """state: `committed`, or `trial` where the application tries it out. already: it answered before, and nothing was
    done.
    repaired: it answered before, and its file, which was damaged or lost, was put back.

    selftest, trial: what was found, None where nothing was asked for. profile: what the root was told that this board
    is.
    encrypted_with: the id of the key that the application needs as well.
    """

    root: Path
    generation: Generation
    state: Literal["committed", "trial"]
    already: bool = False
    repaired: bool = False
    selftest: Proof | None = None
    trial: Proof | None = None
    profile: str | None = None
    encrypted_with: str | None = None


def install(source: str | os.PathLike[str], path: str | os.PathLike[str], asked: Asked | None = None) -> Installed:
    """source: a path, or a file, http or https URL. path: the root, made where there is none.

    Raises InstallError and its subclasses, and BundleError, IntegrityError, SignatureError, SecretError,
    ModelFileError, SelfTestError, EngineError, MissingExtraError, MemoryExceeded for what is wrong with the bundle or
    with this machine.
    """
    asked = asked or Asked()
    if not is_root(path):
        first = source_of(source)
        if first.here:  # what is amiss before there is a root makes none
            first.opens(0, "").close()
        store_of(None, asked.trust)
    root = Root.create(path)
    with alone(root.lock_file, wait_s=asked.wait_s, waiting=asked.waiting):
        try:
            root.furnish()
            return _Installing(root, source_of(source, asked.fetching.limits), asked).run()
        except EdgekitError as error:
            root.events.tell("refused", code=error.code, what=str(error), source=_kept(source))
            raise


def told_now(root: Root, asked: Asked, trust: tuple[str, ...], profile: str | None = None) -> Slot:
    """What the root was told, with what it is told now. Raises InstallError (install-root).

    A slot.json that cannot be read is made anew where the owner says again whom to trust: nothing else of it decides
    what may come in. profile: said for the same install before, which is not finished.
    """
    try:
        slot = root.slot()
    except InstallError as error:
        if error.code != "install-root":
            raise
        if not asked.trust:
            raise
        slot = Slot()
    return replace(slot, trust=trust or slot.trust, profile=asked.profile or profile or slot.profile)


def _kept(source: str | os.PathLike[str]) -> str:
    with contextlib.suppress(EdgekitError):
        return source_of(source).kept
    return ""


class _AlreadyHereError(Exception):
    """Every byte of it says that it is what answers."""


class _Installing:
    """Under the lock. One instance, one install."""

    def __init__(self, root: Root, source: Source, asked: Asked) -> None:
        self._root, self._source, self._asked = root, source, asked
        self._journal = settle(root, asked.clock)
        self._store = store_of(root, asked.trust)
        self._named = named(asked.trust)
        self._slot = told_now(root, asked, self._named.names, self._journal.profile_for(source.kept))
        self._read: Bundle | None = None
        self._proofs: dict[str, Proof] = {}
        self._made: Generation | None = None
        self._same: Generation | None = None  # what answers, where the head is the very same
        self._repaired = False

    def run(self) -> Installed:
        pending = self._journal.on_trial
        if pending is not None:
            raise InstallError(
                f"generation {pending} is on trial with the application",
                where=str(self._root.path),
                do=f"Wait for it; or decide: edgekit install --commit --root {self._root.path}, or edgekit rollback",
                code="trial-pending",
            )
        try:
            event: Event | None
            attempt = self._journal.attempt
            if attempt is not None and self._goes_on(attempt):
                event = Restarted(self._now())
            else:
                if attempt is not None:
                    self._take(Abandoned())
                event = Begun(self._source.kept, self._asked.trial, self._now(), self._asked.profile)
            while event is not None:
                event = self._next(event)
        except KeyboardInterrupt:  # the owner's word, and nothing that a bundle took down
            with contextlib.suppress(EdgekitError):
                self._journal = self._root.journal()
                self._take(Interrupted())
            raise
        except _AlreadyHereError:
            self._take(Abandoned())
            self._remember()
            return self._done(already=not self._repaired)
        failure = self._journal.failure
        if self._journal.attempt is None and failure is not None:  # it went down too often: that was the end of it
            raise InstallError(
                failure.what,
                where=self._source.told,
                do="Look for what took it down; then install again",
                code="trial-failed",
            )
        return self._done()

    def _done(self, *, already: bool = False) -> Installed:
        generation = self._made
        if generation is None:  # it answered before
            number = self._journal.answering
            assert number is not None
            generation = self._root.record(number)
        number = generation.number
        state: Literal["committed", "trial"] = "trial" if self._journal.on_trial else "committed"
        if not already:
            event = "repaired" if self._repaired else "installed" if state == "trial" else "committed"
            self._root.events.tell(event, **generation.facts())
        found = self._proofs.get
        proofs = (found("selftest"), found("trial"))
        key = self._read.manifest.encrypted_with if self._read is not None else None
        return Installed(self._root.path, generation, state, already, self._repaired, *proofs, self._slot.profile, key)

    def _goes_on(self, attempt: Attempt) -> bool:
        if (attempt.source, attempt.trial) != (self._source.kept, self._asked.trial):
            return False
        if attempt.state == "fetching":
            return True
        if not still_here(self._root, self._root.part(attempt.source), attempt.object):
            return False
        if (
            attempt.state != "fetched" and self._root.slot() != self._slot
        ):  # whom to trust, what board it is: judged before
            return False
        try:
            return name_of(head_of(self._source)) == attempt.header
        except DownloadError:  # what was fetched is whole: it needs no network to go on
            return True

    def _next(self, event: Event) -> Event | None:
        """Take an event, do what follows, and return what came of that."""
        work = self._take(event)
        if work is None:
            return None
        try:
            return self._do(work)
        except EdgekitError as error:
            self._source.answers_for(error, self._stored())
            keep = isinstance(error, DownloadError) and error.code != "download-size"
            with contextlib.suppress(EdgekitError):  # the first error is the one to tell
                self._take(Failed(error.code, str(error), self._now(), keep))
            raise

    def _take(self, event: Event) -> Work | None:
        step = react(self._journal, event)
        self._journal = apply(self._root, self._journal, step)
        return step.work

    def _do(self, work: Work) -> Event:
        if work is Work.FETCH:
            return self._fetch()
        if work is Work.VERIFY:
            self._verify()
        elif work is Work.STAGE:
            stage(self._root, generation_of(self._attempt(), self._bundle()))
        elif work in (Work.SELFTEST, Work.TRIAL):
            self._made = self._root.record(self._attempt().generation)  # now: after the switch nothing may fail
            what: Literal["selftest", "trial"] = "selftest" if work is Work.SELFTEST else "trial"
            self._say(what)
            self._proofs[what] = prove(what, self._without_blobs(), self._asked.proving)
        return Passed()

    def _fetch(self) -> Event:
        """All of it, whatever its head says: a copy of what answers may be damaged behind its head."""
        fetched = fetch(self._source, self._root.part(self._source.kept), self._judge, self._asked.fetching)
        if self._same is None or fetched.sha256 != self._same.object:
            self._same = None
            return Passed(fetched.sha256)
        if not is_whole(self._root, fetched.sha256):
            self._put_back(fetched)
        raise _AlreadyHereError

    def _put_back(self, fetched: Fetched) -> None:
        """What answers was damaged or lost: the same bytes under the same name, and no new generation."""
        self._say("verify")
        adopt(self._root, fetched.path, fetched.sha256)
        bundle = self._bundle()
        for entry in bundle.manifest.artifacts:
            check_artifact(bundle, entry)
        self._say("selftest")
        self._proofs["selftest"] = prove("selftest", self._without_blobs(), self._asked.proving)
        self._repaired = True

    def _judge(self, header: Header) -> int:
        """Everything that the head tells, before the rest is fetched. Returns how long the file is."""
        judging, answers = self._judging(), self._root.perhaps(self._journal.current)
        same = answers if answers is not None and answers.header == name_of(header) else None
        try:
            head = judging.head(header)
        except InstallError as error:  # after a rollback: what answers is no step back
            if error.code != "downgrade":
                raise
            if same is None:
                raise
            head = replace(judging, binding=None).head(header)
        else:
            same = same if same is not None and same.unsigned != head.vouched.trusted else None
        self._same = same
        part = self._root.part(self._source.kept)
        make_room(self._root, self._journal, head.total - (part.stat().st_size if part.exists() else 0))
        until = self._store.expires_s if self._store is not None else None
        self._journal = replace(self._journal, seen_s=seen_after(self._asked.clock(), self._journal.seen_s, until))
        past = same is None and self._leads_past(header.digest)
        self._take(Accepted(head.name, header.digest, head.manifest.rollout_seq, head.vouched.signers, past))
        return head.total

    def _leads_past(self, bundle: str) -> bool:
        """Whether what answers is no way back from that bundle, and the one before it may be."""
        if self._journal.current is None or self._journal.previous is None:
            return False
        answers = self._root.perhaps(self._journal.current)
        return answers is None or answers.bundle == bundle or not is_whole(self._root, answers.object)

    def _judging(self) -> Judging:
        asked = self._asked
        issued = self._store.issued_s if self._store is not None else None
        moment = judge(asked.clock(), seen_s=self._journal.seen_s, issued_s=issued)
        binding = self._journal.binding(self._store)
        board = asked.board if self._slot.profile is None else Board((self._slot.profile,))
        return Judging(self._store, board, binding, moment, self._source.told, asked.allow_unsigned)

    def _verify(self) -> None:
        attempt = self._attempt()
        part = self._root.part(attempt.source)
        self._say("verify")
        adopt(self._root, part, attempt.object)
        bundle = self._bundle()
        self._judging().admit(bundle.manifest, bundle.digest)
        for entry in bundle.manifest.artifacts:
            check_artifact(bundle, entry)
        self._remember()

    def _remember(self) -> None:
        """What the owner said beside the bundle, once it is good enough to be said for."""
        keep(self._root.path, self._named)
        with contextlib.suppress(InstallError):
            if self._root.slot() == self._slot:
                return
        self._root.write_slot(self._slot)

    def _bundle(self) -> Bundle:
        """Read once, through one descriptor, for whatever needs it."""
        if self._read is None:
            from edgekit_runtime.bundle.secrets import find_secret
            from edgekit_runtime.install.lock import hold

            path = self._stored()
            try:
                lease = hold(path)
            except OSError as error:
                raise InstallError(
                    f"what was fetched is gone: {error.strerror}", where=str(path), do="Install it again"
                ) from error
            policy = TrustPolicy(self._store, self._asked.allow_unsigned, now=self._judging().moment)
            try:
                secret = find_secret if self._asked.secret is None else self._asked.secret
                self._read = read_held(lease, policy, secret)
            finally:
                lease.release()
        return self._read

    def _stored(self) -> Path:
        """The object that the bundle is, or becomes."""
        return self._root.object(self._attempt().object if self._same is None else self._same.object)

    def _without_blobs(self) -> Bundle:
        """What a child loads need not be here as well: a small board has room for it once."""
        self._read = replace(self._bundle(), _blobs={})
        return self._read

    def _attempt(self) -> Attempt:
        assert self._journal.attempt is not None
        return self._journal.attempt

    def _say(self, stage: str) -> None:
        self._asked.fetching.progress(stage, 0, None)

    def _now(self) -> str:
        return told_at(self._asked.clock())

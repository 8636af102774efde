"""Carrying out what `states` decides: fetch, verify, stage, test, try, switch. One install, from a path or a URL to `current`.

    done = install("net.ekb", "/var/lib/edgekit/camera", Asked(profiles=("raspberry-pi-4",)))
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

from edgekit_runtime.bundle.header import Header, header_needs, read_header
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.collecting import sweep
from edgekit_runtime.install.disk import free_bytes
from edgekit_runtime.install.errors import (
    DiskFullError,
    DownloadError,
    DownloadSizeError,
    InstallError,
    TrialFailedError,
    TrialPendingError,
)
from edgekit_runtime.install.events import told_at
from edgekit_runtime.install.fetch import Fetching, Source, fetch, source_of
from edgekit_runtime.install.journal import Attempt, TrialBy
from edgekit_runtime.install.judging import Judging, name_of
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import alone
from edgekit_runtime.install.prove import Proof, Proving, prove
from edgekit_runtime.install.reading import Rules, read_held, store_of
from edgekit_runtime.install.records import Generation, Slot
from edgekit_runtime.install.rules import Board
from edgekit_runtime.install.settling import apply, settle
from edgekit_runtime.install.staging import adopt, stage
from edgekit_runtime.install.states import Abandoned, Accepted, Begun, Event, Failed, Passed, Restarted, Work, react
from edgekit_runtime.modelfile import check_artifact
from edgekit_runtime.trust import Vouched, judge, seen_after

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle
    from edgekit_runtime.bundle.secrets import Given

__all__ = ["Asked", "Installed", "install"]

_SPARE_BYTES = 1 << 20
"""Left free beside the bundle: for the journal, the record, a folder or two."""


@dataclass(frozen=True)
class Asked:
    """What the owner decides. trust: keys or a root.json, from now on for this root; empty for what is trusted already.

    allow_unsigned: take what nobody vouches for. board: what this machine is. trial: who tries it out. secret: where the key
    of an encrypted bundle is. wait_s: how long another install may take. waiting: called once where there is another.
    """

    trust: tuple[str | Path, ...] = ()
    allow_unsigned: bool = False
    board: Board = field(default_factory=Board)
    trial: TrialBy = "here"
    secret: Given = None
    fetching: Fetching = field(default_factory=Fetching)
    proving: Proving = field(default_factory=Proving)
    wait_s: float = 600.0
    waiting: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Installed:
    """state: `committed`, or `trial` where the application tries it out. already: it answered before, and nothing was done.

    selftest, trial: what was found, None where nothing was asked for.
    """

    root: Path
    generation: Generation
    state: Literal["committed", "trial"]
    already: bool = False
    selftest: Proof | None = None
    trial: Proof | None = None


def install(source: str | os.PathLike[str], path: str | os.PathLike[str], asked: Asked | None = None) -> Installed:
    """source: a path, or a file, http or https URL. path: the root, made where there is none.

    Raises InstallError and its subclasses, and BundleError, IntegrityError, SignatureError, SecretError, ModelFileError,
    SelfTestError, EngineError, MissingExtraError, MemoryExceeded for what is wrong with the bundle or with this machine.
    """
    asked = asked or Asked()
    root = Root.create(path)
    with alone(root.lock_file, wait_s=asked.wait_s, waiting=asked.waiting):
        try:
            root.furnish()
            return _Installing(root, source_of(source, asked.fetching.limits), asked).run()
        except EdgekitError as error:
            root.events.tell("refused", code=error.code, what=str(error), source=_told(source))
            raise


def _told(source: str | os.PathLike[str]) -> str:
    with contextlib.suppress(EdgekitError, ValueError):
        return source_of(source).told
    return ""


class _AlreadyHereError(Exception):
    """The head says that it is what answers."""


class _Installing:
    """Under the lock. One instance, one install."""

    def __init__(self, root: Root, source: Source, asked: Asked) -> None:
        self._root, self._source, self._asked = root, source, asked
        self._journal = settle(root, asked.clock)
        self._store = store_of(root, asked.trust)
        self._read: tuple[Bundle, Vouched] | None = None
        self._proofs: dict[str, Proof] = {}
        self._made: Generation | None = None

    def run(self) -> Installed:
        pending = self._journal.on_trial
        if pending is not None:
            raise TrialPendingError(
                f"generation {pending} is on trial with the application",
                where=str(self._root.path),
                do="Wait for it; or decide: edgekit activate, or edgekit rollback",
            )
        try:
            event: Event | None = self._first()
            while event is not None:
                event = self._next(event)
        except _AlreadyHereError:
            self._take(Abandoned())
            return self._done(already=True)
        failure = self._journal.failure
        if self._journal.attempt is None and failure is not None:  # it went down too often: that was the end of it
            raise TrialFailedError(
                failure.what, where=self._source.told, do="Look for what took it down; then install again"
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
            facts = {"generation": number, "bundle": generation.bundle, "what": generation.told}
            self._root.events.tell("installed" if state == "trial" else "committed", **facts)
        found = self._proofs.get
        return Installed(self._root.path, generation, state, already, found("selftest"), found("trial"))

    def _first(self) -> Event:
        """Go on with an unfinished install of the same bundle, or begin."""
        attempt = self._journal.attempt
        if attempt is not None:
            if self._same(attempt):
                return Restarted(self._now())
            self._take(Abandoned())
        return Begun(self._source.told, self._asked.trial, self._now())

    def _same(self, attempt: Attempt) -> bool:
        if (attempt.source, attempt.trial) != (self._source.told, self._asked.trial):
            return False
        if attempt.state == "fetching":
            return True
        try:
            return self._head() == attempt.header
        except DownloadError:  # what was fetched is whole: it needs no network to go on
            return True

    def _head(self) -> str:
        """Of what the source has now."""
        stream, data = self._source.opens(0, ""), b""
        with contextlib.closing(stream):
            while len(data) < header_needs(data, self._source.told):
                chunk = stream.read()
                if not chunk:
                    break
                data += chunk
        return name_of(read_header(data, self._source.told))

    def _next(self, event: Event) -> Event | None:
        """Take an event, do what follows, and return what came of that."""
        work = self._take(event)
        if work is None:
            return None
        try:
            return self._do(work)
        except EdgekitError as error:
            keep = isinstance(error, DownloadError) and not isinstance(error, DownloadSizeError)
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
            self._stage()
        elif work in (Work.SELFTEST, Work.TRIAL):
            self._made = self._root.record(self._attempt().generation)  # now: after the switch nothing may fail
            what: Literal["selftest", "trial"] = "selftest" if work is Work.SELFTEST else "trial"
            self._say(what)
            self._proofs[what] = prove(what, self._without_blobs(), self._asked.proving)
        return Passed()

    def _fetch(self) -> Event:
        fetched = fetch(self._source, self._root.part(self._source.told), self._judge, self._asked.fetching)
        return Passed(fetched.sha256)

    def _judge(self, header: Header) -> int:
        """Everything that the head tells, before the rest is fetched. Returns how long the file is."""
        head = self._judging().head(header)
        current = self._journal.current
        if current is not None:
            answers = self._root.record(current)
            if answers.header == head.name and answers.unsigned == (not head.vouched.trusted):
                raise _AlreadyHereError
        self._check_room(head.total)
        until = self._store.expires_s if self._store is not None else None
        self._journal = replace(self._journal, seen_s=seen_after(self._asked.clock(), self._journal.seen_s, until))
        self._take(Accepted(head.name, header.digest, head.manifest.rollout_seq, head.vouched.signers))
        return head.total

    def _judging(self) -> Judging:
        asked = self._asked
        issued = self._store.issued_s if self._store is not None else None
        moment = judge(asked.clock(), seen_s=self._journal.seen_s, issued_s=issued)
        binding = self._journal.binding(self._store)
        return Judging(self._store, asked.board, binding, moment, self._source.told, asked.allow_unsigned)

    def _check_room(self, total: int) -> None:
        """Raises DiskFullError. What nothing names goes first where that is what it takes."""
        part = self._root.part(self._source.told)
        need = total - (part.stat().st_size if part.exists() else 0) + _SPARE_BYTES
        if free_bytes(self._root.path) < need:
            sweep(self._root, self._journal)
        free = free_bytes(self._root.path)
        if free < need:
            raise DiskFullError(
                f"there is no room: {need:,} bytes are needed, {max(0, free):,} are free",
                where=str(self._root.path),
                do="Make room, then install again",
            )

    def _verify(self) -> None:
        attempt = self._attempt()
        part = self._root.part(attempt.source)
        self._say("verify")
        if part.exists():
            adopt(self._root, part, attempt.object)
        bundle, _ = self._bundle()
        self._judging().admit(bundle.manifest, bundle.digest)
        for entry in bundle.manifest.artifacts:
            check_artifact(bundle, entry)
        if self._asked.trust:
            told = tuple(str(Path(one).absolute()) for one in self._asked.trust)
            if self._root.slot().trust != told:
                self._root.write_slot(Slot(trust=told))

    def _bundle(self) -> tuple[Bundle, Vouched]:
        """Read once, through one descriptor, for whatever needs it."""
        if self._read is None:
            from edgekit_runtime.bundle.secrets import find_secret
            from edgekit_runtime.install.lock import hold

            path = self._root.object(self._attempt().object)
            try:
                lease = hold(path)
            except OSError as error:
                raise InstallError(
                    f"what was fetched is gone: {error.strerror}", where=str(path), do="Install it again"
                ) from error
            rules = Rules(self._asked.allow_unsigned, new=True, now=self._judging().moment)
            try:
                secret = find_secret if self._asked.secret is None else self._asked.secret
                self._read = read_held(lease, self._store, rules, secret)
            finally:
                lease.release()
        return self._read

    def _without_blobs(self) -> Bundle:
        """What a child loads need not be here as well: a small board has room for it once."""
        bundle, vouched = self._bundle()
        self._read = replace(bundle, _blobs={}), vouched
        return self._read[0]

    def _stage(self) -> None:
        attempt, (bundle, vouched) = self._attempt(), self._bundle()
        manifest = bundle.manifest
        generation = Generation(
            number=attempt.generation,
            object=attempt.object,
            header=attempt.header,
            bundle=attempt.bundle,
            name=manifest.name,
            version=manifest.version,
            recipe=bundle.artifact().recipe,
            profile=manifest.target.profile,
            size=bundle.size,
            source=attempt.source,
            at=attempt.began,
            told=vouched.told,
            seq=manifest.rollout_seq,
            signed_by=vouched.signers,
            unsigned=not vouched.trusted,
        )
        stage(self._root, generation)

    def _attempt(self) -> Attempt:
        assert self._journal.attempt is not None
        return self._journal.attempt

    def _say(self, stage: str) -> None:
        self._asked.fetching.progress(stage, 0, None)

    def _now(self) -> str:
        return told_at(self._asked.clock())

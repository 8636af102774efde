"""Carry out what `journal` decides: fetch, verify, stage, self-test, try out, switch.

    done = install("net.ekb", "/var/lib/edgekit/camera", InstallOptions(profile="raspberry-pi-4"))
    done.generation.number, done.state            # 3, "committed"

Rules:
- the journal is written before the work that it announces begins;
- each error is recorded once, in events.jsonl, and `current` stays as it was;
- a refused bundle leaves nothing behind; a broken download leaves what arrived.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.bundle.header import Header
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.bundle.trust_finding import TrustPolicy
from edgekit_runtime.bundle.trust_store import judge, seen_after
from edgekit_runtime.install.fetch import BundleSource, FetchOptions, fetch, head_of, source_of
from edgekit_runtime.install.journal import Attempt, State, Transition, TrialBy
from edgekit_runtime.install.layout import Generation, Root, Slot, is_root, timestamp
from edgekit_runtime.install.lock import alone, hold
from edgekit_runtime.install.prove import Proof, TrialOptions, prove
from edgekit_runtime.install.root_objects import read_locked, store_of, store_trust_files, trust_files
from edgekit_runtime.install.rules import BoardIdentity, InstallRules, name_of
from edgekit_runtime.install.shadowing import ShadowNote, place_shadow
from edgekit_runtime.install.stage_and_collect import adopt, apply, generation_of, is_whole, make_room, settle, stage
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.errors import DownloadError, EdgekitError, InstallError, IntegrityError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import SecretArgument


@dataclass(frozen=True)
class InstallOptions:
    """What the owner decides.

    trust: keys or a root.json, from now on for this root; empty for what is trusted already.
    profile: what this board is, from now on for this root; None for the remembered one, else for `board`, as detected.
    allow_unsigned: accept a bundle that no trusted key has signed.
    trial: who runs the trial.
    secret: where the key of an encrypted bundle is.
    wait_s: how long to wait for another install; `waiting` is called once if there is one.
    sha256: of the whole file, None for any.
    """

    trust: tuple[str | Path, ...] = ()
    profile: str | None = None
    board: BoardIdentity = field(default_factory=BoardIdentity)
    allow_unsigned: bool = False
    trial: TrialBy = "here"
    secret: SecretArgument = None
    fetching: FetchOptions = field(default_factory=FetchOptions)
    proving: TrialOptions = field(default_factory=TrialOptions)
    wait_s: float = 600.0
    waiting: Callable[[], object] = lambda: None
    sha256: str | None = None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class InstallResult:
    """state: `trial` if the application tries it out.
    already: it was active before, and nothing was done.
    repaired: it was active before, and its damaged or lost file was restored.
    selftest, trial: results, None if not run.
    profile: the board, as the root remembers it.
    encrypted_with: id of the key that the application needs as well.
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


def install(
    source: str | os.PathLike[str], path: str | os.PathLike[str], options: InstallOptions | None = None
) -> InstallResult:
    """Install a bundle into a root, which is created if absent.

    source: a path, or a file, http or https URL. path: the root.
    Raises InstallError and its subclasses, and BundleError, IntegrityError, SignatureError, SecretError,
    ModelFileError, SelfTestError, EngineError, MissingExtraError, MemoryExceeded for what is wrong with the bundle or
    with this machine.
    """
    options = options or InstallOptions()
    if not is_root(path):
        first = source_of(source)
        if first.here:  # an error found here creates no root
            first.opens(0, "").close()
        store_of(None, options.trust)
    root = Root.create(path)
    with alone(root.lock_file, wait_s=options.wait_s, waiting=options.waiting):
        try:
            root.furnish()
            return _InstallRun(root, source_of(source, options.fetching.limits), options).run()
        except EdgekitError as error:
            canonical = ""
            with contextlib.suppress(EdgekitError):
                canonical = source_of(source).canonical
            root.events.append("refused", code=error.code, what=str(error), source=canonical)
            raise


def fetch_shadow(source: str, path: str | os.PathLike[str], share: float, options: InstallOptions) -> None:
    """Fetch a bundle that answers `share` of the requests in silence; nothing else changes.
    It is checked as one to install.
    Raises what `install` raises but for what follows from running it.
    """
    root = Root.open(path)
    with alone(root.lock_file, wait_s=options.wait_s, waiting=options.waiting):
        root.furnish()
        _InstallRun(root, source_of(source, options.fetching.limits), options).shadow(share)


def update_slot(root: Root, options: InstallOptions, trust: tuple[str, ...], profile: str | None = None) -> Slot:
    """The root's slot with what the options change. Raises InstallError (install-root).

    An unreadable slot.json is replaced if the options name trusted keys: nothing else in it decides what is accepted.
    profile: given for the same, unfinished install before.
    """
    try:
        slot = root.slot()
    except InstallError as error:
        if error.code != "install-root" or not options.trust:
            raise
        slot = Slot()
    return replace(slot, trust=trust or slot.trust, profile=options.profile or profile or slot.profile)


class _AlreadyHereError(Exception):
    """The bundle is the active one, byte for byte."""


class _InstallRun:
    """One install, under the lock."""

    def __init__(self, root: Root, source: BundleSource, options: InstallOptions) -> None:
        self._root, self._source, self._options = root, source, options
        self._journal = settle(root, options.clock)
        self._store = store_of(root, options.trust)
        self._named = trust_files(options.trust)
        self._slot = update_slot(root, options, tuple(self._named), self._journal.profile_for(source.canonical))
        self._read: Bundle | None = None
        self._proofs: dict[str, Proof] = {}
        self._made: Generation | None = None
        self._same: Generation | None = None  # the active one, if it has the same head
        self._repaired = False

    def run(self) -> InstallResult:
        pending = self._journal.on_trial
        if pending is not None:
            what = f"generation {pending} is on trial with the application"
            do = f"Wait for it; or decide: edgekit install --commit --root {self._root.path}, or edgekit rollback"
            raise InstallError(what, where=str(self._root.path), do=do, code="trial-pending")
        try:
            attempt = self._journal.attempt
            if attempt is not None and self._can_resume(attempt):
                step = self._journal.restart(self._now())
            else:
                if attempt is not None:
                    self._apply(self._journal.abandon())
                options = self._options
                step = self._journal.begin(self._source.canonical, options.trial, self._now(), options.profile)
            while (work := self._apply(step)) is not None:
                step = self._do(work)
        except KeyboardInterrupt:  # the owner stopped it, not a crash
            with contextlib.suppress(EdgekitError):
                self._journal = self._root.journal()
                self._apply(self._journal.interrupt())
            raise
        except _AlreadyHereError:
            self._apply(self._journal.abandon())
            self._remember()
            return self._result(already=not self._repaired)
        failure = self._journal.failure
        if self._journal.attempt is None and failure is not None:  # the board or the installer went down too often
            do = "Find out what crashed; then install again"
            raise InstallError(failure.what, where=self._source.display, do=do, code="trial-failed")
        return self._result()

    def shadow(self, share: float) -> None:
        """Fetch, check and place it, without an attempt in the journal."""
        part, rules, digest = self._root.part(self._source.canonical), self._rules(), self._options.sha256

        def judge_head(header: Header) -> int:
            total = rules.head(header).total
            make_room(self._root, self._journal, total)
            return total

        sha256 = fetch(self._source, part, judge_head, self._options.fetching)
        if digest not in (None, sha256):
            raise self._other_file(sha256)
        self._report_stage("verify")
        bundle = self._read_file(part)
        rules.admit(bundle.manifest, bundle.digest)
        for entry in bundle.manifest.artifacts:
            check_artifact(bundle, entry)
        place_shadow(self._root, part, ShadowNote(sha256, share, unsigned=not bundle.trust_decision.trusted))

    def _result(self, *, already: bool = False) -> InstallResult:
        generation = self._made
        if generation is None:  # it was active before
            number = self._journal.answering
            assert number is not None
            generation = self._root.record(number)
        number = generation.number
        state: Literal["committed", "trial"] = "trial" if self._journal.on_trial else "committed"
        if not already:
            event = "repaired" if self._repaired else "installed" if state == "trial" else "committed"
            proof = self._proofs.get("trial") or self._proofs.get("selftest")
            self._root.events.append(event, **generation.facts(), recipe=proof.recipe if proof else None)
        found = self._proofs.get
        proofs = (found("selftest"), found("trial"))
        key = self._read.manifest.encrypted_with if self._read is not None else None
        return InstallResult(
            self._root.path, generation, state, already, self._repaired, *proofs, self._slot.profile, key
        )

    def _can_resume(self, attempt: Attempt) -> bool:
        if (attempt.source, attempt.trial) != (self._source.canonical, self._options.trial):
            return False
        if attempt.state == "fetching":
            return True
        if self._options.sha256 not in (None, attempt.object):
            return False
        places = (self._root.part(attempt.source), self._root.object(attempt.object))
        if not any(map(os.path.lexists, places)):  # a power cut may take it on its way between them
            return False
        if attempt.state != "fetched" and self._root.slot() != self._slot:  # other keys or another board: check again
            return False
        try:
            return name_of(head_of(self._source)) == attempt.header
        except DownloadError:  # what was fetched is whole: resuming needs no network
            return True

    def _apply(self, step: Transition) -> State | None:
        self._journal = apply(self._root, self._journal, step)
        return step.work

    def _do(self, work: State) -> Transition:
        """Do the work of a state, and return what follows."""
        fetched = ""
        try:
            if work == "fetching":
                fetched = self._fetch()
            elif work == "fetched":
                attempt = self._journal.unfinished
                self._check(self._root.part(attempt.source), attempt.object, admit=True)
                self._remember()
            elif work == "verified":
                stage(self._root, generation_of(self._journal.unfinished, self._bundle()))
            elif work in ("selftest", "trial"):
                # Read now: after the switch nothing may fail
                self._made = self._root.record(self._journal.unfinished.generation)
                self._prove(work)
        except EdgekitError as error:
            self._source.name_source_in(error, self._object_path())
            keep = isinstance(error, DownloadError) and error.code != "download-size"
            with contextlib.suppress(EdgekitError):  # the first error is the one to report
                shown = copy.copy(error)
                shown.speak_cli()  # `edgekit status` shows it
                self._apply(self._journal.fail(error.code, str(shown), self._now(), keep=keep))
            raise
        return self._journal.advance(fetched)

    def _prove(self, what: Literal["selftest", "trial"]) -> None:
        """Run it in a child, with the blobs dropped here: a small board has room for one copy."""
        self._report_stage(what)
        self._read = replace(self._bundle(), _blobs={})
        self._proofs[what] = prove(what, self._read, self._options.proving)

    def _fetch(self) -> str:
        """Fetch the whole file, even with the active one's head: the copy here may be damaged."""
        options, part = self._options, self._root.part(self._source.canonical)
        sha256 = fetch(self._source, part, self._judge, options.fetching)
        if options.sha256 not in (None, sha256):
            raise self._other_file(sha256)
        if self._same is None or sha256 != self._same.object:
            self._same = None
            return sha256
        if not is_whole(self._root, sha256):  # restored, and no new generation
            self._check(part, sha256)
            self._prove("selftest")
            self._repaired = True
        raise _AlreadyHereError

    def _other_file(self, sha256: str) -> IntegrityError:
        what = f"its SHA-256 is {sha256}, expected {self._options.sha256}"
        do = "Pass the SHA-256 of this file, or put the intended file there"
        return IntegrityError(what, where=self._source.display, do=do)

    def _check(self, part: Path, sha256: str, *, admit: bool = False) -> None:
        """Check every byte and every model of what was fetched. admit: ask the rules first."""
        self._report_stage("verify")
        adopt(self._root, part, sha256)
        bundle = self._bundle()
        if admit:
            self._rules().admit(bundle.manifest, bundle.digest)
        for entry in bundle.manifest.artifacts:
            check_artifact(bundle, entry)

    def _judge(self, header: Header) -> int:
        """Check the head before the rest is fetched. Returns the bytes of the whole file."""
        judging, active = self._rules(), self._root.try_record(self._journal.current)
        same = active if active is not None and active.header == name_of(header) else None
        try:
            head = judging.head(header)
        except InstallError as error:  # after a rollback: the active bundle is not a downgrade
            if error.code != "downgrade" or same is None:
                raise
            head = replace(judging, binding=None).head(header)
        else:
            same = same if same is not None and same.unsigned != head.trust_decision.trusted else None
        self._same = same
        part = self._root.part(self._source.canonical)
        make_room(self._root, self._journal, head.total - (part.stat().st_size if part.exists() else 0))
        until = self._store.expires_s if self._store is not None else None
        self._journal = replace(self._journal, seen_s=seen_after(self._options.clock(), self._journal.seen_s, until))
        past = same is None and self._skips_active(header.digest)
        signers = head.trust_decision.signers
        self._apply(self._journal.accept(head.name, header.digest, head.manifest.rollout_seq, signers, past))
        return head.total

    def _skips_active(self, bundle: str) -> bool:
        """Whether a rollback from that bundle skips the active generation."""
        if self._journal.current is None or self._journal.previous is None:
            return False
        active = self._root.try_record(self._journal.current)
        return active is None or active.bundle == bundle or not is_whole(self._root, active.object)

    def _rules(self) -> InstallRules:
        options = self._options
        issued = self._store.issued_s if self._store is not None else None
        moment = judge(options.clock(), seen_s=self._journal.seen_s, issued_s=issued)
        binding = self._journal.binding(self._store)
        board = options.board if self._slot.profile is None else BoardIdentity((self._slot.profile,))
        return InstallRules(self._store, board, binding, moment, self._source.display, options.allow_unsigned)

    def _remember(self) -> None:
        """Store trusted keys and profile, once the bundle is verified."""
        store_trust_files(self._root.path, self._named)
        with contextlib.suppress(InstallError):
            if self._root.slot() == self._slot:
                return
        self._root.write_slot(self._slot)

    def _bundle(self) -> Bundle:
        """The bundle, read once through one descriptor."""
        if self._read is None:
            self._read = self._read_file(self._object_path())
        return self._read

    def _read_file(self, path: Path) -> Bundle:
        from edgekit_runtime.bundle.secrets import find_secret

        try:
            lease = hold(path)
        except OSError as error:
            raise InstallError(
                f"the fetched file is gone: {error.strerror}", where=str(path), do="Install it again"
            ) from error
        policy = TrustPolicy(self._store, self._options.allow_unsigned, now=self._rules().moment)
        try:
            secret = find_secret if self._options.secret is None else self._options.secret
            return read_locked(lease, policy, secret)
        finally:
            lease.release()

    def _object_path(self) -> Path:
        """The object that the bundle is, or becomes."""
        return self._root.object(self._journal.unfinished.object if self._same is None else self._same.object)

    def _report_stage(self, stage: str) -> None:
        self._options.fetching.progress(stage, 0, None)

    def _now(self) -> str:
        return timestamp(self._options.clock())

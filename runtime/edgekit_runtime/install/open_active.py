"""Open the active generation of a root, hold it while a model uses it, and watch its trial.

    watch = TrialWatch(model, held)
    watch.start()               # a thread that looks once a second
    watch.look()                # "wait", "keep" or "back"; tests call it themselves

Rules:
- a bundle is read through the descriptor that holds it, and checked as when it was installed. An unreadable journal
  does not stop readers: `current` leads to a whole generation all the same;
- a generation on trial that does not open is rolled back at once and the previous one opened; a committed one that does
  not open is an error: no caller gets a model that was not chosen;
- a failure of the machine is not held against the bundle: it counts as one of the three starts that may fail, and the
  committed generation is opened until the next start, also if the start on trial cannot be recorded;
- enough is seen after 200 inferences of the device and 60 seconds, over all starts; a dead engine decides at once;
- `keep` commits the generation; `back` points `current` at the previous one and swaps this model to it, so that no
  request is lost. A model with a state stays, and the next start has the previous one;
- if another process or the owner decides first, this model follows.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.bundle.trust_finding import Trust, TrustDecision, TrustPolicy, load_trust
from edgekit_runtime.install.layout import Generation, Root, timestamp
from edgekit_runtime.install.lock import Lease, alone, hold
from edgekit_runtime.install.root_objects import read_locked, store_of
from edgekit_runtime.install.shadowing import SHADOW, read_shadow
from edgekit_runtime.install.stage_and_collect import apply, settle
from edgekit_runtime.install.trial_verdict import (
    TrialCounts,
    TrialStart,
    TrialTerms,
    TrialVerdict,
    begin_start,
    judge,
    read_counts,
    terms_of,
    write_counts,
)
from edgekit_runtime.serving.opened import OpenedBundle, ShadowTask
from edgekit_runtime.system.errors import (
    BundleError,
    EdgekitError,
    EngineError,
    InstallError,
    IntegrityError,
    MemoryExceeded,
    MissingExtraError,
    SelfTestError,
    StorageError,
    errno_of,
)
from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import SecretArgument
    from edgekit_runtime.serving.model import Model

    _How = tuple[Trust, SecretArgument, Callable[[Bundle], OpenedBundle]]

SHADOW_CHILD = "edgekit_runtime.install.shadow_child"
_LOOK_S = 1.0
_WAIT_S = 10.0
_ENGINES_OWN = ("engine", "engine-hung", "memory")
"""Codes of errors that the generation is to blame for."""
_ITS_OWN = (BundleError, EngineError, SelfTestError, MemoryExceeded, MissingExtraError, InstallError)
"""Errors that rule the generation out here; any other is the application's own."""
_MACHINES = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
"""Without ENOMEM: how much memory a bundle takes is its own affair."""


def open_root(
    path: str | os.PathLike[str], trust: Trust, secret: SecretArgument, make: Callable[[Bundle], OpenedBundle]
) -> OpenedBundle:
    """make: turns a checked bundle into one that is ready to answer.

    Raises InstallError, StorageError, and what reading the bundle and `make` raise.
    """
    root = Root.open(path)
    try:
        return _open_with_fallback(root, (trust, secret, make))
    except EdgekitError as error:
        from edgekit_runtime.install.status_and_rollback import add_advice, rollback_target

        back = None
        with contextlib.suppress(EdgekitError, OSError):
            back = rollback_target(root)
        add_advice(error, root, back)
        raise


def _open_with_fallback(root: Root, how: _How) -> OpenedBundle:
    """Open the generation on trial, or the committed one if that fails."""
    lease, generation, start = _acquire(root)
    try:
        return _open_generation(root, lease, generation, start, how)
    except BaseException as error:
        if start is None:
            raise
        start.fail()
        if not of_the_machine(error):
            if not isinstance(error, _ITS_OWN):
                raise
            give_up(root, generation.number, error)
        number = None
        with contextlib.suppress(InstallError):
            number = root.journal().current
        if number is None or number == generation.number:
            raise
    return _open_generation(root, *root.hold(number), None, how)


def of_the_machine(error: BaseException) -> bool:
    """Whether the machine failed, not the bundle: no more open files, or a disk error."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, StorageError) or errno_of(found) in _MACHINES:
            return True
        if isinstance(found, ImportError) and any(os.strerror(code) in found.msg for code in _MACHINES):
            return True  # the dynamic loader passes on no number
        found = found.__cause__
    return False


def _acquire(root: Root) -> tuple[Lease, Generation, TrialStart | None]:
    journal = None
    try:
        journal = root.journal()
    except InstallError as error:  # a reader needs `current` alone; `status` and `install` report the error
        if error.code != "install-root":
            raise
    if journal is None or (journal.on_trial is None and root.read_current() == journal.answering):
        return (*root.hold_current(), None)
    try:
        with alone(root.lock_file, wait_s=_WAIT_S):
            journal = settle(root)
            if journal.on_trial is None:
                return (*root.hold_current(), None)
            start = begin_start(root, journal.on_trial)
            try:
                return (*root.hold(journal.on_trial), start)
            except BaseException:
                start.fail()
                raise
    except StorageError:
        number = journal.current if journal.on_trial is not None else root.read_current()
        if number is None:
            raise
        return (*root.hold(number), None)


def _open_generation(
    root: Root, lease: Lease, generation: Generation, start: TrialStart | None, how: _How
) -> OpenedBundle:
    """The bundle, ready to answer. If it does not open, its lease is released."""
    trust, secret, make = how
    try:
        given = load_trust(trust)
        store = given if given is not None else store_of(root)
        policy = TrustPolicy(store, allow_unsigned=generation.unsigned and given is None, new=False)
        bundle = read_locked(lease, policy, secret)
        if bundle.digest != generation.bundle:
            what = f"generation {generation.number} holds another bundle than was installed"
            raise IntegrityError(what, where=str(lease.path), do="Install it again")

        def open_shadow() -> Bundle:
            note = read_shadow(root.path)
            other = TrustPolicy(store, allow_unsigned=note is not None and note.unsigned and given is None, new=False)
            shadow = hold(root.path / SHADOW)
            try:
                return read_locked(shadow, other, secret)
            finally:
                shadow.release()

        held = WatchedGeneration(root, generation, lease, bundle.trust_decision, start, open_shadow)
        held.terms = terms_of(bundle.manifest)
        return replace(make(bundle), held=held)
    except BaseException:
        lease.release()
        raise


class WatchedGeneration:
    """A generation that a model uses. start: of its trial, None if committed."""

    def __init__(
        self, root: Root, generation: Generation, lease: Lease, decision: TrustDecision, start: TrialStart | None,
        open_shadow: Callable[[], Bundle],
    ) -> None:  # fmt: skip
        self.root, self.generation = root, generation
        self.signature_text = generation.signature_text if generation.unsigned else decision.text
        self.terms, self._open_shadow = TrialTerms(), open_shadow
        self.state = "committed" if start is None else "trial"
        self._lease, self._start = lease, start
        self._watch: TrialWatch | None = None

    @property
    def number(self) -> int:
        return self.generation.number

    def describe(self) -> dict[str, Any]:
        """For `Model.describe()`."""
        return {
            "root": str(self.root.path),
            "generation": self.generation.number,
            "state": self.state,
            "vouched": self.signature_text,
            "unsigned": self.generation.unsigned,
            "rollout_seq": self.generation.seq,
        }

    def shadow(self) -> ShadowTask | None:
        """What the fleet wants to be tried in silence now."""
        note = read_shadow(self.root.path)
        if note is None:
            return None
        return ShadowTask(note.sha256, note.share, SHADOW_CHILD, self._open_shadow)

    def accompany(self, model: Model) -> None:
        """Begin to watch a trial; closing the model ends it."""
        if self._start is not None and self._watch is None:
            self._watch = TrialWatch(model, self)
            self._watch.start()
            model.close_with(self._watch)

    def end_trial(self, state: str) -> None:
        """state: `committed` or `rolled-back`. The start then counts as no failure."""
        self.state = state
        if self._start is not None:
            self._start.end()
            self._start = None

    def close(self) -> None:
        """The model does not use it any more. Idempotent."""
        if self._watch is not None:
            self._watch.leave()
        if self._start is not None:
            self._start.end()
            self._start = None
        self._lease.release()


class TrialWatch:
    """clock: monotonic seconds. terms: None for what the bundle promised."""

    def __init__(
        self,
        model: Model,
        held: WatchedGeneration,
        *,
        terms: TrialTerms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._held, self._clock = model, held, clock
        self._terms = terms if terms is not None else held.terms
        self._before = read_counts(held.root, held.generation.number)
        self._began = clock()
        self._last = TrialCounts()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._go, name="edgekit-trial", daemon=True)
        begin(self._thread)

    def seen(self) -> TrialCounts:
        """Of this start."""
        measured, health = self._model.measured(), self._model.health()
        infer = measured.counted.stages.get("infer")
        failures = sum(measured.counted.errors.get(code, 0) for code in _ENGINES_OWN)
        dead = "" if health.ok or health.state == "closed" else health.reason
        if infer is None:
            return TrialCounts(failures=failures, seconds=self._clock() - self._began, dead=dead)
        late, limit_ms = 0, self._terms.p99_ms
        if limit_ms is not None:  # as far as the buckets show: a value in the limit's own bucket counts as in time
            per_octave = 2.0**infer.scale
            late = sum(n for index, n in infer.buckets.items() if 2.0 ** (index / per_octave) >= limit_ms)
        return TrialCounts(infer.count, late, failures, self._clock() - self._began, infer.quantile(0.99), None, dead)

    def look(self) -> TrialVerdict:
        """Measure, judge, and act on the verdict.

        Raises EdgekitError if the root cannot be written; the next look tries again.
        """
        root, number = self._held.root, self._held.generation.number
        journal = root.journal()
        if journal.on_trial != number:
            return self._follow(journal.current == number)
        self._last = self.seen()
        verdict = judge(self._before.plus(self._last), self._terms)
        if verdict.says == "keep":
            with alone(root.lock_file, wait_s=0.0):
                journal = root.journal()
                if journal.on_trial == number:
                    apply(root, journal, journal.advance())
                    root.events.append("committed", **{**self._held.generation.facts(), "why": verdict.why})
            return self._follow(kept=True)
        if verdict.says == "back":
            give_up(root, number, InstallError(verdict.why, where=f"generation {number}", code="trial-failed"))
            if root.journal().on_trial == number:
                raise InstallError(
                    "the trial failed, and the root cannot be written yet", where=str(root.path), code="install-busy"
                )
            return replace(self._follow(kept=False), why=verdict.why)
        return verdict

    def _follow(self, kept: bool) -> TrialVerdict:
        self._over.set()
        self._held.end_trial("committed" if kept else "rolled-back")
        if kept:
            return TrialVerdict("keep")
        with _logged_errors("the previous generation cannot be opened while this one is in use"):
            self._model.swap(self._held.root.path)
        return TrialVerdict("back")

    def leave(self) -> None:
        """Stop watching, as the model changes or closes. Its answers count for the next start."""
        if self._over.is_set():
            return
        self._over.set()
        with contextlib.suppress(EdgekitError):
            self._last = self.seen()
            root, number = self._held.root, self._held.generation.number
            with alone(root.lock_file, wait_s=_LOOK_S):
                if root.journal().on_trial == number:
                    write_counts(root, number, replace(self._before.plus(self._last), dead=""))

    def close(self) -> None:
        """With the model."""
        self.leave()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * _LOOK_S)

    def _go(self) -> None:
        while not self._over.wait(_LOOK_S):
            with _logged_errors("the trial cannot be checked"):
                self.look()


def give_up(root: Root, number: int, error: EdgekitError) -> None:
    """Roll back if this generation is on trial. What the disk refuses the next start does."""
    with contextlib.suppress(InstallError), alone(root.lock_file, wait_s=_WAIT_S):
        journal = root.journal()
        if journal.on_trial == number:
            apply(root, journal, journal.fail(error.code, str(error), timestamp(time.time())))
            root.events.append("rolled-back", code=error.code, what=str(error), generation=number)


@contextlib.contextmanager
def _logged_errors(what: str) -> Iterator[None]:
    try:
        yield
    except EdgekitError as error:
        if error.code == "install-busy":
            return
        logging.getLogger("edgekit_runtime").warning("%s: %s", what, error)

"""Status of a root, commit and rollback by hand, and advice if a generation does not open.

    found = status("/var/lib/edgekit/camera")
    found.current.version, found.state, found.previous

    activate(root)            # commit the one on trial
    activate(root, 4)         # make that one active, if the root still has it
    rollback(root)            # to the previous one, or give up the one on trial

Rules:
- a generation is read and checked again before the switch, except for dates: it was accepted in its time;
- going back on purpose is not a downgrade, and unburns nothing: an older bundle is not installed again;
- if a generation does not open, the message stays and only its advice changes, by code: a board neither builds nor
  signs bundles. What the caller requested is left to the caller;
- a rollback is suggested only if the previous generation opens.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.bundle.trust_finding import TrustPolicy
from edgekit_runtime.bundle.trust_store import TrustStore
from edgekit_runtime.install.durable import storage_errors
from edgekit_runtime.install.journal import Attempt, Failure, Journal
from edgekit_runtime.install.layout import Generation, Root, timestamp
from edgekit_runtime.install.lock import alone
from edgekit_runtime.install.root_objects import head_from, read_locked, store_of
from edgekit_runtime.install.stage_and_collect import CollectionResult, apply, collect_and_report, settle
from edgekit_runtime.install.trial_verdict import TrialCounts, failed_starts, read_counts
from edgekit_runtime.system.errors import EdgekitError, InstallError, IntegrityError, StorageError
from edgekit_runtime.system.strict_json import to_json

_TRUST = (
    "If it should still be trusted here, say so: edgekit keys update ROOT.json, or install it again with edgekit "
    "install --trust; else install a bundle that is signed as this board asks"
)
_DO = {
    "revoked-key": "Install a bundle that is signed with another key: ask its sender",
    "unsigned": _TRUST,
    "unknown-key": _TRUST,
    "too-few-signatures": _TRUST,
    "no-trust-store": "Put the trusted keys back: edgekit keys update ROOT.json; else install it again with "
    "edgekit install --trust",
    "bad-signature": "Install it again: it was damaged here, or changed by somebody else",
    "bundle-integrity": "Install it again: it was damaged here, or changed by somebody else",
    "bundle-format": "Install it again: it was damaged here, or changed by somebody else",
    "model-file": "Install another bundle, and report this one to its sender",
    "selftest": "Install a bundle that was built for this board and its runtime, or install the runtime that it was "
    "made with",
}
_MENDED = ("bundle-newer", "no-generation")
"""Codes that another bundle fixes, too."""
_WAIT_S = 600.0
_HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class Status:
    """current: the active generation; None if none was installed or it was lost (see `refusal`).
    previous: where a rollback leads.
    unfinished: an interrupted install, or the one at work (busy).
    failure: why the last one did not become active.
    rollout_seq: the highest that binds.
    seen, failed_starts: of a trial by the application.
    refusal, previous_refusal: why that generation does not open any more, else None.
    profile: the board, as this root remembers it.
    freed: the last event of a collection that removed something.
    in_use: what will be removed once the application closes it.
    recipe, previous_recipe: which of its artifacts answered when it was installed, None if unknown.
    """

    root: Path
    state: Literal["empty", "committed", "trial"]
    current: Generation | None
    previous: Generation | None
    unfinished: Attempt | None
    failure: Failure | None
    busy: bool
    rollout_seq: int | None
    trust: tuple[str, ...]
    seen: TrialCounts | None = None
    failed_starts: int = 0
    refusal: str | None = None
    previous_refusal: str | None = None
    profile: str | None = None
    freed: dict[str, Any] | None = None
    in_use: tuple[str, ...] = ()
    recipe: str | None = None
    previous_recipe: str | None = None

    def as_json(self) -> dict[str, Any]:
        own = {"seen", "failed_starts", "current", "previous"}
        record = {field.name: to_json(getattr(self, field.name)) for field in fields(self) if field.name not in own}
        for name in ("current", "previous"):
            generation: Generation | None = getattr(self, name)
            record[name] = generation.as_json() if generation else None
        if self.seen is not None:
            record["trial"] = {**to_json(self.seen), "failed_starts": self.failed_starts}
        return record


def status(path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> Status:
    """Raises InstallError (install-root, planted), StorageError."""
    root = Root.open(path)
    busy, collected = False, CollectionResult()
    try:
        with alone(root.lock_file, wait_s=0.0):
            journal = settle(root, clock)
            with contextlib.suppress(EdgekitError):  # what is left is collected another time
                collected = collect_and_report(root, journal)
    except StorageError:  # it may only be read
        journal = root.journal()
    except InstallError as error:
        if error.code != "install-busy":
            raise
        journal, busy = root.journal(), True
    return _status(root, journal, busy, collected)


def activate(
    path: str | os.PathLike[str],
    number: int | None = None,
    *,
    trust: Sequence[str | Path] = (),
    wait_s: float = _WAIT_S,
    clock: Callable[[], float] = time.time,
) -> Generation:
    """number: None for the one on trial.

    Raises InstallError (no-generation), and what reading it raises.
    """
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = settle(root, clock)
        wanted = number if number is not None else journal.on_trial
        if wanted is None:
            do = f"There is nothing to decide. {root.numbers_text()}. See: edgekit status --root {root.path}"
            raise InstallError("no generation is on trial", where=str(root.path), do=do, code="no-generation")
        return _switch(root, journal, wanted, "activated", trust)


def rollback(
    path: str | os.PathLike[str],
    *,
    trust: Sequence[str | Path] = (),
    wait_s: float = _WAIT_S,
    clock: Callable[[], float] = time.time,
) -> Generation | None:
    """The generation that is active now; None if the only one was on trial.

    Raises InstallError (no-generation).
    """
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = settle(root, clock)
        trial = journal.on_trial
        if trial is not None:
            # Read now: after the switch nothing may fail.
            back = None if journal.current is None else root.record(journal.current)
            apply(root, journal, journal.fail("rolled-back", "the owner rolled it back", timestamp(clock())))
            root.events.append("rolled-back", generation=trial, what="the owner rolled it back")
            return back
        if journal.previous is None:
            what = "there is no earlier generation"
            raise InstallError(what, where=str(root.path), do="Install the bundle that you want", code="no-generation")
        return _switch(root, journal, journal.previous, "rolled-back", trust)


def add_advice(error: EdgekitError, root: Root, back: int | None = None) -> EdgekitError:
    """The same error with advice for a board. back: where a rollback leads, None if nowhere."""
    if error.code in _DO and not error.of_the_caller:
        error.do, error.do_cli = _DO[error.code], ""
    elif error.code not in _MENDED:
        return error
    if back is not None:
        error.do += f"; or go back to generation {back}: edgekit rollback --root {shlex.quote(str(root.path))}"
    return error


def _status(root: Root, journal: Journal, busy: bool, collected: CollectionResult) -> Status:
    number, trial = root.read_current(), journal.on_trial
    on_trial = trial is not None and number == trial
    current = lost = None
    try:
        current = None if number is None else root.record(number)
    except InstallError as error:  # somebody took away what `current` leads to
        if error.code != "no-generation":
            raise
        lost = error
    previous = root.try_record(journal.current if on_trial else journal.previous)
    slot, store, refusal = root.slot(), None, None
    try:
        store = store_of(root)
    except EdgekitError as error:  # its trusted keys cannot be read
        refusal = str(error)
    burned = journal.binding(store)
    previous_refusal = refusal or _refusal(root, store, previous)
    back = previous.number if previous is not None and previous_refusal is None else None
    if lost is not None:
        lost.do = "Install its bundle again"
    gone = None if lost is None else str(add_advice(lost, root, back))
    freed = None  # the last collection that removed something
    recipes: dict[int, str] = {}
    for event in root.events.read():
        facts = {name: event.get(name) for name in ("at", "removed", "bytes")}
        if event.get("event") == "collected" and isinstance(facts["removed"], int) and isinstance(facts["bytes"], int):
            freed = facts
        if isinstance(event.get("generation"), int) and isinstance(event.get("recipe"), str):
            recipes[event["generation"]] = event["recipe"]
    return Status(
        root.path,
        "empty" if number is None else "trial" if on_trial else "committed",
        current,
        previous,
        None if trial is not None else journal.attempt,
        journal.failure,
        busy,
        burned.seq if burned else None,
        slot.trust,
        read_counts(root, number) if on_trial and number is not None else None,
        failed_starts(root, number) if on_trial and number is not None else 0,
        gone or refusal or _refusal(root, store, current, back),
        previous_refusal,
        slot.profile,
        freed,
        tuple(collected.in_use),
        None if current is None else recipes.get(current.number),
        None if previous is None else recipes.get(previous.number),
    )


def rollback_target(root: Root) -> int | None:
    """The previous generation, if a rollback leads to it and it would open.

    Raises EdgekitError if that cannot be known.
    """
    journal = root.journal()
    previous = None if journal.on_trial is not None else root.try_record(journal.previous)
    opens = previous is not None and _refusal(root, store_of(root), previous) is None
    return previous.number if previous is not None and opens else None


def _refusal(
    root: Root, store: TrustStore | None, generation: Generation | None, back: int | None = None
) -> str | None:
    """Why it would not open, by its head and the trusted keys. back: where a rollback leads."""
    if generation is None:
        return None
    try:
        lease, _ = root.hold(generation.number)
        try:
            where = str(lease.path)
            with storage_errors(lease.path, reads=True), lease.file() as file:
                header = head_from(lambda: file.read(_HEAD_BYTES), where)
        finally:
            lease.release()
        if header.digest != generation.bundle:
            raise IntegrityError("another bundle than was installed", where=where, do="Install it again")
        TrustPolicy(store, generation.unsigned, new=False).decide(header.manifest_bytes, header.signatures, where)
    except EdgekitError as error:
        return str(add_advice(error, root, back))
    return None


def _switch(root: Root, journal: Journal, number: int, event: str, trust: Sequence[str | Path]) -> Generation:
    generation = root.record(number)
    attempt = journal.attempt
    if attempt is not None and attempt.generation == number and journal.on_trial != number:
        what = f"generation {number} is not installed yet (its install is '{attempt.state}')"
        raise InstallError(what, where=str(root.path), do="Install it again: it resumes there")
    if number != journal.answering:
        lease, _ = root.hold(number)
        try:
            allowed = generation.unsigned and not trust
            bundle = read_locked(lease, TrustPolicy(store_of(root, trust), allowed, new=False))
        except EdgekitError as error:
            raise add_advice(error, root) from None
        finally:
            lease.release()
        if bundle.digest != generation.bundle:
            what = f"generation {number} holds another bundle than was installed"
            raise InstallError(what, where=str(root.object(generation.object)), do="Install it again")
    if number != journal.current or journal.on_trial is not None:
        apply(root, journal, journal.activate(number))
        root.events.append(event, **generation.facts())
    return generation

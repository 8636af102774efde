"""What is in a root, put in order and rid of what it no longer needs first, where somebody may write there.

    found = status("/var/lib/edgekit/camera")
    found.current.number, found.state                # 3, "committed"

Rules:
- whoever may only read is told as well, of the root as it is;
- who vouches for what answers is asked anew, as an application asks when it opens the root. Its blobs are not read:
  `edgekit verify ROOT` does that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.bundle.header import Header, header_needs, read_header
from edgekit_runtime.errors import EdgekitError, InstallError, IntegrityError, StorageError
from edgekit_runtime.install.collecting import Collected, collect_and_tell
from edgekit_runtime.install.disk import storing
from edgekit_runtime.install.journal import Attempt, Failure, Journal
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease, alone
from edgekit_runtime.install.promise import Seen
from edgekit_runtime.install.reading import store_of
from edgekit_runtime.install.records import Generation
from edgekit_runtime.install.settling import settle
from edgekit_runtime.install.starts import failed_starts
from edgekit_runtime.install.trial_record import read_seen
from edgekit_runtime.install.way_out import with_way_out
from edgekit_runtime.trust import TrustPolicy, TrustStore

__all__ = ["Status", "status", "way_back"]


@dataclass(frozen=True)
class Status:
    """current: what answers, None where nothing was installed or it was lost, which refusal then says. state: of it. previous: where a rollback leads.

    unfinished: an install that was cut off, or that works now (busy). failure: why the last one did not come to anything.
    seen, failed_starts: of a trial by the application. trust: what this root was told to trust. rollout_seq: the highest
    that binds. refusal, previous_refusal: why what answers, and the one before it, does not open any more; None where nothing
    speaks against it. profile: what this root was told that the board is. freed: the last event of something removed. in_use:
    what goes as soon as the application that has it open closes it.
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
    seen: Seen | None = None
    failed_starts: int = 0
    refusal: str | None = None
    previous_refusal: str | None = None
    profile: str | None = None
    freed: dict[str, Any] | None = None
    in_use: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        told = {
            "root": str(self.root),
            "state": self.state,
            "current": self.current.as_json() if self.current else None,
            "previous": self.previous.as_json() if self.previous else None,
            "unfinished": to_json(self.unfinished) if self.unfinished else None,
            "failure": to_json(self.failure) if self.failure else None,
            "busy": self.busy,
            "rollout_seq": self.rollout_seq,
            "trust": list(self.trust),
            "profile": self.profile,
            "refusal": self.refusal,
            "previous_refusal": self.previous_refusal,
            "freed": self.freed,
            "in_use": list(self.in_use),
        }
        if self.seen is not None:
            told["trial"] = {**to_json(self.seen), "failed_starts": self.failed_starts}
        return told


def status(path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> Status:
    """Raises InstallError (install-root, planted), StorageError."""
    root = Root.open(path)
    busy, collected = False, Collected()
    try:
        with alone(root.lock_file, wait_s=0.0):
            journal = settle(root, clock)
            with contextlib.suppress(EdgekitError):  # what is left is collected another time
                collected = collect_and_tell(root, journal)
    except StorageError:  # it may only be read
        journal = root.journal()
    except InstallError as error:
        if error.code != "install-busy":
            raise
        journal, busy = root.journal(), True
    return _told(root, journal, busy, collected)


def _told(root: Root, journal: Journal, busy: bool, collected: Collected) -> Status:
    number, trial = root.pointed(), journal.on_trial
    on_trial = trial is not None and number == trial
    current, lost = _current(root, number)
    previous = root.perhaps(journal.current if on_trial else journal.previous)
    slot, (store, refusal) = root.slot(), _trusted(root)
    burned = journal.binding(store)
    previous_refusal = refusal or _refusal(root, store, previous)
    back = previous.number if previous is not None and previous_refusal is None else None
    if lost is not None:
        lost.do = "Install its bundle again"
    gone = None if lost is None else str(with_way_out(lost, root, back))
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
        read_seen(root, number) if on_trial and number is not None else None,
        failed_starts(root, number) if on_trial and number is not None else 0,
        gone or refusal or _refusal(root, store, current, back),
        previous_refusal,
        slot.profile,
        _freed(root),
        tuple(collected.in_use),
    )


def _freed(root: Root) -> dict[str, Any] | None:
    """The last collection that removed something."""
    for event in reversed(root.events.read()):
        told = {name: event.get(name) for name in ("at", "removed", "bytes")}
        if event.get("event") == "collected" and isinstance(told["removed"], int) and isinstance(told["bytes"], int):
            return told
    return None


def _current(root: Root, number: int | None) -> tuple[Generation | None, InstallError | None]:
    """What `current` leads to; where somebody took that away, this is what there is to tell."""
    try:
        return (None if number is None else root.record(number)), None
    except InstallError as error:
        if error.code != "no-generation":
            raise
        return None, error


def way_back(root: Root) -> int | None:
    """The generation before, where a rollback leads to it and it would open. Raises EdgekitError where that cannot be told."""
    journal = root.journal()
    previous = None if journal.on_trial is not None else root.perhaps(journal.previous)
    opens = previous is not None and _refusal(root, store_of(root), previous) is None
    return previous.number if previous is not None and opens else None


def _trusted(root: Root) -> tuple[TrustStore | None, str | None]:
    """Whom this root trusts, or why that cannot be told."""
    try:
        return store_of(root), None
    except EdgekitError as error:
        return None, str(error)


def _refusal(
    root: Root, store: TrustStore | None, generation: Generation | None, back: int | None = None
) -> str | None:
    """Why it would not be opened, by its head and whom this root trusts. back: where a rollback leads."""
    if generation is None:
        return None
    try:
        lease, _ = root.hold(generation.number)
        try:
            header = _head(lease)
        finally:
            lease.release()
        where, allowed = str(lease.path), generation.unsigned
        if header.digest != generation.bundle:
            raise IntegrityError("another bundle than was installed", where=where, do="Install it again")
        TrustPolicy(store, allowed, new=False).vouch(header.manifest_bytes, header.signatures, where)
    except EdgekitError as error:
        return str(with_way_out(error, root, back))
    return None


def _head(lease: Lease) -> Header:
    data, where = b"", str(lease.path)
    with storing(lease.path), lease.file() as file:
        while (need := header_needs(data, where)) > len(data):
            chunk = file.read(need - len(data))
            if not chunk:
                break
            data += chunk
    return read_header(data, where)

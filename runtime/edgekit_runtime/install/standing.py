"""What is in a root, put in order first where somebody may write there.

    found = status("/var/lib/edgekit/camera")
    found.current.number, found.state                # 3, "committed"

Rule: whoever may only read is told as well, of the root as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.install.errors import InstallBusyError, InstallError, StorageError
from edgekit_runtime.install.journal import Attempt, Failure, Journal
from edgekit_runtime.install.layout import Generation, Root
from edgekit_runtime.install.lock import alone
from edgekit_runtime.install.promise import Seen
from edgekit_runtime.install.settling import settle
from edgekit_runtime.install.starts import failed_starts
from edgekit_runtime.install.trial_record import read_seen

__all__ = ["Status", "status"]


@dataclass(frozen=True)
class Status:
    """current: what answers, None where nothing was installed. state: of it. previous: where a rollback leads.

    unfinished: an install that was cut off, or that works now (busy). failure: why the last one did not come to anything.
    seen, failed_starts: of a trial by the application. trust: what this root was told to trust.
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
        }
        if self.seen is not None:
            told["trial"] = {**to_json(self.seen), "failed_starts": self.failed_starts}
        return told


def status(path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> Status:
    """Raises InstallRootError, PlantedError, StorageError."""
    root = Root.open(path)
    busy = False
    try:
        with alone(root.lock_file, wait_s=0.0):
            journal = settle(root, clock)
    except InstallBusyError:
        journal, busy = root.journal(), True
    except StorageError:  # it may only be read
        journal = root.journal()
    return _told(root, journal, busy)


def _told(root: Root, journal: Journal, busy: bool) -> Status:
    number, trial = root.pointed(), journal.on_trial
    on_trial = trial is not None and number == trial
    return Status(
        root.path,
        "empty" if number is None else "trial" if on_trial else "committed",
        None if number is None else root.record(number),
        _perhaps(root, journal.current if on_trial else journal.previous),
        None if trial is not None else journal.attempt,
        journal.failure,
        busy,
        journal.burned.seq if journal.burned else None,
        root.slot().trust,
        read_seen(root, number) if on_trial and number is not None else None,
        failed_starts(root, number) if on_trial and number is not None else 0,
    )


def _perhaps(root: Root, number: int | None) -> Generation | None:
    if number is None:
        return None
    try:
        return root.record(number)
    except InstallError:
        return None

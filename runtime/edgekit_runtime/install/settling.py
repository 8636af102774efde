"""Putting a root in order after whatever happened to it: a power cut, a kill, starts that failed.

    journal = settle(root)              # under the lock; `current` is then what the journal says

Rules:
- the journal decides and `current` follows, in this order, whoever does it;
- what is read here is flushed before anything is built on it: a power cut does not take it back;
- three starts of the application that failed lead back to the previous generation, also where nobody starts it again;
- an install that was cut off is left as it is: the next one of the same bundle goes on, of another one begins anew.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.collecting import collect_and_tell, sweep
from edgekit_runtime.install.disk import storing, sync_folder
from edgekit_runtime.install.events import told_at
from edgekit_runtime.install.journal import Journal
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.starts import failed_starts
from edgekit_runtime.install.states import MOST_TRIES, Restarted, Step, Tidy, react

__all__ = ["apply", "settle"]


def apply(root: Root, before: Journal, step: Step) -> Journal:
    """Write a step's journal and tidy up after it. Raises StorageError, InstallError (planted): then `before` is in force."""
    after = step.journal
    if Tidy.POINT in step.tidy:
        if after != before or root.pointed() != after.answering or os.path.lexists(root.path / "current.new"):
            root.switch(before, after)
    elif after != before:
        root.write_journal(after)
    if Tidy.COLLECT in step.tidy:
        with contextlib.suppress(EdgekitError):  # what is left is collected another time
            (sweep if after.current == before.current else collect_and_tell)(root, after)
    return after


def settle(root: Root, clock: Callable[[], float] = time.time) -> Journal:
    """Raises InstallError (install-root), StorageError, InstallError (planted)."""
    journal = root.journal()
    with storing(root.path):  # whoever wrote it may have been killed before its name was flushed
        sync_folder(root.path)
    trial = journal.on_trial
    if trial is None:
        return apply(root, journal, Step(journal, (Tidy.POINT,)))
    failed = failed_starts(root, trial)
    after = apply(root, journal, react(journal, Restarted(told_at(clock()), failed)))
    if after.failure is not None and failed >= MOST_TRIES:
        root.events.tell("rolled-back", code=after.failure.code, what=after.failure.what, generation=trial)
    return after

"""What the owner of a board decides by hand: which generation answers.

    activate(root)            # the one on trial answers for good
    activate(root, 4)         # that one answers, if it is still here
    rollback(root)            # back to the one before; of one on trial: away with it

Rules:
- a generation is read and checked again before it is switched to, dates aside: it was accepted in its time;
- going back on purpose is no downgrade, and unburns nothing: an older bundle is not installed anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit_runtime.errors import EdgekitError, InstallError
from edgekit_runtime.install.events import told_at
from edgekit_runtime.install.journal import Journal
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import alone
from edgekit_runtime.install.reading import read_held, store_of
from edgekit_runtime.install.records import Generation
from edgekit_runtime.install.settling import apply, settle
from edgekit_runtime.install.states import Activated, Event, Failed, react
from edgekit_runtime.install.way_out import with_way_out
from edgekit_runtime.trust import TrustPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgekit_runtime.bundle import Bundle

__all__ = ["activate", "rollback"]

_WAIT_S = 600.0


def activate(
    path: str | os.PathLike[str],
    number: int | None = None,
    *,
    trust: Sequence[str | Path] = (),
    wait_s: float = _WAIT_S,
    clock: Callable[[], float] = time.time,
) -> Generation:
    """number: None for the one on trial. Raises InstallError (no-generation), and what reading it raises."""
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = settle(root, clock)
        wanted = number if number is not None else journal.on_trial
        if wanted is None:
            raise InstallError(
                "no generation is on trial",
                where=str(root.path),
                do=f"Name one: edgekit rollback --root {root.path} --to N; t{root.told_numbers()[1:]}",
                code="no-generation",
            )
        return _switch(root, journal, wanted, "activated", trust)


def rollback(
    path: str | os.PathLike[str],
    *,
    trust: Sequence[str | Path] = (),
    wait_s: float = _WAIT_S,
    clock: Callable[[], float] = time.time,
) -> Generation | None:
    """What answers now; None where the only generation there was had been on trial. Raises InstallError (no-generation)."""
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = settle(root, clock)
        trial = journal.on_trial
        if trial is not None:
            # Read now: after the switch nothing may fail.
            back = None if journal.current is None else root.record(journal.current)
            _take(root, journal, Failed("rolled-back", "the owner rolled it back", told_at(clock())))
            root.events.tell("rolled-back", generation=trial, what="the owner rolled it back")
            return back
        if journal.previous is None:
            raise InstallError(
                "there is no generation before this one",
                where=str(root.path),
                do="What answers is all there is; install the bundle that you want",
                code="no-generation",
            )
        return _switch(root, journal, journal.previous, "rolled-back", trust)


def _switch(root: Root, journal: Journal, number: int, event: str, trust: Sequence[str | Path]) -> Generation:
    generation = root.record(number)
    attempt = journal.attempt
    if attempt is not None and attempt.generation == number and journal.on_trial != number:
        raise InstallError(
            f"generation {number} is not installed yet: it came as far as '{attempt.state}'",
            where=str(root.path),
            do="Install it again, which goes on there",
        )
    if number != journal.answering:
        bundle = _read_again(root, generation, trust)
        if bundle.digest != generation.bundle:
            raise InstallError(
                f"generation {number} holds another bundle than was installed",
                where=str(root.object(generation.object)),
                do="Install it again",
            )
    if number != journal.current or journal.on_trial is not None:
        _take(root, journal, Activated(number))
        root.events.tell(event, **generation.facts())
    return generation


def _read_again(root: Root, generation: Generation, trust: Sequence[str | Path]) -> Bundle:
    lease, _ = root.hold(generation.number)
    try:
        allowed = generation.unsigned and not trust
        return read_held(lease, TrustPolicy(store_of(root, trust), allowed, new=False))
    except EdgekitError as error:
        raise with_way_out(error, root) from None
    finally:
        lease.release()


def _take(root: Root, journal: Journal, event: Event) -> Journal:
    return apply(root, journal, react(journal, event))

"""What an install is asked for, what of that the root remembers, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.errors import InstallError
from edgekit_runtime.install.fetch import Fetching
from edgekit_runtime.install.journal import TrialBy
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.prove import Proof, Proving
from edgekit_runtime.install.records import Generation, Slot
from edgekit_runtime.install.rules import Board

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import Given

__all__ = ["Asked", "Installed", "told_now"]


@dataclass(frozen=True)
class Asked:
    """What the owner decides. trust: keys or a root.json, from now on for this root; empty for what is trusted already.

    profile: what this board is, from now on for this root; None for what the root was told, and where it was told nothing, for
    `board`: what was found of this machine. allow_unsigned: take what nobody vouches for. trial: who tries it out. secret: where
    the key of an encrypted bundle is. wait_s: how long another install may take. waiting: called once where there is another.
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
    """state: `committed`, or `trial` where the application tries it out. already: it answered before, and nothing was done.
    repaired: it answered before, and its file, which was damaged or lost, was put back.

    selftest, trial: what was found, None where nothing was asked for. profile: what the root was told that this board is.
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


def told_now(root: Root, asked: Asked, trust: tuple[str, ...], profile: str | None = None) -> Slot:
    """What the root was told, with what it is told now. profile: said for the same install before, which is not finished. A slot.json that cannot be read is made anew where the owner says
    again whom to trust: nothing else of it decides what may come in. Raises InstallError (install-root)."""
    try:
        slot = root.slot()
    except InstallError as error:
        if error.code != "install-root":
            raise
        if not asked.trust:
            raise
        slot = Slot()
    return replace(slot, trust=trust or slot.trust, profile=asked.profile or profile or slot.profile)

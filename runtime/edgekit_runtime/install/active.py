"""Open the active generation of a root, and hold it for as long as a model uses it.

Rules:
- a bundle is read through the descriptor that holds it, and checked as when it was installed;
- a generation on trial that does not open is rolled back at once and the previous one opened; a committed one that does
  not open is an error: no caller gets a model that was not chosen;
- a failure of the machine is not held against the bundle: it counts as one of the three starts that may fail, and the
  committed generation is opened until the next start;
- if a start on trial cannot be recorded, the committed generation is opened;
- an unreadable journal does not stop readers: `current` leads to a whole generation all the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.trust_finding import Trust, TrustPolicy, load_trust
from edgekit_runtime.install.layout import Generation, Root
from edgekit_runtime.install.lock import Lease, alone
from edgekit_runtime.install.reading import read_locked, store_of
from edgekit_runtime.install.settling import settle
from edgekit_runtime.install.trial import TrialStart, begin, terms_of
from edgekit_runtime.install.watching import WatchedGeneration, give_up
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

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle
    from edgekit_runtime.bundle.secrets import SecretArgument
    from edgekit_runtime.serving.opened import OpenedBundle

    _How = tuple[Trust, SecretArgument, Callable[[Bundle], OpenedBundle]]

_WAIT_S = 10.0
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
        return _tried(root, (trust, secret, make))
    except EdgekitError as error:
        from edgekit_runtime.install.standing import way_back, with_way_out

        back = None
        with contextlib.suppress(EdgekitError, OSError):
            back = way_back(root)
        with_way_out(error, root, back)
        raise


def _tried(root: Root, how: _How) -> OpenedBundle:
    """Open the generation on trial, or the committed one if that fails."""
    lease, generation, start = _acquired(root)
    try:
        return _opened(root, lease, generation, start, how)
    except BaseException as error:
        lease.release()
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
    lease, generation = root.hold(number)
    try:
        return _opened(root, lease, generation, None, how)
    except BaseException:
        lease.release()
        raise


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


def _acquired(root: Root) -> tuple[Lease, Generation, TrialStart | None]:
    try:
        journal = root.journal()
    except InstallError as error:  # a reader needs `current` alone; `status` and `install` say what is amiss
        if error.code != "install-root":
            raise
        return (*root.hold_current(), None)
    if journal.on_trial is None and root.read_current() == journal.answering:
        return (*root.hold_current(), None)
    try:
        with alone(root.lock_file, wait_s=_WAIT_S):
            journal = settle(root)
            if journal.on_trial is None:
                return (*root.hold_current(), None)
            start = begin(root, journal.on_trial)
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


def _opened(root: Root, lease: Lease, generation: Generation, start: TrialStart | None, how: _How) -> OpenedBundle:
    trust, secret, make = how
    given = load_trust(trust)
    store = given if given is not None else store_of(root)
    policy = TrustPolicy(store, allow_unsigned=generation.unsigned and given is None, new=False)
    bundle = read_locked(lease, policy, secret)
    if bundle.digest != generation.bundle:
        what = f"generation {generation.number} holds another bundle than was installed"
        raise IntegrityError(what, where=str(lease.path), do="Install it again")
    opened = make(bundle)
    held = WatchedGeneration(root, generation, lease, bundle.trust_decision, start)
    held.terms = terms_of(bundle.manifest)
    return replace(opened, held=held)

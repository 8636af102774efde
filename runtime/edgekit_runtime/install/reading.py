"""Reading an object through the descriptor that holds it, and who vouches for it.

    bundle = read_held(lease, TrustPolicy(store_of(root)))

Rules:
- what is verified, what is loaded and what is held against removal is one open file: another file under its name changes
  nothing;
- the same question is asked at every open; dates are asked about at the install alone (see `trust.store`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.reader import Bundle, Opening, read_open
from edgekit_runtime.install.disk import storing
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease
from edgekit_runtime.install.trusting import kept
from edgekit_runtime.trust import TrustPolicy, TrustStore, find_trust, load_trust

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgekit_runtime.bundle.secrets import Given

__all__ = ["read_held", "store_of"]


def store_of(root: Root | None, trust: Sequence[str | Path] = ()) -> TrustStore | None:
    """Whom to trust: what is named, else what the root was told once, else what this machine trusts; None for nobody.

    Raises TrustError, SignatureError.
    """
    if trust:
        return load_trust([str(one) for one in trust])
    store = kept(root.path, root.slot().trust) if root is not None else None
    return replace(store, by_the_root=True) if store is not None else find_trust()


def read_held(lease: Lease, policy: TrustPolicy, secret: Given = None) -> Bundle:
    """Raises BundleError, IntegrityError, SignatureError, SecretError, StorageError."""
    return Opening(lease.path, policy, secret).read(partial(_all_of, lease))


def _all_of(lease: Lease) -> bytes:
    with storing(lease.path), lease.file() as file:
        return read_open(file, str(lease.path))

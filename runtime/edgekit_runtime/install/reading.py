"""Reading an object through the descriptor that holds it, and who vouches for it.

    bundle, vouched = read_held(lease, store, Rules(allow_unsigned=False, new=True))

Rules:
- what is verified, what is loaded and what is held against removal is one open file: another file under its name changes
  nothing;
- the same question is asked at every open; dates are asked about at the install alone (see `trust.store`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.reader import Bundle, bundle_of, read_open
from edgekit_runtime.install.disk import storing
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease
from edgekit_runtime.install.trusting import kept
from edgekit_runtime.trust import TrustStore, Vouched, find_trust, load_trust, vouch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgekit_runtime.bundle.header import Header
    from edgekit_runtime.bundle.secrets import Given
    from edgekit_runtime.trust import Moment

__all__ = ["BY_THE_ROOT", "Rules", "read_held", "store_of"]

BY_THE_ROOT = "whom this root was told to trust (slot.json), not this machine"
"""Who can write to the root can write that, too: whoever reads a report is to know by whose word it is trusted."""


@dataclass(frozen=True)
class Rules:
    """allow_unsigned: what nobody vouches for may pass, and is told. new: dates count. now: the time to judge by."""

    allow_unsigned: bool = False
    new: bool = True
    now: Moment | None = None


def store_of(root: Root | None, trust: Sequence[str | Path] = ()) -> TrustStore | None:
    """Whom to trust: what is named, else what the root was told once, else what this machine trusts; None for nobody.

    Raises TrustError, SignatureError.
    """
    if trust:
        return load_trust([str(one) for one in trust])
    store = kept(root.path, root.slot().trust) if root is not None else None
    return replace(store, told=BY_THE_ROOT) if store is not None else find_trust()


def read_held(lease: Lease, store: TrustStore | None, rules: Rules, secret: Given = None) -> tuple[Bundle, Vouched]:
    """Raises BundleError, IntegrityError, SignatureError, SecretError, StorageError."""
    with storing(lease.path), lease.file() as file:
        data = read_open(file, str(lease.path))
    where = str(lease.path)
    said: list[Vouched] = []

    def vouches(header: Header) -> bool:
        said.append(
            vouch(
                store,
                header.manifest_bytes,
                header.signatures,
                now=rules.now,
                new=rules.new,
                allow_unsigned=rules.allow_unsigned,
                where=where,
            )
        )
        return said[0].trusted

    bundle = bundle_of(data, lease.path, vouches, secret)
    return replace(bundle, told=said[0].told), said[0]

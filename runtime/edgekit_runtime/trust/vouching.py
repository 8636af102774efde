"""Whether a bundle may be taken, with everything that a person or a machine said about trust.

    vouched = vouch(store, header.manifest_bytes, header.signatures, allow_unsigned=False, where=path)
    vouched.signers, vouched.told                       # (), "not signed; taken because of --allow-unsigned"

Rules: no store is a refusal, unless `allow_unsigned`; so is a bundle that nobody signed, or nobody who is known, or too few.
What was tampered with, is revoked or is expired is refused whatever was allowed: that is no missing signature. Whoever
shows a bundle shows `told`, so that nobody takes an allowance for a check.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.signature import Signature
from edgekit_runtime.errors import SignatureError
from edgekit_runtime.trust.clock import Moment
from edgekit_runtime.trust.errors import TooFewSignaturesError, UnknownKeyError, UnsignedError
from edgekit_runtime.trust.finding import Trust, find_trust, load_trust, no_trust
from edgekit_runtime.trust.store import TrustStore

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle
    from edgekit_runtime.bundle.secrets import Given

__all__ = ["Vouched", "read_vouched", "vouch"]


@dataclass(frozen=True)
class Vouched:
    """signers: keyids that count; empty where nobody vouches for the bundle. told: the words for it. code: of the refusal that
    was waived, empty where there was none. then: what of `told` may be written down, because it does not end to be true."""

    signers: tuple[str, ...]
    told: str
    code: str = ""
    then: str = ""

    @property
    def trusted(self) -> bool:
        return bool(self.signers)


def vouch(
    store: TrustStore | None,
    manifest: bytes,
    signatures: Sequence[Signature],
    *,
    now: Moment | None = None,
    new: bool = True,
    allow_unsigned: bool = False,
    where: str = "",
) -> Vouched:
    """now, new: as in `TrustStore.check`. Raises NoTrustError without a store, and what `check` raises."""
    waived: SignatureError
    if store is None:
        waived = no_trust(where)
    else:
        try:
            signers = store.check(manifest, signatures, now, new=new, where=where)
        except (UnsignedError, UnknownKeyError, TooFewSignaturesError) as error:
            waived = error
        else:
            signed = f"signed by {', '.join(map(store.name_of, signers))}"
            return Vouched(signers, f"{signed}, {store.told}", then=signed)
    if not allow_unsigned:
        if store is not None:
            waived.do += "; or take it as it is with --allow-unsigned"
        raise waived
    return Vouched((), f"{waived.what}; taken because of --allow-unsigned", waived.code, waived.what)


def read_vouched(
    path: str | os.PathLike[str], trust: Trust = (), *, secret: Given = None, allow_unsigned: bool = False
) -> Bundle:
    """The bundle in a file, to be used now: by what `trust` names, else by what this machine trusts, else unchecked.

    Dates are not asked about: they decide what is installed. `Bundle.told` says who vouches for it, or that nobody was asked.
    Raises as `read_bundle` does.
    """
    from edgekit_runtime.bundle import read_bundle

    store = load_trust(trust)
    store = find_trust() if store is None else store
    if store is None:
        unchecked = read_bundle(path, secret=secret)
        return replace(unchecked, told="its signature was not checked: this machine was never told whom to trust")
    found: list[Vouched] = []

    def vouches(manifest: bytes, signatures: Sequence[Signature]) -> bool:
        found.append(
            vouch(store, manifest, signatures, new=False, allow_unsigned=allow_unsigned, where=os.fspath(path))
        )
        return found[0].trusted

    bundle = read_bundle(path, vouches=vouches, secret=secret)
    return replace(bundle, told=found[0].told)

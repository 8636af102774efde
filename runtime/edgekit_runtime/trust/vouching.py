"""Whether a bundle may be taken, with everything that a person or a machine said about trust.

    vouched = vouch(store, header.manifest_bytes, header.signatures, allow_unsigned=False, where=path)
    vouched.signers, vouched.told                       # (), "not signed; taken because of --allow-unsigned"

Rules: no store is a refusal, unless `allow_unsigned`; so is a bundle that nobody signed, or nobody who is known, or too few.
What was tampered with, is revoked or is expired is refused whatever was allowed: that is no missing signature. Whoever
shows a bundle shows `told`, so that nobody takes an allowance for a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit_runtime.errors import SignatureError
from edgekit_runtime.trust.clock import Moment
from edgekit_runtime.trust.errors import TooFewSignaturesError, UnknownKeyError, UnsignedError
from edgekit_runtime.trust.finding import no_trust
from edgekit_runtime.trust.signature import Signature
from edgekit_runtime.trust.store import TrustStore

__all__ = ["Vouched", "vouch"]


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

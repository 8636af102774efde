"""Whether a bundle may be taken, with everything that a person or a machine said about trust.

    vouched = TrustPolicy(store).vouch(header.manifest_bytes, header.signatures, where=path)
    vouched.signers, vouched.told                      # (), "not signed; accepted because unsigned bundles are allowed"

Rules: no store is a refusal, unless `allow_unsigned`; so is a bundle that nobody signed, or nobody who is known, or too
few. What was tampered with, is revoked or is expired is refused whatever was allowed: that is no missing signature.
Whoever shows a bundle shows `told`, so that nobody takes an allowance for a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgekit_runtime.errors import SignatureError
from edgekit_runtime.trust.finding import no_trust
from edgekit_runtime.trust.signature import Signature
from edgekit_runtime.trust.store import Moment, TrustStore

__all__ = ["BY_THE_ROOT", "UNCHECKED", "TrustPolicy", "Vouched"]

BY_THE_ROOT = "whom this root was told to trust (slot.json), not this machine"
"""Who can write to the root can write that, too: whoever reads a report is to know by whose word it is trusted."""


@dataclass(frozen=True)
class Vouched:
    """signers: keyids that count; empty where nobody vouches for the bundle. told: the words for it. code: of the
    refusal that was waived or is only shown, empty where there was none. then: what of `told` may be written down,
    because it does not end to be true. by_the_root: an install root says whom to trust, not this machine or the
    caller."""

    signers: tuple[str, ...]
    told: str
    code: str = ""
    then: str = ""
    by_the_root: bool = False

    @property
    def trusted(self) -> bool:
        return bool(self.signers)


UNCHECKED = Vouched((), "its signature was not checked")


@dataclass(frozen=True)
class TrustPolicy:
    """store: whom to trust, None for nobody. allow_unsigned: what nobody vouches for may pass, and is told; None where
    nobody can say so. new, now: as in `TrustStore.check`. mode: `require` a trusted signature; `if-known`: only where
    there is a store; `show`: refuse nothing.
    """

    store: TrustStore | None = None
    allow_unsigned: bool | None = False
    new: bool = True
    now: Moment | None = None
    mode: Literal["require", "if-known", "show"] = "require"

    def vouch(self, manifest: bytes, signatures: Sequence[Signature], where: str = "") -> Vouched:
        """Raises TrustError (no-trust-store) without a store, and what `TrustStore.check` raises."""
        store = self.store
        if store is None and self.mode != "require":
            return Vouched((), f"{UNCHECKED.told}: this machine was never told whom to trust")
        try:
            if store is None:
                raise no_trust(where)
            signers = store.check(manifest, signatures, self.now, new=self.new, where=where)
        except SignatureError as error:
            return self._unvouched(error)
        signed = f"signed by {', '.join(map(store.name_of, signers))}"
        whose = BY_THE_ROOT if store.by_the_root else "trusted here"
        return Vouched(signers, f"{signed}, {whose}", then=signed, by_the_root=store.by_the_root)

    def _unvouched(self, refusal: SignatureError) -> Vouched:
        if self.mode == "show":
            return Vouched((), f"NOT trusted here: {refusal.what}", refusal.code)
        waivable = refusal.code in ("no-trust-store", "unsigned", "unknown-key", "too-few-signatures")
        if waivable and self.allow_unsigned:
            told = f"{refusal.what}; accepted because unsigned bundles are allowed"
            return Vouched((), told, refusal.code, refusal.what)
        if waivable and self.store is not None and self.allow_unsigned is not None:
            refusal.do_cli = f"{refusal.do_cli or refusal.do}; or accept it as it is with --allow-unsigned"
            refusal.do += "; or accept it as it is with allow_unsigned=True"
        raise refusal

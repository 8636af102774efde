"""Decide whether a bundle is trusted, from the trusted keys and the options of the caller.

    decision = TrustPolicy(store).decide(header.manifest_bytes, header.signatures, where=path)
    decision.signers, decision.text                    # (), "not signed; accepted because unsigned bundles are allowed"

Rules:
- without a store, a signature, a known key or enough keys the bundle is refused, unless `allow_unsigned`;
- a changed, revoked or expired one is refused whatever is allowed: that is no missing signature;
- a report on a bundle shows `text`, so that an allowance does not look like a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgekit_runtime.errors import SignatureError
from edgekit_runtime.trust.finding import no_trust
from edgekit_runtime.trust.signature import Signature
from edgekit_runtime.trust.store import TrustStore, TrustTime

BY_THE_ROOT = "trusted by the install root (slot.json), not by this machine"
"""A person who can write to the root can write that, too: a report says which keys it was checked against."""


@dataclass(frozen=True)
class TrustDecision:
    """Who signed a bundle, and whether that suffices.

    signers: keyids that count; empty where no trusted key has signed. text: the decision in words.
    code: of the refusal that was waived or is only shown, else empty.
    lasting_text: the part of `text` that stays true, for a record on disk.
    by_the_root: the trusted keys are the install root's, not this machine's or the caller's.
    """

    signers: tuple[str, ...]
    text: str
    code: str = ""
    lasting_text: str = ""
    by_the_root: bool = False

    @property
    def trusted(self) -> bool:
        return bool(self.signers)


UNCHECKED = TrustDecision((), "its signature was not checked")


@dataclass(frozen=True)
class TrustPolicy:
    """What to accept.

    store: trusted keys, None without any.
    allow_unsigned: accept a bundle that no trusted key has signed, and say so; None where no option allows it.
    new, now: as in `TrustStore.check`.
    mode: `require` a trusted signature; `if-known`: only where there is a store; `show`: refuse nothing.
    """

    store: TrustStore | None = None
    allow_unsigned: bool | None = False
    new: bool = True
    now: TrustTime | None = None
    mode: Literal["require", "if-known", "show"] = "require"

    def decide(self, manifest: bytes, signatures: Sequence[Signature], where: str = "") -> TrustDecision:
        """Raises TrustError (no-trust-store) without a store, and what `TrustStore.check` raises."""
        store = self.store
        if store is None and self.mode != "require":
            return TrustDecision((), f"{UNCHECKED.text}: no trusted keys are configured on this machine")
        try:
            if store is None:
                raise no_trust(where)
            signers = store.check(manifest, signatures, self.now, new=self.new, where=where)
        except SignatureError as error:
            if self.mode == "show":
                return TrustDecision((), f"NOT trusted here: {error.what}", error.code)
            waivable = error.code in ("no-trust-store", "unsigned", "unknown-key", "too-few-signatures")
            if waivable and self.allow_unsigned:
                reason = f"{error.what}; accepted because unsigned bundles are allowed"
                return TrustDecision((), reason, error.code, lasting_text=error.what)
            if waivable and self.store is not None and self.allow_unsigned is not None:
                error.do_cli = f"{error.do_cli or error.do}; or accept it as it is with --allow-unsigned"
                error.do += "; or accept it as it is with allow_unsigned=True"
            raise
        signed = f"signed by {', '.join(map(store.name_of, signers))}"
        whose = BY_THE_ROOT if store.by_the_root else "trusted here"
        return TrustDecision(signers, f"{signed}, {whose}", lasting_text=signed, by_the_root=store.by_the_root)

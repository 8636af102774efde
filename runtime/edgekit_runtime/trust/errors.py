"""Why a signature is not enough, one class a reason: an operator does something else about each of them.

try: bundle = read_bundle(path, trust="root.json")
except RevokedKeyError: ...                        # a stolen key: find out who still ships what it signed
"""

from __future__ import annotations

from edgekit_runtime.errors import SignatureError

__all__ = [
    "BadSignatureError",
    "KeyExpiredError",
    "NoTrustError",
    "RevokedKeyError",
    "RootExpiredError",
    "RootRollbackError",
    "TooFewSignaturesError",
    "TrustError",
    "UnknownKeyError",
    "UnsafePathError",
    "UnsignedError",
]


class UnsignedError(SignatureError):
    """Nobody signed the bundle."""

    code = "unsigned"


class UnknownKeyError(SignatureError):
    """Signed, but by no key that is trusted here."""

    code = "unknown-key"


class BadSignatureError(SignatureError):
    """A signature in the name of a trusted key does not hold: other bytes were signed, or by somebody else."""

    code = "bad-signature"


class RevokedKeyError(SignatureError):
    """Signed by a key that was trusted once and was revoked."""

    code = "revoked-key"


class KeyExpiredError(SignatureError):
    """Signed by a key that is trusted for earlier times alone."""

    code = "key-expired"


class TooFewSignaturesError(SignatureError):
    """Fewer of the trusted keys signed than must."""

    code = "too-few-signatures"


class TrustError(SignatureError):
    """What this machine trusts cannot be told: a root.json or a key that cannot be read, or does not hold."""

    code = "trust"


class NoTrustError(TrustError):
    """This machine was never told whom to trust."""

    code = "no-trust-store"


class UnsafePathError(TrustError):
    """Another user could replace the file that says whom to trust."""

    code = "unsafe-path"


class RootExpiredError(TrustError):
    """The root.json is past its date: nothing new is accepted by it until a newer one is taken over."""

    code = "root-expired"


class RootRollbackError(TrustError):
    """A root.json that may not follow the one in force: older, or with versions left out in between."""

    code = "root-rollback"

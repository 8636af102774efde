"""Signing with Ed25519.
What signs, and the block of signatures that a bundle or a root.json carries.

key = load_signing_key(Path("alice.pem"), passphrase=ask)        # asked only when the file is encrypted
block = signature_block(manifest, [key])
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgekit.errors import PackagingError
from edgekit_runtime.strict_json import canonical_bytes
from edgekit_runtime.trust.finding import refuse_unsafe
from edgekit_runtime.trust.signature import MAX_KEY_FILE_BYTES, PAYLOAD_TYPE, Signature, keyid_of, pae, raw_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


class Signer(Protocol):
    """What makes signatures in the name of one key: a file's, or a command's that asks a token."""

    @property
    def public(self) -> bytes:
        """The raw 32 bytes of the public key."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the Ed25519 signature over `message` as it is. Raises PackagingError."""
        ...


@dataclass(frozen=True)
class SigningKey:
    """A private key, read once. Never printed, never logged."""

    _private: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        return raw_key(self._private.public_key())

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def signed_by(signer: Signer, body: bytes, payload_type: str = PAYLOAD_TYPE) -> Signature:
    """keyid and signature over the DSSE encoding of `body`.

    A manifest's bytes, unless a payload type says otherwise.
    """
    return keyid_of(signer.public), signer.sign(pae(body, payload_type))


def merge_signatures(signatures: Iterable[Signature]) -> list[dict[str, str]]:
    """Entries of a signature block: the last of each key, in the order of the keyids.

    So the order in which keys signed does not show.
    """
    return [
        {"keyid": name, "sig": base64.b64encode(signature).decode()}
        for name, signature in sorted(dict(signatures).items())
    ]


def signature_block(body: bytes, signers: Sequence[Signer], others: Iterable[Signature] = ()) -> bytes:
    """The block over a manifest's bytes. others: signatures that are there already."""
    return canonical_bytes(merge_signatures([*others, *(signed_by(signer, body) for signer in signers)]))


def load_signing_key(path: Path, passphrase: Callable[[Path], bytes | None] | None = None) -> SigningKey:
    """An Ed25519 private key from a PEM file.
    passphrase: asked with the path where the file is encrypted.

    Raises PackagingError naming the file.
    """
    from cryptography.hazmat.primitives.asymmetric import ed25519

    make = f"Make one: edgekit keys new; or: openssl genpkey -algorithm ed25519 -out {path.name}"
    private = load_private_key(path, passphrase, make)
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise PackagingError("this key is not Ed25519", where=str(path), do=make)
    return SigningKey(private)


def load_private_key(path: Path, passphrase: Callable[[Path], bytes | None] | None, make: str) -> PrivateKeyTypes:
    """A private key of whatever kind from a PEM file.
    make: how to make one that would do, for the error.

    Raises PackagingError naming the file.
    """
    from cryptography.hazmat.primitives import serialization

    data = _read(path, make)
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data or b"Proc-Type: 4,ENCRYPTED" in data
    secret = passphrase(path) if passphrase is not None and encrypted else None
    try:
        return serialization.load_pem_private_key(data, password=secret)
    except TypeError as error:
        raise PackagingError(
            "the key is encrypted, and no passphrase was given",
            where=str(path),
            do="Run it on a terminal, which asks for it, or pass --passphrase-file FILE or set EDGEKIT_PASSPHRASE",
        ) from error
    except Exception as error:
        if secret is not None:
            raise PackagingError("the passphrase is not that of this key", where=str(path), do="Try again") from error
        what = (
            "this is a public key: who signs needs the private one"
            if b"PUBLIC KEY" in data
            else "this is no PEM private key"
        )
        raise PackagingError(what, where=str(path), do=make) from error


def _read(path: Path, make: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may never end
            raise PackagingError("not a regular file", where=str(path), do=make)
        refuse_unsafe(path)
        with path.open("rb") as file:
            return file.read(MAX_KEY_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise PackagingError(f"the key cannot be read: {why}", where=str(path), do=make) from error

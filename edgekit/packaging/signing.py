"""Signing a manifest with Ed25519."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import PackagingError
from edgekit_runtime.bundle import keyid, pae

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["SigningKey", "load_signing_key"]


@dataclass(frozen=True)
class SigningKey:
    """A private key, read once. Never printed, never logged."""

    _private: Ed25519PrivateKey

    @property
    def keyid(self) -> str:
        return keyid(self._private.public_key())

    def sign(self, manifest: bytes) -> dict[str, str]:
        """One entry of the signature block over the manifest's bytes."""
        return {"keyid": self.keyid, "sig": base64.b64encode(self._private.sign(pae(manifest))).decode()}


def load_signing_key(path: Path) -> SigningKey:
    """An unencrypted Ed25519 private key from a PEM file. Raises PackagingError naming the file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    make = f"Make one: openssl genpkey -algorithm ed25519 -out {path.name}"
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise PackagingError(f"the key cannot be read: {error.strerror}", where=str(path), do=make) from error
    except TypeError as error:
        raise PackagingError("the key is encrypted, which is not supported yet", where=str(path), do=make) from error
    except Exception as error:
        raise PackagingError("this is no PEM private key", where=str(path), do=make) from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise PackagingError("this key is not Ed25519", where=str(path), do=make)
    return SigningKey(private)

"""Encrypting what a bundle holds: every blob, model files and golden examples alike. The manifest stays readable.

encryption = Encryption(load_secret("file:camera.secret"), model_id)
draft = BundleDraft(encryption)                     # whose blobs are named by the SHA-256 of their encrypted bytes

Rule: the same key, model and bytes give the same encrypted bytes, so that a build can be repeated (see `bundle.cipher`).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit_runtime.bundle import Cipher
from edgekit_runtime.bundle.cipher import SCHEME, Kind, bound_to, encrypt
from edgekit_runtime.bundle.secrets import Secret

__all__ = ["Encryption"]


@dataclass(frozen=True)
class Encryption:
    """secret: its first key encrypts. model_id: of the model that the blobs are bound to."""

    secret: Secret
    model_id: str

    def encrypted(self, data: bytes, kind: Kind) -> tuple[bytes, Cipher]:
        """What goes into the file, and what a reader must know of it beside the key."""
        salt, sealed = encrypt(self.secret.key(), data, bound_to(self.model_id, kind))
        return sealed, Cipher(SCHEME, self.secret.id, salt.hex())

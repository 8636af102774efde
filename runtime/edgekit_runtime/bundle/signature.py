"""Who signed a manifest: Ed25519 over the DSSE pre-authentication encoding, checked before the manifest is parsed.

The signature block is a JSON list of {"keyid", "sig"}: keyid is the SHA-256 of the raw public key in hex, sig is base64.
PAE(type, body) = "DSSEv1" SP len(type) SP type SP len(body) SP body   (DSSE 1.0 protocol).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.errors import BundleError, SignatureError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["PAYLOAD_TYPE", "Signature", "keyid", "load_public_key", "pae", "parse_signatures", "verify"]

PAYLOAD_TYPE = "application/vnd.edgekit.manifest.v1+json"

Signature = tuple[str, bytes]
"""keyid and the 64 raw bytes."""


def pae(body: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """The bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type.encode(), len(body), body)


def keyid(key: Ed25519PublicKey) -> str:
    """SHA-256 of the raw 32 bytes of the public key, in hex."""
    from cryptography.hazmat.primitives import serialization

    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def parse_signatures(block: bytes, where: str) -> tuple[Signature, ...]:
    """The signature block. Raises BundleError when it is malformed."""
    try:
        entries = json.loads(block)
        return tuple((str(entry["keyid"]), base64.b64decode(entry["sig"], validate=True)) for entry in entries)
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise BundleError("the signature block is malformed", where=where, do="Build the bundle again") from error


def load_public_key(path: Path) -> Ed25519PublicKey:
    """An Ed25519 public key from a PEM file. Raises SignatureError naming the file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise SignatureError(f"the key cannot be read: {error.strerror}", where=str(path)) from error
    except Exception as error:
        raise SignatureError(
            "this is no PEM public key",
            where=str(path),
            do=f"Make one: openssl pkey -in KEY.pem -pubout -out {path.name}",
        ) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise SignatureError(
            "this key is not Ed25519", where=str(path), do="Make one: openssl genpkey -algorithm ed25519"
        )
    return key


def verify(manifest: bytes, signatures: Sequence[Signature], trusted: Sequence[Ed25519PublicKey]) -> tuple[str, ...]:
    """The keyids among `trusted` whose signature over `manifest` holds; empty when none does."""
    if not trusted or not signatures:
        return ()
    from cryptography.exceptions import InvalidSignature

    keys = {keyid(key): key for key in trusted}
    message, good = pae(manifest), []
    for name, signature in signatures:
        key = keys.get(name)
        if key is None:
            continue
        try:
            key.verify(signature, message)
        except InvalidSignature:
            continue
        good.append(name)
    return tuple(good)

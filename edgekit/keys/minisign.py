"""A `.minisig` beside a file, for those who check with minisign and know nothing of edgekit.

text = minisig(data, signer, comment="efficientnet_lite0 version 1")        # to NAME.minisig
key = public_key(signer.public, "alice")                                      # what `minisign -V -P` or -p takes

The format, as jedisct1.github.io/minisign describes it, in its prehashed form: signed is BLAKE2b-512 of the file; a second
signature covers the first and the trusted comment, so that name and version in it cannot be changed. A key's id there is eight
bytes at choice: the first of edgekit's own keyid.
"""

from __future__ import annotations

import base64
import hashlib

from edgekit.keys.errors import KeysError
from edgekit.packaging.signing import Signer
from edgekit_runtime.bundle.signature import keyid_of

__all__ = ["minisig", "public_key"]

_PREHASHED, _ED25519 = b"ED", b"Ed"


def minisig(data: bytes, signer: Signer, comment: str) -> str:
    """The file's text. comment: one line, signed with it. Raises KeysError for more than that."""
    if not comment.isprintable():
        raise KeysError("a trusted comment is one line of what can be printed", do="Leave line ends out")
    signature = signer.sign(hashlib.blake2b(data).digest())
    whole = signer.sign(signature + comment.encode())
    return (
        f"untrusted comment: signature by {keyid_of(signer.public)[:16]}, made by edgekit\n"
        f"{_text(_PREHASHED + _id(signer.public) + signature)}\n"
        f"trusted comment: {comment}\n"
        f"{_text(whole)}\n"
    )


def public_key(raw: bytes, name: str) -> str:
    """A minisign public key file for the raw 32 bytes of a key."""
    return f"untrusted comment: minisign public key of {name}\n{_text(_ED25519 + _id(raw) + raw)}\n"


def _id(raw: bytes) -> bytes:
    return bytes.fromhex(keyid_of(raw))[:8]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

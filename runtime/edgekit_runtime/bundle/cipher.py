"""How one blob is encrypted.
AES-256-GCM under a key of its own, found from the secret key and a salt.

    salt, sealed = encrypt(key, data, bound_to(model_id, "model"))
    data = decrypt(key, salt, sealed, bound_to(model_id, "model"))      # InvalidTag where one bit of anything differs

Rules:
- key and nonce of a blob are the 44 bytes of HKDF-SHA256(key, salt=its salt, info=BLOB_INFO): a nonce only ever meets
  the one key that it was made with;
- a writer's salt is HMAC-SHA256 over what the blob is bound to and its plain bytes: equal blobs of one model are equal
  when encrypted, so that the same build gives the same bytes, and different ones never share a salt. A reader takes the
  salt as it is, so that other writers may draw theirs at random;
- authenticated with the bytes: the model's id and whether it is a model file or part of a golden example. Blobs cannot
  change places between models, nor between the two kinds. Which of one model's stands where is in the manifest, and the
  signature's to protect: bound to its place, a blob would be another in every bundle, and the rest of an unsigned
  manifest could still be changed;
- nothing in plain that is short could be guessed from what a bundle shows: it has no digest of plain bytes.

HKDF is RFC 5869, GCM is NIST SP 800-38D, and a nonce that is a keyed hash of the message is the idea of RFC 5297 (SIV).
"""

from __future__ import annotations

import hashlib
import hmac
import io
from typing import Literal

SCHEME: Literal["AES-256-GCM"] = "AES-256-GCM"
KEY_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
ID_BYTES = 16
BLOB_INFO, SALT_INFO, ID_INFO = b"edgekit blob v1", b"edgekit salt v1", b"edgekit key id v1"
_CHUNK = 1 << 20

Kind = Literal["model", "golden"]
Readable = bytes | bytearray | memoryview


def key_id(key: bytes) -> str:
    """What names a key without revealing it: 16 bytes of HKDF-SHA256, in hex."""
    return _derived(key, None, ID_INFO, ID_BYTES).hex()


def bound_to(model_id: str, kind: Kind) -> bytes:
    """The associated data of a blob."""
    return f"edgekit blob v1\n{model_id}\n{kind}\n".encode()


def plain_size(size: int) -> int:
    """Bytes that an encrypted blob of `size` bytes has in plain."""
    return size - TAG_BYTES


def encrypt(key: bytes, data: Readable, bound: bytes) -> tuple[bytes, bytes]:
    """The salt, and the bytes encrypted, with the tag of 16 bytes at their end."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    digest = hmac.new(_derived(key, None, SALT_INFO, KEY_BYTES), digestmod=hashlib.sha256)
    digest.update(len(bound).to_bytes(8, "big") + bound)
    digest.update(data)
    salt = digest.digest()
    own, nonce = _of_blob(key, salt)
    context = Cipher(algorithms.AES(own), modes.GCM(nonce)).encryptor()
    context.authenticate_additional_data(bound)
    out, view = io.BytesIO(), memoryview(data)
    for start in range(0, len(view), _CHUNK):
        out.write(context.update(view[start : start + _CHUNK]))
    out.write(context.finalize())
    out.write(context.tag)
    return salt, out.getvalue()


def decrypt(key: bytes, salt: bytes, sealed: Readable, bound: bytes) -> bytes:
    """The plain bytes; piece by piece, so that they are in memory once.
    Raises cryptography's InvalidTag, and then tells nothing.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    view = memoryview(sealed)
    end = plain_size(len(view))
    if end < 0:
        raise InvalidTag
    own, nonce = _of_blob(key, salt)
    context = Cipher(algorithms.AES(own), modes.GCM(nonce)).decryptor()
    context.authenticate_additional_data(bound)
    out = io.BytesIO()
    for start in range(0, end, _CHUNK):
        out.write(context.update(view[start : min(start + _CHUNK, end)]))
    out.write(context.finalize_with_tag(bytes(view[end:])))
    return out.getvalue()


def _of_blob(key: bytes, salt: bytes) -> tuple[bytes, bytes]:
    both = _derived(key, salt, BLOB_INFO, KEY_BYTES + NONCE_BYTES)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _derived(key: bytes, salt: bytes | None, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), length, salt, info).derive(key)

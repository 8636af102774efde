"""How one blob is encrypted: AES-256-GCM under a key derived from the secret key and a salt.

    salt, sealed = encrypt(key, data, bound_to(model_id, "model"))
    data = decrypt(key, salt, sealed, bound_to(model_id, "model"))      # InvalidTag if one bit of anything differs

Rules:
- key and nonce of a blob are the 44 bytes of HKDF-SHA256(key, salt=its salt, info=BLOB_INFO) (RFC 5869, SP 800-38D);
- a writer's salt is HMAC-SHA256 over what the blob is bound to and its plain bytes (as RFC 5297): equal builds give
  equal bytes. A reader takes any salt, so another writer may draw it at random;
- a blob is bound to the model's id and to its kind, model file or golden example. Its place in a bundle is for the
  manifest's signature to protect;
- a bundle has no digest of plain bytes, from which a short text could be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from typing import Literal

SCHEME: Literal["AES-256-GCM"] = "AES-256-GCM"
KEY_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
ID_BYTES = 16
BLOB_INFO, SALT_INFO, ID_INFO = b"edgekit blob v1", b"edgekit salt v1", b"edgekit key id v1"
_CHUNK = 1 << 20

Kind = Literal["model", "golden"]
Readable = bytes | bytearray | memoryview


def key_id(key: bytes) -> str:
    """Id that names a key without revealing it: 16 bytes of HKDF-SHA256, in hex."""
    return _derive(key, None, ID_INFO, ID_BYTES).hex()


def bound_to(model_id: str, kind: Kind) -> bytes:
    """Associated data of a blob."""
    return f"edgekit blob v1\n{model_id}\n{kind}\n".encode()


def plain_size(size: int) -> int:
    """Decrypted size in bytes of an encrypted blob of `size` bytes."""
    return size - TAG_BYTES


def encrypt(key: bytes, data: Readable, bound: bytes) -> tuple[bytes, bytes]:
    """The salt, and the encrypted bytes that end with the 16-byte tag."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    digest = hmac.new(_derive(key, None, SALT_INFO, KEY_BYTES), digestmod=hashlib.sha256)
    digest.update(len(bound).to_bytes(8, "big") + bound)
    digest.update(data)
    salt = digest.digest()
    own, nonce = _blob_key_and_nonce(key, salt)
    context = Cipher(algorithms.AES(own), modes.GCM(nonce)).encryptor()
    context.authenticate_additional_data(bound)
    out, view = io.BytesIO(), memoryview(data)
    for start in range(0, len(view), _CHUNK):
        out.write(context.update(view[start : start + _CHUNK]))
    out.write(context.finalize())
    out.write(context.tag)
    return salt, out.getvalue()


def decrypt(key: bytes, salt: bytes, sealed: Readable, bound: bytes) -> bytes:
    """The plain bytes, decrypted in pieces so that memory holds them once.
    Raises cryptography's InvalidTag, which says nothing else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    view = memoryview(sealed)
    end = plain_size(len(view))
    if end < 0:
        raise InvalidTag
    own, nonce = _blob_key_and_nonce(key, salt)
    context = Cipher(algorithms.AES(own), modes.GCM(nonce)).decryptor()
    context.authenticate_additional_data(bound)
    out = io.BytesIO()
    for start in range(0, end, _CHUNK):
        out.write(context.update(view[start : min(start + _CHUNK, end)]))
    out.write(context.finalize_with_tag(bytes(view[end:])))
    return out.getvalue()


def _blob_key_and_nonce(key: bytes, salt: bytes) -> tuple[bytes, bytes]:
    both = _derive(key, salt, BLOB_INFO, KEY_BYTES + NONCE_BYTES)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _derive(key: bytes, salt: bytes | None, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), length, salt, info).derive(key)

"""Whether bytes that are read back are those that were kept under a key.

    file.write(seal(key, data) + data)
    if not is_sealed(stored[:SEAL_BYTES], key, data): ...       # damaged, of another key, or of another secret

Rules:
- a seal is over key and data, so that two entries whose bytes were exchanged are none;
- with a secret only its owners can make one (HMAC-SHA-256); without, it finds damage and mix-ups (xxh3-128);
- a seal says who kept it, not what it is: what a reader believes, it checks as well.
"""

from __future__ import annotations

import hmac

import xxhash

__all__ = ["SEAL_BYTES", "Buffer", "is_sealed", "seal"]

SEAL_BYTES = 16
Buffer = bytes | bytearray | memoryview


def seal(key: bytes, data: Buffer, secret: bytes | None = None) -> bytes:
    head = len(key).to_bytes(4, "little") + key
    if secret is not None:
        made = hmac.new(secret, head, "sha256")
        made.update(data)
        return made.digest()[:SEAL_BYTES]
    quick = xxhash.xxh3_128(head)
    quick.update(data)
    return quick.digest()


def is_sealed(found: Buffer, key: bytes, data: Buffer, secret: bytes | None = None) -> bool:
    return hmac.compare_digest(found, seal(key, data, secret))

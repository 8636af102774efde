"""Seals: whether bytes that are read back are those that were stored under a key.

    file.write(seal(key, data) + data)
    if not is_sealed(stored[:SEAL_BYTES], key, data): ...       # damaged, of another key, or of another secret

Rules:
- a seal covers key and data, so exchanged entries are detected;
- with a secret only its owners can make one (HMAC-SHA-256); without, it detects damage and mix-ups (xxh3-128);
- a seal says who stored the data, not what it is: the reader still checks it;
- a file named by a digest of its inputs is sealed under its name.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import xxhash

from edgekit_runtime.system.files import read_own, write_cache

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


def name_of(*parts: str) -> str:
    """The name of a file that depends on all of these: SHA-256 in hex."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def write_sealed(file: Path, data: bytes) -> None:
    """As `write_cache`. Raises OSError."""
    write_cache(file, [seal(file.name.encode(), data), data])


def read_sealed(file: Path, most: int) -> bytes | None:
    """What was written under this name, read by `read_own`; None for anything else."""
    stored = read_own(file, most) or b""
    data = stored[SEAL_BYTES:]
    return data if is_sealed(stored[:SEAL_BYTES], file.name.encode(), data) else None

"""Writing an .ekb. The same draft gives the same bytes; nothing of the machine or the clock gets in.

draft = BundleDraft()
digest = draft.add(model_bytes)                     # content-addressed: the same bytes are stored once
write_bundle(path, draft, manifest, keys)
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgekit.errors import PackagingError
from edgekit.packaging.encryption import Encryption
from edgekit.packaging.signing import Signer, signature_block
from edgekit.packaging.whole import write_whole
from edgekit_runtime.bundle import MAGIC, BlobEntry, Cipher, Manifest, aligned, parse_manifest
from edgekit_runtime.bundle.checks import check_answers
from edgekit_runtime.bundle.cipher import Kind
from edgekit_runtime.bundle.header import MAX_MANIFEST_BYTES
from edgekit_runtime.errors import BundleError, MissingExtraError

__all__ = ["BundleDraft", "canonical_json", "write_bundle"]


class BundleDraft:
    """Collects blobs in the order they are first added. encryption: of every one of them, None to leave them as they are."""

    def __init__(self, encryption: Encryption | None = None) -> None:
        self._encryption = encryption
        self._blobs: dict[str, bytes] = {}
        self._ciphers: dict[str, Cipher] = {}

    def add(self, data: bytes, kind: Kind = "golden") -> str:
        """Store a blob; returns the SHA-256, in hex, of what the file will hold. kind: `model` for a model file."""
        cipher = None
        if self._encryption is not None:
            data, cipher = self._encryption.encrypted(data, kind)
        digest = hashlib.sha256(data).hexdigest()
        self._blobs.setdefault(digest, data)
        if cipher is not None:
            self._ciphers[digest] = cipher
        return digest

    @property
    def digests(self) -> list[str]:
        """Of every blob, in their order."""
        return list(self._blobs)

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(map(len, self._blobs.values()))

    def entries(self) -> tuple[BlobEntry, ...]:
        entries, cursor = [], 0
        for digest, data in self._blobs.items():
            entries.append(BlobEntry(digest, cursor, len(data), self._ciphers.get(digest)))
            cursor = aligned(cursor + len(data))
        return tuple(entries)

    def encode(self, manifest: Manifest, keys: Sequence[Signer] = ()) -> bytes:
        """The whole file. The manifest's `blobs` are filled in here. Raises PackagingError for what no reader would open."""
        body = canonical_json(replace(manifest, blobs=self.entries()).as_json())
        _check_readable(body, {name: data for name, data in self._blobs.items() if name not in self._ciphers})
        signatures = signature_block(body, keys)
        head = MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", len(signatures)) + signatures
        head += hashlib.sha256(head).digest()
        return b"".join([_padded(head), *(_padded(data) for data in self._blobs.values())])


def _check_readable(body: bytes, blobs: Mapping[str, bytes]) -> None:
    """The reader's own checks: what it refuses is not written in the first place. blobs: those that are not encrypted."""
    if len(body) > MAX_MANIFEST_BYTES:
        raise PackagingError(
            f"the manifest has {len(body):,} bytes, more than the {MAX_MANIFEST_BYTES:,} that a reader takes",
            do="Shorten the longest part: labels, or the initial values of a state",
        )
    try:
        check_answers(parse_manifest(body, "the manifest"), blobs, "the manifest")
    except BundleError as error:
        what = f"no reader would open the bundle: {error.what}"
        do = "Mend the model's contract, names or labels; or give it examples that it answers in numbers"
        raise PackagingError(what, where=error.where, do=do) from error


def check_tools(extra: str = "convert") -> None:
    """Raises MissingExtraError where a bundle could not be written in the end: to be asked before the long work. extra: the one
    that a person would install for what they have."""
    try:
        import rfc8785  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(extra, "writing a bundle") from error


def canonical_json(value: object) -> bytes:
    """RFC 8785: one byte string for one JSON value."""
    check_tools()
    import rfc8785

    return rfc8785.dumps(json.loads(json.dumps(value, allow_nan=False)))


def write_bundle(path: Path, draft: BundleDraft, manifest: Manifest, keys: Sequence[Signer] = ()) -> int:
    """Write the bundle beside its final name and move it there, so that no reader ever sees half of one. Returns bytes.

    Raises OutputError when the folder cannot be written.
    """
    data = draft.encode(manifest, keys)
    write_whole(path, data, "the bundle")
    return len(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(aligned(len(data)) - len(data))

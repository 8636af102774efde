"""Writing an .ekb, encrypted or not, and any other named file: whole or not at all.

    draft = BundleDraft(Encryption(load_secret("file:camera.secret"), model_id))     # or BundleDraft(), in plain
    digest = draft.add(model_bytes)                     # content-addressed: the same bytes are stored once
    write_bundle(path, draft, manifest, keys)

Rules:
- the same draft gives the same bytes, with the same key also where it is encrypted; nothing of the machine or clock
  gets in;
- every blob is encrypted, model files and golden examples alike, and named by the SHA-256 of its encrypted bytes; the
  manifest stays readable;
- only an ordinary file, or a link to one, is ever replaced: who names /dev/null or /dev/stdout does not mean that a
  file should take its place.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.errors import OutputError, PackagingError
from edgekit.packaging.signing import Signer, signature_block
from edgekit_runtime.bundle.checks import check_answers, parse_manifest
from edgekit_runtime.bundle.cipher import SCHEME, Kind, bound_to, encrypt
from edgekit_runtime.bundle.header import MAGIC, MAX_MANIFEST_BYTES, align_up
from edgekit_runtime.bundle.manifest import BlobEntry, Cipher, Manifest
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.errors import BundleError, MissingExtraError
from edgekit_runtime.whole_file import write_durably


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Durably, so that no reader ever sees half a file. what: in the error's words.

    Raises OutputError when the folder cannot be written, the disk is full, or something that is no ordinary file has
    that name; nothing is left behind then.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there; or what keeps it from being seen keeps it from being written, which fails then
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise OutputError(
            f"{what} cannot be written: {found} has that name", where=str(path), do="Name a file that may be replaced"
        )
    try:
        write_durably(path, data)
    except OSError as error:
        raise OutputError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(path),
            do="Make room there, or choose another folder",
        ) from error


@dataclass(frozen=True)
class Encryption:
    """secret: its first key encrypts. model_id: of the model that the blobs are bound to."""

    secret: Secret
    model_id: str

    def encrypted(self, data: bytes, kind: Kind) -> tuple[bytes, Cipher]:
        """What goes into the file, and what a reader must know of it beside the key."""
        salt, sealed = encrypt(self.secret.key(), data, bound_to(self.model_id, kind))
        return sealed, Cipher(SCHEME, self.secret.id, salt.hex())


class BundleDraft:
    """Collects blobs in the order they are first added.
    encryption: of every one of them, None to leave them as they are."""

    def __init__(self, encryption: Encryption | None = None) -> None:
        self._encryption = encryption
        self._blobs: dict[str, bytes] = {}
        self._ciphers: dict[str, Cipher] = {}

    def add(self, data: bytes, kind: Kind = "golden") -> str:
        """Store a blob; returns the SHA-256, in hex, of what the file will hold.
        kind: `model` for a model file."""
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
            cursor = align_up(cursor + len(data))
        return tuple(entries)

    def encode(self, manifest: Manifest, keys: Sequence[Signer] = ()) -> bytes:
        """The whole file.
        The manifest's `blobs` are filled in here. Raises PackagingError for what no reader would open.
        """
        body = canonical_json(replace(manifest, blobs=self.entries()).as_json())
        # The reader's own checks: what it refuses is not written in the first place. blobs: those that are not
        # encrypted.
        blobs = {name: data for name, data in self._blobs.items() if name not in self._ciphers}
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
        signatures = signature_block(body, keys)
        head = MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", len(signatures)) + signatures
        head += hashlib.sha256(head).digest()
        return b"".join([_padded(head), *(_padded(data) for data in self._blobs.values())])


def check_tools(extra: str = "convert") -> None:
    """Raises MissingExtraError early where a bundle could not be written in the end.
    extra: the one that a person would install for what they have."""
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
    """Write the bundle beside its final name and move it there, so that it is always whole.
    Returns bytes.

    Raises OutputError when the folder cannot be written.
    """
    data = draft.encode(manifest, keys)
    write_whole(path, data, "the bundle")
    return len(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(align_up(len(data)) - len(data))

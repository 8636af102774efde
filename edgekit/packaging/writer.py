"""Write an .ekb, signed with Ed25519, and other files, atomically.

    draft = BundleDraft(Encryption(load_secret("file:camera.secret"), model_id))     # or BundleDraft(), in plain
    digest = draft.add(model_bytes)                     # content-addressed: the same bytes are stored once
    write_bundle(path, draft, manifest, [load_signing_key(Path("alice.pem"), passphrase=ask)])

Rules:
- the same draft gives the same bytes, encrypted with the same key, too;
- every blob is encrypted and named by the SHA-256 of its encrypted bytes; the manifest stays readable;
- only an ordinary file, or a link to one, is ever replaced, never /dev/null.
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgekit.packaging.output_errors import OutputError, PackagingError
from edgekit_runtime.bundle.checks import check_answers, parse_manifest
from edgekit_runtime.bundle.cipher import SCHEME, Kind, bound_to, encrypt
from edgekit_runtime.bundle.header import MAGIC, MAX_MANIFEST_BYTES, align_up
from edgekit_runtime.bundle.manifest import BlobEntry, Cipher, Manifest
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.bundle.signature import MAX_KEY_FILE_BYTES, PAYLOAD_TYPE, Signature, keyid_of, pae, raw_key
from edgekit_runtime.bundle.trust_finding import refuse_unsafe
from edgekit_runtime.system.errors import BundleError, MissingExtraError
from edgekit_runtime.system.files import write_durably
from edgekit_runtime.system.strict_json import canonical_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


class Signer(Protocol):
    """Signs for one key: a file's, or a command's that asks a token."""

    @property
    def public(self) -> bytes:
        """The raw 32 bytes of the public key."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the Ed25519 signature over `message`. Raises PackagingError."""
        ...


@dataclass(frozen=True)
class SigningKey:
    """A private key, read once. Never printed, never logged."""

    _private: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        return raw_key(self._private.public_key())

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def signed_by(signer: Signer, body: bytes, payload_type: str = PAYLOAD_TYPE) -> Signature:
    """keyid and signature over the DSSE encoding of `body`, by default a manifest's bytes."""
    return keyid_of(signer.public), signer.sign(pae(body, payload_type))


def merge_signatures(signatures: Iterable[Signature]) -> list[dict[str, str]]:
    """Entries of a signature block: the last of each key, in the order of the keyids."""
    return [
        {"keyid": name, "sig": base64.b64encode(signature).decode()}
        for name, signature in sorted(dict(signatures).items())
    ]


def signed_head(body: bytes, signers: Sequence[Signer], others: Iterable[Signature] = ()) -> bytes:
    """A bundle up to its first blob. body: the manifest. others: earlier signatures."""
    block = canonical_bytes(merge_signatures([*others, *(signed_by(signer, body) for signer in signers)]))
    head = MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", len(block)) + block
    return _pad(head + hashlib.sha256(head).digest())


def load_signing_key(path: Path, passphrase: Callable[[Path], bytes | None] | None = None) -> SigningKey:
    """An Ed25519 private key from a PEM file. Raises PackagingError.

    passphrase: called with the path of an encrypted file
    """
    from cryptography.hazmat.primitives.asymmetric import ed25519

    make = f"Make one: edgekit keys new; or: openssl genpkey -algorithm ed25519 -out {path.name}"
    private = load_private_key(path, passphrase, make)
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise PackagingError("this key is not Ed25519", where=str(path), do=make)
    return SigningKey(private)


def load_private_key(path: Path, passphrase: Callable[[Path], bytes | None] | None, make: str) -> PrivateKeyTypes:
    """A private key of any kind from a PEM file. Raises PackagingError. make: its advice."""
    from cryptography.hazmat.primitives import serialization

    data = _read(path, make)
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data or b"Proc-Type: 4,ENCRYPTED" in data
    secret = passphrase(path) if passphrase is not None and encrypted else None
    try:
        return serialization.load_pem_private_key(data, password=secret)
    except TypeError as error:
        raise PackagingError(
            "the key is encrypted and no passphrase was given",
            where=str(path),
            do="Run it on a terminal, which prompts for it, pass --passphrase-file FILE, or set EDGEKIT_PASSPHRASE",
        ) from error
    except Exception as error:
        if secret is not None:
            raise PackagingError("wrong passphrase", where=str(path), do="Try again") from error
        what = (
            "this is a public key: signing needs the private one" if b"PUBLIC KEY" in data else "not a PEM private key"
        )
        raise PackagingError(what, where=str(path), do=make) from error


def _read(path: Path, make: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may never end
            raise PackagingError("not a regular file", where=str(path), do=make)
        refuse_unsafe(path)
        with path.open("rb") as file:
            return file.read(MAX_KEY_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise PackagingError(f"the key cannot be read: {why}", where=str(path), do=make) from error


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Replace a file atomically and durably. what: its name in errors.

    Raises OutputError for a folder that cannot be written, a full disk, or a name that is not an ordinary file's, and
    leaves nothing behind.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or writing fails, too
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
    """secret: its first key encrypts. model_id: bound to the blobs."""

    secret: Secret
    model_id: str

    def encrypted(self, data: bytes, kind: Kind) -> tuple[bytes, Cipher]:
        """The encrypted bytes, and what a reader needs besides the key."""
        salt, sealed = encrypt(self.secret.key(), data, bound_to(self.model_id, kind))
        return sealed, Cipher(SCHEME, self.secret.id, salt.hex())


class BundleDraft:
    """Collects blobs in the order they are first added. encryption: None to leave them readable."""

    def __init__(self, encryption: Encryption | None = None) -> None:
        self._encryption = encryption
        self._blobs: dict[str, bytes] = {}
        self._ciphers: dict[str, Cipher] = {}

    def add(self, data: bytes, kind: Kind = "golden") -> str:
        """Store a blob; return the SHA-256, in hex, of the stored bytes."""
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
        """The whole file, with the manifest's `blobs`. Raises PackagingError for an invalid one."""
        body = canonical_json(replace(manifest, blobs=self.entries()).as_json())
        # The reader's own checks, of the blobs that are not encrypted
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
        return b"".join([signed_head(body, keys), *(_pad(data) for data in self._blobs.values())])


def check_tools(extra: str = "convert") -> None:
    """Raises MissingExtraError early if a bundle could not be written."""
    try:
        import rfc8785  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(extra, "writing a bundle") from error


def canonical_json(value: object) -> bytes:
    """Return the canonical bytes of a JSON value (RFC 8785)."""
    check_tools()
    import rfc8785

    return rfc8785.dumps(json.loads(json.dumps(value, allow_nan=False)))


def write_bundle(path: Path, draft: BundleDraft, manifest: Manifest, keys: Sequence[Signer] = ()) -> int:
    """Write the bundle, whole or not at all; return its size in bytes. Raises OutputError."""
    data = draft.encode(manifest, keys)
    write_whole(path, data, "the bundle")
    return len(data)


def _pad(data: bytes) -> bytes:
    return data + bytes(align_up(len(data)) - len(data))

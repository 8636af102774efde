"""Opening an .ekb: one open descriptor, everything checked before anything is used.

    head       `header.py` has its layout
    blobs      each at a multiple of 64 from there, padded with zeros; nothing follows

Order of checks: the caps, the header's digest, the signature over the manifest's bytes, the manifest's form, where the
blobs lie, then the SHA-256 of every blob and every padding byte: no bit of the file can change unseen. Encrypted blobs are
decrypted after that, into memory. The file is read once and used as read: what was checked is what runs.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.checks import check_answers, parse_manifest
from edgekit_runtime.bundle.cipher import Kind, bound_to, decrypt
from edgekit_runtime.bundle.header import (
    ALIGNMENT,
    MAGIC,
    MAX_MANIFEST_BYTES,
    Header,
    aligned,
    check_zeros,
    read_header,
)
from edgekit_runtime.bundle.limits import MAX_BUNDLE_BYTES
from edgekit_runtime.bundle.manifest import ArtifactEntry, BlobEntry, Golden, Manifest
from edgekit_runtime.errors import BundleError, IntegrityError
from edgekit_runtime.trust import Trust, Vouched, find_trust, load_trust, vouch

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secret_key import Secret
    from edgekit_runtime.bundle.secrets import Given
    from edgekit_runtime.trust.signature import Signature

__all__ = [
    "ALIGNMENT",
    "MAGIC",
    "MAX_BUNDLE_BYTES",
    "MAX_MANIFEST_BYTES",
    "Bundle",
    "aligned",
    "bundle_of",
    "read_bundle",
    "read_open",
    "read_vouched",
]

_AGAIN = "Copy or download it again"


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. signed_by: every keyid in the signature block, whether trusted or not; trusted: one of the
    caller's keys really signed it. digest: SHA-256 of the manifest's bytes, which names the bundle's whole content.
    secret: the one key that its blobs were decrypted with, for who must read it again in a process of its own. told: who
    vouches for it, in words.
    """

    path: Path
    manifest: Manifest
    digest: str
    signed_by: tuple[str, ...]
    trusted: bool
    size: int
    _blobs: dict[str, bytes] = field(repr=False)
    secret: Secret | None = field(default=None, repr=False, compare=False)
    told: str = field(default="its signature was not checked", compare=False)

    @property
    def locked(self) -> bool:
        """Its blobs are encrypted, and it was read without the key: all digests are checked, and no blob can be had."""
        return self.manifest.encrypted_with is not None and self.secret is None

    def blob(self, sha256: str) -> bytes:
        """Raises SecretMissingError where it is locked."""
        found = self._blobs.get(sha256)
        if found is None and self.locked:
            from edgekit_runtime.bundle.secrets import missing

            raise missing(self.manifest.encrypted_with or "", str(self.path))
        return self._blobs[sha256] if found is None else found

    def golden_items(self, golden: Golden) -> dict[str, NDArray[Any]]:
        """The canonical inputs of a golden example, by contract name, read-only and without a batch axis.

        Of a sequence: all frames, [steps, ...].
        """
        contract, frames = self.manifest.contract, () if golden.steps is None else (golden.steps,)
        return {
            name: np.frombuffer(self.blob(blob), golden.dtypes[name]).reshape((*frames, *contract.input(name).shape))
            for name, blob in golden.inputs.items()
        }

    def artifact(self, recipe: str | None = None) -> ArtifactEntry:
        """The artifact made by `recipe`, or the primary one."""
        for entry in self.manifest.artifacts:
            if entry.recipe == recipe or (recipe is None and entry.role == "primary"):
                return entry
        names = ", ".join(entry.recipe for entry in self.manifest.artifacts)
        raise BundleError(f"no artifact '{recipe}'", where=str(self.path), do=f"It holds: {names}")


def read_bundle(
    path: str | os.PathLike[str],
    *,
    trust: Trust = (),
    secret: Given = None,
    vouches: Callable[[bytes, Sequence[Signature]], bool] | None = None,
) -> Bundle:
    """Open and check a bundle.

    trust: a PEM file, or several, of Ed25519 public keys, a root.json, or a TrustStore. With any, a bundle that is not
    signed as it asks is refused; without, the signature is not checked (`read_vouched` looks for what
    this machine trusts). secret: where the key of an encrypted bundle is, or the key (see `bundle.secrets`), which is
    not asked for before it is needed; without one everything is checked and the blobs stay closed.
    vouches: instead of `trust`, is told the manifest's bytes and the signatures before anything is parsed; it says whether
    they are trusted, or raises.
    Raises BundleError (not a bundle, malformed), IntegrityError (changed bytes), SignatureError (its subclasses, of
    `edgekit_runtime.trust`, say why), SecretError (its subclasses say why).
    """
    path = Path(path)
    data = _read(path)
    store = load_trust(trust)

    def trusted(header: Header) -> bool:
        if vouches is not None:
            return vouches(header.manifest_bytes, header.signatures)
        return store is not None and bool(store.check(header.manifest_bytes, header.signatures, where=str(path)))

    return bundle_of(data, path, trusted, secret)


def read_vouched(
    path: str | os.PathLike[str], trust: Trust = (), *, secret: Given = None, allow_unsigned: bool = False
) -> Bundle:
    """The bundle in a file, to be used now: by what `trust` names, else by what this machine trusts, else unchecked.

    Dates are not asked about: they decide what is installed. `Bundle.told` says who vouches for it, or that nobody was asked.
    Raises as `read_bundle` does.
    """
    store = load_trust(trust)
    store = find_trust() if store is None else store
    if store is None:
        unchecked = read_bundle(path, secret=secret)
        return replace(unchecked, told="its signature was not checked: this machine was never told whom to trust")
    found: list[Vouched] = []

    def vouches(manifest: bytes, signatures: Sequence[Signature]) -> bool:
        found.append(
            vouch(store, manifest, signatures, new=False, allow_unsigned=allow_unsigned, where=os.fspath(path))
        )
        return found[0].trusted

    bundle = read_bundle(path, vouches=vouches, secret=secret)
    return replace(bundle, told=found[0].told)


def bundle_of(data: bytes, path: Path, vouches: Callable[[Header], bool], secret: Given = None) -> Bundle:
    """The bundle that was read from `path`, for who opened the file in a way of his own.

    vouches: told the head before anything of the manifest is parsed: whether it is signed as it must be; raises where that
    must not be opened. Raises as `read_bundle` does.
    """
    where = str(path)
    header = read_header(data, where)
    trusted = vouches(header)
    manifest = parse_manifest(header.manifest_bytes, where)
    checked = _check_blobs(data, header.blobs_at, manifest.blobs, where)
    opened = _key(manifest, secret, where)
    blobs = _usable(manifest, checked, opened, where)
    if len(blobs) == len(manifest.blobs):  # else it is locked, and what it answers is not to be seen
        check_answers(manifest, blobs, where)
    signed_by = tuple(name for name, _ in header.signatures)
    return Bundle(path, manifest, header.digest, signed_by, trusted, len(data), blobs, opened)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device may never end
            raise BundleError("not a regular file", where=str(path), do="Pass a file that `edgekit build` wrote")
        with path.open("rb") as file:
            return read_open(file, str(path))
    except IsADirectoryError as error:
        do = "Pass a bundle's file; what answers in a root of `edgekit install` is ROOT/current/bundle.ekb"
        raise BundleError("cannot be read: it is a folder", where=str(path), do=do) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise BundleError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            do="Check the path; `edgekit build` writes NAME-PROFILE.ekb",
        ) from error


def read_open(file: BinaryIO, where: str) -> bytes:
    """All of an open file, and never more than a bundle may have. Raises BundleError, OSError.

    `read` allocates what it is asked for: asking for the cap of 2 GiB would take more than a board has.
    """
    size = os.fstat(file.fileno()).st_size
    most = min(MAX_BUNDLE_BYTES, sys.maxsize - 1)  # on a 32-bit board nothing longer can be read at once
    if size > most:
        raise BundleError(f"{size:,} bytes is more than a bundle may have ({most:,})", where=where)
    return file.read(size + 1)


def _check_blobs(data: bytes, start: int, entries: Sequence[BlobEntry], where: str) -> dict[str, memoryview]:
    """What lies in the file, by its digest; of the bytes that were read, not copies of them."""
    blobs: dict[str, memoryview] = {}
    whole = memoryview(data)
    end = cursor = start
    for entry in entries:
        if start + entry.offset != cursor:
            raise BundleError(f"blob {entry.sha256[:12]} does not lie where it should", where=where)
        check_zeros(data, end, cursor, where)
        blob = whole[cursor : cursor + entry.size]
        if len(blob) != entry.size:
            raise IntegrityError(f"the file ends inside blob {entry.sha256[:12]}", where=where, do=_AGAIN)
        if hashlib.sha256(blob).hexdigest() != entry.sha256:
            raise IntegrityError(
                f"blob {entry.sha256[:12]} is not what was packed (its SHA-256 differs)",
                where=where,
                do="The file is damaged or was changed: copy or build it again",
            )
        blobs[entry.sha256] = blob
        end = cursor + entry.size
        cursor = aligned(end)
    check_zeros(data, end, cursor, where)
    if len(data) != cursor:
        raise IntegrityError("the file does not end after its last blob", where=where, do=_AGAIN)
    return blobs


def _key(manifest: Manifest, secret: Given, where: str) -> Secret | None:
    """Raises SecretError."""
    if secret is None or manifest.encrypted_with is None:
        return None
    from edgekit_runtime.bundle.secrets import opened_with

    return opened_with(secret, manifest.encrypted_with, where)


def _usable(manifest: Manifest, checked: dict[str, memoryview], secret: Secret | None, where: str) -> dict[str, bytes]:
    """The bytes that are used: decrypted, or left out where there is no key. Never more than one copy beside the file's."""
    blobs: dict[str, bytes] = {}
    models = {artifact.blob for artifact in manifest.artifacts}
    for entry in manifest.blobs:
        if entry.cipher is None:
            blobs[entry.sha256] = bytes(checked[entry.sha256])
        elif secret is not None:
            kind: Kind = "model" if entry.sha256 in models else "golden"
            blobs[entry.sha256] = _decrypted(
                entry, checked[entry.sha256], secret, bound_to(manifest.model_id, kind), where
            )
    return blobs


def _decrypted(entry: BlobEntry, sealed: memoryview, secret: Secret, bound: bytes, where: str) -> bytes:
    """Its SHA-256 is right, and so is the key's id: what does not open now was never encrypted for this place."""
    from cryptography.exceptions import InvalidTag

    assert entry.cipher is not None
    try:
        return decrypt(secret.key(entry.cipher.key), bytes.fromhex(entry.cipher.salt), sealed, bound)
    except InvalidTag:
        raise IntegrityError(
            f"blob {entry.sha256:.12} does not open with its key: it was encrypted for another model, or was made up",
            where=where,
            do="Build the bundle again, and ask who changed this one",
        ) from None

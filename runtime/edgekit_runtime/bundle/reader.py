"""Opening an .ekb: one open descriptor, everything checked before anything is used.

    magic      8 bytes    89 45 4B 42 0D 0A 1A 0A   (\\x89 E K B CR LF SUB LF, so that a text-mode copy is noticed)
    length     u32 LE     of the manifest
    manifest   canonical JSON
    length     u32 LE     of the signature block
    signatures JSON list of {"keyid", "sig"}
    digest     32 bytes: SHA-256 of everything before it; finds damage where nobody signed
    padding    zeros, up to the next multiple of 64
    blobs      each at a multiple of 64 from here, padded with zeros

Order of checks: the caps, the header's digest, the signature over the manifest's bytes, the manifest's form, where the
blobs lie, then the SHA-256 of every blob and every padding byte: no bit of the file can change unseen. The file is read
once and used as read: what was checked is what runs.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.manifest import ArtifactEntry, BlobEntry, Golden, Manifest, parse_manifest
from edgekit_runtime.bundle.signature import Signature, load_public_key, parse_signatures, verify
from edgekit_runtime.errors import BundleError, IntegrityError, SignatureError

Trust = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

__all__ = ["ALIGNMENT", "MAGIC", "Bundle", "aligned", "read_bundle"]

MAGIC = b"\x89EKB\r\n\x1a\n"
ALIGNMENT = 64
MAX_MANIFEST_BYTES = 16 << 20
MAX_SIGNATURES_BYTES = 64 << 10
MAX_BUNDLE_BYTES = 2 << 30
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32
_AGAIN = "Copy or download it again"


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. signed_by: every keyid in the signature block, whether trusted or not; trusted: one of the
    caller's keys really signed it. digest: SHA-256 of the manifest's bytes, which names the bundle's whole content.
    """

    path: Path
    manifest: Manifest
    digest: str
    signed_by: tuple[str, ...]
    trusted: bool
    size: int
    _blobs: dict[str, bytes]

    def blob(self, sha256: str) -> bytes:
        return self._blobs[sha256]

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


def read_bundle(path: str | os.PathLike[str], *, trust: Trust = ()) -> Bundle:
    """Open and check a bundle.

    trust: a PEM file, or several, of Ed25519 public keys. With any, a bundle that none of them signed is refused.
    Raises BundleError (not a bundle, malformed), IntegrityError (changed bytes), SignatureError.
    """
    path = Path(path)
    data = _read(path)
    where = str(path)
    if data[: len(MAGIC)] != MAGIC:
        raise BundleError(_why_no_magic(data), where=where, do="Pass a file that `edgekit build` wrote")
    manifest_bytes, position = _section(data, len(MAGIC), MAX_MANIFEST_BYTES, "manifest", where)
    signature_bytes, position = _section(data, position, MAX_SIGNATURES_BYTES, "signature block", where)
    _check_digest(data, position, where)
    signatures = parse_signatures(signature_bytes, where)
    keys = [trust] if isinstance(trust, (str, os.PathLike)) else trust
    trusted = _check_trust(manifest_bytes, signatures, keys, where)
    manifest = parse_manifest(manifest_bytes, where)
    blobs = _check_blobs(data, position + _DIGEST_BYTES, manifest.blobs, where)
    digest = hashlib.sha256(manifest_bytes).hexdigest()
    return Bundle(path, manifest, digest, tuple(name for name, _ in signatures), trusted, len(data), blobs)


def aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device may never end
            raise BundleError("not a regular file", where=str(path), do="Pass a file that `edgekit build` wrote")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            most = min(MAX_BUNDLE_BYTES, sys.maxsize - 1)  # on a 32-bit board nothing longer can be read at once
            if size > most:
                raise BundleError(f"{size:,} bytes is more than a bundle may have ({most:,})", where=str(path))
            return file.read(size + 1)  # room is made for all that is asked for: 2 GiB would be more than a board has
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise BundleError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            do="Check the path; `edgekit build` writes NAME-PROFILE.ekb",
        ) from error


def _why_no_magic(data: bytes) -> str:
    if not data:
        return "the file is empty"
    if data[4:8] == b"TFL3":
        return "this is a bare TFLite model, not a bundle"
    if data[:4] == MAGIC[:4]:
        return "the file was changed in transfer (its line ends were translated)"
    return "this is not an edgekit bundle"


def _section(data: bytes, position: int, cap: int, what: str, where: str) -> tuple[bytes, int]:
    end = position + _LENGTH.size
    if len(data) < end:
        raise IntegrityError(f"the file ends before the {what}", where=where, do=_AGAIN)
    (length,) = _LENGTH.unpack_from(data, position)
    if length > cap:
        raise BundleError(f"the {what} claims {length:,} bytes, more than the {cap:,} allowed", where=where)
    if len(data) < end + length:
        raise IntegrityError(f"the file ends inside the {what}", where=where, do=_AGAIN)
    return data[end : end + length], end + length


def _check_digest(data: bytes, position: int, where: str) -> None:
    digest = data[position : position + _DIGEST_BYTES]
    if digest != hashlib.sha256(data[:position]).digest():
        raise IntegrityError("the header is not what was written (its SHA-256 differs)", where=where, do=_AGAIN)


def _check_trust(
    manifest: bytes, signatures: Sequence[Signature], trust: Sequence[str | os.PathLike[str]], where: str
) -> bool:
    if not trust:
        return False
    keys = [load_public_key(Path(path)) for path in trust]
    if verify(manifest, signatures, keys):
        return True
    what = "signed, but by no key that is trusted here" if signatures else "not signed"
    raise SignatureError(f"the bundle is {what}", where=where, do="Build it with --sign KEY.pem, or trust another key")


def _check_blobs(data: bytes, header: int, entries: Sequence[BlobEntry], where: str) -> dict[str, bytes]:
    start = aligned(header)
    blobs: dict[str, bytes] = {}
    end, cursor = header, start
    for entry in entries:
        if start + entry.offset != cursor or entry.size < 0:
            raise BundleError(f"blob {entry.sha256[:12]} does not lie where it should", where=where)
        _check_padding(data, end, cursor, where)
        blob = data[cursor : cursor + entry.size]
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
    _check_padding(data, end, cursor, where)
    if len(data) != cursor:
        raise IntegrityError("the file does not end after its last blob", where=where, do=_AGAIN)
    return blobs


def _check_padding(data: bytes, start: int, end: int, where: str) -> None:
    if any(data[start:end]):
        raise IntegrityError(f"the padding at byte {start} is not zero", where=where, do=_AGAIN)

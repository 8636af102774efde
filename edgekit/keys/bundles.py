"""Another signature on a bundle that is there already: two people sign at two desks.

endorsed = endorse(Path("net-raspberry-pi-4.ekb"), [bob])

Rules: the bundle is checked whole before it is signed, and what is signed are its manifest's bytes as they are; manifest and
blobs stay the same byte for byte. Signatures that are there stay. The file is replaced whole or not at all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.keys.errors import KeysError
from edgekit.packaging.signing import Signer, signature_block
from edgekit.packaging.whole import write_whole
from edgekit_runtime.bundle import MAGIC, Manifest, aligned, read_bundle
from edgekit_runtime.bundle.header import read_header
from edgekit_runtime.trust.signature import keyid_of

__all__ = ["Endorsed", "endorse"]


@dataclass(frozen=True)
class Endorsed:
    """added: keyids that signed now; signed_by: all that have. digest: of the manifest, the name of what was signed."""

    path: Path
    manifest: Manifest
    digest: str
    added: tuple[str, ...]
    signed_by: tuple[str, ...]


def endorse(path: Path, signers: Sequence[Signer], output: Path | None = None) -> Endorsed:
    """Sign the bundle at `path`; output: where the result goes, None for the same file.

    Raises BundleError, IntegrityError, KeysError, PackagingError, OutputError.
    """
    checked = read_bundle(path)
    data = path.read_bytes()
    header = read_header(data, str(path))
    if header.digest != checked.digest:
        raise KeysError("the file was changed while it was read", where=str(path), do="Run it again")
    there = [name for name, _ in header.signatures]
    block = signature_block(header.manifest_bytes, signers, header.signatures)
    head = MAGIC + struct.pack("<I", len(header.manifest_bytes)) + header.manifest_bytes
    head += struct.pack("<I", len(block)) + block
    head += hashlib.sha256(head).digest()
    head += bytes(aligned(len(head)) - len(head))
    write_whole(output or path, head + data[header.blobs_at :], "the bundle")
    added = tuple(name for name in map(keyid_of, (signer.public for signer in signers)) if name not in there)
    return Endorsed(output or path, checked.manifest, checked.digest, added, tuple(sorted({*there, *added})))

"""Whether a bundle may come in, by its head alone: who vouches for it, what it is for, when, and how long it is.

    head = Judging(store, board, journal.binding(store), moment, "net.ekb").head(header)
    head.total, head.vouched.signers                # bytes of the whole file, keyids

Rules: the signature is judged before anything of the manifest is parsed; nothing here reads a file or a clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.header import Header, aligned
from edgekit_runtime.bundle.limits import MAX_BUNDLE_BYTES
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import Opening
from edgekit_runtime.errors import DownloadError
from edgekit_runtime.install.rules import Board, admit
from edgekit_runtime.trust import Moment, TrustPolicy, TrustStore, Vouched

if TYPE_CHECKING:
    from edgekit_runtime.install.journal import Burned

__all__ = ["Head", "Judging", "name_of"]


@dataclass(frozen=True)
class Head:
    """name: stands for every byte of the file (`name_of`). total: bytes of the whole file, as its manifest lays it out."""

    manifest: Manifest
    vouched: Vouched
    name: str
    total: int


@dataclass(frozen=True)
class Judging:
    """store: whom this root trusts, None for nobody. binding: the rollout_seq that may not be gone below. where: the source, in
    words."""

    store: TrustStore | None
    board: Board
    binding: Burned | None
    moment: Moment
    where: str
    allow_unsigned: bool = False

    def head(self, header: Header) -> Head:
        """Raises SignatureError, BundleError, what `rules.admit` raises, and DownloadError (download-size)."""
        opening = Opening(self.where, TrustPolicy(self.store, self.allow_unsigned, now=self.moment))
        manifest = opening.judge(header)
        self.admit(manifest, header.digest)
        total = aligned(header.blobs_at + max((blob.offset + blob.size for blob in manifest.blobs), default=0))
        if total > MAX_BUNDLE_BYTES:
            what = f"{total:,} bytes is more than a bundle may have ({MAX_BUNDLE_BYTES:,})"
            raise DownloadError(what, where=self.where, code="download-size")
        return Head(manifest, opening.vouched, name_of(header), total)

    def admit(self, manifest: Manifest, digest: str) -> None:
        """What `rules.admit` raises."""
        admit(manifest, digest, self.board, self.binding, self.moment, self.where)


def name_of(header: Header) -> str:
    """What names every byte of the file: the manifest names each blob, and the signatures are all else that may differ."""
    digest = hashlib.sha256(header.manifest_bytes)
    for keyid, signature in header.signatures:
        digest.update(b"\0" + keyid.encode() + b"\0" + signature)
    return digest.hexdigest()

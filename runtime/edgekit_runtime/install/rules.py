"""Whether a bundle may be installed: its signature, board, dates, rollout_seq and length.

    rules = InstallRules(store, BoardIdentity(("raspberry-pi-4",)), journal.binding(store), moment, "net.ekb")
    head = rules.head(header)
    head.total, head.trust_decision.signers                # bytes of the whole file, keyids

Rules:
- the signature is judged before anything in the manifest is parsed; nothing here reads a file or a clock;
- a bundle names profiles; a board without a known profile is compared by its architecture alone;
- a rollout_seq never goes back, and one number stands for one bundle; once one was accepted, a bundle without one is
  refused;
- dates are judged by a moment that says which clock it rests on, and every refusal repeats it.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.header import Header, align_up
from edgekit_runtime.bundle.manifest import MAX_BUNDLE_BYTES, Manifest
from edgekit_runtime.bundle.reader import Opening
from edgekit_runtime.bundle.trust_finding import TrustDecision, TrustPolicy
from edgekit_runtime.bundle.trust_store import TrustStore, TrustTime, parse_time
from edgekit_runtime.system.errors import DownloadError, InstallError

if TYPE_CHECKING:
    from edgekit_runtime.install.journal import AcceptedSequence

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8l": "armv7l", "armv6l": "armv7l"}


@dataclass(frozen=True)
class BoardIdentity:
    """profiles: this board's names, its own first; empty if unknown.
    machine: as the system names itself.
    """

    profiles: tuple[str, ...] = ()
    machine: str = ""

    @property
    def arch(self) -> str:
        name = (self.machine or platform.machine()).lower()
        return _SAME.get(name, name)


@dataclass(frozen=True)
class BundleHead:
    """name: identifies every byte of the file (`name_of`).
    total: bytes of the whole file, by its manifest.
    """

    manifest: Manifest
    trust_decision: TrustDecision
    name: str
    total: int


@dataclass(frozen=True)
class InstallRules:
    """store: the trusted keys, or None.
    binding: the rollout_seq that binds (`Journal.binding`), or None.
    where: the source, for messages.
    """

    store: TrustStore | None
    board: BoardIdentity
    binding: AcceptedSequence | None
    moment: TrustTime
    where: str
    allow_unsigned: bool = False

    def head(self, header: Header) -> BundleHead:
        """Check a head.

        Raises SignatureError, BundleError, DownloadError (download-size), and as `admit`.
        """
        opening = Opening(self.where, TrustPolicy(self.store, self.allow_unsigned, now=self.moment))
        manifest = opening.judge(header)
        self.admit(manifest, header.digest)
        total = align_up(header.blobs_at + max((blob.offset + blob.size for blob in manifest.blobs), default=0))
        if total > MAX_BUNDLE_BYTES:
            what = f"{total:,} bytes is more than a bundle may have ({MAX_BUNDLE_BYTES:,})"
            raise DownloadError(what, where=self.where, code="download-size")
        return BundleHead(manifest, opening.trust_decision, name_of(header), total)

    def admit(self, manifest: Manifest, digest: str) -> None:
        """Raises InstallError (incompatible, downgrade, rollout-seq-reused, expired, not-yet-valid)."""
        check_board(manifest, self.board, self.where)
        check_dates(manifest, self.moment, self.where)
        check_sequence(manifest.rollout_seq, digest, self.binding, self.where)


def name_of(header: Header) -> str:
    """Identify every byte: the manifest names each blob; besides, only signatures may differ."""
    digest = hashlib.sha256(header.manifest_bytes)
    for keyid, signature in header.signatures:
        digest.update(b"\0" + keyid.encode() + b"\0" + signature)
    return digest.hexdigest()


def check_board(manifest: Manifest, board: BoardIdentity, where: str) -> None:
    """Raises InstallError (incompatible)."""
    wanted = manifest.compatible
    if board.profiles:
        if not set(wanted) & set(board.profiles):
            raise InstallError(
                f"it is for {', '.join(wanted)}, and this board is {board.profiles[0]}",
                where=where,
                do="Install one that was built for this board (edgekit build --profile or --compatible); if this is "
                "another board, name it: edgekit install --profile",
                code="incompatible",
            )
        return
    arch = manifest.target.arch
    if _SAME.get(arch.lower(), arch.lower()) != board.arch:
        what = f"it is for {arch}, and this machine is {board.arch}"
        raise InstallError(what, where=where, do="Build it for a profile of this architecture", code="incompatible")


def check_dates(manifest: Manifest, moment: TrustTime, where: str) -> None:
    """Raises InstallError (expired, not-yet-valid)."""
    if manifest.expires is not None and moment.at_s >= parse_time(manifest.expires):
        what = f"the bundle expired on {manifest.expires} {moment.text}"
        do = "Install a newer one; or set the clock, if that is what is wrong"
        raise InstallError(what, where=where, do=do, code="expired")
    if manifest.not_before is not None and moment.at_s < parse_time(manifest.not_before):
        what = f"the bundle is not to be used before {manifest.not_before} {moment.text}"
        do = "Install it then; or set the clock, if that is what is wrong"
        raise InstallError(what, where=where, do=do, code="not-yet-valid")


def check_sequence(seq: int | None, digest: str, burned: AcceptedSequence | None, where: str) -> None:
    """Raises InstallError (downgrade, rollout-seq-reused)."""
    if burned is None:
        return
    if seq is None:
        what = f"it has no rollout_seq, and {burned.seq} was accepted here before"
        raise InstallError(what, where=where, do=_higher(burned), code="downgrade")
    if seq < burned.seq:
        what = f"its rollout_seq {seq} is older than {burned.seq}, which was accepted here before"
        do = f"{_higher(burned)}; `edgekit rollback` goes back to what is still here"
        raise InstallError(what, where=where, do=do, code="downgrade")
    if seq == burned.seq and digest != burned.bundle:
        what = f"its rollout_seq {seq} was accepted here before, of another bundle ({burned.bundle[:12]})"
        raise InstallError(what, where=where, do=_higher(burned), code="rollout-seq-reused")


def _higher(burned: AcceptedSequence) -> str:
    return f"Install one that was built with --rollout-seq {burned.seq + 1} or higher"
